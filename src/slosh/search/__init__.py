"""Vectors to neighbours: searches behind one small protocol."""

from .base import Search, load
from .codes import nearest_codes
from .exact import ExactSearch
from .hamming import HammingSearch
from .ladder import LadderSearch
from .lsh import LSHSearch, NearResult
from .result import RangeResult, Result, Stats

__all__ = [
    "ExactSearch",
    "HammingSearch",
    "LSHSearch",
    "LadderSearch",
    "NearResult",
    "RangeResult",
    "Result",
    "Search",
    "Stats",
    "load",
    "nearest_codes",
]
