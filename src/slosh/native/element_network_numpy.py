"""What `element_network.h` computes, in NumPy and SciPy: the reference, and the fallback where no compiler was.

Products are sums in float64, over rows of one set in blocks that begin with it, so that the numbers of a set do not
depend on the rest of the batch. Neighbours are searched for anew in each layer: lists of them would have no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .arrays import ElementLayer, Float32, Float64, Ragged
from .local_numpy import ROUNDING, nearest

PRODUCT_ROWS = 4096
"""Elements whose products are computed at once."""
GATHERED_NUMBERS = 1 << 20
"""Numbers of neighbours that are held at once."""


def element_network(
    sets: Ragged, inputs: Float32, n_neighbors: int, layers: Sequence[ElementLayer], slope: float, out: Float32
) -> None:
    """Write the outputs of all layers into `out`; see `slosh.native.element_network.element_network`."""
    out[:] = 0.0
    for first, last in pairwise(sets.offsets.tolist()):
        rows = np.arange(first, last)
        if sets.weights is not None:
            rows = rows[sets.weights[first:last] > 0]
        if len(rows) == 0:
            continue
        points, h, column = sets.points[rows].astype(np.float64), inputs[rows], 0
        for layer in layers:
            z = _product(h, layer.own)
            if layer.neighbors is not None:
                z += _largest(_product(h, layer.neighbors), points, n_neighbors)
            z = z * layer.scale + layer.shift
            h = np.where(z > 0, z, z * np.float32(slope))
            out[rows, column : column + h.shape[1]] = h
            column += h.shape[1]


def _product(h: Float32, matrix: Float32) -> Float32:
    result, wide = np.empty((len(h), len(matrix)), np.float32), matrix.T.astype(np.float64)
    for first in range(0, len(h), PRODUCT_ROWS):
        part = slice(first, first + PRODUCT_ROWS)
        result[part] = h[part].astype(np.float64) @ wide
    return result


def _largest(numbers: Float32, points: Float64, size: int) -> Float32:
    """Return the componentwise maximum of the numbers of the neighbours of each element."""
    n = len(points)
    if n <= size:
        return np.broadcast_to(numbers.max(axis=0), numbers.shape)
    rounding = ROUNDING * float(np.abs(points).max(axis=1).mean())
    places, place = np.unique(points, axis=0, return_inverse=True)  # many equal elements would take long
    found = np.empty((len(places), numbers.shape[1]), np.float32)
    for rows, distances, members in nearest(points, places, size, rounding):
        at_once = max(1, GATHERED_NUMBERS // (members.shape[1] * numbers.shape[1]))
        for some in (slice(i, i + at_once) for i in range(0, len(rows), at_once)):
            last = np.partition(distances[some], size - 1, axis=1)[:, size - 1]
            nearest_one = np.take_along_axis(members[some], distances[some].argmin(axis=1)[:, None], axis=1)
            near = np.where(distances[some] <= last[:, None] + rounding, members[some], nearest_one)
            found[rows[some]] = numbers[near].max(axis=1)
    return found[place.ravel()]
