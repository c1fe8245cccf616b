"""What a review of the index found, each as it was shown to go wrong."""

from __future__ import annotations

import contextlib
import gc
import linecache
import multiprocessing
import os
import shutil
import sys

import numpy as np
import pytest
from slosh.engines.locks import SharedLock

import slosh
from slosh import SetIndex, Sets
from slosh.embed import SlicedWasserstein
from slosh.engines import local
from slosh.search import ExactSearch, LadderSearch


def small():
    return SlicedWasserstein(4, 4, n_jobs=1)


def clouds(n, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(6, 2)) * rng.uniform(0.2, 2, 2) * scale for _ in range(n)]


@pytest.mark.parametrize("search", [ExactSearch(), LadderSearch()], ids=["exact", "ladder"])
@pytest.mark.parametrize("certify", [False, True])
def test_a_set_is_not_its_own_neighbour_among_many_that_are_equal(search, certify, monkeypatch):
    monkeypatch.setattr("slosh.engines.held.KNOWN", 3)
    index = SetIndex.create(None, 2, embedding=small(), search=search)
    names = list("zyxwvutsrq")
    index.add([clouds(1)[0]] * 10, ids=names)
    for name in names:
        others = sorted(set(names) - {name})
        assert index.search(id=name, k=3, certify=certify).ids == others[:3]
    graph, _ = index.neighbor_graph(3)
    assert graph.diagonal().sum() == 0
    assert graph.nnz == 30


def test_a_refused_first_add_decides_nothing():
    index = SetIndex.create(None, 2, embedding=small(), standardize=([0.0, 0.0], [1e-14, 1e-14]))
    with pytest.raises(ValueError, match="is the limit"):
        index.add([[[1e10, 0], [0, 1]]])
    one = np.array([[0, 0], [1e-14, 0]])
    index.add([one, one], weights=[[0.9, 0.1], [0.1, 0.9]])
    hits = index.search(Sets.from_list([one], [[0.9, 0.1]]), k=2, certify=True)[0]
    assert hits.ids == ["0", "1"]
    assert hits.distances[0] == 0
    assert hits.distances[1] > 0.1


def test_lists_of_other_rows_are_not_taken(tmp_path):
    """A file of derived lists that has outlived its stamp, with other rows at the same positions."""
    path = tmp_path / "i"
    sets = clouds(4000)
    with SetIndex.create(path, 2, embedding=small(), n_jobs=1) as index:
        index.add(sets[:3000], ids=[f"a{i}" for i in range(3000)])
        stamp = (path / "cache" / "stamp").read_bytes()
        index.add(sets[3000:], ids=[f"b{i}" for i in range(1000)])
        index._engine._columns.derived_rows = 0
        index._engine._keep_derived()
        old = next(path.glob("cache/derived.*")).read_bytes()
    (path / "cache" / "stamp").write_bytes(stamp)
    with slosh.open(path, n_jobs=1) as index:
        index.remove([f"b{i}" for i in range(500)])
        index.add(clouds(600, seed=5), ids=[f"c{i}" for i in range(600)])
        index._engine._columns.stamp(index._engine._sets._rows.n_positions, (index._engine._session, 0))
    (path / "cache" / "stamp").write_bytes(stamp)
    with slosh.open(path, n_jobs=1):  # positions from 3000 on have other rows now
        pass
    next(path.glob("cache/derived.*")).write_bytes(old)
    with slosh.open(path, n_jobs=1) as index:
        found = index.search(sets[3600:3700], k=1, recall=1.0)
        assert [ids[0] for ids in found.ids] == [f"b{i}" for i in range(600, 700)]
        assert index.verify().ok


def test_verify_sees_rows_in_wrong_lists(tmp_path):
    with SetIndex.create(tmp_path / "i", 2, embedding=small(), n_jobs=1) as index:
        index.add(clouds(1500))
        assert index.verify().ok
        lists = index._engine._sets.vector_search._lists
        lists._blocks.array[0, 0, 0] += 1
        assert "are wrong" in index.verify().problems[0]


def test_a_lost_cache_forgets_removed_rows_as_the_index_does(tmp_path):
    path, sets = tmp_path / "i", clouds(3000)
    with SetIndex.create(path, 2, embedding=small(), search=LadderSearch(n_lists=16), n_jobs=1) as index:
        index.add(sets)
        far = index.add(clouds(100, seed=3, scale=9))
        index.remove(far)
        before = index.search(clouds(500, seed=4), k=5, recall=0.8).ids
    shutil.rmtree(path / "cache")
    with slosh.open(path, n_jobs=1) as index:
        assert index.search(clouds(500, seed=4), k=5, recall=0.8).ids == before


def test_records_are_of_one_state(tmp_path):
    with SetIndex.create(tmp_path / "i", 2, embedding=small(), n_jobs=1) as index:
        index.add(clouds(100), metadata={"state": 1})
        parts = index.records(batch=10)
        seen = [next(parts)]
        index.update([str(i) for i in range(100)], metadata={"state": 2})
        index.remove("50")
        seen += list(parts)
        assert sum(len(part.ids) for part in seen) == 100
        assert {about["state"] for part in seen for about in part.metadata} == {1}
        assert len(index) == 99


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_neither_keeps_the_lock_nor_writes(tmp_path):
    index = SetIndex.create(tmp_path / "i", 2, embedding=small(), n_jobs=1)
    index.add(clouds(10))
    ready, go = multiprocessing.get_context("fork").Event(), multiprocessing.get_context("fork").Event()

    def child():
        index.close()
        with pytest.raises(ValueError, match="forked"):
            len(index)
        ready.set()
        go.wait(30)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert ready.wait(30)
    index.close()
    slosh.open(tmp_path / "i", n_jobs=1).close()  # although the child lives
    go.set()
    process.join(30)
    assert process.exitcode == 0


def test_two_that_create_the_same_index(tmp_path, monkeypatch):
    path, real = tmp_path / "i", local.WriterLock

    def late(*given):
        monkeypatch.setattr(local, "WriterLock", real)
        with SetIndex.create(path, 2, embedding=small(), n_jobs=1) as other:
            other.add(clouds(3))
        return real(*given)

    monkeypatch.setattr(local, "WriterLock", late)
    with pytest.raises(FileExistsError):
        SetIndex.create(path, 2, embedding=small(), n_jobs=1)
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 3


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_error_after_the_commit_is_healed(tmp_path, monkeypatch, on_disk):
    index = SetIndex.create(tmp_path / "i" if on_disk else None, 2, embedding=small(), n_jobs=1)
    index.add(clouds(10))
    real = type(index._engine._sets).remove

    def broken(self, rows):
        raise MemoryError

    monkeypatch.setattr(type(index._engine._sets), "remove", broken)
    with pytest.raises(MemoryError):
        index.remove("3")
    monkeypatch.setattr(type(index._engine._sets), "remove", real)
    assert "3" not in index
    assert "3" not in index.search(clouds(10)[3], k=10).ids
    index.add(clouds(1, seed=9), ids=["3"])
    assert index.search(clouds(1, seed=9)[0], k=1).ids == ["3"]


def test_counted_ids_go_round_those_that_exist():
    index = SetIndex.create(None, 2, embedding=small())
    index.add(clouds(1), ids=["1"])
    assert index.add(clouds(2)) == ["2", "3"]
    assert index.add(clouds(1)) not in (["1"], ["2"], ["3"])
    with pytest.raises(ValueError, match="give ids"):
        index.add(clouds(1), update=True)
    with pytest.raises(ValueError, match="weights without sets"):
        index.update("1", metadata={}, weights=[[1]])
    batches = iter([(clouds(1), ["own"], [{}])])
    with pytest.raises(ValueError, match="leave ids out"):
        index.add(batches, ids=["mine"])


def test_ties_are_by_id_where_a_recall_turns_out_to_be_exact():
    rng = np.random.default_rng(0)
    points = rng.integers(0, 3, size=(1500, 2, 2)).astype(float)
    one = SetIndex.create(None, 2, embedding=small())
    two = SetIndex.create(None, 2, embedding=small())
    names = [f"s{i}" for i in rng.permutation(1500)]
    one.add(points, ids=names)
    two.add(points[::-1], ids=names[::-1])
    for recall in (0.9999, 1.0):
        a, b = (index.search(points[:20], k=7, recall=recall) for index in (one, two))
        assert a.stats.recall == 1.0
        assert a.ids == b.ids


@pytest.mark.parametrize("way", ["shared", "alone"])
def test_an_interrupt_at_any_line_leaves_no_lock_behind(way):
    lock = SharedLock()
    code = getattr(SharedLock, way).__wrapped__.__code__
    for number in range(30):
        lines = 0

        def trace(frame, event, _, number=number):
            nonlocal lines
            if frame.f_code is not code:
                return None
            if event == "line" and "_leave" not in linecache.getline(code.co_filename, frame.f_lineno):
                lines += 1
                if lines == number + 1:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with contextlib.suppress(KeyboardInterrupt), getattr(lock, way)():
                pass
        finally:
            sys.settrace(before)
        gc.collect()
        assert (lock._readers, lock._writers, lock._waiting) == (set(), set(), set())
    assert 5 < lines < 30, "every line had its turn"


def test_no_duplicate_within_the_radius_is_left_out():
    index = SetIndex.create(None, 2, embedding=small())
    index.add(clouds(60))
    for pair in list(index.duplicates(1.0, certify=True))[:100]:
        assert (pair.id, pair.other) in {(p.id, p.other) for p in index.duplicates(pair.distance)}
