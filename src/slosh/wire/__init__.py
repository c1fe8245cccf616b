"""What travels between a server and its client: messages of sets and arguments, and errors as problem details.

The client (`slosh.index.remote`) and the server (`slosh.server`) both use it, so that a message has one form. Nothing
in a message is ever executed.
"""

from .connection import Answer, Connection, not_slosh
from .messages import ARROW, BINARY, JSON, NPY, Message, pack, pack_sets, unpack, unpack_sets
from .problems import PROBLEM, error_of, problem_of

__all__ = [
    "ARROW",
    "BINARY",
    "JSON",
    "NPY",
    "PROBLEM",
    "Answer",
    "Connection",
    "Message",
    "error_of",
    "not_slosh",
    "pack",
    "pack_sets",
    "problem_of",
    "unpack",
    "unpack_sets",
]
