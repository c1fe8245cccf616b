"""Which rows a search holds: the user's numbers, the positions they are stored at, and which of them are still there.

A row is an int64 that the user chose (or the next free one); a position is where its vector lies. A removal leaves a
hole until the search closes up.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..data.checks import Array, as_array

Int64: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

LARGEST_ROW = (1 << 62) - 1


class Allowed:
    """Positions that a search may return, found before: the same for several searches, until rows change."""

    def __init__(self, mask: Mask | None, n: int) -> None:
        self.mask, self.n = mask, n


class Rows:
    """Rows by position, in the order of the adds."""

    def __init__(self) -> None:
        self._row: Int64 = np.empty(0, np.int64)
        self._alive: Mask = np.empty(0, np.bool_)
        self._used = 0
        self._n_alive = 0
        self._ascending = True
        self._highest = -1
        self._order: Int64 | None = None  # positions of the rows that are there, by row; made when it is needed

    def __len__(self) -> int:
        """Rows that are there."""
        return self._n_alive

    @property
    def n_positions(self) -> int:
        return self._used

    @property
    def row(self) -> Int64:
        """The row at each position, holes included."""
        return self._row[: self._used]

    @property
    def alive(self) -> Mask:
        """Which positions are no holes."""
        return self._alive[: self._used]

    @property
    def ascending(self) -> bool:
        """Whether rows increase with the position."""
        return self._ascending

    @property
    def highest(self) -> int:
        """The highest row there ever was, -1 before the first."""
        return self._highest

    def sorted(self) -> Int64:
        """The rows that are there, in increasing order."""
        return np.sort(self.row[self.alive])

    def new(self, rows: Any, n: int, what: str = "vector") -> Int64:
        """`rows` for n vectors that are to be added: checked, or the next n that were never used."""
        if rows is None:
            if self._highest + n > LARGEST_ROW:
                raise ValueError(f"no rows are left after {self._highest}: give rows")
            return np.arange(self._highest + 1, self._highest + 1 + n, dtype=np.int64)
        array = as_rows(rows, "rows")
        if len(array) != n:
            raise ValueError(f"there are {n} {what}s and {len(array)} rows: give one row for each {what}")
        if n == 0:
            return array
        ascending = bool(np.all(array[1:] > array[:-1]))
        if ascending and array[0] > self._highest:
            return array
        if not ascending:
            in_order = np.sort(array)
            if (twice := np.flatnonzero(in_order[1:] == in_order[:-1])).size:
                raise ValueError(f"row {in_order[twice[0]]} is given twice: every vector needs a row of its own")
        if (there := np.flatnonzero(self._find(array) >= 0)).size:
            raise ValueError(f"row {array[there[0]]} exists: remove it first, or give another; nothing was added")
        return array

    def add(self, rows: Int64) -> None:
        """Appends rows that `new` gave."""
        if not len(rows):
            return
        end = self._used + len(rows)
        if end > len(self._row):
            size = max(end, self._used + self._used // 2, 64)
            self._row, self._alive = _grown(self._row, size), _grown(self._alive, size)
        self._row[self._used : end] = rows
        self._alive[self._used : end] = True
        if self._ascending:
            self._ascending = bool(rows[0] > self._highest and np.all(rows[1:] > rows[:-1]))
        self._highest = max(self._highest, int(rows.max()))
        self._used, self._n_alive, self._order = end, self._n_alive + len(rows), None

    def positions(self, rows: Any, name: str = "rows", done: str = "nothing was changed") -> Int64:
        """Where the given rows are; unknown ones are refused."""
        array = as_rows(rows, name)
        found = self._find(array)
        if (missing := np.flatnonzero(found < 0)).size:
            row = int(array[missing[0]])
            raise ValueError(f"row {row} is not there: it was never added, or is removed already; {done}")
        return found

    def removal(self, rows: Any) -> Int64:
        """The positions of rows that are to be removed, each given once."""
        found = self.positions(rows)
        if len(np.unique(found)) < len(found):
            array, counts = np.unique(as_rows(rows, "rows"), return_counts=True)
            raise ValueError(f"row {array[counts > 1][0]} is given twice; nothing was changed")
        return found

    def remove(self, positions: Int64) -> None:
        self._alive[positions] = False
        self._n_alive -= len(positions)
        self._order = None

    def cut(self, n: int, highest: int) -> None:
        """Forgets all positions from n on, after an add that failed; `highest` as it was before."""
        self._used, self._highest = min(n, self._used), highest
        self._n_alive = int(np.count_nonzero(self.alive))
        self._ascending = bool(np.all(self.row[1:] > self.row[:-1]))
        self._order = None

    def close_up(self) -> Int64:
        """Forgets the holes; returns the positions that stay, in order."""
        kept = np.flatnonzero(self.alive)
        self._row, self._used = self._row[kept], len(kept)
        self._alive = np.ones(len(kept), np.bool_)
        self._ascending = bool(np.all(self._row[1:] > self._row[:-1]))
        self._order = None
        return kept

    def allowed(self, allowed: Any) -> tuple[Mask | None, int]:
        """Which positions a search may return, and how many: None for all of them.

        `allowed` is None, a boolean mask with an entry for each row, or a list of rows.
        """
        if isinstance(allowed, Allowed):
            return allowed.mask, allowed.n
        if allowed is None:
            return (None if self._n_alive == self._used else self.alive), self._n_alive
        array = as_array(allowed, "allowed")
        if array.dtype.kind != "b":
            mask = np.zeros(self._used, np.bool_)
            mask[self.positions(allowed, "allowed", "leave it out of allowed")] = True
        else:
            if array.ndim != 1:
                raise ValueError(
                    f"allowed is a mask of shape {array.shape}: give one entry for each row, in one dimension"
                )
            if len(array) <= (last := int(self.row[self.alive].max(initial=-1))):
                raise ValueError(
                    f"allowed is a mask of {len(array)} entries, but row {last} is there: give an entry for each row "
                    f"from 0 to {last}, or a list of rows"
                )
            mask = np.zeros(self._used, np.bool_)
            mask[self.alive] = array[self.row[self.alive]]
        n = int(np.count_nonzero(mask))
        return (None if n == self._used else mask), n

    def _find(self, array: Int64) -> Int64:
        """The position of each row, -1 where it is not there."""
        if self._ascending:
            at = np.searchsorted(self.row, array)
            found = np.minimum(at, self._used - 1)
        else:
            order = self._order
            if order is None:
                alive = np.flatnonzero(self.alive)
                order = self._order = alive[np.argsort(self.row[alive], kind="stable")]
            if not len(order):
                return np.full(len(array), -1, np.int64)
            found = order[np.minimum(np.searchsorted(self.row[order], array), len(order) - 1)]
        if not self._used:
            return np.full(len(array), -1, np.int64)
        return np.where((self.row[found] == array) & self.alive[found], found, -1)

    def state(self) -> dict[str, Array]:
        return {"row": self.row, "alive": self.alive, "highest": np.array([self._highest])}

    @classmethod
    def from_state(cls, arrays: dict[str, Array]) -> Rows:
        row, alive, highest = arrays["row"], arrays["alive"], arrays["highest"]
        if row.ndim != 1 or alive.shape != row.shape or row.dtype != np.int64 or alive.dtype != np.bool_:
            raise ValueError("its rows and its list of removals do not fit together")
        if len(np.unique(row[alive])) < np.count_nonzero(alive) or row.min(initial=0) < 0:
            raise ValueError("it holds a row twice, or a negative one")
        self = cls()
        self.add(np.ascontiguousarray(row))
        self.remove(np.flatnonzero(~alive))
        self._highest = max(self._highest, int(highest[0]))
        return self


def as_rows(rows: Any, name: str) -> Int64:
    """`rows` as int64 (n,), none negative."""
    array = as_array(list(rows) if isinstance(rows, set | frozenset | range) else rows, name)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim == 0 and array.dtype.kind in "iu":
        raise ValueError(f"{name} is a single number: pass a list, [{array}]")
    if array.dtype.kind in "US":
        raise ValueError(f"{name} are whole numbers, not strings: keep the names in an array, names[rows]")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be whole numbers in one dimension, not {array.dtype} of shape {array.shape}")
    if array.size and (array.min() < 0 or array.max() > LARGEST_ROW):
        raise ValueError(f"{name} holds {array.min() if array.min() < 0 else array.max()}: a row is 0 to 2^62 - 1")
    return np.ascontiguousarray(array, dtype=np.int64)


def _grown(array: Array, size: int) -> Array:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger
