"""Checks of the database of an index by itself; the caches and the answers are checked by the index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...data.progress import ProgressBar
from ...errors import DamagedError, StorageError
from ...where import fields_of, parse_metadata
from . import tables
from .database import Connection

MAX_LISTED = 20
"""Problems of one kind that are listed."""
ORPHANS = {
    "sets without points": "SELECT id FROM sets LEFT JOIN bodies USING (body) WHERE bodies.body IS NULL",
    "points without a set": "SELECT body FROM bodies WHERE body NOT IN (SELECT body FROM sets)",
    "metadata fields without a set": "SELECT DISTINCT row FROM fields WHERE row NOT IN (SELECT row FROM sets)",
    "sets that are both removed and there": "SELECT id FROM sets WHERE row IN (SELECT row FROM removed)",
}


def verify_database(connection: Connection, dim: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what was checked, how much of it, and the problems that were found."""
    try:
        yield from _verify_tables(connection, dim)
    except (DamagedError, StorageError) as error:
        yield "database", "unreadable", [f"the database: {error}"]


def _verify_tables(connection: Connection, dim: int) -> Iterator[tuple[str, str, list[str]]]:
    lines = [line for (line,) in connection.execute(f"PRAGMA integrity_check({MAX_LISTED})")]
    problems = [f"the database: {line}" for line in lines if line != "ok"]
    counts = {
        name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("sets", "bodies", "fields")
    }
    for what, sql in ORPHANS.items():
        found = [str(line[0]) for line in connection.execute(f"{sql} LIMIT {MAX_LISTED}")]
        if found:
            problems.append(f"{what}: {', '.join(found)}")
    next_row, next_body = tables.read_settings(connection, "next_row", "next_body")
    for table, column, following in (("sets", "row", next_row), ("bodies", "body", next_body)):
        highest = connection.execute(f"SELECT coalesce(max({column}), -1) FROM {table}").fetchone()[0]
        if highest >= following:
            problems.append(f"{table}: {column} {highest} is there, and the next would be {following}")
    if counts["sets"] + tables.count_removed(connection) != next_row:
        problems.append(f"there are {counts['sets']} sets, which does not fit the counters")
    yield "database", ", ".join(f"{n} {name}" for name, n in counts.items()), problems
    yield _verify_points(connection, dim)
    yield _verify_fields(connection)


def _verify_points(connection: Connection, dim: int) -> tuple[str, str, list[str]]:
    """Check every byte of the points against its checksum."""
    damaged, n = [], 0
    sql = "SELECT id, size, crc, points, weights FROM sets JOIN bodies USING (body) ORDER BY row"
    total = connection.execute("SELECT count(*) FROM sets").fetchone()[0]
    found: Any = iter(connection.execute(sql).fetchone, None)
    lines: Any = ProgressBar(found, total=total, unit="set", desc="points")
    for name, size, crc, points, weights in lines:
        if not tables.is_whole(size, points, weights, crc, dim):
            damaged.append(repr(name))
        n += 1
    problems = []
    if damaged:
        problems = [f"the points of {len(damaged)} sets are damaged: {', '.join(damaged[:MAX_LISTED])}"]
    return "points", f"{n} sets against their checksums", problems


def _verify_fields(connection: Connection) -> tuple[str, str, list[str]]:
    """Check the fields that filters are answered from against the metadata, set by set."""
    there: int = connection.execute("SELECT count(*) FROM fields").fetchone()[0]
    meant, wrong = 0, []
    sql = "SELECT count(*) FROM fields WHERE key = ? AND value = ? AND typeof(value) = typeof(?) AND row = ?"
    for row, name, text in connection.execute("SELECT row, id, metadata FROM sets WHERE metadata != '{}'"):
        try:
            fields = set(fields_of(parse_metadata(text), repr(name)))
        except (ValueError, TypeError) as error:
            wrong.append(f"{name!r} ({error})")
            continue
        meant += len(fields)
        if any(connection.execute(sql, (key, value, value, row)).fetchone()[0] != 1 for key, value in fields):
            wrong.append(repr(name))
    problems = []
    if wrong:
        problems = [f"the fields that filters look at are not the metadata of {', '.join(wrong[:MAX_LISTED])}"]
    elif there != meant:
        problems = [f"filters look at {there} values, and the metadata have {meant}"]
    return "metadata", f"{there} values", problems
