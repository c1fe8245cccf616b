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


def found_of(index, queries, **options):
    """Return which part of the true neighbours a search finds, and what it promises."""
    found, truth = (index.search(queries, k=10, **chosen) for chosen in (options, {**options, "recall": 1.0}))
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(found.ids, truth.ids, strict=True)]
    return float(np.mean(shares)), found.stats.recall


def test_vectors_that_half_precision_cuts_off_keep_the_promise(url, monkeypatch):
    """They came after everything was measured: queries near them are scanned, others are not; compact finds room."""
    rng = np.random.default_rng(0)
    queries = list(rng.normal(size=(40, 1, 2)))
    large = list(rng.normal(size=(540, 1, 2)) * 1e5)
    with make_index(f"{url}#shapes") as index:
        index.add(points(1500))
        ((scale,),) = ask(url, "SELECT scales[1] FROM slosh.indexes")
        index.add(large[40:], [f"z{i}" for i in range(500)])
        assert ask(url, f"SELECT max(whole_moved) > 1000 / {scale} FROM slosh.sets_1_1") == [(True,)]
        for asked in (large[:40], [*large[:20], *queries[:20]], large[0]):
            found, promised = found_of(index, [asked] if isinstance(asked, np.ndarray) else asked, recall=0.9)
            assert found >= 0.9
        assert promised == 1.0
        assert found_of(index, queries, recall=0.9)[1] < 1.0  # the graph answers those that it can
        monkeypatch.setattr("slosh.engines.postgres.compacting.FETCHED_SETS", 512)  # the large ones come late
        index.compact()
        ((after,),) = ask(url, "SELECT scales[1] FROM slosh.indexes")
        assert after < scale / 256
        assert ask(url, f"SELECT max(whole_moved) < 64 / {after} FROM slosh.sets_1_2") == [(True,)]
        assert found_of(index, [*large[:20], *queries[:20]], recall=0.9)[0] >= 0.9
        assert index.verify().ok


def test_two_clients_measure_at_the_same_time(url, index, monkeypatch):
    """What the other one has stored meanwhile is not lost, and neither is it by one who finds the graph there."""
    index.add(points(1200), [f"m{i}" for i in range(1200)])
    with slosh.open(url, "shapes", n_jobs=1) as other:
        real = slosh.engines.postgres.graph.measure

        def measure(*arguments):
            monkeypatch.setattr("slosh.engines.postgres.graph.measure", real)
            made = real(*arguments)
            other.tune(0.9, k=20)
            return made

        monkeypatch.setattr("slosh.engines.postgres.graph.measure", measure)
        index.tune(0.9, k=15)
        known = {(each["k"], each["recall"]) for each in other.info()["search_info"]["calibrations"]}
        assert {(10, 0.9), (15, 0.9), (20, 0.9)} <= known


def test_a_builder_that_finds_the_graph_there_keeps_what_was_measured(url, index, monkeypatch):
    """It had looked before another one made the graph."""
    with slosh.open(url, "shapes", n_jobs=1) as late:
        real = slosh.engines.postgres.graph.build

        def build(*arguments):
            monkeypatch.setattr("slosh.engines.postgres.graph.build", real)
            index.add(cloud_list(1), ["first"])
            assert index.info()["search_info"]["calibrations"]
            monkeypatch.setattr("slosh.engines.postgres.graph.due", lambda *_: [])
            return real(*arguments)

        monkeypatch.setattr("slosh.engines.postgres.graph.build", build)
        late.add(cloud_list(1), ["second"])
        assert index.info()["search_info"]["calibrations"]
