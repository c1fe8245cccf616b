"""The engines fulfil their contract, for a type checker: `make lint` checks this file, and nothing runs it.

Views and writes are part of it, since `Engine.view` and `Engine.write` give them.
"""

from __future__ import annotations

from slosh.engines.base import Engine, View, Write
from slosh.engines.memory import MemoryEngine
from slosh.engines.postgres.engine import PostgresEngine
from slosh.engines.sqlite.engine import SqliteEngine


def engines(memory: MemoryEngine, sqlite: SqliteEngine, postgres: PostgresEngine) -> tuple[Engine, Engine, Engine]:
    return memory, sqlite, postgres


def views(memory: MemoryEngine, sqlite: SqliteEngine, postgres: PostgresEngine) -> None:
    with memory.view() as first, sqlite.view() as second, postgres.view() as third:
        found: list[View] = [first]
        found.append(second)
        found.append(third)


def writes(memory: MemoryEngine, sqlite: SqliteEngine, postgres: PostgresEngine) -> None:
    with memory.write() as first, sqlite.write() as second, postgres.write() as third:
        found: list[Write] = [first]
        found.append(second)
        found.append(third)
