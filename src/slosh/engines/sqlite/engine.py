"""An index in a folder: an SQLite database, and caches of what is made from it.

    index.db     the database (`schema.py`, `database.py`); the index is what is in it, and nothing else
    cache/       arrays that can be made again from it (`cache.py`): vectors, prepared points
    lock         held by the one process that may change the index (`lock.py`)

For each version that is read there is one `Loaded` in memory. The writer publishes it with its commit. A process that
only reads finds a newer version in the database, and brings its own up to date from the caches.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ...data import tensors
from ...data.atomic import sync_folder
from ...data.sets import Sets
from ...errors import FormatError, IndexClosed, IndexExists, IndexNotFound, ReadOnlyIndex, SloshError, StorageError
from ...native import kernel
from ...search import Calibration, Trained
from ..base import Int64
from ..interrupts import uninterrupted
from ..snapshot import Snapshot
from ..spec import Embedded, IndexSpec, Vectors
from . import tables, upgrade
from .cache import Cache, StaleCache, Stamp
from .database import Database, storage_errors
from .lock import WriterLock
from .verify import verify_database
from .view import Loaded, SqliteView
from .write import SqliteWrite

TRAINED = "slosh trained state"
KEPT_VERSIONS = 4
"""Versions whose snapshots stay in memory: a reader may have begun with one that is not the newest any more."""
STAMP_TRIES, STAMP_WAIT = 40, 0.05
"""How often, and after how many seconds, a reader looks whether the writer has stamped what it has just committed."""
FEW_MISSING = 2000
"""So many sets a reader embeds itself without waiting for a stamp."""
DERIVED_GROWTH = 16
"""What is derived is written again when the index has grown by one part in so many."""


class SqliteEngine:
    """An index in a folder on this machine. `create` and `open` make one."""

    def __init__(self, folder: Path, database: Database, lock: WriterLock | None, n_jobs: int | None) -> None:
        self.database, self._folder, self._lock = database, folder, lock
        self.location, self.read_only, self.closed = str(folder), lock is None, False
        self._pid, self._writing, self._following = os.getpid(), threading.RLock(), threading.Lock()
        self._publishing = threading.Lock()
        self._loaded: dict[int, Loaded] = {}
        self._newest = -1
        self._stored_training: object = None
        self._embedded_on_open = 0
        self._cache_rebuilt: str | None = None
        self._refused_epoch: int | None = None  # of caches that were found damaged
        upgraded = not self.read_only and upgrade.upgrade(database)
        database.check_tables()
        with database.reading() as connection, storage_errors(database.path):
            packed, uid = tables.read_settings(connection, "spec", "uid")
        self.spec = IndexSpec.unpack(bytes(packed), self.location).with_threads(n_jobs)
        self._threads = kernel.threads(n_jobs)
        self._made_for = {"index": uid, "kernel": kernel.name()}
        self.cache = self._new_cache()
        self._refresh()
        self._stamp_loaded()
        if upgraded:
            self.train()

    def _new_cache(self) -> Cache:
        return Cache(self._folder / "cache", self._made_for, not self.read_only, self._threads)

    @classmethod
    def create(cls, location: str, spec: IndexSpec, *, weighted: bool | None, n_jobs: int | None) -> SqliteEngine:
        folder = Path(location).absolute()
        packed = spec.pack()  # says what cannot be stored, before anything is made
        if folder.exists() and (not folder.is_dir() or not all(map(_is_left_over, folder.iterdir()))):
            raise _exists(folder)
        if not folder.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder: create it first", str(folder.parent))
        folder.mkdir(exist_ok=True)
        lock = WriterLock(folder)
        try:
            if (folder / "index.db").exists():  # made by another process, in between
                raise _exists(folder)
            decided = None if weighted is None else int(weighted)
            first = {**tables.FIRST_SETTINGS, "spec": packed, "uid": uuid.uuid4().hex, "weighted": decided}
            database = Database.create(folder / "index.db", first)
            sync_folder(folder.parent)
            return cls(folder, database, lock, n_jobs)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, location: str, *, read_only: bool, n_jobs: int | None) -> SqliteEngine:
        folder = Path(location).absolute()
        if not folder.exists():
            raise IndexNotFound(
                f"there is no index at {folder}",
                "create one with slosh.SetIndex.create",
                errno=errno.ENOENT,
                location=str(folder),
            )
        if not folder.is_dir() or not (folder / "index.db").exists():
            what = "it is a file" if folder.is_file() else "it has no index.db"
            raise FormatError(f"{folder} is not an index of slosh: {what}", location=str(folder))
        lock = None if read_only else WriterLock(folder)
        try:
            database = Database(folder / "index.db", read_only)
            try:
                return cls(folder, database, lock, n_jobs)
            except BaseException:
                database.close()
                raise
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def _check_open(self) -> None:
        if self.closed:
            raise IndexClosed("the index is closed", "open it again with slosh.open")
        if self._pid != os.getpid():
            raise IndexClosed("this process was forked from the one that opened the index", "open it again, here")

    # Reading

    @contextmanager
    def view(self) -> Iterator[SqliteView]:
        while True:
            self._check_open()
            with self.database.reading() as connection:
                with storage_errors(self.database.path):
                    version = tables.read_version(connection)
                loaded = self._loaded.get(version)
                if loaded is not None:
                    yield SqliteView(self, connection, loaded)
                    return
            if self.read_only:  # the writer has loaded all there is: what it does not find is older, and it looks again
                self._refresh()

    def publish(self, loaded: Loaded) -> None:
        """Make a version the newest one in memory."""
        with self._publishing:
            kept = sorted({**self._loaded, loaded.version: loaded}.items())[-KEPT_VERSIONS:]
            self._loaded, self._newest = dict(kept), max(self._newest, loaded.version)

    @contextmanager
    def announced(self, loaded: Loaded) -> Iterator[None]:
        """Have a version ready for whoever sees its commit first; take it back if it is not committed."""
        with self._publishing:
            self._loaded = {**self._loaded, loaded.version: loaded}
        try:
            yield
        except BaseException:
            if self.database.main.in_transaction:  # it was not committed
                with self._publishing:
                    self._loaded = {version: old for version, old in self._loaded.items() if version != loaded.version}
            raise

    def _refresh(self) -> None:
        """Load the newest version of the database, if it is not loaded yet."""
        with self._following:
            for attempt in range(STAMP_TRIES):
                stamp = self.cache.read_stamp()  # before the transaction: then that sees its commit
                with self.database.reading() as connection, storage_errors(self.database.path):
                    version, next_row = tables.read_settings(connection, "version", "next_row")
                    if version in self._loaded:
                        return
                    valid = stamp is not None and tables.has_commit(connection, stamp.rows, stamp.token)
                    covered = stamp.rows if valid and stamp is not None else 0
                    late = self.read_only and next_row - covered > FEW_MISSING
                    if not late or attempt == STAMP_TRIES - 1:
                        self.publish(self._load(connection, stamp))
                        return
                time.sleep(STAMP_WAIT)

    def _load(self, connection: sqlite3.Connection, stamp: Stamp | None) -> Loaded:
        """Load what a transaction sees: from the version before, from the caches, and by embedding what they lack."""
        version, generation, trained, weighted, recall, next_row = tables.read_settings(
            connection, "version", "generation", "trained", "weighted", "recall", "next_row"
        )
        settings = {"weighted": None if weighted is None else bool(weighted), "recall": recall}
        before, snapshot = self._loaded.get(self._newest), None
        if before is not None and (before.generation, before.trained) == (generation, trained):
            snapshot = self._follow(connection, before, stamp, next_row, settings["weighted"])
        if snapshot is None:
            rows = tables.rows_from(connection)
            removed = connection.execute("SELECT count(*) FROM removed").fetchone()[0]
            if next_row != len(rows) + removed or (
                len(rows) and (weighted is None or rows.min() < 0 or rows.max() >= next_row)
            ):
                raise tables.damaged("the index is damaged: its counters do not fit its sets")
            alive = np.zeros(next_row, np.bool_)
            alive[rows] = True
            snapshot = self._start(connection, bool(weighted), alive, stamp, _read_trained(connection, trained))
            snapshot = self._embed_missing(connection, snapshot, rows, next_row)
        self._stored_training = _training_of(snapshot)
        return Loaded(version, generation, trained, settings, snapshot)

    def _follow(
        self, connection: sqlite3.Connection, before: Loaded, stamp: Stamp | None, next_row: int, weighted: bool | None
    ) -> Snapshot | None:
        """Take in what the writer has added and removed since; None if all is to be loaded again."""
        snapshot, known = before.snapshot, self.cache.stamp
        if before.settings["weighted"] != weighted:
            return None
        if known is None and stamp is not None and stamp.epoch != self._refused_epoch:
            return None  # there are caches now
        first = snapshot.n
        newer = stamp is not None and known is not None and stamp.epoch == known.epoch and stamp.rows > first
        if newer and stamp is not None and tables.has_commit(connection, stamp.rows, stamp.token):
            try:
                self.cache.use(stamp)
            except StaleCache:
                return None
            snapshot = snapshot.adopt(stamp.rows)
        snapshot = self._embed_missing(connection, snapshot, tables.rows_from(connection, first), next_row)
        removed = tables.removed_since(connection, before.version)
        return snapshot.remove(removed[snapshot.alive[removed]])

    def _start(
        self, connection: sqlite3.Connection, weighted: bool, alive: Any, stamp: Stamp | None, trained: Trained | None
    ) -> Snapshot:
        """Begin with the rows that the caches hold, if they are of this database."""
        try:
            if stamp is None:
                raise StaleCache(self.cache.problem or "there is no stamp")
            if not tables.has_commit(connection, stamp.rows, stamp.token):
                raise StaleCache("the stamp is of another state of the index")
            if ("weights" in stamp.arrays) != weighted:
                raise StaleCache("the stamp has other arrays")
            self.cache.use(stamp)
            snapshot = self._begin(connection, weighted, alive, stamp.rows, trained)
        except StaleCache as reason:
            self._refused_epoch = None if stamp is None else stamp.epoch
            self.cache.start_again(str(reason))
            self._cache_rebuilt = str(reason) if len(alive) else None
            snapshot = self._begin(connection, weighted, alive, 0, trained)
        return snapshot

    def _begin(
        self, connection: sqlite3.Connection, weighted: bool, alive: Any, n: int, trained: Trained | None
    ) -> Snapshot:
        derived = self.cache.read_derived(lambda rows, token: tables.has_commit(connection, rows, token))
        options: dict[str, Any] = {"n": n, "alive": alive[:n], "derived": derived}
        try:
            return Snapshot.start(self.spec, weighted, self.cache.column, trained=trained, **options)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            if trained is None:
                raise
            return Snapshot.start(self.spec, weighted, self.cache.column, **options)  # trained by other code

    def _embed_missing(
        self, connection: sqlite3.Connection, snapshot: Snapshot, rows: Int64, next_row: int
    ) -> Snapshot:
        """Embed those of the rows that the caches do not have; rows that are not there become holes."""
        missing = rows[rows >= snapshot.n]
        parts = tables.stream_sets(connection, missing, self.spec.dim, snapshot.weighted, self.spec.origin)
        with tqdm(total=len(missing), unit="set", delay=2, disable=None, leave=False, desc="embed") as bar:
            for part, sets in parts:
                snapshot = _extended(snapshot, part, self.spec.embed(sets), int(part[-1]) + 1)
                bar.update(len(part))
        if snapshot.n < next_row:
            none = Sets.from_checked(np.empty((0, self.spec.dim), np.float32), np.zeros(1, np.int64), None, None)
            nothing = self.spec.embed(none.with_origin(self.spec.origin))
            snapshot = _extended(snapshot, np.empty(0, np.int64), nothing, next_row)
        self._embedded_on_open += len(missing)
        return snapshot

    def _stamp_loaded(self) -> None:
        """Stamp what was embedded when the index was opened, and delete what no stamp covers any more."""
        if self.read_only:
            return
        snapshot, stamp = self._loaded[self._newest].snapshot, self.cache.stamp
        with self.database.reading() as connection:
            token = tables.token_of(connection, snapshot.n)
        with suppress(OSError):  # no room: the caches are made again the next time
            if token is not None and snapshot.n and (stamp is None or stamp.rows < snapshot.n):
                stamp = self.cache.summed(snapshot.n, snapshot.sets.n_points, token, snapshot.weighted)
                self.cache.write_stamp(stamp)
            self.cache.tidy()

    def info(self) -> dict[str, Any]:
        return {
            "embedded_on_open": self._embedded_on_open,
            "cache_rebuilt": self._cache_rebuilt,
            "disk_bytes": {**self.database.disk_bytes(), "cache": self.cache.disk_bytes()},
        }

    def verify(self) -> Iterator[tuple[str, str, list[str]]]:
        with self.database.reading() as connection:
            yield from verify_database(connection, self.spec.dim)

    # Changing

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one thread at a time change the index, and only in the process that may."""
        self._check_open()
        with self._writing:
            self._check_open()
            if self.read_only:
                raise ReadOnlyIndex(
                    f"{self._folder} is open for reading only",
                    f"open it with slosh.open({str(self._folder)!r})",
                    location=self.location,
                )
            yield

    @contextmanager
    def write(self) -> Iterator[SqliteWrite]:
        with self._changing(), self.view() as view:
            write = SqliteWrite(self, view)
            yield write
            write.commit()

    def train(self) -> bool:
        with self._changing():
            loaded = self._loaded[self._newest]
            snapshot = loaded.snapshot.train()
            self.publish(replace(loaded, snapshot=snapshot))
            self._store_training()
            return snapshot is not loaded.snapshot

    def calibrate(self, space: str, k: int, recall: float, queries: Vectors | None) -> Calibration | None:
        with self._changing():
            loaded = self._loaded[self._newest]
            snapshot, found = loaded.snapshot.calibrate(space, k, recall, queries)
            self.publish(replace(loaded, snapshot=snapshot))
            self._store_training()
            return found

    def _store_training(self) -> None:
        """Store what the search has learnt, if that is not stored yet, and cache what it derives from it."""
        loaded = self._loaded[self._newest]
        version = _training_of(loaded.snapshot)
        if version != self._stored_training:
            trained = next(iter(loaded.snapshot.states.values())).trained()
            state = b"" if trained is None else tensors.pack(TRAINED, trained.header, trained.arrays)
            after = replace(loaded, version=loaded.version + 1, trained=loaded.trained + 1)
            with self.database.writing() as connection:
                connection.execute("DELETE FROM trained")
                connection.execute("INSERT INTO trained VALUES (?, ?)", (after.trained, state))
                tables.write_settings(connection, version=after.version, trained=after.trained)
                with self.announced(after), uninterrupted():
                    connection.execute("COMMIT")
                    self.publish(after)
            self._stored_training = version
        self._cache_derived(loaded.snapshot)

    def _cache_derived(self, snapshot: Snapshot) -> None:
        known = self.cache.derived_rows
        if snapshot.n - known <= max(1024, known // DERIVED_GROWTH):
            return
        derived = next(iter(snapshot.states.values())).derived()
        if derived is not None:
            with suppress(OSError):  # no room: it is made again
                self.cache.write_derived(derived, snapshot.n)

    def compact(self) -> None:
        with self._changing():
            previous, self.cache = self.cache, self._new_cache()
            try:
                with self.database.writing() as connection:
                    n = tables.renumber(connection)
                    version, generation = tables.read_settings(connection, "version", "generation")
                    connection.execute("DELETE FROM trained")
                    numbers = {"version": version + 1, "generation": generation + 1, "trained": 0, "next_row": n}
                    tables.write_settings(connection, **numbers)
                    token = tables.add_commit(connection, n)
                    counted = self._embedded_on_open
                    after = self._load(connection, None)
                    self._embedded_on_open, self._cache_rebuilt = counted, None
                    stamp = self.cache.summed(n, after.snapshot.sets.n_points, token, after.snapshot.weighted)
                    with self.announced(after), uninterrupted():
                        connection.execute("COMMIT")
                        self.publish(after)
                        previous = self.cache
                        with suppress(OSError):  # no room: the caches are made again the next time
                            self.cache.write_stamp(stamp)
            finally:
                self.cache = previous
            with suppress(OSError):
                self.cache.tidy()
            self.train()
            with suppress(StorageError):  # no room to reclaim space: it is compacted all the same
                self.database.vacuum()

    def close(self) -> None:
        """Store what was learnt since, and let go of everything."""
        if self._pid != os.getpid():  # a fork leaves it to the process that opened it, and may have its lock held
            return
        with self._writing:
            if self.closed:
                return
            try:
                if not self.read_only:
                    with suppress(OSError, SloshError):  # no room, or damaged: it is learnt again
                        self._store_training()
            finally:
                self.closed = True
                self.database.close()
                if self._lock is not None:
                    self._lock.release()
                self._loaded, self.cache = {}, self._new_cache()  # lets go of the mapped files

    def destroy(self) -> None:
        self.close()
        shutil.rmtree(self._folder)


def _exists(folder: Path) -> IndexExists:
    return IndexExists(
        f"{folder} exists", "open it with slosh.open, or give another name", errno=errno.EEXIST, location=str(folder)
    )


def _is_left_over(path: Path) -> bool:
    """Whether a file is of a `create` that was killed before there was an index."""
    return path.name == "lock" or (path.name.startswith("index.db.") and ".tmp" in path.name)


def _training_of(snapshot: Snapshot) -> object:
    return tuple(state.trained_version for state in snapshot.states.values())


def _read_trained(connection: sqlite3.Connection, version: int) -> Trained | None:
    found = connection.execute("SELECT state FROM trained WHERE version = ?", (version,)).fetchone()
    if found is None or not isinstance(found[0], bytes) or not found[0]:
        return None
    try:
        return Trained(*tensors.unpack(found[0], TRAINED, "the trained state"))
    except SloshError:
        return None  # it is learnt anew


def _extended(snapshot: Snapshot, rows: Int64, embedded: Embedded, end: int) -> Snapshot:
    """Extend a snapshot to `end` rows: by these, and by holes where rows are missing."""
    first = snapshot.n
    at = rows - first
    sizes = np.zeros(end - first, np.int64)
    sizes[at] = embedded.sets.sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    sets = Sets.from_checked(embedded.sets.points, offsets, embedded.sets.weights, embedded.sets.origin)
    vectors = {}
    for name, (numbers, slack) in embedded.vectors.items():
        all_numbers, all_slack = np.zeros((len(sizes), numbers.shape[1]), np.float32), np.zeros(len(sizes))
        all_numbers[at], all_slack[at] = numbers, slack
        vectors[name] = Vectors(all_numbers, all_slack)
    holes = np.ones(len(sizes), np.bool_)
    holes[at] = False
    return snapshot.extend(Embedded(sets, vectors)).remove(np.flatnonzero(holes) + first)
