"""Where a part lies in a whole: which element of the whole is nearest to each element of the part, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import checkpoint
from ..data.checks import checked_number
from ..data.sets import Sets
from ..errors import InputError, import_extra
from ..native import kernel, parts
from ..native.arrays import Float64, Int64, Ragged
from .part_pairs import BATCH_STEPS
from .sliced import two_sides

MAX_LINES = 200
"""Of the pairs, only the longest are drawn: more lines would hide the sets."""
ONE_PAIR = np.zeros((1, 2), np.int64)


@dataclass(frozen=True, eq=False)
class PartExplanation:
    """Where the elements of x lie in y, and what of x is not covered by y.

    distance   the one-sided distance D(x -> y), the mean of `distances` by `weights`, in the units of the data
    nearest    (N,) which element of y is nearest to each element of x
    distances  (N,) how far that is
    weights    (N,) the share of the mass of each element of x; they sum to 1
    """

    distance: float
    nearest: Int64
    distances: Float64
    weights: Float64
    x: Sets
    y: Sets

    def __str__(self) -> str:
        order = np.argsort(-self.weights * self.distances, kind="stable")[:3]
        farthest = ", ".join(f"{i} ({self.distances[i]:.3g} away)" for i in order)
        used = len(np.unique(self.nearest[self.weights > 0]))
        found = f"part distance {self.distance:.6g}; {used} of {len(self.y[0])} elements of y are nearest to one of x"
        return f"{found}; elements of x that add most: {farthest}"

    def covered(self, tolerance: float) -> float:
        """Return the share of the mass of x that lies within `tolerance` of an element of y."""
        limit = checked_number("tolerance", tolerance, "a distance, 0 or more", above=-np.finfo(float).tiny)
        return float(self.weights[self.distances <= limit].sum())

    def plot(
        self,
        path: str | Path | None = None,
        *,
        tolerance: float | None = None,
        title: str | None = None,
        axes: Any = None,
    ) -> Any:
        """Draw y, and x over it with a line from each element to the nearest one of y.

        With a tolerance the elements of x that are farther away than it are drawn apart, as not covered. Sets must have
        d = 2 or d = 3. Return the matplotlib figure, which is saved to `path` if given. Pass `axes` to draw into a
        figure of your own (for d = 3 with `projection="3d"`). Needs `pip install "slosh[plot]"`.
        """
        dim = self.x.dim
        if dim not in (2, 3):
            raise InputError(f"a plot needs sets in 2 or 3 dimensions, not {dim}", "reduce them first, e.g. with PCA")
        far = np.zeros(len(self.distances), bool) if tolerance is None else self.distances > tolerance
        covered = "" if tolerance is None else f"; {self.covered(tolerance):.0%} within {tolerance:.4g}"
        if axes is None:
            figure = import_extra("matplotlib.figure", "a plot", "plot").Figure(
                figsize=(6.4, 6.4), layout="constrained"
            )
            axes = figure.add_subplot(projection="3d" if dim == 3 else None)
        x, y = self.x[0], self.y[0]
        for i in np.argsort(-self.distances, kind="stable")[:MAX_LINES]:
            axes.plot(*np.stack([x[i], y[self.nearest[i]]], axis=1), color="0.7", linewidth=0.8, zorder=1)
        for points, colour, marker, size, label in (
            (y, "#E69F00", "D", 8, f"y: {len(y)} elements"),
            (x[~far], "#0072B2", "o", 16, f"x: {len(x)} elements"),
            (x[far], "#D55E00", "X", 32, f"not covered: {far.sum()} of x"),
        ):
            if len(points):
                axes.scatter(
                    *points.T, s=size, c=colour, marker=marker, alpha=0.75, linewidths=0, label=label, zorder=2
                )
        axes.set_aspect("equal")
        axes.legend(loc="best", frameon=False)
        axes.set_title(title or f"part distance {self.distance:.4g}{covered}", fontsize=10)
        if path is not None:
            axes.figure.savefig(path, dpi=120)
        return axes.figure


def explain_part(x: Any, y: Any) -> PartExplanation:
    """Return where the elements of x lie in y, and how far they are from it: what `rank.part` is the mean of.

    `x` and `y` are arrays (N, d) and (N', d), or `Sets` of one set each for weights. Elements of y of weight zero are
    left out; those of x are listed, and count nothing.

    >>> found = explain_part([[0.0], [1.0], [5.0]], [[1.0], [0.0], [7.0]])
    >>> round(found.distance, 6), found.nearest.tolist(), round(found.covered(0.5), 6)
    (0.666667, [1, 0, 2], 0.666667)
    """
    a, b = two_sides(x, y, single=True)
    n, other = len(a.points), Ragged(b.points, b.offsets, b.weights)
    squares, nearest = np.empty(n), np.empty(n, np.int64)
    step = max(1, BATCH_STEPS // b.points.size)
    for first in range(0, n, step):
        checkpoint()
        part = slice(first, min(first + step, n))
        some = Ragged(a.points[part], np.array([0, part.stop - first]), None)
        squares[part], nearest[part], _ = parts.nearest_elements(some, other, ONE_PAIR, kernel.threads(-1))
    one, ends = Ragged(a.points, a.offsets, a.weights), np.array([0, n])
    distance = parts.covered_means(squares, ends, one, np.zeros(1, np.int64), 1.0)[0]
    mass = np.ones(len(squares)) if a.weights is None else a.weights.astype(np.float64)
    return PartExplanation(float(distance), nearest, np.sqrt(squares), mass / mass.sum(), a, b)
