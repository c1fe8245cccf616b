"""Checks of what is learnt beside the sets: labels, numbers, and how many of them there are."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.checks import Array, as_array
from ..errors import InputError


def is_number(x: object) -> bool:
    """Return whether x is a real number, and not True or False."""
    return isinstance(x, Real) and not isinstance(x, bool)


def check_length(y: Array, n: int, about: str = "") -> None:
    """Refuse targets that are not one for each of n sets."""
    if len(y) != n:
        raise InputError(f"X has {about}{n} sets, y has {len(y)} entries", "give one for each set", argument="y")


def checked_labels(given: Any, name: str = "y") -> Array:
    """Return labels (n,) of one kind, numbers or strings; a column (n, 1) is taken too."""
    labels = as_array(given, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        problem = f"{name} must be (n,), one label for each set, not of shape {labels.shape}"
        raise InputError(problem, "for several labels a set fit a classifier for each", argument=name)
    missing: list[int] = []
    if labels.dtype.kind == "f":
        missing = np.flatnonzero(~np.isfinite(labels)).tolist()
    elif labels.dtype.kind == "O":
        missing = [i for i, label in enumerate(labels.tolist()) if _is_missing(label)]
    if missing:
        problem = f"{name}[{missing[0]}] is {labels[missing[0]]}"
        raise InputError(problem, "give every set a label, or leave the set out", argument=name, set=missing[0])
    if labels.dtype.kind == "O":
        kinds = sorted({type(label).__name__ for label in labels})
        if len(kinds) > 1:
            problem = f"{name} mixes labels of the types {', '.join(kinds)}"
            raise InputError(problem, "give all of them one type", argument=name)
        labels = np.array(labels.tolist())  # strings in a pandas column, say
    if labels.dtype.kind not in "iubfU":
        raise InputError(f"{name} are of dtype {labels.dtype}", "give numbers or strings as labels", argument=name)
    return labels


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ in ("NAType", "NaTType") or label != label


def checked_numbers(y: Any) -> NDArray[np.float64]:
    """Return numbers (n,) or (n, n_outputs)."""
    given = as_array(y, "y")
    if given.dtype.kind not in "fiub" or given.ndim not in (1, 2) or 0 in given.shape[1:]:
        problem = f"y must be numbers, (n,) or (n, n_outputs), not {given.dtype} of shape {given.shape}"
        raise InputError(problem, argument="y")
    numbers = given.astype(np.float64)
    if (wrong := np.argwhere(~np.isfinite(numbers))).size:
        problem = f"y[{', '.join(map(str, wrong[0]))}] is {numbers[tuple(wrong[0])]}"
        raise InputError(problem, "put a number in its place, or leave the set out", argument="y")
    return numbers
