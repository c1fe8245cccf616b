"""Sets into vectors on a device, in plain torch operations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.batching import batches_by_points
from ..native.arrays import Float32, Float64, Quantiles, Ragged
from .devices import in_smaller_batches
from .products import full_products

SORTED_NUMBERS = 1 << 26


def embed(sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None, device: str) -> None:
    """Write (quantiles - reference) * scale of every set into `out`, as `slosh.native.kernel.embed` does."""
    assert rule.directions is not None
    directions = torch.from_numpy(np.ascontiguousarray(rule.directions)).to(device).double()
    with full_products(device):
        for some in batches_by_points(np.diff(sets.offsets), 1 << 22):
            _batch(sets, some, directions, rule, out[some], None if residual is None else residual[some], device)


def _batch(
    sets: Ragged, some: slice, directions: Tensor, rule: Quantiles, out: Float32, residual: Float64 | None, device: str
) -> None:
    first, last = int(sets.offsets[some.start]), int(sets.offsets[some.stop])
    points = torch.from_numpy(np.ascontiguousarray(sets.points[first:last])).to(device).double()
    offsets = torch.from_numpy(sets.offsets[some.start : some.stop + 1] - first).to(device)
    mass = torch.ones(last - first, device=device, dtype=torch.float64)
    if sets.weights is not None:
        mass = torch.from_numpy(np.ascontiguousarray(sets.weights[first:last])).to(device).double()
    found = np.empty((some.stop - some.start, rule.n_slices, rule.n_quantiles), np.float32)
    squares = np.zeros(some.stop - some.start)

    def run(start: int, stop: int) -> None:
        values = (points @ directions[start:stop].T).T
        quantiles, left = _quantiles(values, offsets, mass, rule)
        found[:, start:stop] = quantiles.float().cpu().numpy()
        squares[:] += left.cpu().numpy() / rule.n_slices

    in_smaller_batches(run, rule.n_slices, max(1, SORTED_NUMBERS // max(1, last - first)), device, "one slice")
    if rule.reference is not None:
        found -= rule.reference.reshape(found.shape[1:])
    out[...] = (found * np.float32(rule.scale)).reshape(len(found), -1)
    if residual is not None:
        residual[...] = squares


def _quantiles(values: Tensor, offsets: Tensor, mass: Tensor, rule: Quantiles) -> tuple[Tensor, Tensor]:
    """Return the quantiles (n, l, M) of values (l, P), and the sums over the slices of what means leave out (n,)."""
    n, m = len(offsets) - 1, rule.n_quantiles
    starts, sizes = offsets[:-1], offsets.diff()
    set_of = torch.repeat_interleave(torch.arange(n, device=values.device), sizes)
    light = torch.argsort(mass, stable=True)
    values = torch.where(mass > 0, values, torch.inf)
    order = light[torch.argsort(values[:, light], dim=1, stable=True)]
    order = order.gather(1, torch.argsort(set_of[order], dim=1, stable=True))
    values = values.gather(1, order)
    total = torch.zeros(n, dtype=torch.float64, device=values.device).index_add_(0, set_of, mass)
    share = (mass / total[set_of])[order]
    values = torch.where(share > 0, values, 0.0)
    centre = values[:, starts]
    moved = torch.where(share > 0, values - centre[:, set_of], 0.0)

    def upto(rows: Tensor) -> Tensor:
        sums = torch.nn.functional.pad(rows.cumsum(1), (1, 0))
        return sums[:, 1:] - sums[:, starts][:, set_of]

    cuts, integral = upto(share).clamp_(max=1.0), upto(moved * share)
    edge = torch.arange(1, m + 1, device=values.device, dtype=torch.float64) / m
    asked = (torch.arange(n, device=values.device)[:, None] + edge - 1e-12).flatten().expand(len(values), -1)
    at = torch.searchsorted((cuts + set_of).contiguous(), asked.contiguous())
    first = starts.repeat_interleave(m)
    at = torch.minimum(torch.maximum(at, first), first + sizes.repeat_interleave(m) - 1)
    edges = edge.repeat(n)
    if not rule.average:
        before = torch.maximum(at - 1, first)
        low, high, left = values.gather(1, before), values.gather(1, at), cuts.gather(1, at) - share.gather(1, at)
        part = ((edges - left) / share.gather(1, at).clamp(min=1e-300)).clamp(0.0, 1.0)
        found = low + (high - low) * torch.where(at > first, part, 1.0)
        return found.view(-1, n, m).transpose(0, 1), torch.zeros(n, dtype=torch.float64, device=values.device)
    sums = integral.gather(1, at) - (cuts.gather(1, at) - edges) * moved.gather(1, at)
    sums = sums.view(-1, n, m)
    means = torch.diff(sums, dim=2, prepend=torch.zeros_like(sums[:, :, :1])) * m
    last = starts + sizes - 1
    left_out = upto(moved.square() * share)[:, last] - means.square().mean(2)
    return (means + centre[:, :, None]).transpose(0, 1), left_out.clamp(min=0.0).sum(0)
