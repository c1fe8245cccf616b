"""Ragged sets for the tests of embeddings, and their arrays."""

from __future__ import annotations

import numpy as np

from builders import clouds
from slosh import Sets


def some_sets(n: int = 40, dim: int = 3, weighted: bool = False, seed: int = 0, largest: int = 60) -> Sets:
    """Return clouds of different sizes, one of them a single element."""
    sizes = np.random.default_rng(seed).integers(1, largest, n)
    sizes[1] = 1
    return clouds(sizes, dim, seed, weighted)


def each(sets: Sets) -> list[tuple[np.ndarray, np.ndarray]]:
    """The points and weights of each set, in float64; the weights as given."""
    pairs = []
    for i in range(len(sets)):
        part = sets[i : i + 1]
        weights = np.ones(len(part.points)) if part.weights is None else part.weights.astype(float)
        pairs.append((part.points.astype(float), weights))
    return pairs
