"""An index in memory: the reference of the contract, without a file or a database.

Ids, metadata and sets lie in lists and arrays that only grow. A view is a reference to one immutable `Version`; a write
prepares the next one and swaps the reference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..data.interrupts import interruptible
from ..errors import IndexClosed
from ..search import Calibration, in_memory
from ..where import FieldColumns, Metadata, Node, checked_metadata, parse_metadata
from .base import Description, Entries, Int64, Mask, Records
from .locking import ChangeLock
from .snapshot import Filters, LocalView, PreparedSets, Snapshot
from .spec import Embedded, IndexSpec, Vectors, makers_after


class _Names:
    """Ids by row and rows by id, growing. An id may have had several rows; a view takes the one that it sees."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._rows: dict[str, tuple[int, ...]] = {}

    def truncate(self, n: int) -> None:
        """Forget the rows from n on; rows that are left over in `_rows` are not those of their id any more."""
        del self.ids[n:]

    def append(self, name: str) -> None:
        row = len(self.ids)
        self.ids.append(name)
        self._rows[name] = (*(r for r in self._rows.get(name, ()) if r < row), row)

    def find(self, name: str, alive: Mask) -> int:
        """Return the row of an id among those that are alive, -1 if there is none."""
        for row in reversed(self._rows.get(name, ())):
            if row < len(alive) and alive[row] and self.ids[row] == name:
                return row
        return -1


@dataclass(frozen=True, eq=False)
class Version(LocalView):
    """One version of an index in memory; a `View`."""

    version: int
    spec: IndexSpec
    settings: Mapping[str, Any]
    snapshot: Snapshot
    stored: PreparedSets
    """The sets as they were added; `snapshot.sets` has them as they are compared."""
    names: _Names
    described: list[Description]
    fields: FieldColumns
    slots: Int64
    """By row, where its description and its fields are in `described` and `fields`."""
    n_slots: int
    next_id: int
    filters: Filters = field(default_factory=dict)

    def __exit__(self, kind: object, *_: object) -> None:
        """A version holds nothing but memory."""

    def keys(self, ids: Sequence[str]) -> Int64:
        alive = self.snapshot.alive
        return np.array([self.names.find(name, alive) for name in ids], np.int64)

    def matching(self, where: Node, first: int = 0) -> Mask:
        slots = self.slots[first:]
        return np.asarray(self.fields.mask(where, self.n_slots, int(slots.min(initial=self.n_slots)))[slots])

    def ids(self, keys: Int64) -> list[str]:
        return [self.names.ids[row] for row in keys.tolist()]

    def describe(self, keys: Int64) -> list[Description]:
        return [self.described[slot] for slot in self.slots[keys].tolist()]

    def sizes(self, keys: Int64) -> Int64:
        return self.stored.sizes(keys)

    def records(self, keys: Int64) -> Records:
        described = self.describe(keys)
        return Records(
            self.stored.take(keys),
            [each.id for each in described],
            [parse_metadata(each.metadata) for each in described],
        )

    def info(self) -> dict[str, Any]:
        alive = self.snapshot.alive
        ends = self.stored.ends.view(self.stored.n)
        sizes = np.diff(ends, prepend=0)[alive]
        return {
            "engine": "memory",
            "points": int(sizes.sum()),
            "sizes": {"smallest": int(sizes.min()), "largest": int(sizes.max())} if len(sizes) else None,
            "removed_since_compact": int(len(alive) - np.count_nonzero(alive)),
            **(self.snapshot.info() if len(self) else {}),
        }


def _first_version(spec: IndexSpec, settings: Mapping[str, Any], version: int = 0, next_id: int = 0) -> Version:
    weighted = bool(settings["weighted"])
    snapshot = Snapshot.start(spec, weighted, in_memory)
    stored = snapshot.sets
    if not spec.preprocess.is_identity:  # else what is compared is what is stored
        stored = PreparedSets.start(spec.dim, weighted, spec.origin, 0, in_memory)
    no_slots = np.empty(0, np.int64)
    return Version(version, spec, settings, snapshot, stored, _Names(), [], FieldColumns(), no_slots, 0, next_id)


class _Write:
    """The next version, as far as it is made; a `Write`."""

    committed = False

    def __init__(self, view: Version) -> None:
        self.view = self._next = view
        view.names.truncate(view.snapshot.n)  # of a write that was given up
        view.fields.truncate(view.n_slots)
        del view.described[view.n_slots :]

    def free_ids(self, n: int) -> list[str]:
        first = self._next.next_id
        while True:
            names = [str(first + i) for i in range(n)]
            taken = [int(name) for name, row in zip(names, self._next.keys(names), strict=True) if row >= 0]
            if not taken:
                self._next = replace(self._next, next_id=first)
                return names
            first = max(taken) + 1

    def announce(self, ids: Sequence[str]) -> None:
        """Nobody is in the way of the only writer, and every id can be held."""

    def upsert(self, entries: Entries, embedded: Embedded) -> None:
        rows = self._next.keys(entries.ids)
        self.delete(rows[rows >= 0])
        now = self._next
        snapshot = now.snapshot.extend(embedded)
        same = now.stored is now.snapshot.sets
        for name in entries.ids:
            now.names.append(name)
        slots = self._add_metadata(entries.ids, entries.metadata)
        self._next = replace(
            self._next,
            snapshot=snapshot,
            stored=snapshot.sets if same else now.stored.extend(entries.sets),
            slots=np.concatenate([now.slots, slots]),
            next_id=now.next_id + len(entries.ids),
        )

    def _add_metadata(self, ids: Iterable[str], metadata: Sequence[Metadata]) -> Int64:
        now = self._next
        for i, (name, each) in enumerate(zip(ids, metadata, strict=True)):
            now.described.append(Description(name, each.json))
            now.fields.append(now.n_slots + i, name, each.fields)
        self._next = replace(now, n_slots=now.n_slots + len(metadata))
        return np.arange(now.n_slots, now.n_slots + len(metadata))

    def delete(self, keys: Int64) -> None:
        self._next = replace(self._next, snapshot=self._next.snapshot.remove(keys))

    def set_metadata(self, keys: Int64, metadata: Sequence[Metadata]) -> None:
        slots = self._next.slots.copy()
        names = (self._next.names.ids[row] for row in keys.tolist())
        slots[keys] = self._add_metadata(names, metadata)
        self._next = replace(self._next, slots=slots, filters={})

    def set_settings(self, *, next_id: int | None = None, **settings: Any) -> None:
        if next_id is not None:
            self._next = replace(self._next, next_id=next_id)
        changed = {**self._next.settings, **settings}
        if changed["weighted"] != self._next.settings["weighted"]:
            assert not self._next.snapshot.n
            now = self._next
            self._next = replace(
                _first_version(now.spec, changed, now.version, now.next_id), names=now.names, fields=now.fields
            )
        self._next = replace(self._next, settings=changed)

    def finish(self) -> Version:
        return replace(self._next, version=self.view.version + 1, filters=dict(self._next.filters))


class MemoryEngine:
    """An index that lives as long as its process."""

    location = None
    read_only = False

    def __init__(self, spec: IndexSpec, weighted: bool | None, n_jobs: int | None, device: str | None) -> None:
        settings = {"weighted": weighted, "recall": None, "part_recalls": None, "made_on": None}
        self._current = _first_version(spec.run_by(n_jobs, device), settings)
        self._n_jobs, self._device = n_jobs, device
        self._lock = ChangeLock()
        self._pid = os.getpid()
        self.closed = False

    @classmethod
    def create(
        cls, location: None, spec: IndexSpec, *, weighted: bool | None, n_jobs: int | None, device: str | None = None
    ) -> MemoryEngine:
        return cls(spec, weighted, n_jobs, device)

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise IndexClosed("this process was forked from the one that created the index", "create it again, here")
        if self.closed:
            raise IndexClosed("the index is closed", "create it again: one in memory is gone with its close")

    def view(self) -> Version:
        self._check_open()
        return self._current

    @contextmanager
    def write(self) -> Iterator[_Write]:
        self._check_open()
        with self._lock.writing():
            self._check_open()
            write = _Write(self._current)
            yield write
            self._current = write.finish()
            write.committed = True

    def train(self, eager: bool = False, again: Iterable[tuple[int, float]] = ()) -> bool:
        with self._lock.changing():
            self._check_open()
            before = self._current.snapshot
            with interruptible():
                after = before.train(eager, again)
            self._publish(after)
            return after is not before

    def _publish(self, snapshot: Snapshot) -> None:
        same = self._current.stored is self._current.snapshot.sets
        stored = snapshot.sets if same else self._current.stored
        self._current = replace(self._current, snapshot=snapshot, stored=stored)

    def calibrate(self, space: str, k: int, recall: float, queries: Vectors | None) -> Calibration | None:
        with self._lock.changing():
            self._check_open()
            with interruptible():
                snapshot, found = self._current.snapshot.calibrate(space, k, recall, queries)
            self._publish(snapshot)
            return found

    def compact(self, spec: IndexSpec | None = None) -> None:
        with self._lock.changing():
            self._check_open()
            old = self._current
            chosen = old.spec if spec is None else spec.run_by(self._n_jobs, self._device)
            settings = {**old.settings, "made_on": makers_after(None, 0, chosen.made_on)}
            with interruptible():
                keys = np.array(sorted(old.select().tolist(), key=old.names.ids.__getitem__), np.int64)
                new = _Write(_first_version(chosen, settings, old.version, old.next_id))
                if len(keys):
                    sets, ids, metadata = old.records(keys)
                    checked = [checked_metadata(each, "metadata") for each in metadata]
                    new.upsert(Entries(sets, ids, checked), chosen.embed(sets))
                new.set_settings(next_id=old.next_id)  # to store a set again is not to add one
                version = new.finish()
                snapshot = version.snapshot.train(again=old.calibrated)
            self._current = version
            self._publish(snapshot)

    def verify(self) -> Iterator[tuple[str, str, list[str]]]:
        with self.view() as view:
            yield "memory", f"{len(view)} sets", []

    def close(self) -> None:
        self.closed = True

    def destroy(self) -> None:
        self.close()
