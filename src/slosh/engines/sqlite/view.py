"""One version of an index on disk, for reading: a transaction of SQLite and the snapshot that belongs to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...search import Allowed
from ...where import Node, parse_metadata
from ..base import Description, Int64, Mask, Records
from ..snapshot import LocalView, Snapshot
from . import tables
from .database import storage_errors
from .filters import compile_filter
from .schema import FORMAT_VERSION

if TYPE_CHECKING:
    from .engine import SqliteEngine

MAX_DESCRIBED = 1 << 16
"""Sets whose ids and metadata are remembered."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """What is held in memory of one version. `described` and `filters` are memos of what the database says."""

    version: int
    generation: int
    trained: int
    settings: Mapping[str, Any]
    snapshot: Snapshot
    described: dict[int, Description] = field(default_factory=dict)
    filters: dict[Node, Allowed] = field(default_factory=dict)


class SqliteView(LocalView):
    """A `View`; see the contract in `engines/base.py`."""

    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection, loaded: Loaded) -> None:
        self._engine, self._connection, self.loaded = engine, connection, loaded
        self.version, self.settings, self.spec, self.snapshot = (
            loaded.version, loaded.settings, engine.spec, loaded.snapshot,
        )  # fmt: skip
        self._path, self.filters = engine.database.path, loaded.filters

    def keys(self, ids: Sequence[str]) -> Int64:
        with storage_errors(self._path):
            found = tables.rows_of(self._connection, ids)
        return np.array([found.get(name, -1) for name in ids], np.int64)

    def matching(self, where: Node) -> Mask:
        sql, values = compile_filter(where)  # a row may come twice: it only sets the mask
        with storage_errors(self._path):
            lines = self._connection.execute(sql, values)
            try:
                rows = np.fromiter((row for (row,) in lines), np.int64)
            except (OverflowError, TypeError, ValueError):
                raise tables.damaged("the fields that filters look at are damaged") from None
        mask = np.zeros(self.snapshot.n, np.bool_)
        mask[rows[(rows >= 0) & (rows < len(mask))]] = True
        return mask

    def ids(self, keys: Int64) -> list[str]:
        if len(keys) < len(self):
            described = self.describe(keys)
            return [described[row].id for row in keys.tolist()]
        with storage_errors(self._path):  # all of them, without a list of rows
            named = dict(self._connection.execute("SELECT row, id FROM sets"))
        return [named[row] for row in keys.tolist()]

    def describe(self, keys: Int64) -> Mapping[int, Description]:
        known = self.loaded.described
        missing = [row for row in dict.fromkeys(keys.tolist()) if row not in known]
        if not missing:
            return known
        with storage_errors(self._path):
            found = tables.describe(self._connection, missing)
        if len(found) < len(missing):
            lost = next(row for row in missing if row not in found)
            raise tables.damaged(f"row {lost} is missing in the database")
        if len(known) + len(found) > MAX_DESCRIBED:
            return {**{row: known[row] for row in keys.tolist() if row in known}, **found}
        known.update(found)
        return known

    def records(self, keys: Int64) -> Records:
        weighted = bool(self.settings["weighted"])
        with storage_errors(self._path):
            sets = tables.read_sets(self._connection, keys, self.spec.dim, weighted, self.spec.origin)
            lines = tables.describe(self._connection, keys.tolist())
        described = [lines[row] for row in keys.tolist()]
        return Records(sets, [each.id for each in described], [stored_metadata(each) for each in described])

    def info(self) -> dict[str, Any]:
        connection = self._connection
        with storage_errors(self._path):
            total, smallest, largest = connection.execute(
                "SELECT coalesce(sum(size), 0), min(size), max(size) FROM sets"
            ).fetchone()
            removed = connection.execute("SELECT count(*) FROM removed").fetchone()[0]
        return {
            "engine": "sqlite",
            "format": FORMAT_VERSION,
            "points": total,
            "sizes": None if smallest is None else {"smallest": smallest, "largest": largest},
            "removed_since_compact": removed,
            "compacted": self.loaded.generation,
            "trained_version": self.loaded.trained,
            **self._engine.info(),
            **(self.snapshot.info() if len(self) else {}),
        }


def stored_metadata(described: Description) -> dict[str, Any]:
    try:
        return parse_metadata(described.metadata)
    except ValueError as error:
        raise tables.damaged(f"the metadata of {described.id!r} are damaged ({error})", [described.id]) from None
