"""Connections to the server: made with deadlines, kept in a pool, made again when the server was away.

A `Session` is a connection with what is known about it. It commits by itself; `begin` and `commit` are statements.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format, TransactionStatus

from ...checkpoints import checkpoint, watch_of_thread
from ...errors import AccessDenied, InputError, UnsupportedError
from .errors import error_of, is_crowded, is_lost

READ_DEADLINE = "60s"
"""How long a statement may take, unless the URL or the server says something else."""
LOCK_DEADLINE = "30s"
"""How long a change waits for another one."""
CANCEL_SECONDS = 5.0
"""How long a server may take to hear that a statement is to be cancelled."""
GONE_AFTER = "2s"
"""How often a server that is busy for a client looks whether it is still there. Servers on Linux can do that."""
MOST_IDLE = 16
"""Connections that are kept for the next use. A search uses one, and a change two."""
RECONNECT_SECONDS, CHANGE_SECONDS = 5.0, 30.0
"""How long one who reads, and one who changes something, waits for a server that went away, before it says so. As long
as it is known to be away nobody else waits."""
CROWDED_SECONDS = 30.0
"""How long a client waits for a connection where the server has none left."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0

ALWAYS = {"client_encoding": "utf8", "fallback_application_name": "slosh"}
"""What every connection has: texts are copied as UTF-8, whatever the address or PGCLIENTENCODING says."""
DEFAULTS = {"connect_timeout": ("5", "PGCONNECT_TIMEOUT"), "tcp_user_timeout": ("30000", "")}
"""What libpq is told unless the address, a service file or this variable says something else."""
ABOUT_VECTORS = """
    SELECT n.nspname, h.oid, h.typarray, e.extversion FROM pg_catalog.pg_extension e
    JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    JOIN pg_catalog.pg_type h ON h.typnamespace = n.oid AND h.typname = 'halfvec'
    WHERE e.extname = 'vector'"""
SET_UP = """
    SELECT set_config('idle_in_transaction_session_timeout', '0', false),
        CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', false) END,
        set_config('search_path', 'pg_catalog, ' || quote_ident(%s), false), set_config('jit', 'off', false),
        set_config('hnsw.iterative_scan', 'relaxed_order', false), set_config('bytea_output', 'hex', false),
        set_config('statement_timeout', CASE current_setting('statement_timeout') WHEN '0' THEN %s
            ELSE current_setting('statement_timeout') END, false),
        set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN %s
            ELSE current_setting('lock_timeout') END, false),
        CASE WHEN current_setting('client_connection_check_interval') = '0' AND version() LIKE '%%linux%%'
            THEN set_config('client_connection_check_interval', %s, false) END"""


def _defaults(given: Mapping[str, Any]) -> dict[str, str]:
    """Return what is said to libpq besides the address."""
    by_service = "service" in given or "PGSERVICE" in os.environ
    free = {name: about for name, about in DEFAULTS.items() if name not in given and not by_service}
    return {name: value for name, (value, variable) in free.items() if variable not in os.environ}


class Half(bytes):
    """A vector in the binary form of pgvector's halfvec; `HalfArray` is an array of them."""


class HalfArray(bytes):
    """An array of halfvec in PostgreSQL's binary form, but for the number of its type: see `Session`."""


class _BinaryDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


class _Connection(psycopg.Connection[Any]):
    """A connection whose statements are cancelled at a checkpoint; a long one comes to ten of them a second."""

    def wait(self, gen: Any, *given: Any, **options: Any) -> Any:
        if watch_of_thread() is None:
            return super().wait(gen, *given, **options)
        stopped: list[Exception] = []
        try:
            return super().wait(self._checked(gen, stopped), *given, **options)
        except psycopg.Error:
            if stopped:
                raise stopped[0] from None
            raise

    def _checked(self, gen: Any, stopped: list[Exception]) -> Generator[Any, Any, Any]:
        """Pass on what a generator of psycopg waits for; look in between whether the work is to be stopped."""
        try:
            waits = next(gen)
            while True:
                ready = yield waits
                if not ready and not stopped:
                    try:
                        checkpoint()
                    except Exception as error:
                        stopped.append(error)  # and wait for the server to say that it has cancelled it
                        self.cancel_safe(timeout=CANCEL_SECONDS)
                waits = gen.send(ready)
        except StopIteration as ended:
            return ended.value


class Session:
    """One connection. `modes` are the settings that it is known to have."""

    def __init__(self, url: str) -> None:
        given = None
        with suppress(psycopg.ProgrammingError):
            given = conninfo_to_dict(url)
        if given is None:  # what psycopg says may have the password in it, and must not be the context of an error
            problem, remedy = "this is no address that PostgreSQL knows", "give postgresql://user@host/database"
            raise InputError(problem, remedy, argument="path")
        if not re.fullmatch("[0-9,]*", str(given.get("port", ""))):  # perhaps a part of the password: it is not shown
            problem, remedy = "the port in this address is not a number", "write %2F for / and %40 for @ in a password"
            raise InputError(problem, remedy, argument="path")
        more: dict[str, Any] = {**_defaults(given), **ALWAYS}
        self.connection = _Connection.connect(url, autocommit=True, **more)
        self.modes: dict[str, str] = {}
        self.vectors: str | None = None
        self._prepared: set[str] = set()
        try:
            self._check_encoding()
            (deadline,) = self.execute("SELECT current_setting('statement_timeout')").fetchone()
            self._own_deadline = deadline == "0"
            self._find_vectors()
        except BaseException:
            self.connection.close()
            raise

    def _check_encoding(self) -> None:
        encoding = self.connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            problem = f"the database {self.connection.info.dbname!r} has the encoding {encoding}, and slosh needs UTF8"
            remedy = "use a database made by CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            raise UnsupportedError(problem, remedy, feature_name="encoding")

    def _find_vectors(self) -> None:
        """Look where pgvector is; None if the database does not have it yet."""
        found = self.connection.execute(ABOUT_VECTORS).fetchone()
        schema = "pg_catalog" if found is None else found[0]
        self.connection.execute(SET_UP, (schema, READ_DEADLINE, LOCK_DEADLINE, GONE_AFTER))
        if found is None:
            return
        self.vectors, oid, array, version = found
        if tuple(map(int, version.split(".")[:2])) < (0, 8):
            problem, remedy = f"pgvector {version} is too old", "ALTER EXTENSION vector UPDATE, to 0.8 or later"
            raise UnsupportedError(problem, remedy, feature_name="pgvector")
        self.half_oid = oid
        for kind, number in ((Half, oid), (HalfArray, array)):
            self.connection.adapters.register_dumper(kind, type("Dumped", (_BinaryDumper,), {"oid": number}))

    def install_vectors(self, location: str) -> None:
        """Put pgvector into the database, if it is not there: in the schema in which the role creates by default."""
        if self.vectors is None:
            self.connection.execute("RESET search_path")
            try:
                with suppress(pg.UniqueViolation, pg.DuplicateObject):  # somebody else was faster
                    self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except (pg.InsufficientPrivilege, pg.InvalidSchemaName) as error:
                problem = f"{location}: this role cannot create the extension vector ({error.diag.message_primary})"
                remedy = "let a superuser run CREATE EXTENSION vector in the database, once"
                raise AccessDenied(problem, remedy, errno.EACCES, location=location) from None
            self._find_vectors()

    @property
    def idle(self) -> bool:
        """Whether it can be given to somebody else."""
        return not self.connection.closed and self.connection.info.transaction_status == TransactionStatus.IDLE

    def execute(self, sql: Any, parameters: Sequence[Any] = (), prepare: bool | None = None) -> Any:
        """Run one statement, and return its cursor; results come in binary."""
        return self.connection.execute(sql, parameters, prepare=prepare, binary=True)

    def prepare(self, name: str, sql: str, again: bool = False) -> None:
        """Have the server keep a statement, unless it does so already."""
        if again or name not in self._prepared:
            self.connection.execute(sql)
            self._prepared.add(name)

    def set_modes(self, modes: Mapping[str, str]) -> None:
        """Change settings of the session, as far as they are others."""
        changed = {name: value for name, value in modes.items() if self.modes.get(name) != value}
        if changed:
            calls = ", ".join(["set_config(%s, %s, false)"] * len(changed))
            self.connection.execute(
                f"SELECT {calls}",
                [part for pair in changed.items() for part in pair],
            )
            self.modes |= changed

    def allow(self, deadline: str) -> None:
        """Let the statements of this transaction take longer, unless the address or the server has set a deadline."""
        if self._own_deadline:
            self.connection.execute(f"SET LOCAL statement_timeout = '{deadline}'")

    def begin(self, statement: str) -> None:
        self.connection.execute(statement)

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Give up the transaction; the settings that were changed in it are as before.

        Where an interrupt came in the midst of a statement, or of rows that are copied, the server waits for the rest:
        then the connection is closed, which gives the transaction up as well.
        """
        self.modes = {}
        if self.connection.info.transaction_status == TransactionStatus.ACTIVE:
            self.close()
            return
        with suppress(psycopg.Error):
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.connection.close()


class _Place:
    """A place in the queue of those who wait for a connection, and what they were given."""

    session: Session | None = None


class Pool:
    """Connections that wait for their next use; the server says how many there may be. It belongs to one process.

    Where the server has no more, threads stand in a queue for what others give back.

    Why not psycopg_pool (3.3 was tried)? It connects in threads of its own, four for each pool, and whoever waits for a
    connection gets a PoolTimeout, whatever the reason is: a wrong password, a missing database and a server that is
    away are three errors here, the first two at once. A process that is forked from its owner is given the owner's
    connections. It has nothing like `fresh`, but for a question to the server whenever a connection is taken, which a
    search would pay for.
    """

    def __init__(self, url: str, location: str) -> None:
        self._url, self._location, self._idle = url, location, list[Session]()
        self._lock, self._closed, self._pid = threading.Condition(), False, os.getpid()
        self._waiting: deque[_Place] = deque()
        self._is_away = False  # somebody has waited for the server in vain, and nobody has reached it since

    def take(self, fresh: bool = False, patience: float | None = None, insist: bool = False) -> Session:
        """Return a connection; `fresh` takes none that may have been lost. `give` it back.

        patience : how many seconds to wait for a server that is away; None is as long as one who reads waits.
        insist : wait also where the server is known to be away.
        """
        lost: list[Session] = []
        with self._lock:
            if fresh:
                lost, self._idle = self._idle, lost
            found = self._idle.pop() if self._idle else None
        for each in lost:
            each.close()
        return self._connect(fresh, patience, insist) if found is None else found

    def _connect(self, fresh: bool, patience: float | None, insist: bool) -> Session:
        started, pause = time.monotonic(), FIRST_PAUSE
        patience = RECONNECT_SECONDS if patience is None else patience
        crowd_patience = max(patience, CROWDED_SECONDS) if patience else 0.0
        patience = patience if insist or not self._is_away else 0.0
        while True:
            checkpoint()
            try:
                made = Session(self._url)
                self._is_away = False
                return made
            except psycopg.Error as error:
                crowded = is_crowded(error)
                end = started + (crowd_patience if crowded else patience)
                if not is_lost(error) or time.monotonic() + pause >= end or self._closed:
                    self._is_away = is_lost(error) and not crowded
                    raise error_of(error, self._location) from None
                shared = not fresh or crowded  # what others give back is good if the server is there
            if (given := self._wait(pause, shared)) is not None:
                return given
            pause = min(2 * pause, LONGEST_PAUSE)

    def _wait(self, seconds: float, shared: bool) -> Session | None:
        """Wait for a while; return a connection if one is given back meanwhile and may be `shared`."""
        if not shared:
            time.sleep(seconds)
            return None
        place = _Place()
        with self._lock:
            if self._idle:  # given back since the last look
                return self._idle.pop()
            self._waiting.append(place)
            try:
                self._lock.wait_for(lambda: place.session is not None or self._closed, seconds)
            except BaseException:
                if place.session is not None:
                    self._idle.append(place.session)
                raise
            finally:
                if place in self._waiting:
                    self._waiting.remove(place)
            return place.session

    def give(self, session: Session) -> None:
        """Take a connection back, unless it is not usable any more."""
        if self._pid != os.getpid():
            return
        keep = session.idle
        with self._lock:
            if keep and not self._closed and self._waiting:
                self._waiting.popleft().session = session
                self._lock.notify_all()
                return
            if keep and not self._closed and len(self._idle) < MOST_IDLE:
                self._idle.append(session)
                return
        session.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
            self._lock.notify_all()
        for each in idle:
            each.close()
