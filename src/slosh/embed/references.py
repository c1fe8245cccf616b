"""Reference sets: the fixed set that an embedding compares every other set with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state

from ..data.checks import checked_count
from ..data.sets import Sets, check_origin
from ..errors import InputError

Float64 = NDArray[np.float64]

KINDS = ("uniform", "normal", "sample", "kmeans")
KMEANS_ELEMENTS = (10_000, 100_000)
"""The fewest and the most elements that k-means looks at; in between 256 a centre, which is enough to place it."""


def reference_points(
    kind: str | ArrayLike | Sets,
    sets: Sets,
    n_points: int | None,
    dim: int,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[Float64, Float64 | None]:
    """Return the points (M, d) of a reference set, in the units of the data, and its weights (None: uniform).

    Parameters
    ----------
    kind : "uniform", "normal", "sample", "kmeans", an array (M, d), or Sets of one set
        "uniform": M draws from [0, 1]^d. "normal": M draws from the standard normal. "sample": one of `sets` at random,
        at its own size and with its weights. "kmeans": the M centres of the elements of all sets, each element counting
        as much as its weight makes it in its set.
    sets : Sets
        The data, which "uniform" and "normal" do not use. Its origin is subtracted from an array too, so that the
        reference lies where the sets lie.
    n_points : int or None
        M; ignored for "sample" and for a set of your own, which have a size.

    >>> reference_points("uniform", Sets([[0.0, 0.0]], [0, 1]), 5, 2, 0)[0].shape
    (5, 2)
    """
    if isinstance(kind, Sets):
        if len(kind) != 1:
            raise InputError(
                f"reference must be one set; these are {len(kind)}", "pass sets[i : i + 1]", argument="reference"
            )
        check_origin(kind, sets.origin)
        points, weights = _own(kind.points, dim), kind.weights
        return points, None if weights is None else weights.astype(np.float64)
    if not isinstance(kind, str):
        return _own(kind, dim) - (0.0 if sets.origin is None else sets.origin), None
    if kind not in KINDS:
        raise unknown_reference(kind, KINDS)
    random = check_random_state(random_state)
    if kind == "sample":
        if len(sets) == 0:
            raise InputError("reference='sample' takes one of the sets, and there are none", argument="reference")
        row = int(random.randint(len(sets), dtype=np.int64))
        weights = sets[row : row + 1].weights
        return sets[row].astype(np.float64), None if weights is None else weights.astype(np.float64)
    n_points = checked_count("n_points", n_points)
    if kind == "uniform":
        return random.uniform(size=(n_points, dim)), None
    if kind == "normal":
        return random.standard_normal((n_points, dim)), None
    return _centres(sets, n_points, random), None


def unknown_reference(kind: object, known: Sequence[str]) -> InputError:
    """Return the error for a reference that is not one of the known ones."""
    return InputError(
        f"reference={kind!r} is not known",
        f"choose one of {', '.join(map(repr, known))}, or pass an array (M, d)",
        argument="reference",
    )


def _own(array: ArrayLike, dim: int) -> Float64:
    try:
        points = np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"reference must be an array of numbers (M, {dim}): {error}", argument="reference") from None
    if points.ndim != 2 or len(points) == 0 or points.shape[1] != dim:
        raise InputError(
            f"reference must be an array (M, {dim}), one point a row; got shape {points.shape}", argument="reference"
        )
    for row in np.flatnonzero(~np.isfinite(points).all(axis=1)):
        raise InputError(f"reference: row {row} holds NaN or infinity", argument="reference")
    return points


def _centres(sets: Sets, n_points: int, random: np.random.RandomState) -> Float64:
    n_elements = len(sets.points)
    if n_elements < n_points:
        raise InputError(
            f"reference='kmeans' of {n_points} points needs as many elements; the sets have {n_elements}",
            argument="reference",
        )
    chosen: NDArray[np.int64] | slice = slice(None)
    n_chosen = max(n_points, int(np.clip(256 * n_points, *KMEANS_ELEMENTS)))
    if n_elements > n_chosen:
        chosen = np.sort(random.randint(n_elements, size=n_chosen, dtype=np.int64))
    weights = None
    if sets.weights is not None:
        totals = np.add.reduceat(sets.weights.astype(np.float64), sets.offsets[:-1])
        weights = (sets.weights * np.repeat(sets.sizes / totals, sets.sizes))[chosen]
    elements = sets.points[chosen].astype(np.float64)
    means = KMeans(n_points, n_init=1, max_iter=25, random_state=random).fit(elements, sample_weight=weights)
    return np.asarray(means.cluster_centers_)
