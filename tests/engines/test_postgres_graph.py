"""The graph of an index in PostgreSQL is made while others go on, and whatever stops that leaves nothing wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import slosh
from builders import PATIENCE, cloud_list, make_index, together
from postgres_server import ask, new_database, wait_until

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

N = 1100
GRAPH = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('slosh.graph_1_1')"
BUILDING = "FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%graph%' AND datname = current_database()"
BUILDER = """
    import sys, numpy as np, slosh
    index = slosh.open(sys.argv[1], n_jobs=1)
    index.add([np.zeros((1, 2))], ["by-the-builder"])
"""


def points(n=N):
    return list(np.random.default_rng(0).normal(size=(n, 1, 2)).astype(np.float32))


@pytest.fixture
def url():
    return new_database()


@pytest.fixture
def index(url, monkeypatch):
    """An index that should have a graph, and has none yet."""
    with make_index(f"{url}#shapes") as made:
        with monkeypatch.context() as patch:
            patch.setattr("slosh.engines.postgres.search.GRAPH_ROWS", 1 << 30)
            made.add(points())
        assert not made.info()["search_info"]["graph"]
        yield made


def check_graph(index, url):
    """There is a graph that the server uses, and all is well."""
    assert index.info()["search_info"]["graph"]
    assert ask(url, GRAPH) == [(True,)]
    report = index.verify()
    assert report.ok, str(report)


def holding_a_row(url):
    """Return a connection that has changed a row and does not come to an end: a build has to wait for it."""
    connection = psycopg.connect(url)
    connection.execute("UPDATE slosh.sets_1_1 SET size = size WHERE key = 0")
    return connection


def test_changes_go_on_while_the_graph_is_built(url, index):
    with holding_a_row(url) as held, slosh.open(url, "shapes", n_jobs=1) as builder:
        thread = threading.Thread(target=lambda: builder.add(cloud_list(1), ["by-the-builder"]))
        thread.start()
        wait_until(url, f"count(*) = 1 {BUILDING} AND wait_event_type = 'Lock'")
        assert index.add(cloud_list(2), ["a", "b"]) == ["a", "b"]  # and does not build what somebody builds already
        index.remove("5")
        index.update("a", metadata={"x": 1})
        assert index.search(cloud_list(1)[0], k=3).stats.recall == 1.0
        assert ask(url, GRAPH) == [(False,)]
        held.rollback()
        thread.join(PATIENCE)
    check_graph(index, url)
    assert {"a", "b", "by-the-builder"} <= set(index.ids)


def test_a_client_that_is_killed_while_it_builds_the_graph(url, index):
    """What it leaves is not taken for the graph, and the next client makes it."""
    with holding_a_row(url) as held:
        options = "options=-c%20client_connection_check_interval%3D100ms"  # the server looks after it more often
        command = [sys.executable, "-c", textwrap.dedent(BUILDER), f"{url}&{options}#shapes"]
        builder = subprocess.Popen(command)
        wait_until(url, f"count(*) = 1 {BUILDING} AND wait_event_type = 'Lock'")
        builder.kill()
        builder.wait()
        wait_until(url, f"count(*) = 0 {BUILDING}")
        held.rollback()
    assert ask(url, GRAPH) == [(False,)]
    assert index.verify().ok  # there is no graph: answers are exact
    assert "by-the-builder" in index
    assert index.search(cloud_list(1)[0], k=3).stats.recall == 1.0
    index.add(cloud_list(1), ["more"])
    check_graph(index, url)


def test_a_build_that_is_cancelled_leaves_nothing(url, index):
    with holding_a_row(url) as held:

        def build():
            with pytest.warns(RuntimeWarning, match="could not be trained"):
                index.add(cloud_list(1), ["more"])

        def cancel():
            wait_until(url, f"bool_or(pg_cancel_backend(pid)) {BUILDING} AND wait_event_type = 'Lock'")
            wait_until(url, f"count(*) = 0 {BUILDING} AND state = 'active'")
            held.rollback()

        together(build, cancel)
    assert "more" in index
    assert ask(url, GRAPH) == []
    index.add(cloud_list(1), ["again"])
    check_graph(index, url)


def test_a_graph_beside_one_who_reads_for_long(url, index, monkeypatch):
    """A copy within a database reads as long as the graph of the copy takes: it is made all the same."""
    monkeypatch.setattr("slosh.engines.postgres.building.READERS_SECONDS", 0.1)
    assert index.copy_to(url, "copy") == N
    with slosh.open(url, "copy") as copy:
        assert copy.info()["search_info"]["graph"]
        assert copy.verify().ok


def test_a_concurrent_build_is_given_up_for_one_who_came_later(url, index, monkeypatch):
    """Somebody begins to read while the graph is built, and stays: the build does not wait for ever."""
    monkeypatch.setattr("slosh.engines.postgres.building.CONCURRENT_LOCK_DEADLINE", "300ms")
    monkeypatch.setattr("slosh.engines.postgres.building.READERS", "SELECT WHERE FALSE")
    with psycopg.connect(url) as reading:
        reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM slosh.about")
        index.add(cloud_list(1), ["more"])
    check_graph(index, url)


def test_a_graph_that_somebody_dropped_is_missed(url, index):
    index.add(cloud_list(1), ["more"])
    check_graph(index, url)
    ask(url, "DROP INDEX slosh.graph_1_1")
    report = index.verify()
    assert "the graph is gone" in str(report)
    exact = index.search(cloud_list(5), k=5, recall=1.0)
    assert index.search(cloud_list(5), k=5).ids == exact.ids
    index.compact()
    assert index.verify().ok
