"""Hash tables in flat arrays: which stored rows have the same k whole numbers as a query, in each of T tables.

Cells (n, T, k) of rows come in and are filed under 64-bit keys, in sorted runs that hold all tables one after another;
buckets are found by bisection. Keys of probes come in, the positions in their buckets go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..hash.probing import Probes
from ..native.arrays import Array, Int64, Mask
from .columns import check_arrays

UInt64: TypeAlias = NDArray[np.uint64]
Positions: TypeAlias = NDArray[np.int32]
Run: TypeAlias = tuple[UInt64, Positions]

SECOND_RUN_ROWS = 4096
"""Rows that the second run may hold, at least, before it is merged into the first."""
SECOND_RUN_SHARE = 16
"""... and one in so many of those of the first."""
ROW_LIMIT = (1 << 31) - 1


class Buckets:
    """Two sorted runs, a large one and a small one for what was added since. Immutable, like states.

    The key of a bucket is sum_i m_i cell_i modulo 2^64, with odd multipliers m_i of its table, mixed, and with the
    number of the table as its highest bits. The sum makes the key of a neighbouring bucket a short step from that of
    the query's own. Two buckets with the same key, one pair in 2^60 or so, are looked into together.
    """

    def __init__(self, n_tables: int, n_hashes: int, main: Run | None = None, extra: Run | None = None) -> None:
        self.n_tables, self.n_hashes = n_tables, n_hashes
        number = np.arange(1, n_tables * n_hashes + 1, dtype=np.uint64)
        self._factors: UInt64 = (_mixed(number) | np.uint64(1)).reshape(n_tables, n_hashes)
        self._bits = (n_tables - 1).bit_length()
        self.runs: tuple[Run, Run] = main or _empty(), extra or _empty()
        """Sorted keys and their positions."""

    @property
    def n_rows(self) -> int:
        """Rows that were filed."""
        return sum(len(keys) for keys, _ in self.runs) // self.n_tables

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        return sum(keys.nbytes + positions.nbytes for keys, positions in self.runs)

    def sums(self, cells: NDArray[np.floating]) -> UInt64:
        """Return (n, T), the sums of cells (n, T, k), whole numbers."""
        whole = cells.astype(np.int64).view(np.uint64)
        whole *= self._factors
        sums: UInt64 = whole.sum(axis=2, dtype=np.uint64)
        return sums

    def keys(self, sums: UInt64, tables: Int64) -> UInt64:
        """Return the keys of the sums of buckets in these tables."""
        mixed = _mixed(sums)
        if self._bits:
            mixed >>= np.uint64(self._bits)
            mixed |= tables.astype(np.uint64) << np.uint64(64 - self._bits)
        return mixed

    def probe_keys(self, cells: NDArray[np.floating], probes: Probes) -> UInt64:
        """Return (n, P), the keys of the probed buckets of queries with these cells."""
        own = np.take_along_axis(self.sums(cells), probes.tables, axis=1)
        none = np.zeros((self.n_tables, 1), np.uint64)
        # one column for each move: -k to -1 down, 0 none, 1 to k up
        steps = np.concatenate([-self._factors[:, ::-1], none, self._factors], axis=1).ravel()
        at = probes.tables * (2 * self.n_hashes + 1) + self.n_hashes
        for column in range(probes.moves.shape[2]):
            own += steps[at + probes.moves[:, :, column]]
        return self.keys(own, probes.tables)

    def extend(self, sums: UInt64, first: int) -> Buckets:
        """Return the buckets with rows, of which these are the sums (n, T), at the positions from `first` on."""
        n = len(sums)
        if not n:
            return self
        if first + n > ROW_LIMIT:
            raise InputError(f"{first + n} rows are more than a search by buckets can hold", f"add {ROW_LIMIT} at most")
        tables = np.arange(self.n_tables)
        keys = self.keys(sums, tables)
        new = np.empty(n * self.n_tables, np.uint64), np.empty(n * self.n_tables, np.int32)
        for table in tables:
            order = np.argsort(keys[:, table])
            part = slice(table * n, (table + 1) * n)
            new[0][part], new[1][part] = keys[order, table], order + first
        main, extra = self.runs
        if not len(main[0]):
            main = new
        else:
            extra = _merged(extra, new)
            if len(extra[0]) > max(SECOND_RUN_ROWS * self.n_tables, len(main[0]) // SECOND_RUN_SHARE):
                main, extra = _merged(main, extra), _empty()
        return Buckets(self.n_tables, self.n_hashes, main, extra)

    def merged(self) -> Buckets:
        """Return the buckets with one run made of the two."""
        main, extra = self.runs
        return self if not len(extra[0]) else Buckets(self.n_tables, self.n_hashes, _merged(main, extra))

    def find(self, keys: UInt64) -> tuple[Int64, Int64]:
        """Return where the buckets of these keys begin and end in each run: (runs, *keys.shape) twice."""
        starts = np.zeros((2, *keys.shape), np.int64)
        ends = starts.copy()
        order = np.argsort(keys, axis=None)  # neighbouring keys read the same lines of memory: several times as fast
        asked = keys.ravel()[order]
        for i, (run, _) in enumerate(self.runs):
            if len(run):
                first = np.searchsorted(run, asked)
                last = first.copy()
                there = run[np.minimum(first, len(run) - 1)] == asked  # most probed buckets are empty
                last[there] = np.searchsorted(run, asked[there], side="right")
                starts[i].reshape(-1)[order], ends[i].reshape(-1)[order] = first, last
        return starts, ends

    def entries(self, starts: Int64, ends: Int64) -> Int64:
        """Return the positions in the buckets [start, end) of each run, query by query; (runs, n, P) come in."""
        counts = np.moveaxis(ends - starts, 0, 1)  # by query, then run, then bucket
        total = int(counts.sum())
        if not total:
            return np.empty(0, np.int64)
        run_of = np.broadcast_to(np.array([0, 1])[None, :, None], counts.shape)
        begins = np.moveaxis(starts, 0, 1)
        counts, run_of, begins = counts.ravel(), run_of.ravel(), begins.ravel()
        filled = counts > 0
        counts, run_of, begins = counts[filled], run_of[filled], begins[filled]
        at = np.arange(total) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        (_, main), (_, extra) = self.runs
        out = np.empty(total, np.int64)
        if not len(extra):
            out[:] = main[at]
            return out
        from_extra = np.repeat(run_of == 1, counts)
        out[~from_extra], out[from_extra] = main[at[~from_extra]], extra[at[from_extra]]
        return out

    def arrays(self) -> dict[str, Array]:
        """Return all of it, for a cache."""
        keys, positions = self.merged().runs[0]
        return {"keys": keys, "positions": positions}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], n_tables: int, n_hashes: int, n_filed: int) -> Buckets:
        """Return what `arrays` returned; the positions of every table must be those from 0 to n_filed, each once."""
        keys, positions = np.array(arrays["keys"]), np.array(arrays["positions"])  # of a file that may be changed
        size = n_tables * n_filed
        check_arrays(arrays, {"keys": ((size,), np.uint64), "positions": ((size,), np.int32)}, " of the buckets")
        if size:
            in_table = positions.reshape(n_tables, n_filed)
            numbered = all(np.array_equal(np.sort(part), np.arange(n_filed)) for part in in_table)
            if not numbered or not np.all(keys[1:] >= keys[:-1]):
                raise ValueError("its buckets are out of order")
        return cls(n_tables, n_hashes, (keys, positions))


def distinct(query: Int64, position: Int64, n_positions: int) -> Mask:
    """Return a mask that keeps one of each (query, position), by a small hash table: a sort would take longer.

    Every pair writes its number into its slot; who reads it back is kept, who reads an equal pair's is dropped, and who
    reads another one's tries again.
    """
    keep = np.zeros(len(query), np.bool_)
    pair = (query * n_positions + position).astype(np.uint64)
    bits = max(4, (2 * len(pair)).bit_length())
    table = np.empty(1 << bits, np.int32)
    left = np.arange(len(pair), dtype=np.int32)
    mine, factor = pair, np.uint64(0x9E3779B97F4A7C15)
    while len(left):
        slot = (mine * factor) >> np.uint64(64 - bits)
        table[slot] = left
        winner = table[slot]
        keep[left[winner == left]] = True
        again = pair[winner] != mine
        left, mine = left[again], mine[again]
        factor = np.uint64((int(factor) * 0xD1342543DE82EF95 + 2) & 0xFFFFFFFFFFFFFFFF | 1)
    return keep


def _empty() -> Run:
    return np.empty(0, np.uint64), np.empty(0, np.int32)


def _merged(a: Run, b: Run) -> Run:
    """Return one sorted run of two, the longer one first."""
    at = np.searchsorted(a[0], b[0], side="right")
    return np.insert(a[0], at, b[0]), np.insert(a[1], at, b[1])


def _mixed(x: UInt64) -> UInt64:
    """Permute the 64-bit numbers so that all bits depend on all (SplitMix64's way)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64 = x ^ (x >> np.uint64(31))
    return mixed
