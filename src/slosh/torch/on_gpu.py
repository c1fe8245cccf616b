"""Embeddings of sets, and their gradients, on the kernels of slosh.gpu: float32 on a GPU.

What these do not do (the gradients of sets with weights; distances of pairs) torch operations do. Sizes are read on
the host, so each call waits for the device; while a CUDA graph is captured, which cannot wait, all runs on torch
operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..gpu import columns, factors, large, plain
from ..gpu.pieces import pieces
from ..gpu.plain import Gradients, empty_gradients, transport, transport_backward

__all__ = ["embed", "embed_backward", "transport", "transport_backward"]


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
    if torch.cuda.is_current_stream_capturing():
        return plain.embed(points, offsets, weights, directions, reference, average, scale)
    out = points.new_empty((len(offsets) - 1, reference.numel()))
    batch = columns.Batch.of(points, offsets, weights)
    columns.embed(
        batch, directions.contiguous(), columns.Rule(reference.shape[1], average, scale, reference.contiguous()), out
    )
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
    if weights is not None or torch.cuda.is_current_stream_capturing():
        return plain.embed_backward(grad, points, offsets, weights, directions, n_quantiles, average, scale, wanted)
    found = empty_gradients(points, weights, directions, wanted)
    batch, directions = columns.Batch.of(points, offsets, None), directions.contiguous()
    rule = columns.Rule(n_quantiles, average, scale)
    for piece in pieces(batch.known, len(directions), points.device):
        elements = slice(piece.start, piece.stop)
        turns = large.turns(piece.stop - piece.start, len(directions))
        for first in range(0, len(directions), turns):
            some = slice(first, first + turns)
            upstream = grad[piece.first : piece.last, first * n_quantiles : (first + turns) * n_quantiles]
            of_values = columns.value_gradient(batch, piece, directions[some], rule, upstream)
            of_points = found.points[elements] if wanted[0] else None
            of_directions = found.directions[some] if wanted[2] else None
            with torch.cuda.device(points.device):
                factors.add_gradients(of_values, points[elements], directions[some], of_points, of_directions)
    return found
