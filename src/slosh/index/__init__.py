"""The index: the class, the planner that answers a question step by step, hits, records, verify, export and copy."""

from .hits import Hit, HitLists, Hits, Pairs
from .records import Record
from .set_index import SetIndex, Tuned, open
from .verify import Report

__all__ = ["Hit", "HitLists", "Hits", "Pairs", "Record", "Report", "SetIndex", "Tuned", "open"]
