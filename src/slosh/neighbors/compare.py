"""Which embedding suits your sets: labelled sets come in, a table goes out, one row for each embedding, and a choice.

A good embedding puts sets of one label near each other. Some sets are queries, the others are stored, and each row says
how often the nearest stored sets have the label of the query, and what that cost. `trial.py` measures one row.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from ..data.checks import as_array, checked_count, checked_flag, kind_of, random_stream
from ..data.progress import ProgressBar
from ..data.sets import Sets, as_sets
from ..embed import (
    Covariance,
    DistanceField,
    FSPool,
    GeM,
    LocalShape,
    MaxPool,
    MeanPool,
    SlicedWasserstein,
    WassersteinEmbedding,
    Whitened,
)
from ..embed.base import SetTransformer
from ..embed.distance_field import n_anchors_for
from ..errors import InputError, import_extra
from ..learn import LearnedEmbedding
from ..native import kernel
from ..native.arrays import Array, Float64, Int64, Mask
from ..search import ExactSearch, LadderSearch, Search
from .base import checked_labels, is_number, missing_labels
from .trial import SPLIT_FROM_SETS, Embedded, Split, Trial

MAX_COVARIANCE_DIM = 100
"""Up to this dimension d the d^2 numbers of a covariance are tried."""
MAX_ANCHORS = 256
"""Anchors of a distance field at most."""
MILD_POWER = 0.2
"""Of `Whitened`, beside its default: it gains less, and loses less where whitening does harm."""
WITH_LABELS = "with labels"
LEARNED = f"LearnedEmbedding, {WITH_LABELS}"
PLAIN = "SlicedWasserstein"
"""The name of the method that the best is compared with."""
CLEAR = 2.0
"""Standard errors that a method must be ahead of those before it: the best of twenty is often one ahead by luck."""

Methods: TypeAlias = Mapping[str, SetTransformer] | Callable[[Sets], Mapping[str, SetTransformer]] | None

COLUMNS = {
    "method": "method",
    "search": "search",
    "choice": "choice",
    "precision": "precision",
    "standard_error": "+-",
    "vote_accuracy": "vote",
    "mean_average_precision": "MAP",
    "embed_microseconds": "embed us/set",
    "query_microseconds": "query us",
    "length": "length",
}


def methods_for(dim: int, n_anchors: int = MAX_ANCHORS) -> dict[str, SetTransformer]:
    """Return the embeddings that `compare` tries for sets of `dim` features; change the dict as you like.

    Single ones, whitened ones, several whitened together, and `WassersteinEmbedding`, which needs POT and takes about a
    millisecond a set. `compare` prefers those that come first. `n_anchors` is that of `DistanceField`, which needs as
    many different elements.

    >>> list(methods_for(3))[:3]
    ['SlicedWasserstein', 'DistanceField', 'LocalShape']
    """
    checked_count("dim", dim)
    single: dict[str, SetTransformer] = {
        "SlicedWasserstein": SlicedWasserstein(),
        "DistanceField": DistanceField(n_anchors),
        **({"LocalShape": LocalShape()} if dim in (2, 3) else {}),
        "FSPool": FSPool(),
    }
    sliced, field_, *local = list(single)[: 3 if dim in (2, 3) else 2]
    slow = {"WassersteinEmbedding": WassersteinEmbedding()}

    def whitened(*names: str, **given: Any) -> dict[str, SetTransformer]:
        parts = [(single | slow)[name] for name in names]
        named = [" + ".join(names), "whitened", *(f"{key} {value}" for key, value in given.items())]
        return {", ".join(named): Whitened(parts if len(parts) > 1 else parts[0], **given)}

    return {
        **single,
        "GeM(p=2)": GeM(p=2),
        "GeM(p=4)": GeM(p=4),
        "MeanPool, GeM(p=1)": MeanPool(),
        "MaxPool": MaxPool(),
        **({"Covariance": Covariance()} if dim <= MAX_COVARIANCE_DIM else {}),
        **whitened(sliced),
        **whitened(sliced, power=MILD_POWER),
        **{name: each for alone in (field_, *local, "FSPool") for name, each in whitened(alone).items()},
        **whitened(sliced, field_),
        **whitened(sliced, field_, power=MILD_POWER),
        **(whitened(sliced, field_, *local) if local else {}),
        **slow,
        **whitened(*slow),
    }


class Row(dict[str, Any]):
    """What was measured of one embedding: `row["precision"]`, or `row.precision`.

    method, search           names
    choice                   precision at k of the half of the queries that the rows are ordered by
    precision                precision at k of the other half; and of that half, too:
    standard_error           of that precision
    vote_accuracy            how often most of the k neighbours have the label of the query
    mean_average_precision   of the whole ranking
    embed_microseconds       of one set
    query_microseconds       embedding and search of one query
    length                   numbers of a vector in the index
    labels                   whether the embedding was fitted with the labels of the stored sets
    embedding                it, fitted on the stored sets; None if there are no figures
    error                    None, or why there are no figures: why it failed, or was skipped
    skipped                  whether a rule, which `error` says, kept it from being tried; it has not failed then
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a row has no {name!r}: it has {', '.join(self)}") from None


@dataclass
class Comparison:
    """What `compare` found. Printed, it is a table, the best method first, and a sentence about the best.

    rows   a `Row` for each method: the best, the others in the order of their choice, those without figures, which
           failed or were skipped
    about  one sentence: what was measured, on what
    """

    rows: list[Row] = field(repr=False)
    about: str
    n_reporting: int = field(default=0, repr=False)

    @property
    def best(self) -> Row | None:
        """The first method that none is clearly ahead of, on the half of the queries that chooses; or None.

        `best.embedding` is for `SetIndex.create(embedding=...)`, of sets prepared as those that were compared.
        `best.precision` and `best.standard_error` are of the other half of the queries.
        """
        return next((row for row in self.rows if row["error"] is None), None)

    @property
    def summary(self) -> str:
        """A sentence or two about the best method."""
        best, good = self.best, [row for row in self.rows if row["error"] is None]
        if best is None:
            return "All methods failed or were skipped." if self.skipped() else "All methods failed."
        figures = f"precision {best.precision:.3f} +- {best.standard_error:.3f}"
        plain = next((row for row in good if row.method == PLAIN and row.search == "exact"), best)
        if plain.method != best.method:
            figures += f", {best.precision - plain.precision:+.3f} over {PLAIN},"
        chosen = f"Best: {best.method}: {figures} on {self.n_reporting:,} queries that it was not chosen by."
        top = max(good, key=lambda row: float(row.choice))
        if top.method == best.method or top.choice == best.choice:
            return chosen
        ahead = f"{top.choice - best.choice:.3f} ahead on those that choose, which may be chance"
        return f"{chosen} {top.method} was {ahead}."

    def table(self) -> list[list[str]]:
        """Return the table as text: the names of the columns, then the cells of each method that succeeded."""
        good = [row for row in self.rows if row["error"] is None]
        return [list(COLUMNS.values()), *([_cell(column, row[column]) for column in COLUMNS] for row in good)]

    def failures(self) -> list[str]:
        """Return a sentence for each method that failed."""
        failed = [row for row in self.rows if row["error"] is not None and not row.get("skipped")]
        return [f"{row['method']} failed: {row['error']}" for row in failed]

    def skipped(self) -> list[str]:
        """Return a sentence for each method that a rule kept from being tried."""
        return [f"{row['method']} was skipped: {row['error']}" for row in self.rows if row.get("skipped")]

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return import_extra("pandas", "to_pandas").DataFrame(self.rows, columns=[*COLUMNS, "labels", "error"])

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        line = "  ".join(f"{{:{'<' if i < 2 else '>'}{width}}}" for i, width in enumerate(widths))
        lines = [line.format(*cells).rstrip() for cells in table]
        return "\n".join([self.about, "", *lines, "", self.summary, *self.failures(), *self.skipped()])


def _cell(column: str, value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.1f}" if column.endswith("microseconds") else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def compare(
    sets: Any,
    labels: ArrayLike,
    *,
    methods: Methods = None,
    k: int = 10,
    test_size: float = 0.2,
    max_sets: int = 20_000,
    learned: bool = False,
    random_state: int | np.random.RandomState | None = 0,
    n_jobs: int | None = -1,
) -> Comparison:
    """Compare embeddings on labelled sets: how well each brings sets of one label together, and how fast.

    The sets are split into stored ones and queries, in each class alike, and embeddings are fitted on the stored ones.
    With fewer than 500 sets every set is a query instead, among all others. At most about 2,000 queries are asked.
    Neighbours are exact; those of `SlicedWasserstein` are also searched by `LadderSearch`, the default of an index.

    One half of the queries chooses: rows are ordered by its precision. All figures but that one are of the other half,
    so that those of the best are not better by luck. The best, in the first row, is the first of `methods` that no
    other is clearly ahead of: by more than two standard errors of the difference, over the queries that choose. What
    may be chance is no reason for a slower method.

    Fits see no labels, with two exceptions: with 500 sets or more each `Whitened` is measured a second time, fitted
    with the labels of the stored sets, in the row ", with labels"; and `LearnedEmbedding`, which learns from nothing
    else, is always fitted with them. Queries are never seen.

    Parameters
    ----------
    sets : anything that `Sets` takes.
    labels : one for each set: numbers or strings, two classes at least, and two sets of each. Sets whose label is None
        or NaN are left out.
    methods : {name: embedding}; None is `methods_for(dim)`. They are cloned. Or a function that takes the stored sets
        and returns such a dict.
    k : the number of neighbours for precision and vote.
    test_size : the fraction of the sets that are queries, between 0 and 1.
    max_sets : of more sets so many are drawn. It bounds time and memory.
    learned : whether `slosh.learn.LearnedEmbedding` is one of the methods, the last one. It needs torch and 500 sets,
        and takes minutes; with fewer sets its row says that it was skipped.
    random_state : the seed of what is drawn.
    n_jobs : threads, for those of our own methods that have them.

    Print what it returns, or see `.rows`, `.best`, `.to_pandas()`. Precision is the fraction of the k neighbours that
    have the query's label; vote is how often most of them do; MAP is the mean average precision of the whole ranking. A
    method that fails on these sets, or needs a package that is not installed, is a row with its error. One that learns
    from labels only is skipped with fewer than 500 sets, which is no failure: `skipped` of its row is true, and `error`
    says why.

    `.best.embedding` is ready for `SetIndex.create(embedding=...)`. It is fitted; `SetIndex.retrain()` fits it to what
    an index holds, and `retrain(label=...)` with labels.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(60) % 2
    >>> result = compare([rng.normal(scale=1 + label, size=(50, 2)) for label in labels], labels, k=5)
    >>> result.best.precision > 0.9
    True
    """
    given = as_sets(sets)
    labelled, names, classes = _checked_classes(labels, len(given))
    checked_count("k", k)
    checked_count("max_sets", max_sets)
    if not is_number(test_size) or not 0 < test_size < 1:
        problem = f"test_size={test_size!r:.60} must be a fraction between 0 and 1, such as 0.2"
        raise InputError(problem, argument="test_size")
    threads = kernel.threads(n_jobs)
    random = random_stream(random_state)
    known = given if labelled.all() else given.take(labelled)
    collection, classes = _drawn(known, classes, int(max_sets), random)
    split = Split.of(collection, classes, float(test_size), random)
    chosen = _checked_methods(methods, split.stored, n_jobs)
    if checked_flag("learned", learned):
        chosen = {**chosen, LEARNED: LearnedEmbedding(random_state=_seed(random_state), n_jobs=n_jobs)}
    if k > split.n_others:
        problem = f"k={k}, but a query has only {split.n_others} sets to find"
        raise InputError(problem, "give a smaller k, or more sets", argument="k")
    trial, measured = Trial(split, int(k), chosen.values()), []
    with warnings.catch_warnings():
        # Of k-means, where sets have fewer different elements than it looks for: the embedding is as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, method in ProgressBar(chosen.items(), unit="method", desc="compare"):
            measured += list(_measure(name, method, trial, n_jobs))
    of_all = f" of {len(known):,}" * (len(collection) < len(known))
    left_out = f"{len(given) - len(known):,} without a label left out; " * (len(known) < len(given))
    about = (
        f"{len(collection):,}{of_all} sets (d = {given.dim}, {len(names)} classes), {split}; {left_out}"
        "choice: the precision of one half of the queries, the other figures are of the other half; "
        f"precision and vote of the {k} nearest; "
        f"{threads} thread{'s' * (threads != 1)} of {os.cpu_count()} processors"
    )
    return Comparison(_ordered(measured), about, len(split.reporting))


def _ordered(measured: list[tuple[Row, Float64 | None]]) -> list[Row]:
    """Return the rows, the best first, then by their choice, those without figures last; equals stay in their order.

    With each row comes its precision for each query that chooses.
    """
    good = [(row, hits) for row, hits in measured if hits is not None]
    rows = sorted((row for row, _ in measured), key=lambda row: -1.0 if row["error"] else row["choice"], reverse=True)
    if good:
        top = max(good, key=lambda each: each[0]["choice"])[1]
        best = next(row for row, hits in good if not _is_clearly_better(top, hits))
        rows.sort(key=lambda row: row is not best)
    return rows


def _seed(random_state: Any) -> Any:
    """Return a seed that a fit may be repeated with: draws of a generator would be others each time."""
    return random_state if isinstance(random_state, int | np.integer) else 0


def _is_clearly_better(precisions: Float64, others: Float64) -> bool:
    """Return whether the mean is larger by CLEAR standard errors of the difference, which the same queries gave."""
    gains = precisions - others
    error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return float(gains.mean()) > CLEAR * error


def _drawn(sets: Sets, classes: Int64, most: int, random: np.random.RandomState) -> tuple[Sets, Int64]:
    """Return as many sets as `most` allows, without those that are alone in their class then, and their classes."""
    if len(sets) <= most:
        return sets, classes
    rows = np.sort(random.permutation(len(sets))[:most])
    counts = np.bincount(classes[rows])
    rows = rows[counts[classes[rows]] > 1]
    if len(left := np.unique(classes[rows])) < 2:
        problem = f"of {most:,} sets that were drawn, too few have the same label"
        raise InputError(problem, "give a larger max_sets, or join classes", argument="max_sets")
    return sets.take(rows), np.searchsorted(left, classes[rows])


def _measure(
    name: str, method: SetTransformer, trial: Trial, n_jobs: int | None
) -> Iterator[tuple[Row, Float64 | None]]:
    """Yield the rows of one method: its own, one by the default search, one with labels.

    With each comes its precision for each query that chooses; None if there are no figures.
    """
    if method.needs_labels and trial.split.own:
        rule = f"it learns from labels, and is measured with {SPLIT_FROM_SETS} sets or more"
        yield _without_figures({"method": name, "search": "exact", "labels": True}, rule, skipped=True), None
        return
    if method.needs_labels:
        yield from _rows(name, method, trial, n_jobs, lambda: trial.embed_with_labels(method), labels=True)
        return
    yield from _rows(name, method, trial, n_jobs, lambda: trial.embed(method))
    if isinstance(method, Whitened) and not trial.split.own:
        named = f"{name}, {WITH_LABELS}"
        yield from _rows(named, method, trial, n_jobs, lambda: trial.embed_with_labels(method), labels=True)


def _rows(
    name: str,
    method: SetTransformer,
    trial: Trial,
    n_jobs: int | None,
    embed: Callable[[], Embedded],
    labels: bool = False,
) -> Iterator[tuple[Row, Float64 | None]]:
    searches: dict[str, Search] = {"exact": ExactSearch(n_jobs=n_jobs)}
    if type(method) is SlicedWasserstein:
        searches["default"] = LadderSearch(n_jobs=n_jobs)
    about: dict[str, Any] = {"method": name, "search": "exact", "labels": labels, "error": None, "skipped": False}
    try:
        embedded = embed()
        about |= {"length": int(embedded.stored.shape[1]), "embed_microseconds": embedded.microseconds}
        about |= {"mean_average_precision": trial.mean_average_precision(embedded), "embedding": embedded.model}
        for kind, search in searches.items():
            about["search"] = kind
            figures = trial.search(embedded, search)
            hits = figures.pop("choosing_precisions")
            yield Row(about | figures), hits
            about["mean_average_precision"] = math.nan  # it is that of the whole ranking, whatever searches
    except Exception as error:
        yield _without_figures(about, f"{type(error).__name__}: {error}"), None


def _without_figures(about: Mapping[str, Any], error: str, *, skipped: bool = False) -> Row:
    """Return a row of what is known of a method, and why there is no more."""
    none = {"mean_average_precision": math.nan, "length": 0, "embedding": None, "error": error, "skipped": skipped}
    return Row(dict.fromkeys(COLUMNS, math.nan) | dict(about) | none)


# -- checks ------------------------------------------------------------------------------------------------------------


def _checked_methods(methods: Methods, stored: Sets, n_jobs: int | None) -> Mapping[str, SetTransformer]:
    if methods is None:
        ours = suited_methods(stored)
        for one in ours.values():
            if "n_jobs" in one.get_params():
                one.set_params(n_jobs=n_jobs)
        return ours
    if callable(methods):
        methods = methods(stored)
    if not isinstance(methods, Mapping) or not methods:
        remedy = "give a dict {name: embedding} of one at least"
        raise InputError(f"methods is {kind_of(methods)}", remedy, argument="methods")
    for name, one in methods.items():
        if not isinstance(name, str) or not isinstance(one, SetTransformer):
            remedy = "give an embedding of slosh.embed, under a name"
            raise InputError(f"methods[{name!r:.60}] is {kind_of(one)}", remedy, argument="methods")
    return methods


def suited_methods(stored: Sets) -> dict[str, SetTransformer]:
    """Return those of `methods_for`, for sets that they are fitted on."""
    return methods_for(stored.dim, n_anchors_for(stored, MAX_ANCHORS))


def _checked_classes(labels: ArrayLike, n: int) -> tuple[Mask, Array, Int64]:
    """Return which sets have a label, the labels that occur, in order, and as a number from 0 on the class of each."""
    given = as_array(labels, "labels")
    if given.ndim and len(given) != n:
        problem = f"there are {len(given)} labels for {n} sets"
        raise InputError(problem, "give one label for each set", argument="labels")
    labelled = ~missing_labels(given)
    if n and not labelled.any():
        raise InputError("no set has a label", "to compare, give sets of two classes or more", argument="labels")
    array = checked_labels(given[labelled] if given.ndim else given, "labels")
    names, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
    if len(names) < 2:
        problem = f"all sets have the label {names[0].item()!r}" if len(names) else "there are no sets"
        raise InputError(problem, "to compare, give sets of two classes or more", argument="labels")
    if (lone := np.flatnonzero(counts == 1)).size:
        i = int(np.flatnonzero(labelled)[classes == lone[0]][0])
        more = f", and {len(lone) - 1} more labels are alone" * (len(lone) > 1)
        problem = f"set {i} is the only one with the label {names[lone[0]].item()!r}{more}"
        raise InputError(problem, "leave such sets out, or join classes", argument="labels", set=i)
    return labelled, names, classes.astype(np.int64)
