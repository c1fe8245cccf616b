"""The Sliced-Wasserstein embedding: a set becomes a vector, and Euclidean distance stands for the sliced distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.spatial.distance import cdist

from ..checkpoints import checkpoint, pieces
from ..data.checks import checked_count, random_stream
from ..data.sets import Sets, check_origin
from ..errors import InputError, UnsupportedError, bad_value
from ..gpu.devices import CPU, checked_device
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Quantiles, Ragged
from ..slices import Slicer, make_slicer
from .base import DeviceTransformer
from .references import KINDS, learnt_reference, reference_points, unknown_reference

NATIVE_STEPS = 1 << 26
"""Elements times slices of one native call: a fraction of a second, so that Ctrl-C is heard."""
PROJECTED_NUMBERS = 1 << 23
"""Elements times slices of one batch whose slices are not linear: their projections are held in memory."""
STEPS_OF_A_THREAD = 200_000
"""Elements times slices, more in many dimensions, that are not worth a second thread; the kernel counts alike."""
WHOLE_BLOCK_DIM, SLICES_BEYOND = 4096, 512
"""Up to this dimension the default is a whole block of directions, and beyond it so many of a block."""
MAX_VECTOR_NUMBERS = 1 << 24
"""Numbers of a vector, slices times quantiles, at most: 64 MB."""
NORM_NUMBERS = 1 << 20
"""Numbers of vectors whose norms are computed in one go."""
DIRECT_SETS = 256
"""`index_vectors` embeds up to this many sets in one native call, without the loop over batches."""
TF32_DIM = 64
"""The fewest features that `tf32` makes a difference for: with fewer, products take little of the time of a GPU."""
REFERENCES = (*KINDS, "barycenter")


def default_slices(dim: int) -> int:
    """Return the default number of slices in d dimensions (docs/defaults.md says how it was chosen).

    Beyond d = 3 it is a multiple of d: a whole block of orthogonal directions sees all differences alike, one cut short
    does not, so that more slices can be worse. Beyond d = 4096 a whole block would take minutes and gigabytes, and a
    part of one has to do.

    >>> [default_slices(d) for d in (1, 2, 3, 8, 64, 384, 4096, 4097)]
    [1, 16, 64, 128, 256, 384, 4096, 512]
    """
    if dim <= 3:
        return {1: 1, 2: 16, 3: 64}[dim]
    if dim > WHOLE_BLOCK_DIM:
        return SLICES_BEYOND
    about = 64 if dim < 6 else 128 if dim < 32 else 256
    return dim * max(1, round(about / dim))


def auto_slicer(slices: Any, dim: int, n_slices: int | None, random: np.random.RandomState) -> Slicer:
    """Return the fitted slicer that `slices` and `n_slices` stand for, in d dimensions."""
    if isinstance(slices, str) and slices == "auto":
        slices = "qmc" if dim <= 3 else "orthogonal"
    slicer = make_slicer(slices)
    if n_slices is None and slicer.draws:
        n_slices = default_slices(dim)
    return slicer.fit(dim, n_slices, random)


def check_quantiles(n_quantiles: object, rule: object) -> None:
    """Refuse a number of quantiles, or a rule for sampling them, that is not valid."""
    checked_count("n_quantiles", n_quantiles)
    if rule not in ("average", "linear"):
        raise bad_value("quantiles", rule, 'pass "average" or "linear"')


class SlicedWasserstein(DeviceTransformer):
    r"""Embeds sets so that Euclidean distance stands for the Sliced-Wasserstein distance.

    For each of L slices g_theta (a unit direction, unless `slices` says otherwise) the values g(x) of a set's elements,
    sorted, are its quantile function Q(t), t in (0, 1]. It is sampled into M numbers,

    - ``quantiles="average"``: the mean of Q over each of M equal bins. The embedded distance is never larger than the
      sliced distance, and `bounds` encloses it.
    - ``quantiles="linear"``: Q at (m + 1) / M, by linear interpolation (the paper's). With N = M elements in both sets
      the embedded distance equals the sliced distance.

    and phi = (samples - those of the reference) / sqrt(L M), slice after slice. Elements may have weights
    (`Sets.weights`).

    Parameters
    ----------
    n_slices : number of slices L; None chooses by the dimension (`default_slices`). One slice is exact for d = 1.
    n_quantiles : numbers for each slice, M.
    slices : "auto" ("qmc" up to d = 3, "orthogonal" beyond), "random", "orthogonal", "qmc", "axis", an array (L, d), a
        slicer of `slosh.slices`, or a function (P, d) -> (P, L).
    quantiles : "average" or "linear".
    reference : None, "uniform" ([0, 1]^d), "normal", "sample" (a random set of the data), "kmeans" (over the elements
        of all sets), "barycenter" (the mean quantile functions), or a set (N, d) of your own. It cancels out of every
        distance between two sets; it is the origin for codes that look at signs.
    random_state : seed of slices and reference.
    n_jobs : threads; -1 is all cores. The result does not depend on it.
    device : None or "cpu", or a GPU, "cuda" or "cuda:1", which makes the same vectors to rounding (`rounding`), for
        linear slices. It needs torch; see docs/gpu.md. It is not stored with the embedding.
    tf32 : whether a GPU may round elements and slices to TF32, eleven bits, before it multiplies them. With many
        features this takes less time. Nothing bounds distances then, and no search can be certified.

    Attributes
    ----------
    slices_ : (L, d) float32 directions, or the fitted slicer if it is not linear.
    n_slices_ : L.
    reference_ : (L, M) float32, zero without a reference.
    slicer_ : the fitted slicer.
    average_ : whether the rule is "average".
    tf32_ : whether a GPU may round.

    From Lu, Liu, Soltoggio, Kolouri, "SLOSH: Set LOcality Sensitive Hashing via Sliced-Wasserstein Embeddings",
    section 4.

    >>> from slosh.embed import SlicedWasserstein
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(size=(n, 3)) for n in (5, 100, 2000)]
    >>> SlicedWasserstein(n_slices=8, n_quantiles=16).fit_transform(sets).shape
    (3, 128)
    """

    slices_: Float32 | Slicer
    n_slices_: int
    reference_: Float32
    slicer_: Slicer
    average_: bool
    tf32: bool = False
    tf32_: bool = False
    """Both are so for embeddings that were stored before there was such a parameter."""
    _norm: float | None = None
    _known: tuple[Float32, Slicer, Quantiles] | None = None

    def __init__(
        self,
        n_slices: int | None = None,
        n_quantiles: int = 16,
        *,
        slices: Any = "auto",
        quantiles: str = "average",
        reference: Any = None,
        random_state: Any = 0,
        n_jobs: int | None = -1,
        device: str | None = None,
        tf32: bool = False,
    ) -> None:
        self.n_slices = n_slices
        self.n_quantiles = n_quantiles
        self.slices = slices
        self.quantiles = quantiles
        self.reference = reference
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device
        self.tf32 = tf32

    def _fit(self, sets: Sets) -> None:
        check_quantiles(self.n_quantiles, self.quantiles)
        if not isinstance(self.tf32, bool | np.bool_):
            raise bad_value("tf32", self.tf32, "pass True or False")
        if self.n_slices is not None:
            checked_count("n_slices", self.n_slices)
        if isinstance(self.reference, str) and self.reference not in REFERENCES:
            raise unknown_reference(self.reference, REFERENCES)
        kernel.threads(self.n_jobs)
        checked_device(self.device)
        random = random_stream(self.random_state)
        self.slicer_ = auto_slicer(self.slices, sets.dim, self.n_slices, random)
        if self.slicer_.n_slices_ * self.n_quantiles > MAX_VECTOR_NUMBERS:
            numbers = f"{self.slicer_.n_slices_:,} slices of {self.n_quantiles:,} numbers each"
            problem = f"{numbers} make vectors of more than {MAX_VECTOR_NUMBERS:,} numbers"
            raise InputError(problem, "give fewer n_slices or n_quantiles", argument="n_quantiles")
        # What is fitted stays, whatever set_params changes later.
        self.average_, self.tf32_ = self.quantiles == "average", bool(self.tf32)
        self.n_slices_ = self.slicer_.n_slices_
        self.slices_ = self.slicer_ if self.slicer_.directions_ is None else self.slicer_.directions_
        self._norm = self._known = None
        self.reference_ = np.zeros((self.n_slices_, self.n_quantiles), np.float32)
        if self.reference is not None:
            self.reference_ = self._reference(sets, random)

    def _reference(self, sets: Sets, random: np.random.RandomState) -> Float32:
        """Return the quantiles of the reference, (L, M), by the same slices and rule as those of any set."""
        shape = self.reference_.shape
        if isinstance(self.reference, str) and self.reference == "barycenter":
            total, at_once = np.zeros(shape), max(1, (1 << 22) // self.vector_length)
            for first in range(0, len(sets), at_once):
                for part in Sets.stream(iter([sets[first : first + at_once]]), self._batch_points(), dim=sets.dim):
                    total += self._quantiles(part).sum(axis=0, dtype=np.float64).reshape(shape)
            return (total / len(sets)).astype(np.float32)
        points, weights = reference_points(self.reference, sets, self.n_quantiles, random)
        single = Sets.from_list([points], None if weights is None else [weights], dim=sets.dim)
        return self._quantiles(single).reshape(shape)

    @property
    def needs_data(self) -> str | None:
        return learnt_reference(self.reference)

    @property
    def sliced_view(self) -> SlicedWasserstein:
        return self

    @property
    def vector_length(self) -> int:
        return int(self.reference_.size)

    def _native_batch_points(self) -> int:
        steps = NATIVE_STEPS if self.slicer_.directions_ is not None else PROJECTED_NUMBERS
        return max(1 << 10, min(steps // self.n_slices_, (1 << 22) // self.n_features_in_))

    def _rule(self, reference: Float32 | None, scale: float) -> Quantiles:
        shape = self.reference_.shape
        return Quantiles(self.slicer_.directions_, reference, self.n_slices_, shape[1], self.average_, scale)

    def _vector_rule(self) -> Quantiles:
        """Return what a vector is; it is kept, because making it takes a part of a single query that can be saved."""
        known = self._known
        if known is None or known[0] is not self.reference_ or known[1] is not self.slicer_:
            rule = self._rule(self.reference_ if self._reference_norm() else None, 1.0 / math.sqrt(self.vector_length))
            self._known = known = self.reference_, self.slicer_, rule
        return known[2]

    def _write_quantiles(self, sets: Sets, out: Float32, rule: Quantiles, residual: Float64 | None) -> None:
        directions, reference = rule.directions, rule.reference
        device = checked_device(self.device)
        if device != CPU:
            self._embed_on(device, Ragged(sets.points, sets.offsets, sets.weights), out, rule, residual)
            return
        points = sets.points if directions is not None else self.slicer_.project(sets.points)
        ragged = Ragged(points, sets.offsets, sets.weights)
        steps = len(points) * self.n_slices_
        threads = kernel.threads(self.n_jobs, 1 if steps * (1 + points.shape[1] // 32) < STEPS_OF_A_THREAD else None)
        if directions is None or steps <= NATIVE_STEPS:
            kernel.embed(ragged, rule, out, residual, threads)
            return
        n_quantiles = rule.n_quantiles
        # A set larger than a batch comes alone, and its slices are taken in turns; a multiple of 16 fills the lanes.
        turns, parts = max(16, NATIVE_STEPS // len(points) // 16 * 16), np.zeros(len(sets))
        for first in range(0, self.n_slices_, turns):
            checkpoint()
            last = min(first + turns, self.n_slices_)
            centre = None if reference is None else reference[first:last]
            some = rule._replace(directions=directions[first:last], reference=centre, n_slices=last - first)
            part = None if residual is None else np.empty(len(sets))
            kernel.embed(ragged, some, out[:, first * n_quantiles : last * n_quantiles], part, threads)
            if part is not None:
                parts += part * ((last - first) / self.n_slices_)
        if residual is not None:
            residual[:] = parts

    def _embed_on(self, device: str, sets: Ragged, out: Float32, rule: Quantiles, residual: Float64 | None) -> None:
        self._check_linear()
        from ..gpu.embedding import embed

        embed(sets, rule, out, residual, device, tf32=self._is_rounded)

    def device_work(self, device: str) -> Any:
        self._check_linear()
        from ..gpu.embedding import work

        return work(self._vector_rule(), device, tf32=self._is_rounded)

    @property
    def _is_rounded(self) -> bool:
        """Whether vectors may have been made from elements and slices that were rounded to TF32."""
        return self.tf32_ and self.n_features_in_ >= TF32_DIM

    def _check_linear(self) -> None:
        """Refuse slices that a GPU cannot take."""
        if self.slicer_.directions_ is None:
            problem = f"slices={self.slices!r:.60} are not linear, and a GPU takes those that are"
            remedy = "leave device out, or give directions"
            raise UnsupportedError(problem, remedy, feature_name="device", argument="device")

    def _reference_norm(self) -> float:
        """Return the norm of `reference_`; it is kept, because computing it takes a good part of a single query."""
        if self._norm is None:
            self._norm = float(np.linalg.norm(self.reference_))
        return self._norm

    def _quantiles(self, sets: Sets) -> Float32:
        out = np.empty((len(sets), self.vector_length), np.float32)
        self._write_quantiles(sets, out, self._rule(None, 1.0), None)
        return out

    def _transform(self, sets: Sets, out: Float32, residual: Float64 | None = None) -> None:
        """Write the vectors into `out`, and the squares of the residual norms into `residual`, if given."""
        self._write_quantiles(sets, out, self._vector_rule(), residual)

    def transform(self, X: Any, out: Array | None = None, return_residual: bool = False) -> Any:
        """Return the vectors of the sets, (n, L * M) float32; with `return_residual` also their residual norms.

        X, out : as in `transform` of the other embeddings: X may be an iterator, `out` an array to write into.
        return_residual : also return what `residual(X)` returns, (n,) float64, from the same pass. Average rule only.
        """
        return self._embed_with_residual(X, out) if return_residual else self.embed(X, out)

    def _embed_with_residual(self, X: Any, out: Array | None = None) -> tuple[Array, Float64]:
        self._check_average("return_residual")
        norms: list[Float64] = [np.empty(0)]

        def write(batch: Sets, part: Float32) -> None:
            squares = np.empty(len(batch))
            self._transform(batch, part, squares)
            norms.append(np.sqrt(squares))

        return self._run(X, out, write), np.concatenate(norms)

    @property
    def lower_bounds(self) -> Mapping[str, Literal["euclidean", "chebyshev"]]:
        return {"sliced": "euclidean"} if self.average_ and not self._is_rounded else {}

    @property
    def index_length(self) -> int:
        return self.vector_length + self.average_

    def index_vectors(self, sets: Sets, *, slack: bool = True) -> tuple[Float32, Float64 | None]:
        """Return the vectors that an index searches, and how far rounding may have moved each, or None without `slack`.

        With the average rule an index vector is phi(X) with the residual norm r(X) as one more number. The distance of
        two of them, sqrt(|phi(X) - phi(Y)|^2 + (r(X) - r(Y))^2), is a lower bound of the sliced distance, and nearer to
        it than the embedded distance alone.
        """
        if not self.average_:
            return super().index_vectors(sets, slack=slack)
        n = len(sets)
        vectors = np.empty((n, self.index_length), np.float32)
        if n <= DIRECT_SETS and len(sets.points) <= self._batch_points():
            check_origin(sets, self.origin_)
            residuals = np.empty(n)
            if n:
                self._transform(sets, vectors[:, :-1], residuals)
            np.sqrt(residuals, out=residuals)
        else:
            _, residuals = self._embed_with_residual(sets, vectors[:, :-1])
        vectors[:, -1] = residuals
        if self._is_rounded:
            return vectors, np.zeros(n) if slack else None  # nothing is proved of these
        return vectors, self.rounding(vectors[:, :-1], residuals) if slack else None

    def residual(self, X: Any) -> Float64:
        r"""Return the norm that the average rule leaves out, one number a set.

        r(X)^2 is the mean over the slices of the integral of (Q - the mean of Q in its bin)^2, in the units of the data
        like every distance. It is zero for a set of one element, and where N divides M without weights.
        """
        self._check_average("residual")
        squares: list[Float64] = [np.empty(0)]
        for batch in self._batches(X)[0]:
            squares.append(np.empty(len(batch)))
            self._transform(batch, np.empty((len(batch), self.vector_length), np.float32), squares[-1])
        return np.sqrt(np.concatenate(squares))

    def bounds(self, a: Any, b: Any) -> tuple[Float64, Float64]:
        r"""Return a lower and an upper bound on the sliced distances of the sets of `a` and `b`, both (len(a), len(b)).

        With the embedded distance e and the residual norms r,

            e^2 + (r(X) - r(Y))^2  <=  sliced(X, Y)^2  <=  e^2 + r(X)^2 + r(Y)^2

        where the sliced distance is taken over the same slices (`slosh.pairwise(..., slices=model.slices_)`). Both are
        widened by what float32 rounds (`rounding`). `a` and `b` are collections of sets, or pairs (vectors, residuals)
        from `transform(..., return_residual=True)`.
        """
        self._check_average("bounds")
        if self._is_rounded:
            problem = "bounds needs products of float32: with tf32=True vectors are off by more than `rounding` says"
            raise UnsupportedError(problem, "fit an embedding without tf32", feature_name="bounds", argument="tf32")
        (x, r, slack_x), (y, s, slack_y) = self._with_slack(a), self._with_slack(b)
        embedded = cdist(x, y)
        slack = slack_x[:, None] + slack_y[None, :]
        difference = np.maximum(np.abs(r[:, None] - s[None, :]) - slack, 0.0)
        lower = np.sqrt(np.maximum(embedded - slack, 0.0) ** 2 + difference**2)
        upper = np.sqrt((embedded + slack) ** 2 + (r[:, None] + slack) ** 2 + (s[None, :] + slack) ** 2)
        return lower, upper

    def _with_slack(self, a: Any) -> tuple[Float64, Float64, Float64]:
        """Return vectors, residual norms, and a bound on the norm of the rounding error of each vector."""
        if isinstance(a, tuple) and len(a) == 2 and getattr(a[0], "ndim", 0) == 2 and getattr(a[1], "ndim", 0) == 1:
            vectors, norms = np.asarray(a[0], np.float64), np.asarray(a[1], np.float64)
            if vectors.shape != (len(norms), self.vector_length):
                shapes = f"vectors {vectors.shape} and residuals {norms.shape}"
                raise InputError(f"{shapes} must be (n, {self.vector_length}) and (n,)")
        else:
            vectors, norms = self._embed_with_residual(a)
            vectors = vectors.astype(np.float64)
        return vectors, norms, self.rounding(vectors, norms)

    def rounding(self, vectors: Array, residuals: Float64) -> Float64:
        """Return how far float32 may have moved each vector, with its residual norm as one more number: (n,).

        With the norm v of the vector, c of the reference and r of the residual, (8 + sqrt(d)) (v + c + r) + 24 r times
        2^-23. A bin's mean of up to 33 differences to its middle is off by 34 * 2^-24 of their mean size, which is no
        more than the bin's part of r; reference and scale round three times more. That is a bound for the values as the
        kernel has projected them, which are also those that the sliced distance is computed from. The sqrt(d) stands
        for a projection in exact numbers, whose d products round one way or the other.
        """
        norms = np.empty(len(vectors))
        for part in pieces(len(vectors), self.vector_length, most_steps=NORM_NUMBERS):
            doubles = vectors[part].astype(np.float64)
            norms[part] = np.sqrt(np.einsum("ij,ij->i", doubles, doubles))
        size = norms + residuals
        size += self._reference_norm() / math.sqrt(self.vector_length)
        return np.asarray(2.0**-23 * ((8 + math.sqrt(self.n_features_in_)) * size + 24 * residuals))

    def apart(self, sets: Sets, vectors: Float32) -> Float64 | None:
        """Return how far index vectors of these sets that two devices have made may lie apart, (n,).

        None for the linear rule and weights, where the order of two elements that are as far along a slice matters; and
        with `tf32`.
        """
        if self._is_rounded:
            return None
        if self.average_:
            return 2 * self.rounding(vectors[:, :-1], vectors[:, -1].astype(np.float64))
        return None if sets.weights is not None else 2 * self.rounding(vectors, np.zeros(len(vectors)))

    def _check_average(self, what: str) -> None:
        self._check_fitted()
        if not self.average_:
            problem = f'{what} needs quantiles="average": the linear rule is no projection, so nothing bounds its error'
            raise UnsupportedError(problem, feature_name=what)
