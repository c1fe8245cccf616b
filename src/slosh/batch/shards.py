"""A folder of shards, each an ordinary index, for a collection that no one machine holds; `slosh.ray.serve` reads it.

    folder/shards.json            what it is: {"format": "slosh-shards", "version": 1, ...}
    folder/shards/NAME.slosh      the shards; one is complete as soon as it has this name
    folder/shards/.NAME.*.tmp     a shard that is being written
    folder/_slosh.jsonl           the ledger of the builds
    folder/_slosh.spec            the specification that all shards share, learnt once

Each task writes one shard, from pieces of the source that lie together. No id may be in two shards: the process that
runs the build compares the ids of each shard with those of all others, by a hash of 8 bytes, before the shard gets its
name.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.atomic import replacing, sync_folder
from ..engines.sharded.removals import Removals
from ..engines.spec import IndexSpec
from ..errors import DuplicateId, system_error
from ..index import SetIndex
from ..index import open as open_index
from .jobs import Meter, Progress, Report, Runner, in_turn
from .learning import settled_spec, spec_settings
from .ledger import LEDGER, SPEC, Ledger, finished_entries, job_folder, open_ledger
from .sources import (
    Piece,
    count_rows,
    group_pieces,
    places_of,
    plain_options,
    read_batches,
    source_changed,
)

MANIFEST, SHARDS, SUFFIX = "shards.json", "shards", ".slosh"
SHARD_BYTES = 1 << 40
"""Of the source: what bounds a shard is the number of its sets."""
Hashes = NDArray[np.uint64]


class Written(NamedTuple):
    """A shard that a task has written: the name of its draft, the number of its sets, and the hashes of their ids."""

    draft: str
    sets: int
    hashes: Hashes


def build_shards(
    target: Any,
    pieces: list[Piece],
    options: Mapping[str, Any],
    spec: Any,
    *,
    shard_sets: int,
    n_jobs: int | None,
    progress: Progress | None,
    run: Runner | None,
) -> Report:
    """Build shards of about `shard_sets` sets each, of the pieces that are in none yet."""
    started, folder = time.perf_counter(), job_folder(target)
    settings = {"spec": spec_settings(spec), "reading": plain_options(options)}
    with open_ledger(folder / LEDGER, "shards", settings) as ledger:
        shards = folder / SHARDS
        shards.mkdir(exist_ok=True)
        _finish_renames(ledger, shards)
        left, skipped = _unfinished(ledger, shards, pieces)
        chosen = settled_spec(folder, spec, pieces, options)
        _write_manifest(folder, chosen)
        tasks = group_pieces(left, SHARD_BYTES, shard_sets)
        work = partial(write_shard, folder=str(shards), spec=chosen, options=options, n_jobs=n_jobs)
        known = _Known(shards, ledger, options, {piece.key: piece for piece in pieces}) if tasks else None
        with Meter("build", sum(map(count_rows, tasks)), progress) as meter:
            for task, written in (run or in_turn)(work, tasks):
                assert known is not None
                known.add(shard_name(task), written, task)
                line = {"done": shard_name(task), "draft": written.draft, "sets": written.sets}
                ledger.append({**line, "pieces": [piece.line for piece in task]})
                _rename(shards, written.draft, shard_name(task))
                meter.add(written.sets, count_rows(task))
        _remove_drafts(shards)
    return Report(meter.sets, skipped, len(tasks), time.perf_counter() - started)


def shard_name(task: list[Piece]) -> str:
    """Return the name of the shard that a task writes; another one if a file has changed, so that readers notice."""
    first = re.sub(r"[^\w.-]+", "_", Path(task[0].name).stem)[:60].lstrip("._") or "shard"
    return f"{first}-{sha256(repr([piece.line for piece in task]).encode()).hexdigest()[:12]}"


def write_shard(
    task: list[Piece], *, folder: str, spec: IndexSpec, options: Mapping[str, Any], n_jobs: int | None
) -> Written:
    """Write an index of some pieces under the name of a draft."""
    draft = f".{shard_name(task)}.{secrets.token_hex(6)}.tmp"
    place = Path(folder) / draft
    try:
        with create_index(place, spec, n_jobs) as index:
            try:
                for piece in task:
                    index.add(read_batches(piece, options, spec.dim, spec.origin))
            except DuplicateId as error:
                raise _twice(error.id, places_of(error.id, task, options)) from None
            ids = index.ids
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return Written(draft, len(ids), id_hashes(ids))


def create_index(place: Any, spec: IndexSpec, n_jobs: int | None) -> SetIndex:
    """Create an index of a specification."""
    parts: dict[str, Any] = {
        "embedding": spec.embedding,
        "search": spec.search,
        "preprocess": spec.preprocess,
        "origin": spec.origin,
    }
    return SetIndex.create(place, spec.dim, **parts, parts=spec.parts or False, n_jobs=n_jobs)


def id_hashes(ids: list[str]) -> Hashes:
    """Return a hash of 8 bytes for each id, in order."""
    joined = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in ids)
    return np.sort(np.frombuffer(joined, np.uint64))


def _twice(name: str, places: list[str]) -> DuplicateId:
    where = " and in ".join(places[:2])
    return DuplicateId(f"the id {name!r:.100} occurs in {where}", "rename one, or give another id_column", id=name)


class _Known:
    """The ids of all shards that are complete: their hashes, sorted."""

    def __init__(self, shards: Path, ledger: Ledger, options: Mapping[str, Any], pieces: Mapping[Any, Piece]) -> None:
        self._shards, self._options = shards, options
        self._pieces: dict[str, list[Piece]] = {}
        self._removed = Removals(shards.parent).read().ids
        found = [np.empty(0, np.uint64)]
        for name, entry in finished_entries(ledger).items():
            found.append(id_hashes(self._left(name)))
            keys = [tuple(each[:3]) for each in entry["pieces"]]
            self._pieces[name] = [pieces[key] for key in keys if key in pieces]
        self._hashes = np.sort(np.concatenate(found))

    def _ids(self, folder: str) -> list[str]:
        with open_index(self._shards / folder, read_only=True, n_jobs=1) as index:
            return index.ids

    def _left(self, shard: str) -> list[str]:
        """Return the ids of a shard but those that are marked as removed: a later shard may bring them again."""
        folder = f"{shard}{SUFFIX}"
        gone = set(self._removed.get(folder, ()))
        return [name for name in self._ids(folder) if name not in gone]

    def add(self, name: str, written: Written, task: list[Piece]) -> None:
        """Take the ids of another shard; DuplicateId if one of them is in a shard that is complete."""
        place = np.minimum(np.searchsorted(self._hashes, written.hashes), max(0, len(self._hashes) - 1))
        again = written.hashes[self._hashes[place] == written.hashes] if len(self._hashes) else written.hashes[:0]
        if len(again):
            self._refuse(set(again.tolist()), written, task)
        self._pieces[name] = task
        self._hashes = np.sort(np.concatenate([self._hashes, written.hashes]))

    def _refuse(self, again: set[int], written: Written, task: list[Piece]) -> None:
        """Raise DuplicateId, unless it is only the hashes that are the same."""
        suspects = [name for name in self._ids(written.draft) if int(id_hashes([name])[0]) in again]
        for shard, pieces in self._pieces.items():
            both = sorted({*suspects} & {*self._left(shard)})
            if both:
                _remove(self._shards / written.draft)
                there = places_of(both[0], pieces, self._options)[:1] or [f"shard {shard}"]
                raise _twice(both[0], there + places_of(both[0], task, self._options))


def _unfinished(ledger: Ledger, shards: Path, pieces: list[Piece]) -> tuple[list[Piece], int]:
    """Return the pieces that are in no shard, and how many sets are. A file that has changed is refused."""
    files, here = {piece.path: piece.stamp for piece in pieces}, {piece.key for piece in pieces}
    done: set[Any] = set()
    skipped = 0
    for name, entry in finished_entries(ledger).items():
        if not (shards / f"{name}{SUFFIX}").is_dir():  # removed, so that it is built again
            ledger.append({"dropped": name})
            continue
        for path, _, _, *stamp in entry["pieces"]:
            if files.get(path, stamp) != stamp:
                remedy = f"remove {shards / f'{name}{SUFFIX}'}, so that it is built again, or build another folder"
                raise source_changed(path, f"has changed since the shard {name} was built of it", remedy)
        keys = {tuple(each[:3]) for each in entry["pieces"]}
        done |= keys
        skipped += entry["sets"] if keys & here else 0
    return [piece for piece in pieces if piece.key not in done], skipped


def _finish_renames(ledger: Ledger, shards: Path) -> None:
    """Give their names to shards that were complete when the process was killed, and remove all other drafts."""
    for name, entry in finished_entries(ledger).items():
        if not (shards / f"{name}{SUFFIX}").exists() and (shards / entry["draft"]).is_dir():
            _rename(shards, entry["draft"], name)
    _remove_drafts(shards)


def _rename(shards: Path, draft: str, name: str) -> None:
    try:
        os.rename(shards / draft, shards / f"{name}{SUFFIX}")
    except OSError as error:
        raise system_error(error, str(shards / f"{name}{SUFFIX}")) from None
    sync_folder(shards)


def _remove_drafts(shards: Path) -> None:
    for name in os.listdir(shards):
        if name.startswith(".") and name.endswith(".tmp"):
            _remove(shards / name)


def _remove(place: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(place)


def _write_manifest(folder: Path, spec: IndexSpec) -> None:
    path = folder / MANIFEST
    about = {"format": "slosh-shards", "version": 1, "spec": SPEC, "about": spec.describe()}
    if not path.exists():
        with replacing(path) as stream:
            stream.write(json.dumps(about, indent=1).encode())
