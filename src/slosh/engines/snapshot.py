"""What is searched of one version of a local index: immutable, shared by threads, and cheap to extend.

The row of a set is its position in every array here. Rows are appended; a removal leaves a hole until the index is
compacted. The engines in memory and on disk differ in where the arrays lie (`ColumnFactory`) and in where ids, metadata
and the sets themselves are stored; what they search is a `Snapshot`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..data.sets import Sets
from ..errors import DamagedError
from ..search import Allowed, Calibration, Column, ColumnFactory, Metric, State, Trained
from ..search.state import Deferred
from ..where import Node
from .base import Candidates, Capabilities, Float64, Int64, Mask
from .spec import WHOLE, Embedded, IndexSpec, Vectors

V = TypeVar("V", bound="LocalView")

MAX_FILTERS = 32
"""Filters whose masks are remembered for a version."""
RADIUS_MARGIN = 1 + 1e-12
"""A radius is this much larger than the distance that it is to include."""


@dataclass(frozen=True, eq=False)
class PreparedSets:
    """Ragged points of the first n rows, in columns; all sets have weights, or none has."""

    n: int
    points: Column
    ends: Column
    weights: Column | None
    origin: Any

    @classmethod
    def start(cls, dim: int, weighted: bool, origin: Any, n: int, columns: ColumnFactory) -> PreparedSets:
        weights = columns("weights", (), np.float32) if weighted else None
        return cls(n, columns("points", (dim,), np.float32), columns("ends", (), np.int64), weights, origin)

    @property
    def n_points(self) -> int:
        return int(self.ends.unchecked_view(self.n)[-1]) if self.n else 0  # which was checked when it was opened

    def extend(self, sets: Sets) -> PreparedSets:
        first = self.n_points
        self.points.write(first, sets.points)
        self.ends.write(self.n, sets.offsets[1:] + first)
        if self.weights is not None:
            weights = np.ones(len(sets.points), np.float32) if sets.weights is None else sets.weights
            self.weights.write(first, weights)
        return replace(self, n=self.n + len(sets))

    def _limits(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return where the points of these rows begin and end."""
        self.ends.check(np.maximum(rows - 1, 0), rows + 1)
        ends = self.ends.unchecked_view(self.n)
        first, last = np.where(rows > 0, ends[rows - 1], 0), ends[rows]
        if len(rows) and (first.min() < 0 or (last - first).min() < 0 or last.max() > self.n_points):
            remedy = "close the index, delete its folder cache, and open it again"
            raise DamagedError("the points that are held ready of some sets overlap", remedy)
        return first, last

    def sizes(self, rows: Int64) -> Int64:
        first, last = self._limits(rows)
        return np.asarray(last - first)

    def take(self, rows: Int64) -> Sets:
        """Return copies of the sets of these rows."""
        first, last = self._limits(rows)
        sizes, n_points = last - first, self.n_points
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], sizes)

        def taken(column: Column) -> Any:
            column.check(first, last)
            return column.unchecked_view(n_points)[at]

        weights = None if self.weights is None else taken(self.weights)
        return Sets.from_checked(taken(self.points), offsets, weights, self.origin)

    def n_bytes(self) -> int:
        per_point = [part for part in (self.points, self.weights) if part is not None]
        return self.ends.n_bytes(self.n) + sum(part.n_bytes(self.n_points) for part in per_point)


@dataclass(frozen=True, eq=False)
class MaxSlack:
    """The largest slack of a vector: of the first rows, which are looked at when it is first asked for, and of others.

    first : of the rows that were there at the beginning.
    since : of those that were added.
    """

    first: Deferred[float]
    since: float = 0.0

    @property
    def value(self) -> float:
        return max(self.first.value, self.since)

    def including(self, slack: Float64) -> MaxSlack:
        """Return that of more rows."""
        return replace(self, since=max(self.since, float(slack.max(initial=0.0))))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """States of the spaces, the sets that distances are computed from, and the features that bounds are.

    The space of whole sets is the only one whose vectors bound distances; slack is theirs.
    """

    states: Mapping[str, State]
    sets: PreparedSets
    slack: Column
    """By row, how far rounding may have moved the vectors of whole sets before they were stored."""
    max_slack: MaxSlack
    features: Mapping[str, Column]

    @classmethod
    def start(
        cls,
        spec: IndexSpec,
        weighted: bool,
        columns: ColumnFactory,
        *,
        n: int = 0,
        alive: Mask | None = None,
        trained: Mapping[str, Trained] | None = None,
        derived: Mapping[str, Trained] | None = None,
    ) -> Snapshot:
        """Begin with n rows that the columns hold already, of which `alive` are there.

        `trained` and `derived` are by space. The columns of a space other than that of whole sets have its name before
        their own (`column_name`).
        """
        known, made = trained or {}, derived or {}
        states: dict[str, State] = {}
        for name, space in spec.spaces.items():
            states[name] = space.search.start(
                space.length, n=n, columns=_columns_of(name, columns), alive=alive, trained=known.get(name),
                derived=made.get(name),
            )  # fmt: skip
        slack, whole = columns("slack", (), np.float64), states[WHOLE]
        most = Deferred(lambda: float((slack.view(n) + whole.slack(slice(n))).max(initial=0.0)))
        sets = PreparedSets.start(spec.dim, weighted, spec.origin, n, columns)
        features = {name: columns(name, *shape) for name, shape in spec.features.items()}
        return cls(states, sets, slack, MaxSlack(most), features)

    @property
    def n(self) -> int:
        """Rows, holes included."""
        return self.sets.n

    @property
    def alive(self) -> Mask:
        return self.states[WHOLE].alive

    def __len__(self) -> int:
        return self.states[WHOLE].n_alive

    @property
    def weighted(self) -> bool:
        return self.sets.weights is not None

    def extend(self, embedded: Embedded) -> Snapshot:
        """Return the snapshot with these sets as its next rows. Only the newest snapshot may be extended."""
        states = {name: state.extend(embedded.vectors[name].numbers) for name, state in self.states.items()}
        slack = embedded.vectors[WHOLE].slack
        assert slack is not None
        self.slack.write(self.n, slack)
        for name, column in self.features.items():
            column.write(self.n, embedded.features[name])
        max_slack = self.max_slack.including(slack + states[WHOLE].slack(slice(self.n, self.n + len(slack))))
        return replace(self, states=states, sets=self.sets.extend(embedded.sets), max_slack=max_slack)

    def adopt(self, n: int) -> Snapshot:
        """Return the snapshot of n rows, where another process has written the columns up to there."""
        states = {name: state.adopt(n) for name, state in self.states.items()}
        new = slice(self.n, n)
        max_slack = self.max_slack.including(self._slack(new, n) + states[WHOLE].slack(new))
        return replace(self, states=states, sets=replace(self.sets, n=n), max_slack=max_slack)

    def _slack(self, rows: Int64 | slice, n: int) -> Float64:
        """Return the slack of some of n rows."""
        self.slack.check(*((rows.start, rows.stop) if isinstance(rows, slice) else (rows, rows + 1)))
        return np.asarray(self.slack.unchecked_view(n)[rows])

    def remove(self, rows: Int64) -> Snapshot:
        if not len(rows):
            return self
        return replace(self, states={name: state.remove(rows) for name, state in self.states.items()})

    def train(self, eager: bool = False, again: Iterable[tuple[int, float]] = ()) -> Snapshot:
        """Return the snapshot with states that are trained and calibrated, or this one if nothing is due.

        `eager`, as no more sets are about to come, trains what most of the sets came after, and measures all; `again`
        are further pairs of k and recall to measure.
        """

        def trained(name: str, state: State) -> State:
            after = state.train() if state.train_due or (eager and state.outgrown) else state
            if name != WHOLE:  # queries for parts are unlike stored vectors
                return after
            return after.calibrated(again, eager)

        states = {name: trained(name, state) for name, state in self.states.items()}
        same = all(state is self.states[name] for name, state in states.items())
        return self if same else replace(self, states=states)

    @property
    def calibrated(self) -> list[tuple[int, float]]:
        """Pairs of k and recall that were measured for whole sets."""
        return [(each.k, each.recall) for each in self.states[WHOLE].calibrations]

    def calibrate(
        self, space: str, k: int, recall: float, queries: Vectors | None
    ) -> tuple[Snapshot, Calibration | None]:
        """Return the snapshot with a recall measured, and what was measured."""
        state = self.states[space].calibrate(k, recall, None if queries is None else queries.numbers)
        return replace(self, states={**self.states, space: state}), state.calibration(k, recall)

    def nearest(
        self, space: str, queries: Vectors, k: int, allowed: Allowed | None, recall: float | None, exclude: Int64 | None
    ) -> Candidates:
        state = self.states[space]
        found = state.nearest(queries.numbers, k, allowed=allowed, recall=recall, exclude=exclude)
        n_queries, width = found.positions.shape
        # What is not there comes last. One query is asked for most often, and shows every microsecond.
        if n_queries == 1 and width and found.positions.item(width - 1) >= 0:
            offsets, keys, distances = np.array((0, width)), found.positions[0], found.distances[0]
        elif np.count_nonzero(there := found.positions >= 0) == there.size:  # nearly always
            offsets = width * np.arange(n_queries + 1)
            keys, distances = found.positions.ravel(), found.distances.ravel()
        else:
            offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
            keys, distances = found.positions[there], found.distances[there]
        kind = state.search.distance_kind
        unlike = state.unlike(found) if allowed is None else None
        near = Candidates(
            offsets, keys, distances, kind, found.promise, found.compared, found.scanned, unlike=unlike
        )  # fmt: skip
        if found.tied is None or not np.count_nonzero(found.tied):
            return near
        return self._with_ties(near, space, queries, np.flatnonzero(found.tied), allowed, exclude)

    def _with_ties(
        self,
        near: Candidates,
        space: str,
        queries: Vectors,
        tied: Int64,
        allowed: Allowed | None,
        exclude: Int64 | None,
    ) -> Candidates:
        """Add what is as far from these queries as the last one that was found."""
        last = near.distances[near.offsets[tied + 1] - 1]
        more = self.states[space].within(
            queries.numbers[tied],
            last * RADIUS_MARGIN,
            allowed=allowed,
            recall=None if near.kind != "embedded" else 1.0,
            exclude=None if exclude is None else exclude[tied],
        )
        more = more.keep(more.distances <= last[more.query])
        parts: list[tuple[Int64, Float64]] = [
            (near.keys[a:b], near.distances[a:b]) for a, b in zip(near.offsets[:-1], near.offsets[1:], strict=True)
        ]
        for i, query in enumerate(tied.tolist()):
            part = slice(more.offsets[i], more.offsets[i + 1])
            parts[query] = more.positions[part], more.distances[part]
        return near._replace(
            offsets=np.concatenate([[0], np.cumsum([len(keys) for keys, _ in parts])]),
            keys=np.concatenate([keys for keys, _ in parts]),
            distances=np.concatenate([distances for _, distances in parts]),
        )

    def within(
        self,
        space: str,
        queries: Vectors,
        radii: Float64,
        allowed: Allowed | None,
        recall: float | None,
        exclude: Int64 | None,
        bounds: bool,
        metric: Metric,
    ) -> Candidates:
        state, reach, slack = self.states[space], radii, None
        if bounds:
            assert queries.slack is not None
            of_queries = queries.slack + state.query_slack(queries.numbers)
            assert space == WHOLE
            reach = radii + of_queries + self.max_slack.value
        found = state.within(queries.numbers, reach, allowed=allowed, recall=recall, exclude=exclude, metric=metric)
        if bounds:
            which = found.query
            slack = of_queries[which] + self._slack(found.positions, self.n) + state.slack(found.positions)
            kept = found.distances - slack <= radii[which]
            found, slack = found.keep(kept), slack[kept]
        kind = state.search.distance_kind if metric == "euclidean" else metric
        return Candidates(
            found.offsets, found.positions, found.distances, kind, found.promise, found.compared, found.scanned,
            slack=slack,
        )  # fmt: skip

    def holds(self, rows: Int64, embedded: Embedded, apart: Float64 | None = None) -> Mask:
        """Return which rows are held exactly as given, but for vectors of whole sets that may be so far `apart`."""
        kept = self.sets.take(rows)
        wrong = np.zeros(len(rows), np.bool_)
        if not np.array_equal(kept.offsets, embedded.sets.offsets):
            return wrong
        same = (kept.points == embedded.sets.points).all(axis=1)
        if kept.weights is not None and embedded.sets.weights is not None:
            same &= kept.weights == embedded.sets.weights
        good = np.logical_and.reduceat(same, kept.offsets[:-1]) if len(rows) else wrong
        for name, state in self.states.items():
            good = good & state.holds(rows, embedded.vectors[name].numbers, apart if name == WHOLE else None)
        for name in self.features:
            equal = self.take_features(name, rows) == embedded.features[name]
            good = good & equal.reshape(len(rows), -1).all(axis=1)
        return np.asarray(good)

    def take_features(self, name: str, rows: Int64) -> Any:
        """Return copies of the rows of a feature."""
        column = self.features[name]
        column.check(rows, rows + 1)
        return np.asarray(column.unchecked_view(self.n)[rows])

    def info(self) -> dict[str, Any]:
        """Return memory in bytes and what the search says of itself."""
        about = dict(self.states[WHOLE].info())
        memory = {**self.states[WHOLE].n_bytes(), "points": self.sets.n_bytes(), "bounds": self.slack.n_bytes(self.n)}
        for name, state in self.states.items():
            if name != WHOLE:
                memory[name] = sum(state.n_bytes().values())
        if self.features:
            memory["features"] = sum(column.n_bytes(self.n) for column in self.features.values())
        return {"memory_bytes": memory, "search_info": about}


def column_name(space: str, name: str) -> str:
    """Return how a column of a space is called among all of them."""
    return name if space == WHOLE else f"{space}_{name}"


def _columns_of(space: str, columns: ColumnFactory) -> ColumnFactory:
    return lambda name, width, dtype: columns(column_name(space, name), width, dtype)


Filters = dict[Node, tuple[int, Allowed]]
"""A memo of masks: what a filter lets through, and how many rows were alive when that was found out.

A version has its own, and begins with a copy of the one before it, unless metadata of its rows were changed. Rows are
only added and removed, so that the number of rows, which is that of the mask, and the number of those alive say whether
a mask is still right.
"""


class LocalView(ABC):
    """What the views of the local engines share: everything that is answered from a snapshot and a mask of rows."""

    capabilities = Capabilities(metrics=("euclidean", "chebyshev"))
    covered = 1.0
    spec: IndexSpec
    snapshot: Snapshot

    filters: Filters

    def __enter__(self: V) -> V:
        return self

    @abstractmethod
    def __exit__(self, kind: object, *_: object) -> None:
        """Let go of what the view holds; `kind` is None unless an error is on its way."""

    def allowed(self, where: Node) -> Allowed:
        """Return which rows a filter lets through; only rows that were added since it was last asked are looked at."""
        n_alive, known = self.filters.get(where, (-1, None))
        if known is not None and (len(known.mask), n_alive) == (self.snapshot.n, len(self)):
            return known
        mask = self.matching(where) if known is None else known.mask
        if len(mask) < self.snapshot.n:
            mask = np.concatenate([mask, self.matching(where, len(mask))])
        found = Allowed.from_mask(mask & self.snapshot.alive)
        if known is None:
            for oldest in list(self.filters)[: max(0, len(self.filters) + 1 - MAX_FILTERS)]:
                self.filters.pop(oldest, None)
        self.filters[where] = len(self), found
        return found

    @abstractmethod
    def matching(self, where: Node, first: int = 0) -> Mask:
        """Return which rows, from `first` on, have metadata that match; rows that are removed may be among them."""

    def __len__(self) -> int:
        return len(self.snapshot)

    def select(self, where: Node | None = None, limit: int | None = None) -> Int64:
        return np.flatnonzero(self.snapshot.alive if where is None else self.allowed(where).mask)[:limit]

    def positions(self, keys: Int64) -> Int64:
        return keys if len(self) == self.snapshot.n else np.searchsorted(self.select(), keys)

    def nearest(
        self,
        space: str,
        queries: Vectors,
        k: int,
        *,
        where: Node | None = None,
        recall: float | None = None,
        exclude: Int64 | None = None,
    ) -> Candidates:
        allowed = None if where is None else self.allowed(where)
        return self.snapshot.nearest(space, queries, k, allowed, recall, exclude)

    def within(
        self,
        space: str,
        queries: Vectors,
        radii: Float64,
        *,
        where: Node | None = None,
        recall: float | None = 1.0,
        exclude: Int64 | None = None,
        bounds: bool = False,
        metric: Metric = "euclidean",
    ) -> Candidates:
        allowed = None if where is None else self.allowed(where)
        return self.snapshot.within(space, queries, radii, allowed, recall, exclude, bounds, metric)

    @property
    def calibrated(self) -> list[tuple[int, float]]:
        return self.snapshot.calibrated

    def prepared(self, keys: Int64) -> Sets:
        return self.snapshot.sets.take(keys)

    def prepared_sizes(self, keys: Int64) -> Int64:
        return self.snapshot.sets.sizes(keys)

    def features(self, name: str, keys: Int64) -> Any:
        return self.snapshot.take_features(name, keys)

    def holds(self, keys: Int64, embedded: Embedded, apart: Float64 | None = None) -> Mask:
        return self.snapshot.holds(keys, embedded, apart)
