"""Jobs over an index that was deleted and made again, or a collection that has grown: nothing old is taken for new."""

from __future__ import annotations

import gc
import os
import shutil

import numpy as np
import pytest

import slosh
from batch_data import pq, stored_sets, table_of
from batch_data import write_tables as write
from builders import clouds, make_index, small_embedding
from slosh.batch import pairs
from slosh.engines.sharded.engine import ShardedEngine
from slosh.engines.sharded.local import LocalShards
from slosh.errors import DuplicateId, IndexExists, InputError
from slosh.index.sharded_index import ShardedIndex


def embedder():
    return small_embedding().fit(clouds(3, dim=3))


def served(folder):
    return ShardedIndex(ShardedEngine(folder, LocalShards()))


def make(place, prefix, n=40):
    with make_index(place) as index:
        index.add(clouds(n), ids=[f"{prefix}{i}" for i in range(n)])


def as_worker(work, tasks):
    """Run tasks as a worker does, which has only the place of the index."""
    for task in tasks:
        yield task, work(task)


def first_letters(folder):
    table = pq.read_table(folder)
    return {name[0] for column in ("id", "neighbor") for name in table[column].to_pylist()}


def test_a_worker_does_not_answer_from_an_index_that_is_gone(tmp_path):
    place = tmp_path / "x.slosh"
    for prefix in "ab":
        make(place, prefix)
        slosh.batch.neighbor_graph(place, 2, tmp_path / prefix, run=as_worker)
        assert first_letters(tmp_path / prefix) == {prefix}
        shutil.rmtree(place)


def test_a_graph_of_an_index_that_was_made_again_is_refused(tmp_path):
    place = tmp_path / "x.slosh"
    make(place, "a")
    slosh.batch.neighbor_graph(place, 2, tmp_path / "g")
    shutil.rmtree(place)
    make(place, "b")
    with pytest.raises(InputError, match="token"):
        slosh.batch.neighbor_graph(place, 2, tmp_path / "g")


def test_names_are_those_of_the_index(tmp_path):
    for number in range(3):
        with make_index(None) as index:
            index.add(clouds(10), ids=[f"{number}-{i}" for i in range(10)])
            slosh.batch.neighbor_graph(index, 2, tmp_path / str(number))
        del index
        gc.collect()
        assert not vars(pairs)["_names"], "another index at the same address would be taken for it"
        assert first_letters(tmp_path / str(number)) == {str(number)}


def test_a_collection_that_has_grown_is_noticed(tmp_path):
    write(tmp_path / "in", 1)
    slosh.batch.build(tmp_path / "s", tmp_path / "in", embedder(), shard_sets=1000)
    with served(tmp_path / "s") as index:
        slosh.batch.neighbor_graph(index, 2, tmp_path / "g")
        with pytest.raises(InputError, match=r"slosh\.batch\.neighbor_graph"):
            slosh.batch.neighbor_graph(index, 2, tmp_path / "h", run=as_worker)
    with served(tmp_path / "s") as index:
        assert slosh.batch.neighbor_graph(index, 2, tmp_path / "g").skipped == 100
        index.remove(["a-3"])
        with pytest.raises(InputError, match="token"):
            slosh.batch.neighbor_graph(index, 2, tmp_path / "g")


def test_a_relative_path_is_of_the_caller(tmp_path, monkeypatch):
    make(tmp_path / "x.slosh", "a")
    monkeypatch.chdir(tmp_path)

    def elsewhere(work, tasks):
        os.chdir("/")
        return as_worker(work, tasks)

    assert slosh.batch.neighbor_graph("x.slosh", 2, "g", run=elsewhere).sets == 40


def test_an_index_that_was_deleted_is_built_again(tables, tmp_path):
    place = tmp_path / "x.slosh"
    for before in (lambda: None, lambda: None, lambda: slosh.SetIndex.create(place, 3, embedding=embedder()).close()):
        before()
        assert slosh.batch.build(place, tables, embedder())[:2] == (300, 0)
        assert slosh.batch.build(place, tables, embedder())[:2] == (0, 300)
        with slosh.open(place) as index:
            assert sorted(index.ids) == sorted(stored_sets(tables))
        shutil.rmtree(place)


def test_an_index_in_place_of_the_one_of_the_ledger_is_not_added_to(tables, tmp_path):
    place = tmp_path / "x.slosh"
    slosh.batch.build(place, tables, embedder())
    shutil.rmtree(place)
    with slosh.SetIndex.create(place, 3, embedding=embedder()) as index:
        index.add(clouds(2, dim=3))
    with pytest.raises(IndexExists, match="not the one") as caught:
        slosh.batch.build(place, tables, embedder())
    assert caught.value.remedy
    with slosh.open(place) as index:
        assert len(index) == 2


def test_a_set_with_other_weights_is_another_one(tmp_path):
    """The job was stopped; meanwhile somebody stored one of its ids, with the same points and other weights."""
    sets, ids = clouds(4, dim=3, weighted=True), list("abcd")
    pq.write_table(table_of(sets, ids), tmp_path / "a.parquet", row_group_size=2)

    def stop(done, total):
        raise KeyboardInterrupt

    def build(**options):
        slosh.batch.build(tmp_path / "x.slosh", tmp_path / "a.parquet", embedder(), weights="weights", **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slosh.batch.building.TASK_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            build(progress=stop)
    with slosh.open(tmp_path / "x.slosh") as index:
        last = sets.take([3])
        other = np.arange(1.0, 1 + len(last.points)) ** 3
        index.add(slosh.Sets(last.points, last.offsets, other), ids=["d"])
    with pytest.raises(DuplicateId):
        build()
    with slosh.open(tmp_path / "x.slosh") as index:
        index.remove(["d"])
        index.add(last, ids=["d"])
    build()


def test_an_id_that_was_removed_may_come_again(tmp_path):
    write(tmp_path / "in", 1)
    slosh.batch.build(tmp_path / "s", tmp_path / "in", embedder(), shard_sets=60)
    with served(tmp_path / "s") as index:
        index.remove(["a-3"])
    pq.write_table(table_of(clouds(1, dim=3, seed=8), ["a-3"], kind=["k"]), tmp_path / "in" / "b.parquet")
    assert slosh.batch.build(tmp_path / "s", tmp_path / "in", embedder(), shard_sets=60).sets == 1
    with served(tmp_path / "s") as index:
        assert len(index) == 100
        assert np.array_equal(index.get(["a-3"]).sets.points, clouds(1, dim=3, seed=8).points)
    pq.write_table(table_of(clouds(1, dim=3, seed=8), ["a-3"], kind=["k"]), tmp_path / "in" / "c.parquet")
    with pytest.raises(DuplicateId, match="a-3"):
        slosh.batch.build(tmp_path / "s", tmp_path / "in", embedder(), shard_sets=60)


def test_a_shard_that_is_built_again_has_another_name(tmp_path):
    write(tmp_path / "in", 1)
    for removed in (True, False):
        slosh.batch.build(tmp_path / "s", tmp_path / "in", embedder(), shard_sets=1000)
        (shard,) = (tmp_path / "s" / "shards").iterdir()
        if removed:
            before = shard.name
            with served(tmp_path / "s") as index:
                index.remove(["a-3"])
            shutil.rmtree(shard)
            os.utime(tmp_path / "in" / "a.parquet", ns=(1, 1))
    assert shard.name != before
    with served(tmp_path / "s") as index:
        assert len(index) == 100
