"""Which element of one set goes with which of the other: the optimal transport plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.spatial.distance import cdist

from ..data.sets import Sets
from ..embed.transport import import_pot, solve
from .sliced import two_sides

Float64 = NDArray[np.float64]
Cloud = tuple[Float64, Float64]
"""The elements of one set that have a weight, and their weights, which sum to 1."""


@dataclass(frozen=True, eq=False)
class Match:
    """The optimal plan between two sets: `mass[k]` of element `rows[k]` of x goes to element `columns[k]` of y.

    `lengths` are the Euclidean distances of the pairs; `distance` is the 2-Wasserstein distance, sqrt(sum of mass *
    lengths^2). The masses sum to 1.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
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
    plan, cost = optimal_plan(cloud(a, 0), cloud(b, 0))
    rows, columns = np.nonzero(plan)
    mass = plan[rows, columns]
    # Elements of weight zero were left out: back to their own numbers.
    kept = [np.arange(len(s[0])) if s.weights is None else np.flatnonzero(s.weights) for s in (a, b)]
    rows, columns = kept[0][rows], kept[1][columns]
    lengths = np.linalg.norm(a[0][rows].astype(np.float64) - b[0][columns], axis=1)
    return Match(rows, columns, mass, lengths, float(np.sqrt(cost)), (len(a[0]), len(b[0])))


def cloud(sets: Sets, i: int) -> Cloud:
    """Return the elements of set i that have a weight, and their weights, which sum to 1, in float64."""
    points, weights = sets[i].astype(np.float64), sets.weights_of(i)
    if weights is None:
        return points, np.full(len(points), 1 / len(points))
    keep = weights > 0
    mass = weights[keep].astype(np.float64)
    return points[keep], mass / mass.sum()


def optimal_plan(a: Cloud, b: Cloud) -> tuple[Float64, float]:
    """Return the plan (N, N') of least cost and its cost, the sum of mass times squared length."""
    ot = import_pot()
    cost = cdist(a[0], b[0], "sqeuclidean")
    plan = solve(ot, a[1], b[1], cost)
    return plan, float(np.sum(plan * cost))
