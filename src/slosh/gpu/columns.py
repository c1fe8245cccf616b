"""The embedding of ragged sets on a GPU, and the gradient of their values: torch tensors of one device in and out.

Sets of up to `MAX_SMALL` elements are sorted in the registers of the threads of a warp (`kernels/sort.cu`), by a
kernel for each size class; larger ones go to `large.py`. What is computed of a set depends on nothing else, so that its
vector has the same bits in any batch.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ..native.arrays import Int64
from . import large, plain
from .networks import networks
from .nvrtc import Kernel, Request, kernels
from .pieces import Piece, pieces
from .projection import project
from .sources import FLOAT, INT, LONG, POINTER, define, source, width

FUSED_DIM = 4
"""Up to so many features, values are computed where they are sorted; with more they are projected before."""
LAUNCHED_WARPS = 1 << 25
"""Warps of one launch at most: their threads are counted in 32 bits."""
BLOCK, WEIGHTED_BLOCK = 128, 64
"""Threads of a block, and of one for sets with weights, which take more shared memory."""


class Work(ctypes.Structure):
    """The structure of the same name in sort.cu."""

    _fields_ = [
        ("points", POINTER),
        ("offsets", POINTER),
        ("sets", POINTER),
        ("weights", POINTER),
        ("directions", POINTER),
        ("stride", LONG),
        ("n_sets", INT),
        ("n_slices", INT),
        ("plus", INT),
        ("minus", INT),
    ]


class Batch(NamedTuple):
    """Ragged sets on a device: points (P, d) float32, offsets (n + 1,), weights (P,), and the offsets on the host."""

    points: Tensor
    offsets: Tensor
    weights: Tensor | None
    known: Int64

    @classmethod
    def of(cls, points: Tensor, offsets: Tensor, weights: Tensor | None, known: Int64 | None = None) -> Batch:
        """Return a batch; unless its offsets are `known` on the host, they are fetched, which waits for the device."""
        return cls(points, offsets, weights, offsets.cpu().numpy() if known is None else known)


class Rule(NamedTuple):
    """How sorted values become numbers: (quantiles - reference) * scale, `n_quantiles` a slice.

    tf32 : values may be products of factors that are rounded to TF32, where a product makes them.
    """

    n_quantiles: int
    average: bool
    scale: float
    reference: Tensor | None = None
    tf32: bool = False

    def of_slices(self, first: int, last: int) -> Rule:
        """Return the rule for some of the slices."""
        return self if self.reference is None else self._replace(reference=self.reference[first:last])


def _request(keys: int, lanes: int, dim: int, rule: Rule, residual: bool, backward: bool, weighted: bool) -> Request:
    """Ask for the kernel for sets of up to keys * lanes elements; dim 0: the values were projected before."""
    flags = {"KEYS": keys, "LANES": lanes, "DIM": dim, "WEIGHTED": weighted, "AVERAGE": rule.average}
    flags |= {"RESIDUAL": residual, "BACKWARD": backward}
    name = "weighted" if weighted else "columns"
    warps = (WEIGHTED_BLOCK if weighted else BLOCK) // 32
    shared = warps * (32 // lanes) * width(keys, lanes) * 4
    return Request(
        (name, *flags.values()),
        lambda: define(WARPS=warps, **flags) + networks(keys) + source("sort.cu") + source(f"{name}.cu"),
        name,
        (Work, POINTER, FLOAT, INT, POINTER, LONG, POINTER),
        warps * 32 * 8 + 2 * shared if weighted else shared,
    )


def embed(batch: Batch, directions: Tensor, rule: Rule, out: Tensor, residual: Tensor | None = None) -> None:
    """Write the vectors of the sets into `out` (n, L * M) float32, slice after slice; its rows may be longer.

    directions : (L, d) float32.
    residual : (n,) float64, gets the mean over the slices of the integral of (Q - its bin means)^2; average rule only.
    """
    if len(batch.known) < 2:
        return
    # Kernels read rows one after the other; drawn directions may lie column after column.
    directions = directions.contiguous()
    if rule.reference is not None:
        rule = rule._replace(reference=rule.reference.contiguous())
    with torch.cuda.device(batch.points.device):
        for piece in pieces(batch.known, len(directions), batch.points.device):
            part = None if residual is None else residual[piece.first : piece.last]
            _embed_piece(batch, piece, directions, rule, out[piece.first : piece.last], part)


def _embed_piece(
    batch: Batch, piece: Piece, directions: Tensor, rule: Rule, out: Tensor, residual: Tensor | None
) -> None:
    """Embed the sets of a piece, some slices at a time where they are too many."""
    n_slices, n = len(directions), piece.last - piece.first
    turns = large.turns(piece.stop - piece.start, n_slices)
    all_heavy = batch.weights is not None and not piece.classes
    if residual is not None:
        residual.zero_()
    for first in range(0, 0 if all_heavy else n_slices, turns):
        some, own = directions[first : first + turns], rule.of_slices(first, first + turns)
        target = out[:, first * rule.n_quantiles :]
        values = Values.of(batch, piece, some, rule.tf32)
        squares = None if residual is None else torch.zeros((n, len(some)), dtype=torch.float32, device=out.device)
        _launch_classes(values, piece, own, target.data_ptr(), out.stride(0), squares, False)
        if residual is not None and squares is not None:
            residual += squares.sum(1, dtype=torch.float64) / n_slices
        if len(piece.large) and batch.weights is None:
            held = large.Columns(values.points, values.stride, some)
            large.embed(held, batch.known, piece, own, target, residual, n_slices)
    if len(piece.large) and batch.weights is not None:
        for number in piece.large.tolist():
            _embed_heavy(batch, piece.first + number, directions, rule, out[number], residual, number)


def _embed_heavy(
    batch: Batch, number: int, directions: Tensor, rule: Rule, row: Tensor, residual: Tensor | None, place: int
) -> None:
    """Embed a large set with weights by torch operations."""
    start, stop = int(batch.known[number]), int(batch.known[number + 1])
    assert batch.weights is not None
    reference = rule.reference
    if reference is None:
        reference = directions.new_zeros((len(directions), rule.n_quantiles))
    square = None if residual is None else residual[place : place + 1]
    points, weights = batch.points[start:stop], batch.weights[start:stop]
    offsets = batch.offsets.new_tensor([0, stop - start])
    length = len(directions) * rule.n_quantiles
    row[:length] = plain.embed(points, offsets, weights, directions, reference, rule.average, rule.scale, square)[0]


def value_gradient(batch: Batch, piece: Piece, directions: Tensor, rule: Rule, grad: Tensor) -> Tensor:
    """Return the gradient of the values of a piece, (L, its elements), given that of the vectors of its sets.

    grad : (n, L * M). Elements of equal value share what all of them get. Weights are not looked at.
    """
    device, n_points = batch.points.device, piece.stop - piece.start
    directions, grad = directions.contiguous(), grad.contiguous()
    with torch.cuda.device(device):
        values = Values.of(batch._replace(weights=None), piece, directions, rule.tf32)
        stride = values.stride or _padded(n_points)
        out = torch.empty((len(directions), stride), dtype=torch.float32, device=device)
        # Where points are read, elements are counted from the first of the batch, and else from that of the piece.
        place = out.data_ptr() - (4 * piece.start if values.dim else 0)
        rule = rule._replace(reference=grad)
        _launch_classes(values._replace(stride=stride), piece, rule, place, grad.stride(0), None, True)
        if len(piece.large):
            large.value_gradient(large.Columns(values.points, stride, directions), batch.known, piece, rule, out)
    return out[:, :n_points]


class Values(NamedTuple):
    """Where the values of a piece come from: points that are projected where they are sorted, or projected ones."""

    points: Tensor
    """(P, d), or (L, stride) where dim is 0."""
    offsets: Tensor
    directions: Tensor
    weights: int | None
    """Where the weights are in memory."""
    dim: int
    stride: int

    @classmethod
    def of(cls, batch: Batch, piece: Piece, directions: Tensor, tf32: bool) -> Values:
        """Return the values of a piece along some directions."""
        points, dim, n_slices = batch.points, batch.points.shape[1], len(directions)
        offsets = batch.offsets[piece.first : piece.last + 1]
        weights = None if batch.weights is None else batch.weights.data_ptr()
        if dim <= FUSED_DIM and not len(piece.large):
            return cls(points, offsets, directions, weights, dim, 0)
        stride = _padded(piece.stop - piece.start)
        values = torch.empty((n_slices, stride), dtype=torch.float32, device=points.device)
        project(points[piece.start : piece.stop], directions, values, tf32)
        weights = None if weights is None else weights + 4 * piece.start
        return cls(values, offsets - piece.start, directions, weights, 0, stride)


def _padded(n: int) -> int:
    """Return the length of a row of n values whose end is aligned to 16 bytes."""
    return (n + 3) // 4 * 4


def _launch_classes(
    values: Values, piece: Piece, rule: Rule, out: int, out_stride: int, squares: Tensor | None, backward: bool
) -> None:
    """Launch the kernels of all size classes of a piece; `out` is an address."""
    weighted = values.weights is not None
    wanted = [
        _request(each.keys, each.lanes, values.dim, rule, squares is not None, backward, weighted)
        for each in piece.classes
    ]
    for each, run in zip(piece.classes, kernels(values.points.device, wanted), strict=True):
        warps = -(-len(values.directions) // (32 // each.lanes))
        at_once = max(1, LAUNCHED_WARPS // warps)
        for begin in range(each.begin, each.end, at_once):
            sets = piece.order[begin : min(begin + at_once, each.end)]
            _launch(run, values, sets, warps, rule, out, out_stride, squares)


def _launch(
    run: Kernel, values: Values, sets: Tensor, warps: int, rule: Rule, out: int, out_stride: int, squares: Tensor | None
) -> None:
    """Launch a kernel over sets; `warps` are those of a set."""
    work = Work(
        values.points.data_ptr(),
        values.offsets.data_ptr(),
        sets.data_ptr(),
        values.weights,
        values.directions.data_ptr(),
        values.stride,
        len(sets),
        len(values.directions),
        1,
        -1,
    )
    reference = None if rule.reference is None else rule.reference.data_ptr()
    residual = None if squares is None else squares.data_ptr()
    block = BLOCK if values.weights is None else WEIGHTED_BLOCK
    blocks = -(-len(sets) * warps * 32 // block)
    run(blocks, block, work, reference, rule.scale, rule.n_quantiles, out, out_stride, residual)
