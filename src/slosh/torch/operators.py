"""The operators `slosh::sliced_embedding` and its gradient, as torch knows them: shapes, autograd, one kernel a device.

Ragged points, offsets, unit directions and a reference come in, vectors (n, L * M) go out. To torch.compile they are opaque, so
what happens inside may look at the data: checks, and memory that depends on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import native, plain
from .batches import check_values


@torch.library.custom_op("slosh::sliced_embedding", mutates_args=())
def sliced_embedding(
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    reference: Tensor,
    average: bool,
    scale: float,
    check: bool,
) -> Tensor:
    """Return (quantiles - reference) * scale of every set along every direction, (n, L * M), slice after slice."""
    if check:
        check_values(points, offsets, weights)
    with torch.autocast(points.device.type, enabled=False):
        return plain.embed(points, offsets, weights, directions, reference, average, scale)


@sliced_embedding.register_kernel("cpu")
def _(
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    reference: Tensor,
    average: bool,
    scale: float,
    check: bool,
) -> Tensor:
    if check:
        check_values(points, offsets, weights)
    if points.dtype != torch.float32:
        return plain.embed(points, offsets, weights, directions, reference, average, scale)
    return native.embed(points, offsets, weights, directions, reference, average, scale)


@sliced_embedding.register_fake
def _(
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    reference: Tensor,
    average: bool,
    scale: float,
    check: bool,
) -> Tensor:
    return points.new_empty((offsets.shape[0] - 1, reference.numel()))


@torch.library.custom_op("slosh::sliced_embedding_backward", mutates_args=())
def sliced_embedding_backward(
    grad: Tensor,
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    n_quantiles: int,
    average: bool,
    scale: float,
    want_points: bool,
    want_weights: bool,
    want_directions: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of points, weights and directions; those that are not wanted are empty."""
    wanted = want_points, want_weights, want_directions
    with torch.autocast(points.device.type, enabled=False):
        found = plain.embed_backward(
            grad.contiguous(), points, offsets, weights, directions, n_quantiles, average, scale, wanted
        )
    return found.points, found.weights, found.directions


@sliced_embedding_backward.register_kernel("cpu")
def _(
    grad: Tensor,
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    n_quantiles: int,
    average: bool,
    scale: float,
    want_points: bool,
    want_weights: bool,
    want_directions: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    wanted = want_points, want_weights, want_directions
    backward = native.embed_backward if points.dtype == torch.float32 else plain.embed_backward
    found = backward(grad.contiguous(), points, offsets, weights, directions, n_quantiles, average, scale, wanted)
    return found.points, found.weights, found.directions


@sliced_embedding_backward.register_fake
def _(
    grad: Tensor,
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    n_quantiles: int,
    average: bool,
    scale: float,
    want_points: bool,
    want_weights: bool,
    want_directions: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(points) if want_points else points.new_empty(0),
        torch.empty_like(weights) if want_weights and weights is not None else points.new_empty(0),
        torch.empty_like(directions) if want_directions else directions.new_empty(0),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    points, offsets, weights, directions, reference, ctx.average, ctx.scale, _ = inputs
    ctx.n_quantiles = reference.shape[1]
    ctx.save_for_backward(points, offsets, weights, directions)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    points, offsets, weights, directions = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    of_reference = -ctx.scale * grad.sum(0).view(-1, ctx.n_quantiles) if wanted[4] else None
    wanted = wanted[0], weights is not None and wanted[2], wanted[3]
    if not any(wanted):
        return None, None, None, None, of_reference, None, None, None
    found = sliced_embedding_backward(
        grad, points, offsets, weights, directions, ctx.n_quantiles, ctx.average, ctx.scale, *wanted
    )
    of_points, of_weights, of_directions = (g if want else None for g, want in zip(found, wanted, strict=True))
    return of_points, None, of_weights, of_directions, of_reference, None, None, None


sliced_embedding.register_autograd(_differentiate, setup_context=_keep)
