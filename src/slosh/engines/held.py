"""What is held ready for searching, in step with the database: the sets, their vectors, and what was learnt of them.

It carries the number of the change that it shows. Whoever reads looks at the number first, and takes in what others
have committed since, all of a change or nothing of it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from .. import where
from ..data.sets import Sets
from ..native import kernel
from ..search import SetSearch, files
from ..search.base import Learnt
from ..search.rows import Allowed, Rows
from ..search.store import Grown
from . import lines as db
from .columns import Behind, Change, Columns, Stale
from .database import Database
from .locks import SharedLock, WriterLock
from .spec import Recipe, fresh

Int64 = NDArray[np.int64]

CHUNK = 1 << 24
"""Numbers of the vectors that are held while sets are added."""
TRIES = 30
"""How often a reader looks again whether it sees what the caches are made of."""
FILTERS = 32
"""Filters whose rows are remembered until the next change."""
KNOWN = 1 << 16
"""Sets whose ids and metadata are remembered until the next change."""


class Held:
    """An index as it is read; `Local` also changes it."""

    def __init__(self, folder: Path | None, database: Database, lock: WriterLock | None, n_jobs: int | None) -> None:
        self.folder, self.database, self._writer, self.n_jobs = folder, database, lock, n_jobs
        self.read_only = folder is not None and lock is None
        self._threads = kernel.threads(n_jobs)
        self._lock, self._changing, self._inside = SharedLock(), threading.RLock(), threading.local()
        self._filters: OrderedDict[where.Node, Allowed] = OrderedDict()
        self._known: dict[int, tuple[str, str]] = {}
        self._sets: SetSearch | None = None
        self._columns: Columns
        self._rows: Grown
        self._change, self._generation, self._learnt, self._saved = -1, -1, 0, b""
        self.embedded = 0
        self.recall: float | None = None
        self.rebuilt: str | None = None
        self._session = uuid.uuid4().hex
        self._sessions: list[tuple[str, int]] = []
        self._seen, self._tries, self._next_row = 0, 0, 0
        with self.database.reading() as c:
            content, self._uid = db.about(c, "recipe", "uid")
            self.recipe = Recipe.unpack(bytes(content), str(folder))
        if hasattr(self.recipe.embedding, "n_jobs"):  # that of whoever made the index was for another machine
            self.recipe.embedding.n_jobs = n_jobs
        while self._change < 0:
            with self.database.reading() as c, self._patient():
                self._load(c)

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """What is seen is older than the caches: it is looked at again, a few times."""
        try:
            yield
            self._tries = 0
        except Behind:
            self._tries += 1
            time.sleep(1e-3 * self._tries)

    def _check_change(self, made: Change, same_generation: bool) -> None:
        """Refuses caches of a change that is none of this database, as far as it is seen: one of a copy of it."""
        who, number = made
        names = [name for name, _ in self._sessions]
        ends = [first for _, first in self._sessions[1:]] + [self._seen + 1]
        known = who in names and (number < ends[names.index(who)] or (self.read_only and who == names[-1]))
        if known and same_generation:
            return  # or newer than what is seen: then only the rows that are seen are taken
        if self.read_only and number > self._seen and self._tries < TRIES:
            raise Behind
        raise Stale("the stamp is of another state of the index")

    def _see_sessions(self, c: sqlite3.Connection) -> None:
        """Who has written, from which change on, and the last change there is."""
        self._sessions, self._seen = [("", 0), *db.sessions(c)], db.change(c)
        (self._next_row,) = db.about(c, "next_row")

    def _load(self, c: sqlite3.Connection) -> None:
        """From the database and the caches, as they are."""
        self._change = -1  # nothing can be seen until it is done
        self._see_sessions(c)
        self._generation, learnt, weighted, number = db.about(c, "generation", "learnt", "weighted", "change")
        (self.recall,) = db.about(c, "recall")
        self._sets, rows = None, db.alive(c)
        if weighted is None and len(rows):
            raise ValueError("the index is damaged: it does not say whether its sets have weights")
        if weighted is not None:
            self._start(bool(weighted), rows, self._read_learnt(c, learnt))
            self._catch_up(c)
        self._learnt = learnt
        self._shows(number)

    def _start(self, weighted: bool, rows: Int64, learnt: Learnt | None) -> None:
        folder = None if self.folder is None else self.folder / "cache"
        made_for = {"index": self._uid, "generation": self._generation, "kernel": kernel.name()}
        self._columns = Columns(folder, made_for, self._check_change, not self.read_only, self._threads)
        try:
            self._columns.limit(self._next_row)
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
        if not len(self._sets) and self._columns.problem:
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
        step = max(1, CHUNK // self.recipe.embedding.vector_length)
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
        since, self._change = self._change, -1  # nothing can be seen until it is done
        try:
            more = self._columns.follow()
            self._columns.limit(self._next_row)
        except Stale:
            self._load(c)
            return
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
        self._shows(number)

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
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """The database alone, in one state until the end, however long that takes; an index in memory waits with
        changes until then.
        """
        self._check_open()
        if self.folder is None:
            with self.seen() as c:
                yield c
        else:
            with self.database.reading() as c:
                yield c

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

    def _in_step(self) -> None:
        """After a change that was stored, and then could not be taken in: all is read again."""
        if self._change < 0:
            with self._lock.alone():
                if self._change < 0:
                    self._load(self.database._main)

    def _put(self, prepared: Sets, rows: Int64, embedded: Any, waiting: list[Any]) -> None:
        assert self._sets is not None
        if embedded is not None:
            self._sets._append(prepared, rows, *embedded)
            self._rows.extend(rows)
            return
        step = max(1, CHUNK // self.recipe.embedding.vector_length)
        with tqdm(total=len(rows), unit="set", delay=2, disable=None, leave=False, desc="add") as bar:
            for start in range(0, len(rows), step):
                if waiting:
                    raise KeyboardInterrupt
                part = slice(start, start + step)
                self._append(rows[part], prepared[part])
                bar.update(len(rows[part]))

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
        if found is None or not isinstance(found[0], bytes):
            return None
        self._saved = found[0]
        try:
            header, arrays = files.unpack(self._saved, "what was learnt")
            return header["learnt"], arrays
        except (ValueError, KeyError):
            return None  # it is learnt anew

    def __len__(self) -> int:
        with self.seen():
            return 0 if self._sets is None else len(self._sets)

    @property
    def ready_sets(self) -> SetSearch:
        """The sets, to be searched; an empty index has none."""
        if self._sets is None or not len(self._sets):
            raise ValueError("the index is empty: add sets first")
        return self._sets

    def allowed(self, c: sqlite3.Connection, node: where.Node | None) -> Allowed | None:
        """Which sets a filter lets through, remembered until the next change."""
        if node is None or self._sets is None:
            return None
        found = self._filters.get(node)
        if found is None:
            sql, values = where.compile(node, unique=False)  # a row may come twice: it only sets the mask
            try:
                rows = np.fromiter((row for (row,) in c.execute(sql, values)), np.int64)
            except (OverflowError, TypeError, ValueError):
                raise ValueError("what filters look at is damaged: index.verify() tells more") from None
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

    def described(self, c: sqlite3.Connection, rows: list[int]) -> dict[int, tuple[str, str]]:
        """Of these rows, and maybe of others, the id and the metadata as JSON; remembered until the next change."""
        known = self._known
        missing = [row for row in rows if row not in known]
        if missing:
            if len(known) + len(missing) > KNOWN:
                known, missing = {}, rows  # another one, since other threads may look into the old
                self._known = known
            known.update(db.described(c, missing))
        return known

    def _shows(self, number: int) -> None:
        """Now it shows this change, and what was remembered of the one before is forgotten."""
        self._filters, self._known, self._change = OrderedDict(), {}, number

    def sets_of(self, c: sqlite3.Connection, rows: Int64) -> Sets:
        """As they were added."""
        (weighted,) = db.about(c, "weighted")
        return db.read_sets(c, rows, self.recipe.dim, bool(weighted), self.recipe.origin)


def weighted_as(sets: SetSearch, weighted: Any) -> bool:
    return weighted is not None and bool(weighted) == (sets._points._weights is not None)
