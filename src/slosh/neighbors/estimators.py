"""Learning from the nearest sets: a classifier, a regressor and an outlier score, in the manner of scikit-learn.

Come in: sets, and for the first two a label or numbers for each. They are embedded once and put into a search. What
goes out for a new set is what its nearest ones say; nothing else is learnt.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, OutlierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted

from ..data.checks import Array, as_array, checked_count, kind_of
from ..data.sets import Sets, as_sets
from ..embed import SlicedWasserstein
from ..errors import user_level
from ..search import Search, default_search
from ..search.base import checked_recall

Float64: TypeAlias = NDArray[np.float64]
Int64: TypeAlias = NDArray[np.int64]
Self = TypeVar("Self", bound="SetNeighbors")
SelfClassifier = TypeVar("SelfClassifier", bound="KNeighborsClassifier")
SelfRegressor = TypeVar("SelfRegressor", bound="KNeighborsRegressor")
SelfOutlier = TypeVar("SelfOutlier", bound="OutlierScore")

AT_ONCE = 4096
"""Sets of one batch, of a stream and of queries: bounds the memory."""
BLOCK = 1 << 22
"""Votes held at once."""
METHODS = ("lof", "distance", "density")

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "OutlierScore"]


class SetNeighbors(BaseEstimator):  # type: ignore[misc]
    """Base class: embeds sets, keeps them in a search, and finds the nearest.

    The embedding and the search that were given are cloned and stay as they are; `embedding_` and `search_` are those
    in use. Row i of the search is the i-th set of `fit`.
    """

    n_neighbors: int
    embedding: Any
    search: Search | None
    recall: float | None

    embedding_: Any
    search_: Search
    n_samples_fit_: int
    n_features_in_: int
    _origin: Float64 | None

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """The nearest fitted sets of each set of X, nearest first.

        Parameters
        ----------
        X : a collection of sets, or an iterator of sets. None: the fitted sets, each not its own neighbour.
        n_neighbors : how many; None is `self.n_neighbors`.
        return_distance : whether to return distances too.

        Returns
        -------
        distances (n, n_neighbors) float64, between the embedded sets, and indices (n, n_neighbors) int64 into the sets
        of `fit`; or the indices alone. Where an approximate search finds too few, it is asked again, exactly.
        """
        check_is_fitted(self, "search_")
        k = checked_count("n_neighbors", self.n_neighbors if n_neighbors is None else n_neighbors)
        own = int(X is None)
        if k > self.n_samples_fit_ - own:
            without = " and none is its own neighbour" if own else ""
            raise ValueError(
                f"n_neighbors={k}, but {self.n_samples_fit_} sets were fitted{without}: give at most "
                f"{self.n_samples_fit_ - own}, or fit more sets"
            )
        distances, rows = [np.empty((0, k))], [np.empty((0, k), np.int64)]
        first = 0
        for vectors in self._queries(X):
            d, r = self._nearest(vectors, k + own)
            if own:
                d, r = _without_own(d, r, first)
            distances.append(d)
            rows.append(r)
            first += len(vectors)
        indices = np.concatenate(rows)
        return (np.concatenate(distances), indices) if return_distance else indices

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> csr_matrix:
        """The graph of nearest neighbours, a sparse matrix (n, number of fitted sets).

        `mode` "connectivity" has ones at the neighbours, "distance" their distances; X and n_neighbors are those of
        `kneighbors`.
        """
        if mode not in ("connectivity", "distance"):
            raise ValueError(f'mode={mode!r}: give "connectivity" or "distance"')
        distances, rows = self.kneighbors(X, n_neighbors)
        n, k = rows.shape
        values = distances.ravel() if mode == "distance" else np.ones(n * k)
        return csr_matrix((values, rows.ravel(), np.arange(0, n * k + 1, k)), shape=(n, self.n_samples_fit_))

    # -- what the estimators share -------------------------------------------------------------------------------------

    def _index(self, X: Any, y: Array | None, least: int = 1) -> None:
        """Embeds the sets and puts them into a new search; `self` changes only when all went well."""
        checked_count("n_neighbors", self.n_neighbors)
        checked_recall(self.recall)
        embedding, search = self._parts()
        name, n, dim, origin = type(self).__name__, 0, 0, None
        if isinstance(X, list | tuple) and len(X) == 0:
            raise ValueError(_too_few(name, 0, least))
        # All at once if they are in memory anyway: embedding and search then learn from all of them.
        batches = Sets.stream(X, batch_sets=AT_ONCE) if isinstance(X, Iterator) else iter([as_sets(X)])
        for batch in batches:
            if y is not None and (not isinstance(X, Iterator) or n + len(batch) > len(y)):
                _check_length(y, n + len(batch), "at least " if isinstance(X, Iterator) else "")
            if n == 0 and len(batch):
                embedding.fit(batch, None if y is None else y[: len(batch)])
                dim, origin = batch.dim, batch.origin
            if len(batch):
                search.add(_vectors(embedding, batch))
            n += len(batch)
        if n < least:
            raise ValueError(_too_few(name, n, least))
        if y is not None:
            _check_length(y, n)
        self.embedding_, self.search_, self.n_samples_fit_, self.n_features_in_ = embedding, search, n, dim
        self._origin = origin

    def _parts(self) -> tuple[Any, Search]:
        """A new embedding and a new search."""
        for given, methods, what in (
            (self.embedding, ("fit", "transform"), "an embedding such as slosh.embed.SlicedWasserstein()"),
            (self.search, ("add", "search"), "a search such as slosh.search.ExactSearch()"),
        ):
            if isinstance(given, type) or (given is not None and not all(hasattr(given, m) for m in methods)):
                got = f"the class {given.__name__}" if isinstance(given, type) else kind_of(given)
                raise ValueError(f"{'search' if 'search' in methods else 'embedding'} is {got}: give {what}, or None")
        embedding = SlicedWasserstein() if self.embedding is None else clone(self.embedding)
        # In 32 bits, so that distances are those of the vectors to the last digits.
        return embedding, default_search(precision=32) if self.search is None else clone(self.search)

    def _extend(self, X: Any, y: Array) -> None:
        """Adds sets to those that were fitted: all of them or, with an error, none."""
        vectors = list(self._queries(X))
        n = sum(map(len, vectors))
        _check_length(y, n)
        if n:
            self.search_.add(np.concatenate(vectors), np.arange(self.n_samples_fit_, self.n_samples_fit_ + n))
            self.n_samples_fit_ += n

    def _queries(self, X: Any) -> Iterator[Array]:
        """The vectors of X, batch by batch; X None: those of the fitted sets."""
        if X is None:
            for first in range(0, self.n_samples_fit_, AT_ONCE):
                yield self.search_.vectors(np.arange(first, min(first + AT_ONCE, self.n_samples_fit_)))
            return
        dim, origin = self.n_features_in_, self._origin
        sets = X if isinstance(X, Iterator) else iter([as_sets(X, dim=dim, origin=origin)])
        for batch in Sets.stream(sets, batch_sets=AT_ONCE, dim=dim, origin=origin):
            yield _vectors(self.embedding_, batch)

    def _nearest(self, vectors: Array, k: int) -> tuple[Float64, Int64]:
        distances, rows = self.search_.search(vectors, k, recall=self.recall)
        if (short := np.flatnonzero((rows < 0).any(axis=1))).size:
            distances[short], rows[short] = self.search_.search(vectors[short], k, recall=1.0)
        return distances, rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


class _Voting(SetNeighbors):
    """What classifier and regressor share: how much each neighbour counts."""

    weights: Any

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: Any = "uniform",
        embedding: Any = None,
        search: Search | None = None,
        recall: float | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.embedding = embedding
        self.search = search
        self.recall = recall

    def _check_weights(self) -> None:
        if self.weights not in ("uniform", "distance") and not callable(self.weights):
            raise ValueError(
                f'weights={self.weights!r}: give "uniform", "distance", or a function of the distances (n, k)'
            )

    def _weighted(self, X: Any) -> tuple[Int64, Float64]:
        """The neighbours (n, k), and what each of them counts, (n, k)."""
        self._check_weights()
        distances, rows = self.kneighbors(X)
        if isinstance(self.weights, str):
            if self.weights == "uniform":
                return rows, np.ones(rows.shape)
            with np.errstate(divide="ignore"):
                inverse = 1.0 / distances
            match = np.isinf(inverse)
            exact = match.any(axis=1)
            inverse[exact] = match[exact]  # where a set is met again, it and its equals decide alone
            return rows, inverse
        given = np.asarray(self.weights(distances), np.float64)
        if given.shape != rows.shape:
            raise ValueError(
                f"weights gave the shape {given.shape} for distances of {rows.shape}: return a weight for each"
            )
        if (wrong := np.argwhere(~(np.isfinite(given) & (given >= 0)))).size:
            i, j = wrong[0]
            raise ValueError(
                f"weights gave {given[i, j]} for the distance {distances[i, j]:.6g} (query {i}, neighbour {j}): "
                "return finite numbers, 0 or more"
            )
        if (zero := np.flatnonzero(~given.any(axis=1))).size:
            raise ValueError(f"weights gave nothing but 0 for query {zero[0]}: give one of its neighbours more than 0")
        return rows, given


class KNeighborsClassifier(ClassifierMixin, _Voting):  # type: ignore[misc]
    """Says of a set what most of its nearest sets are.

    Each of the k nearest fitted sets votes for its label, with its weight. The label with most votes wins, of several
    the smallest one (the first of `classes_`), as in `slosh.evaluate.vote_accuracy`.

    Parameters
    ----------
    n_neighbors : the number k of neighbours that vote.
    weights : "uniform": all the same; "distance": 1 / distance, and where a distance is 0 only those that are 0; or a
        function that gives a weight for each of the distances (n, k).
    embedding : what turns sets into vectors: any of `slosh.embed`, or a pipeline that starts with one. None is
        `SlicedWasserstein()`. It is fitted on the sets of `fit`, or on the first 4096 of a stream.
    search : one of `slosh.search`; None is `LadderSearch(precision=32)`, which is exact below 1024 sets, and finds 0.99
        of the neighbours beyond unless `recall` says otherwise.
    recall : the part of the true neighbours that is to be found, 1.0 for all; None leaves it to the search.

    Attributes
    ----------
    classes_ : (n_classes,) the labels, in increasing order.
    embedding_, search_ : fitted copies of the embedding and of the search.
    n_samples_fit_, n_features_in_ : the number of fitted sets, and of the features of their elements.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.neighbors import KNeighborsClassifier
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(scale=1 + i % 2, size=(50 + i, 3)) for i in range(40)]
    >>> labels = ["narrow", "wide"] * 20
    >>> model = KNeighborsClassifier(n_neighbors=3).fit(sets[:30], labels[:30])
    >>> model.predict(sets[30:34])
    array(['narrow', 'wide', 'narrow', 'wide'], dtype='<U6')
    >>> model.score(sets[30:], labels[30:])
    1.0
    """

    classes_: Array
    _codes: Int64

    def fit(self: SelfClassifier, X: Any, y: Any) -> SelfClassifier:
        """Keeps the sets and their labels.

        X : a collection of sets (anything that `Sets` takes), or an iterator of sets or of `Sets`, which is read batch
            by batch and never held whole.
        y : (n,) labels, numbers or strings.
        """
        labels = _checked_labels(y)
        self._check_weights()
        self._index(X, labels)
        self.classes_, self._codes = np.unique(labels, return_inverse=True)
        return self

    def partial_fit(self: SelfClassifier, X: Any, y: Any) -> SelfClassifier:
        """Adds sets and labels, new labels too; the first call is `fit`. The embedding stays as it was fitted first."""
        if not hasattr(self, "search_"):
            return self.fit(X, y)
        labels = _checked_labels(y)
        classes = unique_labels(self.classes_, labels)
        self._extend(X, labels)
        old = np.searchsorted(classes, self.classes_)[self._codes]
        self.classes_, self._codes = classes, np.concatenate([old, np.searchsorted(classes, labels)])
        return self

    def predict(self, X: Any) -> Array:
        """The label of each set, (n,). X None: of the fitted sets, each without its own vote."""
        winners = [votes.argmax(axis=1) for votes in self._votes(X)]  # the first of equals
        return np.asarray(self.classes_[np.concatenate([np.empty(0, np.int64), *winners])])

    def predict_proba(self, X: Any) -> Float64:
        """The share of the votes for each of `classes_`, (n, n_classes)."""
        shares = [votes / votes.sum(axis=1, keepdims=True) for votes in self._votes(X)]
        return np.concatenate([np.empty((0, len(self.classes_))), *shares])

    def _votes(self, X: Any) -> Iterator[Float64]:
        """Votes (n, n_classes), block by block."""
        rows, weights = self._weighted(X)
        n_classes = len(self.classes_)
        step = max(1, BLOCK // n_classes)
        for first in range(0, len(rows), step):
            codes = self._codes[rows[first : first + step]]
            cells = np.arange(len(codes))[:, None] * n_classes + codes
            count = np.bincount(cells.ravel(), weights[first : first + step].ravel(), len(codes) * n_classes)
            yield count.astype(np.float64, copy=False).reshape(len(codes), n_classes)


class KNeighborsRegressor(RegressorMixin, _Voting):  # type: ignore[misc]
    """Says of a set the weighted mean of its nearest sets' numbers: sum_j w_j y_j / sum_j w_j over the k nearest.

    The parameters are those of `KNeighborsClassifier`; y is one number a set, (n,), or several, (n, n_outputs).

    >>> import numpy as np
    >>> from slosh.neighbors import KNeighborsRegressor
    >>> rng = np.random.default_rng(0)
    >>> widths = rng.uniform(1, 3, size=200)
    >>> sets = [rng.normal(scale=width, size=(500, 3)) for width in widths]
    >>> model = KNeighborsRegressor(n_neighbors=3).fit(sets[:190], widths[:190])
    >>> model.score(sets[190:], widths[190:]) > 0.98
    True
    """

    _y: Float64

    def fit(self: SelfRegressor, X: Any, y: Any) -> SelfRegressor:
        """Keeps the sets and their numbers, (n,) or (n, n_outputs); X as in `KNeighborsClassifier.fit`."""
        numbers = _checked_numbers(y)
        self._check_weights()
        self._index(X, numbers)
        self._y = numbers
        return self

    def partial_fit(self: SelfRegressor, X: Any, y: Any) -> SelfRegressor:
        """Adds sets and numbers; the first call is `fit`. The embedding stays as it was fitted first."""
        if not hasattr(self, "search_"):
            return self.fit(X, y)
        numbers = _checked_numbers(y)
        if numbers.shape[1:] != self._y.shape[1:]:
            raise ValueError(f"y has the shape {numbers.shape}, that of fit had {self._y.shape}: give as many columns")
        self._extend(X, numbers)
        self._y = np.concatenate([self._y, numbers])
        return self

    def predict(self, X: Any) -> Float64:
        """The numbers of each set, (n,) or (n, n_outputs). X None: of the fitted sets, each without its own."""
        rows, weights = self._weighted(X)
        y = self._y.reshape(len(self._y), -1)
        total = np.zeros((len(rows), y.shape[1]))
        for j in range(rows.shape[1]):  # neighbour by neighbour: (n, k, n_outputs) numbers are never held
            total += weights[:, j, None] * y[rows[:, j]]
        total /= weights.sum(axis=1, keepdims=True)
        return total.reshape(len(rows), *self._y.shape[1:])


class OutlierScore(OutlierMixin, SetNeighbors):  # type: ignore[misc]
    r"""Says how odd a set is beside the fitted ones. Scores are higher for what is more usual, as in scikit-learn.

    With the distances d_1 <= ... <= d_k of a set to its k nearest fitted sets, the score is

    - ``method="lof"``: minus the local outlier factor of Breunig et al. (2000): with the reach
      r(x) = mean over the neighbours j of max(d_j, distance of j to its own k-th neighbour), it is
      -mean over j of r(x) / r(j). About -1 inside a cluster, however dense that is; -2 is twice as sparse as around
      the neighbours.
    - ``method="distance"``: -d_k, in the units of the data. For sets that are equally dense everywhere.
    - ``method="density"``: log( 1/n sum_j exp(-d_j^2 / (2 h^2)) ): a Gaussian kernel density estimate of width h
      cut to the k nearest, up to a constant (the volume of the kernel).

    Parameters
    ----------
    n_neighbors : the number k of neighbours; with fewer fitted sets all others, and a warning.
    method : "lof", "distance" or "density".
    contamination : the part of the fitted sets that is to count as outliers, more than 0 and at most 0.5. "auto": those
        below -1.5 for "lof"; for the others those below Q1 - 1.5 (Q3 - Q1), the quartiles of the fitted sets' scores.
    bandwidth : the width h for "density"; None is the median of d_k over the fitted sets, of those where it is not 0.
    embedding, search, recall : as in `KNeighborsClassifier`.

    Attributes
    ----------
    training_scores_ : (n,) the scores of the fitted sets, each not its own neighbour.
    offset_ : what scores below this is an outlier.
    bandwidth_ : h, for "density".
    n_neighbors_ : k as it is used.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.neighbors import OutlierScore
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(size=(200, 2)) for _ in range(100)]
    >>> model = OutlierScore().fit(sets)
    >>> model.predict([rng.normal(size=(200, 2)), rng.uniform(-3, 3, size=(200, 2))])
    array([ 1, -1])
    """

    training_scores_: Float64
    offset_: float
    bandwidth_: float
    n_neighbors_: int
    _kth: Float64
    _reach: Float64
    _floor: float

    def __init__(
        self,
        n_neighbors: int = 20,
        *,
        method: str = "lof",
        contamination: float | str = "auto",
        bandwidth: float | None = None,
        embedding: Any = None,
        search: Search | None = None,
        recall: float | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.method = method
        self.contamination = contamination
        self.bandwidth = bandwidth
        self.embedding = embedding
        self.search = search
        self.recall = recall

    def fit(self: SelfOutlier, X: Any, y: Any = None) -> SelfOutlier:
        """Keeps the sets, and scores each beside the others; X as in `KNeighborsClassifier.fit`, y is ignored."""
        self._check_params()
        self._index(X, None, least=2)
        if self.n_neighbors > (most := self.n_samples_fit_ - 1):
            warnings.warn(
                f"n_neighbors={self.n_neighbors}, but each of the {self.n_samples_fit_} fitted sets has {most} others: "
                f"{most} are used",
                stacklevel=user_level(),
            )
        self.n_neighbors_ = min(self.n_neighbors, most)
        self._method = self.method  # what is fitted stays, whatever set_params changes later
        distances, rows = self.kneighbors(None, self.n_neighbors_)
        self._kth = distances[:, -1]
        positive = self._kth[self._kth > 0]
        self.bandwidth_ = float(self.bandwidth or (np.median(positive) if len(positive) else 1.0))
        # Among copies of one set the reach is 0: a little more, in proportion to the others, keeps ratios finite.
        self._floor = 1e-10 * float(distances.mean()) or 1e-300
        self._reach = self._reaches(distances, rows)
        self.training_scores_ = self._scores(distances, rows)
        if self.contamination != "auto":
            self.offset_ = float(np.percentile(self.training_scores_, 100.0 * float(self.contamination)))
        elif self.method == "lof":
            self.offset_ = -1.5
        else:
            low, high = np.percentile(self.training_scores_, [25, 75])
            self.offset_ = float(low - 1.5 * (high - low))
        return self

    def score_samples(self, X: Any) -> Float64:
        """The score of each new set, (n,). For the fitted sets see `training_scores_`: here they meet themselves."""
        check_is_fitted(self, "offset_")
        if X is None:
            raise ValueError("X is None: the scores of the fitted sets are training_scores_")
        distances, rows = self.kneighbors(X, self.n_neighbors_)
        return self._scores(distances, rows)

    def decision_function(self, X: Any) -> Float64:
        """`score_samples` less `offset_`: below 0 for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Int64:
        """-1 for outliers among new sets, 1 for the others. For the fitted sets themselves take `fit_predict`."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def fit_predict(self, X: Any, y: Any = None) -> Int64:
        """Fits, and says which of these very sets are outliers (-1), each beside the others."""
        self.fit(X)
        return np.where(self.training_scores_ < self.offset_, -1, 1)

    def _reaches(self, distances: Float64, rows: Int64) -> Float64:
        return np.asarray(np.maximum(distances, self._kth[rows]).mean(axis=1)) + self._floor

    def _scores(self, distances: Float64, rows: Int64) -> Float64:
        if self._method == "distance":
            return -distances[:, -1]
        if self._method == "density":
            kernels = -0.5 * (distances / self.bandwidth_) ** 2
            return np.asarray(logsumexp(kernels, axis=1) - np.log(self.n_samples_fit_))
        return np.asarray(-self._reaches(distances, rows) * np.mean(1.0 / self._reach[rows], axis=1))

    def _check_params(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r}: give one of {', '.join(map(repr, METHODS))}")
        if self.contamination != "auto" and not (_is_number(self.contamination) and 0 < self.contamination <= 0.5):  # type: ignore[operator]
            raise ValueError(f'contamination={self.contamination!r}: give "auto", or more than 0 and at most 0.5')
        if self.bandwidth is not None and not (_is_number(self.bandwidth) and 0 < self.bandwidth < np.inf):
            raise ValueError(f"bandwidth={self.bandwidth!r}: give a distance above 0, or None")


def _vectors(embedding: Any, sets: Sets) -> Array:
    """Without the container that `set_output` may have put around them."""
    return np.asarray(embedding.transform(sets))


def _without_own(distances: Float64, rows: Int64, first: int) -> tuple[Float64, Int64]:
    """Each row of the k + 1 nearest without the set itself, number `first` + its row; if that is not there (more than
    k copies of it are), without the last.
    """
    keep = rows != np.arange(first, first + len(rows))[:, None]
    keep[keep.all(axis=1), -1] = False
    shape = len(rows), rows.shape[1] - 1
    return distances[keep].reshape(shape), rows[keep].reshape(shape)


# -- checks ------------------------------------------------------------------------------------------------------------


def _is_number(x: object) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _too_few(name: str, n: int, least: int) -> str:
    return f"{name}.fit got {n} set{'s' * (n != 1)}: it needs at least {least}"


def _check_length(y: Array, n: int, about: str = "") -> None:
    if len(y) != n:
        raise ValueError(f"X has {about}{n} sets, y has {len(y)} entries: give one for each set")


def _checked_labels(y: Any) -> Array:
    """Labels (n,), which can be sorted."""
    labels = as_array(y, "y")
    if labels.dtype.kind == "O":
        kinds = sorted({type(label).__name__ for label in labels.ravel()})
        if len(kinds) > 1:
            raise ValueError(f"y mixes labels of the types {', '.join(kinds)}: give all of them one type")
        labels = np.array(labels.tolist())
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"y must be (n,), one label for each set, not of shape {labels.shape}: for several labels a set fit a "
            "classifier for each"
        )
    if labels.dtype.kind == "f" and (wrong := np.flatnonzero(~np.isfinite(labels))).size:
        raise ValueError(f"y[{wrong[0]}] is {labels[wrong[0]]}: give every set a label")
    check_classification_targets(labels)
    return labels


def _checked_numbers(y: Any) -> Float64:
    """Numbers (n,) or (n, n_outputs)."""
    given = as_array(y, "y")
    if given.dtype.kind not in "fiub" or given.ndim not in (1, 2) or 0 in given.shape[1:]:
        raise ValueError(f"y must be numbers, (n,) or (n, n_outputs), not {given.dtype} of shape {given.shape}")
    numbers = given.astype(np.float64)
    if (wrong := np.argwhere(~np.isfinite(numbers))).size:
        place = ", ".join(map(str, wrong[0]))
        raise ValueError(f"y[{place}] is {numbers[tuple(wrong[0])]}: put a number in its place, or leave the set out")
    return numbers
