"""Pooling: vectors made of statistics of each set's features, the baselines for everything else.

Mean, maximum and sum are the simplest. GeM, covariance and FSPool are those of the paper (section 5.1).
"""

from __future__ import annotations

import math
from itertools import pairwise
from numbers import Real

import numpy as np

from ..data.batching import blocks, segment_mean, segment_sum
from ..data.checks import checked_count
from ..data.sets import Sets
from ..errors import InputError, bad_value
from ..native import kernel
from ..native.arrays import Float32, Float64, Quantiles, Ragged
from .base import SetTransformer
from .sliced_wasserstein import check_quantiles

RAGGED_DIM = 16
"""Up to this dimension `Covariance` sums all sets together; beyond, a product a set is faster (5 times at d = 64)."""


class _Pool(SetTransformer):
    """Base class of embeddings that return d numbers a set."""

    @property
    def vector_length(self) -> int:
        return self.n_features_in_


class MeanPool(_Pool):
    """The weighted mean of the elements, (n, d): sum of w_n x_n, with weights that sum to 1. The same as `GeM(p=1)`.

    Its Euclidean distance is never larger than the Wasserstein distance. It sees where a set is, not how it is spread:
    not for sets that are centred, or differ in shape only.

    >>> from slosh import Sets
    >>> MeanPool().fit_transform(Sets.from_list([[[0.0, 0.0], [1.0, 4.0]], [[5.0, 6.0]]])).tolist()
    [[0.5, 2.0], [5.0, 6.0]]
    """

    def _transform(self, sets: Sets, out: Float32) -> None:
        for rows, part in blocks(sets):
            out[rows] = segment_mean(part.points.astype(np.float64), part)


class SumPool(_Pool):
    """The sum of the elements times their weights as given (1 without weights), (n, d).

    For when the number of elements matters: repeating every element doubles it. Not for sets whose size only says how
    finely they were sampled.

    >>> from slosh import Sets
    >>> SumPool().fit_transform(Sets.from_list([[[0.0, 0.0], [1.0, 4.0]], [[5.0, 6.0]]])).tolist()
    [[1.0, 4.0], [5.0, 6.0]]
    """

    def _transform(self, sets: Sets, out: Float32) -> None:
        for rows, part in blocks(sets):
            values = part.points.astype(np.float64)
            if part.weights is not None:
                values *= part.weights[:, None]
            total = segment_sum(values, part)
            if not np.abs(total).max() <= np.finfo(np.float32).max:
                raise InputError("SumPool: a sum is too large for float32", "scale the data or the weights down")
            out[rows] = total


class MaxPool(_Pool):
    """The largest value of each feature over the elements, (n, d). Elements of weight zero are left out.

    One outlier decides it: not for noisy sets.

    >>> from slosh import Sets
    >>> MaxPool().fit_transform(Sets.from_list([[[0.0, 9.0], [1.0, 4.0]], [[5.0, 6.0]]])).tolist()
    [[1.0, 9.0], [5.0, 6.0]]
    """

    def _transform(self, sets: Sets, out: Float32) -> None:
        for rows, part in blocks(sets):
            values = part.points
            if part.weights is not None:  # every set has an element of positive weight
                values = np.where(part.weights[:, None] > 0, values, np.float32(-np.inf))
            np.maximum.reduceat(values, part.offsets[:-1], axis=0, out=out[rows])


class GeM(SetTransformer):
    """Generalised means of the orders 1 to p: for order q, sign(m) |m|^(1/q) with m the weighted mean of x^q.

    Each feature is pooled by itself; odd roots keep their sign. The vectors are (n, p * d), order after order: first
    the d means, then the d root mean squares, and so on. p = 1 is mean pooling.

    p : the highest order. The paper takes 1, 2 and 4.

    Not for sets that differ only in how the features go together: it looks at one feature at a time. After Radenovic et
    al., "Fine-tuning CNN image retrieval with no human annotation", 2018.

    >>> from slosh import Sets
    >>> GeM(p=2).fit_transform(Sets.from_list([[[1.0, 0.0], [-7.0, 0.0]], [[3.0, -4.0]]])).tolist()
    [[-3.0, 0.0, 5.0, 0.0], [3.0, -4.0, 3.0, 4.0]]
    """

    def __init__(self, p: int = 1) -> None:
        self.p = p

    def _fit(self, sets: Sets) -> None:
        checked_count("p", self.p)

    @property
    def vector_length(self) -> int:
        return int(self.p) * self.n_features_in_

    def _transform(self, sets: Sets, out: Float32) -> None:
        dim = sets.dim
        for rows, part in blocks(sets):
            # Scaled by a power of two to at most 1 in each set and feature, high powers neither overflow nor vanish.
            counted = part.points if part.weights is None else part.points * (part.weights > 0)[:, None]
            largest = np.maximum.reduceat(np.abs(counted), part.offsets[:-1], axis=0)
            scale = np.ldexp(1.0, np.frexp(largest)[1])
            x = counted / np.repeat(scale, part.sizes, axis=0)
            power = x.copy()
            for q in range(1, self.p + 1):
                mean = segment_mean(power, part)
                out[rows, (q - 1) * dim : q * dim] = np.copysign(np.abs(mean) ** (1 / q), mean) * scale
                power *= x


class Covariance(SetTransformer):
    """The covariance matrix of each set, C + lambda trace(C) I, flattened row by row: (n, d * d) float32.

    C = 1 / (1 - sum w_n^2) * sum of w_n (x_n - mean)(x_n - mean)^T, with weights that sum to 1: the unbiased
    covariance, 1 / (N - 1) without weights, and for weights that say how reliable an element is, as in
    `np.cov(aweights=w)`. Zero for a set of one element.

    regularization : lambda. Makes the matrix positive definite unless it is zero.

    Blind to where a set is: moving it changes nothing. Not for large d, as the vector grows as d^2. After Wang et al.,
    "Deep CNNs meet global covariance pooling", 2020.

    >>> from slosh import Sets
    >>> Covariance(regularization=0).fit_transform(Sets.from_list([[[0.0, 0.0], [2.0, 4.0]], [[5.0, 6.0]]])).tolist()
    [[2.0, 4.0, 4.0, 8.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(self, regularization: float = 1e-4) -> None:
        self.regularization = regularization

    def _fit(self, sets: Sets) -> None:
        if not isinstance(self.regularization, Real) or not 0 <= self.regularization < math.inf:
            raise bad_value("regularization", self.regularization, "it must be a number, 0 or more")

    @property
    def vector_length(self) -> int:
        return self.n_features_in_**2

    def _transform(self, sets: Sets, out: Float32) -> None:
        diagonal = np.arange(sets.dim)
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
            out[rows] = scatter.reshape(len(part), -1)


def _scatter(points: Float64, sets: Sets) -> Float64:
    """Return the sum of x x^T over the elements of each set, (n, d, d). Its bits do not depend on the batch."""
    scatter = np.empty((len(sets), sets.dim, sets.dim))
    if sets.dim > RAGGED_DIM:  # the shape of each product, and so its rounding, is that of its set alone
        for out, (start, stop) in zip(scatter, pairwise(sets.offsets.tolist()), strict=True):
            np.matmul(points[start:stop].T, points[start:stop], out=out)
        return scatter
    columns = np.ascontiguousarray(points.T)
    for i in range(sets.dim):
        sums = np.add.reduceat(columns[i:] * columns[i], sets.offsets[:-1], axis=1).T
        scatter[:, i, i:] = sums
        scatter[:, i:, i] = sums
    return scatter


class FSPool(SetTransformer):
    """Each feature's quantile function at M places, (n, d * M): featurewise sort pooling without its learned part.

    It is the Sliced-Wasserstein embedding along the coordinate axes, without reference and scaling. It sees the
    features one by one: two sets whose features have the same distributions but are related differently (the two
    diagonals of a square, say) get the same vector. Use `SlicedWasserstein` unless only the axes matter.

    n_quantiles : numbers for each feature, M.
    quantiles : "linear", Q at (m + 1) / M by linear interpolation (the paper's), or "average", the mean of Q in each of
        M equal bins.
    n_jobs : threads; -1 is all cores. The result does not depend on it.

    After Zhang, Hare, Prügel-Bennett, "FSPool: Learning Set Representations with Featurewise Sort Pooling", 2019.

    >>> FSPool(n_quantiles=2).fit_transform([[[0.0, 5.0], [1.0, 4.0]]])
    array([[0., 1., 4., 5.]], dtype=float32)
    """

    def __init__(self, n_quantiles: int = 16, *, quantiles: str = "linear", n_jobs: int | None = -1) -> None:
        self.n_quantiles = n_quantiles
        self.quantiles = quantiles
        self.n_jobs = n_jobs

    def _fit(self, sets: Sets) -> None:
        check_quantiles(self.n_quantiles, self.quantiles)
        kernel.threads(self.n_jobs)

    @property
    def vector_length(self) -> int:
        return int(self.n_features_in_ * self.n_quantiles)

    def _transform(self, sets: Sets, out: Float32) -> None:
        # Points are their own projections on the axes.
        rule = Quantiles(None, None, sets.dim, self.n_quantiles, self.quantiles == "average")
        kernel.embed(Ragged(sets.points, sets.offsets, sets.weights), rule, out, None, kernel.threads(self.n_jobs))
