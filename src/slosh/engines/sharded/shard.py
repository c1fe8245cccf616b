"""One shard, opened for reading: it answers the questions of a view of the whole collection.

A question names the version of the shard and the mark of the removals (`removals.py`) that the view is of. So the
answer is the same whoever gives it: a replica, or a process that has just taken the place of one that died.
"""

from __future__ import annotations

import errno
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...data import tensors
from ...data.sets import Sets
from ...errors import FormatError, StorageError
from ..base import Candidates, Capabilities, Int64, View
from ..registry import open_engine
from ..snapshot import Filters, LocalView, Snapshot
from ..spec import KIND, IndexSpec
from .removals import Removals

KEPT_MARKS = 4
"""Marks whose masks stay in memory: views of them may still be open."""
PREFETCHED_HITS = 4096
"""Ids and metadata of so many candidates come with an answer, at most; the caller asks for those of more."""
PREFETCHED_NUMBERS = 1 << 16
"""Coordinates of sets that come with their sizes, at most."""


class Mark(NamedTuple):
    """What a view sees of a shard: a version of it, without what was removed up to a mark."""

    version: int
    removed: int
    commit: str = ""
    """The newest commit: another shard in its place may have the same version."""


class About(NamedTuple):
    """What a shard says of itself, at a mark."""

    mark: Mark
    sets: int
    spec: bytes
    fingerprint: str
    """A text that is equal for equal specifications, whatever the number of threads."""
    settings: Mapping[str, Any]
    next_id: int
    calibrated: Sequence[tuple[int, float]]
    capabilities: Capabilities


class Near(NamedTuple):
    """Candidates, and ids and metadata of them where they are few, so that nobody has to ask again."""

    found: Candidates
    ids: list[str] | None
    metadata: list[str] | None


class Sized(NamedTuple):
    """The sizes of prepared sets, and the sets themselves where they are small."""

    sizes: Int64
    sets: Sets | None


class _Hidden(NamedTuple):
    """What is searched of a shard without the sets that are marked as removed."""

    snapshot: Snapshot
    filters: Filters


class Shard:
    """An open shard. Threads may share it."""

    def __init__(self, place: str, name: str, folder: str, n_jobs: int | None) -> None:
        self.name, self._place = name, place
        self._removals = Removals(Path(folder))
        self._engine = open_engine(place, True, n_jobs)
        self._lock = threading.Lock()
        self._hidden: dict[Mark, _Hidden] = {}
        self._commits: dict[int, list[str]] = {}
        self._spec: tuple[IndexSpec, bytes, str] | None = None
        self._hashes: tuple[Mark, NDArray[np.uint64]] | None = None

    def close(self) -> None:
        self._engine.close()

    def about(self, removed: int) -> About:
        """Return what there is to know of the newest version at a mark of the removals."""
        with self._engine.view() as newest:
            mark = Mark(newest.version, removed, self._newest_commit(newest))
        with self._view(mark) as view:
            settings, packed = dict(view.settings), self._packed(view)
            return About(mark, len(view), *packed, settings, view.next_id, list(view.calibrated), view.capabilities)

    def _packed(self, view: View) -> tuple[bytes, str]:
        """Return the specification, and its fingerprint."""
        if self._spec is None or view.spec is not self._spec[0]:
            packed = IndexSpec.unpack(view.spec.pack(), self._place).run_by(1).pack()
            self._spec = view.spec, packed, _fingerprint(packed)
        return self._spec[1:]

    @contextmanager
    def _view(self, mark: Mark) -> Iterator[View]:
        with self._engine.view() as view:
            if view.version != mark.version or mark.commit != self._newest_commit(view):
                raise StorageError(
                    f"the shard {self._place} was changed while it is served",
                    "call refresh(); add sets as a new shard rather than to one that is there",
                    errno.ESTALE,
                    location=self._place,
                )
            assert isinstance(view, LocalView)
            if mark.removed:
                hidden = self._without_removed(view, mark)
                view.snapshot, view.filters = hidden.snapshot, hidden.filters
            yield view

    def _without_removed(self, view: Any, mark: Mark) -> _Hidden:
        with self._lock:
            known = self._hidden.get(mark)
            if known is None:
                before = [each for each in self._hidden if each.version == mark.version and each < mark]
                first, snapshot = 0, view.snapshot
                if before:
                    first, snapshot = max(before).removed, self._hidden[max(before)].snapshot
                removed = self._removals.read(first, mark.removed)
                self._check_marks(view, removed.commits.get(self.name, set()))
                ids = removed.ids.get(self.name, [])
                rows = view.keys(ids)
                rows = np.unique(rows[rows >= 0])
                known = _Hidden(snapshot.remove(rows[snapshot.alive[rows]]), {})
                kept = [*self._hidden.items(), (mark, known)]
                self._hidden = dict(kept[-KEPT_MARKS:])
            return known

    def _commits_of(self, view: Any) -> list[str]:
        """Return the last commits of a version, the newest first."""
        known = self._commits.get(view.version)
        if known is None:
            known = view.commits
            self._commits = {view.version: known}
        return known

    def _newest_commit(self, view: Any) -> str:
        return next(iter(self._commits_of(view)), "")

    def _check_marks(self, view: Any, commits: Set[str]) -> None:
        """Refuse marks of removed sets that were made of another shard of this name: they would hide sets of this."""
        if not commits <= set(self._commits_of(view)):
            problem = f"{self._place} is not the shard that sets were removed from: it was replaced or compacted since"
            remedy = (
                "give a shard that takes the place of another a new name; or, while nobody serves the folder, delete "
                f"the lines of {self._removals.path} that name {self.name}"
            )
            raise FormatError(problem, remedy, location=self._place)

    def ask(self, mark: Mark | None, question: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """Answer a question of `View` that `ASKED` names, or one of those below; what is given by name comes in two
        parts, of which all shards get the first. Without a mark it is asked about itself.
        """
        if mark is None:
            return self.about(**shared)
        with self._view(mark) as view:
            if question == "id_hashes":
                return self._id_hashes(view, mark, **shared, **own)
            answer = getattr(self, f"answer_{question}", None)
            if answer is not None:
                return answer(view, **shared, **own)
            if question not in ASKED:
                raise ValueError(f"{question!r:.60} is no question to a shard")
            return getattr(view, question)(**shared, **own)

    # Questions

    def answer_keys(self, view: Any, ids: Sequence[str]) -> Int64:
        keys: Int64 = view.keys(ids)
        there = np.flatnonzero(keys >= 0)
        keys[there[~view.snapshot.alive[keys[there]]]] = -1
        return keys

    def answer_nearest(self, view: View, **options: Any) -> Near:
        return _with_descriptions(view, view.nearest(**options))

    def answer_within(self, view: View, **options: Any) -> Near:
        return _with_descriptions(view, view.within(**options))

    def answer_describe(self, view: View, keys: Int64) -> tuple[list[str], list[str]]:
        described = view.describe(keys)
        return [each.id for each in described], [each.metadata for each in described]

    def answer_prepared_sizes(self, view: View, keys: Int64) -> Sized:
        sizes = view.prepared_sizes(keys)
        few = int(sizes.sum()) * view.spec.dim <= PREFETCHED_NUMBERS
        return Sized(sizes, view.prepared(keys) if few else None)

    def answer_info(self, view: View) -> dict[str, Any]:
        return {**view.info(), "sets": len(view)}

    def answer_verify(self, view: View) -> list[tuple[str, str, list[str]]]:
        return list(self._engine.verify())

    # Ids, to see that no two shards have one in common

    def _id_hashes(self, view: View, mark: Mark, part: int, n_parts: int) -> NDArray[np.uint64]:
        """Return hashes of 64 bits of the ids, of one of so many parts of them, in order."""
        known = self._hashes
        if known is None or known[0] != mark:
            known = self._hashes = mark, np.sort(_hashed(view.ids(view.select())))
        hashes = known[1]
        if part == n_parts - 1:
            self._hashes = None
        chosen: NDArray[np.uint64] = hashes[hashes % np.uint64(n_parts) == part]
        return chosen

    def answer_ids_of_hashes(self, view: View, hashes: NDArray[np.uint64]) -> list[str]:
        """Return the ids that have one of these hashes."""
        ids = view.ids(view.select())
        return [ids[i] for i in np.flatnonzero(np.isin(_hashed(ids), hashes)).tolist()]


ASKED = {"select", "ids", "sizes", "positions", "prepared", "features", "holds", "records"}


def _with_descriptions(view: View, found: Candidates) -> Near:
    if len(found.keys) > PREFETCHED_HITS:
        return Near(found, None, None)
    described = view.describe(found.keys)
    return Near(found, [each.id for each in described], [each.metadata for each in described])


def _fingerprint(spec: bytes) -> str:
    """Return a hash of what is packed, in whatever order that is."""
    header, arrays = tensors.unpack(spec, KIND, "a specification")
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _hashed(ids: Sequence[str]) -> NDArray[np.uint64]:
    digest = hashlib.blake2b
    joined = b"".join(digest(each.encode(), digest_size=8).digest() for each in ids)
    return np.frombuffer(joined, "<u8").astype(np.uint64)
