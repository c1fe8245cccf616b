"""Indexes of older format versions: upgraded in one transaction when they are opened for writing.

Version 1 (slosh 0.1) had the tables `about` and `learnt` in place of `settings`, `commits` and `trained`, gaps between
its rows, and its specification in a zip archive of .npy files. Points, ids and metadata stay where they are; what was
trained is trained anew, and the caches are made again.

Version 2 had no lines in `fields` for lists and dicts without values.
"""

from __future__ import annotations

import io
import json
import logging
import uuid
import zipfile
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import DamagedError
from ...where import NO_VALUE, fields_of, parse_metadata
from ..spec import IndexSpec
from . import tables
from .database import Connection, Database
from .schema import FORMAT_VERSION, check_tables, statements

logger = logging.getLogger(__name__)

SCHEMA_1 = """
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
MAX_SPEC_BYTES = 1 << 31
RENAMED = {"_slicer": "slicer_", "_average": "average_"}
"""Fitted attributes of embeddings that had other names."""


def upgrade(database: Database) -> bool:
    """Bring a database of an older format to the current one; return whether it has to be trained."""
    found = database.format_version
    if found not in (1, 2):
        return False
    check_tables(database.main, str(database.path), *[SCHEMA_1] * (found == 1))
    with database.writing() as connection:
        if found == 1:
            _from_version_1(connection, str(database.path))
        _add_fields_without_values(connection)
        tables.write_settings(connection, metadata_version=tables.read_version(connection))
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    database.format_version = FORMAT_VERSION
    logger.info("%s: upgraded from format version %d to %d", database.path, found, FORMAT_VERSION)
    return found == 1


def _from_version_1(connection: Connection, location: str) -> None:
    about = dict(connection.execute("SELECT key, value FROM about"))
    spec = _read_spec(about.get("recipe"), location)
    new = ("settings", "removed", "commits", "trained")
    for table in ("about", "removed", "learnt"):
        connection.execute(f"DROP TABLE {table}")
    for statement in statements():
        if any(statement.startswith(f"CREATE TABLE {name}(") for name in new) or "INDEX" in statement:
            connection.execute(statement)
    n = tables.renumber(connection, "row")
    settings = {
        **tables.FIRST_SETTINGS,
        "spec": spec.pack(),
        "uid": about.get("uid"),
        "version": about.get("change", 0) + 1,
        "generation": about.get("generation", 0) + 1,
        "next_row": n,
        "next_body": about.get("next_body"),
        "next_id": about.get("next_row"),
        "weighted": about.get("weighted"),
        "recall": about.get("recall"),
    }
    tables.write_settings(connection, **settings)
    tables.read_settings(connection, *settings)  # refuses what is damaged, before it is committed
    tables.add_commit(connection, n, uuid.uuid4().hex)


def _add_fields_without_values(connection: Connection) -> None:
    lines = connection.execute("SELECT row, id, metadata FROM sets WHERE metadata LIKE '_%[%' OR metadata LIKE '_%{%'")
    for row, name, metadata in lines.fetchall():
        with suppress(ValueError, TypeError):  # damaged: `verify` says so
            fields = fields_of(parse_metadata(metadata), f"metadata of {name!r}")
            tables.insert_fields(connection, [(row, [field for field in fields if field[1] == NO_VALUE])])


def _read_spec(content: Any, location: str) -> IndexSpec:
    """Read the specification as version 1 packed it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_SPEC_BYTES:
                raise ValueError("it claims to be too large")
            header = json.loads(archive.read("header.json"))
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if name != "header.json"}
        tree, preprocess = header["recipe"], header["preprocess"]
        tree["embedding"]["has"] = {
            RENAMED.get(name, name): part for name, part in tree["embedding"].get("has", {}).items()
        }
    except MemoryError:  # of this machine, not of what is stored
        raise
    except Exception as error:  # whatever it is that others have put together
        raise DamagedError(
            f"the specification of {location} is damaged ({error!r:.200})", "restore it from a copy", location=location
        ) from None
    return IndexSpec.from_parts(tree, preprocess, arrays, location)
