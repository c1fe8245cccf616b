"""An index in a folder: an SQLite database, and caches of what is made from it.

    index.db     the database (`schema.py`, `database.py`); the index is what is in it, and nothing else
    cache/       arrays that can be made again from it (`cache.py`): vectors, prepared points
    lock         held by the one process that may change the index (`lock.py`)

For each version that is read there is one `Loaded` in memory (`loading.py`). The writer puts it in place before it
commits. A process that only reads finds a newer version in the database, and loads it from the caches.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ...data.atomic import check_folder, sync_folder
from ...data.interrupts import interruptible
from ...errors import (
    FormatError,
    IndexClosed,
    IndexExists,
    IndexNotFound,
    ReadOnlyIndex,
    SloshError,
    StorageError,
    system_error,
)
from ...native import kernel
from ...search import Calibration
from ..addresses import meant_server
from ..locking import ChangeLock
from ..snapshot import Snapshot
from ..spec import IndexSpec, Vectors
from . import tables, upgrade
from .cache import FLUSH_BYTES, Cache, Stamp
from .database import Connection, Database
from .loading import Loaded, load, pack_trained
from .lock import WriterLock
from .schema import FORMAT_VERSION, PARTS_VERSION
from .verify import verify_database
from .view import SqliteView
from .write import SqliteWrite

KEPT_VERSIONS = 4
"""Versions whose snapshots stay in memory: a reader may have begun with one that is not the newest any more."""
DERIVED_GROWTH = 16
"""What is derived is written again when the index has grown by one part in so many."""
DERIVED_LACKS = 1024
"""Rows that may be missing from it when the index is closed: the first search after opening derives them."""


class SqliteEngine:
    """An index in a folder on this machine. `create` and `open` make one."""

    def __init__(
        self, folder: Path, database: Database, lock: WriterLock | None, n_jobs: int | None, device: str | None
    ) -> None:
        self.database, self._folder, self._lock = database, folder, lock
        self.location, self.read_only, self.closed = str(folder), lock is None, False
        self._pid, self._changes, self._following = os.getpid(), ChangeLock(), threading.Lock()
        self._loaded: dict[int, Loaded] = {}  # replaced, never changed, by the thread that writes or follows
        upgraded = not self.read_only and upgrade.upgrade(database)
        database.check_tables()
        with database.reading() as connection:
            (uid,) = tables.read_settings(connection, "uid")
        self._made_for, self._n_jobs = {"index": uid, "kernel": kernel.name()}, n_jobs
        self._device = device
        self.cache = self._new_cache()
        self._refresh()
        self._stored_training = _training_of(self._newest.snapshot)
        self._derived_from = {name: state.derived_from for name, state in self._newest.snapshot.states.items()}
        if not self.read_only:
            self._stamp_loaded()
        if upgraded:
            self.train()

    def _new_cache(self) -> Cache:
        return Cache(self._folder / "cache", self._made_for, not self.read_only, kernel.threads(self._n_jobs))

    @classmethod
    def create(
        cls, location: str, spec: IndexSpec, *, weighted: bool | None, n_jobs: int | None, device: str | None = None
    ) -> SqliteEngine:
        folder = Path(location).absolute()
        packed = spec.pack()  # says what cannot be stored, before anything is made
        with _system_errors(folder):
            if folder.exists() and (not folder.is_dir() or not all(map(_is_left_over, folder.iterdir()))):
                raise _exists(folder)
            check_folder(folder.parent)
            made = not folder.exists()
            folder.mkdir(exist_ok=True)
        decided = None if weighted is None else int(weighted)
        first = {**tables.FIRST_SETTINGS, "spec": packed, "uid": uuid.uuid4().hex, "weighted": decided}

        def connect(opened: ExitStack) -> Database:
            if (folder / "index.db").exists():  # by another process, in between
                raise _exists(folder)
            if made:
                opened.callback(shutil.rmtree, folder, ignore_errors=True)
            database = Database.create(folder / "index.db", first, _format_of(spec))
            sync_folder(folder.parent)
            return database

        return cls._started(folder, connect, WriterLock(folder), n_jobs, device)

    @classmethod
    def open(cls, location: str, *, read_only: bool, n_jobs: int | None, device: str | None = None) -> SqliteEngine:
        folder = Path(location).absolute()
        with _system_errors(folder):
            if not folder.exists():
                problem, remedy = f"there is no index at {folder}", meant_server(location)
                remedy = remedy or "create one with slosh.SetIndex.create"
                raise IndexNotFound(problem, remedy, errno=errno.ENOENT, location=str(folder))
            if not folder.is_dir() or not (folder / "index.db").exists():
                what = "it is a file" if folder.is_file() else "it has no index.db"
                shards = (folder / "shards").is_dir() or (folder / "shards.json").exists()
                remedy = "it is a folder of shards: serve it with slosh.ray.serve" if shards else ""
                raise FormatError(f"{folder} is not an index of slosh: {what}", remedy, location=str(folder))
        lock = None if read_only else WriterLock(folder)
        return cls._started(folder, lambda _: Database(folder / "index.db", read_only), lock, n_jobs, device)

    @staticmethod
    def token_at(location: str) -> str | None:
        """Return what was drawn at random when the index in a folder was created; None if there is no index."""
        path = Path(location).absolute() / "index.db"
        if not path.exists():
            return None
        database = Database(path, True)
        try:
            with database.reading() as connection:
                return str(tables.read_settings(connection, "uid")[0])
        finally:
            database.close()

    @classmethod
    def _started(
        cls,
        folder: Path,
        connect: Callable[[ExitStack], Database],
        lock: WriterLock | None,
        n_jobs: int | None,
        device: str | None,
    ) -> SqliteEngine:
        """Return an engine, or let go of everything that was opened for it and undo what `connect` put on the stack."""
        with ExitStack() as opened, _system_errors(folder):
            if lock is not None:
                opened.callback(lock.release)
            database = connect(opened)
            opened.callback(database.close)
            engine = cls(folder, database, lock, n_jobs, device)
            opened.pop_all()
            return engine

    def _check_open(self) -> None:
        if self.closed:
            raise IndexClosed("the index is closed", "open it again with slosh.open")
        if self._pid != os.getpid():
            raise IndexClosed("this process was forked from the one that opened the index", "open it again, here")

    # Reading

    def view(self) -> SqliteView:
        while True:
            self._check_open()
            connection = self.database.begin_reading()
            try:
                version, loaded = tables.read_version(connection), self._loaded  # in this order
            except BaseException:
                self.database.end_reading(connection, failed=True)
                raise
            if version in loaded:
                return SqliteView(self, connection, loaded[version])
            self.database.end_reading(connection)
            if self.read_only:
                self._refresh()
            elif version > max(loaded, default=version):  # all that this process commits is in place before
                problem = f"{self.database.path} was changed by another program"
                raise StorageError(problem, "close it and open it again", errno.ESTALE, location=self.location)

    @property
    def _newest(self) -> Loaded:
        return self._loaded[max(self._loaded)]

    def _publish(self, loaded: Loaded) -> None:
        """Have a version ready for whoever sees its commit."""
        self._loaded = dict(sorted({**self._loaded, loaded.version: loaded}.items())[-KEPT_VERSIONS:])

    def _refresh(self) -> None:
        """Load the newest version of the database, if it is not loaded yet."""
        with self._following:
            seen = -1
            while True:
                with self.database.reading() as connection:
                    version, next_row = tables.read_settings(connection, "version", "next_row")
                    if version in self._loaded:
                        return
                    # Within the transaction: the stamp of what it sees was written before that was committed. If there
                    # are only newer stamps, two more commits were made since, and there is a newer version to load.
                    stamps = self.cache.read_stamps()
                    valid = [stamp for stamp in stamps if tables.has_commit(connection, stamp.rows, stamp.token)]
                    if seen == version or (valid and valid[0].rows == next_row):
                        before = self._newest if self._loaded else None
                        self._publish(load(connection, self._read_spec(connection, before), self.cache, valid, before))
                        return
                    seen = version

    def _read_spec(self, connection: Connection, before: Loaded | None) -> IndexSpec:
        """Return the specification of the version that a transaction sees; it changes with the generation only."""
        packed, generation = tables.read_settings(connection, "spec", "generation")
        if before is not None and before.generation == generation:
            return before.spec
        return IndexSpec.unpack(bytes(packed), self.location).run_by(self._n_jobs, self._device)

    def _stamp_loaded(self) -> None:
        """Stamp what was embedded when the index was opened, and delete what no stamp covers any more."""
        snapshot, stamp = self._newest.snapshot, self.cache.stamp
        with self.database.reading() as connection:
            token = tables.token_of(connection, snapshot.n)
        with suppress(OSError):  # no room: the caches are made again the next time
            if token is not None and snapshot.n and (stamp is None or stamp.rows < snapshot.n):
                stamp = self.cache.summed(snapshot.sets, token, self._newest.settings["made_on"])
                self.cache.write_stamp(stamp)
                self.cache.stamp = stamp
            self.cache.tidy()

    def disk_bytes(self) -> dict[str, int]:
        return {**self.database.disk_bytes(), "cache": self.cache.disk_bytes()}

    def verify(self) -> Iterator[tuple[str, str, list[str]]]:
        with self.database.reading() as connection:
            yield from verify_database(connection, self._newest.spec.dim)
        yield self.cache.verify()

    # Changing

    @contextmanager
    def _changing(self, *, write: bool = False) -> Iterator[None]:
        """Let one thread at a time change the index, and only in the process that may."""
        self._check_open()
        with self._changes.writing() if write else self._changes.changing():
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
        with self._changing(write=True), self.view() as view:
            write = SqliteWrite(self, view)
            yield write
            write.commit()

    def commit(
        self,
        after: Loaded,
        stamp: Stamp | None = None,
        cache: Cache | None = None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit the open transaction as a version; `stamp` covers the rows that it adds to the caches.

        Stamp and snapshot are in place before: whoever sees the commit finds them, and nobody waits. `done` is called
        when it is stored.
        """
        before, known = self._loaded, self.cache
        cache = known if cache is None else cache
        if stamp is not None:
            with suppress(OSError):  # no room: the caches are brought up to date when there is
                cache.write_stamp(stamp, known.stamp)
        self._publish(after)
        try:
            self.database.commit()
        except BaseException:
            self._loaded = before
            raise
        done()
        self.cache = cache
        if stamp is not None:
            cache.stamp = stamp
            with suppress(OSError):  # what was not flushed is checked when the index is opened
                cache.flush(unless=FLUSH_BYTES)

    def train(self, eager: bool = False, again: Iterable[tuple[int, float]] = ()) -> bool:
        with self._changing():
            loaded = self._newest
            with interruptible():
                after = loaded.snapshot.train(eager, again)
            if after is not loaded.snapshot:
                self._publish(replace(loaded, snapshot=after))
            self._store_training()
            return after is not loaded.snapshot

    def calibrate(self, space: str, k: int, recall: float, queries: Vectors | None) -> Calibration | None:
        with self._changing():
            with interruptible():
                snapshot, found = self._newest.snapshot.calibrate(space, k, recall, queries)
            self._publish(replace(self._newest, snapshot=snapshot))
            self._store_training()
            return found

    def _store_training(self, closing: bool = False) -> None:
        """Store what the search has learnt, if that is not stored yet, and cache what it derives from it.

        The cache comes first: readers that see what was learnt find it there, and need not derive it themselves.
        """
        loaded = self._newest
        training = _training_of(loaded.snapshot)
        self._cache_derived(loaded.snapshot, closing)
        if training != self._stored_training:
            after = replace(loaded, version=loaded.version + 1, trained=loaded.trained + 1)
            with self.database.writing() as connection:
                connection.execute("DELETE FROM trained")
                connection.execute("INSERT INTO trained VALUES (?, ?)", (after.trained, pack_trained(loaded.snapshot)))
                tables.write_settings(connection, version=after.version, trained=after.trained)
                self.commit(after)
            self._stored_training = training

    def _cache_derived(self, snapshot: Snapshot, closing: bool) -> None:
        """Write what the search derives, if it was trained anew or the index has grown since it was written."""
        for name, state in snapshot.states.items():
            known = self.cache.derived_rows(name)
            grown = snapshot.n - known > (DERIVED_LACKS if closing else max(DERIVED_LACKS, known // DERIVED_GROWTH))
            if not grown and (not known or state.derived_from is self._derived_from.get(name)):
                continue
            self._derived_from[name] = state.derived_from
            derived = state.derived()
            if derived is not None:
                with suppress(OSError):  # no room: it is made again
                    self.cache.write_derived(derived, snapshot.n, name)

    def compact(self, spec: IndexSpec | None = None) -> None:
        with self._changing():
            cache, measured, before = self._new_cache(), self._newest.snapshot.calibrated, self._newest
            changed = {} if spec is None else {"spec": spec.pack()}
            chosen = before.spec if spec is None else spec.run_by(self._n_jobs, self._device)
            cache.start_again()
            try:
                with self.database.writing() as connection:
                    n = tables.renumber(connection)
                    version, generation = tables.read_settings(connection, "version", "generation")
                    connection.execute("DELETE FROM trained")
                    numbers = {"version": version + 1, "generation": generation + 1, "trained": 0, "next_row": n}
                    tables.write_settings(connection, **numbers, **changed)
                    connection.execute(f"PRAGMA user_version = {_format_of(chosen)}")
                    with interruptible():
                        after = replace(load(connection, chosen, cache, None), embedded=before.embedded)
                        untrained = _training_of(after.snapshot)
                        after = replace(after, snapshot=after.snapshot.train(again=measured))
                    stamp = cache.summed(after.snapshot.sets, made_on=after.settings["made_on"])
                    tables.add_commit(connection, n, stamp.token)
                    self.commit(after, stamp, cache)
                self.database.format_version = _format_of(chosen)
            finally:
                with suppress(OSError):
                    self.cache.tidy()  # what was there before, or what an attempt that failed leaves
            self._stored_training = untrained
            self._store_training()
            with suppress(StorageError):  # no room to reclaim space: it is compacted all the same
                self.database.vacuum()

    def close(self) -> None:
        """Store what was learnt since, and let go of everything."""
        if self._pid != os.getpid():  # a fork leaves it to the process that opened it, and may have its lock held
            return
        with self._changes.changing():
            if self.closed:
                return
            try:
                if not self.read_only and not sys.is_finalizing():  # then nothing can be written any more
                    with suppress(OSError, SloshError):  # no room, or damaged: it is learnt again
                        self._store_training(closing=True)
                    with suppress(OSError):  # no room: what was not flushed is checked when the index is opened
                        self.cache.flush()
            finally:
                self._let_go()

    def destroy(self) -> None:
        with self._changing():
            self._let_go(_remove_index)

    def _let_go(self, last: Callable[[Path], None] = lambda _: None) -> None:
        """Close the files, and do what is to be done last in the folder before another process may change it."""
        self.closed = True
        try:
            self.database.close()
            self.cache.close()
            self._loaded = {}
            with _system_errors(self._folder):
                last(self._folder)
        finally:
            if self._lock is not None:
                self._lock.release()


def _remove_index(folder: Path) -> None:
    """Remove the folder of an index whose lock is held.

    Without its database it is no index any more, so that goes first. The lock goes last: until then no other process
    creates an index here. Connections that were in use close meanwhile, and delete files of SQLite themselves.
    """
    (folder / "index.db").unlink()
    for path in sorted(folder.iterdir(), key=lambda path: path.name == "lock"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # another process creates an index here again
        folder.rmdir()


@contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    """Raise errors of the operating system as those of slosh."""
    try:
        yield
    except SloshError:
        raise
    except OSError as error:
        raise system_error(error, str(error.filename or folder)) from None


def _exists(folder: Path) -> IndexExists:
    return IndexExists(
        f"{folder} exists", "open it with slosh.open, or give another name", errno=errno.EEXIST, location=str(folder)
    )


def _format_of(spec: IndexSpec) -> int:
    return FORMAT_VERSION if spec.parts is None else PARTS_VERSION


def _is_left_over(path: Path) -> bool:
    """Whether a file is of a `create` that was killed before there was an index."""
    return path.name == "lock" or (path.name.startswith("index.db.") and ".tmp" in path.name)


def _training_of(snapshot: Snapshot) -> object:
    return tuple(state.trained_version for state in snapshot.states.values())
