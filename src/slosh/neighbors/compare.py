"""Which embedding suits your sets: labelled sets come in, a table goes out, one line for each embedding.

A good embedding puts sets of one label near each other. Some sets are queries, the others are stored, and each line
says how often the nearest stored sets have the label of the query, and what that cost.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from tqdm.auto import tqdm

from ..data.checks import as_array, checked_count, kind_of, random_stream
from ..data.sets import Sets, as_sets
from ..embed import Covariance, FSPool, GeM, MaxPool, MeanPool, SlicedWasserstein, WassersteinEmbedding
from ..embed.base import SetTransformer
from ..evaluate import precision_at_k, vote_accuracy
from ..native import kernel
from ..search import ExactSearch, SetSearch

Int64 = NDArray[np.int64]
Row = dict[str, Any]

SMALL = 500
"""Below this many sets each one is a query, among all others: a fifth of them would say little."""
MOST_QUERIES = 2000
"""Queries asked; more would hardly change a digit that is shown."""
MOST_RANKS = 20_000_000
"""Ranks looked at for the mean average precision of one method: it takes the whole ranking."""
BLOCK = 1 << 22
"""Ranks held at once."""
COVARIANCE_DIM = 100
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
    """The embeddings that `compare` sets side by side for sets of `dim` features; change the dict to your liking.

    `WassersteinEmbedding` needs POT, and takes about a millisecond a set.

    >>> list(methods_for(3))[:3]
    ['SlicedWasserstein', 'FSPool', 'GeM(p=2)']
    """
    checked_count("dim", dim)
    methods: dict[str, SetTransformer] = {
        "SlicedWasserstein": SlicedWasserstein(),
        "FSPool": FSPool(),
        "GeM(p=2)": GeM(p=2),
        "GeM(p=4)": GeM(p=4),
        "MeanPool, GeM(p=1)": MeanPool(),
        "MaxPool": MaxPool(),
    }
    if dim <= COVARIANCE_DIM:
        methods["Covariance"] = Covariance()
    if importlib.util.find_spec("ot") is not None:
        methods["WassersteinEmbedding"] = WassersteinEmbedding()
    return methods


@dataclass
class Comparison:
    """What `compare` found. Printed, it is a table, the best first.

    rows   a dict for each method, the best first, those that failed last. Its keys: method, search, precision (at k),
           vote_accuracy, mean_average_precision, embed_microseconds (of one set), query_microseconds (embedding and
           search of one query), length (numbers of a vector), error (None, or why it failed)
    about  one sentence: what was measured, on what
    """

    rows: list[Row] = field(repr=False)
    about: str

    @property
    def best(self) -> Row | None:
        """The row of the highest precision at k; None if all methods failed."""
        return next((row for row in self.rows if row["error"] is None), None)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas needs pandas; install it with: pip install pandas, or use .rows") from error
        return pd.DataFrame(self.rows, columns=[*COLUMNS, "error"])

    def __str__(self) -> str:
        cells = [[_cell(column, row[column]) for column in COLUMNS] for row in self.rows if row["error"] is None]
        table = [list(COLUMNS.values()), *cells]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [self.about, ""]
        for line in table:
            named = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
            counted = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
            lines.append("  ".join(named + counted).rstrip())
        failed = [row for row in self.rows if row["error"] is not None]
        lines += [f"{row['method']} failed: {row['error']}" for row in failed]
        return "\n".join(lines)


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
    """The embeddings side by side, on labelled sets: how well they bring sets of one label together, and how fast.

    The sets are split into stored ones and queries, in each class alike; embeddings are fitted on the stored ones and
    see no labels. Below 500 sets every set is a query instead, among all others. At most about 2,000 queries are asked.
    Neighbours are those of `ExactSearch` over the vectors; for `SlicedWasserstein`, those of `SetSearch` with its
    default search too.

    Parameters
    ----------
    sets : anything that `Sets` takes.
    labels : one for each set: numbers or strings, two classes at least, and two sets of each.
    methods : {name: embedding}; None is `methods_for(dim)`. They are cloned.
    k : neighbours looked at for precision and vote.
    test_size : the share of queries, between 0 and 1.
    random_state : of the split.
    n_jobs : threads, for those of our own methods that have them.

    Returns
    -------
    Comparison : print it, or look at `.rows`, `.best`, `.to_pandas()`. Precision is the share of the k neighbours that
        have the query's label; vote is how often most of them do; MAP is the mean average precision of the whole
        ranking. A method that fails on these sets is a row with its error.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(60) % 2
    >>> result = compare([rng.normal(scale=1 + label, size=(50, 2)) for label in labels], labels, k=5)
    >>> result.best["precision"] > 0.9
    True
    """
    collection = as_sets(sets)
    names, classes = _checked_labels(labels, len(collection))
    checked_count("k", k)
    if not isinstance(test_size, Real) or isinstance(test_size, bool) or not 0 < test_size < 1:
        raise ValueError(f"test_size={test_size!r:.60} must be a share between 0 and 1, such as 0.2")
    threads = kernel.threads(n_jobs)
    chosen = _checked_methods(methods, collection.dim, n_jobs)
    split = _Split.of(collection, classes, float(test_size), random_state)
    if k > split.n_others:
        raise ValueError(f"k={k}, but a query has only {split.n_others} sets to find: give a smaller k, or more sets")
    rows = []
    for name, method in tqdm(chosen.items(), unit="method", delay=2, disable=None, leave=False, desc="compare"):
        rows += list(_measured(name, method, split, int(k), n_jobs))
    good, failed = ([row for row in rows if (row["error"] is None) == fine] for fine in (True, False))
    good.sort(key=lambda row: (row["precision"], row["vote_accuracy"]), reverse=True)
    asked = f"{len(split.queries):,} queries among {len(split.stored):,} others"
    if split.own:
        asked = f"each a query among the {split.n_others:,} others"
    about = (
        f"{len(collection):,} sets (d = {collection.dim}, {len(names)} classes), {asked}; precision and vote of the "
        f"{k} nearest; {threads} thread{'s' * (threads != 1)} of {os.cpu_count()} processors"
    )
    return Comparison(good + failed, about)


@dataclass
class _Split:
    """The sets that are stored and those that ask, with their classes 0, 1, ...; `own`: each asks among the others."""

    stored: Sets
    stored_classes: Int64
    queries: Sets
    query_classes: Int64
    own: bool

    @property
    def n_others(self) -> int:
        """How many sets a query can find."""
        return len(self.stored) - self.own

    @classmethod
    def of(cls, sets: Sets, classes: Int64, test_size: float, random_state: Any) -> _Split:
        if len(sets) < SMALL:
            return cls(sets, classes, sets, classes, True)
        asks = np.zeros(len(sets), bool)
        random = random_stream(random_state)
        share = min(test_size, MOST_QUERIES / len(sets))
        for one in range(int(classes.max()) + 1):
            members = random.permutation(np.flatnonzero(classes == one))
            asks[members[: min(len(members) - 1, max(1, round(share * len(members))))]] = True
        return cls(sets.take(~asks), classes[~asks], sets.take(asks), classes[asks], False)

    def nearest(self, rows: Int64) -> Int64:
        """Rows (n, m) that were found, without the query itself: one column less if `own`."""
        if not self.own:
            return rows
        itself = rows == np.arange(len(rows))[:, None]
        itself[~itself.any(axis=1), -1] = True  # an approximate search may not have found it
        others: Int64 = rows[~itself].reshape(len(rows), -1)
        return others


def _measured(name: str, method: SetTransformer, split: _Split, k: int, n_jobs: int | None) -> Iterator[Row]:
    """The row of one method, or the two of SlicedWasserstein."""
    row: Row = {"method": name, "search": "exact"}
    try:
        model = clone(method).fit(split.stored)
        started = time.perf_counter()
        stored = model.embed(split.stored)
        embedded = time.perf_counter()
        queries = stored if split.own else model.embed(split.queries)
        asked = time.perf_counter()
        search = ExactSearch(n_jobs=n_jobs)
        search.add(stored)
        filled = time.perf_counter()
        rows = search.search(queries, k + split.own).rows
        found = time.perf_counter()
        row |= _quality(split, split.nearest(rows), k)
        row["error"] = None
        row["mean_average_precision"] = _mean_average_precision(split, stored, queries)
        row["length"] = int(stored.shape[1])
        row["embed_microseconds"] = 1e6 * (embedded - started) / len(stored)
        embedding = embedded - started if split.own else asked - embedded
        row["query_microseconds"] = 1e6 * (embedding + found - filled) / len(queries)
    except Exception as error:
        yield _failed(name, "exact", error)
        return
    yield row
    if type(method) is SlicedWasserstein:
        try:
            yield _by_default_search(row, model, split, k, n_jobs)
        except Exception as error:
            yield _failed(name, "default", error)


def _failed(name: str, search: str, error: Exception) -> Row:
    nothing: Row = dict.fromkeys(COLUMNS, math.nan)
    return nothing | {"method": name, "search": search, "length": 0, "error": f"{type(error).__name__}: {error}"}


def _by_default_search(row: Row, model: SetTransformer, split: _Split, k: int, n_jobs: int | None) -> Row:
    search = SetSearch(model, n_jobs=n_jobs)
    search.add(split.stored)
    search.search(split.queries[:1], k)  # what is prepared once
    started = time.perf_counter()
    rows = search.search(split.queries, k + split.own).rows
    seconds = time.perf_counter() - started
    measured = {"search": "default", "mean_average_precision": math.nan, "length": row["length"] + 1}
    measured["query_microseconds"] = 1e6 * seconds / len(split.queries)
    return row | measured | _quality(split, split.nearest(rows), k)


def _quality(split: _Split, rows: Int64, k: int) -> Row:
    neighbours = np.where(rows[:, :k] >= 0, split.stored_classes[rows[:, :k]], -1)
    return {
        "precision": precision_at_k(neighbours, split.query_classes),
        "vote_accuracy": vote_accuracy(neighbours, split.query_classes),
    }


def _mean_average_precision(split: _Split, stored: NDArray[Any], queries: NDArray[Any]) -> float:
    """Of the whole rankings of all queries, or of as many, evenly spaced, as MOST_RANKS allows.

    What `evaluate.mean_average_precision` gives, from classes instead of rows: that is ten times as fast here.
    """
    n = len(stored)
    asked = np.linspace(0, len(queries) - 1, min(len(queries), max(1, MOST_RANKS // n))).astype(np.int64)
    middle = stored.mean(axis=0, dtype=np.float64)
    far = stored - middle
    norms, ranks = np.einsum("ij,ij->i", far, far), np.arange(1, split.n_others + 1)
    total, step = 0.0, max(1, BLOCK // n)
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
        return {
            name: one.set_params(n_jobs=n_jobs) if "n_jobs" in one.get_params() else one for name, one in ours.items()
        }
    if not isinstance(methods, Mapping) or not methods:
        raise ValueError(f"methods is {kind_of(methods)}: give a dict {{name: embedding}} of one at least")
    for name, one in methods.items():
        if not isinstance(name, str) or not isinstance(one, SetTransformer):
            raise ValueError(f"methods[{name!r:.60}] is {kind_of(one)}: give an embedding of slosh.embed, under a name")
    return methods


def _checked_labels(labels: ArrayLike, n: int) -> tuple[NDArray[Any], Int64]:
    """The classes that there are, and the class of each set as a number from 0 on."""
    array = as_array(labels, "labels")
    if array.shape != (n,):
        raise ValueError(f"labels have the shape {array.shape} for {n} sets: give one label for each set")
    if array.dtype.kind == "O":
        given = array.tolist()
        missing = [i for i, x in enumerate(given) if x is None or type(x).__name__ in ("NAType", "NaTType") or x != x]
        array = array if missing else np.array(given)  # strings in a pandas column, say
    else:
        missing = np.flatnonzero(np.isnan(array)).tolist() if array.dtype.kind == "f" else []
    if missing:
        raise ValueError(f"set {missing[0]} has no label ({array[missing[0]]}): give it one, or leave the set out")
    if array.dtype.kind not in "iubfU":
        raise ValueError(f"labels: dtype {array.dtype}; labels must be numbers or strings, all of one kind")
    names, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
    if len(names) < 2:
        what = f"all sets have the label {names[0].item()!r}" if len(names) else "there are no sets"
        raise ValueError(f"{what}: to compare, give sets of two classes or more")
    if (lone := np.flatnonzero(counts == 1)).size:
        i = int(np.flatnonzero(classes == lone[0])[0])
        raise ValueError(
            f"set {i} is the only one with the label {names[lone[0]].item()!r}"
            f"{f', and {len(lone) - 1} more labels are alone' * (len(lone) > 1)}: leave such sets out, or join classes"
        )
    return names, classes.astype(np.int64)
