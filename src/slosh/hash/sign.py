"""Sign codes: on which side of random planes a vector lies, packed to bytes.

The more bits two codes have in common, the smaller is the angle between the vectors, seen from the centre.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..data.checks import as_numbers, checked_count, input_error
from ..data.vectors import blocks, check_numbers, checked_vectors, fitting_vectors, hash_stream
from ..errors import InputError, UnsupportedError, bad_value
from ..native.arrays import Array, Float32, Float64, UInt8
from .rotations import ROTATIONS, Dense, Hadamard, make_rotation

Self = TypeVar("Self", bound="SignHash")

CENTERS = ("mean", "median")
SAMPLE_NUMBERS = 1 << 24
"""Projections held while the medians are taken (64 MB): 16,384 vectors at 1024 bits."""


class SignHash(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Binary codes by the signs of random projections: bit i of u is 1 where <a_i, u - centre> >= 0.

    Two vectors agree in a bit with probability 1 - angle / pi, the angle being that between u - centre and v - centre
    (`collision_probability`). A projection of exactly zero gives 1; the centre itself has the code of all ones.

    Parameters
    ----------
    n_bits : length of the code; any number from 1.
    center : "mean" (of the vectors of `fit`), None (the origin), or "median": each bit has a threshold of its own, the
        median of its projections over at most 16,384 of the vectors (fewer beyond 1024 bits), so that each bit splits
        the data in halves. There is then no centre, and no formula for the probability.
    rotation : how the directions a_i are drawn.
        "hadamard": random signs and fast Walsh-Hadamard transforms, D log D; directions of one rotation are orthogonal
        (exactly so if D is a power of two from 128 on), and near to uniform. "orthogonal": blocks of D orthonormal
        directions, uniform. "gaussian": independent, the paper's. The first two estimate an angle better than
        independent bits do.
    random_state : seed. The first bits of a longer code are the shorter code ("orthogonal": up to rounding).

    Attributes
    ----------
    center_ : (D,) float32 with "mean", else None.
    thresholds_ : (n_bits,) float32 with "median", else None.
    n_features_in_ : D.

    From Charikar, "Similarity Estimation Techniques from Rounding Algorithms", 2002; the SLOSH paper, section 3.2.

    >>> from slosh.hash import SignHash, hamming
    >>> vectors = np.random.default_rng(0).normal(size=(100, 64))
    >>> codes = SignHash(n_bits=256).fit_transform(vectors)
    >>> codes.shape, codes.dtype
    ((100, 32), dtype('uint8'))
    >>> hamming(codes[:1], codes[:1])
    array([[0]], dtype=int32)
    """

    center_: Float32 | None
    thresholds_: Float32 | None
    n_features_in_: int
    _rotation: Hadamard | Dense

    def __init__(
        self, n_bits: int = 1024, center: str | None = "mean", rotation: str = "hadamard", random_state: Any = 0
    ) -> None:
        self.n_bits = n_bits
        self.center = center
        self.rotation = rotation
        self.random_state = random_state

    def fit(self: Self, X: Any, y: Any = None) -> Self:
        """Draw the directions for vectors (n, D), and learn the centre from them; `y` is ignored."""
        n_bits = self.check_params()
        vectors = fitting_vectors(X)
        if self.center != "mean":
            check_numbers(vectors)
        random = hash_stream(self.random_state)
        rotation = make_rotation(self.rotation, vectors.shape[1], n_bits, random)
        center = _mean(vectors, rotation.block_rows) if self.center == "mean" else None
        self.thresholds_ = _medians(vectors, rotation, random) if self.center == "median" else None
        self.center_, self.n_features_in_, self._rotation = center, vectors.shape[1], rotation
        return self

    def transform(self, X: Any) -> Any:
        """Return the codes of vectors (n, D): uint8 (n, ceil(n_bits / 8)), the bits in the order of `np.packbits`.

        Bit 0 is the highest bit of byte 0. Where n_bits is no multiple of 8 the last byte ends in zeros. A vector's
        code does not depend on the rest of the batch. "hadamard" runs on one thread.
        """
        check_is_fitted(self)
        vectors = checked_vectors(X, self.n_features_in_)
        out = np.empty((len(vectors), self._n_features_out), np.uint8)
        for rows, block in blocks(vectors, self._rotation.block_rows):
            out[rows] = self._codes(block)
        return out

    def get_state(self) -> dict[str, Array]:
        """Return what was drawn and learned, as arrays for a file."""
        check_is_fitted(self)
        learned = {"center": self.center_, "thresholds": self.thresholds_}
        return {**self._rotation.state(), **{name: array for name, array in learned.items() if array is not None}}

    def set_state(self, arrays: dict[str, Array], dim: int) -> None:
        """Restore what `get_state` returned; refuse (InputError, KeyError) what does not fit the parameters."""
        n_bits = self.check_params()
        kind = Hadamard if self.rotation == "hadamard" else Dense
        rotation = kind.from_state(dim, n_bits, arrays)
        learned: dict[str, Float32 | None] = {"center": None, "thresholds": None}
        for name, when, size in (("center", "mean", dim), ("thresholds", "median", n_bits)):
            if self.center == when:
                array = learned[name] = arrays[name]
                if array.shape != (size,) or array.dtype != np.float32 or not np.isfinite(array).all():
                    raise InputError(f"the {name} of the stored hash must be {size} finite float32 numbers")
        self.center_, self.thresholds_ = learned["center"], learned["thresholds"]
        self.n_features_in_, self._rotation = dim, rotation

    def _codes(self, block: Float32) -> UInt8:
        projections = self._rotation.project(block if self.center_ is None else block - self.center_)
        bits = projections >= (0 if self.thresholds_ is None else self.thresholds_)
        return np.packbits(np.ascontiguousarray(bits), axis=1)

    def collision_probability(self, angle: ArrayLike, n_bits: int = 1) -> Any:
        """Return the probability that two vectors agree in one bit, 1 - angle / pi, in the shape of `angle`.

        angle : 0 to pi, between the vectors less the centre.
        n_bits : return the probability that they agree in all of n_bits given bits, (1 - angle / pi)^n_bits. It needs
            independent bits, that is `rotation="gaussian"`.

        It is exact for "gaussian" and "orthogonal", over the draw of the directions, and within .002 for "hadamard",
        measured over the most unfavourable vectors. `center="median"` has no closed form, and raises.
        """
        self.check_params()
        self._check_center("collision_probability")
        if checked_count("n_bits", n_bits) > 1 and self.rotation != "gaussian":
            problem = f"n_bits={n_bits} needs independent bits, which rotation={self.rotation!r} does not have"
            raise UnsupportedError(problem, 'pass rotation="gaussian"', argument="n_bits")
        theta = numbers_between("angle", angle, np.pi * (1 + 1e-12), "0 to pi (in radians)")
        return np.maximum(1 - theta / np.pi, 0.0) ** n_bits

    def estimated_angle(self, hamming: ArrayLike) -> Any:
        """Return the angle at which `hamming` different bits are expected, pi hamming / n_bits.

        Its standard error is pi sqrt(P (1 - P) / n_bits), P = 1 - angle / pi, with independent bits, and less with
        the orthogonal rotations.
        """
        n_bits = self.check_params()
        self._check_center("estimated_angle")
        return np.pi * numbers_between("hamming", hamming, n_bits, f"0 to n_bits={n_bits}") / n_bits

    def check_params(self) -> int:
        """Refuse parameters that are not valid; return n_bits."""
        n_bits = checked_count("n_bits", self.n_bits)
        if self.center is not None and (not isinstance(self.center, str) or self.center not in CENTERS):
            raise bad_value("center", self.center, 'pass "mean", "median" or None')
        if not isinstance(self.rotation, str) or self.rotation not in ROTATIONS:
            raise bad_value("rotation", self.rotation, f"pass one of {', '.join(map(repr, ROTATIONS))}")
        return n_bits

    def _check_center(self, what: str) -> None:
        if self.center == "median":
            problem = f'{what} has no closed form with center="median", where each bit has its own threshold'
            raise UnsupportedError(problem, 'pass center="mean" or None', argument="center", feature_name=what)

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self)
        return -(-self._rotation.n_bits // 8)


def _mean(vectors: Array, n_rows: int) -> Float32:
    total = np.zeros(vectors.shape[1])
    for _, block in blocks(vectors, n_rows):
        total += block.sum(axis=0, dtype=np.float64)
    return (total / len(vectors)).astype(np.float32)


def _medians(vectors: Array, rotation: Hadamard | Dense, random: np.random.RandomState) -> Float32:
    size = max(256, SAMPLE_NUMBERS // rotation.n_bits)
    if len(vectors) > size:
        vectors = vectors[np.unique(random.randint(len(vectors), size=size, dtype=np.int64))]
    projections = np.empty((len(vectors), rotation.n_bits), np.float32)
    for rows, block in blocks(vectors, rotation.block_rows):
        projections[rows] = rotation.project(block)
    return np.median(projections, axis=0, overwrite_input=True).astype(np.float32)


def numbers_between(name: str, values: ArrayLike, largest: float, what: str) -> Float64:
    """Return numbers from 0 to `largest`, of any shape, in float64; an error says that they must be `what`."""
    numbers = as_numbers(values, name).astype(np.float64)
    if not np.all((numbers >= 0) & (numbers <= largest)):
        raise input_error(name, f"must be {what}, not {numbers.min():.6g} to {numbers.max():.6g}")
    return numbers
