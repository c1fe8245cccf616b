"""Matrix products on a device, with the accuracy of their type: the map of whitened embeddings.

Vectors come in as arrays of NumPy, and so they go out. What is precious is computed in float64, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..native.arrays import Float32, Float64
from .columns import Batch
from .devices import in_smaller_batches, memory_errors
from .pipeline import Work
from .precision import full_precision
from .tensors import sent

BATCH_NUMBERS = 1 << 25
"""Numbers of vectors that are mapped at once: 256 MB in float64, and some times as much while they are."""


@contextmanager
def full_products(device: str) -> Iterator[None]:
    """Compute products of float32 in float32 within the block, without gradients."""
    with torch.inference_mode(), full_precision(device):
        yield


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
        with memory_errors(device, "the map of whitened vectors"):
            self._mean, self._scales = self._there(mean), self._there(scales)
            self._directions = self._there(directions).double()
        self._most = max(1, BATCH_NUMBERS // max(1, len(mean)))

    def _there(self, array: Any) -> Tensor:
        return sent(array, self._device)

    def apply(self, vectors: Float32, out: Float32, n_jobs: int | None = None) -> None:
        """Write the mapped vectors into `out`; threads make no difference."""

        def run(first: int, last: int) -> None:
            out[first:last] = self.mapped(self._there(vectors[first:last]).double()).float().cpu().numpy()

        with full_products(self._device):
            self._most = in_smaller_batches(run, len(vectors), self._most, self._device, "one vector")

    def mapped(self, vectors: Tensor) -> Tensor:
        """Return vectors of float64 mapped; they are written to."""
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


def joined(views: Sequence[tuple[Work, int, float]], then: DeviceMap) -> Work:
    """Return what makes the vectors of several views of sets on a device, each of a length and with a scale, and maps
    them, side by side.
    """

    def work(batch: Batch, out: Tensor, _: Tensor | None) -> None:
        parts = []
        for view, length, scale in views:
            vectors = out.new_empty((len(out), length))
            view(batch, vectors, None)
            parts.append(vectors.double().mul_(scale))
        out.copy_(then.mapped(torch.cat(parts, dim=1)))

    return work
