"""What an index gives back: the sets that were found, by id, with their distances and metadata.

`Hits` are those of one query, `HitLists` those of several, `Pairs` near-equal sets; each goes to pandas and Arrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ..checkpoints import checkpoint
from ..engines.base import Candidates, Description, Float64
from ..errors import import_extra
from ..search import Stats
from ..where import parse_metadata

SHOWN_HITS = 10
"""Lines of a printed table."""


@dataclass(frozen=True)
class Hit:
    """A set that was found. `metadata` is a dict of its own: changing it changes nothing else."""

    id: str
    distance: float
    _json: str

    @property
    def metadata(self) -> dict[str, Any]:
        return parse_metadata(self._json)

    def __repr__(self) -> str:
        return f"Hit(id={self.id!r}, distance={self.distance:.6g}, metadata={self._json})"


class Hits(Sequence[Hit]):
    """The sets found for one query, nearest first, equal distances in the order of their ids.

    ids : list of strings.
    distances : (n,) float64.
    metadata : list of dicts.
    distance_kind : what the distances are: "embedded", "sliced", "wasserstein", ...
    stats : `slosh.search.Stats`: what was promised and what it took, with arrays of one entry for each query; `Hits` of
        several queries share them.
    """

    def __init__(self, ids: list[str], distances: Float64, texts: list[str], kind: str, stats: Stats) -> None:
        self.ids, self.distances, self.metadata_json = ids, distances, texts
        self.distance_kind, self.stats = kind, stats

    @property
    def metadata(self) -> list[dict[str, Any]]:
        return [parse_metadata(text) for text in self.metadata_json]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, i: int) -> Hit: ...
    @overload
    def __getitem__(self, i: slice) -> list[Hit]: ...

    def __getitem__(self, i: int | slice) -> Hit | list[Hit]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return Hit(self.ids[i], float(self.distances[i]), self.metadata_json[i])

    def __repr__(self) -> str:
        lines = [f"{len(self)} hit{'s' * (len(self) != 1)} by {self.distance_kind} distance; {self.stats}"]
        wide = max((len(name) for name in self.ids[:SHOWN_HITS]), default=0)
        for name, distance, text in zip(self.ids[:SHOWN_HITS], self.distances, self.metadata_json, strict=False):
            lines.append(f"  {name:<{wide}}  {distance:10.6g}  {text if len(text) < 80 else text[:77] + '...'}")
        if len(self) > SHOWN_HITS:
            lines.append(f"  and {len(self) - SHOWN_HITS} more")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """A DataFrame with the columns id, distance, and one for each key of the metadata."""
        return _frame(self.columns())

    def to_arrow(self) -> Any:
        """An Arrow table with the columns id, distance, and metadata (as JSON)."""
        return _table({"id": self.ids, "distance": self.distances, "metadata": self.metadata_json})

    def columns(self) -> dict[str, Any]:
        return {"id": self.ids, "distance": self.distances, **_spread(self.metadata)}


class HitLists(Sequence[Hits]):
    """Of several queries: `lists[i]` are the `Hits` of query i. `ids` and `distances` are lists, one item a query.

    joined : the hits of all queries, one after the other.
    offsets : those of query i are joined[offsets[i]:offsets[i + 1]].
    """

    def __init__(self, joined: Hits, offsets: list[int]) -> None:
        self.joined, self.offsets = joined, offsets
        self.distance_kind, self.stats = joined.distance_kind, joined.stats

    @cached_property
    def _lists(self) -> list[Hits]:
        if len(self) == 1:
            return [self.joined]
        ids, distances, texts = self.joined.ids, self.joined.distances, self.joined.metadata_json
        return [
            Hits(ids[a:b], distances[a:b], texts[a:b], self.distance_kind, self.stats)
            for a, b in itertools.pairwise(self.offsets)
        ]

    @property
    def ids(self) -> list[list[str]]:
        return [hits.ids for hits in self._lists]

    @property
    def distances(self) -> list[Float64]:
        return [hits.distances for hits in self._lists]

    @property
    def metadata(self) -> list[list[dict[str, Any]]]:
        return [hits.metadata for hits in self._lists]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> Hits: ...
    @overload
    def __getitem__(self, i: slice) -> list[Hits]: ...

    def __getitem__(self, i: int | slice) -> Hits | list[Hits]:
        return self._lists[i]

    def __repr__(self) -> str:
        lines = [f"{len(self.joined)} hits of {len(self)} queries by {self.distance_kind} distance; {self.stats}"]
        for i, hits in enumerate(self._lists[:SHOWN_HITS]):
            first = ", ".join(f"{name} ({far:.4g})" for name, far in zip(hits.ids[:3], hits.distances, strict=False))
            lines.append(f"  query {i}: {first or 'none'}{', ...' * (len(hits) > 3)}")
        return "\n".join(lines + [f"  and {len(self) - SHOWN_HITS} more queries"] * (len(self) > SHOWN_HITS))

    def to_pandas(self) -> Any:
        """A DataFrame with the columns query (its number), id, distance, and one for each key of the metadata."""
        return _frame({"query": self._query(), **self.joined.columns()})

    def to_arrow(self) -> Any:
        """An Arrow table with the columns query (its number), id, distance, and metadata (as JSON)."""
        joined = self.joined
        return _table(
            {"query": self._query(), "id": joined.ids, "distance": joined.distances, "metadata": joined.metadata_json}
        )

    def _query(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


class Pair(NamedTuple):
    """Two sets that are nearly equal."""

    id: str
    other: str
    distance: float


class Pairs(Sequence[Pair]):
    """Pairs of near-equal sets, each once, nearest first."""

    def __init__(self, pairs: list[Pair], kind: str) -> None:
        self._pairs, self.distance_kind = pairs, kind

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, i: int) -> Pair: ...
    @overload
    def __getitem__(self, i: slice) -> list[Pair]: ...

    def __getitem__(self, i: int | slice) -> Pair | list[Pair]:
        return self._pairs[i]

    def __repr__(self) -> str:
        lines = [f"{len(self)} pair{'s' * (len(self) != 1)} by {self.distance_kind} distance"]
        lines += [f"  {a}  {b}  {distance:.6g}" for a, b, distance in self._pairs[:SHOWN_HITS]]
        return "\n".join(lines + [f"  and {len(self) - SHOWN_HITS} more"] * (len(self) > SHOWN_HITS))

    def groups(self) -> list[list[str]]:
        """Sets that are joined by pairs, largest group first; ids in order."""
        names = sorted({name for pair in self._pairs for name in pair[:2]})
        number = {name: i for i, name in enumerate(names)}
        ends = np.array([[number[a], number[b]] for a, b, _ in self._pairs], np.int64).reshape(-1, 2)
        graph = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
        n_groups, group_of = connected_components(graph, directed=False)
        groups: list[list[str]] = [[] for _ in range(n_groups)]
        for name, group in zip(names, group_of, strict=True):
            groups[group].append(name)
        return sorted(groups, key=lambda group: (-len(group), group))

    def to_pandas(self) -> Any:
        return _frame(self.columns())

    def to_arrow(self) -> Any:
        return _table(self.columns())

    def columns(self) -> dict[str, Any]:
        a, b, distances = zip(*self._pairs, strict=True) if self._pairs else ((), (), ())
        return {"id": list(a), "other": list(b), "distance": np.array(distances, np.float64)}


def _spread(metadata: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Metadata as columns; None where a set has no such key. A key "id" or "distance" is called "metadata.id"."""
    keys = {key: None for each in metadata for key in each}
    taken = ("id", "distance", "query")
    return {f"metadata.{key}" if key in taken else key: [each.get(key) for each in metadata] for key in keys}


def _frame(columns: dict[str, Any]) -> Any:
    return import_extra("pandas", "to_pandas").DataFrame(columns)


def _table(columns: dict[str, Any]) -> Any:
    return import_extra("pyarrow", "to_arrow", "tables").table(columns)


class Columns(NamedTuple):
    """Hits of queries, one after the other; `metadata` is JSON."""

    ids: list[str]
    distances: Float64
    metadata: list[str]
    offsets: list[int]


def make_hits(found: Candidates, described: Sequence[Description], which: slice) -> Columns:
    """Return those of each query that `which` takes.

    `described` are the candidates; those at equal distances are put in the order of their ids.
    """
    hits, distances, offsets = described, found.distances, found.offsets.tolist()
    checkpoint()
    if ties := _with_ties(distances, offsets):
        hits = list(described)
        for first, last in ties:
            checkpoint()
            pairs = sorted(zip(distances[first:last].tolist(), hits[first:last], strict=True))
            hits[first:last] = [hit for _, hit in pairs]
    if which.start or (which.stop is not None and any(b - a > which.stop for a, b in itertools.pairwise(offsets))):
        taken = [range(first, last)[which] for first, last in itertools.pairwise(offsets)]
        rows = list(itertools.chain.from_iterable(taken))
        hits, distances = [hits[row] for row in rows], distances[rows]
        offsets = [0, *itertools.accumulate(map(len, taken))]
    checkpoint()
    ids = [hit.id for hit in hits]
    checkpoint()
    return Columns(ids, distances, [hit.metadata for hit in hits], offsets)


def _with_ties(distances: Float64, offsets: list[int]) -> list[tuple[int, int]]:
    """Return where the hits of queries begin and end that have equal distances among them."""
    if len(offsets) == 2:  # a single query
        far = distances.tolist()
        return [(0, len(far))] if len(set(far)) < len(far) else []
    equal = np.flatnonzero(distances[1:] == distances[:-1])
    queries = np.unique(np.searchsorted(offsets, equal, side="right"))
    places = [(offsets[i - 1], offsets[i]) for i in queries.tolist()]
    return [(a, b) for a, b in places if len(np.unique(distances[a:b])) < b - a]
