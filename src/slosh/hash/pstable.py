"""Hashes for distances: the cell of a random grid on a random line that a vector falls into (Datar and others, 2004).

A vector has T tables of k integers. Near vectors often have all k integers of a table in common; how often depends on
their distance alone, and is known in closed form.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..data.checks import checked_count, checked_number, first_outside
from ..data.vectors import blocks, check_numbers, checked_vectors, fitting_vectors, hash_stream
from ..errors import InputError
from ..native.arrays import Array, Float64
from .rotations import Dense
from .sign import numbers_between

Self = TypeVar("Self", bound="PStableHash")

INT32_END = 2.0**31
LAST_CELL = math.nextafter(INT32_END, 0)


class CellError(InputError):
    """A vector lies so far away that the number of its cell does not fit int32."""


class PStableHash(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""T tables of k hashes h(u) = floor((<a, u> + b) / w), b uniform in [0, w).

    With p = 2 the numbers of a are standard normal, and <a, u> - <a, v> is normal with the standard deviation
    r = |u - v|_2. With p = 1 they are standard Cauchy numbers, the difference is one of scale r = |u - v|_1. So the
    probability that two vectors agree in one hash depends on their distance only (`collision_probability`), and all
    hashes are independent: in at least one table all k agree with the probability of `success_probability`.

    Parameters
    ----------
    width : w, the width of a cell, in the units of the vectors. A good start is four times the distance at which
        neighbours are to be found.
    n_hashes : k, hashes in a table. More of them make buckets smaller.
    n_tables : T. More of them find more of the neighbours.
    p : 2 or 1, the distance |u - v|_p.
    random_state : seed. The first tables of more are those of fewer.

    Attributes
    ----------
    directions_ : (T, k, D) float64, the vectors a.
    offsets_ : (T, k) float64, the numbers b.
    n_features_in_ : D.

    From Datar, Immorlica, Indyk, Mirrokni, "Locality-Sensitive Hashing Scheme Based on p-Stable Distributions", 2004;
    the SLOSH paper, section 3.2.

    >>> from slosh.hash import PStableHash
    >>> vectors = np.random.default_rng(0).normal(size=(100, 64))
    >>> PStableHash(width=4.0, n_hashes=8, n_tables=10).fit_transform(vectors).shape
    (100, 10, 8)
    """

    directions_: Float64
    offsets_: Float64
    n_features_in_: int
    _width: float
    _projection: Dense

    def __init__(self, width: float, n_hashes: int = 8, n_tables: int = 10, p: int = 2, random_state: Any = 0) -> None:
        self.width = width
        self.n_hashes = n_hashes
        self.n_tables = n_tables
        self.p = p
        self.random_state = random_state

    def fit(self: Self, X: Any, y: Any = None) -> Self:
        """Draw a and b for vectors (n, D), of which only D is used; `y` is ignored."""
        self.check_params()
        vectors = fitting_vectors(X)
        check_numbers(vectors)
        random = hash_stream(self.random_state)
        shape = (self.n_hashes, vectors.shape[1])
        draw = random.standard_normal if self.p == 2 else random.standard_cauchy
        tables = [(draw(shape), random.uniform(size=self.n_hashes)) for _ in range(self.n_tables)]
        self.set_state(np.stack([a for a, _ in tables]), np.stack([b for _, b in tables]) * float(self.width))
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:
        """Return the hashes of vectors (n, D): int32 (n, T, k). They do not depend on the rest of the batch."""
        return self._places(X, np.int32)

    def positions(self, X: Any) -> Float64:
        """Return (<a, u> + b) / w of vectors (n, D), float64 (n, T, k).

        Their integer part is the hash, as `transform` returns it; the fraction is the place of the vector in its cell.
        """
        return self._places(X, np.float64)

    def _places(self, X: Any, dtype: Any) -> Array:
        """Return the positions of vectors, in integers those of their cells."""
        check_is_fitted(self)
        vectors = checked_vectors(X, self.n_features_in_)
        out, offsets = np.empty((len(vectors), *self.offsets_.shape), dtype), self.offsets_.ravel()
        for rows, block in blocks(vectors, self._projection.block_rows):
            places = self._projection.project(block)
            places += offsets
            places /= self._width
            if (far := first_outside(places, -INT32_END, LAST_CELL)) is not None:
                problem = f"X: row {rows.start + far[0]} falls into cell {places[far]:.3g}, beyond int32"
                remedy = f"width={self._width!r} is too small for these vectors: choose a larger one, or centre them"
                raise CellError(problem, remedy, argument="X")
            if dtype is np.int32:
                np.floor(places, out=places)
            out[rows] = places.reshape(-1, *self.offsets_.shape)
        return out

    def set_state(self, directions: Float64, offsets: Float64) -> None:
        """Restore what a hash of the same parameters has drawn: its `directions_` and `offsets_`."""
        self.check_params()
        shape = (self.n_tables, self.n_hashes)
        if directions.shape[:2] != shape or directions.ndim != 3 or offsets.shape != shape:
            raise InputError(f"directions of shape {directions.shape} for {shape[0]} tables of {shape[1]} hashes")
        self.directions_, self.offsets_, self._width = directions, offsets, float(self.width)
        self.n_features_in_ = directions.shape[2]
        self._projection = Dense(directions.reshape(-1, self.n_features_in_))

    def collision_probability(self, r: ArrayLike) -> Any:
        r"""Return the probability that two vectors at the distance r = |u - v|_p agree in one hash.

        With s = w / r and the standard normal distribution function Phi,

            p = 2:  1 - 2 Phi(-s) - 2 / (sqrt(2 pi) s) (1 - exp(-s^2 / 2))
            p = 1:  2 atan(s) / pi - ln(1 + s^2) / (pi s)

        It falls from 1 at r = 0 to 0 at infinity.
        """
        self.check_params()
        distance = numbers_between("r", r, math.inf, "a distance, 0 or more")
        with np.errstate(over="ignore", divide="ignore"):
            s = np.minimum(float(self.width) / distance, 1e150)  # where P is 1, and s^2 is still a number
        return (_gaussian if self.p == 2 else _cauchy)(s)[()]

    def success_probability(self, r: ArrayLike) -> Any:
        """Return the probability that two vectors at the distance r share a bucket, 1 - (1 - P(r)^k)^T.

        They then agree in all k hashes of at least one of the T tables; P(r) is `collision_probability(r)`.
        """
        return at_least_one_table(self.collision_probability(r), self.n_hashes, self.n_tables)

    def check_params(self) -> None:
        """Refuse parameters that are not valid."""
        checked_number("width", self.width, "a positive number")
        checked_count("n_hashes", self.n_hashes)
        checked_count("n_tables", self.n_tables)
        if not isinstance(self.p, Integral) or isinstance(self.p, bool) or self.p not in (1, 2):
            problem = f"p={self.p!r} must be 2 (Euclidean distance) or 1 (the sum of absolute differences)"
            raise InputError(problem, argument="p")


def at_least_one_table(P: ArrayLike, k: int, T: int) -> Any:
    """Return 1 - (1 - P^k)^T, without cancellation where it is small."""
    with np.errstate(divide="ignore"):  # log of 0 where P = 1
        return -np.expm1(T * np.log1p(-(np.asarray(P, np.float64) ** k)))


def _gaussian(s: Float64) -> Float64:
    """Return P of p = 2 at s = w / r; for tiny s by its series, because s^2 may be lost."""
    t = np.clip(s, 1e-4, None)
    whole = erf(t / math.sqrt(2)) + math.sqrt(2 / math.pi) / t * np.expm1(-t * t / 2)
    t = np.clip(s, None, 1e-4)
    return np.where(s > 1e-4, whole, t * (1 - t * t / 12) / math.sqrt(2 * math.pi))


def _cauchy(s: Float64) -> Float64:
    """Return P of p = 1 at s = w / r; for tiny s by its series."""
    t = np.clip(s, 1e-4, None)
    whole = 2 * np.arctan(t) - np.log1p(t * t) / t
    t = np.clip(s, None, 1e-4)
    return np.where(s > 1e-4, whole, t * (1 - t * t / 6)) / math.pi
