"""Slices: the functions g_theta that turn every element of a set into numbers, one for each slice.

`directions` draws unit vectors for the linear slices <theta, x>. A `Slicer` also covers the non-linear ones; it
projects points (P, d) to numbers (P, L).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import qmc
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import ThreadpoolController

from .checkpoints import aside
from .data.checks import checked_count, checked_number, finite_rows, first_outside, input_error
from .errors import InputError, bad_value
from .native.arrays import Array, Float32, Float64
from .native.product import ExactProduct

Seed = int | np.random.RandomState | None
Evaluate = Callable[[Float64], Float64]

KINDS = ("random", "orthogonal", "qmc", "axis")
MAX_MONOMIALS = 100_000
LARGE_BLOCK_NUMBERS = 1 << 20
"""A block of so many numbers takes long enough to decompose that one who waits for it may want to stop."""
MAX_SLICE_NUMBERS = 1 << 25
"""Numbers of all directions, or of a layer of `Neural`, at most: 256 MB while they are drawn."""
LEAK = 0.2
"""The slope of a leaky rectifier below zero."""
LARGEST_VALUE = 1e16
"""Of a projection: the sum of the squares of 10,000 such values still fits float32."""
UNIT_ROUNDING = 2.0**-23
"""A unit vector that was rounded to float32 has a length that is off by less."""
PROJECTION_BLOCK_NUMBERS = 1 << 17
"""Numbers held at once while projecting (1 MB of float64): keeps the temporaries in cache, and memory bounded."""


def directions(kind: str | ArrayLike, n_slices: int | None, dim: int, random_state: Seed = None) -> Float32:
    """Return unit vectors theta in R^d for linear slices <theta, x>, float32 (n_slices, dim).

    Parameters
    ----------
    kind : "random", "orthogonal", "qmc", "axis" or an array (L, d)
        "random": independent, uniform on the sphere (the paper's). "orthogonal": blocks of d orthonormal vectors, each
        block uniform over all such, the last one cut. "qmc": evenly spread: equal angles on the half circle for d = 2,
        a Fibonacci spiral on the half sphere for d = 3 (both turned at random), scrambled Sobol points beyond. "axis":
        the d coordinate axes. An array: your own vectors, scaled to length 1; those that have it, but for what float32
        rounds, stay as they are, so that fitted directions are the same when they are given again.
    n_slices : the number of slices; None for "axis" and an array, which have a number of their own.
        n_slices * dim is at most 2^25.
    dim : d. For d = 1 one slice, [[1.0]], is exact and is returned for every `kind` and `n_slices`.
    random_state : a seed gives the same draws on every machine. With "random", "orthogonal" (up to rounding) and "qmc"
        beyond d = 3 the first l of L > l slices are the slices of a draw of l.

    >>> directions("orthogonal", 5, 3, random_state=0).shape
    (5, 3)
    """
    dim = checked_count("dim", dim)
    if not isinstance(kind, str):
        return _own_directions(kind, n_slices, dim)
    if kind not in KINDS:
        raise _unknown(kind)
    if n_slices is not None or kind != "axis":
        n_slices = checked_count("n_slices", n_slices)
    random = check_random_state(random_state)
    if dim == 1:
        return np.ones((1, 1), np.float32)
    _check_size(dim, dim if n_slices is None else n_slices)
    if kind == "axis":
        _check_own_number(f"slices='axis' has {dim} slices, one for each axis", dim, n_slices)
        return np.eye(dim, dtype=np.float32)
    assert n_slices is not None
    draw = {"random": _sphere, "orthogonal": _orthogonal, "qmc": _even}[kind]
    return draw(random, n_slices, dim).astype(np.float32)


def _check_size(dim: int, n_slices: int) -> None:
    """Refuse slices that take too much memory, before any of it is taken."""
    if dim * n_slices > MAX_SLICE_NUMBERS:
        problem = f"{n_slices:,} slices in {dim:,} dimensions are {dim * n_slices:,} numbers, "
        remedy = f"give n_slices={max(1, MAX_SLICE_NUMBERS // dim)} or fewer, or reduce the dimension first (PCA)"
        raise InputError(f"{problem}more than {MAX_SLICE_NUMBERS:,}", remedy, argument="n_slices")


def _unknown(kind: str) -> InputError:
    others = "an array (L, d), a slicer (Linear, Polynomial, Circular, Neural) or a function"
    remedy = f"choose one of {', '.join(map(repr, KINDS))}, or pass {others}"
    return InputError(f"slices={kind!r} is not known", remedy, argument="slices")


def _own_directions(array: ArrayLike, n_slices: int | None, dim: int) -> Float32:
    own = finite_rows("slices", array, dim, "L", "direction")
    largest = np.abs(own).max(axis=1, keepdims=True)
    for row in np.flatnonzero(largest[:, 0] == 0):
        raise InputError(f"slices: row {row} is zero and has no direction", argument="slices")
    if dim == 1:
        return np.ones((1, 1), np.float32)
    _check_own_number(f"slices has {len(own)} rows", len(own), n_slices)
    scaled = own / largest  # so that squares neither overflow nor vanish
    with np.errstate(over="ignore"):
        lengths = largest * np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < UNIT_ROUNDING, own, _unit(scaled)).astype(np.float32)


def _check_own_number(found: str, own: int, n_slices: int | None) -> None:
    if n_slices not in (None, own):
        raise InputError(f"{found}; n_slices={n_slices} must be {own} or None", argument="n_slices")


def _unit(rows: Float64) -> Float64:
    unit: Float64 = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _sphere(random: np.random.RandomState, n: int, dim: int) -> Float64:
    return _unit(random.standard_normal((n, dim)))


def _orthogonal(random: np.random.RandomState, n: int, dim: int) -> Float64:
    blocks = []
    with _thread_pools().limit(limits=1):  # many small decompositions: LAPACK's threads would wait for each other
        for start in range(0, n, dim):
            drawn = random.standard_normal((min(dim, n - start), dim)).T
            q, r = np.linalg.qr(drawn) if drawn.size < LARGE_BLOCK_NUMBERS else aside(partial(np.linalg.qr, drawn))
            # The decomposition is unique, and q uniform, only once the signs of r's diagonal are fixed.
            blocks.append((q * np.where(np.diag(r) < 0, -1.0, 1.0)).T)
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the thread pools of the libraries in this process, NumPy's among them: to look for them takes longer than
    the decompositions.
    """
    return ThreadpoolController()


def _even(random: np.random.RandomState, n: int, dim: int) -> Float64:
    # theta and -theta give the same distance, so half the circle or sphere is enough.
    if dim == 2:
        angle = np.pi * (np.arange(n) + random.uniform()) / n
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dim == 3:
        height = (np.arange(n) + 0.5) / n  # equal steps of height cut bands of equal area
        radius = np.sqrt(1 - height * height)
        turn = np.pi * (3 - math.sqrt(5)) * np.arange(n)
        spiral = np.stack([radius * np.cos(turn), radius * np.sin(turn), height], axis=1)
        turned: Float64 = spiral @ _orthogonal(random, 3, 3)
        return turned
    n_bits = (n - 1).bit_length()
    points = qmc.Sobol(dim, scramble=False).random_base2(n_bits)[:n]
    digits = (points * 2.0**n_bits).astype(np.int64)
    # SciPy's own scrambling draws other numbers from one version to the next. This is the same one, Matousek's: a
    # shift, and a lower triangular matrix over the binary digits of each coordinate, one column (30 bits) at a time.
    scrambled = np.tile(random.randint(1 << 30, size=dim, dtype=np.int64), (n, 1))
    for bit in range(n_bits):
        column = (1 << 29 - bit) + random.randint(1 << 29 - bit, size=dim, dtype=np.int64)
        scrambled ^= (digits >> n_bits - 1 - bit & 1) * column
    return _unit(ndtri((scrambled + 0.5) * 2.0**-30))


class Slicer(BaseEstimator):  # type: ignore[misc]
    """Base class. A subclass implements `_draw`, which draws its parameters from a seed, and `_evaluator`.

    linear : whether the slices are <theta, x>; theta is then `directions_`, which is None otherwise.
    draws : whether `fit` needs `n_slices`; otherwise the slicer has a number of its own, and takes None.
    storable : whether an index on disk can store the slicer.

    The bits of a projection depend on its element alone, not on the rest of the batch.
    """

    linear: ClassVar[bool] = False
    storable: ClassVar[bool] = True
    directions_: Float32 | None = None
    dim_: int
    n_slices_: int

    @property
    def draws(self) -> bool:
        return True

    def fit(self, dim: int, n_slices: int | None = None, random_state: Seed = None) -> Slicer:
        """Draw `n_slices` slices of R^dim and return the slicer. For dim = 1 there may be one slice only."""
        self.dim_ = checked_count("dim", dim)
        if self.draws:
            n_slices = checked_count("n_slices", n_slices)
        self.n_slices_ = self._draw(self.dim_, n_slices, check_random_state(random_state))
        return self

    def project(self, points: Array) -> Float32:
        """Return g_theta(x) of every point (P, d) and slice: float32 (P, L), computed in float64."""
        check_is_fitted(self, "n_slices_")
        if points.ndim != 2 or points.shape[1] != self.dim_:
            what = f"must have shape (P, {self.dim_}), as the slicer was fitted; got {points.shape}"
            raise input_error("points", what)
        out = np.empty((len(points), self.n_slices_), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # found below, with a better message
            evaluate, columns = self._evaluator()
            step = max(64, PROJECTION_BLOCK_NUMBERS // max(columns, 2 * self.n_slices_))
            for start in range(0, len(points), step):
                out[start : start + step] = evaluate(points[start : start + step].astype(np.float64))
        if (beyond := first_outside(out, -LARGEST_VALUE, LARGEST_VALUE)) is not None:
            row = beyond[0]
            where = f"at element {row}, with a coordinate of {np.abs(points[row]).max():.3g}"
            remedy = "scale the data, for instance to a standard deviation of 1"
            raise InputError(f"{self} is beyond {LARGEST_VALUE:g} {where}", remedy, argument="points", element=row)
        return out

    def _draw(self, dim: int, n_slices: int | None, random: np.random.RandomState) -> int:
        raise NotImplementedError

    def _evaluator(self) -> tuple[Evaluate, int]:
        """Return a function of a block of points (float64), and how many numbers it holds for each point."""
        raise NotImplementedError


class Linear(Slicer):
    """g_theta(x) = <theta, x>; `kind` as in `directions`. The native kernel projects these slices itself.

    >>> Linear("axis").fit(2).project(np.array([[3.0, 4.0]])).tolist()
    [[3.0, 4.0]]
    """

    linear = True

    def __init__(self, kind: str | ArrayLike = "random") -> None:
        self.kind = kind

    @property
    def draws(self) -> bool:
        return isinstance(self.kind, str) and self.kind != "axis"

    def _draw(self, dim: int, n_slices: int | None, random: np.random.RandomState) -> int:
        self.directions_ = directions(self.kind, n_slices, dim, random)
        return len(self.directions_)

    def _evaluator(self) -> tuple[Evaluate, int]:
        assert self.directions_ is not None
        return ExactProduct(self.directions_.astype(np.float64)), self.dim_


class Polynomial(Slicer):
    """g_theta(x) = sum over |alpha| = m of theta_alpha x^alpha: homogeneous polynomials of odd degree m.

    theta is uniform on the unit sphere of R^K, K = C(d + m - 1, m) monomials (at most 100,000), in the order of
    `itertools.combinations_with_replacement`. Odd, so that the sliced distance is a metric; in units of x^m, so that
    elements far from zero weigh most: not for features of very different scales.
    """

    coefficients_: Float32

    def __init__(self, degree: int = 3) -> None:
        self.degree = degree

    def _draw(self, dim: int, n_slices: int | None, random: np.random.RandomState) -> int:
        degree = checked_count("degree", self.degree)
        if degree % 2 == 0:
            problem = f"degree={degree} must be odd: an even polynomial cannot tell x from -x"
            raise InputError(problem, argument="degree")
        n_monomials = math.comb(dim + degree - 1, degree)
        if n_monomials > MAX_MONOMIALS:
            terms = f"has {n_monomials:,} terms, more than {MAX_MONOMIALS:,}"
            remedy = "choose a smaller degree, reduce the dimension first (PCA), or use linear slices"
            raise InputError(f"degree={degree} in dimension {dim} {terms}", remedy, argument="degree")
        self.coefficients_ = directions("random", n_slices, n_monomials, random)
        return len(self.coefficients_)

    def _evaluator(self) -> tuple[Evaluate, int]:
        product = ExactProduct(self.coefficients_.astype(np.float64))
        last = np.arange(self.dim_)  # the last factor of each monomial so far; the next one is no smaller
        steps = []
        for _ in range(1, self.degree):
            counts = self.dim_ - last
            parent = np.repeat(np.arange(len(last)), counts)
            last = np.arange(len(parent)) + np.repeat(last + counts - np.cumsum(counts), counts)
            steps.append((parent, last))

        def evaluate(block: Float64) -> Float64:
            monomials = block
            for parent, last in steps:
                monomials = monomials[:, parent]
                monomials *= block[:, last]
            return product(monomials)

        return evaluate, self.coefficients_.shape[1]


class Circular(Slicer):
    """g_theta(x) = |x - r theta|: distances to points theta, uniform on the sphere, at `radius` r from the origin.

    Choose r in the units of the data, no smaller than its extent, after centring it: a small r makes all slices alike.
    """

    centers_: Float32

    def __init__(self, radius: float = 1.0) -> None:
        self.radius = radius

    def _draw(self, dim: int, n_slices: int | None, random: np.random.RandomState) -> int:
        assert n_slices is not None
        radius = checked_number("radius", self.radius, "a positive number")
        _check_size(dim, n_slices)
        self.centers_ = (radius * _sphere(random, n_slices, dim)).astype(np.float32)
        return n_slices

    def _evaluator(self) -> tuple[Evaluate, int]:
        centers = np.ascontiguousarray(self.centers_.T, dtype=np.float64)

        def evaluate(block: Float64) -> Float64:
            # Not |x|^2 - 2 r <theta, x> + r^2, which cancels. Feature by feature: a sum whose order is fixed.
            total = np.zeros((len(block), centers.shape[1]))
            for column, center in zip(block.T, centers, strict=True):
                step = column[:, None] - center
                step *= step
                total += step
            return np.sqrt(total, out=total)

        return evaluate, centers.shape[1]


class Neural(Slicer):
    """g_theta(x) = a random network: `depth` hidden layers of `width` leaky rectifiers, no biases, one output a slice.

    `width` None is 64, or d if that is more: a narrower layer is blind to whole directions. Gaussian weights, scaled so
    that the size of the numbers stays about that of x; scaling x scales g. Only a pseudo-metric: two different sets may
    get distance zero.
    """

    weights_: list[Float32]

    def __init__(self, width: int | None = None, depth: int = 2) -> None:
        self.width = width
        self.depth = depth

    def _draw(self, dim: int, n_slices: int | None, random: np.random.RandomState) -> int:
        assert n_slices is not None
        width = max(64, dim) if self.width is None else checked_count("width", self.width)
        sizes = [dim] + [width] * checked_count("depth", self.depth) + [n_slices]
        for n_inputs, n_outputs in pairwise(sizes):
            _check_size(n_inputs, n_outputs)
        self.weights_ = []
        for n_inputs, n_outputs in pairwise(sizes):
            first = not self.weights_  # only later layers see numbers that a rectifier made smaller
            scale = math.sqrt((1.0 if first else 2 / (1 + LEAK**2)) / n_inputs)
            self.weights_.append((scale * random.standard_normal((n_outputs, n_inputs))).astype(np.float32))
        return n_slices

    def _evaluator(self) -> tuple[Evaluate, int]:
        layers = [ExactProduct(weights.astype(np.float64)) for weights in self.weights_]

        def evaluate(block: Float64) -> Float64:
            for layer in layers[:-1]:
                block = layer(block)
                block = np.maximum(block, LEAK * block)  # not tanh: NumPy does not promise its last bit
            return layers[-1](block)

        return evaluate, max(weights.shape[1] for weights in self.weights_)


class Function(Slicer):
    """Your own slices: `function` maps points (P, d), float32 and read-only, to finite numbers (P, L).

    It must be deterministic and treat each point by itself; whether the bits are the same in every batch is up to it.
    `n_slices` is L, or None to find L by calling it once on a few Gaussian points. An index on disk cannot store it.
    """

    storable = False

    def __init__(self, function: Callable[[Float32], ArrayLike]) -> None:
        self.function = function

    @property
    def draws(self) -> bool:
        return False

    def _draw(self, dim: int, n_slices: int | None, random: np.random.RandomState) -> int:
        if not callable(self.function):
            raise bad_value("function", self.function, "it must be callable")
        if n_slices is not None:
            return checked_count("n_slices", n_slices)
        return int(self._call(random.standard_normal((4, dim)).astype(np.float32)).shape[1])

    def project(self, points: Array) -> Float32:
        check_is_fitted(self, "n_slices_")
        if len(points) == 0:
            return np.empty((0, self.n_slices_), np.float32)
        values = self._call(points)
        if values.shape[1] != self.n_slices_:
            problem = f"gave {values.shape[1]} numbers a point, not n_slices={self.n_slices_}"
            raise self._wrong(problem, f"pass n_slices={values.shape[1]}, or None")
        return values

    def _wrong(self, problem: str, remedy: str = "") -> InputError:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return InputError(f"slices function {name} {problem}", remedy, argument="slices")

    def _call(self, points: Array) -> Float32:
        given = points.astype(np.float32, copy=False).view()
        given.flags.writeable = False  # these are the user's own sets: a slip in the function must not change them
        with np.errstate(over="ignore"):
            values = np.asarray(self.function(given))
            if values.dtype.kind not in "fiub":
                raise self._wrong(f"gave {values.dtype}, not real numbers")
            values = values.astype(np.float32)
        if values.ndim != 2 or values.shape[0] != len(points) or values.shape[1] == 0:
            raise self._wrong(f"must map points (P, d) to (P, L); from {points.shape} it gave {values.shape}")
        if (beyond := first_outside(values, -LARGEST_VALUE, LARGEST_VALUE)) is not None:
            raise self._wrong(f"gave NaN, or more than {LARGEST_VALUE:g}, for element {beyond[0]}")
        return values


def make_slicer(slices: str | ArrayLike | Slicer | Callable[[Float32], ArrayLike]) -> Slicer:
    """Return an unfitted slicer for `slices`: a kind of directions, an array, a slicer, or a function."""
    if isinstance(slices, Slicer):
        copy: Slicer = clone(slices)  # the user's own object stays as it is
        return copy
    if callable(slices):
        return Function(slices)
    if isinstance(slices, str) and slices not in KINDS:
        raise _unknown(slices)
    return Linear(slices)
