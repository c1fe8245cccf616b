"""Sets that no register file holds: their values, already projected, are sorted in runs, and then cut at ranks; and
the gradient of these values.

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

LAUNCHED_SLICES = 1 << 20
"""Slices of one launch at most: the second number of a grid is below 65,536, and stands for 64 of them."""
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


class Runs(ctypes.Structure):
    """The structure of the same name in large.cu."""

    _fields_ = [("values", POINTER), ("starts", POINTER), ("sizes", POINTER), ("sets", POINTER), ("n", INT)]


class Columns(NamedTuple):
    """Projected values (L, stride) of a piece, and what they were projected to. Those of large sets get sorted."""

    values: Tensor
    stride: int
    directions: Tensor


def turns(n_points: int, n_slices: int) -> int:
    """Return how many slices are done at a time."""
    return max(1, min(n_slices, LAUNCHED_SLICES, VALUES // max(1, n_points)))


def _kernel(device: torch.device, name: str, average: bool = True) -> Kernel:
    """Return a kernel: "runs", "cuts", "bins", "around" or "spread"."""
    keys, lanes = RUN_SHAPE

    def runs() -> str:
        flags = define(KEYS=keys, LANES=lanes, DIM=0, WEIGHTED=0)
        return flags + networks(keys) + source("sort.cu") + source("runs.cu")

    def others() -> str:
        return define(MAX_RUN=MAX_SMALL, AVERAGE=average) + source("large.cu")

    shared = BLOCK // 32 * width(keys, lanes) * 4 if name == "runs" else 0
    types: dict[str, tuple[Any, ...]] = {
        "runs": (POINTER, LONG, POINTER, POINTER, INT, INT, INT, INT),
        "cuts": (Large, POINTER, INT, POINTER, POINTER),
        "bins": (Large, POINTER, POINTER, INT, POINTER, POINTER, FLOAT, POINTER, LONG, POINTER),
        "around": (Large, POINTER, INT, POINTER),
        "spread": (Large, Runs, POINTER, POINTER, POINTER, LONG, POINTER, FLOAT, INT, POINTER),
    }
    make = runs if name == "runs" else others
    return kernels(device, [Request((name, average), make, name, types[name], shared)])[0]


class _Cut(NamedTuple):
    """Large sets of a piece that were cut at ranks, on the device but for `sizes` and `threads`."""

    work: Large
    held: list[Tensor]
    """What `work` has the addresses of."""
    sets: Tensor
    """The numbers of the sets in the piece, int32."""
    found: Tensor
    """(sets, slices, ranks), the value at each rank."""
    cuts: Tensor
    """How many values of each run are below: for the average rule."""
    share: Array
    """For the linear rule where between two ranks each quantile is."""
    n_sets: int
    threads: int
    """How many work on one rank."""


def _cut(
    columns: Columns,
    runs: _RunPlaces,
    known: Int64,
    piece: Piece,
    n_quantiles: int,
    average: bool,
    in_order: bool = False,
) -> _Cut:
    """Sort runs of the large sets of a piece, in place, and find the values at the ranks that a rule asks for.

    in_order : the lowest rank comes first; the linear rule asks for pairs otherwise, which overlap if there are many.
    """
    device, n_some = columns.values.device, len(columns.directions)
    starts = known[piece.first : piece.last][piece.large] - piece.start
    sizes = np.diff(known[piece.first : piece.last + 1])[piece.large]
    blocks = -(-len(runs.starts) * n_some * 32 // BLOCK)
    places = columns.values.data_ptr(), columns.stride, runs.starts.data_ptr(), runs.sizes.data_ptr()
    _kernel(device, "runs")(blocks, BLOCK, *places, len(runs.starts), n_some, 1, -1)
    n_runs = -(-sizes // MAX_SMALL)
    ranks, share = _ranks(sizes, n_quantiles, average)
    if in_order:
        ranks = np.sort(ranks, axis=1)
    n_ranks = ranks.shape[1]
    cut_sizes = n_runs * n_ranks
    held = [moved(each, device) for each in (starts, sizes, np.cumsum(cut_sizes) - cut_sizes, ranks)]
    found = torch.empty((len(sizes), n_some, n_ranks), dtype=torch.float32, device=device)
    cuts = torch.empty(n_some * int(cut_sizes.sum()) if average else 0, dtype=torch.int32, device=device)
    work = Large(
        columns.values.data_ptr(),
        columns.stride,
        *(each.data_ptr() for each in held[:3]),
        int(cut_sizes.sum()),
        len(sizes),
        n_some,
        n_ranks,
    )
    threads = min(32, 1 << int(n_runs.max() - 1).bit_length())
    if blocks := -(-found.numel() * threads // BLOCK):
        place = cuts.data_ptr() if average else None
        _kernel(device, "cuts")(blocks, BLOCK, work, held[3].data_ptr(), threads, found.data_ptr(), place)
    sets = moved(piece.large.astype(np.int32), device)
    return _Cut(work, held, sets, found, cuts, share, len(sizes), threads)


def embed(
    columns: Columns, known: Int64, piece: Piece, rule: Any, out: Tensor, residual: Tensor | None, n_slices: int
) -> None:
    """Write the vectors of the large sets of a piece into `out`, along the slices that were projected.

    residual : (sets of the piece,) gets their part of the mean over all `n_slices` of the squared residuals.
    """
    device, n_some, M = columns.values.device, len(columns.directions), rule.n_quantiles
    cut = _cut(columns, _run_places(known, piece, device), known, piece, M, rule.average)
    if not rule.average:
        both = cut.found.view(cut.n_sets, n_some, M, 2)
        values = torch.lerp(both[..., 0], both[..., 1], moved(cut.share, device)[:, None])
        if rule.reference is not None:
            values = values - rule.reference
        out[cut.sets.long(), : n_some * M] = (values * rule.scale).flatten(1)
        return
    squares = None
    if residual is not None:
        squares = torch.empty((cut.n_sets, n_some * M), dtype=torch.float64, device=device)
    _kernel(device, "bins")(
        -(-cut.n_sets * n_some * M * 32 // BLOCK),
        BLOCK,
        cut.work,
        cut.found.data_ptr(),
        cut.cuts.data_ptr(),
        M,
        cut.sets.data_ptr(),
        None if rule.reference is None else rule.reference.data_ptr(),
        rule.scale,
        out.data_ptr(),
        out.stride(0),
        None if squares is None else squares.data_ptr(),
    )
    if residual is not None and squares is not None:
        residual[cut.sets.long()] += squares.sum(1) / n_slices


def value_gradient(columns: Columns, known: Int64, piece: Piece, rule: Any, out: Tensor) -> None:
    """Write the gradient of the values of the large sets of a piece into `out`, which is like `columns.values`.

    `rule.reference` is that of the vectors of all sets of the piece, (n, L * M). Elements of equal value share what all
    of them get.
    """
    device, n_some = columns.values.device, len(columns.directions)
    runs, before = _run_places(known, piece, device), columns.values.clone()
    cut = _cut(columns, runs, known, piece, rule.n_quantiles, rule.average, in_order=True)
    counts = torch.empty((*cut.found.shape, 2), dtype=torch.int32, device=device)
    if blocks := -(-cut.found.numel() * cut.threads // BLOCK):
        _kernel(device, "around")(blocks, BLOCK, cut.work, cut.found.data_ptr(), cut.threads, counts.data_ptr())
    of_runs = Runs(before.data_ptr(), *(each.data_ptr() for each in runs), len(runs.starts))
    _kernel(device, "spread", rule.average)(
        len(runs.starts) * n_some,
        BLOCK,
        cut.work,
        of_runs,
        cut.found.data_ptr(),
        counts.data_ptr(),
        rule.reference.data_ptr(),
        rule.reference.stride(0),
        cut.sets.data_ptr(),
        rule.scale,
        rule.n_quantiles,
        out.data_ptr(),
    )


class _RunPlaces(NamedTuple):
    """Runs of up to MAX_SMALL values of the large sets of a piece: where they begin, and which set each is of."""

    starts: Tensor
    sizes: Tensor
    sets: Tensor


def _run_places(known: Int64, piece: Piece, device: torch.device) -> _RunPlaces:
    starts = known[piece.first : piece.last][piece.large] - piece.start
    sizes = np.diff(known[piece.first : piece.last + 1])[piece.large]
    n_runs = -(-sizes // MAX_SMALL)
    in_set = np.arange(n_runs.sum()) - np.repeat(np.cumsum(n_runs) - n_runs, n_runs)
    run_starts = np.repeat(starts, n_runs) + in_set * MAX_SMALL
    left = np.minimum(np.repeat(sizes, n_runs) - in_set * MAX_SMALL, MAX_SMALL)
    which = np.repeat(np.arange(len(sizes)), n_runs)
    return _RunPlaces(*(moved(each, device) for each in (run_starts, left.astype(np.int32), which.astype(np.int32))))


def _ranks(sizes: Int64, n_quantiles: int, average: bool) -> tuple[Int64, Array]:
    """Return which ranks of each set are asked for, (sets, ranks), and for the linear rule where between two it is."""
    if average:
        return np.arange(1, n_quantiles)[None] * sizes[:, None] // n_quantiles, np.empty(0)
    where = np.maximum(np.arange(1, n_quantiles + 1)[None] * sizes[:, None] - n_quantiles, 0)
    low = where // n_quantiles
    both = np.stack([low, np.minimum(low + 1, sizes[:, None] - 1)], axis=2)
    return both.reshape(len(sizes), -1), (where % n_quantiles / n_quantiles).astype(np.float32)
