"""The torch modules that are trained, and what they become after it: plain arrays, and embeddings of `slosh.embed`.

A `Model` is a trunk, which makes features of a batch of sets, and a head, which makes vectors of features. Trunks: none
(the features were computed before), learnt slices within whitened views, or a network on the elements, pooled.
"""

from __future__ import annotations

from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..embed import MaxPool, MeanPool, SlicedWasserstein, Whitened
from ..embed.base import SetTransformer
from ..native.arrays import Float32, Float64
from ..torch import SlicedWassersteinPool
from .augmentation import SetBatch
from .networks import PointNetwork

HIDDEN = (1024, 1024)
"""The hidden layers of a head; the last one is what is learnt, and is then turned to fewer numbers."""
DROPOUT = 0.5
POINT_WIDTHS = (64, 128)
"""The layers of the network "points"."""


class Head(nn.Module):  # type: ignore[misc]
    """Two hidden layers with rectifiers and dropout; the vector is the last one, of unit length."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        widths = (n_inputs, *HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, features: Tensor) -> Tensor:
        for layer in self.layers:
            features = self.dropout(nn.functional.relu(layer(features)))
        return nn.functional.normalize(features.float(), dim=1)


class Scale(nn.Module):  # type: ignore[misc]
    """Divides features by the root of their mean square over all sets, so that a head of any features begins alike."""

    factor: Tensor

    def __init__(self, features: Float32) -> None:
        super().__init__()
        size = float(np.sqrt(np.square(features, dtype=np.float64).mean()))
        self.register_buffer("factor", torch.tensor(1.0 / size if size > 0 else 1.0))

    def forward(self, batch: Tensor) -> Tensor:
        return batch * self.factor

    def map(self, n: int) -> tuple[Float64, Float64]:
        """Return what features are multiplied by, (n,), and what is then added."""
        return np.full(n, self.factor.item()), np.zeros(n)


class LearntSlices(nn.Module):  # type: ignore[misc]
    """The whitened views of a fitted `Whitened`, whose sliced views are computed from the sets, with gradients.

    The vectors of the other views come with the batch, one view after the other.
    """

    mean: Tensor
    directions: Tensor
    scales: Tensor

    def __init__(self, whitened: Whitened, device: torch.device) -> None:
        super().__init__()
        self._rest_scale, self._shortest = whitened.rest_scale_, whitened.shortest_
        self._scales, self._lengths = whitened.view_scales_, [view.vector_length for view in whitened.embeddings_]
        self._learnt = [is_linear(view) for view in whitened.embeddings_]
        self.pools = nn.ModuleList(
            SlicedWassersteinPool.from_embedding(without_origin(view), check=False)
            for view in whitened.embeddings_
            if is_linear(view)
        )
        for name in ("mean", "directions", "scales"):
            self.register_buffer(name, torch.tensor(getattr(whitened, f"{name}_"), dtype=torch.float32))
        self.to(device)

    def forward(self, batch: SetBatch) -> Tensor:
        pools, at, parts = iter(self.pools), 0, []
        for learnt, scale, length in zip(self._learnt, self._scales, self._lengths, strict=True):
            if learnt:
                parts.append(next(pools)(batch.points, batch.offsets, weights=batch.weights) * scale)
            else:
                assert batch.features is not None
                parts.append(batch.features[:, at : at + length])
                at += length
        away = torch.cat(parts, dim=1) - self.mean
        if not len(self.scales):
            mapped = away * self._rest_scale
        else:
            mapped = away @ self.directions.T * (self.scales - self._rest_scale)
            if self._rest_scale:
                mapped = mapped @ self.directions + away * self._rest_scale
        if self._shortest is None:
            return mapped
        lengths: Tensor = mapped.norm(dim=1, keepdim=True).clamp(min=self._shortest)
        return mapped / lengths

    def into(self, whitened: Whitened) -> None:
        """Put the learnt slices and references in the place of those that were fitted."""
        pools: Any = iter(self.pools)
        views = []
        for view in whitened.embeddings_:
            if is_linear(view):
                learnt = next(pools).to_embedding(view.n_jobs)
                learnt.origin_ = view.origin_
                view = learnt
            views.append(view)
        whitened.embeddings_ = views


def is_linear(view: SetTransformer) -> bool:
    """Return whether a fitted view is sliced along directions, which can be learnt."""
    return isinstance(view, SlicedWasserstein) and view.slicer_.directions_ is not None


def without_origin(view: Any) -> Any:
    """Return a copy of a fitted embedding for sets whose origin was subtracted already."""
    bare = copy(view)
    bare.origin_ = None
    return bare


class PointModule(nn.Module):  # type: ignore[misc]
    """The network "points": a multilayer perceptron on each element by itself, with batch normalisation."""

    center: Tensor
    spread: Tensor

    def __init__(self, dim: int, center: Float64, spread: float) -> None:
        super().__init__()
        self.register_buffer("center", torch.tensor(center, dtype=torch.float32))
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.float32))
        widths = (dim, *POINT_WIDTHS)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in POINT_WIDTHS)

    def forward(self, points: Tensor, offsets: Tensor) -> Tensor:
        elements = (points - self.center) / self.spread
        for layer, norm in zip(self.layers, self.norms, strict=True):
            elements = nn.functional.relu(norm(layer(elements)))
        return elements

    def export(self) -> PointNetwork:
        """Return what was learnt, with the normalisation as part of the layers."""
        arrays: list[Float32] = []
        factor, shift = 1.0 / _array(self.spread), -_array(self.center) / _array(self.spread)
        layers: Any = zip(self.layers, self.norms, strict=True)
        for layer, norm in layers:
            weights, bias = _array(layer.weight), _array(layer.bias)
            bias, weights = bias + weights @ (shift * np.ones(weights.shape[1])), weights * factor
            gain = _array(norm.weight) / np.sqrt(_array(norm.running_var) + norm.eps)
            arrays.append((weights * gain[:, None]).astype(np.float32))
            arrays.append(((bias - _array(norm.running_mean)) * gain + _array(norm.bias)).astype(np.float32))
            factor, shift = np.ones(()), np.zeros(())
        return PointNetwork.of(arrays)


NETWORKS = {"points": PointModule}
"""The built-in networks by their names: made of (dim, center, spread) of the coordinates."""


class PooledNetwork(nn.Module):  # type: ignore[misc]
    """A network on the elements, and then learnt slices, the maximum and the mean of what it returns, side by side.

    Each of these features is brought to mean 0 and deviation 1.
    """

    def __init__(self, network: nn.Module, n_outputs: int, n_slices: int, seed: int) -> None:
        super().__init__()
        self.network, self.n_outputs = network, n_outputs
        self.pool = SlicedWassersteinPool(n_outputs, n_slices, random_state=seed, check=False)
        self.norm = nn.BatchNorm1d(self.pool.vector_length + 2 * n_outputs, affine=False)

    def forward(self, batch: SetBatch) -> Tensor:
        half = batch.points.device.type == "cuda"
        with torch.autocast(batch.points.device.type, torch.bfloat16, enabled=half):
            elements = self.network(batch.points, batch.offsets)
        elements = elements.float()
        weights = torch.ones_like(elements[:, 0]) if batch.weights is None else batch.weights
        counted = elements.masked_fill((weights <= 0)[:, None], -torch.inf) if batch.weights is not None else elements
        highest = torch.segment_reduce(counted, "max", offsets=batch.offsets)
        both = torch.cat([elements * weights[:, None], weights[:, None]], dim=1)
        sums = torch.zeros((len(highest), both.shape[1]), device=both.device).index_add(0, batch.set_of, both)
        quantiles = self.pool(elements, batch.offsets, weights=batch.weights)
        joined = torch.cat([quantiles, highest, sums[:, :-1] / sums[:, -1:]], dim=1)
        if len(joined) > 1 or not self.training:
            normal: Tensor = self.norm(joined)
            return normal
        self.norm.eval()  # one set has no deviation
        normal = self.norm(joined)
        self.norm.train()
        return normal

    def views(self) -> list[SetTransformer]:
        """Return the pooling as embeddings of the sets that the network returns."""
        single = [np.zeros((1, self.n_outputs), np.float32)]
        return [self.pool.to_embedding(), MaxPool().fit(single), MeanPool().fit(single)]

    def map(self, n: int) -> tuple[Float64, Float64]:
        """Return what the pooled numbers are multiplied by, (n,), and what is then added."""
        factor = 1.0 / np.sqrt(_array(self.norm.running_var) + self.norm.eps)
        return factor, -_array(self.norm.running_mean) * factor


class Model(nn.Module):  # type: ignore[misc]
    """A trunk, a scale and a head. `scale` is the module whose `map` is made part of the first layer after training."""

    def __init__(self, trunk: nn.Module, scale: nn.Module | None, n_inputs: int) -> None:
        super().__init__()
        self.trunk, self.scale, self.head = trunk, scale, Head(n_inputs)

    def features(self, batch: Any) -> Tensor:
        """Return the features of the sets, (n, F), as the head takes them."""
        found: Tensor = self.trunk(batch)
        return found if self.scale is None else self.scale(found)

    def layers(self, directions: Float64) -> list[Float32]:
        """Return the head as plain arrays, for features that are not scaled yet.

        directions : (n_components, last hidden layer), what the last layer is multiplied by in the end.
        """
        arrays: list[Float32] = []
        for number, layer in enumerate(self.head.layers):
            weights, bias = _array(layer.weight), _array(layer.bias)
            if number == 0:
                scaling: Any = self.trunk if self.scale is None else self.scale
                factor, shift = scaling.map(weights.shape[1])
                bias, weights = bias + weights @ shift, weights * factor
            arrays += [weights.astype(np.float32), bias.astype(np.float32)]
        return [*arrays, directions.astype(np.float32), np.zeros(len(directions), np.float32)]


def _array(tensor: Any) -> Float64:
    return np.asarray(tensor.detach().cpu().double().numpy())
