"""The file of an index in SQLite: connections and transactions. It is the one source of truth.

Every change is one transaction, with a write-ahead log and synchronous=FULL: when it returns it is on disk, all of it.
`schema.py` has the tables, `tables.py` reads and writes them.
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

from ...data.atomic import sync_folder
from ...errors import DamagedError, FormatError, IndexClosed, SloshError, StorageError
from .schema import FORMAT_VERSION, check_tables, create_tables, format_version

MAX_LOG_BYTES = 1 << 26
"""The write-ahead log is not left longer than this."""
TIMEOUT_SECONDS = 60
"""How long to wait for another program that holds the database."""
PRIMARY_CODE = 0xFF
"""The bits of an extended result code of SQLite that are the primary one."""
BUSY, LOCKED, READ_ONLY, IO_ERROR, FULL, CANNOT_OPEN = 5, 6, 8, 10, 13, 14
TEXTS = {  # Python 3.10 has no codes; these are SQLite's fixed texts for them
    "database is locked": BUSY,
    "database table is locked": LOCKED,
    "attempt to write a readonly database": READ_ONLY,
    "disk I/O error": IO_ERROR,
    "database or disk is full": FULL,
    "unable to open database file": CANNOT_OPEN,
}
NOT_DAMAGE = {7, 9, 15, 18, 19, 20, 21}
"""No memory, interrupted, protocol, too big, constraint, mismatch, misuse."""
REMEDIES = {
    FULL: (errno.ENOSPC, "nothing of this change was stored, all before it is; make room and try again"),
    IO_ERROR: (errno.EIO, "nothing of this change was stored, all before it is; make room or check the disk"),
    READ_ONLY: (errno.EROFS, "open the index where it may be written to"),
    BUSY: (errno.EAGAIN, "another program holds it; try again"),
    LOCKED: (errno.EAGAIN, "another program holds it; try again"),
}


class Database:
    """Connections to one database: one that writes, and one for each thread that reads."""

    def __init__(self, path: Path, read_only: bool) -> None:
        self.path, self.read_only, self.closed = path, read_only, False
        self._idle: deque[sqlite3.Connection] = deque()
        self._mutex = threading.RLock()
        self._frozen_state: Any = None  # of the files, in a folder that this process may not write to
        _check_files(path)
        try:
            self.main = self._connect()
            try:
                self.main.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.OperationalError as error:
                if not read_only or error_code(error) not in (CANNOT_OPEN, READ_ONLY) or _log_bytes(path):
                    raise
                self._frozen_state = _state_of(path)
                self.main.close()
                self.main = self._connect()
            self.format_version = format_version(self.main, str(path))
            if not read_only:
                self.main.execute("PRAGMA journal_mode = WAL")  # a copy made by SQLite has another
        except sqlite3.DatabaseError as error:
            self.close()
            raise _opening_error(error, path, read_only) from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any]) -> Database:
        """Create a database. The file appears under its name only when it is whole."""
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.execute("PRAGMA page_size = 8192")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN")
                create_tables(connection)
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
        if self.format_version != FORMAT_VERSION:
            newer = self.format_version > FORMAT_VERSION
            raise FormatError(
                f"{self.path} has the format version {self.format_version}; this slosh reads {FORMAT_VERSION}",
                "use a newer slosh" if newer else "open it for writing once, without read_only: it is then upgraded",
                location=str(self.path),
                found=self.format_version,
                supported=FORMAT_VERSION,
            )
        with storage_errors(self.path):
            check_tables(self.main, str(self.path))

    def _connect(self) -> sqlite3.Connection:
        frozen = self._frozen_state is not None
        mode = "mode=rw" if not self.read_only else "mode=ro&immutable=1" if frozen else "mode=ro"
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=TIMEOUT_SECONDS,
        )
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
            with suppress(sqlite3.Error, IndexError):
                self._idle.pop().close()

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees one state of the database until the end."""
        if self._frozen_state is not None and _state_of(self.path) != self._frozen_state:
            raise StorageError(
                f"{self.path} was changed, which cannot be followed in a folder that may not be written to",
                "open it again",
                errno=errno.ESTALE,
                location=str(self.path),
            )
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            if self.closed:
                raise IndexClosed("the index is closed", "open it again with slosh.open")
            with storage_errors(self.path):
                connection.execute("BEGIN")
            yield connection
        finally:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("COMMIT")
            self._idle.append(connection)
            if self.closed:
                self._close_idle()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose changes are all on disk at the end, and none of them after an error.

        Whoever has something to do with the commit may commit within the block.
        """
        with self._mutex, storage_errors(self.path):
            try:
                self.main.execute("BEGIN IMMEDIATE")
                yield self.main
                if self.main.in_transaction:
                    self.main.execute("COMMIT")
            except BaseException:
                if self.main.in_transaction:
                    self.main.execute("ROLLBACK")
                raise

    def vacuum(self) -> None:
        """Reclaim free pages, if they are worth it, and move the log into the database, as far as nobody reads it."""
        with self._mutex, storage_errors(self.path):
            free = self.main.execute("PRAGMA freelist_count").fetchone()[0]
            if free * 10 > self.main.execute("PRAGMA page_count").fetchone()[0]:
                self.main.execute("VACUUM")
            with suppress(sqlite3.OperationalError):
                self.main.execute("PRAGMA busy_timeout = 1000")
                self.main.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.main.execute(f"PRAGMA busy_timeout = {1000 * TIMEOUT_SECONDS}")

    def disk_bytes(self) -> dict[str, int]:
        return {"database": self.path.stat().st_size, "log": _log_bytes(self.path)}


def _check_files(path: Path) -> None:
    """Refuse links and what is not a plain file: SQLite would write over whatever they lead to."""
    for name in (path, *(Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal"))):
        try:
            kind = name.lstat().st_mode
        except FileNotFoundError:
            if name == path:
                raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path)) from None
            continue
        if not stat.S_ISREG(kind) and not (name == path and name.is_file()):
            raise FormatError(
                f"{name} is not a plain file", "put the file itself there: an index has no links", location=str(name)
            )


def _state_of(path: Path) -> Any:
    """Return what a change of the files is seen by."""
    names = [Path(f"{path}{end}") for end in ("", "-wal")]
    return [(about.st_mtime_ns, about.st_size) for about in (name.stat() for name in names if name.exists())]


def _log_bytes(path: Path) -> int:
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def error_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    return TEXTS.get(str(error)) if code is None else code & PRIMARY_CODE


def _opening_error(error: sqlite3.DatabaseError, path: Path, read_only: bool) -> Exception:
    code = error_code(error)
    if not isinstance(error, sqlite3.OperationalError):
        return FormatError(f"{path} is not an index of slosh, or is damaged ({error})", location=str(path))
    if code in (CANNOT_OPEN, READ_ONLY):
        why = "it has a log, which" if read_only else "its folder"
        return PermissionError(errno.EACCES, f"cannot be opened ({error}): {why} must be writable", str(path))
    return storage_error(error, path)


def storage_error(error: sqlite3.Error, path: Path) -> SloshError:
    """Return an error of SQLite as one of slosh."""
    known = REMEDIES.get(error_code(error) or 0)
    if known is not None:
        return StorageError(f"{path}: {error}", known[1], errno=known[0], location=str(path))
    if error_code(error) in NOT_DAMAGE:
        return StorageError(
            f"{path}: {error}", "nothing of this change was stored", errno=errno.EIO, location=str(path)
        )
    return DamagedError(
        f"{path} is damaged ({error})", "restore it from a copy; index.verify() tells more", location=str(path)
    )


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as those of slosh. Do not wrap user callbacks: their errors are theirs."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(error, path) from None
