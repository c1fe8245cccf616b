"""One version of a collection in shards: a `View` that asks all shards, or those that hold a set, and merges.

The key of a set is the number of its shard and its key there. Shards are numbered in the order of their names, so keys
increase with the order of the adds within a shard, and shards come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...data.sets import Sets
from ...errors import ServerLost
from ...search import Metric
from ...where import Node
from ..base import Candidates, Capabilities, Description, Float64, Int64, Mask, Records
from ..spec import Embedded, IndexSpec, Vectors
from .merging import merge
from .shard import Mark

SHARD_BITS = 40
"""A key has so many bits for the key within a shard."""
MAX_DESCRIBED = 1 << 16
"""Sets whose ids and metadata are remembered."""
REMEMBERED_SETS = 1 << 12
"""Sets whose points a view remembers that came with their sizes."""


class Lost(NamedTuple):
    """What comes instead of the answer of a shard that cannot be reached."""

    why: str


class Call(NamedTuple):
    """A question to one shard; `shared` is the same object in the calls to several."""

    client: Any
    mark: Mark | None
    question: str
    shared: Mapping[str, Any]
    own: Mapping[str, Any]


class Transport(Protocol):
    """How shards are reached."""

    def open(self, place: str, name: str, folder: str) -> Any:
        """Begin to open a shard, and return what a `Call` takes as its client."""

    def ask(self, calls: Sequence[Call], wait: bool) -> list[Any]:
        """Return the answer to each call, or Lost: with `wait` only after waiting for the shard to come back. The first
        error that is an answer is raised, and says which shard it is of.
        """

    def close(self, clients: Iterable[Any]) -> None:
        """Let go of shards."""


class Member(NamedTuple):
    """A shard of a version: its name, how it is reached, and what it is seen at."""

    name: str
    client: Any
    mark: Mark
    sets: int


class Version(NamedTuple):
    """What all views of one version share."""

    location: str
    transport: Transport
    members: Sequence[Member]
    spec: IndexSpec
    settings: Mapping[str, Any]
    number: int
    next_id: int
    calibrated: Sequence[tuple[int, float]]
    capabilities: Capabilities
    removed: int
    """Sets that are marked as removed."""
    partial: bool
    """Whether searches go on without shards that cannot be reached."""
    wait: bool
    """Whether they wait for them."""
    described: dict[int, Description]


class ShardedView:
    """A `View`; see the contract in `engines/base.py`."""

    def __init__(self, version: Version) -> None:
        self._at, self._members, self._told = version, version.members, False
        self.version, self.spec, self.settings = version.number, version.spec, version.settings
        self.next_id, self.calibrated, self.capabilities = version.next_id, version.calibrated, version.capabilities
        # An empty shard has nothing to say, unless all of them are empty.
        self._filled = [i for i, each in enumerate(self._members) if each.sets] or [0]
        self._lost: dict[int, str] = {}
        self._prepared: dict[int, tuple[Sets, int]] = {}
        self._starts = np.cumsum([0, *(each.sets for each in self._members)])

    def __enter__(self) -> ShardedView:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._lost and not self._told:
            raise self._error(next(iter(self._lost)), "an answer without it could not say so")

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def covered(self) -> float:
        """The share of the collection that was asked; whoever looks at it tells the user."""
        self._told = True
        lost = sum(self._members[number].sets for number in self._lost)
        return 1.0 if not self._lost else 1.0 - lost / max(1, len(self))

    # Asking

    def _ask_all(self, question: str, shared: Mapping[str, Any], own: Sequence[Any] | None = None) -> list[Any]:
        """Return the number of each shard that answers a question, and the answer."""
        numbers = [number for number in self._filled if number not in self._lost]
        given: Sequence[Any] = [{}] * len(self._members) if own is None else own
        answers = self._answers([self._call(i, question, shared, given[i]) for i in numbers], self._at.wait)
        found = []
        for number, answer in zip(numbers, answers, strict=True):
            if not isinstance(answer, Lost):
                found.append((number, answer))
            elif not self._at.partial:
                raise self._error(number, answer.why)
            else:
                self._lost[number] = answer.why
        if not found:
            raise self._error(*next(iter(self._lost.items())))
        return found

    def _ask_owners(self, keys: Int64, question: str, **shared: Any) -> list[Any]:
        """Ask each shard about those of the keys that are its own; return places among the keys, and answers.

        An answer needs all of them, so that this waits for shards that are on their way back.
        """
        owners, local = keys >> SHARD_BITS, keys & (1 << SHARD_BITS) - 1
        numbers = np.unique(owners).tolist()
        if len(numbers) == 1:
            places, calls = [np.arange(len(keys))], [self._call(numbers[0], question, shared, {"keys": local})]
        else:
            places = [np.flatnonzero(owners == number) for number in numbers]
            calls = [
                self._call(number, question, shared, {"keys": local[at]})
                for number, at in zip(numbers, places, strict=True)
            ]
        answers = self._answers(calls, self._at.wait or self._at.partial)
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, Lost):
                raise self._error(number, answer.why)
        return list(zip(places, answers, strict=True))

    def _call(self, number: int, question: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Call:
        member = self._members[number]
        return Call(member.client, member.mark, question, shared, own)

    def _answers(self, calls: Sequence[Call], wait: bool) -> list[Any]:
        return self._at.transport.ask(calls, wait)

    def _error(self, number: int, why: str) -> ServerLost:
        name, n = self._members[number].name, self._members[number].sets
        share = n / max(1, len(self))
        problem = f"{self._at.location}: the shard {name} ({share:.1%} of the sets) cannot be reached: {why}"
        remedy = "try again, or see that the cluster has room for it"
        return ServerLost(problem, remedy, location=self._at.location)

    def by_shard(self, keys: Int64) -> list[tuple[str, Int64]]:
        """Return the names of the shards that hold these sets, each with the places of its own among the keys."""
        owners = keys >> SHARD_BITS
        return [(self._members[i].name, np.flatnonzero(owners == i)) for i in np.unique(owners).tolist()]

    # Ids and metadata

    def keys(self, ids: Sequence[str]) -> Int64:
        found = np.full(len(ids), -1, np.int64)
        if not len(ids):
            return found
        for number, keys in self._ask_all("keys", {"ids": list(ids)}):
            there = keys >= 0
            found[there] = _packed(number, keys[there])
        if self._lost and (found < 0).any():  # it may be in a shard that did not answer
            raise self._error(*next(iter(self._lost.items())))
        return found

    def select(self, where: Node | None = None, limit: int | None = None) -> Int64:
        parts = self._ask_all("select", {"where": where, "limit": limit})
        return np.asarray(np.concatenate([_packed(number, keys) for number, keys in parts])[:limit])

    def ids(self, keys: Int64) -> list[str]:
        if len(keys) <= MAX_DESCRIBED:
            return [each.id for each in self.describe(keys)]
        names = [""] * len(keys)
        for places, own in self._ask_owners(keys, "ids"):
            for place, name in zip(places.tolist(), own, strict=True):
                names[place] = name
        return names

    def positions(self, keys: Int64) -> Int64:
        found = np.empty(len(keys), np.int64)
        for places, own in self._ask_owners(keys, "positions"):
            found[places] = own
        return np.asarray(found + self._starts[keys >> SHARD_BITS])

    def sizes(self, keys: Int64) -> Int64:
        found = np.empty(len(keys), np.int64)
        for places, own in self._ask_owners(keys, "sizes"):
            found[places] = own
        return found

    def describe(self, keys: Int64) -> list[Description]:
        known, wanted = self._at.described, keys.tolist()
        try:
            return [known[key] for key in wanted]
        except KeyError:
            found = {key: known.get(key) for key in wanted}  # another thread may empty what is known
        missing = np.array([key for key, each in found.items() if each is None], np.int64)
        new: dict[int, Description] = {}
        for places, (ids, metadata) in self._ask_owners(missing, "describe"):
            new.update(zip(missing[places].tolist(), map(Description, ids, metadata), strict=True))
        self._remember(new)
        return [found[key] or new[key] for key in wanted]

    def _remember(self, described: Mapping[int, Description]) -> None:
        known = self._at.described
        known.update(described)
        if len(known) > MAX_DESCRIBED:
            known.clear()
            known.update(described)

    # Sets

    def prepared(self, keys: Int64) -> Sets:
        wanted = keys.tolist()
        if wanted and all(key in self._prepared for key in wanted):
            parts = [self._prepared[key] for key in wanted]
            if all(sets is parts[0][0] for sets, _ in parts):
                return parts[0][0].take([place for _, place in parts])
            return Sets.concat([sets[place : place + 1] for sets, place in parts])
        return self._in_order(keys, self._ask_owners(keys, "prepared"))

    def prepared_sizes(self, keys: Int64) -> Int64:
        found = np.empty(len(keys), np.int64)
        if len(self._prepared) > REMEMBERED_SETS:
            self._prepared.clear()
        for places, (sizes, sets) in self._ask_owners(keys, "prepared_sizes"):
            found[places] = sizes
            if sets is not None:
                self._prepared.update((key, (sets, i)) for i, key in enumerate(keys[places].tolist()))
        return found

    def _in_order(self, keys: Int64, parts: list[tuple[Int64, Sets]]) -> Sets:
        """Put sets of several shards in the order of the keys."""
        if not parts:
            weights = np.empty(0, np.float32) if self.settings["weighted"] else None
            points = np.empty((0, self.spec.dim), np.float32)
            return Sets.from_checked(points, np.zeros(1, np.int64), weights, self.spec.origin)
        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([places for places, _ in parts]), kind="stable")
        return Sets.concat([sets for _, sets in parts]).take(order)

    def records(self, keys: Int64) -> Records:
        parts = self._ask_owners(keys, "records")
        ids, metadata = [""] * len(keys), [dict[str, Any]()] * len(keys)
        for places, own in parts:
            for place, name, about in zip(places.tolist(), own.ids, own.metadata, strict=True):
                ids[place], metadata[place] = name, about
        return Records(self._in_order(keys, [(places, own.sets) for places, own in parts]), ids, metadata)

    def features(self, name: str, keys: Int64) -> Any:
        shape, dtype = self.spec.features[name]
        found = np.empty((len(keys), *shape), dtype)
        for places, own in self._ask_owners(keys, "features", name=name):
            found[places] = own
        return found

    def holds(self, keys: Int64, embedded: Embedded, apart: Float64 | None = None) -> Mask:
        good, owners = np.zeros(len(keys), np.bool_), keys >> SHARD_BITS
        for number in np.unique(owners).tolist():
            at = np.flatnonzero(owners == number)
            part = Embedded(
                embedded.sets.take(at),
                {
                    name: Vectors(each.numbers[at], None if each.slack is None else each.slack[at])
                    for name, each in embedded.vectors.items()
                },
                {name: each[at] for name, each in embedded.features.items()},
            )
            ((_, own),) = self._ask_owners(keys[at], "holds", embedded=part, apart=None if apart is None else apart[at])
            good[at] = own
        return good

    # Searches

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
        shared = {"space": space, "queries": queries, "k": k, "where": where, "recall": recall}
        return self._merged("nearest", shared, exclude, k)

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
        shared = {
            "space": space, "queries": queries, "radii": radii, "where": where, "recall": recall, "bounds": bounds,
            "metric": metric,
        }  # fmt: skip
        return self._merged("within", shared, exclude, None)

    def _merged(self, question: str, shared: Mapping[str, Any], exclude: Int64 | None, k: int | None) -> Candidates:
        own = None
        if exclude is not None:
            owners, local = exclude >> SHARD_BITS, exclude & (1 << SHARD_BITS) - 1
            own = [{"exclude": np.where(owners == i, local, -1)} for i in range(len(self._members))]
        parts = []
        for number, (found, ids, metadata) in self._ask_all(question, shared, own):
            keys = _packed(number, found.keys)
            if ids is not None:
                self._remember(dict(zip(keys.tolist(), map(Description, ids, metadata), strict=True)))
            parts.append(found._replace(keys=keys))
        merged = merge(parts, k)
        return merged._replace(promise=None) if self._lost else merged

    def info(self) -> dict[str, Any]:
        told = self._ask_all("info", {})
        sizes = [each["sizes"] for _, each in told if each["sizes"] is not None]
        return {
            "engine": "shards",
            "points": sum(each["points"] for _, each in told),
            "sizes": {
                "smallest": min(each["smallest"] for each in sizes),
                "largest": max(each["largest"] for each in sizes),
            }
            if sizes
            else None,
            "removed": self._at.removed,
            "disk_bytes": _summed(each.get("disk_bytes", {}) for _, each in told),
            "memory_bytes": _summed(each.get("memory_bytes", {}) for _, each in told),
            "shards": {
                self._members[number].name: {
                    key: each[key] for key in ("sets", "node", "pid", "search_info") if key in each
                }
                for number, each in told
            },
        }


def _packed(number: int, keys: Int64) -> Int64:
    return keys | number << SHARD_BITS


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, n_bytes in part.items():
            total[name] = total.get(name, 0) + n_bytes
    return total
