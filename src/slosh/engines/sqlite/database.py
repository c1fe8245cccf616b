"""The file of an index in SQLite: connections, transactions, and errors. It is the one source of truth.

Every change is one transaction, with a write-ahead log and synchronous=FULL: when it returns it is on disk, all of it.
`schema.py` has the tables, `tables.py` reads and writes them.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...checkpoints import checkpoint
from ...data.atomic import check_plain_file, sync_folder
from ...errors import (
    AccessDenied,
    DamagedError,
    FormatError,
    IndexClosed,
    IndexNotFound,
    SloshError,
    StorageError,
    UnknownOutcome,
    system_error,
)
from .schema import FORMAT_VERSION, PARTS_VERSION, check_tables, create_tables, format_version
from .sizes import file_bytes

logger = logging.getLogger(__name__)

MAX_LOG_BYTES = 1 << 26
"""The write-ahead log is not left longer than this."""
TIMEOUT_SECONDS = 60
"""How long to wait for another program that holds the database."""
ROWS_AT_ONCE = 256
"""Rows that are fetched together where all are wanted, one after the other."""
FILES_OF_A_CONNECTION = 4
PRIMARY_CODE = 0xFF
"""The bits of an extended result code of SQLite that are the primary one."""
BUSY, LOCKED, READ_ONLY, IO_ERROR, FULL, CANNOT_OPEN, NOT_A_DATABASE = 5, 6, 8, 10, 13, 14, 26
TEXTS = {  # Python 3.10 has no codes; these are SQLite's fixed texts for them
    "database is locked": BUSY,
    "database table is locked": LOCKED,
    "attempt to write a readonly database": READ_ONLY,
    "disk I/O error": IO_ERROR,
    "database or disk is full": FULL,
    "unable to open database file": CANNOT_OPEN,
    "file is not a database": NOT_A_DATABASE,
}
NOT_DAMAGE = {7, 9, 15, 18, 19, 20, 21}
"""No memory, interrupted, protocol, too big, constraint, mismatch, misuse."""
REMEDIES = {
    FULL: (errno.ENOSPC, "make room and try again"),
    IO_ERROR: (errno.EIO, "make room, or check whether the disk is failing"),
    BUSY: (errno.EAGAIN, "another program holds it; try again"),
    LOCKED: (errno.EAGAIN, "another program holds it; try again"),
}


def _translated(name: str) -> Callable[..., Any]:
    method = getattr(sqlite3.Cursor, name)

    def call(self: Cursor, *given: Any) -> Any:
        try:
            return method(self, *given)
        except sqlite3.Error as error:
            raise _storage_error(error, self.connection) from None

    return call


class Cursor(sqlite3.Cursor):
    """A cursor whose errors are those of slosh. Errors of SQLite that user callbacks raise are left as they are."""

    connection: Connection
    execute: Any = _translated("execute")
    executemany: Any = _translated("executemany")
    fetchone: Any = _translated("fetchone")
    fetchmany: Any = _translated("fetchmany")

    def __iter__(self) -> Any:
        while rows := self.fetchmany(ROWS_AT_ONCE):
            checkpoint()
            yield from rows

    def fetchall(self) -> list[Any]:
        return list(self)


class Connection(sqlite3.Connection):
    """A connection to the database at `path`; `writes` if changes are made by it."""

    path: Path
    writes = False

    def execute(self, *given: Any) -> Any:
        return self.cursor(Cursor).execute(*given)

    def executemany(self, *given: Any) -> Any:
        return self.cursor(Cursor).executemany(*given)

    def first_line(self, sql: str) -> Any:
        """Execute a statement without values and return the first line of its result, None if there is none."""
        try:
            return super().execute(sql).fetchone()
        except sqlite3.Error as error:
            raise _storage_error(error, self) from None


class Database:
    """Connections to one database: one that writes, and one for each thread that reads."""

    def __init__(self, path: Path, read_only: bool) -> None:
        self.path, self.read_only, self.closed = path, read_only, False
        self._idle: deque[Connection] = deque()
        self._mutex = threading.RLock()
        self._frozen_state: Any = None  # of the files, in a folder that this process may not write to
        if not path.exists():
            raise IndexNotFound(f"{path} is missing", "restore it from a copy", errno.ENOENT, location=str(path))
        check_plain_file(path, link=True)
        for end in ("-wal", "-shm", "-journal"):
            check_plain_file(Path(f"{path}{end}"))
        unsettled = _log_bytes(path) > 0
        try:
            self.main = self._connect(not read_only)
            try:
                self.main.execute("SELECT count(*) FROM sqlite_master")
            except AccessDenied:
                if not read_only or _log_bytes(path):
                    raise
                self._frozen_state = _state_of(path)
                self.main.close()
                self.main = self._connect(False)
            self.format_version = format_version(self.main, str(path))
            if not read_only:
                self.main.execute("PRAGMA journal_mode = WAL")  # a copy made by SQLite has another
                if unsettled:
                    self._settle()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], version: int = FORMAT_VERSION) -> Database:
        """Create a database of a format version. The file appears under its name only when it is whole."""
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            connection = _connected(draft, str(draft), writes=True)
            try:
                connection.execute("PRAGMA page_size = 8192")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN")
                create_tables(connection, version)
                connection.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
                connection.execute("COMMIT")
            finally:
                connection.close()
            os.replace(draft, path)
            sync_folder(path.parent)
        finally:
            for name in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm")):
                name.unlink(missing_ok=True)
        return cls(path, read_only=False)

    def check_tables(self) -> None:
        """Refuse a database whose tables are not those of the current format."""
        if self.format_version not in (FORMAT_VERSION, PARTS_VERSION):
            newer = self.format_version > PARTS_VERSION
            raise FormatError(
                f"{self.path} has the format version {self.format_version}; this slosh reads {FORMAT_VERSION}, and "
                f"{PARTS_VERSION}, which is that of indexes with part search",
                "use a newer slosh" if newer else "open it for writing once, without read_only: it is then upgraded",
                location=str(self.path),
                found=self.format_version,
                supported=FORMAT_VERSION,
            )
        check_tables(self.main, str(self.path))

    def _connect(self, writes: bool) -> Connection:
        frozen = self._frozen_state is not None
        mode = "mode=rw" if not self.read_only else "mode=ro&immutable=1" if frozen else "mode=ro"
        connection = _connected(self.path, f"{self.path.absolute().as_uri()}?{mode}", writes)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            if not self.read_only:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA fullfsync = ON")
                connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close all connections that are not in use; a thread that reads goes on to its end and closes its own."""
        with self._mutex:
            self.closed = True
            with suppress(sqlite3.Error, AttributeError):
                self.main.close()
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):
                _close(self._idle.pop())

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database until the end."""
        connection = self.begin_reading()
        try:
            yield connection
        except BaseException:
            self.end_reading(connection, failed=True)
            raise
        self.end_reading(connection)

    def begin_reading(self) -> Connection:
        """Return a connection that sees one state of the database until `end_reading`."""
        if self._frozen_state is not None and _state_of(self.path) != self._frozen_state:
            raise StorageError(
                f"{self.path} was changed, which cannot be followed in a folder that may not be written to",
                "open it again",
                errno=errno.ESTALE,
                location=str(self.path),
            )
        try:
            connection = self._connection()
        except SloshError:
            if not self.closed:
                raise
            raise _closed() from None  # its files may be gone
        try:
            if self.closed:
                raise _closed()
            connection.first_line("BEGIN")
        except BaseException:
            _close(connection)
            raise
        return connection

    def _connection(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect(False)

    def end_reading(self, connection: Connection, failed: bool = False) -> None:
        """Take a connection back. After an error, say `failed`: it is closed.

        Whoever holds the error may hold a cursor that was not read to its end, and so the state that it sees.
        """
        if failed:
            _close(connection)
            return
        try:
            connection.first_line("COMMIT")
        except BaseException:
            _close(connection)
            raise
        self._idle.append(connection)
        if self.closed:
            self._close_idle()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection whose changes are all on disk at the end, and none of them after an error.

        Whoever has something to do with the commit may call `commit` within the block.
        """
        with self._mutex:
            try:
                self.main.execute("BEGIN IMMEDIATE")
                yield self.main
                if self.main.in_transaction:
                    self.commit()
            except BaseException:
                self._roll_back()
                raise

    def commit(self) -> None:
        """Commit the change. After an error nothing of it is stored; if that is not certain, raise UnknownOutcome.

        A commit that fails may have written its pages into the log already, only not flushed them. Whoever recovers
        the log later would find them there. Another commit overwrites them.
        """
        try:
            self.main.execute("COMMIT")
        except SloshError as error:
            logger.warning("%s: a commit failed (%s)", self.path, error.problem)
            self._roll_back()
            try:
                self._settle()
            except SloshError:
                logger.warning("%s: it is not known whether the change that failed is stored", self.path)
                raise UnknownOutcome(
                    f"the disk failed while a change of {self.path} was committed: it is not known whether it is "
                    f"stored ({error.problem})",
                    "once the disk is well, close the index, open it for writing, and look whether the change is "
                    "there (id in index)",
                    errno=getattr(error, "errno", None),
                    location=str(self.path),
                ) from error
            raise

    def _roll_back(self) -> None:
        with suppress(SloshError):
            if self.main.in_transaction:
                self.main.execute("ROLLBACK")

    def _settle(self) -> None:
        """Commit something that changes nothing, so that what is visible now is so for good.

        A process that was killed between flushing the log and telling others of its commit leaves pages in the log
        that nobody sees as long as another process has the database open, and that come back after that.
        """
        self.main.execute(f"PRAGMA user_version = {self.format_version}")

    def vacuum(self) -> None:
        """Reclaim free pages, if they are worth it, and move the log into the database, as far as nobody reads it."""
        with self._mutex:
            free = self.main.execute("PRAGMA freelist_count").fetchone()[0]
            if free * 10 > self.main.execute("PRAGMA page_count").fetchone()[0]:
                self.main.execute("VACUUM")
            with suppress(StorageError):
                self.main.execute("PRAGMA busy_timeout = 1000")
                self.main.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.main.execute(f"PRAGMA busy_timeout = {1000 * TIMEOUT_SECONDS}")

    def disk_bytes(self) -> dict[str, int]:
        return {"database": file_bytes(self.path), "log": _log_bytes(self.path)}


def _state_of(path: Path) -> Any:
    """Return what a change of the files is seen by."""
    names = [Path(f"{path}{end}") for end in ("", "-wal")]
    return [(about.st_mtime_ns, about.st_size) for about in (name.stat() for name in names if name.exists())]


def _log_bytes(path: Path) -> int:
    return file_bytes(Path(f"{path}-wal"))


def _connected(path: Path, name: str, writes: bool) -> Connection:
    options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": TIMEOUT_SECONDS}
    try:
        connection = sqlite3.connect(name, uri=name.startswith("file:"), factory=Connection, **options)
    except sqlite3.Error:
        raise _cannot_open(path) from None
    connection.path, connection.writes = path, writes
    return connection


def _closed() -> IndexClosed:
    return IndexClosed("the index is closed", "open it again with slosh.open")


def _close(connection: Connection) -> None:
    with suppress(sqlite3.Error):
        connection.close()


def _storage_error(error: sqlite3.Error, connection: Connection) -> SloshError:
    """Return an error of SQLite as one of slosh."""
    path, location = connection.path, str(connection.path)
    code = getattr(error, "sqlite_errorcode", None)
    code = TEXTS.get(str(error)) if code is None else code & PRIMARY_CODE
    if code in (CANNOT_OPEN, READ_ONLY):
        return _cannot_open(path)
    if code == NOT_A_DATABASE:
        return FormatError(f"{path} is not an index of slosh, or is damaged ({error})", location=location)
    if code in REMEDIES or code in NOT_DAMAGE or isinstance(error, sqlite3.ProgrammingError):
        number, remedy = REMEDIES.get(code or 0, (errno.EIO, "try again"))
        if connection.writes:
            remedy = f"nothing of this change was stored, all before it is; {remedy}"
        return StorageError(f"{path}: {error}", remedy, errno=number, location=location)
    return DamagedError(
        f"{path} is damaged ({error})", "restore it from a copy; index.verify() tells more", location=location
    )


def _cannot_open(path: Path) -> StorageError:
    """Find out why a database cannot be opened or written to: SQLite only says that it cannot.

    The database itself is not opened for that: closing it again would lose the locks of this process on it.
    """
    handles: list[int] = []
    try:
        path.stat()
        while len(handles) < FILES_OF_A_CONNECTION:
            handles.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as reason:
        return system_error(reason, str(path))
    finally:
        for handle in handles:
            os.close(handle)
    return AccessDenied(
        f"{path} cannot be opened",
        "it must be readable, and its folder writable, also for reading while it has a log",
        errno=errno.EACCES,
        location=str(path),
    )
