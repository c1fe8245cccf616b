"""Sets as the network "points" is trained on them: of each set of a batch equally many elements, drawn at random.

Sets of a batch are of similar sizes, so that little is left out, and nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.sets import Sets
from ..native.arrays import Int64
from .augmentation import Change, Layout, SetBatch, augmented
from .inputs import even_runs

MOST_ELEMENTS = 2048
"""Elements of a set that a batch holds at most."""
KEPT = 0.75
"""With the change "drop": the smallest part of the elements that is drawn."""
FEWEST_OF_MEDIAN = 0.75
"""A batch takes at least this part of the elements of its middle set; of smaller sets some are taken twice."""
SIMILAR = 1.1
"""How much larger than the smallest set of a batch the largest may be where no gradient is needed."""
SPARSE = 16
"""A batch with a set of more than so many times MOST_ELEMENTS is drawn with replacement."""
SORTED_BATCHES = 16
"""Batches whose sets are sorted by size together: each is then of similar sets, and yet of random ones."""
EVALUATED_SETS = 256
DEVICE_BYTES = 1 << 33
"""Bytes of elements that are kept on the device; of more, each batch is moved there."""


class Size(NamedTuple):
    """What the shapes of a batch depend on, beside the number of its sets."""

    n_elements: int
    """Of each set that are drawn."""
    longest: int
    """Of the elements of a set that they are drawn among; 0: elements are drawn with replacement."""


class SampledInputs:
    """Sets whose elements are drawn anew for every batch; all of them have a weight."""

    n_copies = 1

    def __init__(
        self, sets: Sets, changes: Sequence[str] | Change, layout: Layout, batch_size: int, device: torch.device
    ) -> None:
        points, weights, sizes = sets.points, sets.weights, sets.sizes
        if weights is not None:  # whose mean is 1 in each set then: only their ratios count
            means = np.add.reduceat(weights, np.cumsum(sizes) - sizes, dtype=np.float64) / sizes
            weights = (weights / np.repeat(means, sizes)).astype(np.float32)
        self._sizes, self._device, self._layout, self._batch_size = sizes, device, layout.to(device), batch_size
        self._drops = not callable(changes) and "drop" in changes
        self._changes = changes if callable(changes) else [name for name in changes if name != "drop"]
        home = device if points.nbytes <= DEVICE_BYTES else torch.device("cpu")
        self._points = torch.tensor(points).to(home)
        self._starts = torch.tensor(np.cumsum(sizes) - sizes).to(home)
        self._lengths = torch.tensor(sizes).to(home)
        self._weights = None if weights is None else torch.tensor(weights).to(home)

    @property
    def home(self) -> torch.device:
        """Where the sets are: the device, or the CPU if there are too many elements for it."""
        return self._points.device

    @property
    def can_repeat(self) -> bool:
        """Whether `drawn` works on the device alone, without waiting for it."""
        return self.home.type == self._device.type and self._weights is None and not callable(self._changes)

    def n_elements(self, rows: Int64) -> Int64:
        return np.minimum(self._sizes[rows], MOST_ELEMENTS)

    def arranged(self, rows: Int64, random: np.random.RandomState) -> Int64:
        """Return rows in another order, so that each batch is of sets of similar sizes."""
        size = -(-len(rows) // max(1, -(-len(rows) // self._batch_size)))
        blocks: list[Int64] = []
        for first in range(0, len(rows), SORTED_BATCHES * size):
            some = rows[first : first + SORTED_BATCHES * size]
            some = some[np.argsort(self._sizes[some], kind="stable")]
            blocks += [some[start : start + size] for start in range(0, len(some), size)]
        last = blocks.pop() if len(blocks[-1]) < size else None  # a short one stays the last
        mixed = [blocks[i] for i in random.permutation(len(blocks))]
        return np.concatenate(mixed if last is None else [*mixed, last])

    def runs(self, rows: Int64) -> list[Int64]:
        """Return positions of rows, batch by batch, for where no gradient is needed."""
        order = np.argsort(self._sizes[rows], kind="stable")
        sizes, found, first = np.minimum(self._sizes[rows][order], MOST_ELEMENTS), [], 0
        while first < len(order):
            last = int(np.searchsorted(sizes, SIMILAR * sizes[first], side="right"))
            for some in even_runs(last - first, EVALUATED_SETS, sizes[first:last]):
                found.append(order[first:last][some])
            first = last
        return found

    def batch(self, rows: Int64, copies: Int64 | None) -> SetBatch:
        """Return sets of equally many elements on the device; `copies` is None where nothing is to be changed."""
        fresh = copies is not None
        return self.drawn(torch.as_tensor(rows).to(self.home), self.size(rows, fresh), fresh)

    def size(self, rows: Int64, fresh: bool) -> Size:
        """Return how many elements a batch of these sets has; with "drop" a number that is drawn, one of a few."""
        counts = self.n_elements(rows)
        n = int(max(counts.min(), FEWEST_OF_MEDIAN * np.median(counts)) if fresh else counts.min())
        if fresh and self._drops:
            n = _among_few(n, 1 - (1 - KEPT) * float(torch.rand(1)))
        longest = int(self._sizes[rows].max())
        if longest > SPARSE * MOST_ELEMENTS:
            return Size(n, 0)
        return Size(n, max(n, 1 << (longest - 1).bit_length()))  # a power of two: few batches of other shapes

    def drawn(self, which: Tensor, size: Size, fresh: bool) -> SetBatch:
        """Return a batch of this size of the sets with these numbers, which are on the device of the sets."""
        n_sets, n = len(which), size.n_elements
        at = self._starts[which][:, None] + self._places(which, size, fresh)
        points = self._points[at].to(self._device)
        weights = None if self._weights is None else self._weights[at].to(self._device).view(-1)
        offsets = torch.arange(n_sets + 1, device=self._device) * n
        batch = SetBatch(points.view(-1, points.shape[2]), offsets, weights, size=n)
        return augmented(batch, self._changes, self._layout) if fresh and self._changes else batch

    def _places(self, which: Tensor, size: Size, fresh: bool) -> Tensor:
        """Return which elements of each set to take, (sets, n); the same ones every time unless `fresh`."""
        home, lengths = which.device, self._lengths[which][:, None]
        generator = None if fresh else torch.Generator(home).manual_seed(0)
        if not size.longest:
            # So few of so many that one is hardly drawn twice; a number for each element would take too much memory.
            drawn = (torch.rand(len(which), size.n_elements, device=home, generator=generator) * lengths).long()
            return torch.minimum(drawn, lengths - 1)  # a product may round up to the length
        keys = torch.rand(len(which), size.longest, device=home, generator=generator)
        there = torch.arange(size.longest, device=home) < lengths
        drawn = keys.masked_fill(~there, 2.0).topk(size.n_elements, dim=1, largest=False, sorted=True).indices
        return torch.where(drawn < lengths, drawn, drawn % lengths)  # of a smaller set some are taken again


def _among_few(n: int, share: float) -> int:
    """Return about this share of n, KEPT to 1, and for all n of a collection one of a few numbers."""
    step = 1 << max(0, n.bit_length() - 4)
    fewest, most = -(-int(np.ceil(KEPT * n)) // step), n // step
    return min(max(round(n * share / step), fewest), most) * step if fewest <= most else n
