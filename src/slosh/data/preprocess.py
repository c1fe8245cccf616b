"""Preprocessing of every stored set and every query before it is embedded: sample, standardise, centre, turn, scale.

Sets come in and Sets go out, of the same elements or fewer; the input is never changed. A set gets the same bits in any
batch, alone, and in any order.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError, bad_value
from ..native.arrays import Float64
from .alignment import check_aligned_dim, turn_to_axes
from .batching import blocks, segment_mean
from .checks import as_array, checked_count, checked_seed, first_outside, input_error, kind_of, locate
from .precision import MAX_COORDINATE
from .sets import Sets, as_sets

Scale = Literal["unit", "rms"]
Align = Literal["pca"]

SAMPLING_STREAM = 0x5A3B1E
"""Joined to a seed, to keep the draws apart from those that others make with it."""


class Preprocess:
    """Steps that make sets comparable, taken in this order: max_points, standardize, center, align, scale.

    A value: it is never changed, and two with the same parameters are equal. Weights are respected throughout: an
    element of weight zero changes nothing. All is computed in float64, and the result is float32. The `origin` of the
    sets is kept: it says what was subtracted from them before all this, so sets that were made with different origins
    are refused later as they would be without these steps.

    Parameters
    ----------
    center : subtract its mean from each set. For shapes, wherever they lie.
    align : "pca" turns each set about its mean into its principal axes: the first is that of the largest variance, and
        along each the third moment is positive. For shapes in any pose. A set is turned, never mirrored: if these signs
        would mirror it, the axis with the smallest skewness points the other way. The pose still matters for a set that
        has no principal axes: where variances are equal it keeps the axes nearest to the coordinate axes, and where it
        has no skewness the direction of the axis. Where variances are nearly equal, chance decides. At most 64
        features.
    scale : divide each set by its size: "unit", the largest distance of an element from zero (from the mean, with
        `center`), or "rms", the root of the mean squared distance. A set of size zero stays as it is.
    standardize : (x - mean) / std for each feature. True means that `fit` learns both from a sample; each set counts
        the same there, however many elements it has, as it does in an embedding. Or a pair of arrays (mean, std), in
        the coordinates of the data before an origin was subtracted. A feature whose std is zero is only centred.
    max_points : at most this many elements of each set: a larger one is sampled, without replacement. The draw depends
        on the set itself and on `random_state` alone, and all elements that have a weight are equally likely.
    random_state : a whole number.

    Examples
    --------
    >>> steps = Preprocess(center=True, scale="unit")
    >>> steps
    Preprocess(center=True, scale='unit')
    >>> steps.apply([[[1.0, 1.0], [5.0, 1.0]], [[7.0, 7.0]]]).points.tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """

    mean: Float64 | None
    std: Float64 | None

    def __init__(
        self,
        *,
        center: bool = False,
        align: Align | None = None,
        scale: Scale | None = None,
        standardize: bool | tuple[ArrayLike, ArrayLike] = False,
        max_points: int | None = None,
        random_state: int = 0,
    ) -> None:
        if not isinstance(center, bool | np.bool_):
            raise InputError(f"center={center!r:.60} must be True or False", argument="center")
        if scale is not None and not (isinstance(scale, str) and scale in ("unit", "rms")):
            remedy = "give None, 'unit' (the largest distance is 1) or 'rms'"
            raise InputError(f"scale={scale!r:.60} is not known", remedy, argument="scale")
        if align is not None and not (isinstance(align, str) and align == "pca"):
            raise bad_value("align", align, "give None, or 'pca' for principal axes")
        self.center, self.align, self.scale = bool(center), align, scale
        self.max_points = None if max_points is None else checked_count("max_points", max_points)
        self.random_state = checked_seed(random_state)
        learn = isinstance(standardize, bool | np.bool_)
        self.mean, self.std = (None, None) if learn else _checked_pair(standardize)
        self.standardize = bool(standardize) if learn else True

    @property
    def needs_sample(self) -> bool:
        """Whether `fit` must come before `apply`."""
        return self.standardize and self.mean is None

    @property
    def is_identity(self) -> bool:
        """Whether `apply` gives back what it gets."""
        return self._keeps_points and self.max_points is None

    @property
    def _keeps_points(self) -> bool:
        return not self.center and self.align is None and self.scale is None and not self.standardize

    def fit(self, sample: Any) -> Preprocess:
        """Return these steps with the mean and std of each feature of `sample`, if `standardize` needs them."""
        if not self.needs_sample:
            return self
        sets = self._sampled(as_sets(sample))
        if not len(sets):
            raise InputError("standardize learns from sets", "give fit at least one", argument="sample")
        total, squares = np.zeros(sets.dim), np.zeros(sets.dim)
        low, high = np.full(sets.dim, np.inf), np.full(sets.dim, -np.inf)
        for _, part in blocks(sets):
            counted = part.points if part.weights is None else part.points[part.weights > 0]
            low, high = np.minimum(low, counted.min(axis=0)), np.maximum(high, counted.max(axis=0))
            total += segment_mean(part.points.astype(np.float64), part).sum(axis=0)
        mean = total / len(sets)
        for _, part in blocks(sets):
            squares += segment_mean((part.points - mean) ** 2, part).sum(axis=0)
        # A feature that is constant has no spread, though rounding may say so.
        mean, std = np.where(low == high, low, mean), np.where(low == high, 0.0, np.sqrt(squares / len(sets)))
        learnt = (mean if sets.origin is None else mean + sets.origin, std)
        return Preprocess(**{**self._parameters(), "standardize": learnt})

    def apply(self, sets: Any) -> Sets:
        """Return the sets after all steps, or `sets` itself if there is nothing to do.

        Offsets and weights are shared with `sets` unless it is sampled.
        """
        given = as_sets(sets)
        if self.needs_sample:
            remedy = "call fit(sample) first, or give (mean, std)"
            raise InputError("standardize=True learns from a sample", remedy, argument="standardize")
        self.check_dim(given.dim)
        chosen = self._sampled(given)
        if self._keeps_points:
            return chosen
        points = np.empty(chosen.points.shape, np.float32)
        for rows, part in blocks(chosen):
            points[chosen.offsets[rows.start] : chosen.offsets[rows.stop]] = self._moved(part, rows.start)
        return Sets.from_checked(points, chosen.offsets, chosen.weights, chosen.origin)

    def check_dim(self, dim: int) -> None:
        """Refuse sets with a number of features that these steps are not for."""
        if self.mean is not None and dim != len(self.mean):
            problem = f"the sets have {dim} features, standardize has {len(self.mean)}"
            raise InputError(problem, "give the same ones", argument="sets")
        if self.align is not None:
            check_aligned_dim(dim)

    def _moved(self, part: Sets, first_set: int) -> Float64:
        """Return the points of one block, standardised, centred, turned and scaled."""
        x = part.points.astype(np.float64)
        counted = None if part.weights is None else part.weights > 0
        if self.mean is not None and self.std is not None:
            x -= self.mean if part.origin is None else self.mean - part.origin
            with np.errstate(over="ignore"):
                x /= np.where(self.std > 0, self.std, 1.0)
            _check_range(x, part, first_set, "standardize", "the std of the feature")
        if self.center:
            # From the first element on, so that equal elements become zeros, not the rounding of their mean.
            first = part.offsets[:-1]
            if counted is not None:
                there = np.flatnonzero(counted)
                first = there[np.searchsorted(there, first)]
            x -= np.repeat(x[first], part.sizes, axis=0)
            x -= np.repeat(segment_mean(x, part), part.sizes, axis=0)
        if self.align is not None:
            x = turn_to_axes(x, part)
            _check_range(x, part, first_set, f"align={self.align!r}", "the range of coordinates")
        if self.scale is not None:
            squares = (x * x).sum(axis=1)
            if self.scale == "rms":
                size = np.sqrt(segment_mean(squares[:, None], part))
            else:
                counting = squares if counted is None else np.where(counted, squares, 0.0)
                size = np.sqrt(np.maximum.reduceat(counting, part.offsets[:-1])[:, None])
            with np.errstate(over="ignore"):  # elements without weight may lie anywhere
                x /= np.repeat(np.where(size > 0, size, 1.0), part.sizes, axis=0)
            _check_range(x, part, first_set, f"scale={self.scale!r}", "the set")
        return x

    def _sampled(self, sets: Sets) -> Sets:
        """Return the sets with at most `max_points` elements each; `sets` itself if none has more."""
        if self.max_points is None or not (large := np.flatnonzero(sets.sizes > self.max_points)).size:
            return sets
        kept = np.ones(len(sets.points), bool)
        stream = np.random.RandomState(0)  # seeded again for each set: a new one takes ten times as long
        for i in large.tolist():
            a, b = int(sets.offsets[i]), int(sets.offsets[i + 1])
            # Elements without weight are not drawn: a set must not be left with nothing but them.
            elements = np.arange(a, b) if sets.weights is None else a + np.flatnonzero(sets.weights[a:b])
            stream.seed(np.array([SAMPLING_STREAM, self.random_state, zlib.crc32(sets.points[a:b].data)], np.uint32))
            chosen = stream.permutation(len(elements))[: self.max_points]
            kept[a:b] = False
            kept[elements[chosen]] = True
        sizes = np.add.reduceat(kept, sets.offsets[:-1], dtype=np.int64)
        weights = None if sets.weights is None else sets.weights[kept]
        return Sets.from_checked(sets.points[kept], np.concatenate(([0], np.cumsum(sizes))), weights, sets.origin)

    # ---- storage and comparison

    def _parameters(self) -> dict[str, Any]:
        """Return the arguments that make an equal object."""
        names = ("center", "align", "scale", "standardize", "max_points", "random_state")
        found = {name: getattr(self, name) for name in names}
        if self.mean is not None and self.std is not None:
            found["standardize"] = (self.mean.tolist(), self.std.tolist())
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all parameters, what was learnt included, as plain numbers and lists for JSON; see `from_dict`."""
        stored = self._parameters()
        if isinstance(pair := stored["standardize"], tuple):
            stored["standardize"] = dict(zip(("mean", "std"), pair, strict=True))
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Preprocess:
        """Return the object that `to_dict` described. A missing step is not taken, and an unknown one is an error."""
        if not isinstance(stored, Mapping):
            raise InputError(f"the steps are {kind_of(stored)}", "give the dict of Preprocess.to_dict()")
        if unknown := sorted(set(map(str, stored)) - set(cls().to_dict())):
            problem = f"the steps have {unknown[0]!r}, which this version of slosh does not know"
            raise InputError(problem, "use a newer one")
        learnt = stored.get("standardize", False)
        if isinstance(learnt, Mapping):
            learnt = (learnt.get("mean"), learnt.get("std"))
        return cls(**{**stored, "standardize": learnt})

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Preprocess) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        defaults = Preprocess().to_dict()
        given = [f"{name}={value!r}" for name, value in self._parameters().items() if value != defaults[name]]
        return f"Preprocess({', '.join(given)})"


def _check_range(x: Float64, part: Sets, first_set: int, step: str, culprit: str) -> None:
    """Refuse what `Sets` would refuse."""
    if (bad := first_outside(x, -MAX_COORDINATE, MAX_COORDINATE)) is not None:
        number, element = locate(bad[0], part.offsets, first_set)
        what = f"is {part.points[bad]:g}, and {step} makes {x[bad]:g} of it, beyond {MAX_COORDINATE:g}"
        remedy = f"{culprit} is too small for it, so drop the element"
        raise input_error(number, what, remedy, element=element, feature=bad[1])


def _checked_pair(pair: Any) -> tuple[Float64, Float64]:
    """Return mean and std, (d,) float64 each."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        remedy = "give True, False, or a pair of arrays (mean, std)"
        raise input_error("standardize", f"is {kind_of(pair)}", remedy)
    arrays = []
    for about, given in zip(("the mean of standardize", "the std of standardize"), pair, strict=True):
        array = as_array(given, about, "standardize")
        if array.ndim != 1 or not array.size or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            what = f"must be finite numbers, one for each feature, not {given!r:.80}"
            raise input_error(about, what, argument="standardize")
        arrays.append(array.astype(np.float64))
    mean, std = arrays
    if len(mean) != len(std):
        what = f"has {len(mean)} means and {len(std)} stds"
        raise input_error("standardize", what, "give one of each for each feature")
    if (wrong := np.flatnonzero(std < 0)).size:
        k = int(wrong[0])
        what = f"is {std[k]:g}, and must be 0 or more"
        raise input_error(f"the std of feature {k}", what, argument="standardize", feature=k)
    return mean, std
