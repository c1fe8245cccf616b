"""Featurewise sort pooling without its learned part, as the paper uses it: each feature sorted and sampled at M places.

It is the Sliced-Wasserstein embedding whose slices are the coordinate axes, without reference and scaling.
"""

from __future__ import annotations

from ..data.sets import Sets
from ..native import kernel
from .base import SetTransformer, Vectors
from .sliced_wasserstein import check_quantiles


class FSPool(SetTransformer):
    """Each feature's quantile function at M places, (n, d * M).

    It sees the features one by one: two sets whose features have the same distributions but are related differently
    (the two diagonals of a square, say) get the same vector. Use `SlicedWasserstein` unless only the axes matter.

    Parameters
    ----------
    n_quantiles : numbers for each feature, M.
    quantiles : "linear", Q at (m + 1) / M by linear interpolation (the paper's), or "average", the mean of Q in each of
        M equal bins.
    n_jobs : threads; -1 is all cores. The result does not depend on it.

    Examples
    --------
    >>> FSPool(n_quantiles=2).fit_transform([[[0.0, 5.0], [1.0, 4.0]]])
    array([[0., 1., 4., 5.]], dtype=float32)

    References
    ----------
    Zhang, Hare, Prügel-Bennett: FSPool: Learning Set Representations with Featurewise Sort Pooling; the paper,
    section 5.1.
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

    def _transform(self, sets: Sets, out: Vectors) -> None:
        # Points are their own projections on the axes.
        kernel.embed(
            sets.points, sets.offsets, sets.weights, None, None, sets.dim, self.n_quantiles,
            self.quantiles == "average", 1.0, out, None, kernel.threads(self.n_jobs),
        )  # fmt: skip

    def _batch_points(self) -> int:
        return max(1 << 10, (1 << 22) // self.n_features_in_)
