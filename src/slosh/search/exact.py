"""The float scan: every vector is compared with every query. The twin that all other searches are measured by.

A block of rows and a block of queries go through one matrix product; what its rounding leaves open is computed again,
from the differences, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import scan
from ..checks import Array
from .base import Float32, Float64, Search, Work
from .rows import Int64, Mask
from .store import FloatStore

TILE_ROWS, TILE_QUERIES = 4096, 256
EPS = float(np.finfo(np.float32).eps)


class ExactSearch(Search):
    """Compares each query with every stored vector: exact, and as slow as the number of rows times their length.

    Rows at the same distance come in the order of their numbers; distances are computed in float64 from the float32
    vectors, so that they are the same whatever was added before or after.

    Parameters
    ----------
    n_jobs : threads for the distances that are computed again; the matrix product has NumPy's own threads.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import ExactSearch
    >>> search = ExactSearch()
    >>> search.add(np.eye(4))
    array([0, 1, 2, 3])
    >>> distances, rows = search.search(np.eye(4)[:1], k=3)
    >>> distances.round(3), rows
    (array([[0.   , 1.414, 1.414]]), array([[0, 1, 2]]))
    """

    _store: FloatStore

    def __init__(self, *, n_jobs: int | None = -1) -> None:
        self.n_jobs = n_jobs

    def _start(self, vectors: Array) -> None:
        self._store = FloatStore(self._dim)

    def _add(self, vectors: Array) -> None:
        self._store.append(vectors)

    def _close_up(self, kept: Int64) -> None:
        self._store.keep(kept)

    def _vectors(self, positions: Int64) -> Float32:
        return self._store.take(positions)

    def _bytes(self) -> dict[str, int]:
        return {"vectors": self._store.n_bytes}

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"params": {}}, {"vectors": self._store.array}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._store = FloatStore.from_array(arrays["vectors"], self._rows.n_positions, self._dim)

    def _search(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Float64, Int64, Work]:
        squares, positions = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
        n_rows = self._rows.n_positions
        for first in range(0, len(queries), TILE_QUERIES):
            part = slice(first, first + TILE_QUERIES)
            offsets, found = self._nearby(queries[part], mask, k)
            exact = scan.squares(queries[part], self._store.array, None, offsets, found, self.n_jobs)
            squares[part], positions[part] = scan.best(exact, found, offsets, self._rows.row, k)
        work = np.full(len(queries), n_allowed)
        return squares, positions, Work(work, np.full(len(queries), n_rows), 1.0)

    def _nearby(self, queries: Float32, mask: Mask | None, k: int) -> tuple[Int64, Int64]:
        """The positions that may be among the k nearest of each query, (offsets, positions)."""
        n = len(queries)
        limit = np.full(n, np.inf)  # the k-th smallest upper bound so far
        kept_q, kept_p = np.empty(0, np.int64), np.empty(0, np.int64)
        kept_low, kept_high = np.empty(0), np.empty(0)
        for rows, low, high in self._tiles(queries, mask):
            near = low <= limit[:, None]
            if (fresh := np.isinf(limit)).any() and low.shape[1] > k:  # the first tile: cut it to what can be
                limit[fresh] = np.partition(high[fresh], k - 1, axis=1)[:, k - 1]
                near = low <= limit[:, None]
            q, column = np.nonzero(near)
            kept_q, kept_p = np.concatenate([kept_q, q]), np.concatenate([kept_p, rows[column]])
            kept_low, kept_high = np.concatenate([kept_low, low[near]]), np.concatenate([kept_high, high[near]])
            limit = np.minimum(limit, _kth(kept_q, kept_high, n, k))
            stay = kept_low <= limit[kept_q]
            kept_q, kept_p, kept_low, kept_high = kept_q[stay], kept_p[stay], kept_low[stay], kept_high[stay]
        order = np.argsort(kept_q, kind="stable")
        return np.searchsorted(kept_q[order], np.arange(n + 1)), kept_p[order]

    def _tiles(self, queries: Float32, mask: Mask | None) -> Iterator[tuple[Int64, Float32, Float32]]:
        """For block after block of allowed rows: positions, and bounds on the squared distances (n_queries, block)."""
        vectors = self._store.array
        positions = None if mask is None else np.flatnonzero(mask)
        n = len(vectors) if positions is None else len(positions)
        # The product of two vectors about the middle of the rows is small where distances are: little is rounded off.
        middle = self._store.middle()
        centred = queries - middle
        lengths = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)[:, None]
        for first in range(0, n, TILE_ROWS):
            if positions is None:
                where = np.arange(first, min(first + TILE_ROWS, n))
                block = vectors[first : first + TILE_ROWS] - middle
            else:
                where = positions[first : first + TILE_ROWS]
                block = vectors[where] - middle
            sizes = np.einsum("ij,ij->i", block, block, dtype=np.float64)[None, :]
            square = (lengths + sizes) - 2.0 * (centred @ block.T).astype(np.float64)
            # A product of D terms is off by at most D eps |x| |y|; centring rounds by eps of either.
            slack = (self._dim + 8) * EPS * (lengths + sizes + 1e-30)
            yield where, square - slack, square + slack

    def _range_search(
        self, queries: Float32, radius: float, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Int64, Float64, Int64, Work]:
        parts = []
        for first in range(0, len(queries), TILE_QUERIES):
            part = queries[first : first + TILE_QUERIES]
            tiles = [
                (q + first, rows[column])
                for rows, low, _ in self._tiles(part, mask)
                for q, column in [np.nonzero(low <= radius**2)]
            ]
            parts += tiles
        q = np.concatenate([a for a, _ in parts])
        found = np.concatenate([b for _, b in parts])
        order = np.argsort(q, kind="stable")
        offsets, found = np.searchsorted(q[order], np.arange(len(queries) + 1)), found[order]
        exact = scan.squares(queries, self._store.array, None, offsets, found, self.n_jobs)
        ranges = scan.within(exact, found, offsets, self._rows.row, radius)
        n = np.full(len(queries), n_allowed)
        return *ranges, Work(n, np.full(len(queries), self._rows.n_positions), 1.0)


def _kth(group: Int64, values: Float64, n: int, k: int) -> Float64:
    """Of each of n groups the k-th smallest value, inf where there are fewer."""
    order = np.lexsort((values, group))
    starts = np.searchsorted(group[order], np.arange(n + 1))
    at = starts[:-1] + k - 1
    there = at < starts[1:]
    out = np.full(n, np.inf)
    out[there] = values[order][at[there]]
    return out
