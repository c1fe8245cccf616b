"""What labels add to whitening: the directions that tell classes apart, and labels of users as numbers of classes.

Whitened coordinates and classes come in, a matrix goes out. Nothing here knows of sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.covariance import ledoit_wolf_shrinkage

from ..data.checks import input_error
from ..errors import InputError
from ..native.arrays import Float64, Int64

UNLABELLED = -1
SMALL_VARIANCE = 1e-4
"""The part of the mean variance that is added to that within classes, whose sets may all be the same."""
HALF_WEIGHT_SETS, HALF_WEIGHT_DIRECTIONS = 300, 4
"""Labelled sets, less the classes, and directions, with which discriminants get half of their weight."""


def class_numbers(labels: Any, n: int, *, is_needed: bool = False) -> Int64 | None:
    """Return the class of each of n sets, 0, 1, ..., or UNLABELLED; None for the targets of a regression.

    Targets of a regression are floats, unless they are whole numbers and NaN: so tables hold labels some of which are
    missing. Where labels are needed, whole numbers are always labels, and errors do not offer to do without. None, NaN
    and pandas' NA stand for a set without a label, and so does -1, unless there is only one other class: -1 and 1 are
    the two classes of many data sets.
    """
    otherwise = "" if is_needed else ", or leave y out"
    if isinstance(labels, Mapping):
        raise input_error("y", "is a dict", "give the labels alone, one for each set in their order")
    if len(getattr(labels, "shape", ())) == 2 and hasattr(labels, "columns"):
        raise input_error("y", f"is a table of {len(labels.columns)} columns", 'give one of them, as in table["label"]')
    if hasattr(labels, "toarray"):
        raise input_error("y", "is a sparse matrix", "give y.toarray().ravel()")
    given = labels if isinstance(labels, np.ndarray) or hasattr(labels, "dtype") else _as_objects(labels)
    array = np.asarray(given)
    if array.shape != (n,):
        what = f"has {array.shape[0]} labels" if array.ndim == 1 else f"has the shape {array.shape}"
        raise input_error("y", f"{what} for {n} sets", "give one for each set, None or -1 where it is not known")
    if array.dtype.kind == "f" and not _are_labels(array, is_needed):
        return None
    listed = [None if _is_missing(label) else label for label in array.tolist()]
    try:
        known = set(listed) - {None}
    except TypeError:
        raise input_error("y", "holds what cannot be a label", "give whole numbers, strings, or None") from None
    if len(known - {UNLABELLED}) != 1:
        known.discard(UNLABELLED)
    if len(known) < 2:
        which = f"has one class only, {next(iter(known))!r:.60}" if known else "has no label at all"
        remedy = f"give labels of two classes or more{otherwise}; None and -1 stand for sets without a label"
        raise input_error("y", which, remedy)
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(label, len(numbers)) if label in known else UNLABELLED for label in listed]
    classes = np.array(found, np.int64)
    if np.bincount(classes[classes >= 0]).max() < 2:
        raise input_error("y", "has no label twice", f"give labels that sets share{otherwise}")
    return classes


def _are_labels(numbers: NDArray[Any], is_needed: bool) -> bool:
    """Return whether floats are labels: whole numbers, some of them missing, or all there where labels are needed."""
    missing = np.isnan(numbers)
    known = numbers[~missing]
    return bool((is_needed or missing.any()) and np.isfinite(known).all() and (known == np.floor(known)).all())


def _as_objects(labels: Any) -> NDArray[Any]:
    try:
        listed = list(labels)
    except TypeError:
        raise InputError(f"y={labels!r:.60}", "give a label for each set, or leave it out", argument="y") from None
    if listed and all(isinstance(x, float) for x in listed):
        return np.array(listed)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA does not tell whether it is equal to itself
        return True
    except ValueError:  # an array, which is no label either
        return False


def shared_classes(classes: Int64) -> Int64:
    """Return the classes as 0, 1, ..., UNLABELLED where a class has one set only: it does not tell how sets vary."""
    counts = np.bincount(classes[classes >= 0])
    number = np.where(counts > 1, np.cumsum(counts > 1) - 1, UNLABELLED)
    return np.asarray(np.where(classes >= 0, number[classes], UNLABELLED)) if len(number) else classes


def discriminants(coordinates: Float64, classes: Int64) -> Float64:
    """Return the directions that tell classes apart, (P, r): r is the number of classes less one, or smaller.

    Fisher's discriminant: the directions e of the largest (e S_b e) / (e S_w e), where S_b is the covariance of the
    classes' means, each as often as it has sets, and S_w that within classes, shrunk by the rule of Ledoit and Wolf
    towards one that is alike in all directions. Variances within classes are then 1 along each.

    coordinates : (n, P), of labelled sets.
    classes : (n,), 0, 1, ...; each has two sets at least.
    """
    n_labelled, length = coordinates.shape
    counts = np.bincount(classes)
    means = np.zeros((len(counts), length))
    np.add.at(means, classes, coordinates)
    means /= counts[:, None]
    residuals = coordinates - means[classes]
    middle = coordinates.mean(axis=0)
    share = float(ledoit_wolf_shrinkage(residuals, assume_centered=True))
    within = residuals.T @ residuals / (n_labelled - len(counts))
    alike = share * np.trace(within) / length + SMALL_VARIANCE * np.square(coordinates - middle).mean()
    within = (1 - share) * within + alike * np.eye(length)
    between = ((means - middle).T * (counts / n_labelled)) @ (means - middle)
    n_directions = min(len(counts) - 1, length)
    values, columns = eigh(between, within, subset_by_index=[length - n_directions, length - 1])
    return np.asarray(columns[:, values > 1e-9 * max(values[-1], 0.0)])


def label_weight(n_labelled: int, n_classes: int, n_directions: int) -> float:
    """Return the mean square of the discriminants, that of the whitened coordinates being 1: less for few labels."""
    free = n_labelled - n_classes
    return free / (free + HALF_WEIGHT_SETS) * n_directions / (n_directions + HALF_WEIGHT_DIRECTIONS)


def joined_map(variances: Float64, n_plain: int, found: Float64, weight: float, n_kept: int) -> Float64:
    """Return the map (n_kept, P) of coordinates of these variances to `n_plain` of them and the discriminants.

    Both side by side, where the mean squared norm of the discriminants is `weight` times that of the others, and then
    turned to the principal directions of the two, of which the first `n_kept` are left.
    """
    plain = np.eye(len(variances), n_plain) / np.sqrt(variances[:n_plain].sum())
    size = float((variances[:, None] * np.square(found)).sum())
    both = np.concatenate([plain, found * np.sqrt(weight / size)], axis=1)
    _, columns = eigh(both.T @ (variances[:, None] * both))
    return np.asarray((both @ columns[:, ::-1][:, :n_kept]).T)
