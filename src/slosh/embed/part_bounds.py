"""Lower bounds of one-sided distances, from what `PartField` keeps of stored sets and makes of queries.

A distance field changes no faster than the place moves: an element q is at least f(a) - |q - a| away from a set whose
field at the anchor a is f(a), for each of the anchors around it. From the other side, an element of the stored set is
about as far from the query as its anchor is.
"""

from __future__ import annotations

import numpy as np

from ..native.arrays import Float32, Float64, Int64, UInt8

BLOCK_NUMBERS = 1 << 22
"""Numbers that are held at once."""


def field_bounds(
    fields: UInt8,
    step: float,
    anchors: Int64,
    distances: Float32,
    offsets: Int64,
    weights: Float64,
    coverage: float = 1.0,
    squared: bool = False,
) -> Float64:
    """Return lower bounds of the distances from queries to sets, (n_queries, n_sets).

    fields : (n_sets, K) in steps, rounded down. anchors, distances : (P, A) those around each element of the
    queries, which begin at `offsets`. weights : (P,), which sum to 1 for each query.
    """
    low = np.empty((len(offsets) - 1, len(fields)))
    columns = np.ascontiguousarray(fields.T)
    for i, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        rows = max(1, BLOCK_NUMBERS // (stop - start))
        for first in range(0, len(fields), rows):
            part = slice(first, first + rows)
            each = np.zeros((stop - start, len(fields[part])), np.float32)
            for a in range(anchors.shape[1]):
                there = columns[anchors[start:stop, a], part] * np.float32(step)
                np.maximum(each, there - distances[start:stop, a, None], out=each)
            if squared:
                np.square(each, out=each)
            low[i, part] = covered_mean(each, weights[start:stop], coverage)
    return low


def covered_mean(values: Float32, weights: Float64, coverage: float) -> Float64:
    """Return the mean of each column over the share of the mass that has the smallest values."""
    if coverage == 1.0:
        return np.asarray(weights @ values)
    order = np.argsort(values, axis=0, kind="stable")
    mass = weights[order]
    ends = np.cumsum(mass, axis=0)
    used = np.clip(coverage - (ends - mass), 0.0, mass)
    return np.asarray(np.einsum("ij,ij->j", used, np.take_along_axis(values, order, axis=0)) / coverage)


def histogram_bounds(shares: UInt8, spread: Float32, fields: Float64, coverage: float = 1.0) -> Float64:
    """Return lower bounds of the distances from sets to queries, (n_queries, n_sets).

    shares, spread : what `PartField.features` gives of the sets: the mass at each anchor, rounded down, in units of its
    own, and the mean distance of the elements to their anchors. fields : (n_queries, K), rounded down.

    With coverage below 1 the mass at the nearest anchors counts, and what rounding has left out comes first, at the
    distance zero; the elements that count are at most spread / coverage from their anchors on average.
    """
    unit, away = spread[:, 0].astype(np.float64), spread[:, 1].astype(np.float64)
    if coverage == 1.0:
        return np.asarray((fields @ shares.T.astype(np.float64)) * unit - away)
    low = np.empty((len(fields), len(shares)))
    for i, field in enumerate(fields):
        order = np.argsort(field, kind="stable")
        for first in range(0, len(shares), max(1, BLOCK_NUMBERS // len(field))):
            part = slice(first, first + max(1, BLOCK_NUMBERS // len(field)))
            mass = shares[part][:, order] * unit[part, None]
            ends = np.cumsum(mass, axis=1)
            missing = np.maximum(1.0 - ends[:, -1:], 0.0)
            used = np.clip(coverage - missing - (ends - mass), 0.0, mass)
            low[i, part] = (used @ field[order] - away[part]) / coverage
    return low
