"""What the native loops of part search compute, in NumPy and float64: the reference, and the fallback.

The functions are those of `slosh.native.parts`, which allocates what they write to.
"""

from __future__ import annotations

import math

import numpy as np

from .arrays import Float64, Int64, Ragged

TABLE_NUMBERS = 1 << 20
"""Differences of elements that are held at once."""


def nearest_elements(x: Ragged, y: Ragged, pairs: Int64, starts: Int64, squares: Float64, which: Int64) -> None:
    """Write the squared distance of each element of x to the nearest of y, and which one it is, pair after pair."""
    for i, (a, b) in enumerate(pairs.tolist()):
        points = x.points[x.offsets[a] : x.offsets[a + 1]].astype(np.float64)
        part = slice(y.offsets[b], y.offsets[b + 1])
        others = y.points[part].astype(np.float64)
        kept = np.arange(len(others)) if y.weights is None else np.flatnonzero(y.weights[part] > 0)
        best, nearest = squares[starts[i] : starts[i + 1]], which[starts[i] : starts[i + 1]]
        rows = max(1, TABLE_NUMBERS // (len(kept) * points.shape[1]))
        for first in range(0, len(points), rows):
            some = slice(first, first + rows)
            table = np.square(points[some, None] - others[kept]).sum(axis=2)
            place = table.argmin(axis=1)
            best[some], nearest[some] = table[np.arange(len(table)), place], kept[place]


def covered_means(
    squares: Float64, starts: Int64, x: Ragged, sets: Int64, coverage: float, squared: bool, out: Float64
) -> None:
    """Write the mean over the best share of the mass of each pair."""
    for i, set_ in enumerate(sets.tolist()):
        values = squares[starts[i] : starts[i + 1]]
        values = values if squared else np.sqrt(values)
        part = slice(x.offsets[set_], x.offsets[set_ + 1])
        weights = np.ones(len(values)) if x.weights is None else x.weights[part].astype(np.float64)
        order = np.argsort(values, kind="stable")
        upto = np.cumsum(weights[order])
        limit = coverage * upto[-1]
        mass = np.clip(limit - (upto - weights[order]), 0.0, weights[order])
        out[i] = math.fsum(mass * values[order]) / limit
