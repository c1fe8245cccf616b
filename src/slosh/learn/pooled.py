"""A network on the elements of sets, pooled: batches of sets come in, features of sets go out, with gradients.

The network is the built-in one (`point_module.py`), or a module of the user's own.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from ..embed import MaxPool, MeanPool
from ..embed.base import SetTransformer
from ..errors import InputError
from ..native.arrays import Float64
from ..torch import SlicedWassersteinPool
from .augmentation import SetBatch
from .modules import to_array
from .point_module import PointModule, SafeNorm


class PooledNetwork(nn.Module):  # type: ignore[misc]
    """A network on the elements, and then learnt slices, the maximum and the mean of what it returns, side by side.

    Each of these features is brought to mean 0 and deviation 1.
    """

    def __init__(self, network: nn.Module, n_outputs: int, n_slices: int, seed: int) -> None:
        super().__init__()
        self.network, self.n_outputs = network, n_outputs
        self.pool = SlicedWassersteinPool(n_outputs, n_slices, random_state=seed, check=False)
        self.norm = SafeNorm(self.pool.vector_length + 2 * n_outputs, affine=False)

    def forward(self, batch: SetBatch) -> Tensor:
        pooled = self._of_equal_sets(batch) if isinstance(self.network, PointModule) else self._of_any_sets(batch)
        normal: Tensor = self.norm(torch.cat(pooled, dim=1))
        return normal

    def _of_equal_sets(self, batch: SetBatch) -> list[Tensor]:
        assert batch.size is not None
        points = batch.points.view(-1, batch.size, batch.points.shape[1])
        weights = None if batch.weights is None else batch.weights.view(points.shape[:2])
        elements = self.network(points, weights)
        if weights is None:
            mean = elements.mean(1)
        else:
            mean = (elements * (weights / weights.sum(1, keepdim=True))[:, :, None]).sum(1)
        if weights is None and elements.device.type != "cpu":
            quantiles = self.dense_quantiles(elements)
        else:
            quantiles = self.pool(elements, weights=weights)
        return [quantiles, elements.amax(1), mean]

    def dense_quantiles(self, elements: Tensor) -> Tensor:
        """Return what the pool does of sets of equal sizes, by one sort of a dense tensor."""
        pool, n = self.pool, elements.shape[1]
        values = nn.functional.linear(elements, pool.slices)
        ordered = values.transpose(1, 2).sort(dim=2).values
        means = ordered @ _bins(n, pool.n_quantiles, elements.device)
        return ((means - pool.reference) / math.sqrt(pool.vector_length)).flatten(1)

    def _of_any_sets(self, batch: SetBatch) -> list[Tensor]:
        elements = self.network(batch.points, batch.offsets).float()
        if elements.shape != (len(batch.points), self.n_outputs):
            problem = f"the network made {tuple(elements.shape)} of {len(batch.points)} elements"
            remedy = f"it must return ({len(batch.points)}, {self.n_outputs}) here, a row for each element"
            raise InputError(problem, remedy, argument="network")
        weights = torch.ones_like(elements[:, 0]) if batch.weights is None else batch.weights
        highest = torch.segment_reduce(elements, "max", offsets=batch.offsets)
        both = torch.cat([elements * weights[:, None], weights[:, None]], dim=1)
        sums = torch.zeros((len(highest), both.shape[1]), device=both.device).index_add(0, batch.set_of, both)
        quantiles = self.pool(elements, batch.offsets, weights=batch.weights)
        return [quantiles, highest, sums[:, :-1] / sums[:, -1:]]

    def views(self) -> list[SetTransformer]:
        """Return the pooling as embeddings of the sets that the network returns."""
        single = [np.zeros((1, self.n_outputs), np.float32)]
        return [self.pool.to_embedding(), MaxPool().fit(single), MeanPool().fit(single)]

    def map(self, n: int) -> tuple[Float64, Float64]:
        """Return what the pooled numbers are multiplied by, (n,), and what is then added."""
        factor = 1.0 / np.sqrt(to_array(self.norm.running_var) + self.norm.eps)
        return factor, -to_array(self.norm.running_mean) * factor


@lru_cache(maxsize=128)
def _bins(n: int, n_quantiles: int, device: torch.device) -> Tensor:
    """Return the part that each of n sorted elements has in the mean of each bin, (n, M)."""
    edges = torch.arange(n_quantiles + 1, dtype=torch.float64) * n / n_quantiles
    starts = torch.arange(n, dtype=torch.float64)[:, None]
    overlap = torch.minimum(starts + 1, edges[1:]) - torch.maximum(starts, edges[:-1])
    return (overlap.clamp(min=0) * n_quantiles / n).float().to(device)
