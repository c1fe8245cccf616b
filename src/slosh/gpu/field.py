"""Distance fields on a device: of every set the distance from each anchor to its nearest element.

Ragged sets come in as arrays of NumPy, and so the fields go out. In few dimensions differences are squared one by one,
on a GPU by a kernel (`kernels/field.cu`). In more of them distances come from products in float64, and small ones,
which products cannot tell from zero, are computed again from differences.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.batching import batches_by_points
from ..native.arrays import Float32, Int64, Ragged
from . import pipeline
from .columns import Batch
from .devices import in_smaller_batches, memory_errors
from .nvrtc import Request, kernels
from .pieces import moved
from .products import full_products
from .sources import INT, POINTER, define, source
from .tensors import sent

TABLE_NUMBERS = 1 << 27
"""Elements times anchors whose distances are held at once: 1 GB in float64, and some times as much while they are."""
DIRECT_DIM = 16
"""Up to this dimension differences take less time than a product."""
KERNEL_ANCHORS = 128
"""Anchors of a block of the kernel."""
NEAR = 2.0**-14
"""Squared distances below this part of the squared scale are computed again; of the others a product keeps more digits
than float32 has."""
RUN = 256
"""Elements whose least distance one thread of the device looks for, so that a large set keeps many of them busy."""
PAIRS = 1 << 24
"""Pairs of element and anchor whose differences are computed at once."""


class Places(NamedTuple):
    """Where elements are: the offsets of short runs of elements, of the runs of each set, and the set of each."""

    runs: Tensor
    sets: Tensor
    set_of: Tensor


def field(sets: Ragged, anchors: Float32, out: Float32, device: str) -> None:
    """Write the distance from each anchor (K, d) to the nearest element of every set into `out` (sets, K).

    Elements of weight zero do not count. It is what `slosh.native.kernel.field` computes.
    """
    by_kernel = work(anchors, device)
    if by_kernel is not None:
        pipeline.run(sets, by_kernel, out, None, device)
        return
    with full_products(device):
        there = _sent_anchors(anchors, device)
        most = max(1, TABLE_NUMBERS // max(anchors.shape))
        for some in batches_by_points(np.diff(sets.offsets), most):

            def run(start: int, stop: int, at: int = some.start) -> None:
                part = slice(at + start, at + stop)
                _batch(sets, part, there, out[part], device)

            n = some.stop - some.start
            in_smaller_batches(run, n, n, device, "the elements of one set")


def work(anchors: Float32, device: str) -> pipeline.Work | None:
    """Return what computes the fields of sets that are on the device; None where there is no kernel for it."""
    if device == "cpu" or anchors.shape[1] > DIRECT_DIM:
        return None
    return partial(_by_kernel, _sent_anchors(anchors, device))


def _sent_anchors(anchors: Float32, device: str) -> Tensor:
    with memory_errors(device, f"{len(anchors):,} anchors"):
        return sent(anchors, device)


def _batch(sets: Ragged, some: slice, anchors: Tensor, out: Float32, device: str) -> None:
    """Compute the fields of a run of sets, some anchors at a time if they are large."""
    first, last = (int(sets.offsets[i]) for i in (some.start, some.stop))
    n_points = last - first
    points = sent(sets.points[first:last], device)
    idle = None
    if sets.weights is not None:
        idle = sent(sets.weights[first:last], device) <= 0
    at = _places(sets.offsets[some.start : some.stop + 1] - first, device)

    def run(start: int, stop: int) -> None:
        part = anchors[start:stop]
        found = (by_differences if points.shape[1] <= DIRECT_DIM else by_products)(points, idle, at, part)
        out[:, start:stop] = found.cpu().numpy()

    in_smaller_batches(
        run, len(anchors), max(1, TABLE_NUMBERS // max(1, n_points)), device, f"the distances of {n_points:,} elements"
    )


def _places(offsets: Int64, device: str) -> Places:
    runs, ends, _ = _runs(offsets)
    parts = (runs, ends, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    return Places(*(sent(each.astype(np.int64), device) for each in parts))


def _runs(offsets: Int64) -> tuple[Int64, Int64, Int64]:
    """Cut sets into runs of at most RUN elements: return where runs begin and the last ends, how many there are up to
    each set, from 0, and the set of each.
    """
    counts = -(-np.diff(offsets) // RUN)
    ends = np.append(0, np.cumsum(counts))
    set_of = np.repeat(np.arange(len(counts)), counts)
    before = np.arange(ends[-1]) - ends[set_of]  # runs of the same set before each
    return np.append(offsets[set_of] + before * RUN, offsets[-1]), ends, set_of


def _least(table: Tensor, idle: Tensor | None, at: Places) -> Tensor:
    """Return the least of each column of a table (P, K) over the elements of each set that count, (n, K)."""
    if idle is not None:
        table.masked_fill_(idle[:, None], torch.inf)
    found = torch.segment_reduce(table, "min", offsets=at.runs, axis=0)
    return torch.segment_reduce(found, "min", offsets=at.sets, axis=0)


def by_differences(points: Tensor, idle: Tensor | None, at: Places, anchors: Tensor) -> Tensor:
    """Return the fields (n, K) of points (P, d), of which those that are idle do not count, from all differences."""
    squares: Tensor | None = None
    for column, places in zip(points.T, anchors.T, strict=True):
        away = column[:, None] - places[None]
        squares = away.square_() if squares is None else squares.addcmul_(away, away)
    assert squares is not None
    return _least(squares, idle, at).sqrt_()


def _by_kernel(anchors: Tensor, batch: Batch, out: Tensor, _: Tensor | None) -> None:
    """Write the fields of sets on a GPU into `out` (n, K)."""
    (n_anchors, dim), device = anchors.shape, batch.points.device
    runs, set_of = _runs(batch.known)[::2]
    idle = None if batch.weights is None else batch.weights <= 0
    starts, owners = moved(runs, device), moved(set_of.astype(np.int32), device)
    out.fill_(torch.inf)
    types = (POINTER, POINTER, POINTER, POINTER, INT, POINTER, INT, POINTER)
    request = Request(("field", dim), lambda: define(DIM=dim) + source("field.cu"), "field", types)
    with torch.cuda.device(device):
        (run,) = kernels(device, [request])
        run(
            (len(set_of), -(-n_anchors // KERNEL_ANCHORS)),
            KERNEL_ANCHORS,
            batch.points.data_ptr(),
            None if idle is None else idle.data_ptr(),
            starts.data_ptr(),
            owners.data_ptr(),
            len(set_of),
            anchors.data_ptr(),
            n_anchors,
            out.data_ptr(),
        )
    out.sqrt_()


def by_products(points: Tensor, idle: Tensor | None, at: Places, anchors: Tensor) -> Tensor:
    """Return the same from products about the middle of the anchors, and from differences where distances are small."""
    middle = anchors.double().mean(0)
    x, a = points.double() - middle, anchors.double() - middle
    sizes, lengths = x.square().sum(1), a.square().sum(1)
    table = torch.addmm(sizes[:, None], x, a.T, alpha=-2.0).add_(lengths)
    least = _least(table, idle, at)
    largest = sizes if idle is None else sizes.masked_fill(idle, 0.0)
    scale = largest.max() + lengths  # (K,)
    near = least < scale * NEAR
    if bool(near.any()):
        margin = (
            points.shape[1] + 16
        ) * 2.0**-51  # which products are off by at most: the nearest element is within it
        limit = torch.where(near, least + scale * margin, -torch.inf)
        least[near] = torch.inf
        _from_differences(points, anchors, table, limit, at.set_of, least)
    return least.clamp_(min=0.0).sqrt_().float()


def _from_differences(
    points: Tensor, anchors: Tensor, table: Tensor, limit: Tensor, set_of: Tensor, least: Tensor
) -> None:
    """Lower `least` (n, K) to the squared distances, from differences, of elements that `table` has within `limit`."""
    step = max(1, PAIRS // table.shape[1])
    for first in range(0, len(table), step):
        rows = slice(first, first + step)
        element, anchor = (table[rows] <= limit[set_of[rows]]).nonzero(as_tuple=True)
        element += first
        pairs = max(1, PAIRS // points.shape[1])
        for start in range(0, len(element), pairs):
            e, k = element[start : start + pairs], anchor[start : start + pairs]
            squares = (points[e].double() - anchors[k].double()).square_().sum(1)
            at = set_of[e] * least.shape[1] + k
            least.view(-1).scatter_reduce_(0, at, squares, "amin", include_self=True)
