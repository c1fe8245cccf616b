"""What the estimators share: fitted sets are kept in an index in memory, and the index finds their nearest neighbours.

Sets come in; distances and numbers of fitted sets go out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils.validation import check_is_fitted

from ..data.checks import as_array, checked_count, kind_of
from ..data.sets import Sets, as_sets
from ..embed import SlicedWasserstein, Wrapped
from ..embed.base import SetTransformer
from ..errors import InputError, bad_value
from ..index.set_index import SetIndex
from ..native.arrays import Array, Float64, Int64, Mask
from ..search import LadderSearch, Search, checked_recall

if TYPE_CHECKING:
    from typing_extensions import Self

STREAM_SETS = 4096
"""Sets that are taken from a stream at a time. Bounds the memory."""
_DEFAULTS: dict[str, Callable[[], Any]] = {
    "embedding": SlicedWasserstein,
    "search": lambda: LadderSearch(precision=32),
}
"""What None stands for as a parameter."""


class SetNeighbors(BaseEstimator):  # type: ignore[misc]
    """Base class: fit an embedding, keep the sets in an index in memory, and find the nearest of them.

    The embedding and the search that were given are cloned and never changed. Subclasses call `_fit_index` and
    `_extend_index`.
    """

    n_neighbors: int
    embedding: Any
    search: Search | None
    recall: float | None

    embedding_: SetTransformer
    index_: SetIndex
    _index_search: Search

    @property
    def n_samples_fit_(self) -> int:
        """The number of fitted sets."""
        return len(self.index_)

    @property
    def n_features_in_(self) -> int:
        """The number of features of an element."""
        return int(self.embedding_.n_features_in_)

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """Return the nearest fitted sets of each set of X, nearest first, equal distances in the order of `fit`.

        Parameters
        ----------
        X : a collection of sets, or an iterator of sets. None stands for the fitted sets, none of which is its own
            neighbour.
        n_neighbors : how many; None is `self.n_neighbors`.
        return_distance : whether to return distances too.

        Returns
        -------
        distances (n, n_neighbors) float64, between the vectors of the index, and indices (n, n_neighbors) int64 into
        the sets of `fit`; or the indices alone. Where an approximate search finds too few, it is repeated exactly.
        """
        check_is_fitted(self, "index_")
        k = checked_count("n_neighbors", self.n_neighbors if n_neighbors is None else n_neighbors)
        most = self.n_samples_fit_ - (X is None)
        if k > most:
            without = " and none is its own neighbour" * (X is None)
            problem = f"n_neighbors={k}, but {self.n_samples_fit_} sets were fitted{without}"
            raise InputError(problem, f"give at most {most}, or fit more sets", argument="n_neighbors")
        found = [self._nearest(queries, k) for queries in ([None] if X is None else self._query_batches(X))]
        indices = np.concatenate([np.empty((0, k), np.int64), *(rows for _, rows in found)])
        return (np.concatenate([np.empty((0, k)), *(far for far, _ in found)]), indices) if return_distance else indices

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> csr_matrix:
        """Return the graph of nearest neighbours as a sparse matrix (n, number of fitted sets).

        `mode` is "connectivity" (ones at the neighbours) or "distance"; X and n_neighbors are those of `kneighbors`.
        """
        if mode not in ("connectivity", "distance"):
            raise bad_value("mode", mode, 'give "connectivity" or "distance"')
        distances, rows = self.kneighbors(X, n_neighbors)
        n, k = rows.shape
        values = distances.ravel() if mode == "distance" else np.ones(n * k)
        return csr_matrix((values, rows.ravel(), np.arange(0, n * k + 1, k)), shape=(n, self.n_samples_fit_))

    # -- fitting, for subclasses ---------------------------------------------------------------------------------------

    def _fit_index(self, X: Any, y: Array | None, least: int = 1) -> None:
        """Fit the embedding and put the sets into a new index. `self` changes only when all of it has succeeded."""
        checked_count("n_neighbors", self.n_neighbors)
        checked_recall(self.recall)
        embedding, search = self._new_embedding(), _DEFAULTS["search"]() if self.search is None else self.search
        streamed, n, index = isinstance(X, Iterator), 0, None
        empty = isinstance(X, list | tuple) and not X
        for batch in Sets.stream(X, batch_sets=STREAM_SETS) if streamed else [as_sets(X, dim=1 if empty else None)]:
            n += len(batch)
            if y is not None and (n > len(y) or not streamed):
                check_length(y, n, "at least " * streamed)
            if index is None and len(batch):
                embedding.fit(batch, None if y is None else self._targets(y[: len(batch)], embedding))
                index = new_index(embedding, search, getattr(search, "n_jobs", -1))
            if index is not None:
                add_rows(index, batch)
        if index is None or n < least:
            raise InputError(f"{type(self).__name__}.fit got {n} set{'s' * (n != 1)}: it needs at least {least}")
        if y is not None:
            check_length(y, n)
        self.embedding_, self.index_, self._index_search = embedding, index, search

    def _targets(self, y: Array, embedding: SetTransformer) -> Array | None:
        """Return what the embedding is fitted to: classes as 0, 1, ..., as -1 is no label to our own embeddings."""
        if isinstance(embedding, Wrapped):
            return y
        if not is_classifier(self):
            return None
        _, classes, counts = np.unique(y, return_inverse=True, return_counts=True)
        return classes if len(counts) > 1 and counts.max() > 1 else None  # one class, or all alone, teach nothing

    def _extend_index(self, X: Any, y: Array) -> None:
        """Add sets to those that were fitted: all of them or, with an error, none."""
        batches = list(self._query_batches(X))
        check_length(y, sum(map(len, batches)))
        if batches:
            add_rows(self.index_, Sets.concat(batches))

    def _new_embedding(self) -> SetTransformer:
        given = _DEFAULTS["embedding"]() if self.embedding is None else self.embedding
        if isinstance(given, type) or not (hasattr(given, "fit") and hasattr(given, "transform")):
            got = f"the class {given.__name__}" if isinstance(given, type) else kind_of(given)
            remedy = "give an embedding such as slosh.embed.SlicedWasserstein(), or None"
            raise InputError(f"embedding is {got}", remedy, argument="embedding")
        made = clone(given)
        return made if isinstance(made, SetTransformer) else Wrapped(made)

    # -- asking the index ----------------------------------------------------------------------------------------------

    def _query_batches(self, X: Any) -> Iterable[Sets]:
        known: dict[str, Any] = {"dim": self.n_features_in_, "origin": self.embedding_.origin_}
        return Sets.stream(X, batch_sets=STREAM_SETS, **known) if isinstance(X, Iterator) else [as_sets(X, **known)]

    def _nearest(self, queries: Sets | None, k: int) -> tuple[Float64, Int64]:
        """Return distances and rows of the neighbours of each query, k of them whatever the search promises."""
        distances, rows = self.index_.kneighbors(queries, k, recall=self.recall)
        if (short := np.flatnonzero(rows[:, -1] < 0)).size:
            again: dict[str, Any] = {"id": _row_ids(short)} if queries is None else {"queries": queries.take(short)}
            distances[short], rows[short] = self.index_.kneighbors(**again, k=k, recall=1.0)
        return distances, rows

    # -- in scikit-learn's world ---------------------------------------------------------------------------------------

    def set_params(self, **params: Any) -> Self:
        """Set parameters. `embedding__n_slices` and the like are those of the default where none was given."""
        for name, make in _DEFAULTS.items():
            if params.get(name, getattr(self, name)) is None and any(key.startswith(f"{name}__") for key in params):
                params[name] = make()
        super().set_params(**params)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: with the sets instead of the index, which is built again from them."""
        state = dict(super().__getstate__())
        if "index_" in state:
            state["index_"] = [records.sets for records in self.index_.records()]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "index_" in state:
            self.index_ = new_index(self.embedding_, self._index_search, getattr(self._index_search, "n_jobs", -1))
            add_rows(self.index_, Sets.concat(state["index_"]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def new_index(embedding: SetTransformer, search: Search | None, n_jobs: int | None) -> SetIndex:
    """Return an empty index in memory over a fitted embedding."""
    dim, origin = embedding.n_features_in_, embedding.origin_
    return SetIndex.create(None, dim, embedding=embedding, search=search, origin=origin, n_jobs=n_jobs)


def add_rows(index: SetIndex, sets: Sets) -> None:
    """Add sets under the numbers that follow those of the index."""
    index.add(sets, _row_ids(range(len(index), len(index) + len(sets))))


def _row_ids(rows: Iterable[int]) -> list[str]:
    """Return the ids of fitted sets: their numbers, of one length, so that an index breaks ties in their order."""
    return [f"{row:012}" for row in rows]


# -- checks of what is learnt beside the sets --------------------------------------------------------------------------


def is_number(x: object) -> bool:
    """Return whether x is a real number, and not True or False."""
    return isinstance(x, Real) and not isinstance(x, bool)


def check_length(y: Array, n: int, about: str = "") -> None:
    """Refuse targets that are not one for each of n sets."""
    if len(y) != n:
        raise InputError(f"X has {about}{n} sets, y has {len(y)} entries", "give one for each set", argument="y")


def checked_labels(given: Any, name: str = "y") -> Array:
    """Return labels (n,) of one kind, numbers or strings; a column (n, 1) is taken too."""
    labels = as_array(given, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        problem = f"{name} must be (n,), one label for each set, not of shape {labels.shape}"
        raise InputError(problem, "for several labels a set fit a classifier for each", argument=name)
    objects = labels.tolist() if labels.dtype.kind == "O" else []  # strings in a pandas column, say
    unusable = ~np.isfinite(labels) if labels.dtype.kind == "f" else missing_labels(labels)
    if (wrong := np.flatnonzero(unusable)).size:
        problem, i = f"{name}[{wrong[0]}] is {labels[wrong[0]]}", int(wrong[0])
        raise InputError(problem, "give every set a label, or leave the set out", argument=name, set=i)
    if len(kinds := sorted({type(label).__name__ for label in objects})) > 1:
        problem = f"{name} mixes labels of the types {', '.join(kinds)}"
        raise InputError(problem, "give all of them one type", argument=name)
    if objects:
        labels = np.array(objects)
    if labels.dtype.kind not in "iubfU":
        raise InputError(f"{name} are of dtype {labels.dtype}", "give numbers or strings as labels", argument=name)
    return labels


def missing_labels(labels: Array) -> Mask:
    """Return which of the labels (n,) or (n, 1) are None or NaN, (n,); none of those of any other shape."""
    if labels.ndim not in (1, 2) or labels.shape[1:] not in ((), (1,)):
        return np.zeros(labels.shape[:1], bool)
    column = labels.reshape(-1)
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind != "O":
        return np.zeros(len(column), bool)
    return np.array([_is_missing(label) for label in column.tolist()], bool)


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ in ("NAType", "NaTType") or label != label


def checked_numbers(y: Any) -> Float64:
    """Return numbers (n,) or (n, n_outputs)."""
    given = as_array(y, "y")
    if given.dtype.kind not in "fiub" or given.ndim not in (1, 2) or 0 in given.shape[1:]:
        problem = f"y must be numbers, (n,) or (n, n_outputs), not {given.dtype} of shape {given.shape}"
        raise InputError(problem, argument="y")
    numbers = given.astype(np.float64)
    if (wrong := np.argwhere(~np.isfinite(numbers))).size:
        problem = f"y[{', '.join(map(str, wrong[0]))}] is {numbers[tuple(wrong[0])]}"
        raise InputError(problem, "put a number in its place, or leave the set out", argument="y")
    return numbers
