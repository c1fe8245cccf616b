"""Why two sets are as far apart as they are: what each element and each slice contributes to the sliced distance.

Comes in: two sets. Goes out: an `Explanation`, whose parts sum to the squared distance, and a picture of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.sets import Sets
from ..slices import Slicer
from .sliced import fitted_slicer, two_sides

Float64 = NDArray[np.float64]

LINES = 200
"""Pairs drawn at most: the heaviest; more would be a black blot."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The sliced distance of x and y, taken apart. Each of `slices`, `x_elements`, `y_elements` sums to `distance`^2.

    distance    the sliced distance, in the units of the data
    slices      (L,) the share of each slice
    x_elements  (N,) the share of each element of x: in each slice it moves to elements of y, mass times squared way
    y_elements  (N',) the same seen from y
    directions  (L, d), or None if the slices are not linear
    """

    distance: float
    slices: Float64
    x_elements: Float64
    y_elements: Float64
    directions: NDArray[np.float32] | None
    x: Sets
    y: Sets

    def __str__(self) -> str:
        total = self.distance**2 or 1.0
        top = np.argsort(-self.x_elements, kind="stable")[:3]
        share = ", ".join(f"{i} ({self.x_elements[i] / total:.0%})" for i in top)
        return (
            f"sliced distance {self.distance:.6g} over {len(self.slices)} slices; elements of x that add most: {share}"
        )

    def plot(self, path: str | Path | None = None, *, title: str | None = None, axes: Any = None) -> Any:
        """Draws both sets, each element as large as its share, with the optimal matching between them if POT is there.

        For d = 2 and d = 3. Saves to `path` if given; returns the matplotlib figure. With `axes`, draws into these (for
        d = 3 of `projection="3d"`), as a part of a figure of your own. Needs `pip install "slosh[plot]"`.
        """
        dim = self.x.dim
        if dim not in (2, 3):
            raise ValueError(f"a picture needs sets in 2 or 3 dimensions, not {dim}: reduce them first, e.g. with PCA")
        if axes is None:
            try:
                from matplotlib.figure import Figure
            except ImportError as error:
                raise ImportError('a picture needs matplotlib; install it with: pip install "slosh[plot]"') from error
            figure = Figure(figsize=(6.4, 6.4), layout="constrained")
            axes = figure.add_subplot(projection="3d" if dim == 3 else None)
        for x, y in self._pairs():
            axes.plot(*np.stack([x, y], axis=1), color="0.7", linewidth=0.8, zorder=1)
        for sets, shares, colour, marker, name in (
            (self.x, self.x_elements, "#0072B2", "o", "x"),
            (self.y, self.y_elements, "#E69F00", "D", "y"),
        ):
            share = shares / (shares.max() or 1.0)
            label = f"{name}: {len(sets[0])} elements"
            axes.scatter(
                *sets[0].T,
                s=8 + 90 * share,
                color=colour,
                marker=marker,
                alpha=0.75,
                linewidths=0,
                label=label,
                zorder=2,
            )
        axes.set_aspect("equal")
        axes.legend(loc="best", frameon=False)
        axes.set_title(title or f"sliced distance {self.distance:.4g}; size: share of its square", fontsize=10)
        if path is not None:
            axes.figure.savefig(path, dpi=120)
        return axes.figure

    def _pairs(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        from .match import match

        try:
            found = match(self.x, self.y)
        except ImportError:
            return []
        heaviest = np.argsort(-found.mass, kind="stable")[:LINES]
        return [(self.x[0][found.rows[k]], self.y[0][found.columns[k]]) for k in heaviest]


def explain(x: Any, y: Any, *, n_slices: int | None = None, slices: Any = "auto", random_state: Any = 0) -> Explanation:
    """What each slice and each element contributes to the sliced distance of two sets.

    `x` and `y` are arrays (N, d) and (N', d), or `Sets` of one set each for weights; the other parameters are those of
    `slosh.distance`, and the same give the same distance.

    >>> found = explain([[0.0], [1.0]], [[0.0], [4.0]])
    >>> round(found.distance**2, 6), found.x_elements.tolist()
    (4.5, [0.0, 4.5])
    """
    a, b = two_sides(x, y, single=True)
    slicer = fitted_slicer(slices, a.dim, n_slices, random_state)
    shares = np.zeros(slicer.n_slices_)
    x_elements, y_elements = np.zeros(len(a[0])), np.zeros(len(b[0]))
    values = [_project(slicer, s) for s in (a, b)]
    for k in range(slicer.n_slices_):
        rows, columns, mass = _monotone(values[0][:, k], a.weights, values[1][:, k], b.weights)
        cost = mass * (values[0][rows, k] - values[1][columns, k]) ** 2 / slicer.n_slices_
        shares[k] = cost.sum()
        np.add.at(x_elements, rows, cost)
        np.add.at(y_elements, columns, cost)
    return Explanation(float(np.sqrt(shares.sum())), shares, x_elements, y_elements, slicer.directions_, a, b)


def _project(slicer: Slicer, sets: Sets) -> Float64:
    return slicer.project(sets.points).astype(np.float64)


def _monotone(
    x: Float64, u: NDArray[np.float32] | None, y: Float64, v: NDArray[np.float32] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], Float64]:
    """The optimal plan in one dimension, which keeps the order: pairs of elements and the mass between them."""
    orders, cuts = [], []
    for values, weights in ((x, u), (y, v)):
        order = np.argsort(values, kind="stable")
        if weights is None:
            cut = np.arange(1, len(values) + 1) / len(values)
        else:
            order = order[weights[order] > 0]
            cut = np.cumsum(weights[order], dtype=np.float64)
            cut /= cut[-1]
        orders.append(order)
        cuts.append(cut)
    edges = np.union1d(*cuts)
    mass = np.diff(edges, prepend=0.0)
    middle = edges - mass / 2
    rows, columns = (
        order[np.minimum(np.searchsorted(c, middle), len(c) - 1)] for order, c in zip(orders, cuts, strict=True)
    )
    return rows, columns, mass
