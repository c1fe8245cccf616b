"""The inner loops of part search: compiled if the kernel was built, NumPy otherwise (see `slosh.native.kernel`).

`nearest_elements` compares the elements of pairs of sets; `covered_means` makes one-sided distances of what it found.
`field_bounds` and `histogram_bounds` bound such distances from what is stored of a set: its distance field, and the
shares of its mass that are nearest to each anchor. `nearest_anchors` finds the anchors of elements.
"""

from __future__ import annotations

import numpy as np

from . import kernel, parts_numpy
from .arrays import Array, Float32, Float64, Int32, Int64, Ragged, UInt8

FARTHEST = 255
"""The largest code of a field: at least so many steps, without an upper bound."""
SUM_ROUNDING = 264 * 2.0**-24
"""Weights that differ are summed in float32, 256 elements at a time: the part of a sum that this rounds."""


def nearest_elements(x: Ragged, y: Ragged, pairs: Int64, threads: int) -> tuple[Float64, Int64, Int64]:
    """Return the squared distance of each element of a set of x to the nearest element of a set of y, and which it is.

    pairs : (n, 2) a set of x and a set of y each; pairs with the same set of x belong together, for speed.

    What is found of pair i is `squares[starts[i]:starts[i + 1]]`, in the order of the elements, and `which`, counted
    from the first element of the set of y: returned are squares, which, starts. Of equally near elements it is the
    first one. Elements of y of weight zero do not count. The squares are in float64, exact but for its rounding, and
    their bits depend on the two sets alone.
    """
    starts = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(np.diff(x.offsets)[pairs[:, 0]], out=starts[1:])
    squares, which = np.empty(starts[-1]), np.empty(starts[-1], np.int64)
    if kernel.is_compiled():
        pairs = np.ascontiguousarray(pairs, np.int64)
        kernel.native.nearest_elements(
            x.points, x.offsets, y.points, y.offsets, y.weights, pairs, starts, squares, which, threads
        )
    else:
        parts_numpy.nearest_elements(x, y, pairs, starts, squares, which)
    return squares, which, starts


def covered_means(
    squares: Float64, starts: Int64, x: Ragged, sets: Int64, coverage: float, squared: bool = False
) -> Float64:
    """Return the weighted mean of sqrt(squares), or of squares, of each pair, by the weights of `sets[i]` of x.

    With coverage below 1 it is the mean over the share of the mass that has the smallest squares; the element that
    straddles the limit counts in part.
    """
    out, sets = np.empty(len(sets)), np.ascontiguousarray(sets, np.int64)
    if kernel.is_compiled():
        kernel.native.covered_means(squares, starts, sets, x.offsets, x.weights, coverage, squared, out)
    else:
        parts_numpy.covered_means(squares, starts, x, sets, coverage, squared, out)
    return out


def nearest_anchors(points: Float32, anchors: Float32, n_near: int, threads: int) -> tuple[Int32, Float64]:
    """Return the nearest anchors of each point, nearest first, and their distances: (points, n_near) each.

    The distances are in float64. Where float32 cannot tell two anchors apart, the farther one may be taken for the
    nearer one. The result for a point depends on it and on the anchors alone.
    """
    ids, distances = np.empty((len(points), n_near), np.int32), np.empty((len(points), n_near))
    if kernel.is_compiled():
        kernel.native.nearest_anchors(points, anchors, ids, distances, threads)
    else:
        parts_numpy.nearest_anchors(points, anchors, ids, distances)
    return ids, distances


def field_bounds(
    fields: UInt8,
    step: float,
    anchor_ids: Int32,
    anchor_distances: Float64,
    offsets: Int64,
    weights: Float32 | None = None,
    coverage: float = 1.0,
    squared: bool = False,
    *,
    rows: Int64 | None = None,
    threads: int = 1,
) -> tuple[Float64, Float64]:
    """Return lower and upper bounds of the one-sided distances D(query -> set), (queries, sets) each.

    fields : (sets, K) the distance from anchor k to the nearest element of a set lies between code * step and
        (code + 1) * step; the code 255 says that it is at least 255 * step.
    anchor_ids, anchor_distances : (elements, A) some anchors of each element of the queries, and how far they are. What
        rounding may have moved a field by has to be added to the distances.
    offsets : (queries + 1,) where the elements of each query begin.
    weights : (elements,) of the queries' elements, or None; those of weight zero do not count.
    coverage, squared : as for `covered_means`; squared bounds are those of the mean of squares.
    rows : which of the sets; None: all of them.

    With anchors a at distances r, the distance of an element to a set is at least the largest of lower field - r, and
    at most the smallest of upper field + r. Distances r are rounded up to whole steps, and everything else outwards. An
    upper bound may be infinite.
    """
    n_queries, n_sets = len(offsets) - 1, len(fields) if rows is None else len(rows)
    lower, upper = np.empty((n_queries, n_sets)), np.empty((n_queries, n_sets))
    away = np.minimum(np.ceil(anchor_distances * (1 + 2.0**-40) / step), FARTHEST).astype(np.uint8)
    near, away = np.ascontiguousarray(anchor_ids, np.int32), np.ascontiguousarray(away)
    mass, totals, rounding = _masses(len(near), offsets, weights)
    unit = step**2 if squared else step
    limits = None if coverage >= 1 else coverage * totals
    counted = totals if limits is None else limits
    rounding = rounding if limits is None else np.full(n_queries, 2.0**-40)
    low_scale, high_scale = unit / counted * (1 - rounding), unit / counted * (1 + rounding)
    arguments = (fields, rows, near, away, offsets, mass, limits, squared, low_scale, high_scale, lower, upper)
    if kernel.is_compiled():
        kernel.native.field_bounds(*arguments, threads)
    else:
        parts_numpy.field_bounds(*arguments)
    if limits is not None:
        # The mass up to the limit is a sum in float64, each step of which may be off.
        most = unit * (FARTHEST**2 if squared else FARTHEST)
        slip = (2.0**-52 * most / coverage * (np.diff(offsets) + 8.0))[:, None]
        np.maximum(lower - slip, 0.0, out=lower)
        upper += slip
    return lower, upper


def _masses(n: int, offsets: Int64, weights: Float32 | None) -> tuple[Float32, Float64, Float64]:
    """Return the weights of elements, the sum of each query, and the part by which sums of them may be rounded.

    Equal weights become 1, whose sums are exact; others are divided by a power of two, so that nothing underflows.
    """
    n_queries = len(offsets) - 1
    if weights is None:
        return np.ones(n, np.float32), np.diff(offsets).astype(np.float64), np.full(n_queries, 2.0**-40)
    mass, rounding = weights.astype(np.float64), np.full(n_queries, SUM_ROUNDING)
    if n_queries:
        starts, sizes = offsets[:-1], np.diff(offsets)
        most = np.maximum.reduceat(mass, starts)
        least = np.minimum.reduceat(np.where(mass > 0, mass, np.inf), starts)
        scale = np.where(most == least, most, np.ldexp(1.0, np.frexp(most)[1] - 1))
        mass /= np.repeat(scale, sizes)
        rounding[most == least] = 2.0**-40
    single = mass.astype(np.float32)
    totals = np.add.reduceat(single.astype(np.float64), offsets[:-1]) if n_queries else np.empty(0)
    return single, totals, rounding


def histogram_bounds(
    histograms: UInt8,
    scale: float,
    slack: Array,
    query_fields: Float32,
    *,
    rows: Int64 | None = None,
    threads: int = 1,
) -> Float64:
    """Return lower bounds of the one-sided distances D(set -> query), (queries, sets).

    histograms : (sets, K) code * scale is at most the share of the set's mass whose nearest anchor is k.
    slack : (sets,) at least the mean distance of the set's elements to their nearest anchors.
    query_fields : (queries, K) at most the distance from each anchor to the nearest element of the query.
    rows : which of the sets; None: all of them.

    An element is at most as far from its anchor as the slack says on average, so that the mean of its distances to the
    query is at least <shares, field> - slack. Rounded down, and at least 0.
    """
    n_sets, width = len(histograms) if rows is None else len(rows), histograms.shape[1]
    products = np.empty((len(query_fields), n_sets))
    if kernel.is_compiled():
        kernel.native.histogram_products(histograms, rows, query_fields, products, threads)
    else:
        parts_numpy.histogram_products(histograms, rows, query_fields, products)
    products *= scale * (1 - (width / 2 + 16) * 2.0**-24)
    products -= np.asarray(slack, np.float64)[slice(None) if rows is None else rows] + width * scale * 2.0**-140
    return np.maximum(products, 0.0, out=products)
