"""The built-in network "points" as torch trains it: batches of sets with equally many elements come in.

Each element is seen together with its nearest elements within the set. `export` returns what was learnt, as plain
arrays.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..gpu.precision import full_precision
from ..native.arrays import ElementLayer, Float32, Float64
from .point_network import SLOPE, PointNetwork

WIDTHS = (64, 128, 256)
"""The outputs of the layers over elements and their neighbours."""
MIXED = 512
"""The outputs of a layer that follows them, and takes what all of them make of an element; 0: there is none."""
DISTANCES = 1 << 27
"""Distances between elements that are held at once."""


class SafeNorm(nn.BatchNorm1d):  # type: ignore[misc]
    """Batch normalisation that takes a batch of one row, which has no deviation, as it takes rows after training."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > 1 or not self.training:
            return super().forward(rows)
        return nn.functional.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class NeighborLayer(nn.Module):  # type: ignore[misc]
    """A h_i + max_j B h_j over the neighbours j of element i, brought to mean 0 and deviation 1, then a rectifier."""

    def __init__(self, n_inputs: int, n_outputs: int, sees_neighbors: bool) -> None:
        super().__init__()
        self.sees_neighbors, self.n_outputs = sees_neighbors, n_outputs
        # A, and below it B: one product is faster than two.
        self.both = nn.Linear(n_inputs, (1 + sees_neighbors) * n_outputs, bias=False)
        self.norm = SafeNorm(n_outputs)

    def forward(self, elements: Tensor, nearest: Tensor | None) -> Tensor:
        """Return (B, n, outputs) for elements (B, n, inputs) and the rows of their neighbours in the set, (B, n, k)."""
        total = self.both(elements)
        if nearest is not None:
            total = total[:, :, : self.n_outputs] + _highest(total[:, :, self.n_outputs :], nearest)
        normal = self.norm(total.flatten(0, 1)).view(total.shape)
        return nn.functional.leaky_relu(normal, SLOPE)

    def export(self, factors: Tensor | None = None) -> ElementLayer:
        """Return the layer as plain arrays; `factors` (inputs,) are what its inputs are to be multiplied by."""
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        gain = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        shift = norm.bias.double() - norm.running_mean.double() * gain
        weight = self.both.weight if factors is None else self.both.weight * factors
        own, near = weight[: self.n_outputs], weight[self.n_outputs :]
        return ElementLayer(_plain(own), _plain(near) if self.sees_neighbors else None, _plain(gain), _plain(shift))


class PointModule(nn.Module):  # type: ignore[misc]
    """Layers over elements and their `n_neighbors` nearest ones by coordinates; 1: each element by itself.

    spread, within : what coordinates are divided by, less the center, and less the mean of their set.

    forward : points (B, n, d) -> the outputs of all layers side by side, (B, n, c), or what a last layer of `n_mixed`
        outputs makes of them; 0: there is none.
    """

    center: Tensor

    def __init__(
        self,
        dim: int,
        center: Float64,
        spread: float,
        n_neighbors: int,
        n_mixed: int | None = None,
        within: float | None = None,
    ) -> None:
        super().__init__()
        n_mixed = MIXED if n_mixed is None else n_mixed
        self.register_buffer("center", torch.tensor(center, dtype=torch.float64))
        self.spread, self.n_neighbors = spread, n_neighbors
        self.within = spread if within is None else within
        inputs = (2 * dim, *WIDTHS[:-1])
        self.layers = nn.ModuleList(
            NeighborLayer(width, n_outputs, n_neighbors > 1) for width, n_outputs in zip(inputs, WIDTHS, strict=True)
        )
        self.mixing = NeighborLayer(sum(WIDTHS), n_mixed, sees_neighbors=False) if n_mixed else None

    @property
    def n_outputs(self) -> int:
        """The features of an element that it returns."""
        return sum(WIDTHS) if self.mixing is None else self.mixing.n_outputs

    def forward(self, points: Tensor, weights: Tensor | None = None) -> Tensor:
        mean = _means(points, weights)
        elements = torch.cat([(points - self.center.float()) / self.spread, (points - mean) / self.within], dim=2)
        nearest = nearest_elements(points, self.n_neighbors) if self.n_neighbors > 1 else None
        outputs = []
        for layer in self.layers:
            elements = layer(elements, nearest)
            outputs.append(elements)
        together = torch.cat(outputs, dim=2)
        return together if self.mixing is None else self.mixing(together, None)

    def export(self) -> PointNetwork:
        """Return what was learnt, for inputs that are all divided by `spread`."""
        factors = torch.ones(2 * len(self.center), device=self.center.device)
        factors[len(self.center) :] = self.spread / self.within
        layers = [
            layer.export(None if number else factors)
            for number, layer in enumerate(self.layers)
            if isinstance(layer, NeighborLayer)
        ]
        center = np.array(self.center.cpu().numpy(), np.float64)
        mixing = None if self.mixing is None else self.mixing.export()
        return PointNetwork.of(center, float(self.spread), int(self.n_neighbors), layers, mixing)


def _means(points: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return points.mean(1, keepdim=True)
    share = weights / weights.sum(1, keepdim=True)
    return (points * share[:, :, None]).sum(1, keepdim=True)


@torch.no_grad()
def nearest_elements(points: Tensor, k: int) -> Tensor:
    """Return the rows of the k nearest elements of each within its set, (B, n, k), itself among them."""
    n_sets, n = points.shape[:2]
    k, step = min(k, n), max(1, DISTANCES // (n * n))
    found = []
    # The rounding of TF32 is as large as the distances of neighbours.
    with full_precision(points.device):
        centred = (points - points.mean(1, keepdim=True)).float()
        for part in torch.split(centred, step):
            # The squared distance, less what all elements have in common that are compared with one.
            distances = part.square().sum(2)[:, None] - 2 * part @ part.transpose(1, 2)
            found.append(distances.topk(k, dim=2, largest=False, sorted=False).indices)
    return torch.cat(found) if n_sets else points.new_empty((0, n, k), dtype=torch.int64)


def _highest(values: Tensor, nearest: Tensor) -> Tensor:
    """Return the maximum of the values (B, n, c) over the neighbours of each element; its gradient goes to one."""
    n_sets, n, width = values.shape
    k = nearest.shape[2]
    rows = (nearest + torch.arange(n_sets, device=nearest.device)[:, None, None] * n).view(-1, k)
    if values.device.type == "cuda":  # one kernel, which keeps nothing of the size of all neighbours
        return nn.functional.embedding_bag(rows, values.flatten(0, 1), mode="max").view(n_sets, n, width)
    with torch.no_grad():
        around = values.detach().reshape(n_sets * n, width)[rows].view(n_sets, n, k, width)
        winner = around.argmax(2)
        where = nearest.gather(2, winner.view(n_sets, n, width))
    return values.gather(1, where)


def _plain(tensor: Tensor) -> Float32:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)
