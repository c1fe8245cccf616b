"""What `local.h` computes, in NumPy and SciPy: the reference, and the fallback where no compiler was.

Sets come in as `Ragged`; each element comes out with what its nearest elements within the set say beside its
coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from .arrays import Float32, Float64, Int64, Ragged

ROUNDING = 2.0**-20
"""The difference of two distances may be off by so much of the size of the coordinates, which are rounded to float32,
twice if they were centred."""
MORE = 16
"""Elements looked for beyond the largest neighbourhood, as others may be as near as its last one."""
GATHERED_NUMBERS = 1 << 20
"""Neighbours times elements worked on at once: bounds the memory."""


def local_shape(sets: Ragged, sizes: Sequence[int], scale: Float64 | None, out: Float32) -> None:
    """Write the columns of every set into `out`, the coordinates first; see `slosh.native.kernel.local_shape`."""
    dim = sets.points.shape[1]
    out[:, :dim] = sets.points
    out[:, dim:] = 0.0
    for first, last in pairwise(sets.offsets.tolist()):
        weights = np.ones(last - first) if sets.weights is None else sets.weights[first:last].astype(np.float64)
        rows = first + np.flatnonzero(weights)
        found = _columns(sets.points[rows].astype(np.float64), weights[weights > 0], sizes)
        out[rows, dim:] = found if scale is None else found * scale


def _columns(points: Float64, weights: Float64, sizes: Sequence[int]) -> Float64:
    n, dim = points.shape
    rounding = ROUNDING * float(np.abs(points).max(axis=1).mean())
    centre = points[0] + weights @ (points - points[0]) / weights.sum()
    places, place = np.unique(points, axis=0, return_inverse=True)  # many equal elements would take long
    out = np.empty((len(places), 1 + len(sizes) * (2 * dim + 1)))
    out[:, 0] = np.linalg.norm(places - centre, axis=1)
    for rows, distances, members in nearest(points, places, sizes[-1], rounding):
        about = points[members] - places[rows][:, None]
        for s, size in enumerate(sizes):
            last = np.partition(distances, min(size, n) - 1, axis=1)[:, min(size, n) - 1]
            near = np.where(distances <= last[:, None] + rounding, weights[members], 0.0)
            near /= near.sum(axis=1, keepdims=True)
            mean = np.einsum("ij,ijk->ik", near, about)
            covariance = np.einsum("ij,ijk,ijl->ikl", near, about, about) - mean[:, :, None] * mean[:, None, :]
            at = 1 + s * (2 * dim + 1)
            out[rows, at : at + 2 * dim + 1] = _describe(covariance, mean, rounding)
    return out[place.ravel()]


def nearest(points: Float64, places: Float64, size: int, rounding: float) -> Iterator[tuple[Int64, Float64, Int64]]:
    """Yield places, and the distances and rows of all points as near as the `size`-th nearest, and of some more."""
    n = len(points)
    look = min(n, size + MORE)
    tree, at_once = cKDTree(points), max(1, GATHERED_NUMBERS // look)
    for first in range(0, len(places), at_once):
        rows = np.arange(first, min(len(places), first + at_once))
        distances, members = (np.reshape(x, (len(rows), look)) for x in tree.query(places[rows], k=look))
        # Where even the last one is as near, there may be others: these few are compared with all.
        crowded = (distances[:, -1] <= distances[:, min(size, n) - 1] + rounding) & (look < n)
        yield rows[~crowded], distances[~crowded], members[~crowded]
        for row in rows[crowded].tolist():
            yield np.array([row]), cdist(places[row : row + 1], points), np.arange(n)[None]


def _describe(covariance: Float64, mean: Float64, rounding: float) -> Float64:
    """Return roots of eigenvalues, the largest first; the length of the mean; the direction of least variance.

    Where several eigenvalues are the smallest, but for rounding, the direction is the root of the mean square over all
    directions of their space.
    """
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)
    slack = rounding * (np.sqrt(values[:, -1:]) + rounding)
    smallest = values - values[:, :1] <= slack
    direction = np.sqrt(np.einsum("ijk,ik->ij", vectors**2, smallest) / smallest.sum(axis=1, keepdims=True))
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.concatenate([np.sqrt(values[:, ::-1]), length, direction], axis=1)
