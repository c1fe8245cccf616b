"""The float scan itself: every allowed vector is compared with every query. For `ExactSearch`, and for `recall=1.0`.

A block of rows and a block of queries go through one matrix product; what its rounding leaves open is computed again,
from the differences, in float64. Distances and positions go out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..native import scan
from .columns import Float32, Float64, Int64, Mask
from .state import Pairs, Request, exact_answer
from .store import FloatVectors

TILE_ROWS, TILE_QUERIES = 4096, 256
EPS = float(np.finfo(np.float32).eps)


def nearest(store: FloatVectors, asked: Request, n_jobs: int | None) -> tuple[Pairs, Mask]:
    """Return distances and positions (n_queries, k) of the nearest, and which answers are tied (`Found.tied`)."""
    queries = asked.queries

    def find(k: int) -> Pairs:
        squares, positions = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
        for first in range(0, len(queries), TILE_QUERIES):
            part = slice(first, first + TILE_QUERIES)
            offsets, found = _nearby(store, queries[part], asked.mask, k)
            exact = scan.squares(queries[part], store.array, None, offsets, found, n_jobs)
            squares[part], positions[part] = scan.best(exact, found, offsets, asked.ranks, k)
        return np.sqrt(squares, out=squares), positions

    return exact_answer(find, asked)


def within(store: FloatVectors, asked: Request, radii: Float64, n_jobs: int | None) -> tuple[Int64, Float64, Int64]:
    """Return all at most a radius away: offsets (n_queries + 1,), distances and positions, sorted in each query."""
    queries = asked.queries
    parts = []
    for first in range(0, len(queries), TILE_QUERIES):
        part = slice(first, first + TILE_QUERIES)
        limits = np.square(radii[part]) * (1 + 1e-12)
        tiles = (tile.near(limits) for tile in _tiles(store, queries[part], asked.mask))
        parts += [(q + first, found) for q, found, _, _ in tiles]
    q = np.concatenate([a for a, _ in parts])
    found = np.concatenate([b for _, b in parts])
    order = np.argsort(q, kind="stable")
    offsets, found = np.searchsorted(q[order], np.arange(len(queries) + 1)), found[order]
    exact = scan.squares(queries, store.array, None, offsets, found, n_jobs)
    offsets, squares, found = scan.within(exact, found, offsets, asked.ranks, radii)
    return offsets, np.sqrt(squares), found


def _nearby(store: FloatVectors, queries: Float32, mask: Mask | None, k: int) -> tuple[Int64, Int64]:
    """The positions that may be among the k nearest of each query, (offsets, positions)."""
    n = len(queries)
    limit = np.full(n, np.inf)  # the k-th smallest upper bound so far
    kept_q, kept_p = np.empty(0, np.int64), np.empty(0, np.int64)
    kept_low, kept_high = np.empty(0), np.empty(0)
    for tile in _tiles(store, queries, mask):
        if np.isinf(limit).all() and len(tile.where) > k:  # the first tile: cut it to what can be
            limit = tile.kth(k)
        q, p, low, high = tile.near(limit)
        kept_q, kept_p = np.concatenate([kept_q, q]), np.concatenate([kept_p, p])
        kept_low, kept_high = np.concatenate([kept_low, low]), np.concatenate([kept_high, high])
        limit = np.minimum(limit, kth_smallest(kept_q, kept_high, n, k))
        stay = kept_low <= limit[kept_q]
        kept_q, kept_p, kept_low, kept_high = kept_q[stay], kept_p[stay], kept_low[stay], kept_high[stay]
    order = np.argsort(kept_q, kind="stable")
    return np.searchsorted(kept_q[order], np.arange(n + 1)), kept_p[order]


class _Tile:
    """Scores |x - m|^2 - 2 <q - m, x> of a block of queries and rows, m being the middle of the rows; with `base`, a
    number for each query, they are squared distances, up to rounding.
    """

    def __init__(
        self,
        where: Int64,
        centred: Float32,
        block: Float32,
        base: Float64,
        lengths: Float64,
        sizes: Float64,
        norms: Float64,
    ) -> None:
        self.where, self.base, self.lengths, self.sizes = where, base, lengths, sizes
        self.norms, self.reach = norms, np.sqrt(lengths)
        # A product of D terms is off by at most D eps |q - m| |x|; the sums, and q - m, round by eps of what they hold.
        self.unit = (block.shape[1] + 16) * EPS
        dtype = np.float32 if max(lengths.max(), np.square(norms).max(), np.abs(base).max()) < 1e30 else np.float64
        self.score: NDArray[Any] = centred.astype(dtype, copy=False) @ block.T.astype(dtype, copy=False)
        self.score *= -2
        self.score += sizes.astype(dtype)

    def _slack(self, lengths: Float64, reach: Float64, sizes: Any, norms: Any) -> Float64:
        return np.asarray(self.unit * (lengths + sizes + 2 * reach * norms) + 1e-30)

    def _most_slack(self) -> Float64:
        return self._slack(self.lengths, self.reach, self.sizes.max(), self.norms.max())

    def kth(self, k: int) -> Float64:
        """Of each query, an upper bound on the k-th smallest squared distance."""
        score = np.partition(self.score, k - 1, axis=1)[:, k - 1].astype(np.float64)
        return np.asarray(score + self.base + self._most_slack())

    def near(self, limit: Float64) -> tuple[Int64, Int64, Float64, Float64]:
        """Which queries and positions may be within the squared distance `limit`; bounds on their squared distances."""
        with np.errstate(over="ignore"):
            most = (limit - self.base + self._most_slack()).astype(self.score.dtype)
        most = np.nextafter(most, most.dtype.type(np.inf))
        q, column = np.nonzero(self.score <= most[:, None])
        square = self.score[q, column] + self.base[q]
        slack = self._slack(self.lengths[q], self.reach[q], self.sizes[column], self.norms[column])
        return q, self.where[column], square - slack, square + slack


def _tiles(store: FloatVectors, queries: Float32, mask: Mask | None) -> Iterator[_Tile]:
    """Block after block of the allowed rows."""
    vectors = store.array
    positions = None if mask is None else np.flatnonzero(mask)
    n = len(vectors) if positions is None else len(positions)
    # The product with a query about the middle of the rows is small where distances are: little is rounded off. Rows
    # are moved there too only if they are far from zero: it takes longer than the product with few queries.
    middle, sizes, norms = store.about_middle()
    centred = queries - middle
    lengths = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
    far = norms.max() > 8 * np.sqrt(sizes.max())
    base = lengths if far else lengths + 2 * (centred.astype(np.float64) @ middle)
    for first in range(0, n, TILE_ROWS):
        part: Any = (
            slice(first, min(first + TILE_ROWS, n)) if positions is None else positions[first : first + TILE_ROWS]
        )
        where = np.arange(part.start, part.stop) if positions is None else part
        block, around = vectors[part], sizes[part]
        if far:
            block = block - middle
        yield _Tile(where, centred, block, base, lengths, around, np.sqrt(around) if far else norms[part])


def kth_smallest(group: Int64, values: Float64, n: int, k: int) -> Float64:
    """Of each of n groups the k-th smallest value, inf where there are fewer."""
    order = np.lexsort((values, group))
    starts = np.searchsorted(group[order], np.arange(n + 1))
    at = starts[:-1] + k - 1
    there = at < starts[1:]
    out = np.full(n, np.inf)
    out[there] = values[order][at[there]]
    return out
