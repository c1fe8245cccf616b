"""Reading and writing the tables of an index, by a connection that somebody else has opened.

Rows, ids and sets come in and go out. Whatever is read is checked, since the database may be of other people.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...data.batching import batches_by_points
from ...data.sets import Sets
from ...errors import DamagedError
from ..base import Description, Entries, Int64
from .database import Connection
from .schema import statements

LISTED_ONE_BY_ONE = 64
"""Rows that are parameters of their own in a SELECT; more go in as one list, in JSON."""
ROWS_PER_QUERY = 4096
IDS_PER_QUERY = 100_000
BATCH_POINTS = 1 << 20
MAX_INTEGER, MAX_SET_SIZE = 1 << 62, 1 << 40
KEPT_COMMITS = 1000
NUMBERS = ("version", "generation", "next_row", "next_body", "next_id", "trained", "metadata_version")
SETTING_KINDS: dict[str, type] = {
    **dict.fromkeys(NUMBERS, int), "uid": str, "spec": bytes, "weighted": bool, "recall": float,
    "part_recalls": object,
}  # fmt: skip
FIRST_SETTINGS: dict[str, Any] = {**dict.fromkeys(NUMBERS, 0), "weighted": None, "recall": None}
MISSING_SETTINGS = {"metadata_version": MAX_INTEGER - 1, "part_recalls": None}
"""What stands for a setting that a database does not have yet: its metadata may have been changed just now."""


def damaged(connection: Connection, what: str, ids: Iterable[str] = ()) -> DamagedError:
    """Return the error for stored data that fail their checks."""
    return DamagedError(
        f"{connection.path} is damaged: {what}",
        "restore it from a copy; index.verify() lists all that is damaged",
        location=str(connection.path),
        ids=tuple(ids),
    )


def read_settings(connection: Connection, *names: str) -> list[Any]:
    """Return the values of settings, checked."""
    lines = connection.execute(f"SELECT key, value FROM settings WHERE key IN ({_marks(len(names))})", names)
    found = {**MISSING_SETTINGS, **dict(lines)}
    for name in names:
        if name not in found or not _is_kind(found[name], SETTING_KINDS[name]):
            raise damaged(connection, f"its setting {name} is {found.get(name, 'missing')!r:.60}")
    return [found[name] for name in names]


def _is_kind(value: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and 0 <= value < MAX_INTEGER
    if kind is float:
        return value is None or (isinstance(value, float | int) and 0 < value <= 1)
    if kind is bool:
        return value is None or (isinstance(value, int) and value in (0, 1))
    return isinstance(value, kind)


def write_settings(connection: Connection, **values: Any) -> None:
    connection.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", values.items())


def read_version(connection: Connection) -> int:
    """Return the number of the last change."""
    line = connection.first_line("SELECT value FROM settings WHERE key = 'version'")
    if line is None or not _is_kind(line[0], int):
        raise damaged(connection, f"its setting version is {'missing' if line is None else line[0]!r:.60}")
    version: int = line[0]
    return version


def add_commit(connection: Connection, end_row: int, token: str) -> None:
    """Note that rows below `end_row` are there now; a cache of them has the same token."""
    connection.execute("INSERT OR REPLACE INTO commits VALUES (?, ?)", (end_row, token))
    connection.execute(
        "DELETE FROM commits WHERE end_row <= (SELECT end_row FROM commits ORDER BY end_row DESC LIMIT 1 OFFSET ?)",
        (KEPT_COMMITS,),
    )


def has_commit(connection: Connection, end_row: int, token: str) -> bool:
    return token_of(connection, end_row) == token


def token_of(connection: Connection, end_row: int) -> str | None:
    found = connection.execute("SELECT token FROM commits WHERE end_row = ?", (end_row,)).fetchone()
    return None if found is None else str(found[0])


def tokens(connection: Connection) -> list[str]:
    """Return the tokens of the last changes that added rows, the newest first."""
    return [str(token) for (token,) in connection.execute("SELECT token FROM commits ORDER BY end_row DESC")]


def rows_from(connection: Connection, first: int = 0) -> Int64:
    """Return the rows that are there, from `first` on, in order."""
    return _int64(connection, "SELECT row FROM sets WHERE row >= ? ORDER BY row", first)


def removed_since(connection: Connection, version: int = -1) -> Int64:
    return _int64(connection, "SELECT row FROM removed WHERE version > ?", version)


def last_row(connection: Connection) -> int:
    """Return the highest row that a set has or had; -1 if there was none."""
    n: int = connection.execute(
        "SELECT max(coalesce((SELECT max(row) FROM sets), -1), coalesce((SELECT max(row) FROM removed), -1))"
    ).fetchone()[0]
    return n


def count_removed(connection: Connection, first: int = 0) -> int:
    """Return how many rows were removed, from `first` on."""
    n: int = connection.execute("SELECT count(*) FROM removed WHERE row >= ?", (first,)).fetchone()[0]
    return n


def _int64(connection: Connection, sql: str, *values: Any) -> Int64:
    return np.fromiter((row for (row,) in connection.execute(sql, values)), np.int64)


def rows_of(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the rows of those ids that are there."""
    if len(ids) <= LISTED_ONE_BY_ONE:
        return dict(connection.execute(f"SELECT id, row FROM sets WHERE id IN ({_marks(len(ids))})", tuple(ids)))
    found: dict[str, int] = {}
    for first in range(0, len(ids), IDS_PER_QUERY):
        part = json.dumps(list(ids[first : first + IDS_PER_QUERY]))
        sql = "SELECT id, row FROM sets WHERE id IN (SELECT value FROM json_each(?))"
        found |= dict(connection.execute(sql, (part,)))
    return found


def describe(connection: Connection, rows: Sequence[int]) -> dict[int, Description]:
    """Return id and metadata of each row."""
    if len(rows) <= LISTED_ONE_BY_ONE:
        sql, values = f"SELECT row, id, metadata FROM sets WHERE row IN ({_marks(len(rows))})", list(rows)
    else:
        sql = "SELECT row, id, metadata FROM sets WHERE row IN (SELECT value FROM json_each(?))"
        values = [json.dumps(list(rows))]  # type: ignore[list-item]
    found = {row: Description(name, metadata) for row, name, metadata in connection.execute(sql, values)}
    for row, (name, metadata) in found.items():
        if type(name) is not str or type(metadata) is not str:
            raise damaged(connection, f"row {row} is damaged")
    return found


def read_sets(connection: Connection, rows: Int64, dim: int, weighted: bool, origin: Any) -> Sets:
    """Return the stored sets of these rows, in this order."""
    found: dict[int, tuple[Any, ...]] = {}
    for first in range(0, len(rows), ROWS_PER_QUERY):
        sql = (
            "SELECT sets.row, size, points, weights, crc FROM sets JOIN bodies USING (body) "
            "WHERE sets.row IN (SELECT value FROM json_each(?))"
        )
        part = json.dumps(rows[first : first + ROWS_PER_QUERY].tolist())
        found |= {line[0]: line for line in connection.execute(sql, (part,))}
    lines = []
    for row in rows.tolist():
        line = found.get(row)
        if line is None or not is_whole(line[1], line[2], line[3], line[4], dim):
            raise damaged(connection, f"the points of row {row} are damaged")
        lines.append(line)
    sizes = np.array([line[1] for line in lines], np.int64)
    points = np.frombuffer(bytearray().join(line[2] for line in lines), "<f4").reshape(-1, dim)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    own = None
    if weighted:
        ones = [np.ones(size, "<f4").tobytes() if weights is None else weights for _, size, _, weights, _ in lines]
        own = np.frombuffer(bytearray().join(ones), "<f4").astype(np.float32, copy=False)
    return Sets.from_checked(points.astype(np.float32, copy=False), offsets, own, origin)


def stream_sets(
    connection: Connection, rows: Int64, dim: int, weighted: bool, origin: Any
) -> Iterator[tuple[Int64, Sets]]:
    """Yield rows and their sets, in batches of bounded size."""
    if not len(rows):
        return
    lines = connection.execute("SELECT row, size FROM sets WHERE row >= ? ORDER BY row", (int(rows[0]),)).fetchall()
    for row, size in lines:
        if not isinstance(size, int) or not 0 < size < MAX_SET_SIZE:
            raise damaged(connection, f"the size of row {row} is damaged")
    there = np.array([row for row, _ in lines], np.int64)
    sizes = np.array([size for _, size in lines], np.int64)[np.searchsorted(there, rows)]
    for part in batches_by_points(sizes, BATCH_POINTS):
        yield rows[part], read_sets(connection, rows[part], dim, weighted, origin)


def is_whole(size: Any, points: Any, weights: Any, crc: Any, dim: int) -> bool:
    """Return whether points and weights are those that were stored, or at least such as could have been."""
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


def crc_of(points: Any, weights: Any) -> int:
    return zlib.crc32(points) if weights is None else zlib.crc32(weights, zlib.crc32(points))


def insert(connection: Connection, entries: Entries, first_row: int, first_body: int) -> None:
    """Store sets at the rows and bodies from these on."""
    sets = entries.sets
    points = np.ascontiguousarray(sets.points, "<f4").data.cast("B")
    weights = None if sets.weights is None else np.ascontiguousarray(sets.weights, "<f4").data.cast("B")
    starts, width = sets.offsets.tolist(), 4 * sets.dim

    def bodies() -> Iterator[tuple[Any, ...]]:
        for i in range(len(sets)):
            part = points[starts[i] * width : starts[i + 1] * width]
            own = None if weights is None else weights[4 * starts[i] : 4 * starts[i + 1]]
            yield first_body + i, crc_of(part, own), part, own

    connection.executemany("INSERT INTO bodies VALUES (?, ?, ?, ?)", bodies())
    texts = (metadata.json for metadata in entries.metadata)
    numbers = range(first_row, first_row + len(sets)), entries.ids, sets.sizes.tolist()
    lines = zip(*numbers, range(first_body, first_body + len(sets)), texts, strict=True)
    connection.executemany("INSERT INTO sets VALUES (?, ?, ?, ?, ?)", lines)
    insert_fields(connection, ((first_row + i, each.fields) for i, each in enumerate(entries.metadata)))


def insert_fields(connection: Connection, of_rows: Iterable[tuple[int, Any]]) -> None:
    lines = ((key, value, row) for row, fields in of_rows for key, value in fields)
    connection.executemany("INSERT OR IGNORE INTO fields VALUES (?, ?, ?)", lines)


def delete_fields(connection: Connection, of_rows: Iterable[tuple[int, Any]]) -> None:
    lines = ((key, value, row) for row, fields in of_rows for key, value in fields)
    connection.executemany("DELETE FROM fields WHERE key = ? AND value = ? AND row = ?", lines)


def delete(connection: Connection, rows: Int64, version: int) -> None:
    """Remove sets, and note by which version."""
    listed = [(row,) for row in rows.tolist()]
    connection.executemany("DELETE FROM bodies WHERE body = (SELECT body FROM sets WHERE row = ?)", listed)
    connection.executemany("DELETE FROM sets WHERE row = ?", listed)
    connection.executemany("INSERT INTO removed VALUES (?, ?)", [(row, version) for (row,) in listed])


def renumber(connection: Connection, order: str = "id") -> int:
    """Give the sets the rows 0, 1, 2, ... in the order of a column, and forget removals; return how many they are."""
    connection.execute("CREATE TEMP TABLE numbers(old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
    try:
        connection.execute(f"INSERT INTO numbers SELECT row, row_number() OVER (ORDER BY {order}) - 1 FROM sets")
        columns = "numbers.new, id, size, body, metadata"
        fill = {
            "sets": f"INSERT INTO new_sets SELECT {columns} FROM sets JOIN numbers ON row = old ORDER BY new",
            "fields": "INSERT INTO new_fields SELECT key, value, new FROM fields JOIN numbers ON row = old "
            "ORDER BY 1, 2, 3",
        }
        for name, statement in fill.items():
            made = next(sql for sql in statements() if sql.startswith(f"CREATE TABLE {name}("))
            connection.execute(made.replace(f"CREATE TABLE {name}(", f"CREATE TABLE new_{name}("))
            connection.execute(statement)
            connection.execute(f"DROP TABLE {name}")
            connection.execute(f"ALTER TABLE new_{name} RENAME TO {name}")
        connection.execute("DELETE FROM removed")
        connection.execute("DELETE FROM commits")
        count: int = connection.execute("SELECT count(*) FROM sets").fetchone()[0]
        return count
    finally:
        connection.execute("DROP TABLE numbers")


def _marks(n: int) -> str:
    return ", ".join("?" * n)
