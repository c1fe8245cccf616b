"""What part search stores of a set, and what it makes of a query: `PartField`.

A stored set is a distance field, a query the share of its elements that are nearest to each anchor, and their inner
product stands for the mean distance from the query's elements to the set. Short vectors find candidates by it; the
field in eight bits, rounded so that it stays a bound, proves them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checkpoints import aside, checkpoint
from ..data.batching import batches_by_points
from ..data.checks import checked_count, random_stream
from ..data.precision import MAX_COORDINATE
from ..data.sets import Sets
from ..errors import InputError, bad_value
from ..native import kernel, parts, scan
from ..native.arrays import Float32, Float64, Int32, Int64, UInt8
from .base import SetTransformer
from .distance_field import NATIVE_STEPS, DistanceField
from .references import sample_elements
from .whitening import spread

Feature: TypeAlias = tuple[tuple[int, ...], Any]
"""Of what is stored of a set: the shape of a row, and its type."""

FIELD, SHARES, SPREAD = "field", "shares", "spread"
"""What is stored of a set for proofs: its field, and for the other direction its histogram and what that leaves out."""
AUTO_ANCHORS = {1: 256, 2: 1024}
"""Anchors by dimension; MOST_ANCHORS beyond."""
MOST_ANCHORS = 4096
FEW_DIMENSIONS = 16
AUTO_COMPONENTS = {True: 88, False: 256}
"""Numbers of a short vector, by whether the elements have few dimensions: in many, fields vary in more directions."""
BASIS_SETS = 4096
"""Sets whose fields the directions are learnt from, at most."""
LARGEST_CODE = 255
USUAL_SHARE, CODED_SHARE = 0.999, 0.5
"""Eight bits tell distances apart up to this share of what nearly all of the sample's are below: those that are farther
say little about what is near. In many dimensions most are farther, and then all are told apart."""
LONGER = 1.25
"""Sets may be so much longer than the longest of the sample before they are shortened."""
FIELD_NUMBERS = 1 << 21
"""Numbers of fields that are held at once."""


class PartQueries(NamedTuple):
    """What part search makes of queries.

    vectors : (n, p + 1) float32, to be compared with those of `PartField.transform`.
    offsets : where the elements of each query begin; those of weight zero are left out.
    weights : (P,) of these elements, None if all are the same.
    anchors : (P, A) the nearest anchors of each element, nearest first.
    distances : (P, A) float64, how far they are.
    """

    vectors: Float32
    offsets: Int64
    weights: Float32 | None
    anchors: Int32
    distances: Float64


class PartField(SetTransformer):
    r"""What an index keeps to find the sets that contain a part, by the mean distance from the part's elements:

        D(Q -> S) = sum over q in Q of w_q min over x in S of |q - x|

    With f_j(S) the distance from anchor j to the set (`DistanceField`) and h_j(Q) the share of the query's mass whose
    nearest anchor is j, sum over j of h_j f_j differs from D by no more than the mean distance of the query's elements
    to their anchors. `transform` gives the short vectors that candidates are found by: the field along p principal
    directions of a sample, and one number more, by which all have the same length. The order of their
    Euclidean distances to `queries(...).vectors` is then that of the inner product. Sets that are longer than any of
    the sample are shortened, which may hide them among the candidates, and never changes what is proved.

    `features` gives what proofs need, in eight bits that are rounded down: the field, and for the sets that a query
    contains the share of their own mass at each anchor.

    Parameters
    ----------
    n_anchors : K, or "auto": 1,024 in two dimensions and 4,096 beyond, fewer where there are few different elements.
        More anchors prove with fewer distances, and take K bytes a set, twice, on disk.
    n_components : p, or "auto": 88 up to 16 dimensions and 256 beyond. A set takes about 2.6 p + 65 bytes in memory.
    n_near : anchors of an element that bounds are computed from.
    anchors : "kmeans", or an array (K, d) of your own, as in `DistanceField`.
    random_state : seed of the anchors and of the sample.
    n_jobs : threads; -1 is all cores. The result does not depend on it.

    Attributes
    ----------
    anchors_ : (K, d) float32. directions_ : (p, K) float32. middle_ : (K,) float64, the mean of the fields.
    step_ : what one step of the eight bits stands for. longest_ : the length of all vectors.

    >>> field = PartField(2, anchors=[[0.0, 0.0], [4.0, 0.0]]).fit([[[0.0, 1.0], [4.0, 3.0]], [[3.0, 4.0]]])
    >>> field.features(field.checked([[[0.0, 1.0], [4.0, 3.0]]]))["field"].shape
    (1, 2)
    """

    anchors_: Float32
    directions_: Float32
    middle_: Float64
    step_: float
    longest_: float
    n_samples_: int

    def __init__(
        self,
        n_anchors: int | str = "auto",
        n_components: int | str = "auto",
        *,
        n_near: int = 8,
        anchors: str | ArrayLike | Sets = "kmeans",
        random_state: int | np.random.RandomState | None = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.n_anchors = n_anchors
        self.n_components = n_components
        self.n_near = n_near
        self.anchors = anchors
        self.random_state = random_state
        self.n_jobs = n_jobs

    # -- what is learnt ------------------------------------------------------------------------------------------------

    def check_params(self) -> None:
        """Refuse (InputError) parameters that are out of range."""
        for name in ("n_anchors", "n_components"):
            given = getattr(self, name)
            if given != "auto":
                if isinstance(given, str):
                    raise bad_value(name, given, 'give a number, or "auto"')
                checked_count(name, given)
        checked_count("n_near", self.n_near)
        kernel.threads(self.n_jobs)

    def _fit(self, sets: Sets) -> None:
        self.check_params()
        self.anchors_ = self._learnt_anchors(sets)
        random = random_stream(self.random_state)
        rows = np.sort(random.permutation(len(sets))[:BASIS_SETS])
        self.n_samples_ = len(sets)
        fields = self.field(sets.take(rows))
        middle, usual = aside(lambda: np.quantile(fields, [0.5, USUAL_SHARE])).tolist()
        reach = usual if middle > CODED_SHARE * usual else CODED_SHARE * usual
        self.step_ = float(np.float32(max(reach, 1e-30) / LARGEST_CODE))
        n: Any = self.n_components
        varied = spread(fields, AUTO_COMPONENTS[sets.dim <= FEW_DIMENSIONS] if n == "auto" else int(n), random)
        self.middle_ = varied.mean
        self.directions_ = np.ascontiguousarray(varied.directions, np.float32)
        lengths = np.linalg.norm(self._along(fields), axis=1)
        self.longest_ = max(LONGER * float(lengths.max()), 1e-30)

    def _learnt_anchors(self, sets: Sets) -> Float32:
        n: Any = self.n_anchors
        if n == "auto":
            n = AUTO_ANCHORS.get(sets.dim, MOST_ANCHORS)
            elements, weights = sample_elements(sets, n, random_stream(self.random_state))
            elements = elements if weights is None else elements[weights > 0]
            n = max(1, min(n, len(aside(lambda: np.unique(elements, axis=0)))))
        return (
            DistanceField(n, anchors=self.anchors, random_state=self.random_state, n_jobs=self.n_jobs)
            .fit(sets)
            .anchors_
        )

    @property
    def needs_data(self) -> str | None:
        return "part search learns its anchors from data"

    @property
    def vector_length(self) -> int:
        return len(self.directions_) + 1

    @property
    def n_anchors_(self) -> int:
        """The number of anchors."""
        return len(self.anchors_)

    @property
    def fingerprint(self) -> int:
        """A number that tells what was learnt from anything else that was."""
        numbers = np.array([self.step_, self.longest_, self.n_near], np.float64)
        learnt = (self.anchors_, self.directions_, self.middle_, numbers)
        return zlib.crc32(b"".join(np.ascontiguousarray(each).tobytes() for each in learnt))

    def checked(self, sets: Any) -> Sets:
        """Return what a user passed as sets that this was fitted for."""
        return next(iter(self._batches(sets)[0]))

    def novelty(self, sets: Sets) -> float | None:
        """Return the part of these sets that are longer than the bound, and so may be missed by candidates."""
        lengths = np.concatenate([np.linalg.norm(self._along(fields), axis=1) for _, fields in self._fields(sets)])
        return float(np.mean(lengths > self.longest_))

    def check_state(self) -> None:
        """Refuse (ValueError) stored state that could not have been learnt."""
        n, dim = self.anchors_.shape if self.anchors_.ndim == 2 else (0, 0)
        floats = (self.step_, self.longest_)
        good = {
            "anchors": n > 0 and dim == self.n_features_in_ and self.anchors_.dtype == np.float32,
            "large anchors": bool((np.abs(self.anchors_) <= MAX_COORDINATE).all()),
            "directions": self.directions_.ndim == 2
            and self.directions_.shape[1] == n
            and len(self.directions_) <= n
            and self.directions_.dtype == np.float32
            and bool((np.abs(self.directions_) <= 2).all()),
            "middle": self.middle_.shape == (n,)
            and self.middle_.dtype == np.float64
            and bool(np.isfinite(self.middle_).all()),
            "steps": all(isinstance(x, float) and math.isfinite(x) and x > 0 for x in floats),
            "samples": type(self.n_samples_) is int and self.n_samples_ > 0,
        }
        if wrong := [name for name, fine in good.items() if not fine]:
            raise ValueError(f"a part field with wrong {', '.join(wrong)}")
        self.check_params()

    # -- stored sets ---------------------------------------------------------------------------------------------------

    def field(self, sets: Sets) -> Float32:
        """Return the distance of each anchor to each of these sets, (n, K)."""
        plain = DistanceField(anchors=self.anchors_, n_jobs=self.n_jobs)
        plain.n_features_in_, plain.origin_, plain.anchors_ = self.n_features_in_, self.origin_, self.anchors_
        return np.asarray(plain.embed(sets))

    def rounding(self, distances: Any) -> Any:
        """Return the most that the kernel's float32 may have moved distances: see `DistanceField.rounding`."""
        dim = self.n_features_in_
        return (dim + 8) * 2.0**-24 * distances + math.sqrt(dim) * 2.0**-74

    def _fields(self, sets: Sets) -> Any:
        """Yield slices of sets and their fields; memory is bounded."""
        most = max(1, FIELD_NUMBERS // len(self.anchors_))
        for part in batches_by_points(sets.sizes, self._batch_points(), most):
            yield part, self.field(sets[part])

    def _along(self, fields: Float32) -> Float32:
        """Return the coordinates of fields, less the middle, along the directions; each row by itself."""
        n_directions, n = self.directions_.shape
        if not n_directions:
            return np.empty((len(fields), 0), np.float32)
        padded = np.zeros((n_directions + 1, -(-n // 8) * 8))
        padded[0, :n], padded[1:, :n] = self.middle_, self.directions_
        return scan.prefixes(fields, None, padded[0], padded[1:], self.n_jobs)[0][:, :-1]

    def _lifted(self, fields: Float32) -> Float32:
        along = self._along(fields).astype(np.float64)
        length = np.sqrt(np.einsum("ij,ij->i", along, along))
        along *= np.minimum(1.0, self.longest_ / np.maximum(length, 1e-300))[:, None]
        rest = np.sqrt(np.maximum(self.longest_**2 - length**2, 0.0))
        return np.concatenate([along, rest[:, None]], axis=1).astype(np.float32)

    def _transform(self, sets: Sets, out: Float32) -> None:
        for part, fields in self._fields(sets):
            out[part] = self._lifted(fields)

    @property
    def feature_shapes(self) -> Mapping[str, Feature]:
        """What `features` returns: the shape of a row, and its type, by name."""
        n = len(self.anchors_)
        return {FIELD: ((n,), np.uint8), SHARES: ((n,), np.uint8), SPREAD: ((2,), np.float32)}

    def features(self, sets: Sets) -> dict[str, NDArray[Any]]:
        """Return what proofs need of stored sets, by name; see `feature_shapes`."""
        return self.stored(sets)[1]

    def stored(self, sets: Sets) -> tuple[Float32, dict[str, NDArray[Any]]]:
        """Return the vectors and the features of sets; their fields are computed once for both."""
        made = {name: np.empty((len(sets), *shape), dtype) for name, (shape, dtype) in self.feature_shapes.items()}
        vectors = np.empty((len(sets), self.vector_length), np.float32)
        for part, fields in self._fields(sets):
            vectors[part] = self._lifted(fields)
            made[FIELD][part] = self.coded(fields)
            made[SHARES][part], made[SPREAD][part] = self._histograms(sets[part])
        return vectors, made

    def coded(self, fields: Float32) -> UInt8:
        """Return fields in eight bits: the true distance is at least code * step_."""
        sure = fields - self.rounding(fields)
        return np.asarray(np.clip(np.floor(sure * (1 / self.step_) * (1 - 2.0**-20)), 0, LARGEST_CODE), np.uint8)

    def _histograms(self, sets: Sets) -> tuple[UInt8, Float32]:
        """Return the share of each set's mass at each anchor in units of its own, rounded down, and of each set the
        unit and the mean distance of its elements to their anchors, rounded up.
        """
        n = len(self.anchors_)
        weights = normalised_weights(sets)
        near, away = self._nearest(sets.points, 1)
        which = np.repeat(np.arange(len(sets)), sets.sizes)
        mass = np.bincount(which * n + near[:, 0], weights, len(sets) * n).reshape(len(sets), n)
        unit = np.nextafter((mass.max(axis=1) / LARGEST_CODE).astype(np.float32), np.float32(np.inf))
        codes = np.floor(mass / unit[:, None] * (1 - 2.0**-40)).astype(np.uint8)
        spread_out = np.bincount(which, weights * away[:, 0], len(sets)) * (1 + 2.0**-40)
        rounded = np.nextafter(spread_out.astype(np.float32), np.float32(np.inf))
        return codes, np.stack([unit, rounded], axis=1)

    # -- queries -------------------------------------------------------------------------------------------------------

    def queries(self, sets: Sets) -> PartQueries:
        """Return what queries are compared by."""
        share, weights, points, offsets = normalised_weights(sets), sets.weights, sets.points, sets.offsets
        if weights is not None and (weights <= 0).any():
            kept = weights > 0
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            share, weights, points = share[kept], weights[kept], points[kept]
        near, away = self._nearest(points, min(int(self.n_near), len(self.anchors_)))
        along = np.empty((len(sets), self.vector_length), np.float32)
        along[:, -1] = 0.0
        if len(sets):
            loads = self._loads()[near[:, 0]] * share[:, None]
            total = np.add.reduceat(loads, offsets[:-1], axis=0)
            length = np.maximum(np.sqrt(np.einsum("ij,ij->i", total, total)), 1e-30)
            along[:, :-1] = -total * (self.longest_ / length)[:, None]
        return PartQueries(along, offsets, weights, near, away)

    def _loads(self) -> Float32:
        """Return the directions anchor by anchor, (K, p), as queries add them up."""
        known: tuple[Float32, Float32] | None = self.__dict__.get("_loaded")
        if known is None or known[0] is not self.directions_:
            known = self._loaded = self.directions_, np.ascontiguousarray(self.directions_.T)
        return known[1]

    def _nearest(self, points: Float32, n: int) -> tuple[Int32, Float64]:
        """Return the n nearest anchors of each point, and how far they are."""
        near, away = np.empty((len(points), n), np.int32), np.empty((len(points), n))
        step = max(1, NATIVE_STEPS // self.anchors_.size)
        for first in range(0, len(points), step):
            checkpoint()
            part = slice(first, first + step)
            near[part], away[part] = parts.nearest_anchors(points[part], self.anchors_, n, kernel.threads(self.n_jobs))
        return near, away


def normalised_weights(sets: Sets) -> Float64:
    """Return the weights of all elements, which sum to 1 for each set."""
    if sets.weights is None:
        return np.repeat(1.0 / np.maximum(sets.sizes, 1), sets.sizes)
    weights = sets.weights.astype(np.float64)
    totals = np.add.reduceat(weights, sets.offsets[:-1]) if len(sets) else np.empty(0)
    return np.asarray(weights / np.repeat(totals, sets.sizes))


def checked_parts(given: Any) -> PartField | None:
    """Return what a user gave as `parts`: None for False, a field of their own, or one of the usual parameters."""
    if given is None or given is False:
        return None
    if given is True:
        return PartField()
    if not isinstance(given, PartField):
        raise InputError(
            f"parts={given!r:.60}", "give True, False, or a slosh.embed.PartField of your own", argument="parts"
        )
    given.check_params()
    return given
