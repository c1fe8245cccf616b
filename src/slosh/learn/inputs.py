"""What a model is trained on, in batches on its device: features of sets, or the sets themselves.

Rows are numbers of sets. A batch is of so many sets, and of so many elements at most where elements matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.batching import batches_by_points
from ..data.checks import first_outside
from ..data.precision import MAX_COORDINATE
from ..data.sets import Sets
from ..errors import InputError
from ..native.arrays import Float32, Int64
from .augmentation import Change, Layout, SetBatch, augmented

BATCH_POINTS = 1 << 18
"""Elements of a batch at most; a larger set is a batch of its own."""
EVALUATED_SETS = 1024
"""Sets of a batch where no gradient is needed."""


class Inputs(Protocol):
    """n sets, each there in as many copies as it was changed into; copy 0 is the set as it is."""

    n_copies: int

    def n_elements(self, rows: Int64) -> Int64:
        """Return how many elements of these sets a batch has to hold; zeros where it holds none."""

    def arranged(self, rows: Int64, random: np.random.RandomState) -> Int64:
        """Return rows, which are in a random order, in the order in which they are put into batches."""

    def runs(self, rows: Int64) -> list[Int64]:
        """Return the positions of rows, batch by batch, for where no gradient is needed."""

    def batch(self, rows: Int64, copies: Int64 | None) -> Tensor | SetBatch:
        """Return sets on the device. `copies` says which copy of each to train on; None: the sets as they are."""


class AnyOrder:
    """What inputs have in common whose batches may be of any sets."""

    def n_elements(self, rows: Int64) -> Int64:
        """Return how many elements of these sets a batch has to hold."""
        return np.zeros(len(rows), np.int64)

    def arranged(self, rows: Int64, random: np.random.RandomState) -> Int64:
        """Return the rows as they are."""
        return rows

    def runs(self, rows: Int64) -> list[Int64]:
        """Return the positions of rows, batch by batch."""
        every = np.arange(len(rows))
        return [every[some] for some in even_runs(len(rows), EVALUATED_SETS, self.n_elements(rows))]


def even_runs(n: int, batch_size: int, n_elements: Int64) -> list[slice]:
    """Return n things in as few batches as their size allows, as even as they can be, and of bounded elements."""
    size = -(-n // max(1, -(-n // batch_size)))
    return list(batches_by_points(np.asarray(n_elements), BATCH_POINTS, size))


class FeatureInputs(AnyOrder):
    """Features (copies, n, F) that were computed once."""

    def __init__(self, features: Float32, device: torch.device) -> None:
        self._features = torch.as_tensor(features).to(device)
        self.n_copies = len(features)

    def batch(self, rows: Int64, copies: Int64 | None) -> Tensor:
        which = torch.as_tensor(rows).to(self._features.device)
        if copies is None:
            return self._features[0, which]
        return self._features[torch.as_tensor(copies).to(which.device), which]


class SetInputs(AnyOrder):
    """The copies of the sets, one after the other, and further features (copies, n, k) of each, or None.

    With `changes` there is one copy, which is changed anew for every batch.
    """

    def __init__(
        self,
        copies: Sequence[Sets],
        features: Float32 | None,
        changes: Sequence[str] | Change,
        layout: Layout,
        device: torch.device,
    ) -> None:
        self.n_copies, self._n = len(copies), len(copies[0])
        self._changes, self._layout, self._device = changes, layout.to(device), device
        self._sizes = np.concatenate([each.sizes for each in copies])
        starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._points, self._starts = self._move(np.concatenate([each.points for each in copies])), self._move(starts)
        self._lengths = self._move(self._sizes)
        weights = [each.weights for each in copies if each.weights is not None]
        self._weights = self._move(np.concatenate(weights)) if weights else None
        self._features = None if features is None else self._move(features.reshape(-1, features.shape[-1]))

    def _move(self, array: Float32 | Int64) -> Tensor:
        return torch.as_tensor(array).to(self._device)

    def n_elements(self, rows: Int64) -> Int64:
        return np.asarray(self._sizes[rows])

    def batch(self, rows: Int64, copies: Int64 | None) -> SetBatch:
        which = self._move(rows if copies is None else rows + copies * self._n)
        sizes = self._lengths[which]
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        total = int(self._sizes[rows if copies is None else rows + copies * self._n].sum())
        steps = torch.repeat_interleave(self._starts[which] - offsets[:-1], sizes, output_size=total)
        at = steps + torch.arange(total, device=self._device)
        weights = None if self._weights is None else self._weights[at]
        features = None if self._features is None else self._features[which]
        batch = SetBatch(self._points[at], offsets, weights, features)
        return augmented(batch, self._changes, self._layout) if copies is not None and self._changes else batch


def without_weightless(sets: Sets) -> Sets:
    """Return the sets without their elements of weight zero, which say nothing."""
    if sets.weights is None or sets.weights.all():
        return sets
    counted = sets.weights > 0
    sizes = np.add.reduceat(counted, sets.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Sets.from_checked(sets.points[counted], offsets, sets.weights[counted], sets.origin)


def changed_copies(sets: Sets, changes: Sequence[str] | Change, n_copies: int, layout: Layout) -> Iterator[Sets]:
    """Yield the sets, and copies of them that were changed at random, by torch's generator."""
    weights = None if sets.weights is None else torch.tensor(sets.weights)
    yield sets
    for _ in range(n_copies if changes else 0):
        batch = SetBatch(torch.tensor(sets.points), torch.tensor(sets.offsets), weights)
        made = augmented(batch, changes, layout)
        points = np.ascontiguousarray(made.points.detach().numpy(), np.float32)
        if callable(changes) and (outside := first_outside(points, -MAX_COORDINATE, MAX_COORDINATE)) is not None:
            problem = f"augment returned {points[outside]} for element {outside[0]}, feature {outside[1]} of its points"
            remedy = f"return finite numbers of at most {MAX_COORDINATE:g}"
            raise InputError(problem, remedy, argument="augment")
        counts = None if made.weights is None else made.weights.numpy()
        yield Sets.from_checked(points, made.offsets.numpy(), counts, sets.origin)
