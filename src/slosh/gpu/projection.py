"""The values of points along slices on a GPU: a product in tiles, on plain units or on tensor cores.

Tensor cores multiply numbers of TF32, which keep eleven bits. Each float32 is the sum of two of them but for its last
bits, and three products of such parts are as accurate as one of float32. With factors that are rounded to TF32 one
product is enough.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .nvrtc import Request, kernels
from .sources import INT, LONG, POINTER, define, source

POINTS, SLICES, THREADS = 128, 64, 128
"""Of a tile of both kernels, and the threads of its block."""
TENSOR_DIM = 64
"""From so many features on, three products on tensor cores take less time than one on plain units."""
TENSOR_CAPABILITY = (8, 0)
"""GPUs that multiply numbers of TF32."""

How = Literal["plain", "tensor", "tf32"]


def project(points: Tensor, directions: Tensor, values: Tensor, tf32: bool = False) -> None:
    """Write <directions[slice], points[point]> into `values` (L, P or more), a value with the same bits in any batch.

    points, directions : (P, d) and (L, d) float32, row after row, on the current device. A row of `values` must begin
        at a multiple of 16 bytes.
    tf32 : factors may be rounded to TF32. GPUs without tensor cores for it compute in full.
    """
    can = torch.cuda.get_device_capability(points.device) >= TENSOR_CAPABILITY
    how: How = "plain"
    if can and (tf32 or points.shape[1] >= TENSOR_DIM):
        how = "tf32" if tf32 else "tensor"
    project_by(how, points, directions, values)


def project_by(how: How, points: Tensor, directions: Tensor, values: Tensor) -> None:
    """Do so by multiply-adds ("plain"), by three products of TF32 ("tensor"), or by one ("tf32")."""
    (n_points, dim), n_slices = points.shape, len(directions)
    places = points.data_ptr(), directions.data_ptr()
    wide = dim % 4 == 0 and not any(place % 16 for place in places)
    types = (POINTER, LONG, INT, POINTER, INT, POINTER, LONG)
    flags = {"PRODUCTS": 3 if how == "tensor" else 1, "WIDE": wide}
    if how == "plain":
        request = Request("project", lambda: source("project.cu"), "project", types)
    else:
        key = ("project_tensor", *flags.values())
        request = Request(key, lambda: define(**flags) + source("project_tensor.cu"), "project", types)
    (run,) = kernels(points.device, [request])
    blocks = -(-n_points // POINTS), -(-n_slices // SLICES)
    run(blocks, THREADS, places[0], n_points, dim, places[1], n_slices, values.data_ptr(), values.stride(0))
