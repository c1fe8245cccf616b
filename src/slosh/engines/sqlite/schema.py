"""The tables of an index in SQLite, and the check that a database is one.

settings   a value for each name: the specification, counters, the version that last changed metadata of sets that were
           there before (0 if none did), and what a user has set
sets       a line for each set that is there: its row, id, number of elements, metadata as JSON, and its body
bodies     points and weights as bytes, float32, little-endian, and a CRC-32 of both
fields     a line for each value of the metadata, sorted by it: what filters are answered from; an empty blob for a list
           or dict without values
removed    rows that were removed, and by which version; a row is never used twice between two compactions
commits    a random token for each of the last changes that added rows: by it a cache knows its database
trained    what the search has learnt, the newest version of it
"""

from __future__ import annotations

import sqlite3
from typing import Any

from ...errors import FormatError

APPLICATION_ID = 0x534C4F53  # "SLOS"
FORMAT_VERSION = 3
PARTS_VERSION = 4
"""The format of an index with part search: the same tables, and a specification that older versions cannot read."""
SCHEMA = """
CREATE TABLE settings(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sets(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, body INTEGER NOT NULL,
                  metadata TEXT NOT NULL);
CREATE TABLE bodies(body INTEGER PRIMARY KEY, crc INTEGER NOT NULL, points BLOB NOT NULL, weights BLOB);
CREATE TABLE fields(key TEXT NOT NULL, value NOT NULL, row INTEGER NOT NULL,
                    PRIMARY KEY(key, value, row)) WITHOUT ROWID;
CREATE TABLE removed(row INTEGER PRIMARY KEY, version INTEGER NOT NULL);
CREATE INDEX removed_by_version ON removed(version);
CREATE TABLE commits(end_row INTEGER PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE trained(version INTEGER PRIMARY KEY, state BLOB NOT NULL);
"""
STATISTICS = {"CREATE TABLE sqlite_stat1(tbl,idx,stat)", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"}
"""What SQLite's ANALYZE leaves, which does no harm."""


def statements(schema: str = SCHEMA) -> list[str]:
    return [statement.strip() for statement in schema.split(";") if statement.strip()]


def create_tables(connection: sqlite3.Connection, version: int = FORMAT_VERSION) -> None:
    for statement in statements():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")


def format_version(connection: sqlite3.Connection, location: str) -> int:
    """Return the format version of an index; FormatError if the database is something else."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise FormatError(f"{location} is a database, but not an index of slosh", location=location)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_tables(connection: sqlite3.Connection, location: str, schema: str = SCHEMA) -> None:
    """Refuse a database with other tables, word for word: no view, trigger or computed column is ever asked for."""
    lines = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    found = {_words(sql) for _, _, sql in lines if sql is not None} - STATISTICS
    hidden = [name for kind, name, sql in lines if sql is None and kind != "index"]
    if found != {_words(sql) for sql in statements(schema)} or hidden:
        names = sorted({str(name) for _, name, sql in lines if sql is not None})
        raise FormatError(
            f"{location} is not an index of slosh: it has {', '.join(names)[:200] or 'no tables'}", location=location
        )


def _words(sql: Any) -> str:
    return " ".join(str(sql).replace('"', "").split())
