"""Vectors to neighbours: searches behind one small protocol."""

from .base import Search, load
from .exact import ExactSearch
from .ladder import LadderSearch
from .result import RangeResult, Result, Stats

__all__ = [
    "ExactSearch",
    "LadderSearch",
    "RangeResult",
    "Result",
    "Search",
    "Stats",
    "load",
]
