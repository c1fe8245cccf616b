"""Quantiles of sliced sets, and their gradients, on the native kernel: float32 on the CPU.

Tensors come in and go out; the kernel works on their memory. It uses as many threads as torch does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..native import kernel
from ..native.arrays import Array, Quantiles, Ragged
from .plain import Gradients, empty_gradients


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
    out = torch.empty((len(offsets) - 1, reference.numel()))
    rule = Quantiles(_array(directions), _array(reference), *reference.shape, average, scale)
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
    outputs = (each.numpy() if want else None for each, want in zip(found, wanted, strict=True))
    if len(offsets) > 1:
        sets = _sets(points, offsets, weights)
        kernel.embed_gradient(sets, rule, _array(grad), *outputs, threads=torch.get_num_threads())
    return found


def _array(x: Tensor) -> Array:
    array: Array = x.detach().contiguous().numpy()
    return array


def _sets(points: Tensor, offsets: Tensor, weights: Tensor | None) -> Ragged:
    return Ragged(_array(points), _array(offsets), None if weights is None else _array(weights))
