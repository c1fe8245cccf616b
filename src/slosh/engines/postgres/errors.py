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
    ReadOnlyIndex,
    ServerLost,
    StorageError,
    UnsupportedError,
    WriteConflict,
)

CONFLICTS = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation, pg.LockNotAvailable)
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
    if isinstance(error, STARTING):
        return True
    if not isinstance(error, psycopg.OperationalError) or _is_refused(_told(error)):
        return False
    return error.sqlstate in (None, "08006", "08003", "08001", "08004")


def error_of(error: psycopg.Error, location: str) -> Exception:
    """Return an error of the server as one of slosh."""
    told = _told(error)
    problem = f"{location}: {told}"
    if isinstance(error, CONFLICTS):
        return WriteConflict(
            f"{location}: another writer changed the same sets at the same time, nothing was changed ({told})",
            "try again",
            location=location,
        )
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
def translated(location: str) -> Iterator[None]:
    """Raise errors of the server as those of slosh."""
    try:
        yield
    except psycopg.Error as error:
        raise error_of(error, location) from None
