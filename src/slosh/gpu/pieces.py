"""Which sets are embedded together on a GPU: sets cut into pieces, and within a piece by size.

Offsets on the host come in; for each piece the device gets the numbers of its sets, those of one size class together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..native.arrays import Array, Int64
from .tensors import as_tensor

SHAPES = (
    (8, 1), (16, 1), (12, 2), (16, 2), (20, 2), (24, 2), (28, 2), (32, 2), (36, 2), (40, 2), (24, 4), (28, 4), (32, 4),
    (36, 4), (40, 4), (44, 4), (48, 4), (28, 8), (32, 8), (36, 8), (40, 8), (48, 8), (28, 16), (32, 16), (40, 16),
    (48, 16), (28, 32), (32, 32), (40, 32), (48, 32), (56, 32), (64, 32),
)  # fmt: skip
"""Keys of a thread, and threads of a column: together the largest set that a kernel takes (docs/gpu.md says why)."""
CAPACITIES = np.array([keys * lanes for keys, lanes in SHAPES])
MAX_SMALL = int(CAPACITIES[-1])
VALUES = 1 << 29
"""Elements times slices of a piece, at most (2 GB); a set that has more is a piece of its own."""


class SizeClass(NamedTuple):
    """Sets of a piece that one kernel takes: places `begin` to `end` of `Piece.order`."""

    keys: int
    lanes: int
    begin: int
    end: int


class Piece(NamedTuple):
    """Sets `first` to `last`, whose elements are `start` to `stop`."""

    first: int
    last: int
    start: int
    stop: int
    classes: list[SizeClass]
    order: Tensor
    """The sets by size class, numbered from `first`, int32."""
    large: Int64
    """The sets of more than MAX_SMALL elements, numbered from `first`: the last ones of `order`."""


def moved(array: Array, device: torch.device) -> Tensor:
    """Return a copy of an array on a GPU, without waiting for it."""
    return as_tensor(np.ascontiguousarray(array)).pin_memory().to(device, non_blocking=True)


def pieces(offsets: Int64, n_slices: int, device: torch.device) -> Iterator[Piece]:
    """Cut sets into pieces of at most VALUES values, but at least one set."""
    for first, last in cut(offsets, n_slices):
        sizes = np.diff(offsets[first : last + 1])
        classes, order = by_size(sizes)
        n_large = len(sizes) - (classes[-1].end if classes else 0)
        large = order[len(order) - n_large :].astype(np.int64)
        yield Piece(first, last, int(offsets[first]), int(offsets[last]), classes, moved(order, device), large)


def cut(offsets: Int64, n_slices: int) -> Iterator[tuple[int, int]]:
    """Yield runs of sets with at most VALUES elements times slices, but at least one set."""
    most, first, n = max(1, VALUES // max(1, n_slices)), 0, len(offsets) - 1
    while first < n:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield first, last
        first = last


def by_size(sizes: Int64) -> tuple[list[SizeClass], Array]:
    """Return the size classes that occur, and the sets in their order; those that are too large come last.

    >>> classes, order = by_size(np.array([3, 9, 5000, 4]))
    >>> [(each.keys * each.lanes, each.begin, each.end) for each in classes], order
    ([(8, 0, 2), (16, 2, 3)], array([0, 3, 1, 2], dtype=int32))
    """
    if len(sizes) and (sizes == sizes[0]).all():
        found = np.searchsorted(CAPACITIES, sizes[:1])
        order, counts = np.arange(len(sizes), dtype=np.int32), np.zeros(len(SHAPES) + 1, np.int64)
        counts[found] = len(sizes)
    else:
        found = np.searchsorted(CAPACITIES, sizes).astype(np.uint8)
        order = np.argsort(found, kind="stable").astype(np.int32)
        counts = np.bincount(found, minlength=len(SHAPES) + 1)
    ends = np.cumsum(counts)
    classes = [
        SizeClass(keys, lanes, int(end - count), int(end))
        for (keys, lanes), count, end in zip(SHAPES, counts, ends, strict=False)
        if count
    ]
    return classes, order
