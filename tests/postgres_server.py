"""One PostgreSQL server for all tests of a process: started when the first test needs it, stopped at its end."""

from __future__ import annotations

import atexit
import time
from functools import lru_cache
from itertools import count

import pytest

from builders import PATIENCE
from slosh.engines.postgres.local_server import NOT_DURABLE, LocalServer
from slosh.errors import MissingExtra

DATABASES = count()


@lru_cache(maxsize=1)
def shared_server():
    """Return a running server whose data nobody needs after a crash."""
    settings = {**NOT_DURABLE, "max_connections": "200", "shared_buffers": "256MB", "max_wal_size": "2GB"}
    settings |= {"autovacuum": "off"}
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    try:
        server = LocalServer(settings=settings)
    except MissingExtra as error:
        pytest.skip(str(error))
    atexit.register(server.remove)
    return server.start()


def new_database():
    """Return the URL of an empty database of the shared server."""
    server, name = shared_server(), f"db{next(DATABASES)}"
    ask(server.url, f"CREATE DATABASE {name}")
    return server.url.replace("/postgres?", f"/{name}?")


def ask(url, *statements):
    """Run statements, each by itself, and return the rows of the last one."""
    import psycopg

    rows = []
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


def wait_until(url, condition, what="it never came to that"):
    """Wait until a statement returns something that is true."""
    import psycopg

    end = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < end:
            if all(connection.execute(f"SELECT {condition}").fetchone()):
                return
            time.sleep(0.01)
    pytest.fail(f"{what}: {condition}")
