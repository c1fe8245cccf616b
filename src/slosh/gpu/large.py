"""Sets that no register file holds: their values, already projected, are sorted in runs, and then cut at ranks.

`kernels/large.cu` says how. The elements weigh all the same.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..native.arrays import Array, Int64
from .networks import networks
from .nvrtc import Kernel, Request, kernels
from .pieces import MAX_SMALL, VALUES, Piece, moved
from .sources import FLOAT, INT, LONG, POINTER, define, source, width

BLOCK = 128
RUN_SHAPE = (64, 32)
"""Keys of a thread, and threads of a run: of MAX_SMALL values."""


class Large(ctypes.Structure):
    """The structure of the same name in large.cu."""

    _fields_ = [
        ("values", POINTER),
        ("stride", LONG),
        ("starts", POINTER),
        ("sizes", POINTER),
        ("cut_starts", POINTER),
        ("cut_stride", LONG),
        ("n_sets", INT),
        ("n_slices", INT),
        ("n_ranks", INT),
    ]


class Columns(NamedTuple):
    """Projected values (L, stride) of a piece, and what they were projected to. Those of large sets get sorted."""

    values: Tensor
    stride: int
    directions: Tensor


def turns(n_points: int, n_slices: int) -> int:
    """Return how many slices are done at a time."""
    return max(1, n_slices if n_points * n_slices <= VALUES else VALUES // n_points)


def _kernels(device: torch.device) -> list[Kernel]:
    """Return the kernels "runs", "cuts" and "bins"."""
    keys, lanes = RUN_SHAPE

    def runs() -> str:
        flags = define(KEYS=keys, LANES=lanes, DIM=0, WEIGHTED=0)
        return flags + networks(keys) + source("sort.cu") + source("runs.cu")

    def others() -> str:
        return define(MAX_RUN=MAX_SMALL) + source("large.cu")

    shared = BLOCK // 32 * width(keys, lanes) * 4
    of_bins = (Large, POINTER, POINTER, INT, POINTER, POINTER, FLOAT, POINTER, LONG, POINTER)
    return kernels(
        device,
        [
            Request("runs", runs, "runs", (POINTER, LONG, POINTER, POINTER, INT, INT, INT, INT), shared),
            Request("cuts", others, "cuts", (Large, POINTER, INT, POINTER, POINTER)),
            Request("bins", others, "bins", of_bins),
        ],
    )


def embed(
    columns: Columns, known: Int64, piece: Piece, rule: Any, out: Tensor, residual: Tensor | None, n_slices: int
) -> None:
    """Write the vectors of the large sets of a piece into `out`, along the slices that were projected.

    residual : (sets of the piece,) gets their part of the mean over all `n_slices` of the squared residuals.
    """
    device, n_some, M = columns.values.device, len(columns.directions), rule.n_quantiles
    starts = known[piece.first : piece.last][piece.large] - piece.start
    sizes = np.diff(known[piece.first : piece.last + 1])[piece.large]
    run_kernel, cut_kernel, bin_kernel = _kernels(device)
    n_runs = -(-sizes // MAX_SMALL)
    _sort_runs(run_kernel, columns, starts, sizes, n_runs)
    ranks, share = _ranks(sizes, M, rule.average)
    n_ranks = ranks.shape[1]
    cut_sizes = n_runs * n_ranks
    on_device = [moved(each, device) for each in (starts, sizes, np.cumsum(cut_sizes) - cut_sizes, ranks)]
    found = torch.empty((len(sizes), n_some, n_ranks), dtype=torch.float32, device=device)
    cuts = torch.empty(n_some * int(cut_sizes.sum()) if rule.average else 0, dtype=torch.int32, device=device)
    work = Large(
        columns.values.data_ptr(),
        columns.stride,
        *(each.data_ptr() for each in on_device[:3]),
        int(cut_sizes.sum()),
        len(sizes),
        n_some,
        n_ranks,
    )
    threads = min(32, 1 << int(n_runs.max() - 1).bit_length())
    blocks = -(-found.numel() * threads // BLOCK)
    if blocks:
        cut_place = cuts.data_ptr() if rule.average else None
        cut_kernel(blocks, BLOCK, work, on_device[3].data_ptr(), threads, found.data_ptr(), cut_place)
    sets = moved(piece.large.astype(np.int32), device)
    if not rule.average:
        both = found.view(len(sizes), n_some, M, 2)
        values = torch.lerp(both[..., 0], both[..., 1], moved(share, device)[:, None])
        if rule.reference is not None:
            values = values - rule.reference
        out[sets.long(), : n_some * M] = (values * rule.scale).flatten(1)
        return
    squares = None
    if residual is not None:
        squares = torch.empty((len(sizes), n_some * M), dtype=torch.float64, device=device)
    bin_kernel(
        -(-len(sizes) * n_some * M * 32 // BLOCK),
        BLOCK,
        work,
        found.data_ptr(),
        cuts.data_ptr(),
        M,
        sets.data_ptr(),
        None if rule.reference is None else rule.reference.data_ptr(),
        rule.scale,
        out.data_ptr(),
        out.stride(0),
        None if squares is None else squares.data_ptr(),
    )
    if residual is not None and squares is not None:
        residual[sets.long()] += squares.sum(1) / n_slices


def _sort_runs(run: Kernel, columns: Columns, starts: Int64, sizes: Int64, n_runs: Int64) -> None:
    """Sort runs of up to MAX_SMALL values of each set, in place."""
    device, n_some = columns.values.device, len(columns.directions)
    in_set = np.arange(n_runs.sum()) - np.repeat(np.cumsum(n_runs) - n_runs, n_runs)
    run_starts = moved(np.repeat(starts, n_runs) + in_set * MAX_SMALL, device)
    left = np.repeat(sizes, n_runs) - in_set * MAX_SMALL
    run_sizes = moved(np.minimum(left, MAX_SMALL).astype(np.int32), device)
    blocks = -(-len(in_set) * n_some * 32 // BLOCK)
    places = columns.values.data_ptr(), columns.stride, run_starts.data_ptr(), run_sizes.data_ptr()
    run(blocks, BLOCK, *places, len(in_set), n_some, 1, -1)


def _ranks(sizes: Int64, n_quantiles: int, average: bool) -> tuple[Int64, Array]:
    """Return which ranks of each set are asked for, (sets, ranks), and for the linear rule where between two it is."""
    if average:
        return np.arange(1, n_quantiles)[None] * sizes[:, None] // n_quantiles, np.empty(0)
    where = np.maximum(np.arange(1, n_quantiles + 1)[None] * sizes[:, None] - n_quantiles, 0)
    low = where // n_quantiles
    both = np.stack([low, np.minimum(low + 1, sizes[:, None] - 1)], axis=2)
    return both.reshape(len(sizes), -1), (where % n_quantiles / n_quantiles).astype(np.float32)
