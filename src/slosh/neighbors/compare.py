"""Which embedding suits your sets: labelled sets come in, a table goes out, one row for each embedding.

A good embedding puts sets of one label near each other. Some sets are queries, the others are stored in an index, and
each row says how often the nearest stored sets have the label of the query, and what that cost.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from tqdm.auto import tqdm

from ..data.checks import checked_count, kind_of, random_stream
from ..data.sets import Sets, as_sets
from ..embed import Covariance, FSPool, GeM, MaxPool, MeanPool, SlicedWasserstein, WassersteinEmbedding
from ..embed.base import SetTransformer
from ..errors import InputError, import_extra
from ..evaluate import precision_at_k, vote_accuracy
from ..native import kernel
from ..native.arrays import Array, Int64
from ..search import ExactSearch, Search
from .base import add_rows, checked_labels, is_number, new_index

Row = dict[str, Any]

SPLIT_FROM_SETS = 500
"""With fewer sets each one is a query among all others: a fifth of them would say little."""
MAX_QUERIES = 2000
"""Queries that are asked; more would hardly change a digit that is shown."""
MAX_RANKS = 20_000_000
"""Ranks that the mean average precision of one method looks at, since it takes whole rankings."""
BLOCK_RANKS = 1 << 22
"""Ranks that are held at once."""
MAX_COVARIANCE_DIM = 100
"""Up to this dimension d the d^2 numbers of a covariance are tried."""

COLUMNS = {
    "method": "method",
    "search": "search",
    "precision": "precision",
    "vote_accuracy": "vote",
    "mean_average_precision": "MAP",
    "embed_microseconds": "embed us/set",
    "query_microseconds": "query us",
    "length": "length",
}


def methods_for(dim: int) -> dict[str, SetTransformer]:
    """Return the embeddings that `compare` tries for sets of `dim` features; change the dict as you like.

    `WassersteinEmbedding` needs POT, and takes about a millisecond a set.

    >>> list(methods_for(3))[:3]
    ['SlicedWasserstein', 'FSPool', 'GeM(p=2)']
    """
    checked_count("dim", dim)
    return {
        "SlicedWasserstein": SlicedWasserstein(),
        "FSPool": FSPool(),
        "GeM(p=2)": GeM(p=2),
        "GeM(p=4)": GeM(p=4),
        "MeanPool, GeM(p=1)": MeanPool(),
        "MaxPool": MaxPool(),
        **({"Covariance": Covariance()} if dim <= MAX_COVARIANCE_DIM else {}),
        "WassersteinEmbedding": WassersteinEmbedding(),
    }


@dataclass
class Comparison:
    """What `compare` found. Printed, it is a table, the best method first.

    rows   a dict for each method, the best first, those that failed last. Its keys: method, search, precision (at k),
           vote_accuracy, mean_average_precision, embed_microseconds (of one set), query_microseconds (embedding and
           search of one query), length (numbers of a vector in the index), error (None, or why it failed)
    about  one sentence: what was measured, on what
    """

    rows: list[Row] = field(repr=False)
    about: str

    @property
    def best(self) -> Row | None:
        """The row with the highest precision at k; None if all methods failed."""
        return next((row for row in self.rows if row["error"] is None), None)

    def table(self) -> list[list[str]]:
        """Return the table as text: the names of the columns, then the cells of each method that succeeded."""
        good = [row for row in self.rows if row["error"] is None]
        return [list(COLUMNS.values()), *([_cell(column, row[column]) for column in COLUMNS] for row in good)]

    def failures(self) -> list[str]:
        """Return a sentence for each method that failed."""
        return [f"{row['method']} failed: {row['error']}" for row in self.rows if row["error"] is not None]

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return import_extra("pandas", "to_pandas").DataFrame(self.rows, columns=[*COLUMNS, "error"])

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        line = "  ".join(f"{{:{'<' if i < 2 else '>'}{width}}}" for i, width in enumerate(widths))
        return "\n".join([self.about, "", *(line.format(*cells).rstrip() for cells in table), *self.failures()])


def _cell(column: str, value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.1f}" if column.endswith("microseconds") else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def compare(
    sets: Any,
    labels: ArrayLike,
    *,
    methods: Mapping[str, SetTransformer] | None = None,
    k: int = 10,
    test_size: float = 0.2,
    random_state: int | np.random.RandomState | None = 0,
    n_jobs: int | None = -1,
) -> Comparison:
    """Compare embeddings on labelled sets: how well each brings sets of one label together, and how fast.

    The sets are split into stored ones and queries, in each class alike; embeddings are fitted on the stored ones and
    see no labels. With fewer than 500 sets every set is a query instead, among all others. At most about 2,000 queries
    are asked. Neighbours are those that a `SetIndex` in memory finds with `ExactSearch`; for `SlicedWasserstein`, those
    that it finds with its default search too.

    Parameters
    ----------
    sets : anything that `Sets` takes.
    labels : one for each set: numbers or strings, two classes at least, and two sets of each.
    methods : {name: embedding}; None is `methods_for(dim)`. They are cloned.
    k : the number of neighbours for precision and vote.
    test_size : the fraction of the sets that are queries, between 0 and 1.
    random_state : the seed of the split.
    n_jobs : threads, for those of our own methods that have them.

    Print what it returns, or see `.rows`, `.best`, `.to_pandas()`. Precision is the fraction of the k neighbours that
    have the query's label; vote is how often most of them do; MAP is the mean average precision of the whole ranking. A
    method that fails on these sets, or needs a package that is not installed, is a row with its error.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(60) % 2
    >>> result = compare([rng.normal(scale=1 + label, size=(50, 2)) for label in labels], labels, k=5)
    >>> result.best["precision"] > 0.9
    True
    """
    collection = as_sets(sets)
    names, classes = _checked_classes(labels, len(collection))
    checked_count("k", k)
    if not is_number(test_size) or not 0 < test_size < 1:
        problem = f"test_size={test_size!r:.60} must be a fraction between 0 and 1, such as 0.2"
        raise InputError(problem, argument="test_size")
    threads = kernel.threads(n_jobs)
    chosen = _checked_methods(methods, collection.dim, n_jobs)
    split = _Split.of(collection, classes, float(test_size), random_state)
    if k > split.n_others:
        problem = f"k={k}, but a query has only {split.n_others} sets to find"
        raise InputError(problem, "give a smaller k, or more sets", argument="k")
    rows = []
    for name, method in tqdm(chosen.items(), unit="method", delay=2, disable=None, leave=False, desc="compare"):
        rows += list(_measure(name, method, split, int(k), n_jobs))
    rows.sort(key=lambda row: (-1.0, -1.0) if row["error"] else (row["precision"], row["vote_accuracy"]), reverse=True)
    about = (
        f"{len(collection):,} sets (d = {collection.dim}, {len(names)} classes), {split}; precision and vote of the "
        f"{k} nearest; {threads} thread{'s' * (threads != 1)} of {os.cpu_count()} processors"
    )
    return Comparison(rows, about)


@dataclass
class _Split:
    """The sets that are stored and those that are queries, with their classes 0, 1, ...; `own`: they are the same."""

    stored: Sets
    stored_classes: Int64
    queries: Sets
    query_classes: Int64
    own: bool

    @property
    def n_others(self) -> int:
        """How many sets a query can find."""
        return len(self.stored) - self.own

    def __str__(self) -> str:
        asked = "each a query among the" if self.own else f"{len(self.queries):,} queries among"
        return f"{asked} {self.n_others:,} others"

    @classmethod
    def of(cls, sets: Sets, classes: Int64, test_size: float, random_state: Any) -> _Split:
        if len(sets) < SPLIT_FROM_SETS:
            return cls(sets, classes, sets, classes, True)
        asks = np.zeros(len(sets), bool)
        random = random_stream(random_state)
        share = min(test_size, MAX_QUERIES / len(sets))
        for one in range(int(classes.max()) + 1):
            members = random.permutation(np.flatnonzero(classes == one))
            asks[members[: min(len(members) - 1, max(1, round(share * len(members))))]] = True
        return cls(sets.take(~asks), classes[~asks], sets.take(asks), classes[asks], False)


def _measure(name: str, method: SetTransformer, split: _Split, k: int, n_jobs: int | None) -> Iterator[Row]:
    """Yield the row of one method, or the two of SlicedWasserstein."""
    searches: dict[str, Search | None] = {"exact": ExactSearch(n_jobs=n_jobs)}
    if type(method) is SlicedWasserstein:
        searches["default"] = None
    row: Row = {"method": name, "search": "exact", "error": None}
    try:
        model = clone(method).fit(split.stored)
        row |= _embedded(model, split)
        for kind, search in searches.items():
            row["search"] = kind
            yield row | _searched(model, search, split, k, n_jobs)
            row["mean_average_precision"] = math.nan  # it is that of the whole ranking, whatever searches
    except Exception as error:
        named = {"method": name, "search": row["search"], "length": 0, "error": f"{type(error).__name__}: {error}"}
        yield dict.fromkeys(COLUMNS, math.nan) | named


def _embedded(model: SetTransformer, split: _Split) -> Row:
    """Measure the embedding by itself, and the mean average precision of its rankings."""
    started = time.perf_counter()
    stored, _ = model.index_vectors(split.stored)
    seconds = time.perf_counter() - started
    if not np.isfinite(stored).all():
        raise ValueError("some of its vectors are not finite")
    queries = stored if split.own else model.index_vectors(split.queries)[0]
    return {
        "length": int(stored.shape[1]),
        "embed_microseconds": 1e6 * seconds / len(stored),
        "mean_average_precision": _mean_average_precision(split, stored, queries),
    }


def _searched(model: SetTransformer, search: Search | None, split: _Split, k: int, n_jobs: int | None) -> Row:
    """Measure the neighbours that an index finds, and the time of a query."""
    with new_index(model, search, n_jobs) as index:
        add_rows(index, split.stored)
        index.kneighbors(split.queries[:1], k)  # prepares what is prepared once
        started = time.perf_counter()
        _, positions = index.kneighbors(split.queries, k)
        seconds = time.perf_counter() - started
        if split.own:
            _, positions = index.kneighbors(k=k)
    neighbours = np.where(positions >= 0, split.stored_classes[positions], -1)
    return {
        "precision": precision_at_k(neighbours, split.query_classes),
        "vote_accuracy": vote_accuracy(neighbours, split.query_classes),
        "query_microseconds": 1e6 * seconds / len(split.queries),
    }


def _mean_average_precision(split: _Split, stored: Array, queries: Array) -> float:
    """Return that of the whole rankings of all queries, or of as many, evenly spaced, as MAX_RANKS allows.

    It is what `evaluate.mean_average_precision` gives, from classes instead of rows, which is ten times as fast here.
    The squared distances are those of the vectors that an index searches. `SetIndex.kneighbors` with k = n ranks in the
    same way, but compares each pair a second time, in float64: it takes 4 times as long for 2,000 sets, 9 times for
    10,000.
    """
    n = len(stored)
    asked = np.linspace(0, len(queries) - 1, min(len(queries), max(1, MAX_RANKS // n))).astype(np.int64)
    middle = stored.mean(axis=0, dtype=np.float64)
    far = stored - middle
    norms, ranks = np.einsum("ij,ij->i", far, far), np.arange(1, split.n_others + 1)
    total, step = 0.0, max(1, BLOCK_RANKS // n)
    for start in range(0, len(asked), step):
        part = asked[start : start + step]
        distances = norms - 2 * (queries[part] - middle) @ far.T  # squared, less the norm of the query
        if split.own:
            distances[np.arange(len(part)), part] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")[:, : split.n_others]
        hits = split.stored_classes[order] == split.query_classes[part][:, None]
        precisions = np.cumsum(hits, axis=1) / ranks * hits
        total += float((precisions.sum(axis=1) / hits.sum(axis=1)).sum())
    return total / len(asked)


# -- checks ------------------------------------------------------------------------------------------------------------


def _checked_methods(
    methods: Mapping[str, SetTransformer] | None, dim: int, n_jobs: int | None
) -> Mapping[str, SetTransformer]:
    if methods is None:
        ours = methods_for(dim)
        for one in ours.values():
            if "n_jobs" in one.get_params():
                one.set_params(n_jobs=n_jobs)
        return ours
    if not isinstance(methods, Mapping) or not methods:
        remedy = "give a dict {name: embedding} of one at least"
        raise InputError(f"methods is {kind_of(methods)}", remedy, argument="methods")
    for name, one in methods.items():
        if not isinstance(name, str) or not isinstance(one, SetTransformer):
            remedy = "give an embedding of slosh.embed, under a name"
            raise InputError(f"methods[{name!r:.60}] is {kind_of(one)}", remedy, argument="methods")
    return methods


def _checked_classes(labels: ArrayLike, n: int) -> tuple[Array, Int64]:
    """Return the labels that occur, in order, and the class of each set as a number from 0 on."""
    array = checked_labels(labels, "labels")
    if len(array) != n:
        problem = f"there are {len(array)} labels for {n} sets"
        raise InputError(problem, "give one label for each set", argument="labels")
    names, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
    if len(names) < 2:
        problem = f"all sets have the label {names[0].item()!r}" if len(names) else "there are no sets"
        raise InputError(problem, "to compare, give sets of two classes or more", argument="labels")
    if (lone := np.flatnonzero(counts == 1)).size:
        i = int(np.flatnonzero(classes == lone[0])[0])
        more = f", and {len(lone) - 1} more labels are alone" * (len(lone) > 1)
        problem = f"set {i} is the only one with the label {names[lone[0]].item()!r}{more}"
        raise InputError(problem, "leave such sets out, or join classes", argument="labels", set=i)
    return names, classes.astype(np.int64)
