"""The one source of truth of an index: an SQLite database of ids, metadata, points, parameters and what was learnt.

    about      one line each: dim, what was fixed at creation, and counters
    sets       a line for each set that is there: its row, id, number of elements, metadata as JSON, and its body
    bodies     points and weights as bytes, float32, little-endian, and a CRC-32 of both
    fields     a line for each value of the metadata, sorted by it: what `where` is answered from
    removed    rows that were removed, and by which change; rows are never used twice
    learnt     what the search has learnt, the newest version

Every change is one transaction, with write-ahead log and synchronous=FULL: when it returns it is on disk, all of it.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sets import Sets

Int64 = NDArray[np.int64]

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
LISTED = "SELECT row, id, metadata FROM sets WHERE row IN (SELECT value FROM json_each(?))"
FEW = 64
"""Rows that are asked for one by one; more go in one list."""
BATCH_POINTS = 1 << 20
LARGEST, LARGEST_SET = 1 << 62, 1 << 40
KINDS: dict[str, type] = {
    **dict.fromkeys(("change", "generation", "next_row", "next_body", "learnt"), int),
    **dict.fromkeys(("uid", "session", "sessions"), str),
    "recipe": bytes,
    "weighted": bool,
    "recall": float,
}
"""What is in `about`."""
SESSIONS = 500
"""So many of those that have written are remembered, each with its first change: caches may be of any of them."""
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


# What is in it


def about(connection: sqlite3.Connection, *keys: str) -> list[Any]:
    """Values by their names."""
    found = dict(connection.execute(f"SELECT key, value FROM about WHERE key IN ({_marks(len(keys))})", keys))
    if missing := set(keys) - set(found):
        raise ValueError(f"the index is damaged: it has no {', '.join(sorted(missing))}")
    for key in keys:
        if not _is_kind(found[key], KINDS[key]):
            raise ValueError(f"the index is damaged: its {key} is {found[key]!r:.60}")
    return [found[key] for key in keys]


def _is_kind(value: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and 0 <= value < LARGEST
    if kind is float:
        return value is None or (isinstance(value, float | int) and 0 < value <= 1)
    if kind is bool:
        return value is None or (isinstance(value, int) and value in (0, 1))
    return isinstance(value, kind)


def set_about(connection: sqlite3.Connection, **values: Any) -> None:
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", values.items())


def change(connection: sqlite3.Connection) -> int:
    """The number of the last change."""
    number: int = about(connection, "change")[0]
    return number


def number(connection: sqlite3.Connection, change: int, who: str, **values: Any) -> None:
    """Ends a change: its number, and who made it, a session that writes."""
    if about(connection, "session")[0] != who:
        values["session"] = who
        values["sessions"] = json.dumps([*sessions(connection), (who, change)][-SESSIONS:])
    set_about(connection, change=change, **values)


def sessions(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Who has written, each with the first change."""
    (text,) = about(connection, "sessions")
    try:
        return [(str(who), int(first)) for who, first in json.loads(text)]
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise ValueError(f"the index is damaged: its sessions are {text!r:.60}") from None


def alive(connection: sqlite3.Connection, after: int = -1) -> Int64:
    """The rows that are there, in order, from `after` on."""
    return np.fromiter(
        (row for (row,) in connection.execute("SELECT row FROM sets WHERE row > ? ORDER BY row", (after,))), np.int64
    )


def removed_since(connection: sqlite3.Connection, number: int) -> Int64:
    return np.fromiter(
        (row for (row,) in connection.execute("SELECT row FROM removed WHERE change > ?", (number,))), np.int64
    )


def rows_of(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """The rows of those ids that are there."""
    if len(ids) <= FEW:
        return dict(connection.execute(f"SELECT id, row FROM sets WHERE id IN ({_marks(len(ids))})", ids))
    found: dict[str, int] = {}
    for first in range(0, len(ids), 100_000):
        part = json.dumps(list(ids[first : first + 100_000]))
        found |= dict(
            connection.execute("SELECT id, row FROM sets WHERE id IN (SELECT value FROM json_each(?))", (part,))
        )
    return found


def free_ids(connection: sqlite3.Connection, first: int, n: int) -> list[str]:
    """n numbers that are no ids yet, as strings, from `first` on."""
    while True:
        names = [str(first + i) for i in range(n)]
        taken = rows_of(connection, names)
        if not taken:
            return names
        first = max(int(name) for name in taken) + 1


def described(connection: sqlite3.Connection, rows: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Of each of these rows its id and its metadata, as JSON."""
    sql, values = LISTED, [json.dumps(rows)] if len(rows) > FEW else list(rows)
    if len(rows) <= FEW:
        sql = f"SELECT row, id, metadata FROM sets WHERE row IN ({_marks(len(rows))})"
    found = {row: (name, metadata) for row, name, metadata in connection.execute(sql, values)}
    for row, (name, metadata) in found.items():
        if type(name) is not str or type(metadata) is not str:
            raise ValueError(f"row {row} is damaged: restore the index from a copy; verify() lists all such rows")
    return found


def read_sets(connection: sqlite3.Connection, rows: Int64, dim: int, weighted: bool, origin: Any) -> Sets:
    """The sets of these rows, in this order."""
    found: dict[int, tuple[Any, ...]] = {}
    for first in range(0, len(rows), 4096):
        part = json.dumps(rows[first : first + 4096].tolist())
        sql = (
            "SELECT sets.row, size, points, weights, crc FROM sets JOIN bodies USING (body) "
            "WHERE sets.row IN (SELECT value FROM json_each(?))"
        )
        found |= {line[0]: line for line in connection.execute(sql, (part,))}
    if missing := [row for row in rows.tolist() if row not in found]:
        raise _damaged(missing[0])
    return _joined([found[row] for row in rows.tolist()], dim, weighted, origin)


def stream_sets(
    connection: sqlite3.Connection, rows: Int64, dim: int, weighted: bool, origin: Any
) -> Iterator[tuple[Int64, Sets]]:
    """Rows and their sets, batch by batch."""
    first = int(rows[0]) if len(rows) else 0
    lines = connection.execute("SELECT row, size FROM sets WHERE row >= ? ORDER BY row", (first,)).fetchall()
    for row, size in lines:
        if not isinstance(size, int) or not 0 < size < LARGEST_SET:
            raise _damaged(row)
    sizes = np.array([size for _, size in lines], np.int64)
    there = np.array([row for row, _ in lines], np.int64)
    sizes = sizes[np.searchsorted(there, rows)]
    group = np.cumsum(sizes) // BATCH_POINTS
    cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(rows)]
    for a, b in pairwise(cuts):
        if b > a:
            yield rows[a:b], read_sets(connection, rows[a:b], dim, weighted, origin)


def _joined(lines: list[tuple[Any, ...]], dim: int, weighted: bool, origin: Any) -> Sets:
    for row, size, points, weights, crc in lines:
        if not is_whole(size, points, weights, crc, dim):
            raise _damaged(row)
    sizes = np.array([line[1] for line in lines], np.int64)
    points = np.frombuffer(bytearray().join(line[2] for line in lines), "<f4").reshape(-1, dim)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    own = None
    if weighted:
        ones = [np.ones(size, "<f4").tobytes() if weights is None else weights for _, size, _, weights, _ in lines]
        own = np.frombuffer(bytearray().join(ones), "<f4").astype(np.float32, copy=False)
    return Sets._share(points.astype(np.float32, copy=False), offsets, own, origin)


def is_whole(size: Any, points: Any, weights: Any, crc: Any, dim: int) -> bool:
    """Whether points and weights are those that were stored, or at least such as could have been."""
    if not isinstance(size, int) or not isinstance(points, bytes) or not isinstance(weights, bytes | None):
        return False
    if size < 1 or len(points) != 4 * size * dim or (weights is not None and len(weights) != 4 * size):
        return False
    if crc_of(points, weights) != crc or not np.isfinite(np.frombuffer(points, "<f4")).all():
        return False
    if weights is None:
        return True
    own = np.frombuffer(weights, "<f4")
    return bool(np.isfinite(own).all() and own.min() >= 0 and own.max() > 0)


def _damaged(row: int) -> ValueError:
    return ValueError(f"the points of row {row} are damaged: restore the index from a copy; verify() lists all of them")


def crc_of(points: Any, weights: Any) -> int:
    return zlib.crc32(points) if weights is None else zlib.crc32(weights, zlib.crc32(points))


def insert(
    connection: sqlite3.Connection,
    rows: Int64,
    bodies: Int64,
    ids: Sequence[str],
    metadata: Sequence[str],
    fields: Iterable[tuple[str, Any, int]],
    sets: Sets,
) -> None:
    """Lines for new sets."""
    points = np.ascontiguousarray(sets.points, "<f4").data.cast("B")
    weights = None
    if sets.weights is not None:
        weights = np.ascontiguousarray(sets.weights, "<f4").data.cast("B")
    starts, width = sets.offsets.tolist(), 4 * sets.dim

    def body_lines() -> Iterator[tuple[Any, ...]]:
        for i, body in enumerate(bodies.tolist()):
            part = points[starts[i] * width : starts[i + 1] * width]
            own = None if weights is None else weights[4 * starts[i] : 4 * starts[i + 1]]
            yield body, crc_of(part, own), part, own

    connection.executemany("INSERT INTO bodies VALUES (?, ?, ?, ?)", body_lines())
    lines = zip(rows.tolist(), ids, sets.sizes.tolist(), bodies.tolist(), metadata, strict=True)
    connection.executemany("INSERT INTO sets VALUES (?, ?, ?, ?, ?)", lines)
    connection.executemany("INSERT OR IGNORE INTO fields VALUES (?, ?, ?)", fields)


def delete(connection: sqlite3.Connection, rows: Int64, fields: Iterable[tuple[str, Any, int]], number: int) -> None:
    """Takes sets out, and says by which change."""
    listed = [(row,) for row in rows.tolist()]
    connection.executemany("DELETE FROM bodies WHERE body = (SELECT body FROM sets WHERE row = ?)", listed)
    connection.executemany("DELETE FROM sets WHERE row = ?", listed)
    connection.executemany("DELETE FROM fields WHERE key = ? AND value = ? AND row = ?", fields)
    connection.executemany("INSERT INTO removed VALUES (?, ?)", [(row, number) for (row,) in listed])


def renumber(connection: sqlite3.Connection) -> None:
    """Rows 0, 1, 2, ... in the order of the ids, and no removals: the database as of a fresh build.

    The rows to come stay as they are: the ids that are counted are made of them, and are never given out twice.
    """
    connection.execute("CREATE TEMP TABLE numbers(old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
    try:
        connection.execute("INSERT INTO numbers SELECT row, row_number() OVER (ORDER BY id) - 1 FROM sets")
        columns = "numbers.new, id, size, body, metadata"
        for name, statement in (
            ("sets", f"INSERT INTO new_sets SELECT {columns} FROM sets JOIN numbers ON row = old ORDER BY new"),
            (
                "fields",
                "INSERT INTO new_fields SELECT key, value, new FROM fields JOIN numbers ON row = old ORDER BY 1, 2, 3",
            ),
        ):
            made = next(s for s in SCHEMA.split(";") if s.strip().startswith(f"CREATE TABLE {name}("))
            connection.execute(made.replace(f"CREATE TABLE {name}(", f"CREATE TABLE new_{name}("))
            connection.execute(statement)
            connection.execute(f"DROP TABLE {name}")
            connection.execute(f"ALTER TABLE new_{name} RENAME TO {name}")
        connection.execute("DELETE FROM removed")
    finally:
        connection.execute("DROP TABLE numbers")


def _marks(n: int) -> str:
    return ", ".join("?" * n)
