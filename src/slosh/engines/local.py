"""An index in a folder, or in memory: made, opened and changed here, whatever is kept of it.

In the folder:

    index.db     the database (`database.py`); the index is what is in it, and nothing else
    cache/       arrays that can be made again from it (`columns.py`): vectors, prepared points
    lock         held by the one process that may change the index (`locks.py`)

Every change is one transaction; what is held in memory (`held.py`) takes it over when it is on disk.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .. import where
from ..data.sets import Sets
from ..index.hits import parsed
from ..index.records import UnknownId
from ..search import LadderSearch, files
from ..search.base import uninterrupted
from . import lines as db
from .database import Database, plain_errors, sync_folder
from .held import CHUNK, Held, Int64, weighted_as
from .locks import WriterLock
from .spec import Recipe


class Local(Held):
    """An index on this machine. `create` and `open` make one."""

    @classmethod
    def create(cls, folder: Path | None, recipe: Recipe, n_jobs: int | None) -> Local:
        about = {"recipe": recipe.pack(), "uid": uuid.uuid4().hex, "recall": None}
        if folder is None:
            return cls(None, Database.create(None, about), None, n_jobs)
        if folder.exists() and (not folder.is_dir() or not all(map(_left_over, folder.iterdir()))):
            raise FileExistsError(f"{folder} exists: open it with slosh.open, or give another name")
        if not folder.parent.is_dir():
            raise FileNotFoundError(f"{folder.parent} is no folder: make it first")
        folder.mkdir(exist_ok=True)
        lock = WriterLock(folder / "lock", folder)
        try:
            if (folder / "index.db").exists():  # made by another process, in between
                raise FileExistsError(f"{folder} exists: open it with slosh.open, or give another name")
            made = Database.create(folder / "index.db", about)
            sync_folder(folder.parent)
            return cls(folder, made, lock, n_jobs)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: Path, read_only: bool, n_jobs: int | None) -> Local:
        if not folder.exists():
            raise FileNotFoundError(f"{folder} is not there: make an index with slosh.SetIndex.create, or slosh build")
        if not folder.is_dir() or not (folder / "index.db").exists():
            raise ValueError(f"{folder} is no index of slosh: {'a file' if folder.is_file() else 'it has no index.db'}")
        lock = None if read_only else WriterLock(folder / "lock", folder)
        try:
            return cls(folder, Database(folder / "index.db", read_only), lock, n_jobs)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def close(self) -> None:
        """Stores what was learnt since, and lets go of everything."""
        with self._changing:
            if self.database._closed:
                return
            if self.database._pid != os.getpid():  # of the process that this one was forked from: it is left to that
                return
            self._check_outside()
            with self._lock.alone():
                try:
                    if not self.read_only and self.folder is not None:
                        with suppress(OSError, ValueError):  # no room, or damaged: it is learnt again
                            self._keep_learnt()
                finally:
                    self.database.close()
                    if self._writer is not None:
                        self._writer.release()
                    self._sets = None  # with the files that are mapped
                    for name in ("_columns", "_rows"):
                        vars(self).pop(name, None)

    # Changes

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One thread at a time, and only in the process that may."""
        with self._changing:
            self._check_open()
            if self.read_only:
                raise ValueError(
                    f"{self.folder} is open for reading only: open it with slosh.open({str(self.folder)!r})"
                )
            self._check_outside()
            self._in_step()
            yield

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """The same, with SQLite's errors in plain words; not around what users let us call."""
        with self.changing(), plain_errors(self.database.path):
            yield

    def add(self, sets: Sets, ids: Sequence[str] | None, metadata: Sequence[Any], replace: bool) -> list[str]:
        """Adds checked sets; one whose id is there is an error, or replaced. Returns the ids. All of them or none."""
        with self._storing():
            n, chosen = len(sets), None if ids is None else list(ids)
            first, bodies, number, weighted = db.about(
                self.database._main, "next_row", "next_body", "change", "weighted"
            )
            if chosen is None:
                if replace:
                    raise ValueError("update=True replaces sets by their ids: give ids")
                chosen = db.free_ids(self.database._main, first, n)
            texts, fields = _fields(metadata, chosen, first)
            there = db.rows_of(self.database._main, chosen)
            if there and not replace:
                name = next(name for name in chosen if name in there)
                raise ValueError(
                    f"id {name!r} exists, nothing was added: give another id, or update=True to replace it"
                )
            if not n:
                return chosen
            undecided = weighted is None
            if weighted is None:
                weighted = sets.weights is not None
            if sets.weights is not None and not weighted:
                raise ValueError(
                    "these sets have weights, and those of the index have none: make the index with weighted=True, or "
                    "leave the weights out"
                )
            if self._sets is None or not weighted_as(self._sets, weighted):
                with self._lock.alone():
                    self._start(bool(weighted), np.empty(0, np.int64), None)
            assert self._sets is not None
            full = sets
            if weighted and sets.weights is None:
                full = Sets.from_checked(sets.points, sets.offsets, np.ones(len(sets.points), np.float32), sets.origin)
            prepared = self.recipe.prepared(full)
            rows = np.arange(first, first + n)
            old = np.array(sorted(there.values()), np.int64)
            embedded = self._sets._embed(prepared) if n * self.recipe.embedding.vector_length <= CHUNK else None
            positions, highest = self._sets._rows.n_positions, self._sets._rows.highest
            with self._lock.alone(), uninterrupted() as waiting:
                try:
                    with self.database.writing() as c:
                        if len(old):
                            db.delete(c, old, self._old_fields(c, old), number + 1)
                        db.insert(c, rows, np.arange(bodies, bodies + n), chosen, texts, fields, sets)
                        values = {"next_row": first + n, "next_body": bodies + n, "weighted": int(weighted)}
                        db.number(c, number + 1, self._session, **values)
                        self._put(prepared, rows, embedded, waiting)
                except BaseException:
                    self._sets._cut_back(positions, highest)
                    self._rows.cut(positions)
                    if undecided:  # whether sets have weights
                        self._sets = None
                    raise
                with self._taken_in():
                    if len(old):
                        self._sets.remove(old)
                    self._shows(number + 1)
                with suppress(OSError):  # it is stored; the caches are brought up to date when there is room
                    self._columns.stamp(self._sets._rows.n_positions, (self._session, number + 1))
            return chosen

    @contextmanager
    def _taken_in(self) -> Iterator[None]:
        """What is on disk is taken over; if that fails, all is read again before the next use."""
        try:
            yield
        except BaseException:
            self._change = -1
            raise

    def set_metadata(self, ids: Sequence[str], metadata: Sequence[Any]) -> None:
        """Other metadata for sets that are there."""
        with self._storing():
            (number,) = db.about(self.database._main, "change")
            there = self._rows_of_all(self.database._main, ids)
            rows = np.array([there[name] for name in ids], np.int64)
            texts, fields = _fields(metadata, ids, 0)
            lines = [(key, value, int(rows[i])) for key, value, i in fields]
            with self._lock.alone(), uninterrupted():
                with self.database.writing() as c:
                    gone = self._old_fields(c, rows)
                    c.executemany("DELETE FROM fields WHERE key = ? AND value = ? AND row = ?", gone)
                    c.executemany("UPDATE sets SET metadata = ? WHERE row = ?", zip(texts, rows.tolist(), strict=True))
                    c.executemany("INSERT OR IGNORE INTO fields VALUES (?, ?, ?)", lines)
                    db.number(c, number + 1, self._session)
                self._shows(number + 1)

    def remove(self, ids: Sequence[str]) -> None:
        with self._storing():
            if not ids:
                return
            (number,) = db.about(self.database._main, "change")
            rows = np.array(sorted(self._rows_of_all(self.database._main, ids).values()), np.int64)
            assert self._sets is not None
            with self._lock.alone(), uninterrupted():
                with self.database.writing() as c:
                    db.delete(c, rows, self._old_fields(c, rows), number + 1)
                    db.number(c, number + 1, self._session)
                with self._taken_in():
                    self._sets.remove(rows)
                    self._shows(number + 1)

    def _rows_of_all(self, c: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
        """The rows of ids that must be there."""
        there = db.rows_of(c, ids)
        if len(there) < len(ids):
            missing = next((name for name in ids if name not in there), None)
            if missing is None:
                twice = next(name for i, name in enumerate(ids) if name in ids[:i])
                raise ValueError(f"id {twice!r} is given twice; nothing was changed")
            raise UnknownId(f"there is no set with the id {missing!r}; nothing was changed")
        return there

    def _old_fields(self, c: sqlite3.Connection, rows: Int64) -> list[tuple[str, Any, int]]:
        """The lines of `fields` that belong to rows."""
        described = db.described(c, rows.tolist())
        return [
            (key, value, row)
            for row, (name, text) in described.items()
            for key, value in where.fields_of(parsed(text), f"metadata of {name!r}")
        ]

    def compact(self) -> None:
        """As a fresh build of what is there, in the order of the ids: no holes, learnt anew, space given back."""
        with self._storing():
            with self._lock.alone(), uninterrupted():
                with self.database.writing() as c:
                    number, generation = db.about(c, "change", "generation")
                    db.renumber(c)
                    c.execute("DELETE FROM learnt")
                    db.number(c, number + 1, self._session, generation=generation + 1, learnt=0)
                self._saved, before = b"", (self.embedded, self.rebuilt)
                self._load(self.database._main)
                self.embedded, self.rebuilt = before
                self._ready()
                if self.folder is None:
                    self.database.vacuum()
            if self.folder is not None:
                with suppress(OSError):  # no room to give space back: it is compacted all the same
                    self.database.vacuum()

    # What is learnt

    def ready(self) -> None:
        """Learns what is due after a change, and stores it."""
        with self._storing(), self._lock.alone():
            self._ready()

    def _ready(self) -> None:
        if self._sets is not None and len(self._sets):
            self._sets.vector_search._ready()
            with suppress(OSError):  # no room: it is learnt again
                self._keep_learnt()

    def _keep_learnt(self) -> None:
        """Stores what the search has learnt, if it is not stored yet."""
        if self._sets is None:
            return
        header, arrays = self._sets.vector_search._learnt()
        if not header and not arrays:
            return
        state = files.pack({"learnt": header}, arrays)
        if state == self._saved:
            self._keep_derived()
            return
        with uninterrupted():
            with self.database.writing() as c:
                number, version = db.about(c, "change", "learnt")
                c.execute("DELETE FROM learnt")
                c.execute("INSERT INTO learnt VALUES (?, ?)", (version + 1, state))
                db.number(c, number + 1, self._session, learnt=version + 1)
            self._saved, self._learnt, self._change = state, version + 1, number + 1
        self._keep_derived()

    def calibrate(self, recall: float, k: int, queries: Any) -> Any:
        """Has the search measure what it takes, and stores that; None where there is nothing to measure."""
        assert self._sets is not None
        search: Any = self._sets.vector_search
        if not hasattr(search, "calibrate"):
            return None
        with self._lock.alone():
            asked = {} if queries is None else {"queries": queries}
            if asked and not isinstance(search, LadderSearch):
                raise ValueError(f"{type(search).__name__} calibrates on stored sets: leave queries out")
            known = search.calibrate(k + isinstance(search, LadderSearch), recall, **asked)  # for queries by id, too
            if known.k > k and known.smallest > k:
                known = search.calibrate(k, recall, **asked)
            self._keep_learnt()
            return known

    def set_recall(self, recall: float) -> None:
        """The default of all searches from now on."""
        with self._storing(), self._lock.alone(), uninterrupted():
            with self.database.writing() as c:
                (number,) = db.about(c, "change")
                db.number(c, number + 1, self._session, recall=recall)
            self.recall, self._change = recall, number + 1

    def set_weighted(self, weighted: bool) -> None:
        """Decides before the first set is there."""
        with self._storing(), self._lock.alone(), uninterrupted():
            with self.database.writing() as c:
                (number,) = db.about(c, "change")
                db.number(c, number + 1, self._session, weighted=int(weighted))
            self._start(weighted, np.empty(0, np.int64), None)
            self._change = number + 1


def _left_over(path: Path) -> bool:
    """Of a `create` that was killed, before there was an index."""
    return path.name == "lock" or (path.name.startswith("index.db.") and ".tmp" in path.name)


def _fields(metadata: Sequence[Any], ids: Sequence[str], first: int) -> tuple[list[str], list[tuple[str, Any, int]]]:
    """Metadata as JSON, and as lines of the table `fields`."""
    texts: list[str] = []
    lines: list[tuple[str, Any, int]] = []
    for i, each in enumerate(metadata):
        if each is not None and each != {}:
            lines += [
                (key, value, first + i) for key, value in where.fields_of(each, f"metadata of set {i} ({ids[i]!r})")
            ]
            texts.append(where.as_json(each))
        else:
            texts.append("{}")
    return texts, lines
