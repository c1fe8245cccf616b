"""Embeddings of sets, and their gradients, on the kernels of slosh.gpu: float32 on a GPU.

What these do not do (the gradient of weights, and of sets of more than 2,048 elements; distances of pairs) torch
operations do. Sizes are read on the host, so each call waits for the device; while a CUDA graph is captured, which
cannot wait, all runs on torch operations.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..gpu import columns, plain
from ..gpu.pieces import moved, pieces
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
        upstream = grad[piece.first : piece.last]
        if len(piece.large) < piece.last - piece.first:
            of_values = columns.value_gradient(batch, piece, directions, rule, upstream)
            if wanted[0]:
                found.points[piece.start : piece.stop] = of_values.T @ directions
            if wanted[2]:
                found.directions.add_(of_values @ points[piece.start : piece.stop])
        if not len(piece.large):
            continue
        # Large sets, whose values got a gradient of zero, by themselves.
        bounds = [(int(batch.known[i]), int(batch.known[i + 1])) for i in (piece.first + piece.large).tolist()]
        sizes = [stop - start for start, stop in bounds]
        part = plain.embed_backward(
            upstream[moved(piece.large, points.device)],
            torch.cat([points[start:stop] for start, stop in bounds]),
            moved(np.cumsum([0, *sizes]), points.device),
            None,
            directions,
            n_quantiles,
            average,
            scale,
            wanted,
        )
        if wanted[0]:
            for (start, stop), each in zip(bounds, torch.split(part.points, sizes), strict=True):
                found.points[start:stop] = each
        if wanted[2]:
            found.directions.add_(part.directions)
    return found
