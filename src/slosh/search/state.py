"""What a search holds: immutable states, each made from the one before it.

A `Search` (base.py) is an estimator with parameters. `Search.start` gives a first `State`; `extend`, `remove` and
`train` give the next one and leave the one before as it was, sharing its memory. Vectors are known by their position,
0 to n - 1; queries come in, and distances and positions go out.

What a search computes only when it is needed (lists, tables) is a pure function of the state. The first search of a
state computes it under a lock of that state, for which other searches of the same state wait; searches of other states
do not. Once it is there no lock is taken.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..checkpoints import locked
from ..errors import DamagedError
from ..native import scan
from ..native.arrays import Array, Float32, Float64, Int64, Mask
from .columns import Column, ColumnFactory, in_memory, positions_up_to

if TYPE_CHECKING:
    from .base import Search
    from .calibration import Calibration
    from .store import Vectors

S = TypeVar("S", bound="State")
T = TypeVar("T")
Pairs: TypeAlias = tuple[Float64, Int64]
"""Distances and positions, (n_queries, k) each."""
Metric: TypeAlias = Literal["euclidean", "chebyshev"]
"""How two vectors are compared: by their Euclidean distance, or by the largest difference of their numbers."""


@dataclass(frozen=True, eq=False)
class Allowed:
    """Positions that a search may return.

    mask : (n,) bool, True only at positions that are alive.
    n : how many they are.
    """

    mask: Mask
    n: int

    @classmethod
    def from_mask(cls, mask: Mask) -> Allowed:
        """Return the positions that a mask allows; it is used as it is, and must never change."""
        return cls(mask, scan.count_true(mask))


class Found(NamedTuple):
    """The nearest positions of each query.

    distances : (n_queries, k), increasing, equal distances by position; inf where there is none.
    positions : (n_queries, k), -1 where there is none.
    compared : (n_queries,) vectors whose distance was computed in full.
    scanned : (n_queries,) positions of which a shorter form was looked at.
    promise : the recall that is promised: 1.0 is exact, None is no promise.
    tied : (n_queries,) for exact answers, whether an allowed position outside the answer is as far as the last one in
        it; None if the answer is not exact.
    """

    distances: Float64
    positions: Int64
    compared: Int64
    scanned: Int64
    promise: float | None
    tied: Mask | None


@dataclass(frozen=True, eq=False)
class FoundWithin:
    """All positions within a radius; those of query i are positions[offsets[i]:offsets[i + 1]], nearest first."""

    offsets: Int64
    distances: Float64
    positions: Int64
    compared: Int64
    scanned: Int64
    promise: float | None

    @property
    def query(self) -> Int64:
        """The number of the query that each position belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def keep(self, kept: Mask) -> FoundWithin:
        """Return the answer with these positions only."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return replace(
            self, offsets=before[self.offsets], distances=self.distances[kept], positions=self.positions[kept]
        )


@dataclass(eq=False)
class Request:
    """What a state is asked: queries, and what may be found. See `State.nearest`.

    mask : (n,) bool, the allowed positions; None: all positions are alive and allowed.
    n_allowed : how many they are.
    ranks : (n,) numbers that decide between equal distances.
    in_order : whether these increase with the position.
    n_jobs : threads.
    """

    queries: Float32
    k: int
    allowed: Allowed | None
    recall: float | None
    exclude: Int64 | None
    mask: Mask | None
    n_allowed: int
    ranks: Int64
    in_order: bool
    n_jobs: int | None

    def __len__(self) -> int:
        return len(self.queries)

    def part(self, which: Any, k: int | None = None) -> Request:
        """Return the same for some of the queries, and for another k."""
        own = None if self.exclude is None else self.exclude[which]
        return replace(self, queries=self.queries[which], exclude=own, k=self.k if k is None else k)

    def counts(self, number: int | None = None) -> Int64:
        """Return a number for each query; None is the number of allowed positions."""
        return np.full(len(self), self.n_allowed if number is None else number, np.int64)


@dataclass(frozen=True, eq=False)
class Stored:
    """What a state begins with. See `Search.start`."""

    dim: int
    n: int = 0
    columns: ColumnFactory = in_memory
    alive: Mask | None = None
    trained: Trained | None = None
    derived: Trained | None = None


class Trained(NamedTuple):
    """What was learnt from a collection: a header for JSON, and arrays."""

    header: dict[str, Any]
    arrays: Mapping[str, Array]


class Deferred(Generic[T]):
    """A value that is computed when it is first asked for. Threads that ask meanwhile wait for it."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute
        self._lock = threading.Lock()
        self._found: list[T] = []

    @classmethod
    def of(cls, value: T) -> Deferred[T]:
        """Return a value that is there already."""
        made = cls(lambda: value)
        made._found, made._compute = [value], None
        return made

    @property
    def value(self) -> T:
        if not self._found:
            with locked(self._lock):
                if self._compute is not None:
                    self._found.append(self._compute())
                    self._compute = None  # and let go of what it was computed from
        return self._found[0]


class State(ABC):
    """The vectors of one version, by position, and what finds the nearest of them. Immutable: threads may share it.

    dim : numbers of a vector.
    n : positions, holes included.
    alive : (n,) bool, which positions are not holes.
    n_alive : how many they are.
    search : the estimator whose parameters are used.
    """

    _store: Vectors

    def __init__(self, search: Search, stored: Stored, store: Vectors) -> None:
        self.search, self.dim, self.n, self._store = search, stored.dim, stored.n, store
        alive = np.ones(self.n, np.bool_) if stored.alive is None else stored.alive
        if alive.shape != (self.n,) or alive.dtype != np.bool_:
            raise ValueError(f"alive is {alive.dtype} of shape {alive.shape}, not bool of {(self.n,)}")
        self._alive = Column((), np.bool_, np.array(alive))
        self.n_alive = int(np.count_nonzero(alive))

    @property
    def alive(self) -> Mask:
        return self._alive.view(self.n)

    # Changes

    def extend(self: S, vectors: Float32) -> S:
        """Return the state with these vectors at the positions n, n + 1, ...; this one stays valid and unchanged.

        Only the newest state may be extended, since all states of a history write into the same columns. If its
        extension is abandoned the same state may be extended again, which overwrites the rows of the first attempt:
        never keep two states that were extended from one.
        """
        return self._grown(self._store.extend(vectors))

    def adopt(self: S, n: int) -> S:
        """Return the state of the first n rows of the columns, where another process has written those behind n."""
        return self._grown(self._store.adopt(n))

    def remove(self: S, positions: Int64) -> S:
        """Return the state without these positions, which become holes."""
        mask = np.array(self.alive)
        mask[positions] = False
        return self._with(
            _alive=Column((), np.bool_, mask), n_alive=int(np.count_nonzero(mask)), **self._without(positions)
        )

    def _with(self: S, **changes: Any) -> S:
        """Return a copy of this state with some attributes changed, and with those of its own made anew."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **self._own())
        made.__dict__.update(changes)
        return made

    def _grown(self: S, store: Vectors, **changes: Any) -> S:
        """Return the next state, with more vectors."""
        n_added = store.n - self.n
        self._alive.room(self.n, n_added)[...] = True
        return self._with(n=store.n, n_alive=self.n_alive + n_added, _store=store, **changes)

    def _without(self, positions: Int64) -> dict[str, Any]:
        """Return the attributes that the removal of these positions changes."""
        return {}

    def _own(self) -> dict[str, Any]:
        """Return new values of the attributes that no two states share."""
        return {}

    # Searches

    def nearest(
        self,
        queries: Float32,
        k: int,
        *,
        allowed: Allowed | None = None,
        recall: float | None = None,
        exclude: Int64 | None = None,
        ranks: Int64 | None = None,
    ) -> Found:
        """Return the k nearest positions of each query.

        Parameters
        ----------
        queries : (n_queries, dim), C-contiguous.
        k : how many; it is cut to the number of allowed positions.
        allowed : the positions that may be found; None is all that are alive.
        recall : the fraction of the true k nearest to find, on average; 1.0 is exact, None the default of the search.
        exclude : (n_queries,) a position that the query must not find, -1 for none. An answer may then end in -1.
        ranks : (n,) numbers that decide between equal distances; None is the position.
        """
        asked = self._request(queries, k, allowed, recall, exclude, ranks)
        if asked.k == 0 or not len(asked):
            none, shape = asked.counts(0), (len(asked), asked.k)
            return Found(np.empty(shape), np.empty(shape, np.int64), none, none, 1.0, none.astype(np.bool_))
        return self._nearest(asked)

    def unlike(self, found: Found) -> Mask | None:
        """Return which queries of an answer without a filter are farther from everything than 99% of those that this
        was calibrated with; None if nothing was.
        """
        return None

    def within(
        self,
        queries: Float32,
        radii: Float64,
        *,
        allowed: Allowed | None = None,
        recall: float | None = None,
        exclude: Int64 | None = None,
        ranks: Int64 | None = None,
        metric: Metric = "euclidean",
    ) -> FoundWithin:
        """Return all positions at most radii[i] away from query i; the other parameters are those of `nearest`.

        With the metric "chebyshev" the distance is the largest difference of two numbers, and the answer exact.
        """
        asked = self._request(queries, 1, allowed, recall, None, ranks)
        if asked.k == 0 or not len(asked):
            none, offsets = asked.counts(0), np.zeros(len(asked) + 1, np.int64)
            return FoundWithin(offsets, np.empty(0), np.empty(0, np.int64), none, none, 1.0)
        found = (self._within if metric == "euclidean" else self._within_largest)(asked, radii)
        return found if exclude is None else found.keep(found.positions != exclude[found.query])

    def _request(
        self,
        queries: Float32,
        k: int,
        allowed: Allowed | None = None,
        recall: float | None = None,
        exclude: Int64 | None = None,
        ranks: Int64 | None = None,
    ) -> Request:
        """Return what is asked, with k cut to the number allowed, and no filter where it leaves nothing out."""
        if allowed is not None and allowed.n == self.n_alive:
            allowed = None
        n_allowed, mask = self.n_alive, None if self.n_alive == self.n else self.alive
        if allowed is not None:
            n_allowed, mask = allowed.n, allowed.mask
        order = positions_up_to(self.n) if ranks is None else ranks
        k, jobs = min(k, n_allowed), self.search.n_jobs
        return Request(queries, k, allowed, recall, exclude, mask, n_allowed, order, ranks is None, jobs)

    @abstractmethod
    def _nearest(self, asked: Request) -> Found:
        """See `nearest`; there are queries, and k is at least 1."""

    @abstractmethod
    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        """See `within`; there are queries and allowed positions, and nothing is excluded."""

    def _within_largest(self, asked: Request, radii: Float64) -> FoundWithin:
        """Return what `_within` does, by the largest difference. No order of the vectors helps: it is a scan."""
        return FoundWithin(*self._store.largest_within(asked, radii), asked.counts(), asked.counts(0), 1.0)

    # What is stored

    def vectors(self, positions: Int64) -> Float32:
        """Return the vectors at these positions, as they are stored."""
        return self._store.take(positions)

    def slack(self, positions: Int64 | slice) -> Float64:
        """Return how far storing has moved these vectors, at most."""
        errors = self._store.errors
        if errors is not None:
            return np.asarray(errors[positions], np.float64)
        return np.zeros(len(range(self.n)[positions]) if isinstance(positions, slice) else len(positions))

    def query_slack(self, queries: Float32) -> Float64:
        """Return how far a search moves these queries, at most."""
        return self._store.moved_by(queries)

    def holds(self, positions: Int64, vectors: Float32, apart: Float64 | None = None) -> Mask:
        """Return which positions store exactly these vectors (as this state stores them), filed where they belong; with
        `apart`, (n,), vectors that are no farther than that from them before they were stored.
        """
        return self._store.holds(positions, vectors, apart)

    def columns(self) -> dict[str, Array]:
        """Return the content of the columns by name, n rows each: with `trained` all that `Search.start` needs."""
        return self._store.columns()

    def n_bytes(self) -> dict[str, int]:
        """Return the memory taken, by what it is for."""
        return {"vectors": self._store.n_bytes}

    def info(self) -> dict[str, Any]:
        """Return what was learnt, in words and numbers."""
        return {}

    # What is learnt

    @property
    def train_due(self) -> bool:
        """Whether searches would be much faster after `train`."""
        return False

    @property
    def outgrown(self) -> bool:
        """Whether most of what is alive was added after `train`."""
        return False

    def train(self) -> State:
        """Return the state with all but calibrations learnt anew, from what is alive; seeded."""
        return self

    def calibrate(self: S, k: int, recall: float | None = None, queries: Float32 | None = None) -> S:
        """Return the state with what it takes to find this fraction of the k nearest measured; see `calibration`.

        What was measured before is kept as long as it holds, unless `queries` are given.
        """
        return self

    def calibration(self, k: int, recall: float) -> Calibration | None:
        """Return what `calibrate` measured; None if nothing was, or if there is no choice."""
        return None

    @property
    def calibrations(self) -> list[Calibration]:
        """What was measured and still holds, by k and recall."""
        return []

    def lacks(self, k: int, recall: float | None) -> bool:
        """Return whether a search for this would be faster, or promise something, after `calibrate`."""
        return False

    def is_ready(self, k: int, recall: float | None) -> bool:
        """Return whether a search for this has to wait for neither `train` nor `calibrate`."""
        return not self.train_due and not self.lacks(k, recall)

    def calibrated(self: S, again: Iterable[tuple[int, float]] = (), eager: bool = True) -> S:
        """Return the state with enough measured to serve the usual questions, and those that were measured before.

        `again` are further pairs of k and recall, such as those of a state that this one replaces. If not `eager`, as
        more rows are about to come, what takes long to measure is left for later.
        """
        return self

    def trained(self) -> Trained | None:
        """Return what was learnt, calibrations included; None if nothing was."""
        return None

    def trained_among(self, kept: Int64) -> Trained | None:
        """Return what `trained` does for the positions `kept` alone (increasing), where kept[i] becomes position i."""
        return self.trained()

    @property
    def trained_version(self) -> object:
        """A value that changes (by ==) when `trained` would return something else."""
        return None

    def derived(self) -> Trained | None:
        """Return what follows from columns and `trained` but takes long to compute, for a cache; None if nothing."""
        return None

    @property
    def derived_from(self) -> object:
        """The part of what was learnt that `derived` follows from: another object after another training."""
        return None


@contextmanager
def checking_trained() -> Iterator[None]:
    """Turn whatever is wrong with a stored `Trained` into a DamagedError."""
    try:
        yield
    except DamagedError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise DamagedError(f"the trained state does not fit ({error!s:.200})", "train the search again") from None


def leave_out(distances: Float64, positions: Int64, exclude: Int64) -> Pairs:
    """Take exclude[i] out of the answer to query i.

    The answers stay as long as they are: ask for one more than is needed. Only the native scan of `LadderSearch`, which
    stops early, leaves a position out by itself; `State.within` does it for all searches.
    """
    own = positions == exclude[:, None]
    order = np.argsort(own, axis=1, kind="stable")
    own = np.take_along_axis(own, order, axis=1)
    found = np.where(own, np.inf, np.take_along_axis(distances, order, axis=1))
    return found, np.where(own, -1, np.take_along_axis(positions, order, axis=1))


def exact_answer(find: Callable[[int], Pairs], asked: Request) -> Found:
    """Return the nearest by one call of `find`, which compares every allowed vector.

    find(m) returns distances and positions of the m nearest, exactly; it is asked for one more than k to see a tie, and
    for another one if a position is to be left out.
    """
    distances, positions = find(min(asked.k + (1 if asked.exclude is None else 2), asked.n_allowed))
    if asked.exclude is not None:
        distances, positions = leave_out(distances, positions, asked.exclude)
    return exact_found(distances, positions, asked.k, asked.counts(), asked.counts(0))


def exact_found(distances: Float64, positions: Int64, k: int, compared: Int64, scanned: Int64) -> Found:
    """Return exact answers cut to k, and which of them are tied with what is cut off."""
    tied = np.zeros(len(distances), np.bool_)
    if distances.shape[1] > k:
        tied = (distances[:, k] == distances[:, k - 1]) & (positions[:, k] >= 0)
        distances, positions = np.ascontiguousarray(distances[:, :k]), np.ascontiguousarray(positions[:, :k])
    return Found(distances, positions, compared, scanned, 1.0, tied)
