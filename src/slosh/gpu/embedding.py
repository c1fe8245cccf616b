"""Sets on the host into vectors on the host, by way of a GPU.

A few threads take piece after piece of the sets. Each has page-locked memory at both ends and a stream of its own:
while one waits for the device, others copy what came back, or send what is next. The threads bound the memory. Arrays
that are page-locked themselves (`torch.empty(..., pin_memory=True).numpy()`) are sent as they are.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoints import checkpoint
from ..errors import DeviceMemoryError
from ..native.arrays import Array, Float32, Float64, Int64, Quantiles, Ragged
from . import columns

THREADS = 8
PIECE_BYTES = 32 << 20
"""Bytes of points, or of vectors, of a piece; a set that has more is a piece of its own."""


def embed(sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None, device: str) -> None:
    """Write (quantiles - reference) * scale of every set into `out`, as `slosh.native.kernel.embed` does, on a GPU.

    The numbers are those of the CPU to rounding. They are the same, bit for bit, for any batching on one kind of GPU.
    If the memory of the device is full, smaller pieces are tried.
    """
    n, most, done = len(sets.offsets) - 1, PIECE_BYTES, 0
    if not n:
        return
    with torch.cuda.device(device):
        work = _Work(sets, rule, out, residual)
        while done < n:
            full = False
            for end in _through(work, most, done):
                if end is None:
                    full = True
                    break
                done = end
            if full:
                torch.cuda.empty_cache()
                most //= 4
                if most < PIECE_BYTES >> 10:
                    raise _memory_is_full(device)


def _memory_is_full(device: str) -> DeviceMemoryError:
    free, total = torch.cuda.mem_get_info(device)
    problem = f"{device} has {free / 1e9:.1f} of {total / 1e9:.1f} GB free, too little for one batch of sets"
    return DeviceMemoryError(problem, "free memory there, or embed on the CPU", device=device, reason="memory")


def _through(work: _Work, most: int, first: int) -> Iterator[int | None]:
    """Embed the sets from `first` on, and yield how many are done; None, at the end, if the device's memory is full."""
    pieces = list(_cut(work.sets, work.width, most, first))
    with ThreadPoolExecutor(min(_threads(), len(pieces))) as pool:
        try:
            running: list[Future[bool]] = [pool.submit(work.piece, begin, end) for begin, end in pieces]
            for (_, end), one in zip(pieces, running, strict=True):
                checkpoint()
                yield end if one.result() else None
        finally:
            pool.shutdown(cancel_futures=True)


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, min(THREADS, cores))


def _cut(sets: Ragged, width: int, most: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield pieces [begin, end) with at most so many bytes of points, and of vectors, but at least one set."""
    offsets, n = sets.offsets, len(sets.offsets) - 1
    row = 4 * sets.points.shape[1]
    while first < n:
        by_points = int(np.searchsorted(offsets, offsets[first] + most // row, side="right")) - 1
        last = min(n, max(first + 1, min(by_points, first + most // (4 * width))))
        yield first, last
        first = last


class _Slot(threading.local):
    """What a thread works with: a stream, and page-locked memory that is used for piece after piece."""

    def __init__(self) -> None:
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._held: dict[str, Tensor] = {}

    def host(self, name: str, n: int, dtype: torch.dtype) -> Tensor:
        """Return n numbers of page-locked memory, the same ones for each name as long as they are enough."""
        found = self._held.get(name)
        if found is None or len(found) < n:
            self._held[name] = found = torch.empty(n, dtype=dtype, pin_memory=True)
        return found[:n]

    def sent(self, name: str, array: Array, device: torch.device) -> Tensor:
        """Return a copy of an array on the device, which is there when the stream comes to it."""
        flat = array.reshape(-1)
        held = _page_locked(flat)
        if held is None:
            held = self.host(name, len(flat), torch.from_numpy(np.empty(0, flat.dtype)).dtype)
            np.copyto(held.numpy(), flat)
        return held.to(device, non_blocking=True).view(array.shape)


def _page_locked(array: Array) -> Tensor | None:
    """Return an array as a tensor on the same memory if that is page-locked, and its rows are side by side."""
    if not array.flags.c_contiguous:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays that cannot be written to, which is not tried
        found = torch.from_numpy(array)
    return found if found.is_pinned() else None


class _Work:
    """What is to be embedded, and where to."""

    def __init__(self, sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None) -> None:
        assert rule.directions is not None
        self.sets, self._out, self._residual = sets, out, residual
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._directions = torch.from_numpy(np.array(rule.directions, np.float32)).to(self._device)
        reference = None if rule.reference is None else torch.from_numpy(np.array(rule.reference)).to(self._device)
        self._rule = columns.Rule(rule.n_quantiles, rule.average, rule.scale, reference)
        self.width = rule.n_slices * rule.n_quantiles
        self._direct = _page_locked(out)
        torch.cuda.current_stream().synchronize()
        self._slot = _Slot()

    def piece(self, begin: int, end: int) -> bool:
        """Embed the sets [begin, end) and return True; return False if the memory of the device is full."""
        slot = self._slot
        with torch.cuda.device(self._device), torch.cuda.stream(slot.stream):
            try:
                self._embed(slot, begin, end)
            except torch.cuda.OutOfMemoryError:
                return False
            finally:
                slot.stream.synchronize()
        n = end - begin
        if self._direct is None:
            held = slot.host("vectors", n * self.width, torch.float32)
            np.copyto(self._out[begin:end], held.numpy().reshape(n, self.width))
        if self._residual is not None:
            self._residual[begin:end] = slot.host("squares", n, torch.float64).numpy()
        return True

    def _embed(self, slot: _Slot, begin: int, end: int) -> None:
        """Let the stream of the slot embed a piece, and send back what comes out."""
        start, stop = int(self.sets.offsets[begin]), int(self.sets.offsets[end])
        own: Int64 = np.ascontiguousarray(self.sets.offsets[begin : end + 1] - start)
        points = slot.sent("points", self.sets.points[start:stop], self._device)
        offsets, weights = slot.sent("offsets", own, self._device), None
        if self.sets.weights is not None:
            weights = slot.sent("weights", self.sets.weights[start:stop], self._device)
        n = end - begin
        vectors = torch.empty((n, self.width), dtype=torch.float32, device=self._device)
        squares = None
        if self._residual is not None:
            squares = torch.empty(n, dtype=torch.float64, device=self._device)
        columns.embed(columns.Batch(points, offsets, weights, own), self._directions, self._rule, vectors, squares)
        if self._direct is None:
            slot.host("vectors", n * self.width, torch.float32).view(n, self.width).copy_(vectors, non_blocking=True)
        else:
            self._direct[begin:end].copy_(vectors, non_blocking=True)
        if squares is not None:
            slot.host("squares", n, torch.float64).copy_(squares, non_blocking=True)
