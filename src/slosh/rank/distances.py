"""Exact distances from one set to many candidates, in the units of the data, to re-rank what a search has found.

`match` returns the plan behind the Wasserstein distance: which element of one set goes with which of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.spatial.distance import cdist

from ..checkpoints import aside, in_threads
from ..data.sets import Sets
from ..embed.wasserstein import LARGE_PLAN, MAX_ITERATIONS, import_pot, solve
from ..native import kernel
from ..native.arrays import Float64, Int64
from .hausdorff_pairs import HausdorffPairs
from .part_pairs import PartPairs, checked_coverage
from .sliced import pairwise, two_sides

Cloud = tuple[Float64, Float64]
"""The elements of one set that have a weight, and their weights, which sum to 1."""


def sliced_wasserstein(
    query: Any,
    candidates: Any,
    *,
    n_slices: int | None = None,
    slices: Any = "auto",
    random_state: Any = 0,
    n_jobs: int | None = -1,
) -> Float64:
    r"""Return sqrt( mean over L slices of integral_0^1 (Q_query(t) - Q_candidate(t))^2 dt ), one number a candidate.

    It is exact one-dimensional transport for any sizes and weights, in about L (N + N') steps and the sort of each
    candidate. The parameters are those of `slosh.pairwise`.

    >>> sliced_wasserstein([[0.0], [1.0]], [[[2.0], [3.0]], [[0.0], [1.0]]])
    array([2., 0.])
    """
    x, y = two_sides(query, candidates)
    found = pairwise(x, y, n_slices=n_slices, slices=slices, random_state=random_state, n_jobs=n_jobs)
    return np.asarray(found[0])


def wasserstein(query: Any, candidates: Any, *, n_jobs: int | None = -1) -> Float64:
    r"""Return the 2-Wasserstein distance, sqrt( min over plans of sum_ij P_ij |x_i - y_j|^2 ), one number a candidate.

    Exact, by POT's network simplex; the cost grows with about the cube of the number of elements (3 ms for 150 by 150).
    Needs `pip install "slosh[transport]"`.

    >>> wasserstein([[0.0, 0.0]], [[[3.0, 4.0]], [[0.0, 0.0], [0.0, 2.0]]]).round(3)
    array([5.   , 1.414])
    """
    return _against(query, candidates, lambda a, b: float(np.sqrt(_optimal_plan(a, b)[1])), n_jobs)


def partial_wasserstein(query: Any, candidates: Any, *, mass: float, n_jobs: int | None = -1) -> Float64:
    r"""Return how far the share `mass` of the query has to move to become as much of each candidate, at the least.

        sqrt( min over plans of sum_ij P_ij |x_i - y_j|^2 / m ),    sum_ij P_ij = m

    with m = `mass`, in (0, 1], and plans that take at most u_i from element i and bring at most v_j to element j, the
    weights of the elements, which sum to 1: the root of the mean squared length over the mass
    that moves, in the units of the data. What is left over, 1 - m on both sides, costs nothing. With mass=1 it is
    `wasserstein`.

    Exact, by POT (`ot.partial.partial_wasserstein`), and as slow as `wasserstein`: to re-rank few candidates. Needs
    `pip install "slosh[transport]"`.

    >>> partial_wasserstein([[0.0], [1.0]], [[[0.0], [9.0]], [[3.0], [4.0]]], mass=0.5)
    array([0., 2.])
    """
    share = checked_coverage(mass, "mass")
    return _against(query, candidates, lambda a, b: _partial(a, b, share), n_jobs)


def _partial(a: Cloud, b: Cloud, share: float) -> float:
    if share == 1:
        return float(np.sqrt(_optimal_plan(a, b)[1]))
    cost = cdist(a[0], b[0], "sqeuclidean")
    largest = cost.max() or 1.0  # the tolerances of the solver are meant for costs of about 1
    solver = import_pot().partial.partial_wasserstein
    call = partial(solver, a[1], b[1], cost / largest, m=share, numItermax=MAX_ITERATIONS)
    plan = call() if cost.size < LARGE_PLAN else aside(call)
    return float(np.sqrt(np.sum(plan * cost) / share))


def chamfer(query: Any, candidates: Any, *, n_jobs: int | None = -1) -> Float64:
    r"""Return the mean distance of an element to the nearest of the other set, in both directions, for each candidate.

    (sum_i u_i min_j |x_i - y_j| + sum_j v_j min_i |x_i - y_j|) / 2 with the weights u, v of the elements. Not a metric:
    it does not see how many elements share a nearest one.

    >>> chamfer([[0.0], [1.0]], [[[0.0], [1.0], [1.0]], [[3.0]]])
    array([0.  , 2.25])
    """
    x, y = two_sides(query, candidates)
    pairs = PartPairs(x, "both", n_jobs=n_jobs)
    return pairs.distances(np.zeros(len(y), np.int64), y, np.arange(len(y)))


def hausdorff(query: Any, candidates: Any, *, n_jobs: int | None = -1) -> Float64:
    r"""Return the largest distance of an element to the nearest of the other set, either way, for each candidate.

    max( max_i min_j |x_i - y_j|, max_j min_i |x_i - y_j| ). One stray element decides it. Weights do not count,
    but elements of weight zero are left out.

    >>> hausdorff([[0.0], [1.0]], [[[0.0], [1.0], [1.0]], [[3.0]]])
    array([0., 3.])
    """
    x, y = two_sides(query, candidates)
    return HausdorffPairs(x, n_jobs).exact(0, y)


def _against(query: Any, candidates: Any, distance: Callable[[Cloud, Cloud], float], n_jobs: int | None) -> Float64:
    x, y = two_sides(query, candidates)
    one = _cloud(x, 0)
    # POT lets go of the GIL while it works.
    found = in_threads(lambda i: distance(one, _cloud(y, i)), range(len(y)), kernel.threads(n_jobs))
    return np.array(found, np.float64)


@dataclass(frozen=True, eq=False)
class Match:
    """The optimal plan between two sets: `mass[k]` of element `rows[k]` of x goes to element `columns[k]` of y.

    `lengths` are the Euclidean distances of the pairs; `distance` is the 2-Wasserstein distance, sqrt(sum of mass *
    lengths^2). The masses sum to 1.
    """

    rows: Int64
    columns: Int64
    mass: Float64
    lengths: Float64
    distance: float
    shape: tuple[int, int]

    def __len__(self) -> int:
        return len(self.rows)

    def plan(self) -> coo_array:
        """Return the plan as a sparse matrix, elements of x by elements of y."""
        return coo_array((self.mass, (self.rows, self.columns)), shape=self.shape)


def match(x: Any, y: Any) -> Match:
    """Return the optimal transport plan between two sets, arrays (N, d) and (N', d), or `Sets` of one set for weights.

    Needs `pip install "slosh[transport]"`; the cost grows with about the cube of the number of elements.

    >>> found = match([[0.0, 0.0], [5.0, 0.0]], [[5.0, 1.0], [0.0, 1.0]])
    >>> found.rows.tolist(), found.columns.tolist(), found.distance
    ([0, 1], [1, 0], 1.0)
    """
    a, b = two_sides(x, y, single=True)
    plan, cost = _optimal_plan(_cloud(a, 0), _cloud(b, 0))
    rows, columns = np.nonzero(plan)
    mass = plan[rows, columns]
    # Elements of weight zero were left out: back to their own numbers.
    kept = [np.arange(len(s[0])) if s.weights is None else np.flatnonzero(s.weights) for s in (a, b)]
    rows, columns = kept[0][rows], kept[1][columns]
    lengths = np.linalg.norm(a[0][rows].astype(np.float64) - b[0][columns], axis=1)
    return Match(rows, columns, mass, lengths, float(np.sqrt(cost)), (len(a[0]), len(b[0])))


def _cloud(sets: Sets, i: int) -> Cloud:
    """Return the elements of set i that have a weight, and their weights, which sum to 1, in float64."""
    points, weights = np.asarray(sets[i], np.float64), sets.weights_of(i)
    if weights is None:
        return points, np.full(len(points), 1 / len(points))
    keep = weights > 0
    mass = weights[keep].astype(np.float64)
    return points[keep], mass / mass.sum()


def _optimal_plan(a: Cloud, b: Cloud) -> tuple[Float64, float]:
    """Return the plan (N, N') of least cost and its cost, the sum of mass times squared length."""
    cost = cdist(a[0], b[0], "sqeuclidean")
    plan = solve(a[1], b[1], cost)
    return plan, float(np.sum(plan * cost))
