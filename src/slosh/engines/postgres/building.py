"""The graph is made while others go on: searches always, and changes, too, where nobody reads for long.

CREATE INDEX CONCURRENTLY lets others change the table. At its end it waits for all transactions of the database that
began before it was done, whatever they read: for one that copies an index, perhaps in this process, or for a dump. So
it is chosen if there is no such transaction as it begins, and given up if one that came later stays. Then the graph is
made in the ordinary way: searches go on, and changes wait until it is there.

A concurrent build that was given up, or whose client was killed, leaves an index that is not valid, which the server
does not use. Nobody takes it for the graph: `slosh.learnt` says that there is one when all is done. Whoever builds next
drops it. One client builds at a time: it holds an advisory lock, which the server takes back with the connection.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg

from .connections import Session
from .schema import Tables

LOCK_CLASS = 0x51054
"""The first number of the advisory lock of those who build; the second is that of the index."""
BUILD_DEADLINE = "24h"
CONCURRENT_LOCK_DEADLINE = "60s"
"""How long a concurrent build waits for others, each time that it has to."""
DROP_DEADLINE = "10s"
READERS_SECONDS = 2.0
"""How long those who read as a build begins may go on; if they take longer, it is no concurrent one."""
READERS = """
    SELECT pid, xact_start, backend_xmin FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL AND backend_type IS DISTINCT FROM 'autovacuum worker'"""
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"


def is_valid(session: Session, tables: Tables) -> bool | None:
    """Return whether the server uses the graph of these tables; None if there is none."""
    line = session.execute(VALID, (f"slosh.{tables.graph}",)).fetchone()
    return None if line is None else bool(line[0])


def make_graph(session: Session, tables: Tables, definition: str) -> bool | None:
    """Make the index of the vectors; return False if it was there, and None if another client is making it.

    `definition` is what follows the name of the index. The connection is to be closed afterwards: the lock and other
    deadlines end with it.
    """
    (alone,) = session.execute("SELECT pg_try_advisory_lock(%s, %s)", _lock_of(tables)).fetchone()
    if not alone:
        return None
    session.execute(f"SET statement_timeout = '{BUILD_DEADLINE}'")
    found = is_valid(session, tables)
    if found is False:
        _drop(session, tables)
    if not found and not (_can_be_concurrent(session) and _made_concurrently(session, tables, definition)):
        session.execute(f"SET lock_timeout = '{BUILD_DEADLINE}'")
        session.execute(f"CREATE INDEX {tables.graph} {definition}")
    return not found


def _lock_of(tables: Tables) -> tuple[int, int]:
    return LOCK_CLASS, tables.number & 0x7FFFFFFF


def _drop(session: Session, tables: Tables) -> None:
    session.execute(f"SET lock_timeout = '{DROP_DEADLINE}'")
    session.execute(f"DROP INDEX IF EXISTS slosh.{tables.graph}")


def _can_be_concurrent(session: Session) -> bool:
    """Return whether those who read now are soon done."""
    end, first = time.monotonic() + READERS_SECONDS, _readers(session)
    while first:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
        first &= _readers(session)
    return True


def _readers(session: Session) -> set[tuple[Any, ...]]:
    return set(session.execute(READERS).fetchall())


def _made_concurrently(session: Session, tables: Tables, definition: str) -> bool:
    """Return False if others do not let it come to an end; nothing of it is left then."""
    session.execute(f"SET lock_timeout = '{CONCURRENT_LOCK_DEADLINE}'")
    try:
        session.execute(f"CREATE INDEX CONCURRENTLY {tables.graph} {definition}")
    except (pg.LockNotAvailable, pg.DeadlockDetected):
        _drop(session, tables)
        return False
    except BaseException:
        with suppress(psycopg.Error):  # if it cannot be dropped now, the next build does it
            _drop(session, tables)
        raise
    return True
