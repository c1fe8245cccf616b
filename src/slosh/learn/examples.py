"""What is learnt from, checked: labels or pairs as a user gives them come in, examples go out, and the part held back.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..data.checks import as_array, input_error
from ..embed.discriminant import class_numbers
from ..errors import InputError
from ..native.arrays import Int64, Mask

SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
FEWEST_HELD = 4
"""With fewer examples held back than this none is: they would decide by chance."""


@dataclass(frozen=True)
class Examples:
    """Sets with classes, or pairs of sets.

    rows : (m,) the sets to learn from, by their numbers. classes : (m,) their classes 0, 1, ... ; None for pairs.
    names : of the classes. alike, unlike : (m, 2) pairs of numbers of sets, in order; None for labels.
    """

    rows: Int64
    classes: Int64 | None = None
    names: tuple[Any, ...] = ()
    alike: Int64 | None = None
    unlike: Int64 | None = None

    @property
    def n_classes(self) -> int:
        return len(self.names)

    def __len__(self) -> int:
        """The number of examples: labelled sets, or pairs of sets that are alike."""
        return len(self.rows) if self.alike is None else len(self.alike)

    def only(self, some: Int64) -> Examples:
        """Return some of the examples; pairs of sets that are not alike are all kept."""
        if self.alike is not None:
            alike = self.alike[some]
            return replace(self, rows=np.unique(alike), alike=alike)
        assert self.classes is not None
        return replace(self, rows=self.rows[some], classes=self.classes[some])

    def alike_among(self, rows: Int64) -> Mask:
        """Return which of these sets, by their numbers in order, are given as alike, (n, n)."""
        found = np.zeros((len(rows), len(rows)), bool)
        if self.classes is not None:
            classes = self.classes[np.searchsorted(self.rows, rows)]
            return np.asarray(classes[:, None] == classes)
        assert self.alike is not None
        begin, end = (np.searchsorted(self._first, rows, side=side) for side in SIDES)
        counts = end - begin
        first = np.repeat(np.arange(len(rows)), counts)
        second = self.alike[np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts) + begin[first], 1]
        place = np.minimum(np.searchsorted(rows, second), len(rows) - 1)
        there = rows[place] == second
        found[first[there], place[there]] = found[place[there], first[there]] = True
        return found

    @cached_property
    def _first(self) -> Int64:
        """The first set of each pair of sets that are alike."""
        assert self.alike is not None
        return np.ascontiguousarray(self.alike[:, 0])

    def split(self, fraction: float, random: np.random.RandomState) -> tuple[Examples, Examples | None]:
        """Return the examples to learn from, and those held back, in each class alike; None if they would be too few.

        A class keeps more sets than it gives, so that one of a single set gives none.
        """
        drawn = random.permutation(len(self))
        if self.classes is None:
            held = drawn[: int(fraction * len(self))]
        else:
            of_class = [drawn[self.classes[drawn] == one] for one in range(self.n_classes)]
            held = np.concatenate([rows[: min(round(fraction * len(rows)), len(rows) // 2)] for rows in of_class])
        if len(held) < FEWEST_HELD:
            return self, None
        kept = np.setdiff1d(np.arange(len(self)), held)
        return self.only(kept), self.only(np.sort(held))


def labelled_examples(labels: Any, n: int) -> Examples:
    """Return the sets of n that have a label, with their classes."""
    labels = list(labels) if isinstance(labels, Iterator) else labels
    classes = class_numbers(labels, n, is_needed=True)
    if classes is None:
        problem, remedy = "holds numbers that are not whole", "give labels: strings, or whole numbers"
        raise input_error("y", problem, remedy)
    rows, listed = np.flatnonzero(classes >= 0), list(labels)
    _, first = np.unique(classes[rows], return_index=True)
    return Examples(rows, classes[rows], tuple(_plain(listed[i]) for i in rows[first].tolist()))


def _plain(label: Any) -> Any:
    """Return a label as a file can hold it: a number, a text, or the text of anything else."""
    value = label.item() if callable(getattr(label, "item", None)) else label  # a scalar of NumPy, a tensor of torch
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value if isinstance(value, bool | int | float | str) else str(value)


def paired_examples(pairs: Any, n: int) -> Examples:
    """Return pairs of n sets that are alike, and those that are not: (m, 2), or (m, 3) with 1 or 0 in the third."""
    array = as_array(list(pairs) if isinstance(pairs, Iterator) else pairs, "pairs")
    if not array.size:
        raise input_error("pairs", "are empty", "give numbers of sets that are alike, two a row")
    if array.ndim != 2 or array.shape[1] not in (2, 3) or array.dtype.kind not in "iub":
        found = f"{array.dtype} of shape {array.shape}"
        remedy = "give two whole numbers a row, and 1 or 0 as a third where sets are alike or not"
        raise input_error("pairs", f"must be (m, 2) or (m, 3) whole numbers, not {found}", remedy)
    listed = array.astype(np.int64)
    ends = listed[:, :2]
    if len(wrong := np.flatnonzero(((ends < 0) | (ends >= n)).any(axis=1))):
        problem = f"pair {wrong[0]} is {tuple(ends[wrong[0]].tolist())}, but there are {n} sets, from 0"
        raise InputError(problem, "give the numbers of sets in the collection", argument="pairs")
    if len(wrong := np.flatnonzero(ends[:, 0] == ends[:, 1])):
        problem = f"pair {wrong[0]} is set {ends[wrong[0], 0]} and itself"
        raise InputError(problem, "give pairs of two sets", argument="pairs")
    marks = listed[:, 2] if listed.shape[1] == 3 else np.ones(len(listed), np.int64)
    if len(wrong := np.flatnonzero((marks != 0) & (marks != 1))):
        problem = f"the third number of pair {wrong[0]} is {marks[wrong[0]]}"
        raise InputError(problem, "give 1 for sets that are alike, 0 for others", argument="pairs")
    ordered = np.sort(ends, axis=1)
    alike, unlike = (np.unique(ordered[marks == mark], axis=0) for mark in (1, 0))
    both = set(map(tuple, alike.tolist())) & set(map(tuple, unlike.tolist()))
    if both:
        problem = f"the sets {min(both)} are given as alike and as not alike"
        raise InputError(problem, "give each pair once", argument="pairs")
    if len(np.unique(alike)) < 3 and not len(unlike):
        there = {0: "are no pairs", 1: "is one pair"}.get(len(alike), f"are {len(alike)} pairs")
        problem = f"there {there} of sets that are alike"
        raise InputError(problem, "give more, so that there are others to tell them from", argument="pairs")
    if not len(alike):
        raise InputError("no pair is of sets that are alike", "give some", argument="pairs")
    return Examples(np.unique(alike), alike=alike, unlike=unlike)
