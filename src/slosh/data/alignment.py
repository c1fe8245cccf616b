"""Principal axes: each set turned so that it varies most along the first axis, and least along the last.

The coordinates of a block of sets come in, and those of the turned sets go out. A set gets the same bits in any batch.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..errors import InputError
from ..native.arrays import Float64, Int64
from .batching import segment_mean
from .sets import Sets

MAX_ALIGNED_DIM = 64
"""Features of sets that can be aligned, at most: the time grows with the cube."""
RAGGED_DIM = 16
"""Up to this dimension all sets of a block are worked on together; beyond, a matrix product a set is faster."""
ROUNDING = 2.0**-20
"""Variances, as parts of the largest, and deviations, as parts of the coordinates, that differ by less are equal."""
NO_SKEWNESS = 1e-5
"""Third moments in units of the deviation that are nearer to zero than this are zero."""


def check_aligned_dim(dim: int) -> None:
    """Refuse sets with too many features."""
    if dim > MAX_ALIGNED_DIM:
        problem = f"align='pca' is for sets of at most {MAX_ALIGNED_DIM} features, and these have {dim}"
        raise InputError(problem, "reduce them first, or leave align out", argument="align")


def turn_to_axes(points: Float64, sets: Sets) -> Float64:
    """Return the points of sets, (P, d), each set turned about its mean into its principal axes, as a new array."""
    # From the first element on, so that the mean of equal elements is none of its rounding.
    first = np.repeat(points[_first_counted(sets)], sets.sizes, axis=0)
    mean = segment_mean(points - first, sets)
    about = points - first - np.repeat(mean, sets.sizes, axis=0)
    variances, axes = np.linalg.eigh(_covariances(about, sets))
    variances, axes = np.maximum(variances[:, ::-1], 0.0), axes[:, :, ::-1].copy()
    tied = variances[:, :-1] - variances[:, 1:] <= ROUNDING * variances[:, :1]
    for i in np.flatnonzero(tied.any(axis=1)).tolist():
        _settle_ties(axes[i], tied[i])
    turned = _turn(about, axes, sets)
    size = np.sqrt(segment_mean((points**2).sum(axis=1, keepdims=True), sets))
    signs = _signs(axes, variances, segment_mean(turned**3, sets), size)
    turned *= np.repeat(signs, sets.sizes, axis=0)
    turned += first + np.repeat(mean, sets.sizes, axis=0)
    return turned


def _first_counted(sets: Sets) -> Int64:
    """Return the first element of each set that has a weight."""
    if sets.weights is None:
        return sets.offsets[:-1]
    there = np.flatnonzero(sets.weights)
    return np.asarray(there[np.searchsorted(there, sets.offsets[:-1])])


def _covariances(about: Float64, sets: Sets) -> Float64:
    dim = about.shape[1]
    found = np.empty((len(sets), dim, dim))
    if dim <= RAGGED_DIM:
        for i in range(dim):
            found[:, i, i:] = found[:, i:, i] = segment_mean(about[:, i:] * about[:, i : i + 1], sets)
        return found
    for i, (start, stop) in enumerate(pairwise(sets.offsets.tolist())):
        part, weights = about[start:stop], sets.weights_of(i)
        mass = np.ones(stop - start) if weights is None else weights.astype(np.float64)
        found[i] = (part * (mass / mass.sum())[:, None]).T @ part
    return found


def _settle_ties(axes: Float64, tied: np.ndarray) -> None:
    """Replace axes of equal variance, of which any turn would do, by those nearest to the coordinate axes."""
    start = 0
    while start < len(tied):
        stop = start
        while stop < len(tied) and tied[stop]:
            stop += 1
        if stop > start:
            space = axes[:, start : stop + 1]
            rest = space @ space.T  # the coordinate axes as that space sees them
            for k in range(start, stop + 1):
                norms = (rest**2).sum(axis=0)
                nearest = int(np.argmax(norms > norms.max() * (1 - 1e-9)))
                axes[:, k] = rest[:, nearest] / np.sqrt(norms[nearest])
                rest = rest - np.outer(axes[:, k], axes[:, k] @ rest)
        start = stop + 1


def _turn(about: Float64, axes: Float64, sets: Sets) -> Float64:
    dim = about.shape[1]
    turned = np.zeros_like(about)
    if dim <= RAGGED_DIM:
        for k in range(dim):
            turned += about[:, k : k + 1] * np.repeat(axes[:, k], sets.sizes, axis=0)
        return turned
    for i, (start, stop) in enumerate(pairwise(sets.offsets.tolist())):
        np.matmul(about[start:stop], axes[i], out=turned[start:stop])
    return turned


def _signs(axes: Float64, variances: Float64, moments: Float64, size: Float64) -> Float64:
    """Return 1 or -1 for each axis: the third moment becomes positive, and no set becomes its mirror image.

    Where there is no third moment, the axis keeps the direction that it has in the coordinates. Where these signs would
    mirror the set, the axis of the smallest skewness is turned round: if a set is its own mirror image, that is the
    axis across the mirror, and nothing changes.
    """
    deviations = np.sqrt(variances)
    seen = deviations > ROUNDING * size
    skewness = np.divide(moments, deviations**3, out=np.zeros_like(moments), where=seen)
    skewness[np.abs(skewness) <= NO_SKEWNESS] = 0.0
    longest = np.abs(axes) > np.abs(axes).max(axis=1, keepdims=True) * (1 - 1e-9)
    component = np.take_along_axis(axes, longest.argmax(axis=1)[:, None], axis=1)[:, 0]
    signs = np.where(np.where(skewness != 0, skewness, component) < 0, -1.0, 1.0)
    dim = axes.shape[1]
    weakest = dim - 1 - np.abs(skewness)[:, ::-1].argmin(axis=1)
    mirrored = np.linalg.det(axes) * signs.prod(axis=1) < 0
    signs[mirrored, weakest[mirrored]] *= -1.0
    return signs
