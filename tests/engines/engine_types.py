"""The engines fulfil their contract, for a type checker: `make lint` checks this file, and nothing runs it.

Views and writes are part of it, since `Engine.view` and `Engine.write` give them.
"""

from __future__ import annotations

from slosh.engines.base import Engine, View, Write
from slosh.engines.memory import MemoryEngine
from slosh.engines.postgres.engine import PostgresEngine
from slosh.engines.sharded.engine import ShardedEngine
from slosh.engines.sharded.local import LocalShards
from slosh.engines.sharded.view import Transport
from slosh.engines.sqlite.engine import SqliteEngine


def engines(
    memory: MemoryEngine, sqlite: SqliteEngine, postgres: PostgresEngine, sharded: ShardedEngine
) -> tuple[Engine, Engine, Engine, Engine]:
    return memory, sqlite, postgres, sharded


def views(memory: MemoryEngine, sqlite: SqliteEngine, postgres: PostgresEngine, sharded: ShardedEngine) -> None:
    with memory.view() as first, sqlite.view() as second, postgres.view() as third, sharded.view() as fourth:
        found: list[View] = [first]
        found.append(second)
        found.append(third)
        found.append(fourth)


def writes(memory: MemoryEngine, sqlite: SqliteEngine, postgres: PostgresEngine, sharded: ShardedEngine) -> None:
    with memory.write() as first, sqlite.write() as second, postgres.write() as third, sharded.write() as fourth:
        found: list[Write] = [first]
        found.append(second)
        found.append(third)
        found.append(fourth)


def transports(local: LocalShards) -> Transport:
    return local
