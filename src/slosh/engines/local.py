"""An index in a folder, or in memory: the database, the caches beside it, and what is held ready for searching.

In the folder:

    index.db     the database (`database.py`); the index is what is in it, and nothing else
    cache/       arrays that can be made again from it (`columns.py`): vectors, prepared points
    lock         held by the one process that may change the index (`locks.py`)

Every change is one transaction. What is held in memory carries the number of the change that it shows; whoever reads
looks at the number first, and takes in what others have committed since, all of a change or nothing of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from .. import kernel, where
from ..recipe import Recipe, fresh
from ..records import UnknownId
from ..search import LadderSearch, SetSearch, files
from ..search.base import Learnt, uninterrupted
from ..search.rows import Allowed, Rows
from ..search.store import Grown
from ..sets import Sets
from . import database as db
from .columns import Behind, Change, Columns, Stale
from .database import Database
from .locks import SharedLock, WriterLock

Int64 = NDArray[np.int64]

CHUNK = 1 << 24
"""Numbers of the vectors that are held while sets are added."""
TRIES = 30
"""How often a reader looks again whether it sees what the caches are made of."""
FILTERS = 32
"""Filters whose rows are remembered until the next change."""


class Local:
    """An index on this machine. `create` and `open` make one."""

    def __init__(self, folder: Path | None, database: Database, lock: WriterLock | None, n_jobs: int | None) -> None:
        self.folder, self.database, self._writer, self.n_jobs = folder, database, lock, n_jobs
        self.read_only = folder is not None and lock is None
        self._threads = kernel.threads(n_jobs)
        self._lock, self._changing, self._inside = SharedLock(), threading.RLock(), threading.local()
        self._filters: OrderedDict[where.Node, Allowed] = OrderedDict()
        self._sets: SetSearch | None = None
        self._columns: Columns
        self._rows: Grown
        self._change, self._generation, self._learnt, self._saved = -1, -1, 0, b""
        self.embedded = 0
        self.recall: float | None = None
        self.rebuilt: str | None = None
        self._session = uuid.uuid4().hex
        self._sessions: list[tuple[str, int]] = []
        self._seen, self._tries = 0, 0
        with self.database.reading() as c:
            content, self._uid = db.about(c, "recipe", "uid")
            self.recipe = Recipe.unpack(bytes(content), str(folder))
        while self._change < 0:
            with self.database.reading() as c, self._patient():
                self._load(c)

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
            return cls(folder, Database.create(folder / "index.db", about), lock, n_jobs)
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
            self._check_outside()
            with self._lock.alone():
                try:
                    if not self.read_only and self.folder is not None:
                        with suppress(OSError):
                            self._keep_learnt()
                finally:
                    self.database.close()
                    if self._writer is not None:
                        self._writer.release()
                    self._sets = None  # with the files that are mapped
                    for name in ("_columns", "_rows"):
                        vars(self).pop(name, None)

    # What is held ready

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """What is seen is older than the caches: it is looked at again, a few times."""
        try:
            yield
            self._tries = 0
        except Behind:
            self._tries += 1
            time.sleep(1e-3 * self._tries)

    def _check_change(self, made: Change) -> None:
        """Refuses caches of a change that is none of this database, as far as it is seen: one of a copy of it."""
        who, number = made
        names = [name for name, _ in self._sessions]
        ends = [first for _, first in self._sessions[1:]] + [self._seen + 1]
        if who in names and number < ends[names.index(who)]:
            return
        if self.read_only and number > self._seen and self._tries < TRIES:
            raise Behind
        raise Stale("the stamp is of another state of the index")

    def _see_sessions(self, c: sqlite3.Connection) -> None:
        """Who has written, from which change on, and the last change there is."""
        sessions, number = db.about(c, "sessions", "change")
        self._sessions = [("", 0), *((str(name), int(first)) for name, first in json.loads(sessions))]
        self._seen = int(number)

    def _load(self, c: sqlite3.Connection) -> None:
        """From the database and the caches, as they are."""
        self._change = -1  # nothing can be seen until it is done
        self._see_sessions(c)
        self._generation, learnt, weighted, number = db.about(c, "generation", "learnt", "weighted", "change")
        (self.recall,) = db.about(c, "recall")
        self._sets, self._filters = None, OrderedDict()
        if weighted is not None:
            self._start(bool(weighted), db.alive(c), self._read_learnt(c, learnt))
            self._catch_up(c)
        self._learnt, self._change = learnt, number

    def _start(self, weighted: bool, rows: Int64, learnt: Learnt | None) -> None:
        folder = None if self.folder is None else self.folder / "cache"
        made_for = {"index": self._uid, "generation": self._generation, "kernel": kernel.name()}
        self._columns = Columns(folder, made_for, self._check_change, not self.read_only, self._threads)
        try:
            self._attach(weighted, rows, learnt)
        except Stale as reason:
            self._columns.start_again(str(reason))
            self._attach(weighted, rows, learnt)
        self._columns.tidy()

    def _attach(self, weighted: bool, alive: Int64, learnt: Learnt | None) -> None:
        """Begins with the sets that are in the caches."""
        room = self._columns.room
        self._rows = room("row", (), np.int64)
        there = np.array(self._rows.array)
        if len(there) and (np.any(np.diff(there) <= 0) or there[0] < 0):
            raise Stale("rows are out of order")
        covered = alive[: np.searchsorted(alive, there[-1], side="right")] if len(there) else alive[:0]
        at = np.searchsorted(there, covered)
        if np.any(there[np.minimum(at, len(there) - 1)] != covered) if len(there) else False:
            raise Stale("rows are missing")
        known = Rows()
        known.add(there)
        dead = np.ones(len(there), np.bool_)
        dead[at] = False
        known.remove(np.flatnonzero(dead))
        sets = SetSearch(self.recipe.embedding, n_jobs=self.n_jobs)
        sets.vector_search = fresh(self.recipe.search)
        sets.vector_search.n_jobs = self.n_jobs
        try:
            sets._begin(weighted, known, room, learnt, self._columns.read_derived())
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            if learnt is None:
                raise
            self._attach(weighted, alive, None)  # learnt by other code: it is learnt anew
            return
        self._sets = sets

    def _catch_up(self, c: sqlite3.Connection) -> None:
        """Embeds the sets that the caches do not have."""
        assert self._sets is not None
        rows = db.alive(c, self._sets._rows.highest)
        if not len(rows):
            return
        if len(rows) == len(db.alive(c)) and self._columns.problem:
            self.rebuilt = self._columns.problem
        weighted = self._sets._points._weights is not None
        bar = tqdm(total=len(rows), unit="set", delay=2, disable=None, leave=False, desc="embed")
        with bar:
            for part, sets in db.stream_sets(c, rows, self.recipe.dim, weighted, self.recipe.origin):
                self._append(part, self.recipe.prepared(sets))
                bar.update(len(part))
        self.embedded += len(rows)
        who, number = db.about(c, "session", "change")
        self._columns.stamp(self._sets._rows.n_positions, (who, number))

    def _append(self, rows: Int64, prepared: Sets) -> None:
        assert self._sets is not None
        step = max(1, CHUNK // self.recipe.embedding._n_outputs())
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            self._sets._add(prepared[part], rows[part])
        self._rows.extend(rows)

    def _follow(self, c: sqlite3.Connection, number: int) -> None:
        """A reader's: takes in what the writer has committed since."""
        generation, learnt, weighted = db.about(c, "generation", "learnt", "weighted")
        self._see_sessions(c)
        sets = self._sets
        same = generation == self._generation and learnt == self._learnt and self._change >= 0
        if not same or sets is None or not weighted_as(sets, weighted):
            self._load(c)
            return
        before = sets._rows.n_positions
        try:
            more = self._columns.follow()
        except Stale:
            self._load(c)
            return
        since, self._change = self._change, -1  # nothing can be seen until it is done
        if more:
            there, mine = self._rows.array, sets._rows.row
            n = min(before, len(there))
            if len(there) < before or not np.array_equal(there[:n], mine[:n]):
                self._load(c)  # what was embedded here came in another order
                return
            if len(there) > before:
                sets._adopt(np.array(there[before:]))
        gone = db.removed_since(c, since)
        gone = gone[sets._rows._find(gone) >= 0]
        if len(gone):
            sets.remove(gone)
        self._catch_up(c)
        (self.recall,) = db.about(c, "recall")
        self._filters = OrderedDict()
        self._change = number

    @contextmanager
    def seen(self) -> Iterator[sqlite3.Connection]:
        """The database and what is in memory, in the same state, until the end."""
        if (within := getattr(self._inside, "connection", None)) is not None:  # a function of the user's asks, too
            yield within
            return
        self._check_open()
        if self.folder is None:
            self._in_step()
            with self._lock.shared(), self._noted(self.database._main) as c:
                self._check_open()
                yield c
            return
        while True:
            with self.database.reading() as c:
                number = db.change(c)
                if number > self._change:
                    with self._lock.alone(), self._patient():
                        self._check_open()
                        if number > self._change:
                            self._follow(c, number)
                with self._lock.shared():
                    self._check_open()
                    if number == self._change:
                        with self._noted(c):
                            yield c
                        return

    @contextmanager
    def _noted(self, c: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        """What this thread sees, for whatever it calls meanwhile."""
        self._inside.connection = c
        try:
            yield c
        finally:
            self._inside.connection = None

    def _check_outside(self) -> None:
        if getattr(self._inside, "connection", None) is not None:
            raise ValueError("the index is being searched by this thread: change it, or close it, after that")

    def _check_open(self) -> None:
        if self.database._closed:
            raise ValueError("the index is closed: open it again with slosh.open")
        if self.database._pid != os.getpid():
            raise ValueError("this process was forked from the one that opened the index: open it again, here")

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

    def _in_step(self) -> None:
        """After a change that was stored, and then could not be taken in: all is read again."""
        if self._change < 0:
            with self._lock.alone():
                if self._change < 0:
                    self._load(self.database._main)

    def add(self, sets: Sets, ids: Sequence[str] | None, metadata: Sequence[Any], replace: bool) -> list[str]:
        """Adds checked sets; one whose id is there is an error, or replaced. Returns the ids. All of them or none."""
        with self.changing():
            n, chosen = len(sets), None if ids is None else list(ids)
            first, bodies, number, weighted = db.about(
                self.database._main, "next_row", "next_body", "change", "weighted"
            )
            if chosen is None:
                chosen = [str(first + i) for i in range(n)]
            texts, fields = _fields(metadata, chosen, first)
            there = db.rows_of(self.database._main, chosen)
            if there and not replace:
                name = next(name for name in chosen if name in there)
                raise ValueError(
                    f"id {name!r} exists"
                    + (
                        ": ids that are counted meet yours; give ids"
                        if ids is None
                        else ", nothing was added: give another id, or update=True to replace it"
                    )
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
            if self._sets is None:
                with self._lock.alone():
                    self._start(bool(weighted), np.empty(0, np.int64), None)
            assert self._sets is not None
            full = sets
            if weighted and sets.weights is None:
                full = Sets._share(sets.points, sets.offsets, np.ones(len(sets.points), np.float32), sets.origin)
            prepared = self.recipe.prepared(full)
            rows = np.arange(first, first + n)
            old = np.array(sorted(there.values()), np.int64)
            embedded = self._sets._embed(prepared) if n * self.recipe.embedding._n_outputs() <= CHUNK else None
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
                if len(old):
                    self._sets.remove(old)
                self._change, self._filters = number + 1, OrderedDict()
                with suppress(OSError):  # it is stored; the caches are brought up to date when there is room
                    self._columns.stamp(self._sets._rows.n_positions, (self._session, number + 1))
            return chosen

    def _put(self, prepared: Sets, rows: Int64, embedded: Any, waiting: list[Any]) -> None:
        assert self._sets is not None
        if embedded is not None:
            self._sets._append(prepared, rows, *embedded)
            self._rows.extend(rows)
            return
        step = max(1, CHUNK // self.recipe.embedding._n_outputs())
        with tqdm(total=len(rows), unit="set", delay=2, disable=None, leave=False, desc="add") as bar:
            for start in range(0, len(rows), step):
                if waiting:
                    raise KeyboardInterrupt
                part = slice(start, start + step)
                self._append(rows[part], prepared[part])
                bar.update(len(rows[part]))

    def set_metadata(self, ids: Sequence[str], metadata: Sequence[Any]) -> None:
        """Other metadata for sets that are there."""
        with self.changing():
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
                self._change, self._filters = number + 1, OrderedDict()

    def remove(self, ids: Sequence[str]) -> None:
        with self.changing():
            if not ids:
                return
            (number,) = db.about(self.database._main, "change")
            rows = np.array(sorted(self._rows_of_all(self.database._main, ids).values()), np.int64)
            assert self._sets is not None
            with self._lock.alone(), uninterrupted():
                with self.database.writing() as c:
                    db.delete(c, rows, self._old_fields(c, rows), number + 1)
                    db.number(c, number + 1, self._session)
                self._sets.remove(rows)
                self._change, self._filters = number + 1, OrderedDict()

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
            for key, value in where.fields_of(json.loads(text), f"metadata of {name!r}")
        ]

    def compact(self) -> None:
        """As a fresh build of what is there, in the order of the ids: no holes, learnt anew, space given back."""
        with self.changing():
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
                self.database.vacuum()

    # What is learnt

    def ready(self) -> None:
        """Learns what is due after a change, and stores it."""
        with self.changing(), self._lock.alone():
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
        with self.database.writing() as c:
            number, version = db.about(c, "change", "learnt")
            c.execute("DELETE FROM learnt")
            c.execute("INSERT INTO learnt VALUES (?, ?)", (version + 1, state))
            db.number(c, number + 1, self._session, learnt=version + 1)
        self._saved, self._learnt, self._change = state, version + 1, number + 1
        self._keep_derived()

    def _keep_derived(self) -> None:
        """Caches what the search makes of the vectors, where that spares the next one who opens the index some work."""
        assert self._sets is not None
        n = self._sets._rows.n_positions
        if n - self._columns.derived_rows > max(1024, self._columns.derived_rows // 16):
            derived = self._sets.vector_search._derived()
            if derived is not None:
                self._columns.write_derived(*derived, n)

    def _read_learnt(self, c: sqlite3.Connection, version: int) -> Learnt | None:
        found = c.execute("SELECT state FROM learnt WHERE version = ?", (version,)).fetchone()
        if found is None:
            return None
        self._saved = bytes(found[0])
        try:
            header, arrays = files.unpack(self._saved, "what was learnt")
            return header["learnt"], arrays
        except (ValueError, KeyError):
            return None  # it is learnt anew

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
            known = search.calibrate(k, recall, **asked)
            self._keep_learnt()
            return known

    def set_recall(self, recall: float) -> None:
        """The default of all searches from now on."""
        with self.changing(), self._lock.alone():
            with self.database.writing() as c:
                (number,) = db.about(c, "change")
                db.number(c, number + 1, self._session, recall=recall)
            self.recall, self._change = recall, number + 1

    def set_weighted(self, weighted: bool) -> None:
        """Decides before the first set is there."""
        with self.changing(), self._lock.alone():
            with self.database.writing() as c:
                (number,) = db.about(c, "change")
                db.number(c, number + 1, self._session, weighted=int(weighted))
            self._start(weighted, np.empty(0, np.int64), None)
            self._change = number + 1

    # Reading

    def info(self) -> dict[str, Any]:
        with self.seen() as c:
            weighted, generation, version = db.about(c, "weighted", "generation", "learnt")
            points = c.execute("SELECT coalesce(sum(size), 0), min(size), max(size) FROM sets").fetchone()
            removed = c.execute("SELECT count(*) FROM removed").fetchone()[0]
            pages = c.execute("PRAGMA page_count").fetchone()[0] * c.execute("PRAGMA page_size").fetchone()[0]
            ready = self._sets
            found: dict[str, Any] = {
                "path": None if self.folder is None else str(self.folder),
                "format": db.VERSION,
                "sets": 0 if ready is None else len(ready),
                "points": points[0],
                "sizes": None if points[1] is None else {"smallest": points[1], "largest": points[2]},
                "weighted": None if weighted is None else bool(weighted),
                **self.recipe.described(),
                "recall": self.recall,
                "removed_since_compact": removed,
                "compacted": generation,
                "learnt_version": version,
                "embedded_on_open": self.embedded,
                "cache_rebuilt": self.rebuilt,
            }
            if self.folder is not None:
                log = self.folder / "index.db-wal"
                found["disk_bytes"] = {
                    "database": (self.folder / "index.db").stat().st_size,
                    "log": log.stat().st_size if log.exists() else 0,
                    "cache": 0 if ready is None else self._columns.disk_bytes,
                }
            else:
                found["database_bytes"] = pages
            if ready is not None and len(ready):
                about = ready.vector_search.info()
                memory = {**about.pop("bytes"), "points": ready._points.n_bytes, "bounds": ready._errors.n_bytes}
                found["memory_bytes"] = memory
                found["search_info"] = {
                    key: value for key, value in about.items() if key not in ("rows", "bytes_per_row")
                }
            return found

    def __len__(self) -> int:
        with self.seen():
            return 0 if self._sets is None else len(self._sets)

    def allowed(self, c: sqlite3.Connection, node: where.Node | None) -> Allowed | None:
        """Which sets a filter lets through, remembered until the next change."""
        if node is None or self._sets is None:
            return None
        found = self._filters.get(node)
        if found is None:
            sql, values = where.compile(node, unique=False)  # a row may come twice: it only sets the mask
            rows = np.fromiter((row for (row,) in c.execute(sql, values)), np.int64)
            mask = np.zeros(self._sets._rows.n_positions, np.bool_)
            positions = self._sets._rows._find(rows)
            mask[positions[positions >= 0]] = True
            n = int(np.count_nonzero(mask))
            found = Allowed(None if n == len(mask) else mask, n)
            filters = self._filters
            filters[node] = found
            while len(filters) > FILTERS:
                filters.popitem(last=False)
        return found

    def sets_of(self, c: sqlite3.Connection, rows: Int64) -> Sets:
        """As they were added."""
        (weighted,) = db.about(c, "weighted")
        return db.read_sets(c, rows, self.recipe.dim, bool(weighted), self.recipe.origin)


def _left_over(path: Path) -> bool:
    """Of a `create` that was killed, before there was an index."""
    return path.name == "lock" or (path.name.startswith("index.db.") and ".tmp" in path.name)


def weighted_as(sets: SetSearch, weighted: Any) -> bool:
    return weighted is not None and bool(weighted) == (sets._points._weights is not None)


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
