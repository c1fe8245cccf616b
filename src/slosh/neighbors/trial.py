"""One embedding measured on labelled sets: how good the neighbours are that it gives, and what they cost.

A `Split` says which sets are stored and which are queries; a `Trial` embeds them, each embedding once, and searches.
Embeddings go in, the figures of a row go out.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone

from ..data.checks import random_stream
from ..data.sets import Sets
from ..embed import SlicedWasserstein, Whitened
from ..embed.base import SetTransformer
from ..evaluate import precision_at_k, vote_accuracy
from ..native.arrays import Array, Float32, Float64, Int64
from ..search import Search

SPLIT_FROM_SETS = 500
"""With fewer sets each one is a query among all others: a fifth of them would say little."""
MAX_QUERIES = 2000
"""Queries that are asked; more would hardly change a digit that is shown."""
MAX_RANKS = 20_000_000
"""Ranks that the mean average precision of one method looks at, since it takes whole rankings."""
BLOCK_RANKS = 1 << 22
"""Ranks that are held at once."""


@dataclass
class Split:
    """The sets that are stored and those that are queries, with their classes 0, 1, ...; `own`: they are the same.

    One half of the queries chooses between embeddings (`choosing`), the figures are those of the other (`reporting`).
    """

    stored: Sets
    stored_classes: Int64
    queries: Sets
    query_classes: Int64
    own: bool
    choosing: Int64
    reporting: Int64

    @property
    def n_others(self) -> int:
        """How many sets a query can find."""
        return len(self.stored) - self.own

    def __str__(self) -> str:
        asked = "each a query among the" if self.own else f"{len(self.queries):,} queries among"
        return f"{asked} {self.n_others:,} others"

    @classmethod
    def of(cls, sets: Sets, classes: Int64, test_size: float, random_state: Any) -> Split:
        """Draw the queries, and the half of them that chooses, in each class alike."""
        random = random_stream(random_state)
        asks = np.zeros(len(sets), bool)
        own = len(sets) < SPLIT_FROM_SETS
        share = min(test_size, MAX_QUERIES / len(sets))
        for one in range(0 if own else int(classes.max()) + 1):
            members = random.permutation(np.flatnonzero(classes == one))
            asks[members[: min(len(members) - 1, max(1, round(share * len(members))))]] = True
        asked = classes if own else classes[asks]
        drawn = random.permutation(len(asked))
        drawn = drawn[np.argsort(asked[drawn], kind="stable")]
        halves = np.sort(drawn[::2]), np.sort(drawn[1::2])
        if own:
            return cls(sets, classes, sets, classes, True, *halves)
        return cls(sets.take(~asks), classes[~asks], sets.take(asks), asked, False, *halves)


@dataclass
class Embedded:
    """A fitted embedding, the index vectors of stored sets and of queries, and the time that one set takes."""

    model: SetTransformer
    stored: Float32
    queries: Float32
    microseconds: float


class Remembered(SetTransformer):
    """An embedding whose vectors are there already: a set of it is one element, the number of a row."""

    def __init__(self, vectors: Any = None) -> None:
        self.vectors = vectors

    @classmethod
    def of(cls, vectors: Float32) -> Remembered:
        """Return it fitted."""
        made = cls(vectors)
        made.n_features_in_, made.origin_ = 1, None
        return made

    @property
    def vector_length(self) -> int:
        return int(self.vectors.shape[1])

    def _transform(self, sets: Sets, out: Float32) -> None:
        out[:] = self.vectors[sets.points[:, 0].astype(np.int64)]


def _row_numbers(n: int) -> Sets:
    """Return the sets of `Remembered`."""
    return Sets.from_checked(np.arange(n, dtype=np.float32)[:, None], np.arange(n + 1), None, None)


class Trial:
    """Embeds and searches the sets of a split.

    What `Whitened` wraps is embedded once, however many methods wrap it: `methods` are all that will be measured.
    """

    def __init__(self, split: Split, k: int, methods: Iterable[SetTransformer]) -> None:
        self.split, self.k = split, k
        self._shared = {_key(part) for method in methods for part in parts_of(method) or ()}
        self._known: dict[str, Embedded] = {}

    def embed(self, method: SetTransformer) -> Embedded:
        """Fit a copy of an embedding on the stored sets, and embed all sets by it. It sees no labels."""
        key = _key(method)
        if key in self._known:
            return self._known[key]
        found = self._whiten(method) if parts_of(method) else self._embed(_fresh(method).fit(self.split.stored))
        if key in self._shared:
            self._known[key] = found
        return found

    def embed_with_labels(self, method: SetTransformer) -> Embedded:
        """The same, fitted with the labels of the stored sets, which the queries are not to be among."""
        classes = self.split.stored_classes
        if parts_of(method):
            return self._whiten(method, classes)
        return self._embed(_fresh(method).fit(self.split.stored, classes))

    def _embed(self, model: SetTransformer) -> Embedded:
        split, started = self.split, time.perf_counter()
        stored, _ = model.index_vectors(split.stored, slack=False)
        seconds = time.perf_counter() - started
        if not np.isfinite(stored).all():
            raise ValueError("some of its vectors are not finite")
        queries = stored if split.own else model.index_vectors(split.queries, slack=False)[0]
        return Embedded(model, stored, queries, 1e6 * seconds / len(stored))

    def _whiten(self, method: SetTransformer, classes: Int64 | None = None) -> Embedded:
        """Return what `Whitened` gives, from the vectors of its parts."""
        parts = [self.embed(part) for part in parts_of(method) or ()]
        views = [Remembered.of(part.stored[:, : part.model.vector_length]) for part in parts]
        rows = _row_numbers(len(self.split.stored))
        learnt = _fresh(method).set_params(embedding=views).fit(rows, classes)
        started = time.perf_counter()
        stored = learnt.embed(rows)
        seconds = time.perf_counter() - started
        queries = stored
        if not self.split.own:
            for view, part in zip(learnt.embeddings_, parts, strict=True):
                view.vectors = part.queries[:, : part.model.vector_length]
            queries = learnt.embed(_row_numbers(len(self.split.queries)))
        model: Any = _fresh(method)
        vars(model).update({name: value for name, value in vars(learnt).items() if name.endswith("_")})
        model.embeddings_ = [part.model for part in parts]
        model.n_features_in_, model.origin_ = self.split.stored.dim, self.split.stored.origin
        each = 1e6 * seconds / len(stored) + sum(part.microseconds for part in parts)
        return Embedded(model, stored, queries, each)

    def search(self, embedded: Embedded, search: Search) -> dict[str, Any]:
        """Return how good the neighbours are that a search finds, and the time of a query.

        Figures of a row, and `choosing_precisions`, the precision for each query that chooses.
        """
        split, k = self.split, self.k
        search.add(embedded.stored)
        search.search(embedded.queries[:1], k)  # prepares what is prepared once
        own = np.arange(len(embedded.queries)) if split.own else None
        started = time.perf_counter()
        positions = search.search(embedded.queries, k, exclude=own).rows
        seconds = time.perf_counter() - started
        labels = np.where(positions >= 0, split.stored_classes[positions], -1)
        choosing, reporting, asked = split.choosing, split.reporting, split.query_classes
        hits = np.mean(labels[reporting] == asked[reporting, None], axis=1)
        return {
            "choosing_precisions": np.mean(labels[choosing] == asked[choosing, None], axis=1),
            "choice": precision_at_k(labels[choosing], asked[choosing]),
            "precision": precision_at_k(labels[reporting], asked[reporting]),
            "standard_error": float(np.std(hits, ddof=1) / math.sqrt(len(hits))),
            "vote_accuracy": vote_accuracy(labels[reporting], asked[reporting]),
            "query_microseconds": embedded.microseconds + 1e6 * seconds / len(positions),
        }

    def mean_average_precision(self, embedded: Embedded) -> float:
        """Return that of the whole rankings of the reporting queries, or of as many of them as MAX_RANKS allows.

        It is what `evaluate.mean_average_precision` gives, from classes instead of rows, which is ten times as fast
        here.
        """
        split, stored, queries, n = self.split, embedded.stored, embedded.queries, len(embedded.stored)
        some = min(len(split.reporting), max(1, MAX_RANKS // n))
        asked = split.reporting[np.linspace(0, len(split.reporting) - 1, some).astype(np.int64)]
        middle = stored.mean(axis=0, dtype=np.float64)
        far = stored - middle
        norms, ranks = np.einsum("ij,ij->i", far, far), np.arange(1, split.n_others + 1)
        total, step = 0.0, max(1, BLOCK_RANKS // n)
        for start in range(0, len(asked), step):
            part = asked[start : start + step]
            distances = _squared(norms, far, queries[part] - middle)
            if split.own:
                distances[np.arange(len(part)), part] = np.inf
            order = np.argsort(distances, axis=1, kind="stable")[:, : split.n_others]
            hits = split.stored_classes[order] == split.query_classes[part][:, None]
            precisions = np.cumsum(hits, axis=1) / ranks * hits
            total += float((precisions.sum(axis=1) / hits.sum(axis=1)).sum())
        return total / len(asked)


def _squared(norms: Float64, far: Array, queries: Array) -> Float64:
    """Return squared distances, less the norm of the query."""
    return np.asarray(norms - 2 * queries @ far.T)


def _fresh(method: SetTransformer) -> Any:
    """Return another embedding of the same parameters; unlike scikit-learn's clone it leaves fitted parts fitted."""
    return type(method)(**method.get_params(deep=False))


def _key(method: SetTransformer) -> str:
    """Return what is the same for embeddings of the same class and parameters."""
    try:
        return str(joblib.hash(method))
    except (pickle.PicklingError, AttributeError, TypeError):  # a class or a parameter that cannot be pickled
        return f"object {id(method)}"


def parts_of(method: SetTransformer) -> list[SetTransformer] | None:
    """Return the embeddings that `Whitened` fits and wraps; None for others, and where some are fitted already."""
    if type(method) is not Whitened:
        return None
    given = SlicedWasserstein() if method.embedding is None else method.embedding
    parts = list(given) if isinstance(given, list | tuple) else [given]
    if not parts or not all(isinstance(part, SetTransformer) and not is_fitted(part) for part in parts):
        return None
    copies = [clone(part) for part in parts]
    for part in copies:
        if hasattr(part, "n_jobs"):
            part.n_jobs = method.n_jobs
    return copies


def is_fitted(embedding: SetTransformer) -> bool:
    """Return whether an embedding knows the dimension of its sets, and all that it learns."""
    return hasattr(embedding, "n_features_in_")
