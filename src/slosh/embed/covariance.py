"""Covariance pooling: how the features of a set vary together, one of the paper's baselines (section 5.1)."""

from __future__ import annotations

import math
from itertools import pairwise
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from ..data.batching import blocks, segment_mean, segment_sum
from ..data.sets import Sets
from ..errors import InputError
from .base import SetTransformer, Vectors

Float64 = NDArray[np.float64]

RAGGED_DIM = 16
"""Up to this dimension all sets are summed together; beyond, one matrix product a set is faster (5 times at d = 64)."""


class Covariance(SetTransformer):
    """The covariance matrix of each set, C + lambda trace(C) I, flattened row by row: (n, d * d) float32.

    C = 1 / (1 - sum w_n^2) * sum of w_n (x_n - mean)(x_n - mean)^T, with weights that sum to 1: the unbiased
    covariance, 1 / (N - 1) without weights, and for weights that say how reliable an element is, as in
    `np.cov(aweights=w)`. Zero for a set of one element.

    Parameters
    ----------
    regularization : float, default 1e-4
        lambda. Makes the matrix positive definite unless it is zero.

    Blind to where a set is: moving it changes nothing. Not for large d, as the vector grows as d^2. From the paper's
    section 5.1, after Wang et al., "Deep CNNs meet global covariance pooling", 2020.

    >>> from slosh import Sets
    >>> Covariance(regularization=0).fit_transform(Sets.from_list([[[0.0, 0.0], [2.0, 4.0]], [[5.0, 6.0]]])).tolist()
    [[2.0, 4.0, 4.0, 8.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(self, regularization: float = 1e-4) -> None:
        self.regularization = regularization

    def _fit(self, sets: Sets) -> None:
        if not isinstance(self.regularization, Real) or not 0 <= self.regularization < math.inf:
            raise InputError(
                f"regularization={self.regularization!r} must be a number, 0 or more", argument="regularization"
            )

    @property
    def vector_length(self) -> int:
        return self.n_features_in_**2

    def _transform(self, sets: Sets, out: Vectors) -> None:
        dim = sets.dim
        diagonal = np.arange(dim)
        for rows, part in blocks(sets):
            points = part.points.astype(np.float64)
            points -= np.repeat(segment_mean(points, part), part.sizes, axis=0)
            if part.weights is None:
                freedom = (part.sizes - 1.0)[:, None]
            else:
                weights = part.weights[:, None].astype(np.float64)
                weights /= np.repeat(segment_sum(weights, part), part.sizes, axis=0)
                points *= np.sqrt(weights)
                freedom = segment_sum(weights * (1 - weights), part)  # = 1 - sum w^2, less prone to cancel
            scatter = _scatter(points, part)
            scatter *= np.divide(1.0, freedom, out=np.zeros_like(freedom), where=freedom > 0)[:, :, None]
            trace = np.einsum("nii->n", scatter)
            scatter[:, diagonal, diagonal] += self.regularization * trace[:, None]
            out[rows] = scatter.reshape(len(part), dim * dim)


def _scatter(points: Float64, sets: Sets) -> Float64:
    """Return the sum of x x^T over the elements of each set, (n, d, d). Its bits do not depend on the batch."""
    n_sets, dim = len(sets), sets.dim
    scatter = np.empty((n_sets, dim, dim))
    if dim > RAGGED_DIM:  # the shape of each product, and so its rounding, is that of its set alone
        bounds = sets.offsets.tolist()
        for i, (start, stop) in enumerate(pairwise(bounds)):
            one = points[start:stop]
            np.matmul(one.T, one, out=scatter[i])
        return scatter
    columns = np.ascontiguousarray(points.T)
    for i in range(dim):
        sums = np.add.reduceat(columns[i:] * columns[i], sets.offsets[:-1], axis=1).T
        scatter[:, i, i:] = sums
        scatter[:, i:, i] = sums
    return scatter
