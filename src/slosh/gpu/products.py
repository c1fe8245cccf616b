"""Matrix products on a device, with the accuracy of their type: the map of whitened embeddings.

Vectors come in as arrays of NumPy, and so they go out. What is precious is computed in float64, as on the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..native.arrays import Float32, Float64
from .devices import in_smaller_batches

BATCH_NUMBERS = 1 << 25
"""Numbers of vectors that are mapped at once: 256 MB in float64, and some times as much while they are."""

_lock = threading.Lock()
_inside = 0
_before: Any = None


@contextmanager
def full_products(device: str) -> Iterator[None]:
    """Compute products of float32 in float32 within the block, whatever TF32 and autocast are set to; no gradients.

    The settings of TF32 are those of the process: those of others are put back when the last thread leaves.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = _set_precision("ieee")
        _inside += 1
    try:
        with torch.inference_mode(), torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set_precision(_before)


def _set_precision(value: Any) -> Any:
    """Set how products of float32 are computed on GPUs; return how they were."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # torch 2.9 and later
        before: Any = matmul.fp32_precision
        matmul.fp32_precision = value
    else:
        before = matmul.allow_tf32
        matmul.allow_tf32 = value is True
    return before


class DeviceMap:
    """The map of a whitened embedding on a device: `slosh.embed.whitening.LinearMap` says what it computes.

    Products are those of float64. A number of a vector may differ from that of the CPU, and with the other vectors of
    its batch, by about 1e-13 of the vector's norm before it is rounded to float32.
    """

    def __init__(
        self,
        mean: Float64,
        directions: Float32,
        scales: Float64,
        rest_scale: float,
        shortest: float | None,
        device: str,
    ) -> None:
        self._device, self._rest_scale, self._shortest = device, rest_scale, shortest
        self._mean, self._scales = self._there(mean), self._there(scales)
        self._directions = self._there(directions).double()
        self._most = max(1, BATCH_NUMBERS // max(1, len(mean)))

    def _there(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def apply(self, vectors: Float32, out: Float32, n_jobs: int | None = None) -> None:
        """Write the mapped vectors into `out`; threads make no difference."""

        def run(first: int, last: int) -> None:
            out[first:last] = self._mapped(self._there(vectors[first:last]).double()).float().cpu().numpy()

        with full_products(self._device):
            self._most = in_smaller_batches(run, len(vectors), self._most, self._device, "one vector")

    def _mapped(self, vectors: Tensor) -> Tensor:
        vectors -= self._mean
        along = vectors @ self._directions.T
        if self._rest_scale:
            along *= self._scales - self._rest_scale
            mapped = vectors.mul_(self._rest_scale).addmm_(along, self._directions)
        else:
            mapped = along * self._scales
        if self._shortest is not None:
            mapped /= torch.linalg.vector_norm(mapped, dim=1, keepdim=True).clamp_(min=self._shortest)
        return mapped
