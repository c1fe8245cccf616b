"""Hashes of vectors, under which near vectors agree more often than far ones, and the probabilities of it."""

from . import theory, tuning
from .codes import hamming
from .pstable import PStableHash
from .sign import SignHash

__all__ = ["PStableHash", "SignHash", "hamming", "theory", "tuning"]
