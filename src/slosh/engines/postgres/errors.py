"""Errors of PostgreSQL as those of slosh: classes by what a caller can do about them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from ...errors import (
    AccessDenied,
    FormatError,
    InputError,
    ReadOnlyIndex,
    ServerLost,
    StorageError,
    UnsupportedError,
    WriteConflict,
)

CONFLICTS = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation)
LOST_STATES = (None, "08006", "08003", "08001", "08004", "57P05")
"""Codes of a connection that is gone; None is libpq's own."""
ENDED_STATES = ("25P03", "25P04")
"""A server that ends connections whose transactions take too long, although slosh asked it not to."""
CROWDED = ("too many clients", "too many connections", "remaining connection slots", "no more connections allowed")
"""Parts of the messages of a server, or of PgBouncer, that has no connection left."""
STARTING = (pg.CannotConnectNow, pg.AdminShutdown, pg.CrashShutdown, pg.TooManyConnections)
STRANGE = (pg.UndefinedTable, pg.UndefinedColumn, pg.DatatypeMismatch, pg.WrongObjectType, pg.DuplicateTable)
"""What tables of others lead to, and tables that others have changed."""


REFUSED = {
    "authentication failed": "give the right password by PGPASSWORD, ~/.pgpass or a service file",
    "no password supplied": "give a password by PGPASSWORD, ~/.pgpass or a service file",
    "pg_hba.conf": "let the administrator of the server allow this role to connect from here (pg_hba.conf)",
    "permission denied for database": "let its owner GRANT CONNECT ON DATABASE to the role",
    "is not permitted to log in": "use another role, or let an administrator ALTER ROLE ... LOGIN",
}
"""Parts of the messages of a server that does not let a client in, and what to do.

There is nothing but the message to tell these from a server that is away: libpq has no code for it. In another language
it counts as one that is away."""
NO_DATABASE = re.compile(r'database "[^"]*" does not exist')


def _told(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__


def _is_refused(told: str) -> bool:
    return NO_DATABASE.search(told) is not None or any(part in told for part in REFUSED)


def is_lost(error: BaseException) -> bool:
    """Return whether the server went away, or has not come yet: it may be there again soon."""
    if isinstance(error, STARTING) or (isinstance(error, psycopg.Error) and error.sqlstate in ENDED_STATES):
        return True
    if not isinstance(error, psycopg.OperationalError) or _is_refused(_told(error)):
        return False
    return error.sqlstate in LOST_STATES


def is_crowded(error: psycopg.Error) -> bool:
    """Return whether the server is there, and has no connection left."""
    return isinstance(error, pg.TooManyConnections) or any(part in _told(error) for part in CROWDED)


def is_in_the_way(error: psycopg.Error) -> bool:
    """Return whether a standby has stopped one who reads, to go on with what the primary did: it may be read again."""
    return isinstance(error, pg.SerializationFailure | pg.DeadlockDetected)


def _conflict(error: psycopg.Error, location: str, told: str, changing: bool) -> Exception | None:
    """Return the error of one whom others were in the way of; None if nobody was."""
    if isinstance(error, pg.LockNotAvailable):
        problem = f"{location}: others hold a lock for longer than is waited for one ({told})"
        remedy = "try again when they are done, or wait longer: ?options=-c%20lock_timeout%3D5min in the URL"
        if changing:
            problem += "; a compact or the build of a graph may take so long, nothing was changed"
            return WriteConflict(problem, remedy, errno.ETIMEDOUT, location=location)
        return StorageError(problem, remedy, errno.ETIMEDOUT, location=location)
    if isinstance(error, CONFLICTS) and changing:
        problem = f"{location}: another writer changed the same sets at the same time, nothing was changed ({told})"
        return WriteConflict(problem, "try again", location=location)
    if is_in_the_way(error):
        remedy = (
            "try again; to have it seldom, set hot_standby_feedback = on or a longer max_standby_streaming_delay on the"
            " standby"
        )
        return ServerLost(f"{location}: {told}", remedy, errno.EAGAIN, location=location)
    return None


def error_of(error: psycopg.Error, location: str, changing: bool = False) -> Exception:
    """Return an error of the server as one of slosh; `changing` says whether the statement was part of a change."""
    told = _told(error)
    problem = f"{location}: {told}"
    if found := _conflict(error, location, told, changing):
        return found
    if isinstance(error, pg.ProgramLimitExceeded):
        remedy = "give shorter ids, or less metadata to a set"
        return InputError(f"{problem}: PostgreSQL cannot hold it, nothing was changed", remedy)
    if is_crowded(error):
        remedy = (
            "raise max_connections of the server, or let fewer threads and processes use it: one that searches takes a"
            " connection, one that changes two"
        )
        return ServerLost(problem, remedy, errno.EAGAIN, location=location)
    if isinstance(error, pg.QueryCanceled):
        remedy = (
            "try again if somebody cancelled it; if it took too long, ask for less at a time, or give it more time:"
            " ?options=-c%20statement_timeout%3D5min in the URL"
        )
        return StorageError(problem, remedy, errno.ETIMEDOUT, location=location)
    if isinstance(error, pg.DiskFull | pg.OutOfMemory | pg.InsufficientResources):
        return StorageError(problem, "make room on the server and try again", errno.ENOSPC, location=location)
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return ReadOnlyIndex(problem, "a standby takes no changes: open the primary", location=location)
    if isinstance(error, pg.InsufficientPrivilege | pg.InvalidAuthorizationSpecification):
        remedy = "use another role, or let an owner grant the rights (docs/postgres.md)"
        return AccessDenied(problem, remedy, errno.EACCES, location=location)
    if isinstance(error, STRANGE):
        remedy = "move away what is not slosh's, or use another database"
        return FormatError(f"{problem}: the schema slosh is not as slosh makes it", remedy, location=location)
    if isinstance(error, pg.UndefinedFile | pg.FeatureNotSupported):
        remedy = "install pgvector 0.8 or later on the server, and CREATE EXTENSION vector in the database"
        return UnsupportedError(problem, remedy, feature_name="pgvector")
    if is_lost(error):
        return ServerLost(problem, "see whether the server runs, and try again", errno.ECONNRESET, location=location)
    if NO_DATABASE.search(told):
        remedy = "create the database on the server, or correct its name in the address"
        return StorageError(problem, remedy, errno.ENOENT, location=location)
    if remedy := next((remedy for part, remedy in REFUSED.items() if part in told), ""):
        return AccessDenied(problem, remedy, errno.EACCES, location=location)
    return StorageError(problem, "try again, or see the server's log", location=location)


@contextmanager
def translated(location: str, changing: bool = False) -> Iterator[None]:
    """Raise errors of the server as those of slosh."""
    try:
        yield
    except psycopg.Error as error:
        raise error_of(error, location, changing) from None
