"""Sets on the host into vectors on the host, by way of a GPU.

Pieces of the sets go through a few slots, each with page-locked memory at both ends and a stream of its own: while one
piece is embedded, the next one is on its way there, and the one before on its way back. Memory is bounded by the slots.
Arrays that are page-locked themselves (`torch.empty(..., pin_memory=True).numpy()`) are sent as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoints import checkpoint
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Int64, Quantiles, Ragged
from . import columns
from .devices import free_memory, memory_errors

SLOTS = 4
PIECE_BYTES = 128 << 20
"""Bytes of points, or of vectors, of a piece; a set that has more is a piece of its own."""
COPY_BYTES = 8 << 20
"""Bytes that are worth a thread of their own when they are copied."""
COPY_THREADS = 8


def embed(sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None, device: str) -> None:
    """Write (quantiles - reference) * scale of every set into `out`, as `slosh.native.kernel.embed` does, on a GPU.

    The numbers are those of the CPU to rounding. They are the same, bit for bit, for any batching on one kind of GPU.
    If the memory of the device is full, smaller pieces are tried.
    """
    n = len(sets.offsets) - 1
    if not n:
        return
    most, done = PIECE_BYTES, 0
    threads = min(COPY_THREADS, kernel.threads(-1))
    # What is sent never waits for threads that copy what came back.
    with torch.cuda.device(device), ThreadPoolExecutor(threads) as forth, ThreadPoolExecutor(threads) as back:
        while True:
            try:
                for so_far in _through(sets, rule, out, residual, most, done, (forth, back)):
                    done = so_far
                    checkpoint()
                return
            except torch.cuda.OutOfMemoryError:
                free_memory()
                most //= 4
                if most < PIECE_BYTES >> 10:
                    with memory_errors(device, "one batch of sets"):
                        raise


class _Slot:
    """Page-locked memory at both ends, memory of the device, and a stream. It is reused by piece after piece."""

    def __init__(self) -> None:
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.done: Future[None] | None = None
        """When what it sent back is where it belongs."""
        self._held: dict[str, Tensor] = {}

    def host(self, name: str, n: int, dtype: torch.dtype) -> Tensor:
        """Return n numbers of page-locked memory, the same ones for each name as long as they are enough."""
        found = self._held.get(name)
        if found is None or len(found) < n:
            self._held[name] = found = torch.empty(n, dtype=dtype, pin_memory=True)
        return found[:n]

    def wait(self) -> None:
        """Wait until the slot is free; raise what went wrong with the piece before."""
        done, self.done = self.done, None
        if done is not None:
            done.result()


def _through(
    sets: Ragged,
    rule: Quantiles,
    out: Float32,
    residual: Float64 | None,
    most: int,
    first: int,
    pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
) -> Iterator[int]:
    """Embed the sets from `first` on, and yield how many are done."""
    assert rule.directions is not None
    directions = torch.from_numpy(np.ascontiguousarray(rule.directions)).cuda()
    reference = None if rule.reference is None else torch.from_numpy(np.ascontiguousarray(rule.reference)).cuda()
    width, direct = rule.n_slices * rule.n_quantiles, _page_locked(out)
    slots = [_Slot() for _ in range(SLOTS)]
    waiting: list[int] = []
    torch.cuda.current_stream().synchronize()
    with ThreadPoolExecutor(SLOTS) as backs:
        try:
            for k, (begin, end) in enumerate(_cut(sets, width, most, first)):
                slot = slots[k % SLOTS]
                slot.wait()
                if len(waiting) >= SLOTS:
                    yield waiting.pop(0)
                ready = _send(
                    slot, sets, rule, directions, reference, begin, end, residual is not None, direct, pools[0]
                )
                slot.done = backs.submit(_take, slot, ready, out, residual, begin, end, direct is not None, pools[1])
                waiting.append(end)
            for slot in slots:
                slot.wait()
        finally:
            for slot in slots:
                slot.stream.synchronize()
    if waiting:
        yield waiting[-1]


def _cut(sets: Ragged, width: int, most: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield pieces [begin, end) with at most so many bytes of points, and of vectors, but at least one set."""
    offsets, n = sets.offsets, len(sets.offsets) - 1
    row = 4 * sets.points.shape[1]
    while first < n:
        by_points = int(np.searchsorted(offsets, offsets[first] + most // row, side="right")) - 1
        last = min(n, max(first + 1, min(by_points, first + most // (4 * width))))
        yield first, last
        first = last


def _send(
    slot: _Slot,
    sets: Ragged,
    rule: Quantiles,
    directions: Tensor,
    reference: Tensor | None,
    begin: int,
    end: int,
    with_residual: bool,
    direct: Tensor | None,
    pool: ThreadPoolExecutor,
) -> torch.cuda.Event:
    """Begin to embed a piece on the stream of a slot; return what happens when its vectors are on the host."""
    start, stop = int(sets.offsets[begin]), int(sets.offsets[end])
    own: Int64 = np.ascontiguousarray(sets.offsets[begin : end + 1] - start)
    dim, n, width = sets.points.shape[1], end - begin, rule.n_slices * rule.n_quantiles
    device = directions.device
    with torch.cuda.stream(slot.stream):
        points = torch.empty((stop - start, dim), dtype=torch.float32, device=device)
        points.copy_(_locked(slot, "points", sets.points[start:stop], pool).view(-1, dim), non_blocking=True)
        offsets = torch.empty(n + 1, dtype=torch.int64, device=device)
        offsets.copy_(_locked(slot, "offsets", own, pool), non_blocking=True)
        vectors = torch.empty((n, width), dtype=torch.float32, device=device)
        squares = torch.empty(n, dtype=torch.float64, device=device) if with_residual else None
        weights = None
        if sets.weights is not None:
            weights = torch.empty(stop - start, dtype=torch.float32, device=device)
            weights.copy_(_locked(slot, "weights", sets.weights[start:stop], pool), non_blocking=True)
        batch = columns.Batch(points, offsets, weights, own)
        numbers = columns.Rule(rule.n_quantiles, rule.average, rule.scale, reference)
        columns.embed(batch, directions, numbers, vectors, squares)
        target = slot.host("vectors", n * width, torch.float32).view(n, width) if direct is None else direct[begin:end]
        target.copy_(vectors, non_blocking=True)
        if squares is not None:
            slot.host("squares", n, torch.float64).copy_(squares, non_blocking=True)
        ready: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        ready.record()
    return ready


def _locked(slot: _Slot, name: str, array: Array, pool: ThreadPoolExecutor) -> Tensor:
    """Return a copy of an array in the page-locked memory of a slot, or the array itself where it is in such memory."""
    flat = array.reshape(-1)
    own = _page_locked(flat)
    if own is not None:
        return own
    held = slot.host(name, len(flat), torch.from_numpy(flat[:0].copy()).dtype)
    _copy(held.numpy(), flat, pool)
    return held


def _page_locked(array: Array) -> Tensor | None:
    """Return an array as a tensor on the same memory if that is page-locked, and its rows are side by side."""
    if not array.flags.c_contiguous:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays that cannot be written to, which is not tried
        found = torch.from_numpy(array)
    return found if found.is_pinned() else None


def _take(
    slot: _Slot,
    ready: torch.cuda.Event,
    out: Float32,
    residual: Float64 | None,
    begin: int,
    end: int,
    direct: bool,
    pool: ThreadPoolExecutor,
) -> None:
    """Wait for the vectors of a piece, and put them where they belong."""
    ready.synchronize()
    n, width = end - begin, out.shape[1]
    if not direct:
        _copy(out[begin:end], slot.host("vectors", n * width, torch.float32).numpy().reshape(n, width), pool)
    if residual is not None:
        residual[begin:end] = slot.host("squares", n, torch.float64).numpy()


def _copy(to: Array, source: Array, pool: ThreadPoolExecutor) -> None:
    """Copy an array, in parts that threads of the pool share."""
    parts = min(COPY_THREADS, -(-source.nbytes // COPY_BYTES))
    if parts <= 1:
        to[...] = source
        return
    edges = np.linspace(0, len(source), parts + 1).astype(np.int64)
    each: list[Future[Any]] = [pool.submit(np.copyto, to[a:b], source[a:b]) for a, b in pairwise(edges.tolist())]
    for one in each:
        one.result()
