"""Vector to code: hashes under which near vectors agree more often than far ones, with the probabilities."""

from . import theory, tuning
from .codes import hamming
from .pstable import PStableHash
from .sign import SignHash

__all__ = ["PStableHash", "SignHash", "hamming", "theory", "tuning"]
