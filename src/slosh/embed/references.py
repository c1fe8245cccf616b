"""Reference sets: the fixed set that an embedding compares every other set with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state

from ..checkpoints import aside, checkpoint
from ..data.checks import checked_count, finite_rows, input_error
from ..data.points import is_set_item
from ..data.sets import Sets, check_origin
from ..errors import InputError
from ..native.arrays import Float64, Int64

KINDS = ("uniform", "normal", "sample", "kmeans")
LEARNT = ("barycenter", "sample", "kmeans")
"""References that are learnt from data."""
SEEDED_FROM, SEEDED_ROUNDS = 512, 10
"""So many centres or more begin at `spread_elements`, which takes seconds where scikit-learn's k-means++ takes minutes;
and so many rounds of k-means follow, after which they hardly move."""
SEEDED_GROWTH = 1.5
TABLE_NUMBERS = 1 << 20
"""Distances that are computed in one go."""
KMEANS_ELEMENTS = (10_000, 100_000)
"""The fewest and the most elements that k-means looks at; in between 256 a centre, which is enough to place it."""


def reference_points(
    kind: str | ArrayLike | Sets,
    sets: Sets,
    n_points: int | None,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[Float64, Float64 | None]:
    """Return the points (M, d) of a reference set, in the units of the data, and its weights (None: uniform).

    Parameters
    ----------
    kind : "uniform", "normal", "sample", "kmeans", an array (M, d), or Sets of one set.
        "uniform": M draws from [0, 1]^d. "normal": M draws from the standard normal. "sample": one of `sets` at random,
        at its own size and with its weights. "kmeans": the M centres of the elements of all sets, each element counting
        as much as its weight makes it in its set.
    sets : the data, of which "uniform" and "normal" use the dimension only. Its origin is subtracted from an array too,
        so that the reference lies where the sets lie.
    n_points : M; ignored for "sample" and for a set of your own, which have a size.

    >>> reference_points("uniform", Sets([[0.0, 0.0]], [0, 1]), 5, 0)[0].shape
    (5, 2)
    """
    if not isinstance(kind, str):
        return own_points("reference", kind, sets, "M", "point")
    if kind not in KINDS:
        raise unknown_reference(kind, KINDS)
    random = check_random_state(random_state)
    if kind == "sample":
        if len(sets) == 0:
            raise InputError("reference='sample' takes one of the sets, and there are none", argument="reference")
        row = int(random.randint(len(sets), dtype=np.int64))
        return np.asarray(sets[row], np.float64), _weights(sets[row : row + 1])
    n_points = checked_count("n_points", n_points)
    if kind == "uniform":
        return random.uniform(size=(n_points, sets.dim)), None
    if kind == "normal":
        return random.standard_normal((n_points, sets.dim)), None
    if len(sets.points) < n_points:
        n_elements = len(sets.points)
        problem = f"reference='kmeans' of {n_points} points needs as many elements; the sets have {n_elements}"
        raise InputError(problem, argument="reference")
    return kmeans_centres(*sample_elements(sets, n_points, random), n_points, random), None


def own_points(
    name: str, given: ArrayLike | Sets, sets: Sets, letter: str, each: str
) -> tuple[Float64, Float64 | None]:
    """Return the points (`letter`, d) that a user gave as the parameter `name`, and their weights (None: uniform).

    They may be an array, from which the origin of `sets` is subtracted, or one set of a `Sets` with the same origin.
    """
    given = Sets.from_item(given) if is_set_item(given) else given
    if not isinstance(given, Sets):
        own = finite_rows(name, given, sets.dim, letter, each)
        return own - (0.0 if sets.origin is None else sets.origin), None
    if len(given) != 1:
        raise input_error(name, f"must be one set; these are {len(given)}", "pass sets[i : i + 1]")
    check_origin(given, sets.origin)
    return finite_rows(name, given.points, sets.dim, letter, each), _weights(given)


def learnt_reference(kind: object) -> str | None:
    """Return the sentence that says so if a reference is learnt from data."""
    return f"reference={kind!r} is learnt from data" if isinstance(kind, str) and kind in LEARNT else None


def unknown_reference(kind: object, known: Sequence[str]) -> InputError:
    """Return the error for a reference that is not one of the known ones."""
    remedy = f"choose one of {', '.join(map(repr, known))}, or pass an array (M, d)"
    return InputError(f"reference={kind!r} is not known", remedy, argument="reference")


def _weights(sets: Sets) -> Float64 | None:
    return None if sets.weights is None else sets.weights.astype(np.float64)


def sample_elements(sets: Sets, n_centres: int, random: np.random.RandomState) -> tuple[Float64, Float64 | None]:
    """Return elements to find centres of, and how much each counts (None: all the same); all of them, or a sample.

    Every element counts the same, whatever the size of its set; with weights, as much as its weight makes it in its
    set.
    """
    n_elements = len(sets.points)
    chosen: Int64 | slice = slice(None)
    n_chosen = max(n_centres, int(np.clip(256 * n_centres, *KMEANS_ELEMENTS)))
    if n_elements > n_chosen:
        chosen = np.sort(random.randint(n_elements, size=n_chosen, dtype=np.int64))
    weights = None
    if sets.weights is not None:
        totals = np.add.reduceat(sets.weights.astype(np.float64), sets.offsets[:-1])
        weights = np.asarray((sets.weights * np.repeat(sets.sizes / totals, sets.sizes))[chosen], np.float64)
    return sets.points[chosen].astype(np.float64), weights


def kmeans_centres(
    elements: Float64, weights: Float64 | None, n_centres: int, random: np.random.RandomState
) -> Float64:
    """Return the centres (n_centres, d) of elements, as `sample_elements` gives them."""
    init: Any = "k-means++"
    n_rounds = 25
    if n_centres >= SEEDED_FROM:
        # Equal elements count as one of their weight: of those that are drawn together two might be equal.
        given = elements
        elements, which = aside(lambda: np.unique(given, axis=0, return_inverse=True))
        if len(elements) < len(which) or weights is not None:
            weights = np.bincount(which.ravel(), weights, len(elements)).astype(np.float64)
        init, n_rounds = elements[spread_elements(elements, weights, n_centres, random)], SEEDED_ROUNDS
    means = KMeans(n_centres, init=init, n_init=1, max_iter=n_rounds, random_state=random)
    return np.asarray(aside(lambda: means.fit(elements, sample_weight=weights)).cluster_centers_)


def spread_elements(elements: Float64, weights: Float64 | None, n: int, random: np.random.RandomState) -> Int64:
    """Return which n of the elements k-means may begin with: drawn by their squared distance to those before.

    As k-means++ does, but many at a time: each round draws half as many as there are. The elements are different, and
    n or more; where rounding leaves none at a distance, any of the others are taken.
    """
    squares = np.einsum("ij,ij->i", elements, elements)
    mass = np.ones(len(elements)) if weights is None else weights
    chosen = random.choice(len(elements), 1, p=mass / mass.sum())
    away, newest = np.full(len(elements), np.inf), chosen
    while True:
        centres = elements[newest]
        step = max(1, TABLE_NUMBERS // len(centres))
        for first in range(0, len(elements), step):
            checkpoint()
            part = slice(first, first + step)
            table = elements[part] @ (-2 * centres.T)
            table += squares[newest]
            np.minimum(away[part], np.maximum(table.min(axis=1) + squares[part], 0.0), out=away[part])
        away[chosen] = 0.0
        left = n - len(chosen)
        if not left:
            return np.asarray(chosen)
        share = away * mass
        share /= max(share.sum(), np.finfo(np.float64).tiny)
        if not (n_far := int(np.count_nonzero(share))):
            share[:] = 1 / (len(elements) - len(chosen))
            share[chosen], n_far = 0.0, len(elements) - len(chosen)
        n_new = min(left, n_far, max(1, int(len(chosen) * (SEEDED_GROWTH - 1))))
        newest = random.choice(len(elements), n_new, replace=False, p=share)
        chosen = np.concatenate([chosen, newest])
