"""The one source of truth of an index: an SQLite database of ids, metadata, points, parameters and what was learnt.

    about      one line each: dim, what was fixed at creation, and counters
    sets       a line for each set that is there: its row, id, number of elements, metadata as JSON, and its body
    bodies     points and weights as bytes, float32, little-endian, and a CRC-32 of both
    fields     a line for each value of the metadata, sorted by it: what `where` is answered from
    removed    rows that were removed, and by which change; rows are never used twice
    learnt     what the search has learnt, the newest version

Here are the file and its transactions; `lines.py` reads and writes what is in it. Every change is one transaction, with
write-ahead log and synchronous=FULL: when it returns it is on disk, all of it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

APPLICATION = 0x534C4F53  # "SLOS"
VERSION = 1
SCHEMA = """
CREATE TABLE about(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sets(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, body INTEGER NOT NULL,
                  metadata TEXT NOT NULL);
CREATE TABLE bodies(body INTEGER PRIMARY KEY, crc INTEGER NOT NULL, points BLOB NOT NULL, weights BLOB);
CREATE TABLE fields(key TEXT NOT NULL, value NOT NULL, row INTEGER NOT NULL,
                    PRIMARY KEY(key, value, row)) WITHOUT ROWID;
CREATE TABLE removed(row INTEGER PRIMARY KEY, change INTEGER NOT NULL);
CREATE INDEX removed_by_change ON removed(change);
CREATE TABLE learnt(version INTEGER PRIMARY KEY, state BLOB NOT NULL);
"""
STATISTICS = {"CREATE TABLE sqlite_stat1(tbl,idx,stat)", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"}
"""What SQLite's ANALYZE leaves, which does no harm."""
LOG_BYTES = 1 << 26
"""The log is not left longer than this."""
TIMEOUT = 60
"""Seconds to wait for another program that holds the database."""


class Database:
    """Connections to one database, one for each thread that reads and one that writes."""

    _state: Any = None  # of the files, where they cannot be followed

    def __init__(self, path: Path | None, read_only: bool) -> None:
        self.path, self.read_only = path, read_only
        self._begin()
        if path is not None:
            _check_files(path)
        try:
            self._main = self._connect()
            try:
                self._main.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.OperationalError as error:
                if not read_only or not _forbidden(error) or _log_bytes(path):
                    raise
                self._frozen, self._state = True, _state_of(path)  # a folder that this process may not write to
                self._main.close()
                self._main = self._connect()
            self._check()
            if not read_only:
                with plain_errors(path):
                    self._main.execute("PRAGMA journal_mode = WAL")  # a copy made by SQLite has another
        except sqlite3.DatabaseError as error:
            self.close()
            if not isinstance(error, sqlite3.OperationalError):
                raise ValueError(f"{path} is no index of slosh, or is damaged ({error})") from None
            if _forbidden(error):
                why = "it has a log, which" if read_only else "its folder"
                raise PermissionError(
                    f"{path} cannot be opened ({error}): {why} must be one that may be written"
                ) from None
            with plain_errors(path):
                raise
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._idle: deque[sqlite3.Connection] = deque()  # for threads that read
        self._mutex = threading.RLock()
        self._closed = self._frozen = False
        self._pid = os.getpid()

    @classmethod
    def create(cls, path: Path | None, about: dict[str, Any]) -> Database:
        """A new database. A file appears under its name only when it is whole."""
        if path is None:
            self = cls.__new__(cls)
            self.path, self.read_only = None, False
            self._begin()
            self._main = self._connect()
            _fill(self._main, about)
            return self
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.execute("PRAGMA page_size = 8192")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                _fill(connection, about)
            finally:
                connection.close()
            os.replace(draft, path)
            sync_folder(path.parent)
        finally:
            for name in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm")):
                name.unlink(missing_ok=True)
        return cls(path, read_only=False)

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        else:
            mode = "mode=rw" if not self.read_only else "mode=ro&immutable=1" if self._frozen else "mode=ro"
            uri = f"{self.path.absolute().as_uri()}?{mode}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=TIMEOUT)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        if self.path is not None and not self.read_only:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        return connection

    def _check(self) -> None:
        """Refuses a file that is no index, or one of another version."""
        application = self._main.execute("PRAGMA application_id").fetchone()[0]
        version = self._main.execute("PRAGMA user_version").fetchone()[0]
        lines = self._main.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        if application != APPLICATION:
            raise ValueError(f"{self.path} is a database, but no index of slosh")
        if version != VERSION:
            raise ValueError(
                f"{self.path} has the format version {version}; this slosh reads {VERSION}: export it with the "
                "slosh that made it (slosh export), and build it again from that"
            )
        # Word for word, so that no view, trigger, or column that is computed is ever asked for anything.
        found = {_words(sql) for _, _, sql in lines if sql is not None} - STATISTICS
        hidden = [name for kind, name, sql in lines if sql is None and kind != "index"]
        expected = {_words(sql) for sql in SCHEMA.split(";") if sql.strip()}
        if found != expected or hidden:
            names = sorted({str(name) for _, name, sql in lines if sql is not None})
            raise ValueError(f"{self.path} is no index of slosh: it has {', '.join(names)[:200] or 'no tables'}")

    def close(self) -> None:
        """Whoever is reading goes on to the end, and closes what it has: no connection is closed under a thread."""
        with self._mutex:
            self._closed = True
            with suppress(sqlite3.Error, AttributeError):
                self._main.close()
        self._drain()

    def _drain(self) -> None:
        while self._idle:
            with suppress(sqlite3.Error, IndexError):
                self._idle.pop().close()

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the database until the end."""
        if self.path is None:
            with self._mutex:
                yield self._main
            return
        if self._frozen and _state_of(self.path) != self._state:
            raise OSError(
                errno.ESTALE,
                f"{self.path} was changed, which cannot be followed where nothing may be written: open it again",
            )
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            if self._closed:
                raise ValueError("the index is closed: open it again with slosh.open")
            with plain_errors(self.path):
                connection.execute("BEGIN")
                yield connection
        finally:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("COMMIT")
            self._idle.append(connection)
            if self._closed:
                self._drain()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are all on disk at the end; after an error none of them."""
        with self._mutex, plain_errors(self.path):
            try:
                self._main.execute("BEGIN IMMEDIATE")
                yield self._main
                self._main.execute("COMMIT")
            except BaseException:
                if self._main.in_transaction:
                    self._main.execute("ROLLBACK")
                raise

    def checkpoint(self) -> None:
        """Moves the log into the database, as far as nobody reads it."""
        if self.path is not None and not self.read_only:
            with suppress(sqlite3.OperationalError):
                self._main.execute("PRAGMA busy_timeout = 1000")
                self._main.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._main.execute(f"PRAGMA busy_timeout = {1000 * TIMEOUT}")

    def vacuum(self) -> None:
        """Gives free pages back, if they are worth it."""
        free = self._main.execute("PRAGMA freelist_count").fetchone()[0]
        if free * 10 > self._main.execute("PRAGMA page_count").fetchone()[0]:
            with plain_errors(self.path):
                self._main.execute("VACUUM")
        self.checkpoint()


def _words(sql: Any) -> str:
    return " ".join(str(sql).replace('"', "").split())


def _check_files(path: Path) -> None:
    """Refuses what is no plain file, and links: SQLite would write over whatever they lead to."""
    for name in (path, *(Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal"))):
        try:
            kind = name.lstat().st_mode
        except FileNotFoundError:
            if name == path:
                raise FileNotFoundError(f"{path} is not there") from None
            continue
        if not stat.S_ISREG(kind) and not (name == path and name.is_file()):
            raise ValueError(f"{name} is no plain file: an index of slosh has no links, put the file itself there")


def _forbidden(error: Exception) -> bool:
    """Whether SQLite may not write where it has to."""
    return any(text in str(error) for text in ("unable to open", "readonly"))


def _state_of(path: Path | None) -> Any:
    """By which a change of the files is seen."""
    names = [Path(f"{path}{end}") for end in ("", "-wal")]
    return [(about.st_mtime_ns, about.st_size) for about in (name.stat() for name in names if name.exists())]


def _log_bytes(path: Path | None) -> int:
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def _fill(connection: sqlite3.Connection, about: dict[str, Any]) -> None:
    connection.execute("BEGIN")
    for statement in SCHEMA.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    counters = dict.fromkeys(("change", "generation", "next_row", "next_body", "learnt"), 0)
    first: dict[str, Any] = {**counters, "weighted": None, "session": "", "sessions": "[]"}
    connection.executemany("INSERT INTO about VALUES (?, ?)", ({**first, **about}).items())
    connection.execute("COMMIT")


def sync_folder(folder: Path) -> None:
    """So that the name of a new file is on disk, too."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def plain_errors(path: Path | None) -> Iterator[None]:
    """SQLite's errors as those of Python, with what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            raise OSError(
                errno.ENOSPC, f"{path}: {text}: nothing of this change was stored, all before is; make room, try again"
            ) from None
        if "readonly" in text:
            raise OSError(errno.EROFS, f"{path}: {text}: open the index where it may be written to") from None
        if "locked" in text:
            raise OSError(errno.EAGAIN, f"{path}: {text}: another program holds it; try again") from None
        if "transaction" in text:
            raise
        raise ValueError(f"{path} is damaged ({text}): restore it from a copy; index.verify() tells more") from None
