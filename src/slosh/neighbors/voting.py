"""A classifier and a regressor: what is said of a set is what its nearest fitted sets say. Nothing else is learnt.

scikit-learn's own estimators take such neighbours as a precomputed graph, and give the same answers (the tests compare
them). They are not used here because a call takes 0.7 to 1.5 ms, ten times as long as the search of one set, and
weighted votes take time in proportion to the number of classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels

from ..errors import InputError, bad_value
from ..native.arrays import Array, Float64, Int64
from ..search import Search
from .base import SetNeighbors, checked_labels, checked_numbers

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_VOTES = 1 << 22
"""Votes (queries times classes) that are held at once."""


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
        self.n_neighbors, self.weights = n_neighbors, weights
        self.embedding, self.search, self.recall = embedding, search, recall

    def _check_weights(self) -> None:
        if self.weights not in ("uniform", "distance") and not callable(self.weights):
            raise bad_value(
                "weights", self.weights, 'give "uniform", "distance", or a function of the distances (n, k)'
            )

    def _weighted_neighbors(self, X: Any) -> tuple[Int64, Float64]:
        """Return the neighbours (n, k), and how much each of them counts, (n, k)."""
        self._check_weights()
        distances, rows = self.kneighbors(X)
        if callable(self.weights):
            return rows, _checked_weights(self.weights(distances), distances)
        if self.weights == "uniform":
            return rows, np.ones(rows.shape)
        with np.errstate(divide="ignore"):
            inverse = 1.0 / distances
        equal = np.isinf(inverse)
        met = equal.any(axis=1)
        inverse[met] = equal[met]  # a fitted set that equals the query, and others that do, decide alone
        return rows, inverse


def _checked_weights(given: Any, distances: Float64) -> Float64:
    """Return what a function of the user's gave as weights for these distances."""
    weights = np.asarray(given, np.float64)
    if weights.shape != distances.shape:
        problem = f"weights gave the shape {weights.shape} for distances of {distances.shape}"
        raise InputError(problem, "return a weight for each", argument="weights")
    if (wrong := np.argwhere(~(np.isfinite(weights) & (weights >= 0)))).size:
        i, j = wrong[0]
        problem = f"weights gave {weights[i, j]} for the distance {distances[i, j]:.6g} (query {i}, neighbour {j})"
        raise InputError(problem, "return finite numbers, 0 or more", argument="weights")
    if (zero := np.flatnonzero(~weights.any(axis=1))).size:
        problem = f"weights gave nothing but 0 for query {zero[0]}"
        raise InputError(problem, "give one of its neighbours more than 0", argument="weights")
    return weights


class KNeighborsClassifier(ClassifierMixin, _Voting):  # type: ignore[misc]
    """Predict for a set the label that most of its nearest sets have.

    Each of the k nearest fitted sets votes for its label, with its weight. The label with most votes wins; of equal
    ones the smallest (the first of `classes_`), as in `slosh.evaluate.vote_accuracy`.

    Parameters
    ----------
    n_neighbors : the number k of neighbours that vote.
    weights : "uniform": all the same; "distance": 1 / distance, and where a distance is 0 only those that are 0; or a
        function that returns a weight for each of the distances (n, k).
    embedding : what turns sets into vectors: any of `slosh.embed`, or a pipeline that starts with one. None is
        `SlicedWasserstein()`. It is fitted on the sets of `fit`, or on the first 4096 of a stream.
    search : one of `slosh.search`; None is `LadderSearch(precision=32)`, which is exact below 1024 sets, and finds 0.99
        of the neighbours beyond unless `recall` says otherwise.
    recall : the fraction of the true neighbours to find, 1.0 for all; None leaves it to the search.

    Attributes
    ----------
    classes_ : (n_classes,) the labels, in increasing order.
    index_ : the `slosh.SetIndex` in memory that holds the fitted sets. `int(id)` is the number of a set in `fit`.
    embedding_ : the fitted copy of the embedding.
    n_samples_fit_, n_features_in_ : the number of fitted sets, and of the features of their elements.

    Distances are those between the vectors of the index, `embedding_.index_vectors(sets)`.

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

    def fit(self, X: Any, y: Any) -> Self:
        """Store the sets and their labels.

        X : a collection of sets (anything that `Sets` takes), or an iterator of sets or of `Sets`, which is read batch
            by batch.
        y : (n,) labels, numbers or strings.
        """
        labels = _checked_classes(y)
        self._check_weights()
        self._fit_index(X, labels)
        self.classes_, self._codes = np.unique(labels, return_inverse=True)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add sets and labels, new labels too. The first call is `fit`; later ones leave the embedding as it is."""
        if not hasattr(self, "index_"):
            return self.fit(X, y)
        labels = _checked_classes(y)
        classes = unique_labels(self.classes_, labels)
        self._extend_index(X, labels)
        old = np.searchsorted(classes, self.classes_)[self._codes]
        self.classes_, self._codes = classes, np.concatenate([old, np.searchsorted(classes, labels)])
        return self

    def predict(self, X: Any) -> Array:
        """Return the label of each set, (n,). X None: those of the fitted sets, each without its own vote."""
        winners = [votes.argmax(axis=1) for votes in self._votes(X)]  # the first of equals
        return np.asarray(self.classes_[np.concatenate([np.empty(0, np.int64), *winners])])

    def predict_proba(self, X: Any) -> Float64:
        """Return the share of the votes for each of `classes_`, (n, n_classes)."""
        shares = [votes / votes.sum(axis=1, keepdims=True) for votes in self._votes(X)]
        return np.concatenate([np.empty((0, len(self.classes_))), *shares])

    def _votes(self, X: Any) -> Iterator[Float64]:
        """Yield votes (n, n_classes), block by block."""
        rows, weights = self._weighted_neighbors(X)
        n_classes = len(self.classes_)
        step = max(1, MAX_VOTES // n_classes)
        for first in range(0, len(rows), step):
            codes = self._codes[rows[first : first + step]]
            cells = np.arange(len(codes))[:, None] * n_classes + codes
            count = np.bincount(cells.ravel(), weights[first : first + step].ravel(), len(codes) * n_classes)
            yield count.astype(np.float64, copy=False).reshape(len(codes), n_classes)


def _checked_classes(y: Any) -> Array:
    labels = checked_labels(y)
    check_classification_targets(labels)
    return labels


class KNeighborsRegressor(RegressorMixin, _Voting):  # type: ignore[misc]
    """Predict for a set the weighted mean of its nearest sets' numbers: sum_j w_j y_j / sum_j w_j over the k nearest.

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

    def fit(self, X: Any, y: Any) -> Self:
        """Store the sets and their numbers, (n,) or (n, n_outputs); X as in `KNeighborsClassifier.fit`."""
        numbers = checked_numbers(y)
        self._check_weights()
        self._fit_index(X, numbers)
        self._y = numbers
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add sets and numbers. The first call is `fit`; later ones leave the embedding as it is."""
        if not hasattr(self, "index_"):
            return self.fit(X, y)
        numbers = checked_numbers(y)
        if numbers.shape[1:] != self._y.shape[1:]:
            problem = f"y has the shape {numbers.shape}, that of fit had {self._y.shape}"
            raise InputError(problem, "give as many columns", argument="y")
        self._extend_index(X, numbers)
        self._y = np.concatenate([self._y, numbers])
        return self

    def predict(self, X: Any) -> Float64:
        """Return the numbers of each set, (n,) or (n, n_outputs). X None: of the fitted sets, each without its own."""
        rows, weights = self._weighted_neighbors(X)
        y = self._y.reshape(len(self._y), -1)
        total = np.zeros((len(rows), y.shape[1]))
        for j in range(rows.shape[1]):  # neighbour by neighbour: (n, k, n_outputs) numbers are never held
            total += weights[:, j, None] * y[rows[:, j]]
        total /= weights.sum(axis=1, keepdims=True)
        return total.reshape(len(rows), *self._y.shape[1:])
