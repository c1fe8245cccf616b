"""The gradients of points and slices on a GPU, given that of the values of the points along the slices.

Of few features a kernel reads the gradient of the values once for both (`kernels/factors.cu`), and memory bounds it;
of more, two products of matrices compute them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .nvrtc import Request, kernels
from .sources import INT, LONG, POINTER, define, source

FEW = 4
"""Features that the kernel takes."""
THREADS, RUNS = 128, 2
"""Threads of a block, and how many runs of four points each has."""


def add_gradients(
    of_values: Tensor, points: Tensor, directions: Tensor, of_points: Tensor | None, of_directions: Tensor | None
) -> None:
    """Add the gradients of points (P, d) and directions (L, d), of those that are given, all float32.

    of_values : (L, P), each row of which begins at a multiple of 16 bytes.
    """
    if points.shape[1] > FEW:
        if of_points is not None:
            of_points.addmm_(of_values.T, directions)
        if of_directions is not None:
            of_directions.addmm_(of_values, points)
        return
    (n_points, dim), n_slices = points.shape, len(directions)
    if not n_points:
        return
    flags = {"DIM": dim, "OF_POINTS": of_points is not None, "OF_DIRECTIONS": of_directions is not None}
    flags |= {"THREADS": THREADS, "RUNS": RUNS}
    types = (POINTER, LONG, POINTER, LONG, POINTER, INT, POINTER, POINTER)
    request = Request(("factors", *flags.values()), lambda: define(**flags) + source("factors.cu"), "factors", types)
    (run,) = kernels(points.device, [request])
    blocks = -(-n_points // (THREADS * 4 * RUNS))
    parts = None
    if of_directions is not None:
        parts = torch.empty((blocks, n_slices, dim), dtype=torch.float32, device=points.device)
    run(
        blocks,
        THREADS,
        of_values.data_ptr(),
        of_values.stride(0),
        points.data_ptr(),
        n_points,
        directions.data_ptr(),
        n_slices,
        None if of_points is None else of_points.data_ptr(),
        None if parts is None else parts.data_ptr(),
    )
    if of_directions is not None and parts is not None:
        of_directions += parts.sum(0, dtype=torch.float64)
