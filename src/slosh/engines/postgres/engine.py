"""An index in PostgreSQL: docs/postgres.md says what is stored where, what a version is, and who waits for whom.

An address is `postgresql://user@host/database#name`; everything before # is handed to libpq as it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import psycopg
from psycopg import errors as pg

from ...checkpoints import optional
from ...data.interrupts import interruptible
from ...errors import (
    DamagedError,
    IndexClosed,
    IndexExists,
    IndexNotFound,
    InputError,
    ReadOnlyIndex,
    StorageError,
)
from ...search import Calibration
from ...where import Node
from ..addresses import split_name, without_password
from ..locking import ChangeLock
from ..spec import WHOLE, IndexSpec, Vectors
from . import graph, outcome, scanning, schema
from .compacting import compact
from .connections import CHANGE_SECONDS, Pool, Session
from .errors import error_of, is_in_the_way, is_lost, translated
from .header import Learnt, begin, find, list_names
from .schema import Tables
from .upgrading import upgrade
from .verifying import verify_tables
from .view import PostgresView
from .write import PostgresWrite

KEPT_SPECS = 4
SHOWN_NAMES = 20
"""Names of other indexes that an error lists."""
KEPT_COUNTS = 256
COUNT_GROWTH = 0.05
"""How many sets a filter leaves is counted again when this part of the sets was added since, or after some changes."""
COUNT_CHANGES = 64
TRIES = 8
IN_STEP = (
    "pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() AND EXISTS"
    " (SELECT FROM pg_stat_wal_receiver WHERE coalesce(status, 'streaming') = 'streaming')"
)
"""Whether a standby has all that its primary has sent, and is told of more. Roles without rights see no status."""


class PostgresEngine:
    """One index of a database. `create` and `open` make one."""

    def __init__(
        self,
        address: str,
        pool: Pool,
        found: tuple[int, int],
        read_only: bool,
        n_jobs: int | None,
        device: str | None,
    ) -> None:
        self.location, self.read_only, self.closed = without_password(address), read_only, False
        self.index, generation = found
        self.pool, self._n_jobs, self._device, self._pid = pool, n_jobs, device, os.getpid()
        self._tables = Tables(self.index, generation)
        self._specs: dict[int, IndexSpec] = {}
        self._learnt: dict[tuple[int, int | None], Learnt] = {}
        self._counts: dict[tuple[int, Node], tuple[int, int, int]] = {}
        self._changes, self._cursors = ChangeLock(), count()

    @classmethod
    def create(
        cls, location: str, spec: IndexSpec, *, weighted: bool | None, n_jobs: int | None, device: str | None = None
    ) -> PostgresEngine:
        packed = spec.pack()
        schema.check_lengths(spec)

        shown = without_password(location)

        def make(pool: Pool, session: Session, name: str) -> tuple[int, int]:
            session.install_vectors(shown)
            schema.make(session)
            upgrade(session, shown)
            session.begin("BEGIN")
            try:
                (index,) = session.execute(
                    "INSERT INTO slosh.indexes (name, generation, spec, weighted, format)"
                    " VALUES (%s, 1, %s, %s, %s) RETURNING id",
                    (name, packed, weighted, schema.VERSION),
                ).fetchone()
                tables = Tables(index, 1)
                schema.make_bodies(session, tables)
                schema.make_generation(session, tables, spec)
                schema.make_indexes(session, tables)
                outcome.commit(pool, shown, session, index, "see whether slosh.open finds it")
            except pg.UniqueViolation:
                remedy = "open it with slosh.open, or give another name"
                raise IndexExists(f"{shown} exists", remedy, errno=errno.EEXIST, location=shown) from None
            return index, 1

        return cls._connected(location, make, False, n_jobs, device)

    @classmethod
    def open(cls, location: str, *, read_only: bool, n_jobs: int | None, device: str | None = None) -> PostgresEngine:
        def look(_: Pool, session: Session, name: str) -> tuple[int, int]:
            shown = without_password(location)
            version = None if session.vectors is None else schema.version_of(session)
            if version is not None and version > schema.VERSION:
                schema.check_version(version, shown)
            found = None if version is None else find(session, name)
            if found is None or version is None:
                names = () if version is None else list_names(session, SHOWN_NAMES)
                problem, remedy = f"there is no index at {shown}", "create one with slosh.SetIndex.create"
                if names:
                    remedy += f", or open another one of this database: {', '.join(map(repr, names))}"
                raise IndexNotFound(problem, remedy, errno=errno.ENOENT, location=shown, names=names)
            if read_only:
                schema.check_version(version, shown)
            else:
                upgrade(session, shown)
                schema.sweep(session)
            return found

        return cls._connected(location, look, read_only, n_jobs, device)

    @staticmethod
    def names_at(location: str) -> tuple[str, ...]:
        """Return the names of all indexes of a database."""
        shown = without_password(location)
        pool = Pool(split_name(location)[0], shown)
        try:
            session = pool.take(patience=0.0)
            try:
                with translated(shown):
                    return () if schema.version_of(session) is None else list_names(session)
            finally:
                session.close()
        finally:
            pool.close()

    @classmethod
    def _connected(
        cls,
        location: str,
        start: Callable[[Pool, Session, str], tuple[int, int]],
        read_only: bool,
        n_jobs: int | None,
        device: str | None,
    ) -> PostgresEngine:
        url, name = split_name(location)
        if name is None:
            problem = f"{without_password(url)} is a database, which may hold many indexes"
            raise InputError(problem, "give the name of one: name='shapes'", argument="name")
        shown = without_password(location)
        pool = Pool(url, shown)
        try:
            session = pool.take(patience=0.0)
            try:
                with translated(shown, changing=True):
                    found = start(pool, session, name)
            finally:
                if not session.connection.closed and not session.idle:
                    session.rollback()
                pool.give(session)
            engine = cls(location, pool, found, read_only, n_jobs, device)
            with engine.view():
                return engine
        except BaseException:
            pool.close()
            raise

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise IndexClosed("this process was forked from the one that opened the index", "open it again, here")
        if self.closed:
            raise IndexClosed("the index is closed", "open it again with slosh.open")

    # Connections

    def end_reading(self, session: Session, failed: bool) -> None:
        """End the transaction of a view."""
        try:
            if failed:
                session.rollback()
            else:
                with suppress(psycopg.Error):  # nothing depends on it
                    session.commit()
        finally:
            self.pool.give(session)

    def cursor_name(self) -> str:
        return f"slosh_{next(self._cursors):d}"

    # Reading

    def view(self) -> PostgresView:
        return self._view(None)

    def _view(self, patience: float | None) -> PostgresView:
        fresh, last = False, None
        for _ in range(TRIES):
            self._check_open()
            session = self.pool.take(fresh, patience)
            try:
                view = self._begin(session)
            except psycopg.Error as error:
                self.end_reading(session, failed=True)
                if not is_lost(error) and not is_in_the_way(error):
                    raise error_of(error, self.location) from None
                fresh = fresh or is_lost(error)  # `take` waits for the server
                last = error
                continue
            except BaseException:
                self.end_reading(session, failed=True)
                raise
            if view is not None:
                return view
            self.end_reading(session, failed=True)
        if last is not None:
            raise error_of(last, self.location) from None
        raise StorageError(f"{self.location} is compacted over and over", "try again", location=self.location)

    def _begin(self, session: Session) -> PostgresView | None:
        """Return a view; None if the index has another generation than was known, which is known now."""
        tables = self._tables
        try:
            header = begin(session, tables)
        except pg.UndefinedTable:
            session.rollback()
            header = None
        if header is not None:
            schema.check_version(header.format, self.location)
        known = tables.generation
        if header is None or header.generation != known or known not in self._specs:
            session.rollback()
            self._follow(session)
            return None
        return PostgresView(self, session, header, self._specs[known])

    def _follow(self, session: Session) -> None:
        """Find out the generation of the index, and its specification."""
        line = session.execute("SELECT generation, spec FROM slosh.indexes WHERE id = %s", (self.index,)).fetchone()
        if line is None:
            problem = f"{self.location} was deleted"
            raise IndexNotFound(problem, "create it again", errno=errno.ENOENT, location=self.location)
        generation, packed = line
        if generation not in self._specs:
            spec = IndexSpec.unpack(bytes(packed), self.location).run_by(self._n_jobs, self._device)
            self._specs = dict([*self._specs.items(), (generation, spec)][-KEPT_SPECS:])
        self._tables = Tables(self.index, generation)

    def spec_of(self, session: Session, generation: int) -> IndexSpec:
        """Return the specification of a generation, which is the newest of a transaction that nobody else changes."""
        if generation not in self._specs:
            self._follow(session)
        return self._specs[generation]

    def learnt_of(self, view: PostgresView) -> Learnt:
        """Return what was measured, as the version of a view has it."""
        at = view.header.generation, view.header.stamp
        if view.header.stamp is None:
            return Learnt()
        if at not in self._learnt:
            sql = "SELECT content FROM slosh.learnt WHERE index_id = %s AND generation = %s"
            (content,) = view.execute(sql, (self.index, at[0])).fetchone()
            try:
                self._learnt = {at: Learnt.from_text(content)}
            except (ValueError, TypeError, LookupError) as error:
                problem = f"{self.location}: what was measured cannot be read ({error!s:.200})"
                raise DamagedError(problem, "call index.compact()", location=self.location) from None
            return self._learnt[at]
        return self._learnt[at]

    def count_of(self, view: PostgresView, where: Node, condition: scanning.Condition) -> int:
        """Return about how many sets a filter leaves: counted, and remembered for a while."""
        at, header = (view.header.generation, where), view.header
        known = self._counts.get(at)
        if known is not None:
            left, added, changes = known
            if header.added - added <= COUNT_GROWTH * header.sets and header.changes - changes <= COUNT_CHANGES:
                return min(left, header.sets)
        view.set_modes(scanning.SCAN_MODES)
        sql = f"SELECT count(*) FROM {view.tables.sets} WHERE {condition.sql}"
        (left,) = view.execute(sql, condition.parameters, prepare=False).fetchone()
        self._counts = dict([*self._counts.items(), (at, (left, header.added, header.changes))][-KEPT_COUNTS:])
        return int(left)

    def server_info(self, view: PostgresView) -> dict[str, Any]:
        """Return what `info` says of the server: its version, sizes, and how far behind a standby is; None: unknown."""
        version, standby, lag, *sizes = view.execute(
            "SELECT current_setting('server_version'), pg_is_in_recovery(),"
            f" CASE WHEN {IN_STEP} THEN 0"
            " ELSE extract(epoch FROM now() - pg_last_xact_replay_timestamp())::float8 END,"
            " pg_total_relation_size(%s::regclass), pg_total_relation_size(%s::regclass),"
            " pg_total_relation_size(%s::regclass), coalesce(pg_relation_size(to_regclass(%s)), 0)",
            (view.tables.sets, view.tables.exact, view.tables.bodies, f"slosh.{view.tables.graph}"),
        ).fetchone()
        names = ("sets", "exact", "points", "graph")
        about = {"format": schema.VERSION, "server": version, "disk_bytes": dict(zip(names, sizes, strict=True))}
        about["disk_bytes"]["sets"] -= about["disk_bytes"]["graph"]
        return {**about, "standby": standby, "lag_seconds": lag} if standby else about

    def verify(self) -> Iterator[tuple[str, str, list[str]]]:
        with self.view() as view:
            yield from verify_tables(view)

    # Changing

    @contextmanager
    def _changing(self, *, write: bool = False) -> Iterator[None]:
        """Let one thread of this process change the index by this object; other processes do so at the same time."""
        self._check_open()
        with self._changes.writing() if write else self._changes.changing():
            self._check_open()
            if self.read_only:
                problem = f"{self.location} is open for reading only"
                raise ReadOnlyIndex(problem, "open it without read_only", location=self.location)
            yield

    @contextmanager
    def write(self) -> Iterator[PostgresWrite]:
        with self._changing(write=True), self._view(CHANGE_SECONDS) as view:
            write = PostgresWrite(self, view)
            try:
                yield write
                write.commit()
            finally:
                write.end()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Give a connection for work outside of a view."""
        session = self.pool.take(patience=CHANGE_SECONDS)
        try:
            with translated(self.location, changing=True):
                yield session
        finally:
            if not session.connection.closed and not session.idle:
                session.rollback()
            self.pool.give(session)

    def train(self, eager: bool = False, again: Iterable[tuple[int, float]] = ()) -> bool:
        with self._changing():
            with self.view() as view:
                build = eager and not view.header.graph and graph.is_useful(view)
            if build:  # its view has ended: a build waits for those who read
                build = self._build(view)
            if eager:
                with self._session() as session:
                    graph.tidy(session, view)
            with self.view() as view:
                pairs = graph.due(view, again) if eager and view.header.graph else []
                if pairs:
                    self._measure(view, pairs, None)
            if eager:
                self._sweep(patience="1ms")
            return build or bool(pairs)

    def _build(self, view: PostgresView) -> bool:
        with self._session() as session, interruptible():
            try:
                return graph.build(session, view)
            except pg.UndefinedTable:  # somebody has compacted the index meanwhile, and builds that of the new tables
                return False
            finally:
                session.close()

    def _measure(self, view: PostgresView, pairs: list[tuple[int, float]], queries: Vectors | None) -> Learnt:
        with interruptible():
            learnt = graph.measure(view, pairs, queries)
        with self._session() as session:
            return graph.store(session, view, learnt)

    def calibrate(self, space: str, k: int, recall: float, queries: Vectors | None) -> Calibration | None:
        with self._changing(), self.view() as view:
            if space != WHOLE or graph.is_exact(view, k, recall):
                return None
            known = graph.calibration_of(view.learnt, k, recall)
            if queries is None and known is not None and known.holds(view.header.sets, view.header.added):
                return known
            return graph.calibration_of(self._measure(view, [(k, recall)], queries), k, recall)

    def compact(self, spec: IndexSpec | None = None) -> None:
        with self._changing():
            packed = None if spec is None else spec.pack()
            if spec is not None:
                schema.check_lengths(spec)
            with self.view() as view:
                measured = view.calibrated
            with self._session() as session:
                compact(self, session, None if spec is None else spec.run_by(self._n_jobs, self._device), packed)
            with optional():
                self.train(eager=True, again=measured)
            self._sweep()

    def _sweep(self, patience: str = "20ms") -> None:
        with suppress(StorageError), self._session() as session:
            schema.sweep(session, patience)

    def close(self) -> None:
        if self._pid == os.getpid() and not self.closed:
            self.closed = True
            self.pool.close()

    def destroy(self) -> None:
        with self._changing():
            with self._session() as session:
                session.begin("BEGIN")
                sql = "DELETE FROM slosh.indexes WHERE id = %s RETURNING generation"
                line = session.execute(sql, (self.index,)).fetchone()
                if line is not None:
                    tables = Tables(self.index, line[0])
                    schema.leave(session, [tables.sets, tables.exact, tables.bodies], [tables.keys, tables.ids])
                    for table in ("learnt", "deltas", "commits"):
                        session.execute(f"DELETE FROM slosh.{table} WHERE index_id = %s", (self.index,))
                    schema.store_makers(session, self.index, None)
                outcome.commit(self.pool, self.location, session, self.index, "see whether slosh.open still finds it")
            self._sweep()
            self.close()
