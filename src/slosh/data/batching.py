"""The one way to cut a collection into batches of bounded size, and sums over the elements of each set.

`batches_by_points` takes the sizes of sets to slices of sets, and `blocks` cuts `Sets` into parts that fit the cache.
`segment_sum` and `segment_mean` take (P, k) numbers, one row an element, to (n, k), one row a set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..checkpoints import checkpoint
from ..native.arrays import Float64, Int64

if TYPE_CHECKING:
    from .sets import Sets

BATCH_POINTS = 1 << 20
"""Points in a batch of a stream, unless the caller says otherwise."""
MAX_BATCH_SETS = 1 << 16
"""The largest number of sets in a batch of a stream, however small the sets are."""
PART_NUMBERS = 1 << 18
"""Numbers worked on at once, 2 MB of float64: it bounds the memory, whatever the dimension, and stays in cache."""


def batches_by_points(sizes: Int64, max_points: int, max_sets: int | None = None) -> Iterator[slice]:
    """Yield runs of consecutive sets that have at most `max_points` points together, and at most `max_sets` sets.

    Each run is as long as the limits allow, and holds at least one set: a set with more than `max_points` points is a
    run of its own. Before each run comes a checkpoint.

    >>> list(batches_by_points(np.array([2, 2, 9, 1]), 4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    start, n = 0, len(ends)
    while start < n:
        checkpoint()
        limit = min((int(ends[start - 1]) if start else 0) + max_points, int(ends[-1]))
        stop = max(int(np.searchsorted(ends, limit, side="right")), start + 1)
        if max_sets is not None:
            stop = min(stop, start + max_sets)
        yield slice(start, stop)
        start = stop


def blocks(sets: Sets) -> Iterator[tuple[slice, Sets]]:
    """Yield parts of at most `PART_NUMBERS` numbers, or of one set, with the rows of the output that they fill."""
    for rows in batches_by_points(sets.sizes, max(1, PART_NUMBERS // sets.dim)):
        yield rows, sets[rows]


def segment_sum(values: Float64, sets: Sets) -> Float64:
    """Return the sum over the elements of each set. reduceat sums each set by itself, so batching changes no bit."""
    total: Float64 = np.add.reduceat(values, sets.offsets[:-1], axis=0)
    return total


def segment_mean(values: Float64, sets: Sets) -> Float64:
    """Return the weighted mean over the elements of each set."""
    if sets.weights is None:
        return segment_sum(values, sets) / sets.sizes[:, None]
    weights = sets.weights[:, None].astype(np.float64)
    return segment_sum(weights * values, sets) / segment_sum(weights, sets)
