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

from ..embed import SlicedWasserstein, Whitened
from ..embed.base import SetTransformer
from ..native.arrays import Float32, Float64
from ..torch import SlicedWassersteinPool
from .augmentation import SetBatch
from .point_module import SafeNorm

HIDDEN = (1024, 1024)
"""The hidden layers of a head; the last one is what is learnt, and is then turned to fewer numbers."""
NETWORK_HIDDEN = (1024, 256)
"""The same behind a network; the last one has no rectifier."""
DROPOUT = 0.5


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

    @property
    def n_outputs(self) -> int:
        """The numbers of a vector."""
        return HIDDEN[-1]

    def arrays(self, directions: Float64) -> list[tuple[Float64, Float64]]:
        """Return weights and bias of each layer, a rectifier between them; the last multiplies by the directions."""
        layers = [(to_array(layer.weight), to_array(layer.bias)) for layer in self.layers]
        return [*layers, (directions, np.zeros(len(directions)))]


class NormalizedHead(nn.Module):  # type: ignore[misc]
    """The head behind a network: one hidden layer, with batch normalisation, which large steps need."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        widths = (n_inputs, *NETWORK_HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(SafeNorm(width) for width in NETWORK_HIDDEN)

    def forward(self, features: Tensor) -> Tensor:
        (first, last), (norm, last_norm) = self.layers, self.norms
        features = nn.functional.dropout(features, DROPOUT / 2, self.training)
        hidden = nn.functional.relu(norm(first(features)))
        hidden = nn.functional.dropout(hidden, DROPOUT, self.training)
        return nn.functional.normalize(last_norm(last(hidden)).float(), dim=1)

    @property
    def n_outputs(self) -> int:
        """The numbers of a vector."""
        return NETWORK_HIDDEN[-1]

    def arrays(self, directions: Float64) -> list[tuple[Float64, Float64]]:
        """Return weights and bias of each layer, a rectifier between them; the last multiplies by the directions."""
        pairs: Any = zip(self.layers, self.norms, strict=True)
        hidden, last = (_folded(layer, norm) for layer, norm in pairs)
        return [hidden, (directions @ last[0], directions @ last[1])]


def _folded(layer: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Float64, Float64]:
    """Return the weights and the bias of a layer and the normalisation behind it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gain = to_array(norm.weight) / np.sqrt(to_array(norm.running_var) + norm.eps)
    shift = to_array(norm.bias) - to_array(norm.running_mean) * gain
    return to_array(layer.weight) * gain[:, None], shift


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


class Model(nn.Module):  # type: ignore[misc]
    """A trunk, a scale and a head. `scale` is the module whose `map` is made part of the first layer after training."""

    def __init__(self, trunk: nn.Module, scale: nn.Module | None, head: Head | NormalizedHead) -> None:
        super().__init__()
        self.trunk, self.scale, self.head = trunk, scale, head

    def features(self, batch: Any) -> Tensor:
        """Return the features of the sets, (n, F), as the head takes them."""
        found: Tensor = self.trunk(batch)
        return found if self.scale is None else self.scale(found)

    def layers(self, directions: Float64) -> list[Float32]:
        """Return the head as plain arrays, for features that are not scaled yet.

        directions : (n_components, outputs of the head), what its vectors are multiplied by in the end.
        """
        scaling: Any = self.trunk if self.scale is None else self.scale
        (weights, bias), *others = self.head.arrays(directions)
        factor, shift = scaling.map(weights.shape[1])
        pairs = [(weights * factor, bias + weights @ shift), *others]
        return [np.ascontiguousarray(array, np.float32) for pair in pairs for array in pair]


def to_array(tensor: Any) -> Float64:
    """Return a tensor as an array, in float64."""
    return np.asarray(tensor.detach().cpu().double().numpy())
