"""The operators of slosh.torch as torch knows them: shapes, autograd, and which backend runs where.

`slosh::sliced_embedding` takes ragged points, offsets, unit directions and a reference to vectors (n, L * M), and
`slosh::sliced_transport` takes two batches to squared distances (n,). To torch.compile they are opaque, so
what happens inside may look at the data: checks, and memory that depends on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gpu import plain
from ..gpu.plain import Side
from ..gpu.precision import full_precision
from . import native, on_gpu
from .batches import check_batch, check_directions, check_values


def _backend(points: Tensor) -> Any:
    """Return the module that runs a batch: all have the same functions."""
    if points.dtype != torch.float32:
        return plain
    if points.device.type == "cuda" and torch.version.cuda is not None:
        return on_gpu
    return native if points.device.type == "cpu" else plain


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
        check_directions(directions, reference)
    with full_precision(points.device):
        vectors: Tensor = _backend(points).embed(points, offsets, weights, directions, reference, average, scale)
    return vectors


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
    with full_precision(points.device):
        found = _backend(points).embed_backward(
            grad.contiguous(), points, offsets, weights, directions, n_quantiles, average, scale, wanted
        )
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
        points.new_empty(points.shape if want_points else 0),
        points.new_empty(weights.shape if want_weights and weights is not None else 0),
        directions.new_empty(directions.shape if want_directions else 0),
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


@torch.library.custom_op("slosh::sliced_transport", mutates_args=())
def sliced_transport(
    x: Tensor,
    x_offsets: Tensor,
    x_weights: Tensor | None,
    y: Tensor,
    y_offsets: Tensor,
    y_weights: Tensor | None,
    directions: Tensor,
    check: bool,
) -> Tensor:
    """Return the mean over the slices of the squared distance by transport, of set i of x and set i of y, (n,)."""
    a, b = Side(x, x_offsets, x_weights), Side(y, y_offsets, y_weights)
    if check:
        check_batch(*a, "x")
        check_batch(*b, "y")
        check_directions(directions)
    with full_precision(x.device):
        squares: Tensor = _backend(x).transport(a, b, directions)
    return squares


@sliced_transport.register_fake
def _(
    x: Tensor,
    x_offsets: Tensor,
    x_weights: Tensor | None,
    y: Tensor,
    y_offsets: Tensor,
    y_weights: Tensor | None,
    directions: Tensor,
    check: bool,
) -> Tensor:
    return x.new_empty((x_offsets.shape[0] - 1,))


@torch.library.custom_op("slosh::sliced_transport_backward", mutates_args=())
def sliced_transport_backward(
    grad: Tensor,
    x: Tensor,
    x_offsets: Tensor,
    x_weights: Tensor | None,
    y: Tensor,
    y_offsets: Tensor,
    y_weights: Tensor | None,
    directions: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, its weights, y, its weights, and the directions; the others are empty."""
    a, b = Side(x, x_offsets, x_weights), Side(y, y_offsets, y_weights)
    with full_precision(x.device):
        first, second = _backend(x).transport_backward(grad, a, b, directions, tuple(wanted))
    return first.points, first.weights, second.points, second.weights, first.directions


@sliced_transport_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    x_offsets: Tensor,
    x_weights: Tensor | None,
    y: Tensor,
    y_offsets: Tensor,
    y_weights: Tensor | None,
    directions: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    a, b, c, d, e = (
        x.new_empty(0 if each is None or not want else each.shape)
        for each, want in zip((x, x_weights, y, y_weights, directions), wanted, strict=True)
    )
    return a, b, c, d, e


def _keep_pair(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _differentiate_pair(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    needs = ctx.needs_input_grad
    wanted = [needs[k] and saved[k] is not None for k in (0, 2, 3, 5, 6)]
    found = sliced_transport_backward(grad, *saved, wanted)
    x, x_weights, y, y_weights, directions = (g if want else None for g, want in zip(found, wanted, strict=True))
    return x, None, x_weights, y, None, y_weights, directions, None


sliced_transport.register_autograd(_differentiate_pair, setup_context=_keep_pair)
