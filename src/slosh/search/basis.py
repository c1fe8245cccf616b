"""An orthonormal basis in which the first few numbers of a vector tell most of a distance.

Vectors come in; prefixes go out: the coordinates along the p main directions of a sample, and the norm of all the rest.
The distance of two prefixes is never larger than that of the vectors, whatever the basis:
|x - y|^2 = |Px - Py|^2 + |rest x - rest y|^2 >= |Px - Py|^2 + (|rest x| - |rest y|)^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.utils.extmath import randomized_svd

from ..checkpoints import aside
from ..native import scan
from ..native.arrays import Float32, Float64

ROUNDING = 2e-7
"""How far rounding may move a prefix, as a part of the vector's norm about the middle: 2^-24 by float32, far less by
the products in float64 and by a basis that is orthonormal up to their rounding."""


class Basis:
    """`middle` (D,) and `directions` (p, D), orthonormal; without directions a prefix is the vector less the middle."""

    def __init__(self, middle: Float64, directions: Float64) -> None:
        self.middle, self.directions = middle, directions
        dim, n = len(middle), len(directions)
        self._filled = np.zeros((n + 1, -(-dim // 8) * 8))  # as the kernel reads them
        self._filled[0, :dim], self._filled[1:, :dim] = middle, directions

    @property
    def width(self) -> int:
        """Numbers of a prefix."""
        return len(self.directions) + 1 if len(self.directions) else len(self.middle)

    @property
    def filled(self) -> tuple[Float64, Float64 | None]:
        """Middle and directions as the kernel reads them, with zeros up to a multiple of eight numbers."""
        return self._filled[0], self._filled[1:] if len(self.directions) else None

    def prefixes(self, vectors: NDArray[Any], scale: Float32 | None, n_jobs: int | None) -> tuple[Float32, Float64]:
        """Return the prefixes of vectors (with a scale for each, if they are 16-bit), (n, width), and their norms about
        the middle, (n,). A row's bits do not depend on the others.
        """
        return scan.prefixes(vectors, scale, *self.filled, n_jobs)

    def cut(self, n_directions: int | None) -> Basis:
        """Return the basis of the first directions; None: without any."""
        return Basis(self.middle, np.ascontiguousarray(self.directions[: n_directions or 0]))


def fit(sample: Float32, n_directions: int, random: np.random.RandomState) -> Basis:
    """Return the main directions of a sample, or fewer if it has no more; seeded."""
    middle = sample.mean(axis=0, dtype=np.float64)
    centred = sample - middle
    n, dim = centred.shape
    n_directions = min(n_directions, n - 1, dim)
    largest = np.abs(centred).max(initial=0.0)
    small = (centred / largest if largest > 0 else centred).astype(np.float32)  # squares that float32 can hold
    if dim <= 1024:
        matrix, kept = (small.T @ small).astype(np.float64), [dim - n_directions, dim - 1]
        _, vectors = aside(lambda: eigh(matrix, subset_by_index=kept))
        directions = vectors[:, ::-1].T
    else:
        params = {"n_oversamples": 16, "n_iter": 2, "random_state": random, "flip_sign": False}
        _, _, directions = aside(lambda: randomized_svd(small, n_directions, **params))
    # Orthonormal in float64, which the lower bound rests on.
    exact, _ = np.linalg.qr(np.ascontiguousarray(directions, np.float64).T)
    return Basis(middle, np.ascontiguousarray(exact.T))
