"""What an index gives back: the sets that were found, by id, with their distances and metadata.

`Hits` are those of one query, `HitLists` those of several, `Pairs` near-equal sets; each goes to pandas and Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..search.result import Stats

Float64 = NDArray[np.float64]

SHOWN = 10
"""Lines of a printed table."""


def parsed(text: str) -> dict[str, Any]:
    """Metadata from their JSON; ValueError if it is none, whoever has written it."""
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            f"metadata {text!r:.60} are damaged: restore the index from a copy; verify() lists all of them"
        )
    return found


@dataclass(frozen=True)
class Hit:
    """A set that was found. `metadata` is a dict of its own: changing it changes nothing else."""

    id: str
    distance: float
    _json: str

    @property
    def metadata(self) -> dict[str, Any]:
        return parsed(self._json)

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
        self.ids, self.distances, self._texts, self.distance_kind, self.stats = ids, distances, texts, kind, stats

    @property
    def metadata(self) -> list[dict[str, Any]]:
        return [parsed(text) for text in self._texts]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, i: int) -> Hit: ...
    @overload
    def __getitem__(self, i: slice) -> list[Hit]: ...

    def __getitem__(self, i: int | slice) -> Hit | list[Hit]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return Hit(self.ids[i], float(self.distances[i]), self._texts[i])

    def __repr__(self) -> str:
        lines = [f"{len(self)} hit{'s' * (len(self) != 1)} by {self.distance_kind} distance; {self.stats}"]
        wide = max((len(name) for name in self.ids[:SHOWN]), default=0)
        for name, distance, text in zip(self.ids[:SHOWN], self.distances, self._texts, strict=False):
            lines.append(f"  {name:<{wide}}  {distance:10.6g}  {text if len(text) < 80 else text[:77] + '...'}")
        if len(self) > SHOWN:
            lines.append(f"  and {len(self) - SHOWN} more")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """A DataFrame with the columns id, distance, and one for each key of the metadata."""
        return _frame(self._columns())

    def to_arrow(self) -> Any:
        """An Arrow table with the columns id, distance, and metadata (as JSON)."""
        return _table({"id": self.ids, "distance": self.distances, "metadata": self._texts})

    def _columns(self) -> dict[str, Any]:
        return {"id": self.ids, "distance": self.distances, **_spread(self.metadata)}


class HitLists(Sequence[Hits]):
    """Of several queries: `lists[i]` are the `Hits` of query i. `ids` and `distances` are lists, one item a query."""

    def __init__(self, lists: list[Hits], kind: str, stats: Stats) -> None:
        self._lists, self.distance_kind, self.stats = lists, kind, stats

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
        return len(self._lists)

    @overload
    def __getitem__(self, i: int) -> Hits: ...
    @overload
    def __getitem__(self, i: slice) -> list[Hits]: ...

    def __getitem__(self, i: int | slice) -> Hits | list[Hits]:
        return self._lists[i]

    def __repr__(self) -> str:
        n = sum(len(hits) for hits in self._lists)
        return f"{n} hits of {len(self)} queries by {self.distance_kind} distance; {self.stats}"

    def to_pandas(self) -> Any:
        """A DataFrame with the columns query (its number), id, distance, and one for each key of the metadata."""
        return _frame({"query": self._query(), **Hits._columns(self._joined())})

    def to_arrow(self) -> Any:
        """An Arrow table with the columns query (its number), id, distance, and metadata (as JSON)."""
        joined = self._joined()
        return _table(
            {"query": self._query(), "id": joined.ids, "distance": joined.distances, "metadata": joined._texts}
        )

    def _query(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), [len(hits) for hits in self._lists])

    def _joined(self) -> Hits:
        ids = [name for hits in self._lists for name in hits.ids]
        texts = [text for hits in self._lists for text in hits._texts]
        distances = np.concatenate([np.empty(0), *(hits.distances for hits in self._lists)])
        return Hits(ids, distances, texts, self.distance_kind, self.stats)


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
        lines += [f"  {a}  {b}  {distance:.6g}" for a, b, distance in self._pairs[:SHOWN]]
        return "\n".join(lines + [f"  and {len(self) - SHOWN} more"] * (len(self) > SHOWN))

    def groups(self) -> list[list[str]]:
        """Sets that are joined by pairs, largest group first; ids in order."""
        leader: dict[str, str] = {}

        def find(name: str) -> str:
            while leader.setdefault(name, name) != name:
                leader[name] = leader[leader[name]]
                name = leader[name]
            return name

        for a, b, _ in self._pairs:
            leader[find(b)] = find(a)
        groups: dict[str, list[str]] = {}
        for name in sorted(leader):
            groups.setdefault(find(name), []).append(name)
        return sorted(groups.values(), key=lambda group: (-len(group), group))

    def to_pandas(self) -> Any:
        return _frame(self._columns())

    def to_arrow(self) -> Any:
        return _table(self._columns())

    def _columns(self) -> dict[str, Any]:
        a, b, distances = zip(*self._pairs, strict=True) if self._pairs else ((), (), ())
        return {"id": list(a), "other": list(b), "distance": np.array(distances, np.float64)}


def _spread(metadata: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Metadata as columns; None where a set has no such key. A key "id" or "distance" is called "metadata.id"."""
    listed = list(metadata)
    keys = {key: None for each in listed for key in each}
    taken = ("id", "distance", "query")
    return {f"metadata.{key}" if key in taken else key: [each.get(key) for each in listed] for key in keys}


def _frame(columns: dict[str, Any]) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pd.DataFrame(columns)


def _table(columns: dict[str, Any]) -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("to_arrow needs pyarrow: pip install 'slosh[tables]'") from error
    return pa.table(columns)


def hit_list(rows: Any, distances: Float64, described: dict[int, tuple[str, str]], kind: str, stats: Stats) -> Hits:
    """Hits from rows; equal distances in the order of the ids."""
    found = [
        (distance, *described[row]) for row, distance in zip(rows.tolist(), distances.tolist(), strict=True) if row >= 0
    ]
    if len(set(distances.tolist())) < len(found):
        found.sort()
    return Hits([f[1] for f in found], np.array([f[0] for f in found]), [f[2] for f in found], kind, stats)
