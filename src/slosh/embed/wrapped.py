"""Any scikit-learn style transformer of sets as an embedding: a Pipeline that starts with an embedding, say."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..data.checks import FLOAT32_MAX, first_outside
from ..data.sets import Sets
from ..errors import InputError
from ..native.arrays import Array, Float32, Float64
from .base import SetTransformer


class Wrapped(SetTransformer):
    """An embedding made of any object with `fit(sets, y)` and `transform(sets)`, which returns (n, D) numbers.

    A transformer that is fitted is used as it is, and `fit` leaves it alone. Otherwise `fit` fits a copy of it, and
    passes `y` on. Sets are transformed batch by batch, as `Sets`; vectors are the same for any batching if those of the
    transformer are. An index in memory takes it; one on disk stores only embeddings of slosh itself.

    transformer : a Pipeline whose first step takes sets, or any other such object. If it is fitted but has no
        `n_features_in_`, call `fit` before use, so that the dimension is known.
    transformer_ : the fitted transformer.

    >>> from sklearn.decomposition import PCA
    >>> from sklearn.pipeline import make_pipeline
    >>> from slosh.embed import SlicedWasserstein, Wrapped
    >>> sets = [np.random.default_rng(i).normal(size=(30, 3)) for i in range(50)]
    >>> Wrapped(make_pipeline(SlicedWasserstein(), PCA(8))).fit(sets).transform(sets).shape
    (50, 8)
    """

    transformer_: Any
    _dim: int
    _origin: Float64 | None

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> Wrapped:
        """Fit a copy of the transformer to sets and `y`, unless it is fitted already."""
        for name in ("fit", "transform"):
            if not callable(getattr(self.transformer, name, None)):
                problem = f"transformer={self.transformer!r:.80} has no method {name}"
                remedy = "pass an object with fit and transform, e.g. a Pipeline that starts with an embedding of slosh"
                raise InputError(problem, remedy, argument="transformer")
        sets = self._start_fit(X)
        if _is_fitted(self.transformer):
            self.transformer_ = self.transformer
        else:
            self.transformer_ = clone(self.transformer, safe=False)
            self.transformer_.fit(sets, y)
        self._length = self._call(sets[:1]).shape[1]
        return self

    @property
    def takes_labels(self) -> bool:
        """Whether the transformer may learn from labels, which is its own affair."""
        return not _is_fitted(self.transformer)

    @property
    def n_features_in_(self) -> int:
        """The dimension of the elements; known before `fit` if the transformer is fitted and knows it."""
        if "_dim" in vars(self):
            return self._dim
        if not _is_fitted(self.transformer):
            raise AttributeError("n_features_in_ is unknown before fit")
        return int(self.transformer.n_features_in_)

    @n_features_in_.setter
    def n_features_in_(self, dim: int) -> None:
        self._dim = dim

    @property
    def origin_(self) -> Float64 | None:
        """The origin of the sets that the transformer was fitted on."""
        if "_origin" in vars(self):
            return self._origin
        steps = getattr(self.transformer, "steps", None)
        origin: Float64 | None = getattr(steps[0][1] if steps else self.transformer, "origin_", None)
        return origin

    @origin_.setter
    def origin_(self, origin: Float64 | None) -> None:
        self._origin = origin

    @property
    def needs_data(self) -> str | None:
        return "this embedding is to be fitted on data"

    @property
    def vector_length(self) -> int:
        if "_length" not in vars(self):  # a transformer that came fitted: try it on one set
            self._check_fitted()
            points = np.random.RandomState(0).standard_normal((8, self.n_features_in_)).astype(np.float32)
            self._length = self._call(Sets.from_checked(points, np.array([0, 8]), None, self.origin_)).shape[1]
        return int(self._length)

    def _call(self, sets: Sets) -> Array:
        found = getattr(self, "transformer_", self.transformer).transform(sets)
        vectors = np.asarray(found.toarray() if hasattr(found, "toarray") else found)
        if vectors.ndim != 2 or len(vectors) != len(sets) or vectors.dtype.kind not in "fiub":
            problem = f"made {vectors.dtype} of shape {vectors.shape} from {len(sets)} sets"
            raise _wrong(problem, f"it must return numbers, ({len(sets)}, D)")
        return vectors

    def _transform(self, sets: Sets, out: Float32) -> None:
        vectors = self._call(sets)
        if vectors.shape != out.shape:
            problem = f"made vectors of {vectors.shape[1]} numbers, and of {out.shape[1]} before"
            raise _wrong(problem, "it must always return vectors of one length")
        with np.errstate(over="ignore"):
            out[...] = vectors
        if (wrong := first_outside(out, -FLOAT32_MAX, FLOAT32_MAX)) is not None:
            problem = f"made NaN, infinity or a number beyond float32 from set {wrong[0]} of a batch"
            raise _wrong(problem, set=wrong[0])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")


def _wrong(problem: str, remedy: str = "", **fields: Any) -> InputError:
    return InputError(f"the transformer {problem}", remedy, argument="transformer", **fields)


def _is_fitted(transformer: Any) -> bool:
    try:
        check_is_fitted(transformer)
    except (NotFittedError, TypeError, AttributeError):
        return False
    return True
