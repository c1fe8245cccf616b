"""Mean, max and sum pooling: the simplest vectors of a set, (n, d), and a baseline for everything else."""

from __future__ import annotations

import numpy as np

from ..data.batching import blocks, segment_mean, segment_sum
from ..data.sets import Sets
from ..errors import InputError
from .base import SetTransformer, Vectors


class _Pool(SetTransformer):
    """Base class of embeddings without parameters that return d numbers a set."""

    def _fit(self, sets: Sets) -> None:
        pass

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

    def _transform(self, sets: Sets, out: Vectors) -> None:
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

    def _transform(self, sets: Sets, out: Vectors) -> None:
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

    def _transform(self, sets: Sets, out: Vectors) -> None:
        for rows, part in blocks(sets):
            values = part.points
            if part.weights is not None:  # every set has an element of positive weight
                values = np.where(part.weights[:, None] > 0, values, np.float32(-np.inf))
            np.maximum.reduceat(values, part.offsets[:-1], axis=0, out=out[rows])
