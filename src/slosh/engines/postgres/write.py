"""A change of an index in PostgreSQL: one transaction, which begins with the version that its view shows.

What other writers have changed since makes it fail (`WriteConflict`), before anything of it can be seen. Removals and
metadata are kept back until the end, as the view does not show them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from ...errors import WriteConflict
from ...where import Metadata
from ..base import Entries, Int64
from ..spec import Embedded
from . import outcome, schema, storing
from .connections import CHANGE_SECONDS, Session
from .errors import translated
from .filters import fields_json
from .view import PostgresView

if TYPE_CHECKING:
    from .engine import PostgresEngine

WRITE_DEADLINE = "1h"
"""How long a statement of a change may take."""
LOOK_FOR_IDS = "see whether the ids are there; adding again with update=True does no harm"
FOLD_AFTER = 16
"""Changes after which the rows that count them are added up."""


class PostgresWrite:
    """A `Write`; see the contract in `engines/base.py`."""

    def __init__(self, engine: PostgresEngine, view: PostgresView) -> None:
        self._engine, self.view, self._tables = engine, view, view.tables
        self._session: Session | None = None
        self._settings: dict[str, Any] = {}
        self._deleted: list[Int64] = []
        self._metadata: list[tuple[Int64, Sequence[Metadata]]] = []
        self._next_id: int | None = None
        self._names: list[str] = []
        self._counted: set[str] = set()
        self._scales = view.header.scales
        self._sets = self._added = self._points = 0
        self.committed = False

    def free_ids(self, n: int) -> list[str]:
        names: list[str] = []
        with translated(self._engine.location, changing=True):
            while len(names) < n:
                sql = f"SELECT nextval('{self._tables.ids}') FROM generate_series(1, %s)"
                session = self._writing()
                drawn = [str(number) for (number,) in session.execute(sql, (n - len(names),))]
                keys = self.view.keys(drawn).tolist()
                names += [name for name, key in zip(drawn, keys, strict=True) if key < 0]
        self._counted.update(names)
        return names

    def _writing(self) -> Session:
        """Return the connection of the change, in a transaction that sees what the view sees."""
        if self._session is None:
            (snapshot,) = self.view.execute("SELECT pg_export_snapshot()").fetchone()
            assert re.fullmatch(r"[0-9A-Fa-f-]+", snapshot)
            session = self._session = self._engine.pool.take(patience=CHANGE_SECONDS)
            session.begin("BEGIN ISOLATION LEVEL REPEATABLE READ")
            session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            session.allow(WRITE_DEADLINE)
            # Writers share this lock; `compact` and a change of settings have it alone.
            alone = "UPDATE" if self._settings or self._scales is None else "SHARE"
            session.execute(f"SELECT FROM slosh.indexes WHERE id = %s FOR {alone}", (self._engine.index,))
        return self._session

    def announce(self, ids: Sequence[str]) -> None:
        schema.check_ids(ids)
        with translated(self._engine.location, changing=True):
            self._writing().execute(f"LOCK TABLE {self._tables.sets} IN ROW EXCLUSIVE MODE")

    def upsert(self, entries: Entries, embedded: Embedded) -> None:
        engine, tables = self._engine, self._tables
        replaced = self.view.keys(entries.ids)
        with translated(engine.location, changing=True):
            session = self._writing()
            if self._scales is None:
                self._scales = self._settings["scales"] = storing.scales_of(storing.largest_of(embedded))
            self._delete(session, replaced[replaced >= 0])
            keys = storing.next_keys(session, tables, len(entries.ids))
            storing.store_points(session, tables, keys, entries)
            storing.store(session, tables, self.view.spec, self._scales, keys, keys, entries, embedded)
            if new := int(np.count_nonzero(replaced < 0)) - len(self._counted.intersection(entries.ids)):
                session.execute(f"SELECT count(nextval('{tables.ids}')) FROM generate_series(1, %s)", (new,))
        self._names += entries.ids
        self._sets, self._added = self._sets + len(entries.ids), self._added + len(entries.ids)
        self._points += len(entries.sets.points)

    def _delete(self, session: Session, keys: Int64) -> None:
        if not len(keys):
            return
        sql = f"DELETE FROM {self._tables.sets} WHERE key = ANY (%s) RETURNING body, size"
        gone = session.execute(sql, (keys.tolist(),)).fetchall()
        if len(gone) != len(keys):
            raise WriteConflict("some of the sets are gone", "try again", location=self._engine.location)
        session.execute(f"DELETE FROM {self._tables.bodies} WHERE body = ANY (%s)", ([body for body, _ in gone],))
        session.execute(f"DELETE FROM {self._tables.exact} WHERE key = ANY (%s)", (keys.tolist(),))
        self._sets -= len(gone)
        self._points -= sum(size for _, size in gone)

    def delete(self, keys: Int64) -> None:
        if len(keys):
            self._deleted.append(keys)

    def set_metadata(self, keys: Int64, metadata: Sequence[Metadata]) -> None:
        self._metadata.append((keys, metadata))

    def set_settings(self, *, next_id: int | None = None, **settings: Any) -> None:
        if next_id is not None:
            self._next_id = next_id
        self._settings |= {name: value for name, value in settings.items() if self.view.settings[name] != value}

    def commit(self) -> None:
        """Make the changes the newest version."""
        started = self._session is not None and self._added
        if not (started or self._deleted or self._metadata or self._settings or self._next_id is not None):
            return
        with translated(self._engine.location, changing=True):
            session = self._writing()
            for keys in self._deleted:
                self._delete(session, keys)
            for keys, metadata in self._metadata:
                self._describe(session, keys, metadata)
            self._store_settings(session)
            session.execute(
                "INSERT INTO slosh.deltas VALUES (%s, %s, %s, %s, 1)",
                (self._engine.index, self._sets, self._added, self._points),
            )
        engine = self._engine
        outcome.commit(engine.pool, engine.location, session, engine.index, LOOK_FOR_IDS, self._names)
        self.committed = True
        if self.view.header.changes % FOLD_AFTER == FOLD_AFTER - 1:
            self._fold(session)

    def _describe(self, session: Session, keys: Int64, metadata: Sequence[Metadata]) -> None:
        changed = session.execute(
            f"UPDATE {self._tables.sets} s SET metadata = u.metadata, fields = u.fields::jsonb"
            " FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS u(key, metadata, fields) WHERE s.key = u.key",
            (keys.tolist(), [each.json for each in metadata], [fields_json(each) for each in metadata]),
        ).rowcount
        if changed != len(keys):
            raise WriteConflict("some of the sets are gone", "try again", location=self._engine.location)

    def _store_settings(self, session: Session) -> None:
        for name in ("weighted", "recall", "part_recalls", "scales"):
            if name in self._settings:
                sql = f"UPDATE slosh.indexes SET {name} = %s WHERE id = %s"
                session.execute(sql, (self._settings[name], self._engine.index))
        if "made_on" in self._settings:
            schema.store_makers(session, self._engine.index, self._settings["made_on"])
        if self._next_id is not None:
            session.execute(f"SELECT setval('{self._tables.ids}', %s, false)", (self._next_id,))

    def _fold(self, session: Session) -> None:
        """Add up the rows that count changes, and forget tokens that nobody asks for any more."""
        with suppress(psycopg.Error):
            session.execute(
                "WITH gone AS (DELETE FROM slosh.deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM slosh.deltas"
                " WHERE index_id = %s FOR UPDATE SKIP LOCKED)) RETURNING *) INSERT INTO slosh.deltas"
                " SELECT index_id, sum(sets), sum(added), sum(points), sum(changes) FROM gone GROUP BY index_id",
                (self._engine.index,),
            )
            session.execute("DELETE FROM slosh.commits WHERE at < now() - interval '1 day'")

    def end(self) -> None:
        """Let go of the connection; what is not committed is given up."""
        if self._session is not None:
            session, self._session = self._session, None
            if not session.connection.closed and not session.idle:
                session.rollback()
            self._engine.pool.give(session)
