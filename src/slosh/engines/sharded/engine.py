"""The engine of a collection in shards: which shards there are, what is removed of them, and views of that.

Shards are indexes in folders, written elsewhere and never changed here. They are reached by a `Transport`: within this
process (`local.py`), or by actors on many machines (`slosh.ray`). What is removed is marked (`removals.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from ...errors import FormatError, IndexClosed, IndexNotFound, ReadOnlyIndex, ServerLost
from ...gpu.devices import CPU
from ...search import Calibration
from ..base import Capabilities, Entries, Int64
from ..spec import Embedded, IndexSpec, Vectors
from .folder import ShardFolder
from .removals import Removals
from .shard import About
from .unique_ids import check_unique
from .view import Call, Lost, Member, ShardedView, Transport, Version


class ShardedEngine:
    """Shards that are read as one index. Sets can be removed; they are added as new shards, which `refresh` finds.

    partial : searches go on without shards that cannot be reached. wait : they wait for them.
    check_ids : refuse shards that have an id in common.
    """

    read_only = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        transport: Transport,
        *,
        partial: bool = False,
        wait: bool = True,
        check_ids: bool = True,
        n_jobs: int | None = -1,
    ) -> None:
        self._folder = ShardFolder(folder)
        self.location, self.closed = str(self._folder.path), False
        self._removals = Removals(self._folder.path)
        self._transport, self._partial, self._wait = transport, partial, wait
        self._check_ids, self._n_jobs, self._pid = check_ids, n_jobs, os.getpid()
        self._lock = threading.RLock()
        self._current: Version | None = None
        self._stamps: dict[str, tuple[int, ...]] = {}
        self.refresh()

    def _check_open(self) -> Version:
        if self.closed or self._current is None:
            raise IndexClosed("the index is closed", "serve it again")
        if self._pid != os.getpid():
            raise IndexClosed("this process was forked from the one that serves the index", "serve it again, here")
        return self._current

    def view(self) -> ShardedView:
        return ShardedView(self._check_open())

    def shard_sizes(self) -> dict[str, int]:
        """Return the number of sets of each shard, without those that are removed."""
        return {each.name: each.sets for each in self._check_open().members}

    # Which shards there are

    def refresh(self) -> bool:
        """Look for shards that were added, taken away or replaced, and for removals of others; return whether there
        were any.

        Views that are open stay as they are. If something is wrong with a new shard, so does the collection.
        """
        with self._lock:
            before = self._current
            names = self._folder.names()
            if not names:
                problem = f"there are no shards in {self._folder.root}"
                remedy = "put indexes there: each is a folder whose name ends in .slosh"
                raise IndexNotFound(problem, remedy, location=self.location)
            stamps = {name: self._folder.stamp_of(name) for name in names}
            opened = () if before is None else before.members
            known = {each.name: each.client for each in opened if stamps.get(each.name) == self._stamps[each.name]}
            fresh = {name: self._open(name) for name in names if name not in known}
            try:
                after = self._version(names, {**known, **fresh}, before)
            except BaseException:
                self._transport.close(fresh.values())
                raise
            self._current, self._stamps = after, stamps
            return before is not after

    def _open(self, name: str) -> Any:
        return self._transport.open(self._folder.place_of(name), name, self.location)

    def _version(self, names: Sequence[str], clients: Mapping[str, Any], before: Version | None) -> Version:
        """Return the newest version of these shards, without what is removed."""
        removed = self._removals.read()
        abouts = self._abouts(names, clients, removed.mark)
        members = [
            Member(name, clients[name], about.mark, about.sets) for name, about in zip(names, abouts, strict=True)
        ]
        self._check_alike(names, abouts)
        seen = None if before is None else [(each.name, each.mark._replace(removed=0)) for each in before.members]
        same = seen == [(each.name, each.mark._replace(removed=0)) for each in members]
        if self._check_ids and not same:
            check_unique(self._folder, self._transport, members)
        if before is not None and members == before.members:
            return before
        if before is not None and same:
            spec, described = before.spec, before.described
        else:
            spec, described = IndexSpec.unpack(abouts[0].spec, self.location).run_by(self._n_jobs), {}
        return Version(
            self.location, self._transport, members, spec, _settings(abouts),
            number=1 if before is None else before.number + 1,
            next_id=max(each.next_id for each in abouts),
            calibrated=sorted({pair for each in abouts for pair in each.calibrated}),
            capabilities=_capabilities(abouts),
            removed=sum(len(set(removed.ids.get(name, ()))) for name in names),
            partial=self._partial, wait=self._wait, described=described,
        )  # fmt: skip

    def _abouts(self, names: Sequence[str], clients: Mapping[str, Any], removed: int) -> list[About]:
        shared = {"removed": removed}
        answers = self._transport.ask([Call(clients[name], None, "about", shared, {}) for name in names], True)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, Lost):
                problem, remedy = f"the shard {name} cannot be reached: {answer.why}", "try again, or wait longer"
                raise ServerLost(problem, remedy, location=self.location)
        return answers

    def _check_alike(self, names: Sequence[str], abouts: Sequence[About]) -> None:
        """Refuse shards whose distances could not be compared."""
        first = abouts[0]
        for name, about in zip(names, abouts, strict=True):
            if about.fingerprint != first.fingerprint:
                raise self._unlike(names[0], name, *_difference(first, about, self.location))
        weighted = {about.settings["weighted"]: name for name, about in zip(names, abouts, strict=True) if about.sets}
        if len(weighted) > 1:
            one, other = weighted[True], weighted[False]
            raise self._unlike(one, other, "its sets have weights, and those of the other have none")

    def _unlike(self, one: str, other: str, *what: str) -> FormatError:
        problem = f"{self.location}: the shards {one} and {other} cannot be searched together: {'; '.join(what)}"
        remedy = "build all shards with one fitted embedding, or move one of them elsewhere"
        return FormatError(problem, remedy, location=self.location)

    # Changes

    @contextmanager
    def write(self) -> Iterator[ShardedWrite]:
        self._check_open()
        with self._lock, self.view() as view:
            write = ShardedWrite(view, self._refuse)
            yield write
            if len(write.keys):
                self._remove(np.unique(write.keys), view)
            write.committed = True

    def _remove(self, keys: Int64, view: ShardedView) -> None:
        """Mark sets as removed, and show that: no shard has to be reached for it, since questions name the mark."""
        names = np.array(view.ids(keys), object)
        current = self._check_open()
        commits = {each.name: each.mark.commit for each in current.members}
        self._removals.append({name: names[own].tolist() for name, own in view.by_shard(keys)}, commits)
        removed = self._removals.read()
        before = self._removals.read(upto=current.members[0].mark.removed).ids
        members = []
        for each in current.members:
            gone = set(removed.ids.get(each.name, ())) - set(before.get(each.name, ()))
            members.append(each._replace(mark=each.mark._replace(removed=removed.mark), sets=each.sets - len(gone)))
        n_removed = sum(len(set(removed.ids.get(each.name, ()))) for each in members)
        self._current = current._replace(members=members, number=current.number + 1, removed=n_removed)

    def _refuse(self) -> NoReturn:
        problem = f"{self.location} is a collection in shards, which are written once"
        remedy = "add sets as a new shard, and call refresh(); sets can be removed"
        raise ReadOnlyIndex(problem, remedy, location=self.location)

    def train(self, eager: bool = False, again: Iterable[tuple[int, float]] = ()) -> bool:
        self._refuse()

    def calibrate(self, space: str, k: int, recall: float, queries: Vectors | None) -> Calibration | None:
        self._refuse()

    def compact(self, spec: IndexSpec | None = None) -> None:
        self._refuse()

    def destroy(self) -> None:
        self._refuse()

    def verify(self) -> Iterator[tuple[str, str, list[str]]]:
        members = self._check_open().members
        for member in members:
            (told,) = self._transport.ask([Call(member.client, member.mark, "verify", {}, {})], True)
            if isinstance(told, Lost):
                yield member.name, "not looked at", [f"{member.name} cannot be reached: {told.why}"]
                continue
            for name, what, problems in told:
                yield f"{member.name}: {name}", what, [f"{member.name}: {each}" for each in problems]

    def close(self) -> None:
        with self._lock:
            if self.closed or self._current is None:
                return
            self.closed = True
            self._transport.close([each.client for each in self._current.members])
            self._current = None


class ShardedWrite:
    """A `Write` that removes sets, and refuses everything else."""

    committed = False

    def __init__(self, view: ShardedView, refuse: Any) -> None:
        self.view, self._refuse, self.keys = view, refuse, np.empty(0, np.int64)

    def delete(self, keys: Int64) -> None:
        self.keys = np.append(self.keys, keys)

    def free_ids(self, n: int) -> list[str]:
        return self._refuse()  # type: ignore[no-any-return]

    def announce(self, ids: Sequence[str]) -> None:
        self._refuse()

    def upsert(self, entries: Entries, embedded: Embedded) -> None:
        self._refuse()

    def set_metadata(self, keys: Int64, metadata: Any) -> None:
        self._refuse()

    def set_settings(self, **settings: Any) -> None:
        self._refuse()


def _settings(abouts: Sequence[About]) -> dict[str, Any]:
    """Return the settings of all shards: what was measured of one says nothing about parts of the others."""
    weighted = {each.settings["weighted"] for each in abouts} - {None}
    recalls = [each.settings["recall"] for each in abouts if each.settings["recall"] is not None]
    makers = {name for each in abouts if each.sets for name in each.settings["made_on"] or (CPU,)}
    return {
        "weighted": any(weighted) if weighted else None,
        "recall": max(recalls, default=None),
        "part_recalls": None,
        "made_on": None if makers <= {CPU} else tuple(sorted(makers)),
    }


def _capabilities(abouts: Sequence[About]) -> Capabilities:
    given = [each.capabilities for each in abouts]
    return Capabilities(
        all(each.exact_nearest for each in given),
        all(each.exact_range for each in given),
        tuple(metric for metric in given[0].metrics if all(metric in each.metrics for each in given)),
    )


def _difference(one: About, other: About, location: str) -> list[str]:
    """Say in what two specifications differ."""
    told = [IndexSpec.unpack(each.spec, location).describe() for each in (one, other)]
    names = [name for name in told[0] if told[0][name] != told[1][name]]
    different = [f"{name} is {told[0][name]}, and {told[1][name]}" for name in names]
    learnt = f"what they learnt from data differs (fingerprints {one.fingerprint} and {other.fingerprint})"
    return different[:3] or [learnt]
