"""The inner loops of the searches, native if they were built, NumPy if not. `slosh.kernel` says which.

Come in: float32 queries (n_queries, D) and stored vectors by position. Go out: squared distances in float64, and
positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def squares(
    queries: Float32, vectors: NDArray[Any], scale: Float32 | None, offsets: Int64, positions: Int64, n_jobs: int | None
) -> Float64:
    """|query - vector|^2 of query i and each of its positions[offsets[i]:offsets[i + 1]], in float64.

    `vectors` are float32 (n, D), or int16 with a scale for each. The bits depend on the two vectors only.
    """
    out = np.empty(len(positions))
    if kernel.native is not None and hasattr(kernel.native, "squares"):
        kernel.native.squares(queries, vectors, scale, offsets, positions, out, kernel.threads(n_jobs))
        return out
    step = max(1, (1 << 18) // max(1, queries.shape[1]))
    which = np.repeat(np.arange(len(queries)), np.diff(offsets))
    for first in range(0, len(positions), step):
        part = slice(first, first + step)
        block = vectors[positions[part]].astype(np.float64)
        if scale is not None:
            block *= scale[positions[part], None]
        block -= queries[which[part]]
        block *= block
        # pairwise sums down the rows: the order does not depend on how many rows there are
        out[part] = np.add.reduce(block, axis=1)
    return out


def best(exact: Float64, positions: Int64, offsets: Int64, rows: Int64, k: int) -> tuple[Float64, Int64]:
    """The k smallest of each query, by distance, then row: (n_queries, k), filled up with inf and -1."""
    n = len(offsets) - 1
    which = np.repeat(np.arange(n), np.diff(offsets))
    order = np.lexsort((rows[positions], exact, which))
    place = np.arange(len(order)) - offsets[which[order]]
    take = order[place < k]
    out, found = np.full((n, k), np.inf), np.full((n, k), -1, np.int64)
    at = which[take], place[place < k]
    out[at], found[at] = exact[take], positions[take]
    return out, found


def within(
    exact: Float64, positions: Int64, offsets: Int64, rows: Int64, radius: float
) -> tuple[Int64, Float64, Int64]:
    """Those at most `radius` away, by query, distance, then row: offsets, squares, positions."""
    n = len(offsets) - 1
    which = np.repeat(np.arange(n), np.diff(offsets))
    near = np.flatnonzero(np.sqrt(exact) <= radius)
    order = near[np.lexsort((rows[positions[near]], exact[near], which[near]))]
    return np.searchsorted(which[order], np.arange(n + 1)).astype(np.int64), exact[order], positions[order]
