"""Sums over ragged sets: `blocks` cuts a collection into parts that fit the cache.

`segment_sum` and `segment_mean` take (P, k) numbers, one row an element, to (n, k), one row a set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..native.arrays import Float64
from .batching import batches_by_points
from .sets import Sets

BLOCK_NUMBERS = 1 << 18
"""Numbers worked on at once, 2 MB of float64: it bounds the memory, whatever the dimension, and stays in cache."""


def blocks(sets: Sets) -> Iterator[tuple[slice, Sets]]:
    """Yield parts of at most `BLOCK_NUMBERS` numbers, or of one set, with the rows of the output that they fill."""
    for rows in batches_by_points(sets.sizes, max(1, BLOCK_NUMBERS // sets.dim)):
        yield rows, sets[rows]


def segment_sum(values: Float64, sets: Sets) -> Float64:
    """The sum over the elements of each set. reduceat sums each set by itself, so batching changes no bit."""
    total: Float64 = np.add.reduceat(values, sets.offsets[:-1], axis=0)
    return total


def segment_mean(values: Float64, sets: Sets) -> Float64:
    """The weighted mean over the elements of each set."""
    if sets.weights is None:
        return segment_sum(values, sets) / sets.sizes[:, None]
    weights = sets.weights[:, None].astype(np.float64)
    return segment_sum(weights * values, sets) / segment_sum(weights, sets)
