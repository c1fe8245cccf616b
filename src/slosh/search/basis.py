"""An orthonormal basis in which the first few numbers of a vector tell most of a distance.

Vectors come in; prefixes go out: the coordinates along the p main directions of a sample, and the norm of all the rest.
The distance of two prefixes is never larger than that of the vectors, whatever the basis:
|x - y|^2 = |Px - Py|^2 + |rest x - rest y|^2 >= |Px - Py|^2 + (|rest x| - |rest y|)^2.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd

from ..checks import BLOCK
from ..product import ExactProduct

Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]

ROUNDING = 2e-7
"""How far rounding may move a prefix, as a part of the vector's norm about the middle: 2^-24 by float32, and less than
2^-33 by the product and the basis."""


class Basis:
    """`middle` (D,) and `directions` (p, D), orthonormal; p may be 0."""

    def __init__(self, middle: Float64, directions: Float64) -> None:
        self.middle, self.directions = middle, directions
        self._product = ExactProduct(directions) if len(directions) else None

    @property
    def width(self) -> int:
        """Numbers of a prefix."""
        return len(self.directions) + 1

    def prefixes(self, vectors: Float32) -> tuple[Float32, Float64]:
        """(n, p + 1) the prefixes, and (n,) the norms of the vectors about the middle.

        A row's bits do not depend on the others.
        """
        out, norms = np.empty((len(vectors), self.width), np.float32), np.empty(len(vectors))
        step = max(1, BLOCK // vectors.shape[1])
        for first in range(0, len(vectors), step):
            part = slice(first, first + step)
            centred = vectors[part] - self.middle
            norms[part] = np.sqrt(np.einsum("ij,ij->i", centred, centred))
            if self._product is not None:
                along = self._product(centred)
                out[part, :-1] = along
                centred -= along @ self.directions  # a difference of squares would lose the digits of a small rest
            out[part, -1] = np.sqrt(np.einsum("ij,ij->i", centred, centred))
        return out, norms

    def cut(self, n_directions: int) -> Basis:
        return Basis(self.middle, np.ascontiguousarray(self.directions[:n_directions]))


def fit(sample: Float32, most: int, random: np.random.RandomState) -> Basis:
    """The `most` main directions of a sample, or fewer if it has no more; seeded."""
    middle = sample.mean(axis=0, dtype=np.float64)
    centred = sample - middle
    n, dim = centred.shape
    most = min(most, n - 1, dim)
    if dim <= 1024:
        _, vectors = np.linalg.eigh(centred.T @ centred)
        directions = vectors[:, ::-1][:, :most].T
    else:
        _, _, directions = randomized_svd(
            centred.astype(np.float32), most, n_oversamples=16, n_iter=4, random_state=random, flip_sign=False
        )
    # Orthonormal in float64, which the lower bound rests on.
    exact, _ = np.linalg.qr(np.ascontiguousarray(directions, np.float64).T)
    return Basis(middle, np.ascontiguousarray(exact.T))
