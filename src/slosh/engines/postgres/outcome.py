"""Commits, and what became of those whose answer was lost: each change leaves a token by which its client finds out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import psycopg

from ...errors import ServerLost, SloshError, UnknownOutcome
from .connections import FIRST_PAUSE, LONGEST_PAUSE, Pool, Session
from .errors import error_of, is_lost, translated

RECONNECT_SECONDS = 30.0
"""How long a client waits for a server that can say what became of a commit: longer than for one that is only asked."""
LOOK = "SELECT EXISTS (SELECT FROM slosh.commits WHERE token = %s), pg_is_in_recovery()"


def commit(pool: Pool, location: str, session: Session, index: int, remedy: str, ids: Sequence[str] = ()) -> None:
    """Commit a change of an index; if the answer is lost, find out whether it was made.

    `remedy` is what to do if nobody can tell, and `ids` are the sets that the change stores.
    """
    token = secrets.token_hex(16)
    with translated(location, changing=True):
        session.execute("INSERT INTO slosh.commits (token, index_id) VALUES (%s, %s)", (token, index))
        (number,) = session.execute("SELECT pg_current_xact_id()::text").fetchone()
    try:
        session.commit()
        return
    except psycopg.Error as error:
        if not is_lost(error):
            raise error_of(error, location, changing=True) from None
        session.close()
    made = happened(pool, location, token, number)
    if made is None:
        problem = f"{location}: the connection was lost while a change was committed: it may be stored or not"
        raise UnknownOutcome(problem, f"when the server is back, {remedy}", location=location, ids=tuple(ids))
    if not made:
        problem = f"{location}: the connection was lost before the change was stored, nothing was changed"
        raise ServerLost(problem, "try again", location=location)


def happened(pool: Pool, location: str, token: str, number: str) -> bool | None:
    """Return whether a commit was made, by its token; None if no server that takes changes comes back in time."""
    end, pause = time.monotonic() + RECONNECT_SECONDS, FIRST_PAUSE
    while time.monotonic() < end:
        try:
            session = pool.take(fresh=True, patience=max(0.0, end - time.monotonic()), insist=True)
        except SloshError:
            break
        try:
            found, standby = session.execute(LOOK, (token,)).fetchone()
            if found:
                return True
            if not standby and not _in_progress(session, number):  # a standby may only not have heard of it
                return bool(session.execute(LOOK, (token,)).fetchone()[0])
        except psycopg.Error as error:
            if not is_lost(error):
                raise error_of(error, location) from None
        finally:
            pool.give(session)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return None


def _in_progress(session: Session, number: str) -> bool:
    """Return whether a transaction is still under way. A server that took over may not know its number."""
    try:
        (status,) = session.execute("SELECT pg_xact_status(%s::xid8)", (number,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return False
    return bool(status == "in progress")
