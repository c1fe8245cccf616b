"""The built-in network "points" as it is used after training: plain arrays, and a forward pass on the native kernel.

Sets come in. Each element is seen together with its nearest elements within the set, layer by layer, and the sets go
out with the outputs of all layers as their features, or with what a last layer makes of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..data.batching import segment_mean
from ..data.sets import Sets
from ..native import kernel
from ..native.arrays import ElementLayer, Float32, Float64, Ragged
from ..native.dense import DenseLayer
from ..native.element_network import element_network
from .head import MAX_LAYERS, check_layers

WIDEST = 1 << 10
"""Outputs of a layer that a file may have; the kernel takes no more."""
SLOPE = 0.2
"""What negative outputs of a layer are multiplied by."""
MAX_NEIGHBORS = 1 << 10
"""Neighbours of an element that a file may ask for."""


class PointNetwork:
    r"""Layers over each element and its nearest ones, z_i = scale (A h_i + max_j B h_j) + shift, negative parts scaled.

    The maximum, of each output by itself, is over the `n_neighbors_` elements of the set that are nearest to element i,
    itself among them. The first layer takes the coordinates twice: less `center_`, and less the mean of their set, both
    divided by `spread_`. The features are the outputs y of all layers side by side, or W y + b, negative parts scaled.

    layers_ : for each layer A and B, (outputs, inputs), scale and shift, (outputs,), float32. B is (0, inputs) where
        neighbours do not count. mixing_ : W, (features, outputs of all layers), and b, (features,), float32; if it is
        empty the features are y.
    """

    center_: Float64
    spread_: float
    n_neighbors_: int
    layers_: list[Float32]
    mixing_: list[Float32]

    @classmethod
    def of(
        cls,
        center: Float64,
        spread: float,
        n_neighbors: int,
        layers: list[ElementLayer],
        mixing: ElementLayer | None,
    ) -> PointNetwork:
        """Return the network with these parts. `mixing` sees each element by itself."""
        made = cls()
        made.center_, made.spread_, made.n_neighbors_ = center, spread, n_neighbors
        made.layers_ = []
        for layer in layers:
            neighbors = np.empty((0, layer.own.shape[1]), np.float32) if layer.neighbors is None else layer.neighbors
            made.layers_ += [layer.own, neighbors, layer.scale, layer.shift]
        made.mixing_ = [] if mixing is None else [mixing.own * mixing.scale[:, None], mixing.shift]
        return made

    @property
    def n_outputs(self) -> int:
        return len(self.mixing_[1]) if self.mixing_ else sum(len(scale) for scale in self.layers_[2::4])

    def _layers(self) -> list[ElementLayer]:
        parts = (self.layers_[first : first + 4] for first in range(0, len(self.layers_), 4))
        return [ElementLayer(own, near if len(near) else None, scale, shift) for own, near, scale, shift in parts]

    def apply(self, sets: Sets, n_jobs: int | None) -> Sets:
        """Return the sets with what the layers make of their elements as the features of these."""
        inputs = element_inputs(sets, self.center_, self.spread_)
        ragged = Ragged(sets.points, sets.offsets, sets.weights)
        found = element_network(ragged, inputs, self.n_neighbors_, self._layers(), kernel.threads(n_jobs), slope=SLOPE)
        if self.mixing_:
            weights, bias = self.mixing_
            found = DenseLayer(weights, bias, SLOPE)(found, n_jobs)
        return Sets.from_checked(found, sets.offsets, sets.weights, None)

    def check_state(self, dim: int) -> None:
        """Refuse (ValueError) what could not have been learnt from sets of this dimension."""
        center, spread, n_arrays = self.center_, self.spread_, len(self.layers_)
        good = isinstance(center, np.ndarray) and center.dtype == np.float64 and center.shape == (dim,)
        if not good or not np.isfinite(center).all() or not (type(spread) is float and 0 < spread < math.inf):
            raise ValueError("the network scales its inputs by what is no number")
        if not (type(self.n_neighbors_) is int and 1 <= self.n_neighbors_ <= MAX_NEIGHBORS):
            raise ValueError("the network has a number of neighbours that nobody can mean")
        if not isinstance(self.layers_, list) or n_arrays % 4 or not 0 < n_arrays <= 4 * MAX_LAYERS:
            raise ValueError("the network is not a list of layers")
        width = 2 * dim
        for first in range(0, n_arrays, 4):
            parts: list[Any] = self.layers_[first : first + 4]
            if not all(isinstance(part, np.ndarray) and part.dtype == np.float32 for part in parts):
                raise ValueError("the layers of the network are not arrays of numbers")
            own, near, scale, shift = parts
            outputs = len(scale) if scale.ndim == 1 else 0
            shapes = own.shape == (outputs, width) and near.shape in ((outputs, width), (0, width))
            if not 0 < outputs <= WIDEST or not shapes or shift.shape != (outputs,):
                raise ValueError("the layers of the network do not fit each other")
            if not all(np.isfinite(part).all() for part in parts):
                raise ValueError("the layers of the network hold what is no number")
            width = outputs
        if self.mixing_ != []:
            check_layers(self.mixing_, sum(len(scale) for scale in self.layers_[2::4]), "the mixing of the network")
            if len(self.mixing_) != 2 or len(self.mixing_[1]) > WIDEST:
                raise ValueError("the network mixes by more than one layer, or a wide one")


def element_inputs(sets: Sets, center: Float64, spread: float) -> Float32:
    """Return what the first layer takes, (P, 2 d): coordinates less the centre, and less the mean of their set."""
    points = sets.points.astype(np.float64)
    means = np.repeat(segment_mean(points, sets), sets.sizes, axis=0)
    return (np.concatenate([points - center, points - means], axis=1) / spread).astype(np.float32)
