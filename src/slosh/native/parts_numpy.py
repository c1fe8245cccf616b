"""What the native loops of part search compute, in NumPy and float64: the reference, and the fallback.

The functions are those of `slosh.native.parts`, which allocates what they write to.
"""

from __future__ import annotations

import math

import numpy as np

from .arrays import Float32, Float64, Int32, Int64, Ragged, UInt8

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


def nearest_anchors(points: Float32, anchors: Float32, ids: Int32, distances: Float64) -> None:
    """Write the nearest anchors of each point, nearest first, and their distances."""
    places, n_near = anchors.astype(np.float64), ids.shape[1]
    rows = max(1, TABLE_NUMBERS // anchors.size)
    for first in range(0, len(points), rows):
        some = slice(first, first + rows)
        squares = np.square(points[some, None].astype(np.float64) - places).sum(axis=2)
        ids[some] = np.argsort(squares, axis=1, kind="stable")[:, :n_near]
        distances[some] = np.sqrt(np.take_along_axis(squares, ids[some].astype(np.int64), axis=1))


def field_bounds(
    fields: UInt8,
    rows: Int64 | None,
    near: Int32,
    away: UInt8,
    offsets: Int64,
    weights: Float32,
    limits: Float64 | None,
    squared: bool,
    low_scale: Float64,
    high_scale: Float64,
    lower: Float64,
    upper: Float64,
) -> None:
    """Write the bounds of every query and set, from the bounds of its elements in whole steps."""
    n_sets = lower.shape[1]
    for query in range(len(offsets) - 1):
        part = slice(offsets[query], offsets[query + 1])
        mass = weights[part].astype(np.float64)
        limit = mass.sum() if limits is None else limits[query]
        at_once = max(1, TABLE_NUMBERS // near[part].size)
        for first in range(0, n_sets, at_once):
            sets = np.arange(first, min(first + at_once, n_sets))
            codes = fields[sets if rows is None else rows[sets]][:, near[part]].astype(np.int64)  # (sets, elements, A)
            low = np.maximum(codes - away[part], 0).max(axis=2)
            high = np.minimum((codes + away[part]).min(axis=2) + 1, 255)
            lower[query, sets] = _best_share(low, mass, limit, squared) * low_scale[query]
            known = np.where(high == 255, np.inf, high.astype(np.float64))
            upper[query, sets] = _best_share(known, mass, limit, squared) * high_scale[query]


def _best_share(values: Int64 | Float64, mass: Float64, limit: float, squared: bool) -> Float64:
    """Return the sum of mass times values, or squares, over the smallest values of each row up to the limit."""
    values = np.square(values.astype(np.float64)) if squared else values.astype(np.float64)
    order = np.argsort(values, axis=1, kind="stable")
    each = mass[order]
    part = np.clip(limit - (np.cumsum(each, axis=1) - each), 0.0, each)
    sorted_values = np.take_along_axis(values, order, axis=1)
    return np.asarray(np.where(part > 0, part * np.where(part > 0, sorted_values, 0.0), 0.0).sum(axis=1))


def histogram_products(shares: UInt8, rows: Int64 | None, fields: Float32, out: Float64) -> None:
    """Write the inner product of the shares of each set and the field of each query."""
    at_once = max(1, TABLE_NUMBERS // shares.shape[1])
    for first in range(0, out.shape[1], at_once):
        sets = slice(first, first + at_once)
        some = shares[sets] if rows is None else shares[rows[sets]]
        out[:, sets] = fields.astype(np.float64) @ some.T.astype(np.float64)
