"""The user's row numbers and the positions they are stored at. Immutable, like states.

A row is an int64 that the user chose (or the next free one); a position is where its vector lies. A removal leaves a
hole until the search closes up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..data.checks import as_array
from ..errors import InputError
from ..native.arrays import Array, Int64, Mask
from .columns import Column
from .state import Allowed

LARGEST_ROW = (1 << 62) - 1


@dataclass(eq=False)
class RowTable:
    """Rows by position, in the order of the adds.

    column : holds the rows.
    alive : which positions are not holes.
    ascending : whether rows increase with the position.
    highest : the highest row there ever was, -1 before the first.
    """

    column: Column
    alive: Mask
    ascending: bool
    highest: int

    def __post_init__(self) -> None:
        self._order: Int64 | None = None  # positions of the rows that are there, by row; made when it is needed

    @classmethod
    def empty(cls) -> RowTable:
        """Return a table without rows."""
        return cls(Column((), np.int64), np.empty(0, np.bool_), True, -1)

    @classmethod
    def from_arrays(cls, row: Array, alive: Array, highest: int) -> RowTable:
        """Return the table of saved arrays; refuse (ValueError) what does not fit together."""
        if row.ndim != 1 or alive.shape != row.shape or row.dtype != np.int64 or alive.dtype != np.bool_:
            raise ValueError("its rows and its list of removals do not fit together")
        if len(np.unique(row[alive])) < np.count_nonzero(alive) or row.min(initial=0) < 0:
            raise ValueError("it holds a row twice, or a negative one")
        return cls(Column((), np.int64, row), alive, _increase(row), max(int(row.max(initial=-1)), highest))

    @property
    def row(self) -> Int64:
        """The row at each position, holes included."""
        return self.column.view(len(self.alive))

    @property
    def ranks(self) -> Int64 | None:
        """What decides between equal distances, for `State.nearest`."""
        return None if self.ascending else self.row

    @property
    def is_position(self) -> bool:
        """Whether every row is its position, as where all are counted from 0."""
        return self.ascending and self.highest == len(self.alive) - 1  # n increasing rows from 0 on, none of them above

    def at(self, positions: Int64) -> Int64:
        """Return the rows at positions, -1 where these are -1."""
        if self.is_position:
            return positions
        rows = self.row[positions]
        rows[positions < 0] = -1
        return rows

    def sorted(self) -> Int64:
        """Return the rows that are there, in increasing order."""
        return np.sort(self.row[self.alive])

    def new(self, rows: Any, n: int) -> Int64:
        """Return `rows` for n vectors that are to be added: checked, or the next n that were never used."""
        if rows is None:
            if self.highest + n > LARGEST_ROW:
                raise InputError(f"no rows are left after {self.highest}", "give rows", argument="rows")
            return np.arange(self.highest + 1, self.highest + 1 + n, dtype=np.int64)
        array = as_rows(rows, "rows")
        if len(array) != n:
            problem = f"there are {n} vectors and {len(array)} rows"
            raise InputError(problem, "give one row for each vector", argument="rows")
        ascending = _increase(array)
        if not n or (ascending and array[0] > self.highest):
            return array
        if not ascending:
            _check_once(array, "every vector needs a row of its own")
        if (there := np.flatnonzero(self.find(array) >= 0)).size:
            remedy = "remove it first, or give another; nothing was added"
            raise InputError(f"row {array[there[0]]} exists", remedy, argument="rows")
        return array

    def extend(self, rows: Int64, alive: Mask) -> RowTable:
        """Return the table with rows that `new` gave; `alive` is that of the next state."""
        self.column.write(len(self.alive), rows)
        ascending = self.ascending and bool(rows[0] > self.highest) and _increase(rows)
        return RowTable(self.column, alive, ascending, max(self.highest, int(rows[-1] if ascending else rows.max())))

    def remove(self, alive: Mask) -> RowTable:
        """Return the table after a removal; `alive` is that of the next state."""
        return replace(self, alive=alive)

    def keep(self, kept: Int64) -> RowTable:
        """Return a table of its own without holes: the row at position kept[i] goes to position i."""
        row = self.row[kept]
        return RowTable(Column((), np.int64, row), np.ones(len(kept), np.bool_), _increase(row), self.highest)

    def positions(self, rows: Any, name: str = "rows", done: str = "nothing was changed") -> Int64:
        """Return where the given rows are; refuse unknown ones."""
        array = as_rows(rows, name)
        found = self.find(array)
        if (missing := np.flatnonzero(found < 0)).size:
            remedy = f"it was never added, or is removed already; {done}"
            raise InputError(f"row {array[missing[0]]} is not there", remedy, argument=name)
        return found

    def removal(self, rows: Any) -> Int64:
        """Return the positions of rows that are to be removed; refuse a row that is given twice."""
        found = self.positions(rows)
        _check_once(self.row[found], "give it once; nothing was changed")
        return found

    def allowed(self, allowed: Any) -> Allowed | None:
        """Return which positions a search may find: None for all of them.

        `allowed` is None, a boolean mask with an entry for each row, or a list of rows.
        """
        if allowed is None:
            return None
        array = as_array(allowed, "allowed")
        if array.dtype.kind != "b":
            mask = np.zeros(len(self.alive), np.bool_)
            mask[self.positions(allowed, "allowed", "leave it out of allowed")] = True
            return Allowed.from_mask(mask)
        if array.ndim != 1:
            problem, remedy = f"allowed is a mask of shape {array.shape}", "give one entry for each row"
            raise InputError(problem, f"{remedy}, in one dimension", argument="allowed")
        if self.is_position and len(array) >= len(self.alive):
            mask = array[: len(self.alive)]
            # A copy: the user's own may change while it is searched.
            return Allowed.from_mask(mask & self.alive if self._has_holes else np.array(mask))
        there = self.row[self.alive]
        if len(array) <= (last := int(there.max(initial=-1))):
            problem = f"allowed is a mask of {len(array)} entries, but row {last} is there"
            remedy = f"give an entry for each row from 0 to {last}, or a list of rows"
            raise InputError(problem, remedy, argument="allowed")
        mask = np.zeros(len(self.alive), np.bool_)
        mask[self.alive] = array[there]
        return Allowed.from_mask(mask)

    @cached_property
    def _has_holes(self) -> bool:
        return not bool(self.alive.all())

    def find(self, array: Int64) -> Int64:
        """Return the position of each row, -1 where it is not there."""
        if not self.alive.any():
            return np.full(len(array), -1, np.int64)
        if self.ascending:
            found = np.minimum(np.searchsorted(self.row, array), len(self.alive) - 1)
        else:
            order = self._order
            if order is None:
                alive = np.flatnonzero(self.alive)
                order = self._order = alive[np.argsort(self.row[alive], kind="stable")]
            found = order[np.minimum(np.searchsorted(self.row[order], array), len(order) - 1)]
        return np.where((self.row[found] == array) & self.alive[found], found, -1)


def _increase(rows: Int64) -> bool:
    return len(rows) < 2 or bool((rows[1:] > rows[:-1]).all())


def _check_once(rows: Int64, remedy: str) -> None:
    """Refuse rows that are given twice."""
    in_order = np.sort(rows)
    if (twice := np.flatnonzero(in_order[1:] == in_order[:-1])).size:
        raise InputError(f"row {in_order[twice[0]]} is given twice", remedy, argument="rows")


def as_rows(rows: Any, name: str) -> Int64:
    """Return `rows` as int64 (n,), none negative."""
    array = as_array(list(rows) if isinstance(rows, set | frozenset | range) else rows, name)
    if array.size == 0:
        array = array.astype(np.int64)
    problem, remedy = "", ""
    if array.ndim == 0 and array.dtype.kind in "iu":
        problem, remedy = "is a single number", f"pass a list, [{array}]"
    elif array.dtype.kind in "US":
        problem, remedy = "are whole numbers, not strings", "keep the names in an array, names[rows]"
    elif array.ndim != 1 or array.dtype.kind not in "iu":
        problem = f"must be whole numbers in one dimension, not {array.dtype} of shape {array.shape}"
    elif array.size and (array.min() < 0 or array.max() > LARGEST_ROW):
        problem = f"holds {array.min() if array.min() < 0 else array.max()}"
        remedy = "a row is 0 to 2^62 - 1"
    if problem:
        raise InputError(f"{name} {problem}", remedy, argument=name)
    return np.ascontiguousarray(array, dtype=np.int64)
