"""A change of an index on disk: gathered in memory and in the files of the caches, then committed in one transaction.

Sets are embedded and their vectors appended to the caches while nothing is locked; nobody sees them, since a stamp does
not cover them. The transaction only inserts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.interrupts import interruptible
from ...errors import UnknownOutcome
from ...where import Metadata
from ..base import Entries, Int64
from ..snapshot import Snapshot
from ..spec import Embedded
from . import tables
from .database import Connection
from .view import SqliteView, stored_fields

if TYPE_CHECKING:
    from .engine import SqliteEngine


class SqliteWrite:
    """A `Write`; see the contract in `engines/base.py`."""

    def __init__(self, engine: SqliteEngine, view: SqliteView) -> None:
        self._engine, self.view = engine, view
        self._snapshot = view.loaded.snapshot
        self._settings = dict(view.settings)
        self._entries: list[Entries] = []
        self._deleted: list[Int64] = []
        self._metadata: list[tuple[Int64, Sequence[Metadata]]] = []
        self._next_id: int | None = None
        self.committed = False

    def free_ids(self, n: int) -> list[str]:
        first = self.view.next_id
        while True:
            names = [str(first + i) for i in range(n)]
            taken = [int(name) for name, row in zip(names, self.view.keys(names), strict=True) if row >= 0]
            if not taken:
                self._next_id = first
                return names
            first = max(taken) + 1

    def announce(self, ids: Sequence[str]) -> None:
        """Nobody is in the way of the only writer, and every id can be held."""

    def upsert(self, entries: Entries, embedded: Embedded) -> None:
        rows = self.view.keys(entries.ids)
        self.delete(rows[rows >= 0])
        self._snapshot = self._snapshot.extend(embedded)
        self._entries.append(entries)

    def delete(self, keys: Int64) -> None:
        if len(keys):
            self._deleted.append(keys)

    def set_metadata(self, keys: Int64, metadata: Sequence[Metadata]) -> None:
        self._metadata.append((keys, metadata))

    def set_settings(self, *, next_id: int | None = None, **settings: Any) -> None:
        if next_id is not None:
            self._next_id = next_id
        if "weighted" in settings and settings["weighted"] != self._settings["weighted"]:
            assert not self._snapshot.n
            self._snapshot = Snapshot.start(self.view.spec, bool(settings["weighted"]), self._engine.cache.column)
        self._settings |= settings

    def commit(self) -> None:
        """Put the changes on disk and make them the newest version."""
        engine, base = self._engine, self.view.loaded
        changed = self._entries or self._deleted or self._metadata or self._settings != dict(base.settings)
        if not changed and self._next_id is None:
            return
        removed = np.concatenate([np.empty(0, np.int64), *self._deleted])
        snapshot = self._snapshot.remove(removed)
        described, filters = base.described, dict(base.filters)
        if self._metadata:
            gone = {row for keys, _ in self._metadata for row in keys.tolist()}
            described, filters = {row: known for row, known in dict(described).items() if row not in gone}, {}
        after = replace(
            base,
            version=base.version + 1,
            settings=self._settings,
            snapshot=snapshot,
            described=described,
            filters=filters,
        )
        stamp = engine.cache.summed(snapshot.sets, made_on=self._settings["made_on"]) if self._entries else None
        try:
            with engine.database.writing() as connection:
                with interruptible():
                    self._store(connection, removed, after.version)
                if stamp is not None:
                    tables.add_commit(connection, stamp.rows, stamp.token)
                engine.commit(after, stamp, done=self._done)
        except UnknownOutcome as error:
            error.ids = tuple(name for entries in self._entries for name in entries.ids)
            raise

    def _done(self) -> None:
        self.committed = True

    def _store(self, connection: Connection, removed: Int64, version: int) -> None:
        next_row, next_body, next_id = tables.read_settings(connection, "next_row", "next_body", "next_id")
        next_id = next_id if self._next_id is None else self._next_id
        self._delete_fields(connection, removed)
        tables.delete(connection, removed, version)
        for entries in self._entries:
            tables.insert(connection, entries, next_row, next_body)
            n = len(entries.ids)
            next_row, next_body, next_id = next_row + n, next_body + n, next_id + n
        for keys, metadata in self._metadata:
            self._delete_fields(connection, keys)
            lines = zip((each.json for each in metadata), keys.tolist(), strict=True)
            connection.executemany("UPDATE sets SET metadata = ? WHERE row = ?", lines)
            fields = (each.fields for each in metadata)
            tables.insert_fields(connection, zip(keys.tolist(), fields, strict=True))
        if self._metadata:
            tables.write_settings(connection, metadata_version=version)
        weighted = self._settings["weighted"]
        tables.write_settings(
            connection,
            version=version,
            next_row=next_row,
            next_body=next_body,
            next_id=next_id,
            weighted=None if weighted is None else int(weighted),
            recall=self._settings["recall"],
        )
        if self._settings["part_recalls"] is not None:
            tables.write_settings(connection, part_recalls=self._settings["part_recalls"])

    def _delete_fields(self, connection: Connection, rows: Int64) -> None:
        described = tables.describe(connection, rows.tolist()) if len(rows) else {}
        tables.delete_fields(connection, ((row, stored_fields(connection, each)) for row, each in described.items()))
