"""What a data set is: sets with labels and names, divided into a database and queries.

Arrays that belong together come in and are compared once; parts of them go out, each a `Dataset` again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.sets import Sets

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """Which photos belong to which query; query i is set i of `Dataset.queries`, rows are those of `Dataset.database`.

    names     the queries, such as "all_souls_1"
    relevant  for each query the rows of the photos that should be found, increasing: the good and the ok ones
    junk      for each query the rows that are neither right nor wrong, increasing

    Made for `slosh.evaluate.mean_average_precision(ranked_rows, truth.relevant, truth.junk)`.
    """

    names: tuple[str, ...]
    relevant: list[Int64]
    junk: list[Int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        for what in ("relevant", "junk"):
            lists = [_whole_numbers(f"{what}[{i}]", rows) for i, rows in enumerate(getattr(self, what))]
            if len(lists) != len(self.names):
                raise ValueError(f"{what} has {len(lists)} lists, and there are {len(self.names)} names of queries")
            object.__setattr__(self, what, lists)

    def __repr__(self) -> str:
        found, left = (sum(map(len, lists)) for lists in (self.relevant, self.junk))
        return f"GroundTruth({len(self.names)} queries, {found} relevant, {left} junk)"

    def _take(self, queries: Int64, place: Int64) -> GroundTruth:
        """The truth for these queries; row r of the database has become row `place[r]`, or is gone if that is -1."""
        kept = queries.tolist()
        relevant, junk = ([_moved(lists[i], place) for i in kept] for lists in (self.relevant, self.junk))
        return GroundTruth(tuple(self.names[i] for i in kept), relevant, junk)


def _whole_numbers(name: str, values: ArrayLike) -> Int64:
    """The values as int64, of a list that may be empty."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {array.dtype}, not whole numbers")
    return array.astype(np.int64)


def _moved(rows: Int64, place: Int64) -> Int64:
    new = place[rows]
    return np.sort(new[new >= 0])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Sets, and what is known about each of the n.

    name      "mnist", "modelnet40" or "oxford5k"
    sets      all of them, database and queries
    labels    (n,) int64, a number in `classes`; -1: it has none. Read-only
    is_query  (n,) bool. Read-only
    classes   what the labels are called
    names     one for each set, no two the same: they can be the ids of an index
    source    the files that it came from, in words
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
        n, is_query = len(self.sets), np.array(self.is_query)
        if is_query.size and is_query.dtype != np.bool_:
            raise ValueError(f"is_query holds {is_query.dtype}: give True for each query, and False for all others")
        arrays = {"labels": _whole_numbers("labels", self.labels), "is_query": is_query.astype(np.bool_, copy=False)}
        for what, array in arrays.items():
            array.flags.writeable = False
            object.__setattr__(self, what, array)
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "classes", tuple(self.classes))
        for what, values in (("labels", self.labels), ("is_query", self.is_query), ("names", self.names)):
            if np.shape(values) != (n,):
                raise ValueError(f"{what} has the shape {np.shape(values)}: there are {n} sets, give one for each")
        if n and not -1 <= self.labels.min() <= self.labels.max() < len(self.classes):
            wrong = int(np.flatnonzero((self.labels < -1) | (self.labels >= len(self.classes)))[0])
            known = f"labels go from 0 to {len(self.classes) - 1}, one for each of the classes, and -1 stands for none"
            raise ValueError(
                f"set {wrong} has the label {self.labels[wrong]}: "
                + (known if self.classes else "there are no classes, so give the names of the labels as classes")
            )
        if len(set(self.names)) < n:
            raise ValueError(f"the name {_twice(self.names)!r:.100} comes twice: every set needs its own")
        queries = int(self.is_query.sum())
        if self.truth is None:
            return
        if len(self.truth.names) != queries:
            raise ValueError(f"there are {queries} queries, and the truth is about {len(self.truth.names)}")
        for name, rows in zip(self.truth.names * 2, self.truth.relevant + self.truth.junk, strict=True):
            if rows.size and not 0 <= rows.min() <= rows.max() < n - queries:
                raise ValueError(f"the truth of {name!r:.100} names a row that the database of {n - queries} has not")

    def __getstate__(self) -> dict[str, object]:
        """Without the parts that were made of it, which would be stored a second time."""
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
        """The sets that are searched: all that are no queries. `truth` stays with the whole."""
        return self._part(np.flatnonzero(~self.is_query))

    @cached_property
    def queries(self) -> Dataset:
        """The sets that are searched for."""
        return self._part(np.flatnonzero(self.is_query))

    def take(self, rows: ArrayLike | slice) -> Dataset:
        """The sets of these rows, in that order: integers, a mask or a slice. The truth is kept for what is there.

        >>> sets = Sets.from_padded(np.zeros((4, 2, 1)))
        >>> Dataset("toy", sets, [0, 0, 0, 0], [False] * 4, ("one",), ("a", "b", "c", "d"), "").take([3, 1]).names
        ('d', 'b')
        """
        chosen = rows if isinstance(rows, slice) else np.asarray(rows)
        if not isinstance(chosen, slice):
            if chosen.ndim != 1:
                raise IndexError(f"rows must be integers or a mask in one dimension, not of shape {chosen.shape}")
            chosen = chosen if chosen.size else chosen.astype(np.int64)
        picked: Int64 = np.arange(len(self))[chosen]
        if len(np.unique(picked)) < len(picked):
            raise ValueError(f"row {_twice(picked.tolist())} comes twice: a set has its name once in a data set")
        part = self._part(picked)
        return part if self.truth is None else replace(part, truth=self._truth_of(picked, self.truth))

    def _part(self, rows: Int64) -> Dataset:
        first, n = int(rows[0]) if len(rows) else 0, len(rows)
        if np.array_equal(rows, np.arange(first, first + n)):
            sets, names = self.sets[first : first + n], self.names[first : first + n]
        else:
            sets, names = self.sets.take(rows), tuple(self.names[i] for i in rows.tolist())
        return replace(self, sets=sets, labels=self.labels[rows], is_query=self.is_query[rows], names=names, truth=None)

    def _truth_of(self, rows: Int64, truth: GroundTruth) -> GroundTruth:
        queries = rows[self.is_query[rows]]
        database = rows[~self.is_query[rows]]
        before = np.cumsum(~self.is_query) - 1  # the rows in the database, as they were
        place = np.full(len(self), -1, np.int64)
        place[before[database]] = np.arange(len(database))
        return truth._take((np.cumsum(self.is_query) - 1)[queries], place)


def _twice(values: Sequence[object]) -> object:
    """The first value that was there before."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
