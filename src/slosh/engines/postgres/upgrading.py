"""Tables of older versions of the layout: upgraded step by step when an index is opened for writing.

Each step brings all indexes of a database from one version to the next, in one transaction: whoever looks sees the
tables before it or after it. Of two clients that upgrade at once one waits for the other, and finds nothing left to do.

Version 1 had no `format` in `slosh.indexes`, by which clients notice an upgrade, and no index of `slosh.commits` by
time, so that forgetting old tokens read all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from psycopg import errors as pg

from ...errors import AccessDenied, StorageError
from . import schema
from .connections import Session

logger = logging.getLogger(__name__)

STEP_DEADLINE = "24h"
"""How long a statement of an upgrade may take: it may have to go through all rows."""


def _from_version_1(session: Session) -> None:
    session.execute("ALTER TABLE slosh.indexes ADD COLUMN format integer NOT NULL DEFAULT 2")
    session.execute("ALTER TABLE slosh.indexes ALTER COLUMN format DROP DEFAULT")
    session.execute("CREATE INDEX commits_by_time ON slosh.commits (at)")


STEPS: Mapping[int, Callable[[Session], None]] = MappingProxyType({1: _from_version_1})
"""By version, what makes the next one of it."""


def upgrade(session: Session, location: str) -> None:
    """Bring the tables of this database to the current version; refuse those of a newer one."""
    while (found := schema.version_of(session) or 0) in STEPS:
        try:
            if _take_step(session):
                logger.info("%s: upgraded from version %d to %d", location, found, found + 1)
        except pg.InsufficientPrivilege as error:
            problem = f"{location} has version {found} and must be upgraded to {schema.VERSION}, which needs its owner"
            told = f"{problem} ({error.diag.message_primary})"
            remedy = "let the owner of the schema slosh open an index of it for writing once"
            raise AccessDenied(told, remedy, location=location) from None
        except pg.LockNotAvailable:
            problem = f"{location} has version {found} and cannot be upgraded while others change it"
            raise StorageError(problem, "try again when they are done", location=location) from None
    schema.check_version(found, location)


def _take_step(session: Session) -> bool:
    """Take one step, and return True, unless other clients have taken all of them."""
    with session.connection.transaction():
        session.execute(f"SET LOCAL statement_timeout = '{STEP_DEADLINE}'")
        (value,) = session.execute(f"{schema.SELECT_VERSION} FOR UPDATE").fetchone()
        if (step := STEPS.get(int(value))) is None:
            return False
        step(session)
        session.execute("UPDATE slosh.indexes SET format = %s", (int(value) + 1,))
        session.execute("UPDATE slosh.about SET value = %s WHERE name = 'version'", (str(int(value) + 1),))
    return True
