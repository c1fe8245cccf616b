"""The engines fulfil their contract, for a type checker: `make lint` checks this file, and nothing runs it.

Views and writes are part of it, since `Engine.view` and `Engine.write` give them.
"""

from __future__ import annotations

from slosh.engines.base import Engine, View, Write
from slosh.engines.memory import MemoryEngine
from slosh.engines.sqlite.engine import SqliteEngine


def engines(memory: MemoryEngine, sqlite: SqliteEngine) -> tuple[Engine, Engine]:
    return memory, sqlite


def views(memory: MemoryEngine, sqlite: SqliteEngine) -> None:
    with memory.view() as first, sqlite.view() as second:
        found: list[View] = [first]
        found.append(second)


def writes(memory: MemoryEngine, sqlite: SqliteEngine) -> None:
    with memory.write() as first, sqlite.write() as second:
        found: list[Write] = [first]
        found.append(second)
