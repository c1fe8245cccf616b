"""The lines of an index's database, read and written by a connection that somebody else has opened.

Rows, ids and sets come in and go out. Whatever is read is checked, since the database may be of other people.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.sets import Sets
from .database import SCHEMA

Int64 = NDArray[np.int64]

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
    return Sets.from_checked(points.astype(np.float32, copy=False), offsets, own, origin)


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
