"""A data set: sets with labels and names, split into a database and queries.

The constructor checks that its arrays belong together. Parts of a data set are `Dataset`s again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slosh import Sets

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """The photos that belong to each query; query i is set i of `Dataset.queries`, rows are those of the database.

    names     the queries, such as "all_souls_1"
    relevant  for each query the rows of the photos that should be found (good and ok), in increasing order
    junk      for each query the rows that count neither as right nor as wrong, in increasing order

    Pass it to `slosh.evaluate.mean_average_precision(ranked_rows, truth.relevant, truth.junk)`.
    """

    names: tuple[str, ...]
    relevant: list[Int64]
    junk: list[Int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        for field in ("relevant", "junk"):
            lists = [_integers(f"{field}[{i}]", rows) for i, rows in enumerate(getattr(self, field))]
            if len(lists) != len(self.names):
                raise ValueError(f"{field} has {len(lists)} lists for {len(self.names)} queries")
            object.__setattr__(self, field, lists)

    def __repr__(self) -> str:
        n_relevant, n_junk = (sum(map(len, lists)) for lists in (self.relevant, self.junk))
        return f"GroundTruth({len(self.names)} queries, {n_relevant} relevant, {n_junk} junk)"

    def take(self, queries: Int64, new_row: Int64) -> GroundTruth:
        """Return the truth of these queries where row r of the database became `new_row[r]`, or -1 if it is gone."""
        kept = queries.tolist()
        relevant, junk = ([_renumbered(lists[i], new_row) for i in kept] for lists in (self.relevant, self.junk))
        return GroundTruth(tuple(self.names[i] for i in kept), relevant, junk)


def _integers(name: str, values: ArrayLike) -> Int64:
    """Return the values, possibly none, as int64."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {array.dtype}, not integers")
    return array.astype(np.int64)


def _renumbered(rows: Int64, new_row: Int64) -> Int64:
    new = new_row[rows]
    return np.sort(new[new >= 0])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Sets, and what is known about each of the n.

    name      "mnist", "modelnet40" or "oxford5k"
    sets      all sets, database and queries
    labels    (n,) int64, indices into `classes`; -1 means no label. Read-only
    is_query  (n,) bool. Read-only
    classes   the names of the labels
    names     a unique name for each set, which can be its id in an index
    source    the files that it was read from
    truth     the relevant and junk rows of each query (Oxford only)
    prepared  whether `as_in_paper` made it

    >>> sets = Sets.from_list([[[0.0, 0.0]], [[1.0, 0.0], [2.0, 0.0]], [[1.5, 0.0]]])
    >>> data = Dataset("toy", sets, [0, 1, 1], [False, False, True], ("left", "right"), ("a", "b", "c"), "by hand")
    >>> data
    Dataset(toy: 3 sets, d=2, sizes 1..2, 2 classes, 1 query)
    >>> data.database.names, data.queries.labels
    (('a', 'b'), array([1]))
    """

    name: str
    sets: Sets
    labels: Int64
    is_query: NDArray[np.bool_]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    source: str
    truth: GroundTruth | None = None
    prepared: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sets, Sets):
            raise ValueError(f"sets is a {type(self.sets).__name__}, not a Sets: make one, e.g. Sets.from_list(sets)")
        is_query = np.array(self.is_query)
        if is_query.size and is_query.dtype != np.bool_:
            raise ValueError(f"is_query holds {is_query.dtype}: pass True for each query, and False for all others")
        arrays = {"labels": _integers("labels", self.labels), "is_query": is_query.astype(np.bool_, copy=False)}
        for field, array in arrays.items():
            array.flags.writeable = False
            object.__setattr__(self, field, array)
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "classes", tuple(self.classes))
        self._check_values()
        if self.truth is not None:
            self._check_truth(self.truth)

    def _check_values(self) -> None:
        n = len(self.sets)
        for field, values in (("labels", self.labels), ("is_query", self.is_query), ("names", self.names)):
            if np.shape(values) != (n,):
                raise ValueError(f"{field} has shape {np.shape(values)}, but there are {n} sets: pass one for each")
        if (wrong := np.flatnonzero((self.labels < -1) | (self.labels >= len(self.classes)))).size:
            raise ValueError(
                f"set {wrong[0]} has the label {self.labels[wrong[0]]}, but there are {len(self.classes)} classes, "
                "from 0, and -1 for no label"
            )
        if len(set(self.names)) < n:
            raise ValueError(f"the name {_first_repeated(self.names)!r:.100} occurs twice: every set needs its own")

    def _check_truth(self, truth: GroundTruth) -> None:
        n_queries = int(self.is_query.sum())
        n_database = len(self.sets) - n_queries
        if len(truth.names) != n_queries:
            raise ValueError(f"the truth has {len(truth.names)} queries, the data set {n_queries}")
        for name, rows in zip(truth.names * 2, truth.relevant + truth.junk, strict=True):
            if rows.size and not 0 <= rows.min() <= rows.max() < n_database:
                raise ValueError(f"the truth of {name!r:.100} names a row outside the database of {n_database} sets")

    def __getstate__(self) -> dict[str, object]:
        """Leave the cached parts out of a pickle."""
        return {name: value for name, value in self.__dict__.items() if name not in ("database", "queries")}

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        sizes, queries, classes = self.sets.sizes, int(self.is_query.sum()), len(self.classes)
        parts = [f"{len(self)} set{'s' * (len(self) != 1)}", f"d={self.sets.dim}"]
        parts += [f"sizes {sizes.min()}..{sizes.max()}"] if len(self) else []
        parts += ["weighted"] * (self.sets.weights is not None)
        parts.append(f"{classes} class{'es' * (classes != 1)}")
        parts.append(f"{queries} quer{'y' if queries == 1 else 'ies'}")
        return f"Dataset({self.name}: {', '.join(parts)})"

    @cached_property
    def database(self) -> Dataset:
        """The sets to search in: all that are not queries. It has no `truth`."""
        return self._part(np.flatnonzero(~self.is_query))

    @cached_property
    def queries(self) -> Dataset:
        """The sets to search for. It has no `truth`."""
        return self._part(np.flatnonzero(self.is_query))

    def take(self, rows: ArrayLike | slice) -> Dataset:
        """Return the sets of these rows, in that order, with the truth about them.

        rows  integers, a boolean mask or a slice; none may occur twice

        >>> sets = Sets.from_padded(np.zeros((4, 2, 1)))
        >>> Dataset("toy", sets, [0, 0, 0, 0], [False] * 4, ("one",), ("a", "b", "c", "d"), "").take([3, 1]).names
        ('d', 'b')
        """
        chosen = rows if isinstance(rows, slice) else np.asarray(rows)
        if not isinstance(chosen, slice):
            if chosen.ndim != 1:
                raise IndexError(f"rows must be a list of integers or a mask, not an array of shape {chosen.shape}")
            chosen = chosen if chosen.size else chosen.astype(np.int64)
        picked: Int64 = np.arange(len(self))[chosen]
        if len(np.unique(picked)) < len(picked):
            raise ValueError(f"row {_first_repeated(picked.tolist())} occurs twice: the names of sets are unique")
        part = self._part(picked)
        return part if self.truth is None else replace(part, truth=self._truth_of(picked, self.truth))

    def _part(self, rows: Int64) -> Dataset:
        first, n = int(rows[0]) if len(rows) else 0, len(rows)
        if np.array_equal(rows, np.arange(first, first + n)):  # shares memory
            sets, names = self.sets[first : first + n], self.names[first : first + n]
        else:
            sets, names = self.sets.take(rows), tuple(self.names[i] for i in rows.tolist())
        return replace(self, sets=sets, labels=self.labels[rows], is_query=self.is_query[rows], names=names, truth=None)

    def _truth_of(self, rows: Int64, truth: GroundTruth) -> GroundTruth:
        queries, database = rows[self.is_query[rows]], rows[~self.is_query[rows]]
        old_row = np.cumsum(~self.is_query) - 1  # in the database
        new_row = np.full(len(self), -1, np.int64)
        new_row[old_row[database]] = np.arange(len(database))
        return truth.take((np.cumsum(self.is_query) - 1)[queries], new_row)


def _first_repeated(values: Sequence[object]) -> object:
    """Return the first value that occurred before, or None."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
