"""The linear algebra of whitening: in which directions vectors vary, how much each is to count, and the map after that.

Vectors (n, D) come in, as plain arrays; shorter ones go out. Nothing here knows of sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import eigh, qr
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from ..checkpoints import aside, checkpoint
from ..gpu.devices import CPU
from ..native import scan
from ..native.arrays import Float32, Float64
from ..native.product import ExactProduct

if TYPE_CHECKING:
    from ..gpu.products import DeviceMap

ROWS_AT_ONCE = 512
"""Rows of a block of a sum. Products of another shape would round in another order."""
EXACT_LENGTH = 3072
"""Up to this length of the vectors their covariance matrix may be formed (72 MB)."""
OVERSAMPLES, PASSES = 32, 3
"""Of the randomised method: directions beyond those asked for, and products with the covariance matrix."""
NOISE = 2.0**-22
"""Deviations below this part of the numbers of a vector are what float32 rounds."""
UNSEEN_SHARE, DOUBT = 0.04, 10.0
"""n vectors cannot tell UNSEEN_SHARE / (n + 10) + DOUBT / n^2 of all variance from nothing (docs/whitening.md)."""


class Spread(NamedTuple):
    """How n vectors vary: (D,) `mean`, (r, D) orthonormal `directions`, along which they have the (r,) `variances`.

    Variances decrease. `total` is the sum of the variances of all directions. `noise` is a variance that rounding alone
    may have in a direction: all variances are larger. `is_constant` : all n are the same, but for rounding.
    """

    mean: Float64
    directions: Float64
    variances: Float64
    total: float
    noise: float
    is_constant: bool
    n: int

    @property
    def floor(self) -> float:
        """The variance that is added to each direction's, because so few vectors have been seen."""
        return self.total * (UNSEEN_SHARE / (self.n + 10) + DOUBT / self.n**2)

    def scales(self, power: float) -> Float64:
        """Return what whitening multiplies the coordinate along each direction by, up to a common factor."""
        return np.asarray(((self.variances + self.floor) / self.total) ** -power)

    def rest_scale(self, power: float) -> float:
        """Return the same for all directions that none of the vectors told of."""
        return float((self.floor / self.total) ** -power)

    def coordinates(self, vectors: Float32) -> Float64:
        """Return the coordinates of vectors along the directions, (n, r)."""
        return np.concatenate([block @ self.directions.T for block in _blocks(vectors, self.mean)])


def spread(vectors: Float32, n_directions: int, random: np.random.RandomState) -> Spread:
    """Return the directions of largest variance, or fewer if the vectors vary in fewer.

    Vectors of up to about 3,000 numbers: from their covariance matrix. Longer ones: by a randomised method (subspace
    iteration), seeded. The bits do not depend on the number of threads.
    """
    n, dim = vectors.shape
    n_directions = min(n_directions, dim, max(n - 1, 0))
    with threadpool_limits(1, "blas"):
        mean = np.sum([block.sum(axis=0) for block in _blocks(vectors, np.zeros(dim))], axis=0) / n
        squares = np.sum([np.square(block).sum(axis=0) for block in _blocks(vectors, mean)], axis=0) / n
        rounding = NOISE**2 * (np.square(mean) + squares)
        constant = bool(squares.sum() <= rounding.sum() / 8)  # NOISE leaves room, which would add up over all numbers
        none = Spread(mean, np.empty((0, dim)), np.empty(0), float(squares.sum()), float(rounding.max()), constant, n)
        if n_directions == 0 or constant:
            return none
        n_tried = min(n_directions + OVERSAMPLES, dim, n)
        exact = dim <= min(EXACT_LENGTH, 5 * PASSES * n_tried)
        variances, directions = (
            _exact(vectors, mean, n_directions) if exact else _randomised(vectors, mean, n_tried, random)
        )
    kept = variances[:n_directions] > none.noise
    directions, variances = with_signs(directions[:n_directions][kept]), variances[:n_directions][kept]
    return none._replace(directions=directions, variances=variances, is_constant=not len(variances))


def _blocks(vectors: Float32, mean: Float64) -> Iterator[Float64]:
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        checkpoint()
        yield vectors[start : start + ROWS_AT_ONCE] - mean


def _exact(vectors: Float32, mean: Float64, n_directions: int) -> tuple[Float64, Float64]:
    dim = len(mean)
    covariance = np.zeros((dim, dim))
    for block in _blocks(vectors, mean):
        covariance += block.T @ block
    covariance /= len(vectors)
    values, columns = aside(lambda: eigh(covariance, subset_by_index=[dim - n_directions, dim - 1]))
    return values[::-1], columns[:, ::-1].T


def _randomised(
    vectors: Float32, mean: Float64, n_tried: int, random: np.random.RandomState
) -> tuple[Float64, Float64]:
    """Return about the largest variances and their directions: exactly those if `n_tried` is the rank."""
    columns = random.standard_normal((len(mean), n_tried))
    for _ in range(PASSES):
        product = np.zeros_like(columns)
        for block in _blocks(vectors, mean):
            product += block.T @ (block @ columns)
        columns = aside(partial(qr, product, mode="economic"))[0]
    small = np.zeros((n_tried, n_tried))
    for block in _blocks(vectors, mean):
        along = block @ columns
        small += along.T @ along
    values, turn = eigh(small / len(vectors))
    return values[::-1], (columns @ turn[:, ::-1]).T


def with_signs(directions: Float64) -> Float64:
    """Return the directions with the largest number of each positive: eigenvectors have no sign of their own."""
    if not directions.size:
        return directions
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return np.ascontiguousarray(directions * np.where(largest < 0, -1.0, 1.0))


class LinearMap:
    """y = scales * (directions @ (x - mean)), (p,) numbers; unit length if asked for.

    With a `rest_scale` above 0 no number is left out: y = rest_scale * (x - mean), but stretched by `scales` instead
    along the directions, D numbers. The bits of a row depend on that row alone.

    directions : (p, D) orthonormal, p may be 0. scales : (p,).
    shortest : a y that is shorter is not brought to unit length but divided by this, as it is little but rounding.
        None: no y is brought to unit length.
    """

    def __init__(
        self, mean: Float64, directions: Float32, scales: Float64, rest_scale: float, shortest: float | None
    ) -> None:
        self.mean, self.scales, self.rest_scale, self.shortest = mean, scales, rest_scale, shortest
        n_directions, dim = directions.shape
        self._filled = np.zeros((n_directions + 1, -(-dim // 8) * 8))  # as the kernel reads them
        self._filled[0, :dim], self._filled[1:, :dim] = mean, directions
        self._spread_out = ExactProduct(directions.T.astype(np.float64)) if rest_scale and n_directions else None

    def apply(self, vectors: Float32, out: Float32, n_jobs: int | None) -> None:
        """Write the mapped vectors into `out`."""
        if len(self.scales):
            along = scan.prefixes(vectors, None, self._filled[0], self._filled[1:], n_jobs)[0][:, :-1].astype(
                np.float64
            )
            mapped = along * (self.scales - self.rest_scale)
        if self.rest_scale:
            moved = self._spread_out(mapped) if self._spread_out is not None else 0.0
            mapped = (vectors - self.mean) * self.rest_scale + moved
        if self.shortest is not None:
            mapped /= np.maximum(np.sqrt(np.square(mapped).sum(axis=1)), self.shortest)[:, None]
        out[...] = mapped


def mapping(
    mean: Float64, directions: Float32, scales: Float64, rest_scale: float, shortest: float | None, device: str
) -> LinearMap | DeviceMap:
    """Return the map that a device computes; it is that of `LinearMap`."""
    if device == CPU:
        return LinearMap(mean, directions, scales, rest_scale, shortest)
    from ..gpu.products import DeviceMap

    return DeviceMap(mean, directions, scales, rest_scale, shortest, device)


def apart_after_map(mapped: Float32, moved: Float64, shortest: float | None) -> Float64:
    """Return how far the results of two devices may lie apart: of mapped vectors that are not of unit length yet, and
    were moved so far by what was before; `shortest` as in `LinearMap`.
    """
    lengths = np.sqrt(np.square(mapped, dtype=np.float64).sum(axis=1))
    away = moved + 2.0**-20 * lengths  # each number is rounded to float32 before and after it is scaled
    return np.asarray(away if shortest is None else 2 * away / np.maximum(lengths, shortest) + 2.0**-20)


def n_different(vectors: Float32) -> int:
    """Return how many of the rows differ: copies teach nothing more."""
    return len(aside(partial(np.unique, vectors.view(np.dtype((np.void, vectors.strides[0]))).ravel())))


def part_beyond(vectors: Float32, landmarks: Float32, usual: float) -> float:
    """Return the part of the vectors that are farther from all landmarks than is usual between these: the distance to
    the nearest other, of the part `usual` of them.
    """
    own = cdist(landmarks, landmarks)
    np.fill_diagonal(own, np.inf)
    limit = np.quantile(own.min(axis=1), usual) * (1 + 1e-5)
    return float((cdist(vectors, landmarks).min(axis=1) > limit).mean())
