"""What the compiled kernel computes, in NumPy and float64: the reference, and the fallback where no compiler was.

The functions and arguments are those of `slosh.native.kernel`. Sets of one size are one 3-D array, so there is no
padding and no loop over sets. The numbers of a set do not depend on the rest of the batch, because each matrix product
is over one set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Offsets = NDArray[np.int64]

SORTED_NUMBERS = 1 << 21
"""Numbers sorted at once: bounds the memory of a batch."""


def embed(
    points: Floats,
    offsets: Offsets,
    weights: Floats | None,
    directions: Floats | None,
    reference: Floats | None,
    n_slices: int,
    n_quantiles: int,
    average: bool,
    scale: float,
    out: Floats,
    residual: Doubles | None,
    threads: int,
) -> None:
    for rows, values, mass in _blocks(points, offsets, weights, directions, n_slices):
        if average:
            quantiles, left_out = _average(values, mass, n_quantiles)
            if residual is not None:
                residual[rows] = left_out.mean(axis=1)
        else:
            quantiles = _linear(values, mass, n_quantiles)
        found = quantiles.astype(np.float32)  # before the reference is subtracted: it was rounded too
        if reference is not None:
            found -= reference
        out[rows] = (found * np.float32(scale)).reshape(len(rows), -1)


def sort(
    points: Floats, offsets: Offsets, weights: Floats | None, directions: Floats | None, n_slices: int, threads: int
) -> tuple[Floats, Floats | None]:
    values_out = np.empty((len(points), n_slices), np.float32)
    weights_out = None if weights is None else np.empty((len(points), n_slices), np.float32)
    for rows, values, mass in _blocks(points, offsets, weights, directions, n_slices):
        at = (offsets[rows][:, None] + np.arange(values.shape[2])).ravel()
        values_out[at] = values.transpose(0, 2, 1).reshape(-1, n_slices)
        if weights_out is not None:
            weights_out[at] = 1.0 if mass is None else mass.transpose(0, 2, 1).reshape(-1, n_slices)
    return values_out, weights_out


def transport(
    a: Floats,
    a_offsets: Offsets,
    a_weights: Floats | None,
    b: Floats,
    b_offsets: Offsets,
    b_weights: Floats | None,
    pairs: Offsets,
    threads: int,
) -> Doubles:
    result = np.empty(len(pairs))
    for k, (i, j) in enumerate(pairs):
        x, y = a[a_offsets[i] : a_offsets[i + 1]].T, b[b_offsets[j] : b_offsets[j + 1]].T
        u = None if a_weights is None else a_weights[a_offsets[i] : a_offsets[i + 1]].T
        v = None if b_weights is None else b_weights[b_offsets[j] : b_offsets[j + 1]].T
        cuts_x, cuts_y = _cumulative(x, u), _cumulative(y, v)
        cuts = np.sort(np.concatenate([cuts_x, cuts_y], axis=1), axis=1)
        widths = np.diff(cuts, axis=1, prepend=0.0)
        middle = cuts - widths / 2
        gap = _at(x, _search(cuts_x, middle)).astype(np.float64) - _at(y, _search(cuts_y, middle))
        result[k] = (gap**2 * widths).sum(axis=1).mean()
    return result


def _blocks(
    points: Floats, offsets: Offsets, weights: Floats | None, directions: Floats | None, n_slices: int
) -> Iterator[tuple[NDArray[np.int64], Doubles, Doubles | None]]:
    """Yield sets of one size: which sets, their sorted values (sets, n_slices, size), their weights in that order.

    Elements of weight zero come last, as copies of the largest element with a weight, so that they change nothing. The
    weights are None for sets whose weights are all equal.
    """
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


def _average(values: Doubles, mass: Doubles | None, n_quantiles: int) -> tuple[Doubles, Doubles]:
    """Return the mean of each quantile function over M equal bins of (0, 1], and the integral of the squared rest."""
    n_sets, n_slices, size = values.shape
    flat = values.reshape(-1, size)
    centre = flat[:, :1] + (flat - flat[:, :1]).mean(axis=1, keepdims=True)
    flat = flat - centre
    cuts = _cumulative(flat, None if mass is None else mass.reshape(-1, size))
    widths = np.diff(cuts, axis=1, prepend=0.0)
    edges = np.arange(1, n_quantiles + 1) / n_quantiles
    # The integral of Q from 0 to t is linear between the cuts.
    integral = np.cumsum(flat * widths, axis=1)
    at = _search(cuts, np.broadcast_to(edges, (len(flat), n_quantiles)))
    upto = _at(integral, at) - (_at(cuts, at) - edges) * _at(flat, at)
    means = np.diff(upto, axis=1, prepend=0.0) * n_quantiles
    left_out = (flat**2 * widths).sum(axis=1) - (means**2).mean(axis=1)
    shape = (n_sets, n_slices)
    return (means + centre).reshape(*shape, n_quantiles), np.maximum(left_out, 0.0).reshape(shape)


def _linear(values: Doubles, mass: Doubles | None, n_quantiles: int) -> Doubles:
    """Return each quantile function at (m + 1) / M, interpolated through (cumulative weight, value)."""
    n_sets, n_slices, size = values.shape
    flat = values.reshape(-1, size)
    cuts = _cumulative(flat, None if mass is None else mass.reshape(-1, size))
    edges = np.broadcast_to(np.arange(1, n_quantiles + 1) / n_quantiles, (len(flat), n_quantiles))
    at = _search(cuts, edges)
    before = np.maximum(at - 1, 0)
    high, low, right, left = _at(flat, at), _at(flat, before), _at(cuts, at), _at(cuts, before)
    span = np.where(right > left, right - left, 1.0)
    part = np.where(at > 0, np.clip((edges - left) / span, 0.0, 1.0), 1.0)
    return np.asarray(low + (high - low) * part).reshape(n_sets, n_slices, n_quantiles)


def _cumulative(values: NDArray[np.floating], mass: NDArray[np.floating] | None) -> Doubles:
    """Return the cumulative weight up to and with each element, ending in exactly 1."""
    rows, size = values.shape
    if mass is None:
        return np.broadcast_to(np.arange(1, size + 1) / size, (rows, size))
    total = np.cumsum(mass, axis=1, dtype=np.float64)
    return total / total[:, -1:]


def _search(cuts: Doubles, places: Doubles) -> NDArray[np.int64]:
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


def _at(table: NDArray[np.floating], index: NDArray[np.int64]) -> NDArray[np.floating]:
    return np.take_along_axis(table, index, axis=1)
