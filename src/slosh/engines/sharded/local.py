"""Shards that are opened by this process: for collections that one machine holds, for measurements and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...checkpoints import in_threads
from .shard import Shard
from .view import Call


class LocalShards:
    """A `Transport` to shards in this process; each is asked by a thread of its own."""

    def __init__(self, n_jobs: int | None = 1, threads: int = 1) -> None:
        self._n_jobs = n_jobs
        self._threads = threads

    def open(self, place: str, name: str, folder: str) -> Shard:
        return Shard(place, name, folder, self._n_jobs)

    def ask(self, calls: Sequence[Call], wait: bool) -> list[object]:
        return in_threads(_answer, calls, self._threads)

    def close(self, clients: Iterable[Shard]) -> None:
        for client in clients:
            client.close()


def _answer(call: Call) -> object:
    client: Shard = call.client
    return client.ask(call.mark, call.question, call.shared, call.own)
