"""Linear optimal transport: each set as the way a reference set moves to become it. Needs POT.

Slow (about a millisecond a set) and exact where the sliced embedding is fast: the baseline that uses the whole
Wasserstein distance.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

from ..checkpoints import aside, in_threads
from ..data.checks import checked_count, random_stream
from ..data.sets import Sets
from ..errors import import_extra
from ..native import kernel
from ..native.arrays import Float32, Float64
from .base import SetTransformer
from .references import learnt_reference, reference_points

LARGE_PLAN = 1 << 18
"""A plan of so many numbers takes long enough to find that one who waits for it may want to stop."""
MAX_ITERATIONS = 10_000_000
"""Of the network simplex. POT's own limit, 100,000, stops early from some ten thousand elements on."""


def import_pot() -> Any:
    """Return the module `ot`, or raise a MissingExtra that says how to install it."""
    return import_extra("ot", "optimal transport", "transport", "POT")


def solve(a: Float64, b: Float64, cost: Float64) -> Float64:
    """Return the plan (N, N') of least cost between the weights a (N,) and b (N',), which sum to 1."""
    largest = cost.max() or 1.0  # the tolerances of the solver are meant for costs of about 1
    call = partial(import_pot().emd, a, b, cost / largest, numItermax=MAX_ITERATIONS)
    plan: Float64 = call() if cost.size < LARGE_PLAN else aside(call)
    return plan


class WassersteinEmbedding(SetTransformer):
    """Linear optimal transport to a reference set X0 of M points: (n, M * d) float32, point after point.

    With P the optimal plan (squared Euclidean cost) from X0, of weights v = 1 / M, to the set, of weights w:

        T(x0_m) = 1 / v_m * sum over n of P_mn x_n,        phi_m = sqrt(v_m) (T(x0_m) - x0_m)

    so |phi| is the Wasserstein distance to the reference where the plan splits no reference point (as for N = M with
    uniform weights), and less otherwise; |phi(X) - phi(Y)| approximates that of X and Y; and phi(X0) = 0.

    Parameters
    ----------
    reference : "kmeans", "uniform", "normal", "sample", an array (M, d) or Sets of one set; the closer to the data, the
        better the approximation. See `slosh.embed.references`.
    n_reference : M for "kmeans", "uniform" and "normal"; the others have a size of their own.
    random_state : seed of the reference.
    n_jobs : threads over sets, as in joblib; -1 is all cores.

    After `fit`, reference_ is (M, d) float64 and reference_weights_ (M,) float64, summing to 1.

    Not for large sets: the time grows as M N (M + N) or worse. From Wang et al., "A linear optimal transportation
    framework", 2013; the paper's section 4.1 slices it.

    >>> from slosh import Sets
    >>> sets = Sets.from_list([[[0.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [3.0, 1.0]]])
    >>> vectors = WassersteinEmbedding(reference=[[0.0, 0.0], [2.0, 0.0]]).fit_transform(sets)
    >>> [round(float(np.linalg.norm(v)) ** 2, 6) for v in vectors]
    [0.0, 2.0]
    """

    reference_: Float64
    reference_weights_: Float64

    def __init__(
        self,
        reference: str | ArrayLike | Sets = "kmeans",
        n_reference: int = 64,
        random_state: int | np.random.RandomState | None = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.reference = reference
        self.n_reference = n_reference
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _fit(self, sets: Sets) -> None:
        import_pot()
        checked_count("n_reference", self.n_reference)
        kernel.threads(self.n_jobs)
        points, weights = reference_points(self.reference, sets, self.n_reference, random_stream(self.random_state))
        weights = np.ones(len(points)) if weights is None else weights
        self.reference_ = points[weights > 0]
        self.reference_weights_ = weights[weights > 0] / weights.sum()

    @property
    def needs_data(self) -> str | None:
        return learnt_reference(self.reference)

    @property
    def vector_length(self) -> int:
        return int(self.reference_.size)

    def _transform(self, sets: Sets, out: Float32) -> None:
        def write(row: int) -> None:
            out[row] = self._moves(np.asarray(sets[row], np.float64), sets.weights_of(row))

        # POT lets go of the GIL while it solves, so threads are enough, and share the data and the output.
        in_threads(write, range(len(sets)), kernel.threads(self.n_jobs))

    def _moves(self, points: Float64, weights: Float32 | None) -> Float64:
        mass = np.ones(len(points)) if weights is None else weights.astype(np.float64)
        cost = cdist(self.reference_, points, "sqeuclidean")
        plan = solve(self.reference_weights_, mass / mass.sum(), cost)
        share = self.reference_weights_[:, None]
        moved: Float64 = plan @ points / share - self.reference_
        moved *= np.sqrt(share)
        return moved.ravel()
