"""A part compared with what lies around it in a whole: `chamfer_nearby`.

A one-sided distance does not see what else a set has, so that all sets that contain a part are equally near. Those
elements of a set that are near the part, and not in it, tell them apart, and what is farther off still costs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.checks import checked_number
from ..native import kernel, parts
from ..native.arrays import Float64, Ragged
from .sliced import two_sides


def chamfer_nearby(query: Any, candidates: Any, *, radius: float, n_jobs: int | None = -1) -> Float64:
    r"""Return the Chamfer distance of the query and that part of each candidate which lies within a radius of it.

        ( D(X -> Y) + D(Y_r -> X) ) / 2,    Y_r = those y of Y with min_i |x_i - y| <= r

    where D is the mean distance to the nearest element, by the weights (see `part`). A candidate without any element
    within the radius has the distance infinity. With a radius of the spacing of the elements, or a little more, a set
    that is like the query where the query is comes before a fuller one that contains it as well. The radius must be
    larger than the noise of the query.

    >>> chamfer_nearby([[0.0], [2.0]], [[[0.0], [1.0], [2.0]], [[0.0], [2.0], [9.0]]], radius=1.5).round(3)
    array([0.167, 0.   ])
    """
    x, y = two_sides(query, candidates)
    limit, threads = checked_number("radius", radius, "a distance above 0"), kernel.threads(n_jobs)
    a, b = (Ragged(each.points, each.offsets, each.weights) for each in (x, y))
    n = len(y)
    pairs = np.stack([np.zeros(n, np.int64), np.arange(n)], axis=1)
    squares, _, starts = parts.nearest_elements(a, b, pairs, threads)
    there = parts.covered_means(squares, starts, a, pairs[:, 0], 1.0)
    squares, _, starts = parts.nearest_elements(b, a, np.ascontiguousarray(pairs[:, ::-1]), threads)
    away = np.sqrt(squares)
    mass = np.where(away <= limit, 1.0 if y.weights is None else y.weights.astype(np.float64), 0.0)
    total, sums = (np.add.reduceat(each, starts[:-1]) if n else np.empty(0) for each in (mass, mass * away))
    back = np.full(n, np.inf)
    np.divide(sums, total, out=back, where=total > 0)
    return np.asarray((there + back) / 2)
