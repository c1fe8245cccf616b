"""What the compiled kernel computes, in NumPy and float64: the reference, and the fallback where no compiler was.

The functions and arguments are those of `slosh.native.kernel`. Sets of one size are one 3-D array, so there is no
padding and no loop over sets. The numbers of a set do not depend on the rest of the batch, because each matrix product
is over one set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .arrays import Float32, Float64, Int64, Quantiles, Ragged

SORTED_NUMBERS = 1 << 21
"""Numbers sorted at once: bounds the memory of a batch."""
TABLE_NUMBERS = 1 << 18
"""Distances from anchors to elements that are computed at once."""


def embed(sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None) -> None:
    edges = np.arange(1, rule.n_quantiles + 1) / rule.n_quantiles
    for rows, values, mass in _blocks(sets, rule.directions, rule.n_slices):
        flat = values.reshape(-1, values.shape[2])
        cuts = _cumulative(flat, None if mass is None else mass.reshape(flat.shape))
        if rule.average:
            quantiles, left_out = _average(flat, cuts, edges)
            if residual is not None:
                residual[rows] = left_out.reshape(len(rows), -1).mean(axis=1)
        else:
            quantiles = _linear(flat, cuts, edges)
        found = quantiles.astype(np.float32).reshape(len(rows), rule.n_slices, -1)
        if rule.reference is not None:  # which was rounded too
            found -= rule.reference
        out[rows] = (found * np.float32(rule.scale)).reshape(len(rows), -1)


def sort(sets: Ragged, directions: Float32 | None, n_slices: int) -> Ragged:
    values_out = np.empty((len(sets.points), n_slices), np.float32)
    weights_out = None if sets.weights is None else np.empty_like(values_out)
    for rows, values, mass in _blocks(sets, directions, n_slices):
        at = (sets.offsets[rows][:, None] + np.arange(values.shape[2])).ravel()
        values_out[at] = values.transpose(0, 2, 1).reshape(-1, n_slices)
        if weights_out is not None:
            weights_out[at] = 1.0 if mass is None else mass.transpose(0, 2, 1).reshape(-1, n_slices)
    return Ragged(values_out, sets.offsets, weights_out)


def transport(a: Ragged, b: Ragged, pairs: Int64) -> Float64:
    result = np.empty(len(pairs))
    for k, pair in enumerate(pairs):
        values, cuts = [], []
        for (points, offsets, weights), i in zip((a, b), pair, strict=True):
            part = slice(offsets[i], offsets[i + 1])
            values.append(points[part].T)
            cuts.append(_cumulative(values[-1], None if weights is None else weights[part].T))
        edges = np.sort(np.concatenate(cuts, axis=1), axis=1)
        widths = np.diff(edges, axis=1, prepend=0.0)
        x, y = (_at(v, _search(c, edges - widths / 2)) for v, c in zip(values, cuts, strict=True))
        result[k] = ((x.astype(np.float64) - y) ** 2 * widths).sum(axis=1).mean()
    return result


def field(sets: Ragged, anchors: Float32, out: Float32) -> None:
    points, offsets, weights = sets
    for first, last in _runs(offsets, TABLE_NUMBERS):
        part, starts = slice(offsets[first], offsets[last]), offsets[first:last] - offsets[first]
        columns = points[part].T.astype(np.float64)
        step = max(1, TABLE_NUMBERS // columns.shape[1])
        for some in (slice(j, j + step) for j in range(0, len(anchors), step)):
            squares = np.zeros((columns.shape[1], len(anchors[some])))
            for column, places in zip(columns, anchors[some].T.astype(np.float64), strict=True):
                squares += np.square(column[:, None] - places)
            if weights is not None:
                squares[weights[part] <= 0] = np.inf
            out[first:last, some] = np.sqrt(np.minimum.reduceat(squares, starts))


def _runs(offsets: Int64, most: int) -> Iterator[tuple[int, int]]:
    """Yield runs of sets, first and last + 1, of at most so many elements together, or of one set."""
    first, n = 0, len(offsets) - 1
    while first < n:
        last = max(int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1, first + 1)
        yield first, last
        first = last


def _blocks(sets: Ragged, directions: Float32 | None, n_slices: int) -> Iterator[tuple[Int64, Float64, Float64 | None]]:
    """Yield sets of one size: which sets, their sorted values (sets, n_slices, size), their weights in that order.

    Elements of weight zero come last, as copies of the largest element with a weight, so that they change nothing. The
    weights are None for sets whose weights are all equal.
    """
    points, offsets, weights = sets
    sizes = np.diff(offsets)
    equal = np.ones(len(sizes), bool)
    if weights is not None and len(sizes):
        equal = np.minimum.reduceat(weights, offsets[:-1]) == np.maximum.reduceat(weights, offsets[:-1])
    for size in np.unique(sizes):
        for same in (True, False):
            every = np.flatnonzero((sizes == size) & (equal == same))
            at_once = max(1, SORTED_NUMBERS // int(size * n_slices))
            for first in range(0, len(every), at_once):
                rows = every[first : first + at_once]
                at = offsets[rows][:, None] + np.arange(size)
                values = points[at].astype(np.float64)
                if directions is not None:
                    values = values @ directions.T.astype(np.float64)
                values = np.ascontiguousarray(values.transpose(0, 2, 1))
                if weights is None or same:
                    values.sort(axis=2)
                    yield rows, values, None
                    continue
                mass = np.broadcast_to(weights[at].astype(np.float64)[:, None, :], values.shape)
                # Of equal values the lightest comes first, so that the linear rule does not depend on the order of the
                # elements.
                order = np.lexsort((mass, np.where(mass > 0, values, np.inf)), axis=2)
                values = np.take_along_axis(values, order, axis=2)
                mass = np.take_along_axis(mass, order, axis=2)
                largest = np.where(mass > 0, values, -np.inf).max(axis=2, keepdims=True)
                yield rows, np.where(mass > 0, values, largest), mass


def _average(values: Float64, cuts: Float64, edges: Float64) -> tuple[Float64, Float64]:
    """Return the mean of each quantile function over M equal bins of (0, 1], and the integral of the squared rest."""
    centre = values[:, :1] + (values - values[:, :1]).mean(axis=1, keepdims=True)
    values = values - centre
    widths = np.diff(cuts, axis=1, prepend=0.0)
    # The integral of Q from 0 to t is linear between the cuts.
    integral = np.cumsum(values * widths, axis=1)
    at = _search(cuts, np.broadcast_to(edges, (len(values), len(edges))))
    upto = _at(integral, at) - (_at(cuts, at) - edges) * _at(values, at)
    means = np.diff(upto, axis=1, prepend=0.0) * len(edges)
    left_out = (values**2 * widths).sum(axis=1) - (means**2).mean(axis=1)
    return means + centre, np.maximum(left_out, 0.0)


def _linear(values: Float64, cuts: Float64, edges: Float64) -> Float64:
    """Return each quantile function at (m + 1) / M, interpolated through (cumulative weight, value)."""
    at = _search(cuts, np.broadcast_to(edges, (len(values), len(edges))))
    before = np.maximum(at - 1, 0)
    high, low, right, left = _at(values, at), _at(values, before), _at(cuts, at), _at(cuts, before)
    span = np.where(right > left, right - left, 1.0)
    part = np.where(at > 0, np.clip((edges - left) / span, 0.0, 1.0), 1.0)
    return np.asarray(low + (high - low) * part)


def _cumulative(values: NDArray[np.floating], mass: NDArray[np.floating] | None) -> Float64:
    """Return the cumulative weight up to and with each element, ending in exactly 1."""
    rows, size = values.shape
    if mass is None:
        return np.broadcast_to(np.arange(1, size + 1) / size, (rows, size))
    total = np.cumsum(mass, axis=1, dtype=np.float64)
    return total / total[:, -1:]


def _search(cuts: Float64, places: Float64) -> Int64:
    """Return, in each row, the first element whose cumulative weight reaches the place."""
    if cuts.strides[0] == 0 and places.strides[0] == 0:
        found = np.searchsorted(cuts[0], places[0] - 1e-12)
        return np.broadcast_to(np.minimum(found, cuts.shape[1] - 1), places.shape)
    # One search for many rows: row r is moved to [2r, 2r + 1]. Few rows at a time, so that the move costs no digits
    # that matter.
    result = np.empty(places.shape, np.int64)
    for first in range(0, len(cuts), 1024):
        line = cuts[first : first + 1024]
        shift = 2.0 * np.arange(len(line))[:, None]
        found = np.searchsorted((line + shift).ravel(), (places[first : first + 1024] - 1e-12 + shift).ravel())
        result[first : first + 1024] = found.reshape(len(line), -1) - np.arange(len(line))[:, None] * cuts.shape[1]
    return np.clip(result, 0, cuts.shape[1] - 1)


def _at(table: NDArray[np.floating], index: Int64) -> NDArray[np.floating]:
    return np.take_along_axis(table, index, axis=1)
