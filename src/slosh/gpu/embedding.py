"""Sets on the host into vectors on the host, embedded on a GPU."""

from __future__ import annotations

from torch import Tensor

from ..native.arrays import Float32, Float64, Quantiles, Ragged
from . import columns, pipeline
from .devices import memory_errors
from .tensors import sent


def embed(
    sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None, device: str, *, tf32: bool = False
) -> None:
    """Write (quantiles - reference) * scale of every set into `out`, as `slosh.native.kernel.embed` does, on a GPU.

    The numbers are those of the CPU to rounding; with `tf32` elements and slices may be rounded to TF32 before. They
    are the same, bit for bit, for any batching on one kind of GPU.
    """
    pipeline.run(sets, work(rule, device, tf32=tf32), out, residual, device)


def work(rule: Quantiles, device: str, *, tf32: bool = False) -> pipeline.Work:
    """Return what embeds sets that are on the device."""
    assert rule.directions is not None
    with memory_errors(device, "the slices and the reference"):
        directions = sent(rule.directions, device)
        reference = None if rule.reference is None else sent(rule.reference, device)
    numbers = columns.Rule(rule.n_quantiles, rule.average, rule.scale, reference, tf32)

    def embed_batch(batch: columns.Batch, vectors: Tensor, squares: Tensor | None) -> None:
        columns.embed(batch, directions, numbers, vectors, squares)

    return embed_batch
