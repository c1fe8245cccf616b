"""Sets on the host into rows of numbers on the host, by way of a GPU.

Pieces of the sets go through a few slots, each with page-locked memory at both ends and a stream of its own: while one
piece is worked on, the next one is on its way there, and the one before on its way back. The slots bound the memory.
Arrays that are page-locked themselves (`torch.empty(..., pin_memory=True).numpy()`) are sent as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoints import checkpoint
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Int64, Ragged
from ..native.copying import copy
from . import columns
from .devices import free_memory, memory_errors, memory_is_full
from .precision import full_precision
from .tensors import as_tensor

SLOTS = 4
PIECE_BYTES, LEAST_PIECE_BYTES = 128 << 20, 64 << 10
"""Bytes of points, or of rows, of a piece, and of one where memory is full; a set that has more is a piece of its own.
A piece costs half a millisecond beside what its bytes take."""
HELD_PIECES = 4
"""How many times as much a work may hold of a piece."""
COPY_THREADS = 8
"""Threads that share a copy between page-locked memory and other memory."""

Work = Callable[[columns.Batch, Tensor, Tensor | None], None]
"""Gets sets on the device, and writes a row of float32 for each, and a number of float64 if that is wanted."""


def run(sets: Ragged, work: Work, out: Float32, numbers: Float64 | None, device: str, *, held: int = 0) -> None:
    """Write what the work makes of every set into `out` (n, width) and `numbers` (n,).

    held : the bytes of a set that the work holds on the device beside these. If its memory is full, smaller pieces are
        tried.
    """
    n = len(sets.offsets) - 1
    if not n:
        return
    row, most, done = max(4 * out.shape[1], held // HELD_PIECES), PIECE_BYTES, 0
    with torch.cuda.device(device), full_precision(device):
        while True:
            try:
                for so_far in _through(sets, work, out, numbers, row, most, done):
                    done = so_far
                    checkpoint()
                return
            except RuntimeError as error:
                if not memory_is_full(error):
                    raise
                most //= 4
                if most < LEAST_PIECE_BYTES:
                    with memory_errors(device, "one batch of sets"):
                        raise
            free_memory()  # the error is gone, and with it what the piece held


class _Slot:
    """Page-locked memory at both ends, memory of the device, and a stream. It is reused by piece after piece."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.done: Future[None] | None = None
        """When what it sent back is where it belongs."""
        self._held: dict[str, Tensor] = {}

    def host(self, name: str, n: int, dtype: torch.dtype) -> Tensor:
        """Return n numbers of page-locked memory, the same ones for each name as long as they are enough."""
        found = self._held.get(name)
        if found is None or len(found) < n:
            self._held[name] = found = torch.empty(n, dtype=dtype, device="cpu", pin_memory=True)
        return found[:n]

    def wait(self) -> None:
        """Wait until the slot is free; raise what went wrong with the piece before."""
        done, self.done = self.done, None
        if done is not None:
            done.result()


_idle_streams: dict[int, list[Any]] = {}
"""Streams of each GPU that nobody uses. Memory belongs to the stream that it was used on, so they are used again."""
_streams_lock = threading.Lock()


@contextmanager
def _streams(n: int) -> Iterator[list[Any]]:
    """Borrow n streams of the current GPU."""
    with _streams_lock:
        idle = _idle_streams.setdefault(torch.cuda.current_device(), [])
        taken, idle[:] = idle[:n], idle[n:]
    while len(taken) < n:
        taken.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    try:
        yield taken
    finally:
        with _streams_lock:
            idle += taken


def _through(
    sets: Ragged, work: Work, out: Float32, numbers: Float64 | None, row: int, most: int, first: int
) -> Iterator[int]:
    """Work on the sets from `first` on, and yield how many are done."""
    direct, threads = _page_locked(out), min(COPY_THREADS, kernel.threads(-1))
    waiting: list[int] = []
    torch.cuda.current_stream().synchronize()  # what the work brought along is there for all streams
    with _streams(SLOTS) as streams, ThreadPoolExecutor(SLOTS) as backs:
        slots = [_Slot(stream) for stream in streams]
        try:
            for k, (begin, end) in enumerate(_cut(sets, row, most, first)):
                slot = slots[k % SLOTS]
                slot.wait()
                if len(waiting) >= SLOTS:
                    yield waiting.pop(0)
                target = None if direct is None else direct[begin:end]
                ready = _send(slot, sets, work, begin, end, out.shape[1], numbers is not None, target, threads)
                rows = out[begin:end] if direct is None else None
                slot.done = backs.submit(
                    _take, slot, ready, rows, None if numbers is None else numbers[begin:end], threads
                )
                waiting.append(end)
            for slot in slots:
                slot.wait()
        finally:
            for slot in slots:
                slot.stream.synchronize()
    if waiting:
        yield waiting[-1]


def _cut(sets: Ragged, row: int, most: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield pieces [begin, end) of at most so many bytes of points, and of rows of `row` bytes, but of one set."""
    offsets, n = sets.offsets, len(sets.offsets) - 1
    points = most // (4 * sets.points.shape[1])
    while first < n:
        by_points = int(np.searchsorted(offsets, offsets[first] + points, side="right")) - 1
        last = min(n, max(first + 1, min(by_points, first + most // row)))
        yield first, last
        first = last


def _send(
    slot: _Slot,
    sets: Ragged,
    work: Work,
    begin: int,
    end: int,
    width: int,
    with_numbers: bool,
    direct: Tensor | None,
    n_threads: int,
) -> torch.cuda.Event:
    """Begin to work on a piece on the stream of a slot; return what happens when its rows are on the host."""
    start, stop = int(sets.offsets[begin]), int(sets.offsets[end])
    own: Int64 = np.ascontiguousarray(sets.offsets[begin : end + 1] - start)
    dim, n = sets.points.shape[1], end - begin
    with torch.cuda.stream(slot.stream):
        points = torch.empty((stop - start, dim), dtype=torch.float32, device="cuda")
        points.copy_(_locked(slot, "points", sets.points[start:stop], n_threads).view(-1, dim), non_blocking=True)
        offsets = torch.empty(n + 1, dtype=torch.int64, device="cuda")
        offsets.copy_(_locked(slot, "offsets", own, n_threads), non_blocking=True)
        rows = torch.empty((n, width), dtype=torch.float32, device="cuda")
        numbers = torch.empty(n, dtype=torch.float64, device="cuda") if with_numbers else None
        weights = None
        if sets.weights is not None:
            weights = torch.empty(stop - start, dtype=torch.float32, device="cuda")
            weights.copy_(_locked(slot, "weights", sets.weights[start:stop], n_threads), non_blocking=True)
        work(columns.Batch(points, offsets, weights, own), rows, numbers)
        target = slot.host("rows", n * width, torch.float32).view(n, width) if direct is None else direct
        target.copy_(rows, non_blocking=True)
        if numbers is not None:
            slot.host("numbers", n, torch.float64).copy_(numbers, non_blocking=True)
        ready: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        ready.record()
    return ready


def _locked(slot: _Slot, name: str, array: Array, n_threads: int) -> Tensor:
    """Return a copy of an array in the page-locked memory of a slot.

    It is the array itself where that is in such memory, or has more than the slots shall hold: it is one set then, and
    its copy to the device waits for the driver, which sends it in parts.
    """
    flat = array.reshape(-1)
    own = _page_locked(flat)
    if own is not None:
        return own
    if flat.nbytes > PIECE_BYTES:
        return as_tensor(flat)
    held = slot.host(name, len(flat), torch.from_numpy(flat[:0].copy()).dtype)
    copy(held.numpy(), flat, n_threads)
    return held


def _page_locked(array: Array) -> Tensor | None:
    """Return an array as a tensor on the same memory if that is page-locked, and its rows are side by side."""
    if not array.flags.c_contiguous:
        return None
    found = as_tensor(array)
    return found if found.is_pinned() else None


def _take(slot: _Slot, ready: torch.cuda.Event, rows: Float32 | None, numbers: Float64 | None, n_threads: int) -> None:
    """Wait for a piece, and put its rows, unless they are there already, and its numbers where they belong."""
    ready.synchronize()
    if rows is not None:
        copy(rows, slot.host("rows", rows.size, torch.float32).numpy().reshape(rows.shape), n_threads)
    if numbers is not None:
        numbers[:] = slot.host("numbers", len(numbers), torch.float64).numpy()
