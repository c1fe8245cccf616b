"""Whitened embeddings: after a linear map that is learnt from the collection, near sets are more often the right ones.

Sets come in, vectors of the wrapped embeddings are made of them, and shorter vectors go out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from copy import copy
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from ..data.checks import random_stream
from ..data.sets import Sets, check_origin
from ..errors import InputError, user_level
from ..gpu.devices import CPU, checked_device
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Int64, Ragged
from .base import DeviceTransformer, SetTransformer
from .discriminant import class_numbers, discriminants, joined_map, label_weight, shared_classes
from .sliced_wasserstein import SlicedWasserstein
from .whitened_checks import check_numbers, checked_power, checked_views, why_labels_do_not_count
from .whitening import LinearMap, Spread, apart_after_map, mapping, n_different, part_beyond, spread, with_signs

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..gpu.products import DeviceMap

AUTO_POWER, AUTO_POWER_OF_SHORT, SHORT = 0.35, 0.2, 128
"""The power, and that for vectors of up to 128 numbers, whose small directions are more often noise."""
AUTO_COMPONENTS = (64, 128)
"""Numbers of a vector: of one embedding, and of several together."""
SETS_A_COMPONENT = 4
"""With fewer sets for each number of a vector nothing is left out, whatever the length of the vectors."""
FEWEST_SETS = 20
"""With fewer sets nothing is learnt."""
FEWEST_NORMALIZED = 16
"""With fewer numbers vectors are not brought to unit length: of few numbers the length is too much of what they say."""
DISCRIMINATED = 512
"""Whitened numbers that classes are told apart by."""
SAMPLE_NUMBERS, FEWEST_SAMPLES = 1 << 25, 256
"""Numbers of the vectors that `fit` holds at once (128 MB), but at least so many vectors."""
BLOCK_NUMBERS = 1 << 22
"""Numbers of the wrapped embeddings' vectors that `transform` holds at once."""
DEVICE_BLOCK_NUMBERS = 1 << 27
"""The same on a GPU, which takes more of them: 512 MB."""
HELD_BYTES = 40
"""Bytes of a number of the wrapped embeddings' vectors that a GPU holds while it maps them."""
LANDMARKS, USUAL = 256, 0.95
"""Vectors of the sample that are kept, and the part of them whose distance to the nearest other is usual."""
WHITENING_STREAM = 0x3B17E
"""Joined to the seed, so that slices and sample are not the same draws."""


class Whitened(DeviceTransformer):
    r"""Wraps an embedding, or several, and learns a linear map after which near sets are more often the right ones.

    The vectors x of the wrapped embedding vary much in a few directions and little in most. With the principal
    directions v_1, v_2, ... of the vectors of `fit`, and their variances,

        y_k = <v_k, x - mean> / (variance_k + floor)^power,      k = 1 ... n_components,

    and y is brought to unit length if it has 16 numbers or more: distances have no unit then, and lie between 0 and 2.
    Several embeddings: the vectors of each are divided by the root of their mean squared distance to their mean, and
    put side by side.

    The floor is .04 / (n + 10) + 10 / n^2 of the sum of all variances, n being the number of sets, as a variance that
    few sets show is not to be trusted. With few sets nothing is left out, either: with n_components="auto" and fewer
    than 256 sets, the directions that were not seen are kept, each with the variance of the floor, and the vectors are
    as long as those of the wrapped embedding. With fewer than 20 sets, or if all are the same, nothing is learnt
    (`has_learnt` is False): the vectors are those of the wrapped embedding, or those of several, side by side.
    docs/whitening.md has the measurements.

    Labels, `fit(sets, labels)`: beside the whitened numbers come those that tell the classes apart (Fisher's linear
    discriminant of 512 whitened numbers, its covariance shrunk), with a weight that grows with labels and classes, and
    the two together are turned to their principal directions, so that the vectors are as long as before. Labels count
    from 256 sets on, or with n_components given. The whitened numbers stay, for classes that have no label yet.

    Parameters
    ----------
    embedding : an embedding, or a list of them; None is `SlicedWasserstein()`. Those that are fitted already are used
        as they are, of the others copies are fitted.
    n_components : numbers of a vector; "auto" is 64 for one embedding, 128 for several (a quarter of the sets at most),
        or all of them if there are few sets. There are fewer where the vectors vary in fewer directions.
    power : from 0, which only leaves directions out, to 0.5, which makes all directions count alike; "auto" is 0.35, or
        0.2 if the vectors have 128 numbers or fewer.
    normalize : whether to bring vectors to unit length; "auto" does if they have 16 numbers or more. If not, their
        scale is such that the mean squared norm over the sets of `fit` is 1.
    max_samples : `fit` learns from at most so many sets, drawn at random; from fewer if the vectors have more than
        4,096 numbers, so that no more than 128 MB of them are held at a time. The wrapped embeddings are fitted on all.
    random_state : seed of that draw, and of the search for directions.
    n_jobs : threads, also of the wrapped embeddings; -1 is all cores. The result does not depend on it.
    device : None or "cpu", or a GPU, "cuda" or "cuda:1", for the map, and for those of the wrapped embeddings that can
        run on one and have no device of their own; the vectors are the same to rounding. What is learnt is learnt on
        the CPU, from vectors that the GPU has made. It needs torch; see docs/gpu.md. It is not stored with the
        embedding.

    Attributes
    ----------
    embeddings_ : the fitted embeddings, a list.
    view_scales_ : what the vectors of each are multiplied by.
    mean_, directions_, scales_ : the map. (D,) float64, (p, D) float32 with rows of unit length, orthonormal without
        labels, and (p,) float64.
    rest_scale_ : what all other directions are multiplied by; 0 if they are left out.
    shortest_ : vectors below this length are not brought to unit length, as they are little but rounding; None if no
        vector is.
    variances_ : the variances along the directions.
    n_samples_ : the number of sets that it learnt from.
    n_labelled_ : how many of them had a label that counted.
    landmarks_ : vectors of some of these sets before they are brought to unit length, (m, p) float32, for `novelty`.

    Not for vectors whose large directions are what matters: in one study of a small text collection nDCG@10 of
    mean-pooled token vectors fell from .39 to .34-.37. Those of docstrings and sayings did not lose (docs/defaults.md).

    >>> from slosh.embed import SlicedWasserstein, Whitened
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(size=(30, 3)) * rng.uniform(0.5, 2, size=3) for _ in range(400)]
    >>> Whitened(SlicedWasserstein(n_slices=16)).fit_transform(sets).shape
    (400, 64)
    """

    embeddings_: list[SetTransformer]
    view_scales_: list[float]
    mean_: Float64
    directions_: Float32
    scales_: Float64
    rest_scale_: float
    shortest_: float | None
    variances_: Float64
    n_samples_: int
    n_labelled_: int
    landmarks_: Float32
    _map: tuple[str, LinearMap | DeviceMap] | None = None

    def __init__(
        self,
        embedding: Any = None,
        n_components: int | str = "auto",
        *,
        power: float | str = "auto",
        normalize: bool | str = "auto",
        max_samples: int = 8192,
        random_state: Any = 0,
        n_jobs: int | None = -1,
        device: str | None = None,
    ) -> None:
        self.embedding = embedding
        self.n_components = n_components
        self.power = power
        self.normalize = normalize
        self.max_samples = max_samples
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the map from a collection of sets, and fit the embeddings that are not fitted.

        y : a label for each set (whole numbers, strings, ...), or None. None, NaN and -1 stand for a set without a
            label, as labels for a part of the sets will do; but -1 is a class if there is only one other. Arrays of
            floats are the targets of a regression, and ignored, unless they are whole numbers and NaN.
        """
        views = checked_views(self.embedding)
        power = checked_power(self.power)
        check_numbers(self.n_components, self.normalize, self.max_samples)
        kernel.threads(self.n_jobs)
        checked_device(self.device)
        random = random_stream(self.random_state, WHITENING_STREAM)
        sets = self._start_fit(X)
        classes = None if y is None else class_numbers(y, len(sets))
        self.embeddings_ = [self._fitted(view, sets) for view in views]
        self.view_scales_ = [1.0] * len(views)
        rows = self._sample(len(sets), classes, random)
        vectors = self._joined(sets if rows is None else sets.take(rows))
        self._scale_views(vectors)
        if power is None:
            power = AUTO_POWER if vectors.shape[1] > SHORT else AUTO_POWER_OF_SHORT
        self._learn(vectors, power, random, classes if classes is None or rows is None else classes[rows])
        spaced = np.linspace(0, len(vectors) - 1, min(len(vectors), LANDMARKS)).astype(np.int64)
        self.landmarks_ = np.empty((len(spaced) if self.has_learnt else 0, self.vector_length), np.float32)
        if self.has_learnt:
            self._mapping(None).apply(vectors[spaced], self.landmarks_, self.n_jobs)
        if classes is not None and not self.n_labelled_:
            same = not self.has_learnt and self.n_samples_ >= FEWEST_SETS
            least = SETS_A_COMPONENT * AUTO_COMPONENTS[0] if self.rest_scale_ else 0
            text = why_labels_do_not_count(self.n_samples_, least, FEWEST_SETS if same else 0)
            warnings.warn(text, UserWarning, stacklevel=user_level())
        return self

    # -- fitting -------------------------------------------------------------------------------------------------------

    def _fitted(self, view: SetTransformer, sets: Sets) -> SetTransformer:
        """Return a copy that is fitted, and whose threads may be set."""
        if not hasattr(view, "n_features_in_"):
            fitted: SetTransformer = clone(view)
            self._pass_on(fitted, view)
            return fitted.fit(sets)
        if view.n_features_in_ != sets.dim:
            raise InputError(
                f"embedding={view!r:.60} was fitted on sets of dimension {view.n_features_in_}, these have {sets.dim}",
                "fit it on sets like these, or give one that is not fitted",
                argument="embedding",
            )
        check_origin(sets, view.origin_)
        return copy(view)

    def _sample(self, n: int, classes: Int64 | None, random: np.random.RandomState) -> Int64 | None:
        """Return which sets to learn from, None for all; labelled ones are half of them, if there are so many."""
        most = min(int(self.max_samples), max(FEWEST_SAMPLES, SAMPLE_NUMBERS // self._joined_length))
        if n <= most:
            return None
        drawn = random.permutation(n)
        if classes is not None:
            first = np.flatnonzero(classes[drawn] >= 0)[: most // 2]
            drawn = np.concatenate([drawn[first], np.delete(drawn, first)])
        return np.sort(drawn[:most])

    def _scale_views(self, vectors: Float32) -> None:
        """Learn the scale of each view, and apply it to the vectors."""
        sizes = []
        for columns in self._columns():
            alone = spread(vectors[:, columns], 0, np.random.RandomState(0))
            sizes.append(0.0 if alone.is_constant else math.sqrt(alone.total))
        if len(sizes) == 1 and 2.0**-40 < sizes[0] < 2.0**40:
            sizes = [1.0]  # alone it needs no scale, unless it is beyond what float32 can take
        varies = any(sizes)
        self.view_scales_ = [(1.0 / size if size else 0.0) if varies else 1.0 for size in sizes]
        self._rescale(vectors)

    def _learn(self, vectors: Float32, power: float, random: np.random.RandomState, classes: Int64 | None) -> None:
        n, dim = n_different(vectors), vectors.shape[1]
        n_kept, keep_rest = (0, True) if n == 1 else self._n_directions(n, dim)
        if n < FEWEST_SETS:
            n_kept, keep_rest = 0, True
        with_labels = classes is not None and not keep_rest
        n_found = max(n_kept, min(DISCRIMINATED, dim, n // SETS_A_COMPONENT)) if with_labels else n_kept
        learnt = spread(vectors, n_found, random)._replace(n=n)
        self._map, self.n_samples_, self.n_labelled_ = None, len(vectors), 0
        if n_kept == 0 or learnt.is_constant:
            self._set_map(np.zeros(dim), np.empty((0, dim)), np.empty(0), np.empty(0), 1.0)
            self.shortest_ = None
            if len(self.embeddings_) == 1:
                self.view_scales_ = [1.0]
            return
        directions, variances, scales = learnt.directions, learnt.variances, learnt.scales(power)
        if classes is not None and with_labels:
            directions, variances, scales = self._discriminate(vectors, learnt, scales, n_kept, classes)
        rest = learnt.rest_scale(power) if keep_rest else 0.0
        n_rest = dim - len(scales)
        unseen = max(0.0, learnt.total - float(variances.sum())) if keep_rest else 0.0
        size = math.sqrt(float((variances * scales**2).sum()) + unseen * rest**2)
        self._set_map(learnt.mean, directions, variances, scales / size, rest / size)
        noise = math.sqrt(learnt.noise * (float((scales**2).sum()) + n_rest * rest**2)) / size
        several = self.vector_length >= FEWEST_NORMALIZED
        self.shortest_ = noise if (several if self.normalize == "auto" else self.normalize) else None

    def _discriminate(
        self, vectors: Float32, learnt: Spread, scales: Float64, n_kept: int, classes: Int64
    ) -> tuple[Float64, Float64, Float64]:
        """Return directions of unit length, variances and scales, by which classes are told apart, too."""
        shared = shared_classes(classes)
        labelled, n_classes = np.flatnonzero(shared >= 0), int(shared.max()) + 1
        n_kept = min(n_kept, len(scales))
        if n_classes < 2:  # as it may be in a sample
            return learnt.directions[:n_kept], learnt.variances[:n_kept], scales[:n_kept]
        with threadpool_limits(1, "blas"):
            found = discriminants(learnt.coordinates(vectors[labelled]) * scales, shared[labelled])
            if not found.size:
                return learnt.directions[:n_kept], learnt.variances[:n_kept], scales[:n_kept]
            weight = label_weight(len(labelled), n_classes, found.shape[1])
            n_plain = min(max(n_kept, self._auto_components), len(scales))
            rows = joined_map(learnt.variances * scales**2, n_plain, found, weight, n_kept) * scales
            lengths = np.sqrt(np.square(rows).sum(axis=1))
            self.n_labelled_ = len(labelled)
            turned = rows / lengths[:, None]
            return with_signs(turned @ learnt.directions), np.square(turned) @ learnt.variances, lengths

    def _n_directions(self, n: int, dim: int) -> tuple[int, bool]:
        """Return how many directions to look for, and whether to keep all others too."""
        if isinstance(self.n_components, Integral):
            if self.n_components > (most := min(n - 1, dim)):
                why = f"{n} sets" if n <= dim else f"vectors of {dim} numbers"
                raise InputError(
                    f"n_components={self.n_components}, but {why} vary in {most} directions at most",
                    'give fewer, fit on more sets, or leave it at "auto"',
                    argument="n_components",
                )
            return int(self.n_components), False
        enough = n // SETS_A_COMPONENT
        if enough < min(AUTO_COMPONENTS[0], dim):
            return dim, True
        return min(self._auto_components, dim, enough), False

    @property
    def _auto_components(self) -> int:
        return AUTO_COMPONENTS[len(self.embeddings_) > 1]

    def _set_map(
        self, mean: Float64, directions: Float64, variances: Float64, scales: Float64, rest_scale: float
    ) -> None:
        self.mean_, self.variances_, self.scales_, self.rest_scale_ = mean, variances, scales, rest_scale
        self.directions_ = np.ascontiguousarray(directions, np.float32)

    def _pass_on(self, view: SetTransformer, given: Any) -> None:
        """Set where a fitted embedding runs: by the parameters here, and by the device that it was given with."""
        if hasattr(view, "n_jobs"):
            view.n_jobs = self.n_jobs
        if isinstance(view, DeviceTransformer):
            own = given.device if isinstance(given, DeviceTransformer) else None
            view.device = self.device if own is None else own

    def _ready_views(self) -> list[SetTransformer]:
        """Return the fitted embeddings, to run as the parameters say: these may have been changed since."""
        given = self.embedding if isinstance(self.embedding, list | tuple) else [self.embedding]
        for i, view in enumerate(self.embeddings_):
            self._pass_on(view, given[i] if i < len(given) else None)
        return self.embeddings_

    # -- about it ------------------------------------------------------------------------------------------------------

    @property
    def needs_data(self) -> str | None:
        """Why a wrapped embedding must be fitted to data; whitening itself can wait for them."""
        views = [view for view in checked_views(self.embedding) if not hasattr(view, "n_features_in_")]
        return next((view.needs_data for view in views if view.needs_data is not None), None)

    @property
    def learns(self) -> bool:
        return True

    def check_dim(self, dim: int) -> None:
        for view in checked_views(self.embedding):
            view.check_dim(dim)

    @property
    def takes_labels(self) -> bool:
        return True

    @property
    def has_learnt(self) -> bool:
        """Whether there were sets enough to learn from; if not, this is the wrapped embedding as it is."""
        return len(self.scales_) > 0

    @property
    def _plain(self) -> SetTransformer | None:
        """The one embedding that this is equal to, as long as nothing was learnt."""
        return self.embeddings_[0] if len(self.embeddings_) == 1 and not self.has_learnt else None

    @property
    def distance_kind(self) -> str:
        if self.has_learnt:
            return "whitened"
        return super().distance_kind if self._plain is None else self._plain.distance_kind

    @property
    def sliced_view(self) -> Any:
        return next((found for view in self.embeddings_ if (found := view.sliced_view) is not None), None)

    @property
    def lower_bounds(self) -> Mapping[str, Literal["euclidean", "chebyshev"]]:
        return {} if self._plain is None else self._plain.lower_bounds

    @property
    def index_length(self) -> int:
        return self.vector_length if self._plain is None else self._plain.index_length

    def index_vectors(self, sets: Sets, *, slack: bool = True) -> tuple[Float32, Float64 | None]:
        if self._plain is None:
            return super().index_vectors(sets, slack=slack)
        self._ready_views()
        return self._plain.index_vectors(sets, slack=slack)

    @property
    def learnt_from(self) -> dict[str, int] | None:
        return {"sets": self.n_samples_, "labelled": self.n_labelled_} if self.has_learnt else None

    def novelty(self, sets: Sets) -> float | None:
        """Return the part of these sets that are farther from the sample than 95% of its own sets from each other.

        That is the distance to the nearest of up to 256 sets of the sample, before vectors are brought to unit length.
        Of sets like those of the sample the part is about .05.
        """
        if len(self.landmarks_) < 2 or not len(sets):
            return None
        vectors = np.empty((len(sets), self.vector_length), np.float32)
        self._mapping(None).apply(self._joined(sets), vectors, self.n_jobs)
        return part_beyond(vectors, self.landmarks_, USUAL)

    # -- the vectors ---------------------------------------------------------------------------------------------------

    @property
    def vector_length(self) -> int:
        return len(self.mean_) if self.rest_scale_ else len(self.scales_)

    @property
    def _joined_length(self) -> int:
        return sum(view.vector_length for view in self.embeddings_)

    def _columns(self) -> list[slice]:
        """Return which numbers of the joined vectors are those of each view."""
        ends = np.cumsum([0, *(view.vector_length for view in self.embeddings_)]).tolist()
        return [slice(*pair) for pair in pairwise(ends)]

    def _joined(self, sets: Sets) -> Float32:
        """Return the vectors of all views side by side, each scaled."""
        vectors = np.empty((len(sets), self._joined_length), np.float32)
        for view, columns in zip(self._ready_views(), self._columns(), strict=True):
            view.embed(sets, vectors[:, columns])
        self._rescale(vectors)
        return vectors

    def _rescale(self, vectors: Float32) -> None:
        for columns, scale in zip(self._columns(), self.view_scales_, strict=True):
            if scale != 1:
                part = vectors[:, columns]
                np.multiply(part, scale, out=part, dtype=np.float64, casting="same_kind")

    def _mapping(self, shortest: float | None, device: str = CPU) -> LinearMap | DeviceMap:
        return mapping(self.mean_, self.directions_, self.scales_, self.rest_scale_, shortest, device)

    def _transform(self, sets: Sets, out: Float32) -> None:
        device = checked_device(self.device)
        if device != CPU and (work := self.device_work(device)) is not None:
            from ..gpu.pipeline import run

            held = HELD_BYTES * self._joined_length
            run(Ragged(sets.points, sets.offsets, sets.weights), work, out, None, device, held=held)
            return
        step = max(1, (BLOCK_NUMBERS if device == CPU else DEVICE_BLOCK_NUMBERS) // self._joined_length)
        for start in range(0, len(sets), step):
            rows = slice(start, start + step)
            self._map_on(device).apply(self._joined(sets[rows]), out[rows], self.n_jobs)

    def _map_on(self, device: str) -> LinearMap | DeviceMap:
        """Return the map of the vectors, which is kept for the device that was used last."""
        known = self._map
        if known is None or known[0] != device:
            self._map = known = device, self._mapping(self.shortest_, device)
        return known[1]

    def device_work(self, device: str) -> Any:
        views: list[tuple[Any, int, float]] = []
        for view, scale in zip(self._ready_views(), self.view_scales_, strict=True):
            if not isinstance(view, DeviceTransformer) or checked_device(view.device) != device:
                return None
            if (work := view.device_work(device)) is None:
                return None
            views.append((work, view.vector_length, scale))
        from ..gpu.products import DeviceMap, joined

        then = self._map_on(device)
        return joined(views, then) if isinstance(then, DeviceMap) else None

    def apart(self, sets: Sets, vectors: Float32) -> Float64 | None:
        """Return how far vectors of these sets that two devices have made may lie apart, (n,)."""
        if self._plain is not None:
            return self._plain.apart(sets, vectors)
        squares = np.zeros(len(sets))
        for view, scale in zip(self._ready_views(), self.view_scales_, strict=True):
            moved = view.apart(sets, view.index_vectors(sets, slack=False)[0])
            if moved is None:
                return None
            squares += (scale * moved) ** 2
        plain = np.empty((len(sets), self.vector_length), np.float32)
        self._mapping(None).apply(self._joined(sets), plain, self.n_jobs)
        stretch = max(float(self.scales_.max(initial=0.0)), self.rest_scale_)
        return apart_after_map(plain, stretch * np.sqrt(squares), self.shortest_)

    @property
    def made_on(self) -> str:
        names = [super().made_on, *(view.made_on for view in self._ready_views())]
        return next((name for name in names if name != CPU), CPU)

    # -- in scikit-learn's world ---------------------------------------------------------------------------------------

    def set_params(self, **params: Any) -> Self:
        """Set parameters. `embedding__n_slices` and the like are those of the default where no embedding was given."""
        if params.get("embedding", self.embedding) is None and any(key.startswith("embedding__") for key in params):
            params["embedding"] = SlicedWasserstein()
        super().set_params(**params)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what is computed from it."""
        return {name: value for name, value in super().__getstate__().items() if name != "_map"}

    def check_state(self) -> None:
        """Refuse (ValueError) parts that `fit` could not have learnt together: those of a file of other people."""
        views, (p, dim) = self.embeddings_, self.directions_.shape
        arrays: dict[str, tuple[Array, Any, tuple[int, ...]]] = {
            "mean_": (self.mean_, np.float64, (dim,)),
            "directions_": (self.directions_, np.float32, (p, dim)),
            "scales_": (self.scales_, np.float64, (p,)),
            "variances_": (self.variances_, np.float64, (p,)),
            "landmarks_": (self.landmarks_, np.float32, (min(len(self.landmarks_), LANDMARKS), self.vector_length)),
        }
        checks = {
            "embeddings_": isinstance(views, list) and all(isinstance(view, SetTransformer) for view in views),
            "n_features_in_": all(view.n_features_in_ == self.n_features_in_ for view in views),
            "view_scales_": isinstance(self.view_scales_, list) and len(self.view_scales_) == len(views),
            "rest_scale_": type(self.rest_scale_) is float and 0 <= self.rest_scale_ < math.inf,
            "shortest_": self.shortest_ is None or (type(self.shortest_) is float and 0 < self.shortest_ < math.inf),
            "length": dim == self._joined_length and self.vector_length > 0,
        }
        for name, (array, dtype, shape) in arrays.items():
            good = isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape
            checks[name] = good and bool(np.isfinite(array).all())
        if wrong := [name for name, good in checks.items() if not good]:
            raise ValueError(f"not as fit leaves it: {', '.join(wrong)}")
