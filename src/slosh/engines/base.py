"""The contract between an index and the place where it lives.

The planner of the index is the only caller. It hands over sets together with the vectors that were made of them, and
asks for candidates near a vector. An engine stores and fetches; it never looks inside a set. To add an engine, write a
class with these methods in a folder of its own, and register it in `registry.py`.

What a reader sees is a `View`: one version of the index, immutable, for as long as the view is open. A `Write` gathers
changes and makes them visible as the next version, all of them or none. A reader never waits for a writer.

A *key* is the number (int64) by which an engine knows a stored set. Keys increase with the order of the adds, are never
used twice within one view, and mean nothing outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..data.sets import Sets
from ..search import Calibration, Metric
from ..where import Metadata, Node, parse_metadata
from .spec import Embedded, IndexSpec, Vectors

Float64: TypeAlias = NDArray[np.float64]
Int64: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


class Records(NamedTuple):
    """Stored sets with their ids and metadata; what `slosh.readers` give and `SetIndex.add` takes."""

    sets: Sets
    ids: list[str]
    metadata: list[dict[str, Any]]


class Lines(NamedTuple):
    """What `SetIndex.describe` returns of stored sets, in the same order: all but their points."""

    ids: list[str]
    sizes: Int64
    """How many elements each has."""
    metadata_json: list[str]

    @property
    def metadata(self) -> list[dict[str, Any]]:
        return [parse_metadata(text) for text in self.metadata_json]


class Entries(NamedTuple):
    """Checked sets on their way into an engine, each with its id and metadata."""

    sets: Sets
    ids: Sequence[str]
    metadata: Sequence[Metadata]


class Description(NamedTuple):
    """What a hit shows of a stored set: its id, and its metadata as JSON."""

    id: str
    metadata: str


class Candidates(NamedTuple):
    """Stored sets near each query: those of query i are keys[offsets[i]:offsets[i + 1]], nearest first.

    distances : in the space that was searched, in the unit `kind` ("embedded", "hamming"); or, once the planner has
        ordered the candidates anew, by the distance between sets that `kind` names.
    promise : the fraction of the true neighbours that is found on average, None if nothing is promised. 1.0 is exact:
        every set at the last distance is included, so that there may be more than k.
    compared, scanned : (n_queries,) vectors compared in full, and rows of which a shorter form was looked at.
    slack : how far each distance may be from that of the vectors before anything was rounded; None if not asked for.
    full_distances : (n_queries,) distances between sets that were computed from points, None if there were none.
    unlike : (n_queries,) whether a query is unlike what was calibrated with (`slosh.search.Stats`); None if unknown.
    """

    offsets: Int64
    keys: Int64
    distances: Float64
    kind: str
    promise: float | None
    compared: Int64
    scanned: Int64
    slack: Float64 | None = None
    full_distances: Int64 | None = None
    unlike: Mask | None = None

    @property
    def query(self) -> Int64:
        """The number of the query that each candidate belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


class Capabilities(NamedTuple):
    """What an engine can promise; the planner refuses what it cannot."""

    exact_nearest: bool = True
    """`View.nearest` with recall 1.0 is exact."""
    exact_range: bool = True
    """`View.within` leaves nothing out; certificates need it."""
    metrics: tuple[Metric, ...] = ("euclidean",)
    """The metrics that `View.within` takes."""


class View(Protocol):
    """One version of an index. Use it as long as the context manager that gave it is open, in one thread."""

    @property
    def version(self) -> int:
        """Counts the changes of what is stored. Training makes searches faster within a version, and changes no answer
        that is exact.
        """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def spec(self) -> IndexSpec: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """`weighted`: whether elements have weights, None before the first set; `recall`: the default, or None;
        `part_recalls`: a text, what was measured of part search, or None; `made_on`: a tuple of what has made the
        vectors (`makers_after`), or None for the CPU alone.
        """

    @property
    def next_id(self) -> int:
        """The number from which on ids are counted."""

    @property
    def calibrated(self) -> Sequence[tuple[int, float]]:
        """Pairs of k and recall that were measured for searches of whole sets; a copy measures them, too."""

    @property
    def covered(self) -> float:
        """The share of the stored sets that this view could ask: less than 1.0 where parts of the index cannot be
        reached, and its user chose to go on without them. Whoever looks at it tells the user.
        """

    def __len__(self) -> int: ...

    def keys(self, ids: Sequence[str]) -> Int64:
        """Return the key of each id, -1 where there is none."""

    def select(self, where: Node | None = None, limit: int | None = None) -> Int64:
        """Return the keys of the sets whose metadata match, in the order of the adds."""

    def ids(self, keys: Int64) -> list[str]:
        """Return the id of each key."""

    def positions(self, keys: Int64) -> Int64:
        """Return how many of the stored sets were added before each of these."""

    def describe(self, keys: Int64) -> Sequence[Description]:
        """Return id and metadata of each key."""

    def sizes(self, keys: Int64) -> Int64:
        """Return how many elements the stored sets have, as they were added."""

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
        """Return the k nearest sets of each query among those that match; `exclude` is a key for each query to leave
        out, -1 for none. Recall 1.0 asks for an exact answer, None for the default of the space's search.
        """

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
        """Return all sets at most a radius away but those that `exclude` names, as in `nearest`. With `bounds` the
        slack of queries and sets is allowed for: all sets whose distance less its slack is at most the radius. With
        the metric "chebyshev" the distance is the largest difference of two numbers of the vectors; of the metrics
        other than "euclidean" an engine needs only those that its capabilities name, and they are always exact.
        """

    def prepared(self, keys: Int64) -> Sets:
        """Return the sets as they were handed over in `Embedded.sets`: those that distances are computed from."""

    def prepared_sizes(self, keys: Int64) -> Int64:
        """Return how many elements the sets that `prepared` returns have, so that they can be fetched in batches."""

    def features(self, name: str, keys: Int64) -> NDArray[Any]:
        """Return the rows of `Embedded.features[name]` of these sets. Ask for few enough at a time."""

    def records(self, keys: Int64) -> Records:
        """Return the stored sets, ids and metadata, as they were added."""

    def holds(self, keys: Int64, embedded: Embedded, apart: Float64 | None = None) -> Mask:
        """Return which of the sets are held ready for searches exactly as given, to the last bit.

        With `apart`, a number for each set, the vectors of whole sets may be so far from those given.
        """

    def info(self) -> dict[str, Any]:
        """Return at least `engine` (its name), `points` (of all sets) and `sizes` ({"smallest", "largest"}, or None).

        Others, where they mean something: `disk_bytes` and `memory_bytes` ({part: bytes}), `removed_since_compact`,
        `search_info` (what was trained), `format`.
        """


class Write(Protocol):
    """Changes that become the next version together when the context manager that gave it ends without an error.

    An id comes at most once in all calls of a write, as an id or as its key, and `free_ids` is called at most once,
    before the sets with these ids are stored. The caller sees to that.
    """

    @property
    def view(self) -> View:
        """The version that is being changed; it does not show the changes."""

    @property
    def committed(self) -> bool:
        """Whether the changes are stored. An interrupt may come when they are."""

    def free_ids(self, n: int) -> list[str]:
        """Return n counted ids that were never given out and are not in use."""

    def announce(self, ids: Sequence[str]) -> None:
        """Say which sets are about to be stored, before work is done for them: an engine refuses ids that it cannot
        hold, and waits for those who are in its way.
        """

    def upsert(self, entries: Entries, embedded: Embedded) -> None:
        """Store sets; those whose id exists are replaced."""

    def delete(self, keys: Int64) -> None: ...

    def set_metadata(self, keys: Int64, metadata: Sequence[Metadata]) -> None: ...

    def set_settings(self, **settings: Any) -> None:
        """Change what `View.settings` shows, or `next_id`."""


class Engine(Protocol):
    """The place where one index lives."""

    @property
    def location(self) -> str | None:
        """The path or address; None in memory."""

    @property
    def read_only(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    def view(self) -> AbstractContextManager[View]:
        """Open the newest version for reading."""

    def write(self) -> AbstractContextManager[Write]:
        """Begin a change; another thread's waits until it ends."""

    def train(self, eager: bool = False, again: Iterable[tuple[int, float]] = ()) -> bool:
        """Learn from the stored vectors what makes searches fast, if it is due; return whether it was.

        `eager` says that no more sets are about to come, so that it is due earlier; `again` are pairs of k and recall
        that are to be measured, too.
        """

    def calibrate(self, space: str, k: int, recall: float, queries: Vectors | None) -> Calibration | None:
        """Measure what it takes to reach a recall, and keep it; None where there is nothing to measure."""

    def compact(self, spec: IndexSpec | None = None) -> None:
        """Reclaim the space of removed sets, retrain, and measure again what was measured.

        With `spec`, which is of the same sets, all of them are embedded by it, and it is that of the next version. A
        reader sees the old one with the old vectors, or the new one with the new.
        """

    def verify(self) -> Iterator[tuple[str, str, list[str]]]:
        """Check what is stored: yield what was checked, how much of it, and the problems that were found."""

    def close(self) -> None: ...

    def destroy(self) -> None:
        """Close the index and delete everything that is stored of it."""
