"""The one way to cut a collection into batches of bounded size: sizes of sets come in, slices of sets go out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..native.arrays import Int64

BATCH_POINTS = 1 << 20
"""Points in a batch of a stream, unless the caller says otherwise."""
MAX_BATCH_SETS = 1 << 16
"""The largest number of sets in a batch of a stream, however small the sets are."""


def batches_by_points(sizes: Int64, max_points: int, max_sets: int | None = None) -> Iterator[slice]:
    """Yield runs of consecutive sets that have at most `max_points` points together, and at most `max_sets` sets.

    Each run is as long as the limits allow, and holds at least one set: a set with more than `max_points` points is a
    run of its own.

    >>> list(batches_by_points(np.array([2, 2, 9, 1]), 4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    start, n = 0, len(ends)
    while start < n:
        limit = min((int(ends[start - 1]) if start else 0) + max_points, int(ends[-1]))
        stop = max(int(np.searchsorted(ends, limit, side="right")), start + 1)
        if max_sets is not None:
            stop = min(stop, start + max_sets)
        yield slice(start, stop)
        start = stop
