"""What a search sees while others change the index, on every engine: one version, whole, without waiting for it.

Threads wait for events of other threads, never for a clock.
"""

from __future__ import annotations

import contextlib
import gc
import threading

import numpy as np
import pytest

from builders import cloud_list, hurried_threads, plain_answer, together, wait_for
from slosh import errors
from slosh.search import ExactSearch, FaissSearch, LadderSearch


@contextlib.contextmanager
def ending(stop):
    """Set an event in the end, also of a thread that fails, so that no other goes on for ever."""
    try:
        yield
    finally:
        stop.set()


SEARCHES = {"default": LadderSearch(), "exact": ExactSearch(), "faiss": FaissSearch("IVF16,PQ2x4fs")}


def test_a_reader_sees_each_change_at_its_next_call(engine):
    index = engine.create()
    reader = engine.read_only(index)
    if reader is None:
        return
    sets = cloud_list(9)
    assert len(reader) == 0
    index.add(sets, ids=list("abcdefghi"), metadata={"x": 1})
    assert reader.search(sets[0], k=9).ids == index.search(sets[0], k=9).ids
    index.remove(["b", "c"])
    assert reader.ids == list("adefghi")
    index.update("a", sets[4])
    assert np.array_equal(reader.get("a").points, sets[4])
    index.update("d", metadata={"x": 2})
    assert reader.search(sets[0], where={"x": 2}).ids == ["d"]
    index.compact()
    index.add([sets[0]], ids=["z"])
    assert reader.ids == list("adefghiz")
    index.tune(recall=0.9, k=2)
    assert reader.info()["recall"] == 0.9
    index = engine.reopen(index)
    assert reader.search(sets[0], k=9).ids[0] == "z"
    index.add([sets[0]], ids=["0"])
    assert reader.search(sets[0], k=1).ids == ["0"]
    index.close()
    assert reader.ids == list("adefghiz0")
    assert reader.verify().ok


def test_records_are_of_one_version(engine):
    """Whatever is changed while they are read; and they keep no writer waiting."""
    index = engine.create()
    index.add(cloud_list(100), metadata={"state": 1})
    parts = index.records(batch=10)
    seen = [next(parts)]
    index.update([str(i) for i in range(100)], metadata={"state": 2})
    index.remove("50")
    index.compact()
    seen += list(parts)
    assert sum(len(part.ids) for part in seen) == 100
    assert {about["state"] for part in seen for about in part.metadata} == {1}
    assert len(index) == 99


def test_records_that_are_left_unread_stop_nobody(engine):
    """A generator that another thread finalises leaves nothing behind."""
    index = engine.create()
    index.add(cloud_list(30))
    held = [index.records(batch=10)]
    next(held[0])

    def drop():
        held.clear()
        gc.collect()

    together(drop)
    index.add(cloud_list(1), ids=["after"])
    together(lambda: index.remove("after"))  # of any thread: it waits for nobody
    assert len(index) == 30


@pytest.mark.parametrize("search", SEARCHES)
def test_threads_search_while_another_changes_the_index(engine, search):
    """What they find stays the same to the last bit, since all that is changed is far away."""
    index = engine.create(search=SEARCHES[search])
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(4, 2)) for _ in range(1200)]
    index.add(sets, metadata=[{"near": True, "mod": i % 7} for i in range(1200)])
    queries = [rng.normal(size=(3, 2)) for _ in range(6)]

    def ask():
        found = [
            index.search(queries, k=5, recall=1.0),
            index.search(queries, k=5, certify=True),
            index.search(queries, k=5, where={"near": True, "mod": [1, 2]}, recall=1.0),
            index.search(id=["0", "77"], k=4, recall=1.0),
            index.range_search(queries, 0.2, recall=1.0),
        ]
        return list(map(plain_answer, found))

    expected, stop = ask(), threading.Event()
    rounds = [0, 0, 0]

    def look(i):
        with ending(stop):
            while not stop.is_set():
                assert ask() == expected
                assert len(index.get(["0", "1"]).ids) == 2
                assert len(index.search(queries[0], k=5)) == 5
                rounds[i] += 1

    def change():
        with ending(stop):
            n = 0
            while not stop.is_set() and (n < 8 or min(rounds) < 3):
                names = [f"far{n}-{i}" for i in range(5)]
                index.add([rng.normal(size=(3, 2)) + 100 for _ in names], names, {"near": False})
                if n % 2:
                    index.remove(names)
                if n % 3 == 0:
                    index.update(names[0] if not n % 2 else "far0-0", metadata={"near": False, "n": n})
                if n % 8 == 7:
                    index.compact()
                n += 1

    together(lambda: look(0), lambda: look(1), lambda: look(2), change)
    assert ask() == expected
    assert index.verify().ok


@pytest.mark.parametrize("n", [300, 3000], ids=["scanned", "trained"])
def test_threads_with_different_filters_never_get_each_others_sets(engine, n):
    """Where a filter keeps tenants apart, a mix-up is a leak."""
    tenants = 4
    index = engine.create()
    index.add(cloud_list(n, largest=5), metadata=[{"tenant": i % tenants} for i in range(n)])
    if n > 1024:
        index.tune(recall=0.9, k=5)
    queries = cloud_list(8, seed=3)
    own = [index.search(queries, k=5, where={"tenant": tenant}, recall=1.0).ids for tenant in range(tenants)]
    done = [0] * tenants

    def look(tenant):
        while done[tenant] < 40:
            where = {"tenant": tenant}
            assert index.search(queries, k=5, where=where, recall=1.0).ids == own[tenant]
            for found in (
                index.search(queries[0], k=9, where=where),
                index.search(queries[1], k=3, where=where, certify=True),
                index.range_search(queries[2], 1.0, where=where),
            ):
                assert {about["tenant"] for about in found.metadata} <= {tenant}
            done[tenant] += 1

    def add():
        for i in range(10):
            index.add([np.full((1, 2), 50.0 + i)], metadata={"tenant": i % tenants})

    with hurried_threads():
        together(*[lambda tenant=tenant: look(tenant) for tenant in range(tenants)], add)


def test_batches_are_seen_whole(engine):
    """Threads and another reader see all of a batch or nothing of it, and never less than before."""
    index = engine.create()
    reader = engine.read_only(index)
    index.add(cloud_list(10), metadata={"batch": 0})
    stop, rounds = threading.Event(), [0, 0]

    def look(i, index):
        last = 0
        with ending(stop):
            while not stop.is_set():
                counts = {}
                for about in index.search(np.zeros((1, 2)), k=100_000, recall=1.0).metadata:
                    counts[about["batch"]] = counts.get(about["batch"], 0) + 1
                assert set(counts.values()) == {10}, counts
                assert max(counts) >= last
                last = max(counts)
                assert len(index.search(np.zeros((1, 2)), k=20, where={"batch": last})) in (0, 10)
                assert len(index) % 10 == 0
                rounds[i] += 1

    def change():
        with ending(stop):
            batch = 0
            while not stop.is_set() and (batch < 12 or min(rounds) < 3):
                batch += 1
                names = [f"{batch}-{i}" for i in range(10)]
                index.add(cloud_list(10, seed=batch), names, {"batch": batch})
                if batch % 3 == 0:
                    index.update(names, cloud_list(10, seed=batch + 1))
                if batch % 4 == 0:
                    index.remove([f"{batch - 1}-{i}" for i in range(10)])

    together(lambda: look(0, index), lambda: look(1, index if reader is None else reader), change)


def test_a_search_under_way_keeps_its_version(engine):
    """A function that ranks runs while another thread changes the index; neither waits for the other."""
    index = engine.create()
    sets = cloud_list(30)
    index.add(sets)
    if not engine.in_process:
        with pytest.raises(errors.UnsupportedError, match="which a server does not run"):
            index.search(sets[0], rerank=lambda query, candidates: np.zeros(len(candidates)))
        return
    asked, changed, done = threading.Event(), threading.Event(), []

    def own(query, candidates):
        asked.set()
        wait_for(changed)
        assert len(index.ids) in (30, 29)  # it may ask, too
        return np.arange(float(len(candidates)))

    def look():
        done.append(index.search(sets[0], k=30, depth=30, rerank=own))

    def change():
        wait_for(asked)
        try:
            index.remove("7")
            index.compact()
        finally:
            changed.set()

    together(look, change)
    assert sorted(done[0].ids, key=int) == [str(i) for i in range(30)]
    assert "7" not in index.search(sets[7], k=30).ids


def test_a_function_that_ranks_may_use_the_index(engine):
    if not engine.in_process:
        pytest.skip("a server runs no functions of its clients")
    index = engine.create()
    index.add(cloud_list(30))
    counts = []

    def own(query, candidates):
        counts.append(len(index.ids))
        return np.full(len(candidates), float(len(index.search(cloud_list(1)[0], k=3))))

    asked = threading.Event()

    def look():
        asked.set()
        for _ in range(20):
            assert len(index.search(cloud_list(1)[0], k=3, rerank=own)) == 3

    def change():
        wait_for(asked)
        for i in range(20):
            index.add(cloud_list(1, seed=i), [f"more{i}"])

    together(look, change)
    assert len(index) == 50
    assert counts[0] >= 30


@pytest.mark.parametrize("by_reader", [True, False])
def test_closing_while_others_search(engine, by_reader):
    """Each of them gets an answer, or is told that the index is closed."""
    index = engine.create()
    index.add(cloud_list(200), metadata=[{"mod": i % 3} for i in range(200)])
    for _ in range(3):
        opened = engine.read_only(index) if by_reader else index
        if opened is None:
            return
        rounds, query = [0, 0, 0], cloud_list(1)[0]

        def ask(i, opened=opened, rounds=rounds, query=query):
            while True:
                assert len(opened.search(query, k=5, where={"mod": 1})) == 5
                opened.get("3")
                rounds[i] += 1

        def look(i, ask=ask):
            with pytest.raises(ValueError, match="closed"):
                ask(i)

        def close(opened=opened, rounds=rounds):
            while min(rounds) < 3:
                threading.Event().wait(0.001)
            opened.close()

        together(lambda look=look: look(0), lambda look=look: look(1), lambda look=look: look(2), close)
        if not by_reader:
            index = engine.reopen(opened)
            if index is None:
                return
