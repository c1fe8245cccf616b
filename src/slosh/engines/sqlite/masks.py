"""From a filter to a mask of the rows that match: by one SELECT (`filters.py`), or condition by condition.

One SELECT lets every condition look for its rows by itself. An `or` of 300 times "a range of years and a shop" would
then read nearly all years 300 times over. Such a filter is put together here from the masks of its conditions: a field
with many ranges that overlap is read once, in the order of its values, and a condition that is asked for many times is
looked for once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from ...where import Key, Leaf, Node, Range, combined, edge, leaves
from ..base import Int64, Mask
from .database import Connection
from .filters import ASKED_OFTEN, compile_filter, overlapping, reads_repeatedly

LINES_AT_ONCE = 4096

Edge: TypeAlias = tuple[Any, ...]
"""A value, and whether the place just after it is meant or the one just before it."""


def mask_of_filter(connection: Connection, where: Node, first: int, n: int) -> Mask:
    """Return which of the rows from `first` to n - 1 match. Raise ValueError or TypeError for what is not a row."""
    if not reads_repeatedly(where):
        return _selected(connection, where, first, n)
    asked = Counter(leaves(where))
    columns = {key: _RangeColumn(connection, key, ranges) for key, ranges in overlapping(asked.elements()).items()}
    known: dict[Leaf, Mask] = {}

    def mask_of(leaf: Leaf) -> Mask:
        if leaf in known:
            return known[leaf]
        if isinstance(leaf, Range) and leaf.key in columns:
            return _mask(columns[leaf.key].rows(leaf), first, n)
        mask = _selected(connection, leaf, first, n)
        if asked[leaf] > ASKED_OFTEN:
            known[leaf] = mask
        return mask

    return combined(where, n - first, mask_of)


def _selected(connection: Connection, where: Node, first: int, n: int) -> Mask:
    sql, values = compile_filter(where, first)  # a row may come twice: it only sets the mask
    rows = np.fromiter((row for (row,) in connection.execute(sql, values)), np.int64)
    return _mask(rows, first, n)


def _mask(rows: Int64, first: int, n: int) -> Mask:
    mask = np.zeros(n - first, np.bool_)
    mask[rows[(rows >= first) & (rows < n)] - first] = True
    return mask


class _RangeColumn:
    """The rows of a field in the order of its values, and where among them each range begins and ends.

    The values themselves are not kept.
    """

    def __init__(self, connection: Connection, key: Key, ranges: Iterable[Range]) -> None:
        edges: dict[bool, set[Edge]] = {}
        for one in ranges:
            edges.setdefault(one.is_text, set()).update(map(edge, one.bounds))
        self._of_kind = {is_text: _read(connection, key, is_text, sorted(each)) for is_text, each in edges.items()}

    def rows(self, one: Range) -> Int64:
        rows, places = self._of_kind[one.is_text]
        start, end = (None if bound is None else places[edge(bound)] for bound in (one.low, one.high))
        return rows[start:end]


def _read(connection: Connection, key: Key, is_text: bool, edges: list[Edge]) -> tuple[Int64, dict[Edge, int]]:
    """Return the rows of all numbers or all strings of a field in their order, and how many come before each edge."""
    table, column = ("sets", "id") if key is None else ("fields", "value")
    kind = f"{column} >= '' AND {column} < x''" if is_text else f"{column} < ''"  # see `filters.py`
    sql = f"SELECT {column}, row FROM {table} WHERE {'key = ? AND ' * (key is not None)}{kind} ORDER BY {column}"
    lines = connection.execute(sql, () if key is None else (key,))
    parts, places, n_before, waiting = [np.empty(0, np.int64)], {}, 0, edges[::-1]
    while some := lines.fetchmany(LINES_AT_ONCE):
        values, rows = zip(*some, strict=True)
        while waiting:
            value, after = waiting[-1]
            at = (bisect_right if after else bisect_left)(values, value)
            if at == len(values):  # it may be further on
                break
            places[waiting.pop()] = n_before + at
        parts.append(np.array(rows, np.int64))
        n_before += len(some)
    return np.concatenate(parts), {**places, **dict.fromkeys(waiting, n_before)}
