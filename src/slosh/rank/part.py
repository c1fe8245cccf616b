"""One-sided distances from one set to many: how well a part is found in each of them, or each of them in a whole.

They are means over the elements of one set of the distance to the nearest element of the other. What the other set has
besides makes no difference, so that a part is near the sets that contain it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..data.sets import Sets
from ..errors import InputError
from ..native.arrays import Float64
from .part_pairs import Direction, PartPairs
from .sliced import two_sides

UNIT_TOLERANCE = 1e-3
"""By how much the length of a vector may differ from 1."""


def part(query: Any, candidates: Any, *, coverage: float = 1.0, n_jobs: int | None = -1) -> Float64:
    r"""Return the mean distance of an element of the query to the nearest element of each candidate.

        D(X -> Y) = sum_i u_i min_j |x_i - y_j|

    with the weights u of the query, which sum to 1. It is small where the candidate contains the query, whatever else
    the candidate contains, and zero where it contains all of its elements. Not symmetric: `contained` is the other
    direction, `chamfer` the mean of both. Elements of weight zero are left out; other weights of a candidate do not
    count.

    coverage : the share c of the query's mass that has to be covered, in (0, 1]. Below 1 it is the mean over the best
        covered elements, of total mass c; the one that straddles the limit counts in part.

    >>> part([[0.0], [1.0]], [[[0.0], [1.0], [7.0]], [[3.0]]])
    array([0. , 2.5])
    >>> part([[0.0], [1.0], [9.0]], [[[0.0], [1.0]]], coverage=2 / 3)
    array([0.])
    """
    return _one_sided(query, candidates, "part", coverage, n_jobs)


def contained(query: Any, candidates: Any, *, coverage: float = 1.0, n_jobs: int | None = -1) -> Float64:
    r"""Return the mean distance of an element of each candidate to the nearest element of the query.

        D(Y -> X) = sum_j v_j min_i |x_i - y_j|

    with the weights v of the candidate, which sum to 1: it is small where the candidate lies within the query. See
    `part`; `coverage` is the share of the candidate's mass that has to be covered.

    >>> contained([[0.0], [1.0], [7.0]], [[[0.0], [1.0]], [[3.0], [7.0]]])
    array([0., 1.])
    """
    return _one_sided(query, candidates, "contained", coverage, n_jobs)


def maxsim(query: Any, candidates: Any, *, n_jobs: int | None = -1) -> Float64:
    r"""Return 1 - MaxSim, the mean of the largest inner products, of vectors of unit length, for each candidate.

        1 - sum_i u_i max_j <x_i, y_j>  =  sum_i u_i min_j |x_i - y_j|^2 / 2

    with the weights u of the query, which sum to 1. It is computed as on the right, and equals the left side as far as
    the vectors are of unit length: they must be, to within 0.001, and are not normalised here.

    >>> maxsim([[1.0, 0.0], [0.0, 1.0]], [[[0.0, 1.0]], [[0.6, 0.8], [0.8, -0.6]]]).round(6)
    array([0.5, 0.2])
    """
    x, y = two_sides(query, candidates)
    check_unit_length(x, "the query")
    check_unit_length(y, "the candidates")
    return _distances(x, y, PartPairs(x, "part", squared=True, n_jobs=n_jobs)) / 2


class OtherLength(NamedTuple):
    """The first vector that is not of unit length: which set, which element of it, and its length."""

    set: int
    element: int
    length: float


def not_of_unit_length(sets: Sets) -> OtherLength | None:
    """Return the first element that is not of unit length; None if all are."""
    points = sets.points if sets.origin is None else sets.points + sets.origin
    lengths = np.sqrt(np.einsum("ij,ij->i", points, points, dtype=np.float64))
    wrong = np.abs(lengths - 1) > UNIT_TOLERANCE
    if sets.weights is not None:
        wrong &= sets.weights > 0
    if not wrong.any():
        return None
    at = int(np.argmax(wrong))
    number = int(np.searchsorted(sets.offsets, at, side="right")) - 1
    return OtherLength(number, at - int(sets.offsets[number]), float(lengths[at]))


def check_unit_length(sets: Sets, name: str) -> None:
    """Raise an InputError that says which set and which element is not of unit length, if one is not."""
    if found := not_of_unit_length(sets):
        number, element, length = found
        problem = f"{name}: element {element} of set {number} has the length {length:.6g}, and MaxSim needs 1"
        remedy = "divide each vector by its length: x / np.linalg.norm(x, axis=1, keepdims=True)"
        raise InputError(problem, remedy, set=number, element=element)


def _one_sided(query: Any, candidates: Any, direction: Direction, coverage: float, n_jobs: int | None) -> Float64:
    x, y = two_sides(query, candidates)
    return _distances(x, y, PartPairs(x, direction, coverage=coverage, n_jobs=n_jobs))


def _distances(x: Sets, y: Sets, pairs: PartPairs) -> Float64:
    return pairs.distances(np.zeros(len(y), np.int64), y, np.arange(len(y)))
