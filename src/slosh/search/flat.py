"""The float scan itself: every allowed vector is compared with every query. For `ExactSearch`, and for `recall=1.0`.

A block of rows and a block of queries go through one matrix product; what its rounding leaves open is computed again,
from the differences, in float64. Squared distances and positions go out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import scan
from .base import Float32, Float64
from .rows import Int64, Mask
from .store import FloatStore

TILE_ROWS, TILE_QUERIES = 4096, 256
EPS = float(np.finfo(np.float32).eps)


def nearest(
    store: FloatStore, rows: Int64, queries: Float32, k: int, mask: Mask | None, n_jobs: int | None
) -> tuple[Float64, Int64]:
    """Squared distances and positions (n_queries, k) of the nearest, by distance, then by rows[position]."""
    squares, positions = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
    for first in range(0, len(queries), TILE_QUERIES):
        part = slice(first, first + TILE_QUERIES)
        offsets, found = _nearby(store, queries[part], mask, k)
        exact = scan.squares(queries[part], store.array, None, offsets, found, n_jobs)
        squares[part], positions[part] = scan.best(exact, found, offsets, rows, k)
    return squares, positions


def within(
    store: FloatStore, rows: Int64, queries: Float32, radius: float, mask: Mask | None, n_jobs: int | None
) -> tuple[Int64, Float64, Int64]:
    """All at most `radius` away: offsets (n_queries + 1,), squared distances and positions, sorted in each query."""
    parts = []
    for first in range(0, len(queries), TILE_QUERIES):
        part = queries[first : first + TILE_QUERIES]
        parts += [
            (q + first, where[column])
            for where, low, _ in _tiles(store, part, mask)
            for q, column in [np.nonzero(low <= radius**2)]
        ]
    q = np.concatenate([a for a, _ in parts])
    found = np.concatenate([b for _, b in parts])
    order = np.argsort(q, kind="stable")
    offsets, found = np.searchsorted(q[order], np.arange(len(queries) + 1)), found[order]
    exact = scan.squares(queries, store.array, None, offsets, found, n_jobs)
    return scan.within(exact, found, offsets, rows, radius)


def _nearby(store: FloatStore, queries: Float32, mask: Mask | None, k: int) -> tuple[Int64, Int64]:
    """The positions that may be among the k nearest of each query, (offsets, positions)."""
    n = len(queries)
    limit = np.full(n, np.inf)  # the k-th smallest upper bound so far
    kept_q, kept_p = np.empty(0, np.int64), np.empty(0, np.int64)
    kept_low, kept_high = np.empty(0), np.empty(0)
    for rows, low, high in _tiles(store, queries, mask):
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


def _tiles(store: FloatStore, queries: Float32, mask: Mask | None) -> Iterator[tuple[Int64, Float64, Float64]]:
    """For block after block of allowed rows: positions, and bounds on the squared distances (n_queries, block)."""
    vectors = store.array
    positions = None if mask is None else np.flatnonzero(mask)
    n = len(vectors) if positions is None else len(positions)
    # The product of two vectors about the middle of the rows is small where distances are: little is rounded off.
    middle = store.middle()
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
        slack = (queries.shape[1] + 8) * EPS * (lengths + sizes + 1e-30)
        yield where, square - slack, square + slack


def _kth(group: Int64, values: Float64, n: int, k: int) -> Float64:
    """Of each of n groups the k-th smallest value, inf where there are fewer."""
    order = np.lexsort((values, group))
    starts = np.searchsorted(group[order], np.arange(n + 1))
    at = starts[:-1] + k - 1
    there = at < starts[1:]
    out = np.full(n, np.inf)
    out[there] = values[order][at[there]]
    return out
