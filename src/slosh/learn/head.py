"""The head of a learned embedding, without torch: features of sets come in, vectors of unit length go out.

It is a list of arrays, the weights (outputs, inputs) and the bias (outputs,) of one dense layer after the other. All
but the last end with a rectifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..native.arrays import Array, Float32
from ..native.dense import DenseLayer

MAX_LAYERS = 32
"""Layers of a head or a network that a file may hold."""
MAX_WIDTH = 1 << 16
"""Numbers between two layers that a file may ask for."""
SHORTEST = 1e-20
"""A vector that is shorter is left as it is."""


def dense_layers(arrays: Sequence[Float32], last_slope: float) -> list[DenseLayer]:
    """Return the layers that these arrays are: weights and bias of each. The last one ends with this slope."""
    weights, biases = arrays[::2], arrays[1::2]
    slopes = [0.0] * (len(weights) - 1) + [last_slope]
    return [DenseLayer(*each) for each in zip(weights, biases, slopes, strict=True)]


class Head:
    """Maps features (n, F) to vectors (n, p) of unit length. The bits of a row depend on that row alone."""

    def __init__(self, arrays: Sequence[Float32]) -> None:
        self._layers = dense_layers(arrays, 1.0)

    def __call__(self, features: Float32, n_jobs: int | None) -> Float32:
        rows = features
        for layer in self._layers:
            rows = layer(rows, n_jobs)
        lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
        return np.asarray(rows / np.maximum(lengths, SHORTEST)[:, None], np.float32)


def check_layers(arrays: Any, n_inputs: int, what: str) -> int:
    """Refuse (ValueError) arrays that are no layers one after the other; return the number of outputs of the last."""
    if not isinstance(arrays, list) or not 2 <= len(arrays) <= 2 * MAX_LAYERS or len(arrays) % 2:
        raise ValueError(f"{what} is not a list of layers")
    widths = [n_inputs]
    for weights, bias in list(pairwise(arrays))[::2]:
        good = all(isinstance(each, np.ndarray) and each.dtype == np.float32 for each in (weights, bias))
        if not good or weights.ndim != 2 or bias.shape != weights.shape[:1] or weights.shape[1] != widths[-1]:
            raise ValueError(f"the layers of {what} do not fit each other")
        if not 0 < len(bias) <= MAX_WIDTH or not (_finite(weights) and _finite(bias)):
            raise ValueError(f"the layers of {what} are too wide, or hold what is no number")
        widths.append(len(bias))
    return widths[-1]


def _finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())
