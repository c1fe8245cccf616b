"""Cut collections of ragged sets into batches, so that the memory of a step stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def batches_by_points(sizes: NDArray[np.int64], max_points: int) -> Iterator[slice]:
    """Yield runs of consecutive sets with at most `max_points` points together, but with at least one set each.

    >>> list(batches_by_points(np.array([3, 3, 9, 1]), 6))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        stop = max(start + 1, int(np.searchsorted(ends, before + max_points, side="right")))
        yield slice(start, stop)
        start, before = stop, int(ends[stop - 1])
