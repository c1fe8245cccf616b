"""One PostgreSQL server for all tests of a process: started when the first test needs it, stopped at its end."""

from __future__ import annotations

import atexit
from functools import lru_cache

import pytest

from slosh.engines.postgres.local_server import NOT_DURABLE, LocalServer
from slosh.errors import MissingExtra


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
