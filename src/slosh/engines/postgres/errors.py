"""Errors of PostgreSQL as those of slosh: classes by what a caller can do about them."""

from __future__ import annotations

import errno
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


def is_lost(error: BaseException) -> bool:
    """Return whether the server went away, or has not come yet: it may be there again soon."""
    if isinstance(error, STARTING):
        return True
    return isinstance(error, psycopg.OperationalError) and error.sqlstate in (None, "08006", "08003", "08001", "08004")


def error_of(error: psycopg.Error, location: str) -> Exception:
    """Return an error of the server as one of slosh."""
    told = error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
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
        if "authentication failed" in told or "no password supplied" in told:
            remedy = "give a password by PGPASSWORD, ~/.pgpass or a service file"
            return AccessDenied(problem, remedy, errno.EACCES, location=location)
        return ServerLost(problem, "see whether the server runs, and try again", errno.ECONNRESET, location=location)
    return StorageError(problem, "try again, or see the server's log", location=location)


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Raise errors of the server as those of slosh."""
    try:
        yield
    except psycopg.Error as error:
        raise error_of(error, location) from None
