"""Why two sets are as far apart as they are: what each element and each slice contributes to the sliced distance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import checkpoint
from ..data.sets import Sets
from ..errors import InputError, import_extra
from ..native.arrays import Float32, Float64, Int64
from .distances import match
from .sliced import fitted_slicer, two_sides

MAX_LINES = 200
"""Of the pairs, only the heaviest are drawn: more lines would hide the sets."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The parts of the sliced distance of x and y. Each of `slices`, `x_elements`, `y_elements` sums to `distance`^2.

    distance    the sliced distance, in the units of the data
    slices      (L,) the share of each slice
    x_elements  (N,) the share of each element of x: mass times squared distance to the elements of y it moves to
    y_elements  (N',) the same for the elements of y
    directions  (L, d), or None if the slices are not linear
    """

    distance: float
    slices: Float64
    x_elements: Float64
    y_elements: Float64
    directions: Float32 | None
    x: Sets
    y: Sets

    def __str__(self) -> str:
        total = self.distance**2 or 1.0
        top = np.argsort(-self.x_elements, kind="stable")[:3]
        share = ", ".join(f"{i} ({self.x_elements[i] / total:.0%})" for i in top)
        distance = f"sliced distance {self.distance:.6g} over {len(self.slices)} slices"
        return f"{distance}; elements of x that add most: {share}"

    def plot(self, path: str | Path | None = None, *, title: str | None = None, axes: Any = None) -> Any:
        """Draw both sets, each element as large as its share, and the optimal matching between them if POT is there.

        Sets must have d = 2 or d = 3. Return the matplotlib figure, which is saved to `path` if given. Pass `axes` to
        draw into a figure of your own (for d = 3 with `projection="3d"`). Needs `pip install "slosh[plot]"`.
        """
        dim = self.x.dim
        if dim not in (2, 3):
            raise InputError(f"a plot needs sets in 2 or 3 dimensions, not {dim}", "reduce them first, e.g. with PCA")
        if axes is None:
            figure = import_extra("matplotlib.figure", "a plot", "plot").Figure(
                figsize=(6.4, 6.4), layout="constrained"
            )
            axes = figure.add_subplot(projection="3d" if dim == 3 else None)
        for x, y in self._pairs():
            axes.plot(*np.stack([x, y], axis=1), color="0.7", linewidth=0.8, zorder=1)
        for sets, shares, colour, marker, name in (
            (self.x, self.x_elements, "#0072B2", "o", "x"),
            (self.y, self.y_elements, "#E69F00", "D", "y"),
        ):
            share = shares / (shares.max() or 1.0)
            style = {"color": colour, "marker": marker, "alpha": 0.75, "linewidths": 0, "zorder": 2}
            axes.scatter(*sets[0].T, s=8 + 90 * share, label=f"{name}: {len(sets[0])} elements", **style)
        axes.set_aspect("equal")
        axes.legend(loc="best", frameon=False)
        axes.set_title(title or f"sliced distance {self.distance:.4g}; size: share of its square", fontsize=10)
        if path is not None:
            axes.figure.savefig(path, dpi=120)
        return axes.figure

    def _pairs(self) -> list[tuple[Float32, Float32]]:
        try:
            found = match(self.x, self.y)
        except ImportError:
            return []
        heaviest = np.argsort(-found.mass, kind="stable")[:MAX_LINES]
        return [(self.x[0][found.rows[k]], self.y[0][found.columns[k]]) for k in heaviest]


def explain(x: Any, y: Any, *, n_slices: int | None = None, slices: Any = "auto", random_state: Any = 0) -> Explanation:
    """Return what each slice and each element contributes to the sliced distance of two sets.

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
    values = [slicer.project(s.points).astype(np.float64) for s in (a, b)]
    for k, (u, v) in enumerate(zip(values[0].T, values[1].T, strict=True)):
        checkpoint()
        rows, columns, mass = _monotone(u, a.weights, v, b.weights)
        cost = mass * (u[rows] - v[columns]) ** 2 / slicer.n_slices_
        shares[k] = cost.sum()
        np.add.at(x_elements, rows, cost)
        np.add.at(y_elements, columns, cost)
    return Explanation(float(np.sqrt(shares.sum())), shares, x_elements, y_elements, slicer.directions_, a, b)


def _monotone(x: Float64, u: Float32 | None, y: Float64, v: Float32 | None) -> tuple[Int64, Int64, Float64]:
    """Return the optimal plan in one dimension, which keeps the order: pairs of elements and the mass between them."""
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
