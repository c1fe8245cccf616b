"""One version of an index on disk, for reading: a transaction of SQLite and the snapshot that belongs to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...where import FieldColumns, Node, fields_of, parse_metadata
from ..base import Description, Int64, Mask, Records
from ..snapshot import LocalView
from . import tables
from .database import Connection
from .loading import Loaded
from .masks import mask_of_filter

if TYPE_CHECKING:
    from .engine import SqliteEngine

MAX_DESCRIBED = 1 << 16
"""Sets whose ids and metadata are remembered."""
FEW_ROWS = 64
"""Rows whose metadata are read instead of the fields: a range looks through all its values, of old rows and new."""


class SqliteView(LocalView):
    """A `View`; see the contract in `engines/base.py`."""

    def __init__(self, engine: SqliteEngine, connection: Connection, loaded: Loaded) -> None:
        self._engine, self._connection, self.loaded = engine, connection, loaded
        self.version, self.settings, self.spec = loaded.version, loaded.settings, loaded.spec
        self.snapshot, self.filters = loaded.snapshot, loaded.filters

    def __exit__(self, kind: object, *_: object) -> None:
        self._engine.database.end_reading(self._connection, failed=kind is not None)

    @property
    def next_id(self) -> int:
        (next_id,) = tables.read_settings(self._connection, "next_id")
        return int(next_id)

    @property
    def commits(self) -> list[str]:
        """Random texts, one for each of the last changes that added sets, the newest first: by them an index is told
        from another one in its place.
        """
        return tables.tokens(self._connection)

    def keys(self, ids: Sequence[str]) -> Int64:
        found = tables.rows_of(self._connection, ids)
        return np.array([found.get(name, -1) for name in ids], np.int64)

    def matching(self, where: Node, first: int = 0) -> Mask:
        n_rows = self.snapshot.n - first
        if first and n_rows <= FEW_ROWS:
            fields = FieldColumns()
            for row, each in sorted(tables.describe(self._connection, range(first, self.snapshot.n)).items()):
                fields.append(row - first, each.id, stored_fields(self._connection, each))
            return fields.mask(where, n_rows)
        try:
            return mask_of_filter(self._connection, where, first, self.snapshot.n)
        except (OverflowError, TypeError, ValueError):
            raise tables.damaged(self._connection, "the fields that filters look at are no rows") from None

    def ids(self, keys: Int64) -> list[str]:
        if len(keys) < len(self):
            return [each.id for each in self.describe(keys)]
        named = dict(self._connection.execute("SELECT row, id FROM sets"))  # all of them, without a list of rows
        self._check_all(keys.tolist(), named)
        return [named[row] for row in keys.tolist()]

    def describe(self, keys: Int64) -> list[Description]:
        known, rows = self.loaded.described, keys.tolist()
        try:
            return [known[row] for row in rows]
        except KeyError:
            missing = [row for row in dict.fromkeys(rows) if row not in known]
        found = tables.describe(self._connection, missing)
        self._check_all(missing, found)
        if len(known) + len(found) <= MAX_DESCRIBED:
            known.update(found)
        return [found[row] if row in found else known[row] for row in rows]

    def _check_all(self, rows: Sequence[int], found: Mapping[int, object]) -> None:
        lost = next((row for row in rows if row not in found), None)
        if lost is not None:
            raise tables.damaged(self._connection, f"row {lost} is missing")

    def sizes(self, keys: Int64) -> Int64:
        rows = keys.tolist()
        sql = "SELECT row, size FROM sets WHERE row IN (SELECT value FROM json_each(?))"
        found: dict[int, int] = dict(self._connection.execute(sql, [json.dumps(rows)]))
        self._check_all(rows, found)
        return np.array([found[row] for row in rows], np.int64)

    def records(self, keys: Int64) -> Records:
        weighted = bool(self.settings["weighted"])
        sets = tables.read_sets(self._connection, keys, self.spec.dim, weighted, self.spec.origin)
        lines = tables.describe(self._connection, keys.tolist())
        described = [lines[row] for row in keys.tolist()]
        metadata = [stored_metadata(self._connection, each) for each in described]
        return Records(sets, [each.id for each in described], metadata)

    def info(self) -> dict[str, Any]:
        total, smallest, largest = self._connection.execute(
            "SELECT coalesce(sum(size), 0), min(size), max(size) FROM sets"
        ).fetchone()
        return {
            "engine": "sqlite",
            "format": self._engine.database.format_version,
            "points": total,
            "sizes": None if smallest is None else {"smallest": smallest, "largest": largest},
            "removed_since_compact": tables.count_removed(self._connection),
            "compacted": self.loaded.generation,
            "trained_version": self.loaded.trained,
            "embedded_on_open": self.loaded.embedded,
            "cache_rebuilt": self.loaded.rebuilt,
            "disk_bytes": self._engine.disk_bytes(),
            **(self.snapshot.info() if len(self) else {}),
        }


def stored_metadata(connection: Connection, described: Description) -> dict[str, Any]:
    try:
        return parse_metadata(described.metadata)
    except ValueError as error:
        problem = f"the metadata of {described.id!r} cannot be read ({error})"
        raise tables.damaged(connection, problem, [described.id]) from None


def stored_fields(connection: Connection, described: Description) -> list[tuple[str, Any]]:
    return fields_of(stored_metadata(connection, described), f"metadata of {described.id!r}")
