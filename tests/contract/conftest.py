"""The engines that the contract is tested on. A new one is one more entry in ENGINES."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

import slosh
from builders import make_index
from postgres_server import shared_server
from server_process import shared_server as shared_http_server
from shard_builders import Collection, serve_here


class MemoryEngine:
    """An index in memory: it cannot be reopened, and nobody else can read it."""

    name = "memory"
    same_bits = True
    """Whether its distances are rounded as those of the other engines, and what it learns is always the same."""
    effort = 1
    """One part in so many of the long tests is run in every run, for an engine that is slow."""
    in_process = True
    """Whether the library that answers is in this process: `rerank` may be a function, and a test may reach into it."""
    target: Any = None
    """Where the next index may be created: a path, an address, or None."""

    def __init__(self, folder):
        self.folder, self.numbers, self.opened = folder, count(), []

    def create(self, dim=2, **options):
        """Return a new, empty index, small unless the options say otherwise."""
        return self.keep(make_index(self.target, dim, **options))

    def reopen(self, index):
        """Close an index and return another object for the same; None where that is impossible."""

    def read_only(self, index):
        """Return another object for the same index, which only reads; None where that is impossible."""

    def keep(self, index):
        self.opened.append(index)
        return index

    def close(self):
        for index in self.opened:
            index.close()


class SqliteEngine(MemoryEngine):
    """An index in a folder."""

    name = "sqlite"

    @property
    def target(self):
        return self.folder / f"{next(self.numbers)}.slosh"

    def reopen(self, index):
        path = index.path
        index.close()
        return self.keep(slosh.open(path, n_jobs=1))

    def read_only(self, index):
        return self.keep(slosh.open(index.path, read_only=True, n_jobs=1))


class PostgresEngine(MemoryEngine):
    """An index in a database, of which there are many."""

    name = "postgres"
    effort = 6
    same_bits = False  # full precision, and a graph with random levels
    numbers = count()

    def __init__(self, folder):
        super().__init__(folder)
        self.url, self.numbers = shared_server().url, PostgresEngine.numbers

    @property
    def target(self):
        return f"{self.url}#index-{next(self.numbers)}"

    def reopen(self, index):
        address = index.location
        index.close()
        return self.keep(slosh.open(address, n_jobs=1))

    def read_only(self, index):
        return self.keep(slosh.open(index.location, read_only=True, n_jobs=1))


class HttpEngine(MemoryEngine):
    """An index on a server, which is another process."""

    name = "http"
    effort = 3
    in_process = False
    numbers = count()

    def __init__(self, folder):
        super().__init__(folder)
        self.url, self.numbers = shared_http_server().url, HttpEngine.numbers

    @property
    def target(self):
        return f"{self.url}#index-{next(self.numbers)}"

    def reopen(self, index):
        address = index.location
        index.close()
        return self.keep(slosh.open(address))

    def read_only(self, index):
        return self.keep(slosh.open(index.location, read_only=True))


class ShardedEngine(MemoryEngine):
    """A collection in shards within this process. Only what is about searches is asked of it."""

    name = "shards"
    effort = 4

    def create(self, dim=2, **options):
        folder = self.folder / f"{next(self.numbers)}"
        return self.keep(Collection(folder, serve_here, dim=dim, **options))


ENGINES = [MemoryEngine, SqliteEngine, PostgresEngine, HttpEngine]
SEARCHED = [ShardedEngine]
"""Engines that are written elsewhere, and of which searches are tested."""
SEARCHING = {"test_contract_answers", "test_contract_filters", "test_contract_parts"}
"""The tests of searches, but for those that change what a collection in shards cannot change: see CHANGING."""
CHANGING = {
    "test_recall_one_is_exact_where_the_search_is_trained",
    "test_compact_leaves_an_index_as_one_freshly_built",
    "test_parts_are_enabled_later",
    "test_searches_go_on_while_parts_are_enabled",
}


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        searches = metafunc.module.__name__.rpartition(".")[2] in SEARCHING
        kinds = ENGINES + SEARCHED * (searches and metafunc.function.__name__ not in CHANGING)
        metafunc.parametrize("engine", kinds, ids=lambda kind: kind.name, indirect=True)


@pytest.fixture
def engine(request, tmp_path):
    """Each engine in turn; all of its indexes are closed in the end."""
    made = request.param(tmp_path / "indexes")
    made.folder.mkdir()
    yield made
    made.close()
