"""Copies of an index, from every engine to a folder: ids, metadata, weights and specification, and equal distances."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, plain_answer, small_embedding
from server_process import shared_server as shared_http_server
from slosh import Preprocess, Sets, errors
from slosh.index import changes, remote
from slosh.index import copy as copy_module
from slosh.search import ExactSearch, HammingSearch, LadderSearch

QUERIES = cloud_list(5, seed=7)
COPIES = count()
CERTIFIED = (1, 4)
"""Which of `answers` are proved."""


def filled(engine, weighted=False, **options):
    """Return an index with a history."""
    index = engine.create(**options)
    sets = cloud_list(40)
    more = {"weights": [np.linspace(0.5, 2, len(x)) for x in sets]} if weighted else {}
    index.add(sets, [f"s{i:02}" for i in range(40)], [{"n": i, "tags": ["x", i % 3]} for i in range(40)], **more)
    index.remove(["s03", "s30"])
    index.update("s05", sets[6], {"n": -5}, **({"weights": np.ones(len(sets[6]))} if weighted else {}))
    index.update("s09", metadata={"n": 99, "deep": {"er": None}})
    return index


def answers(index, weighted=False):
    queries = Sets.from_list(QUERIES, [np.arange(1.0, len(x) + 1) for x in QUERIES]) if weighted else QUERIES
    return [
        plain_answer(found)
        for found in (
            index.search(queries, k=7, recall=1.0),
            index.search(queries, k=7, certify=True),
            index.search(queries, k=40, where={"tags": 1}, recall=1.0),
            index.search(id=["s05", "s06"], k=3, recall=1.0),
            index.range_search(queries, 1.0, certify=True),
        )
    ]


def check_same(engine, ours, theirs):
    """Check that two answers are the same, to the last bit where vectors are rounded alike; proofs always are."""
    for i, ((ids, distances), (other_ids, others)) in enumerate(zip(ours, theirs, strict=True)):
        if engine.same_bits or i in CERTIFIED:
            assert (ids, distances) == (other_ids, others)
        else:
            assert [len(each) for each in ids] == [len(each) for each in other_ids]
            for one, other in zip(distances, others, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_copy_holds_and_answers_the_same(engine, tmp_path, weighted):
    index = filled(engine, weighted)
    held, answered = contents(index), answers(index, weighted)
    assert index.copy_to(tmp_path / "copy.slosh") == 38
    with slosh.open(tmp_path / "copy.slosh", n_jobs=1) as copy:
        assert contents(copy) == held
        assert copy.ids == index.ids
        check_same(engine, answers(copy, weighted), answered)
        assert copy.dim == index.dim
        assert copy.info()["weighted"] == weighted
        assert copy.select({"deep.er": None, "n": 99}) == ["s09"]
        report = copy.verify()
        assert report.ok, str(report)
    assert contents(index) == held
    index.add(cloud_list(1), ["only here"])
    with slosh.open(tmp_path / "copy.slosh", read_only=True, n_jobs=1) as copy:
        assert contents(copy) == held


@pytest.mark.parametrize(
    "options",
    [
        {"preprocess": Preprocess(center=True, scale="rms")},
        {"preprocess": Preprocess(standardize=([1.0, 2.0], [2.0, 3.0]), max_points=4, random_state=5)},
        {"origin": [100.0, -50.0]},
        {"search": ExactSearch()},
        {"search": LadderSearch(precision=32)},
        {"search": HammingSearch(rerank=20), "sample": cloud_list(30, seed=3)},
        {"embedding": small_embedding(slices=np.array([[1.0, 0.0], [0.6, 0.8]]), n_slices=None)},
        {"embedding": small_embedding(reference="barycenter"), "sample": cloud_list(30, seed=3)},
    ],
    ids=lambda options: f"{options!r:.50}",
)
def test_a_copy_has_the_same_specification(engine, tmp_path, options):
    """New sets and queries are embedded as in the original, bit for bit."""
    index = filled(engine, **options)
    index.copy_to(tmp_path / "copy.slosh")
    with slosh.open(tmp_path / "copy.slosh", n_jobs=1) as copy:
        for each in (index, copy):
            each.add(cloud_list(3, seed=11), ["new0", "new1", "new2"])
        check_same(engine, answers(copy), answers(index))
        for key in ("dim", "embedding", "search", "preprocess", "origin", "vector_length"):
            assert copy.info()[key] == index.info()[key], key


def test_a_copy_of_a_copy_and_back(engine, tmp_path):
    index = filled(engine)
    index.copy_to(tmp_path / "one.slosh")
    with slosh.open(tmp_path / "one.slosh", read_only=True, n_jobs=1) as one:
        assert one.copy_to(tmp_path / "two.slosh") == 38
    with slosh.open(tmp_path / "two.slosh", n_jobs=1) as two:
        assert contents(two) == contents(index)
        check_same(engine, answers(two), answers(index))
        assert not set(two.add(cloud_list(2))) & set(index.ids)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_copy_on_a_server(engine, tmp_path, weighted, monkeypatch):
    """Sent in several requests, and back again from there."""
    monkeypatch.setattr("slosh.index.copy.COPY_NUMBERS", 50)
    index = filled(engine, weighted, **({} if weighted else {"origin": [3.0, -4.0]}))
    given = index.add(cloud_list(2), **({"weights": [np.ones(len(x)) for x in cloud_list(2)]} if weighted else {}))
    index.remove(given[-1])
    index.tune(0.9, k=3)
    server, name = shared_http_server().url, f"copy-{next(COPIES)}"
    assert index.copy_to(server, name) == 39
    with slosh.open(server, name=name) as copy:
        assert contents(copy) == contents(index)
        assert copy.info()["recall"] == index.info()["recall"] == 0.9
        check_same(engine, answers(copy, weighted), answers(index, weighted))
        with pytest.raises(errors.IndexExists):
            index.copy_to(server, name)
        assert copy.copy_to(tmp_path / "back.slosh") == copy.copy_to(server, f"{name}-again") == 39
        with slosh.open(tmp_path / "back.slosh", n_jobs=1) as back:
            assert contents(back) == contents(index)
        assert given[-1] not in copy.add(cloud_list(2))
        copy.destroy()
    with slosh.open(server, name=f"{name}-again") as copy:
        assert contents(copy) == contents(index)
        copy.destroy()


def test_a_copy_to_a_server_that_fails_leaves_nothing(engine, monkeypatch):
    index, server, name = filled(engine), shared_http_server().url, f"copy-{next(COPIES)}"

    def fail(self, original):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(remote.RemoteTarget, "finish", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        index.copy_to(server, name)
    with pytest.raises(errors.IndexNotFound):
        slosh.open(server, name=name)


def test_counted_ids_are_not_used_again_in_a_copy(engine, tmp_path):
    """Nor is that of a set that was removed before."""
    index = engine.create()
    given = index.add(cloud_list(4))
    index.remove(given[-1])
    index.copy_to(tmp_path / "copy.slosh")
    with slosh.open(tmp_path / "copy.slosh", n_jobs=1) as copy:
        assert not set(copy.add(cloud_list(2))) & set(given)


def test_an_empty_index_is_copied(engine, tmp_path):
    index = engine.create(dim=3, weighted=True)
    assert index.copy_to(tmp_path / "copy.slosh") == 0
    with slosh.open(tmp_path / "copy.slosh", n_jobs=1) as copy:
        assert len(copy) == 0
        assert copy.dim == 3
        copy.add(cloud_list(2, dim=3), weights=[np.ones(len(x)) for x in cloud_list(2, dim=3)])


def test_a_copy_replaces_nothing(engine, tmp_path):
    index = filled(engine)
    index.copy_to(tmp_path / "copy.slosh")
    with slosh.open(tmp_path / "copy.slosh", n_jobs=1) as copy:
        before = contents(copy)
    index.remove("s00")
    with pytest.raises(errors.IndexExists):
        index.copy_to(tmp_path / "copy.slosh")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.IndexExists):
        index.copy_to(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with slosh.open(tmp_path / "copy.slosh", n_jobs=1) as copy:
        assert contents(copy) == before
    with pytest.raises(FileNotFoundError):
        index.copy_to(tmp_path / "no" / "such")


@pytest.mark.parametrize("by_reader", [False, True])
def test_a_copy_is_of_one_version(engine, tmp_path, monkeypatch, by_reader):
    """Whatever is changed between two batches of the copy: it has all of a change or nothing, and no writer waits."""
    index = filled(engine)
    source = engine.read_only(index) if by_reader else index
    if source is None:
        return
    held, store, sizes = contents(index), changes.add, []

    def store_and_change(copy, sets, *more):
        added = store(copy, sets, *more)
        sizes.append(len(sets))
        if len(sizes) == 1:
            index.remove(["s00", "s20", "s39"])
            index.update(["s02", "s21"], cloud_list(2, seed=5), {"n": 0})
            index.update("s22", metadata={})
            index.compact()
        return added

    monkeypatch.setattr(copy_module, "COPY_BATCH_SETS", 10)
    monkeypatch.setattr(changes, "add", store_and_change)
    assert source.copy_to(tmp_path / "copy.slosh") == 38
    monkeypatch.undo()
    assert sizes == [10, 10, 10, 8]
    with slosh.open(tmp_path / "copy.slosh", read_only=True, n_jobs=1) as copy:
        assert contents(copy) == held
    assert len(source) == 35
    assert source.get("s22").metadata == {}
