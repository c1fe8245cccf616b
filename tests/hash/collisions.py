"""Vectors at a given angle, their bits, and a test of how often they agree."""

from __future__ import annotations

import math

import numpy as np

from slosh.hash import SignHash


def gauss(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((n, dim)).astype(np.float32)


def pair(x: np.ndarray, y: np.ndarray, angle: float) -> np.ndarray:
    """Two unit vectors in the plane of x and y, the first along x, at an angle."""
    x = x / np.linalg.norm(x)
    y = y - (x @ y) * x
    y /= np.linalg.norm(y)
    return np.stack([x, math.cos(angle) * x + math.sin(angle) * y]).astype(np.float32)


def bits(hash_: SignHash, X: np.ndarray) -> np.ndarray:
    return np.unpackbits(hash_.transform(X), axis=1, count=hash_.n_bits).astype(bool)


def assert_rate(hits: float, n: int, expected: float | np.ndarray) -> None:
    """`hits` of n independent trials, within 4 sigma; `expected` may be one probability for each trial."""
    expected = np.broadcast_to(expected, n)
    sigma = math.sqrt(np.sum(expected * (1 - expected)))
    assert abs(hits - expected.sum()) <= 4 * sigma + 1e-9, f"{hits / n:.4f}, not {expected.mean():.4f}"
