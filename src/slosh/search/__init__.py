"""Vectors to neighbours: searches behind one small protocol.

Users take the searches (`LadderSearch`, ...). Engines take their states: `Search.start` gives a `State`.
"""

from .base import Search, checked_radii, checked_recall, load
from .calibration import Calibration
from .codes import nearest_codes
from .columns import Column, ColumnFactory, in_memory
from .exact import ExactSearch
from .faiss_search import FaissSearch
from .hamming import HammingSearch
from .ladder import LadderSearch
from .lsh import LSHSearch, NearResult
from .result import RangeResult, Result, Stats
from .state import Allowed, Metric, State, Trained

__all__ = [
    "Allowed",
    "Calibration",
    "Column",
    "ColumnFactory",
    "ExactSearch",
    "FaissSearch",
    "HammingSearch",
    "LSHSearch",
    "LadderSearch",
    "Metric",
    "NearResult",
    "RangeResult",
    "Result",
    "Search",
    "State",
    "Stats",
    "Trained",
    "checked_radii",
    "checked_recall",
    "in_memory",
    "load",
    "nearest_codes",
]
