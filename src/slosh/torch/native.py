"""Embeddings and distances of sets, and their gradients, on the native kernel: float32 on the CPU.

Tensors come in and go out; the kernel works on their memory. It uses as many threads as torch does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.batching import batches_by_points
from ..gpu.plain import Gradients, Side, empty_gradients
from ..native import kernel
from ..native.arrays import Array, Quantiles, Ragged

SORTED_NUMBERS = 1 << 23
"""Sorted values, elements times slices, of one batch of pairs: bounds the memory of `transport`."""


def embed(
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    reference: Tensor,
    average: bool,
    scale: float,
) -> Tensor:
    """Return (quantiles - reference) * scale of every set along every direction, (n, L * M), slice after slice."""
    out = torch.empty((len(offsets) - 1, reference.numel()), dtype=torch.float32, device="cpu")
    n_slices, n_quantiles = reference.shape
    rule = Quantiles(_array(directions), _array(reference), n_slices, n_quantiles, average, scale)
    if len(out):
        kernel.embed(_sets(points, offsets, weights), rule, out.numpy(), None, torch.get_num_threads())
    return out


def embed_backward(
    grad: Tensor,
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    n_quantiles: int,
    average: bool,
    scale: float,
    wanted: tuple[bool, bool, bool],
) -> Gradients:
    """Return the gradients of points, weights and directions, given that of `embed`; `wanted` says which."""
    found = empty_gradients(points, weights, directions, wanted)
    rule = Quantiles(_array(directions), None, len(directions), n_quantiles, average, scale)
    of_points, of_weights, of_directions = (
        each.numpy() if want else None for each, want in zip(found, wanted, strict=True)
    )
    if len(offsets) > 1:
        sets = _sets(points, offsets, weights)
        threads = torch.get_num_threads()
        kernel.embed_gradient(sets, rule, _array(grad), of_points, of_weights, of_directions, threads)
    return found


def transport(x: Side, y: Side, directions: Tensor) -> Tensor:
    """Return the mean over the slices of the integral of (Q_x - Q_y)^2, set by set, (n,)."""
    a, b = _sets(*x), _sets(*y)
    squares = np.empty(len(a.offsets) - 1)
    theta, threads = _array(directions), torch.get_num_threads()
    for some in batches_by_points(np.diff(a.offsets) + np.diff(b.offsets), max(1, SORTED_NUMBERS // len(theta))):
        first, second = (kernel.sort(_part(side, some), theta, len(theta), threads) for side in (a, b))
        pairs = np.arange(some.stop - some.start).repeat(2).reshape(-1, 2)
        squares[some] = kernel.transport(first, second, pairs, threads)
    return torch.from_numpy(squares.astype(np.float32))


def _part(sets: Ragged, some: slice) -> Ragged:
    """Return some of the sets."""
    first, last = sets.offsets[some.start], sets.offsets[some.stop]
    weights = None if sets.weights is None else sets.weights[first:last]
    return Ragged(sets.points[first:last], sets.offsets[some.start : some.stop + 1] - first, weights)


def transport_backward(
    grad: Tensor, x: Side, y: Side, directions: Tensor, wanted: tuple[bool, bool, bool, bool, bool]
) -> tuple[Gradients, Gradients]:
    """Return the gradients of both sides, given that of `transport`; that of the directions is in the first.

    wanted : whether those of x, its weights, y, its weights, and the directions are.
    """
    of_x = empty_gradients(x.points, x.weights, directions, (wanted[0], wanted[1], wanted[4]))
    of_y = empty_gradients(y.points, y.weights, directions, (wanted[2], wanted[3], False))
    outputs = (of_x.points, of_x.weights, of_y.points, of_y.weights, of_x.directions)
    a, wa, b, wb, theta = (each.numpy() if want else None for each, want in zip(outputs, wanted, strict=True))
    if len(grad):
        upstream = _array(grad.double())
        threads = torch.get_num_threads()
        kernel.transport_gradient(_sets(*x), _sets(*y), _array(directions), upstream, (a, wa), (b, wb), theta, threads)
    return of_x, of_y


def _array(x: Tensor) -> Array:
    array: Array = x.detach().contiguous().numpy()
    return array


def _sets(points: Tensor, offsets: Tensor, weights: Tensor | None) -> Ragged:
    return Ragged(_array(points), _array(offsets), None if weights is None else _array(weights))
