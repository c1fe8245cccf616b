"""Vectors to neighbours: searches behind one small protocol."""

from .base import Search, load
from .codes import nearest_codes
from .exact import ExactSearch
from .hamming import HammingSearch
from .ladder import LadderSearch
from .lsh import LSHSearch, NearResult
from .result import RangeResult, Result, Stats
from .set_search import SetSearch

__all__ = [
    "ExactSearch",
    "HammingSearch",
    "LSHSearch",
    "LadderSearch",
    "NearResult",
    "RangeResult",
    "Result",
    "Search",
    "SetSearch",
    "Stats",
    "default_search",
    "load",
    "nearest_codes",
]


def default_search(precision: int = 16) -> Search:
    """A new search of the kind that is taken where none is named; 32 bits where a distance of 0 must be 0."""
    return LadderSearch(precision=precision)
