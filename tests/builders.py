"""Collections of sets that many tests need, made from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slosh import Sets


def clouds(sizes: int | Sequence[int], dim: int = 2, seed: int = 0, weighted: bool = False, largest: int = 40) -> Sets:
    """Return normal clouds of different places and spreads.

    `sizes` is the number of elements of each, or a number of sets, whose sizes are then drawn from 2 to `largest` - 1.
    Weights are positive, but some of those of sets with more than one element are zero.
    """
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, largest, sizes) if isinstance(sizes, int) else np.asarray(sizes)
    points = [rng.normal(size=(n, dim)) * rng.uniform(0.3, 2) + rng.normal(size=dim) for n in counts]
    if not weighted:
        return Sets.from_list(points, dim=dim)
    weights = [rng.uniform(0.1, 1, n) * (rng.random(n) > 0.2) for n in counts]
    for each in weights:
        each[0] = 0.5
    return Sets.from_list(points, weights, dim=dim)
