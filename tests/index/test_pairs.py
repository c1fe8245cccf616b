"""Every stored set as a query: the batches in which they are asked for are not seen, but in the progress."""

from __future__ import annotations

import numpy as np
import pytest

from builders import cloud_list, make_index
from slosh.errors import UnknownId
from slosh.index import pairs


@pytest.fixture
def index():
    sets = cloud_list(23)
    sets[20] = sets[2]
    made = make_index()
    made.add(sets, metadata=[{"late": i > 11} for i in range(23)])
    made.remove("5")
    return made


def ask(index):
    graph, names = index.neighbor_graph(3)
    return [
        [tuple(pair) for pair in index.duplicates(0.5)],
        [tuple(pair) for pair in index.duplicates(0.5, certify=True, where={"late": True})],
        [each.tolist() for each in index.kneighbors(k=4)],
        (graph.toarray().tolist(), names),
    ]


@pytest.mark.parametrize("n", [1, 10, 11, 22])
def test_neighbours_do_not_depend_on_the_batches(index, monkeypatch, n):
    whole = ask(index)
    assert ("2", "20", 0.0) in whole[0]
    for name in ("QUERY_BATCH_SETS", "RADIUS_BATCH_SETS", "NAMED_AT_ONCE"):
        monkeypatch.setattr(pairs, name, n)
    assert ask(index) == whole


def test_progress_of_each_batch(index, monkeypatch):
    for name in ("QUERY_BATCH_SETS", "RADIUS_BATCH_SETS"):
        monkeypatch.setattr(pairs, name, 10)
    for question in (index.duplicates, index.neighbor_graph):
        seen = []
        question(progress=lambda *done, seen=seen: seen.append(done))
        assert seen == [(10, 22), (20, 22), (22, 22)]


def test_fewer_neighbours_than_are_asked_for(index):
    distances, positions = index.kneighbors(k=30, where={"late": True})
    late = np.array([int(name) > 11 for name in index.ids])
    assert ((positions >= 0).sum(axis=1) == late.sum() - late).all()
    assert np.array_equal(np.isinf(distances), positions < 0)
    graph, _ = index.neighbor_graph(30, mode="connectivity")
    assert np.array_equal(graph.toarray(), 1 - np.eye(22))


def test_duplicates_of_some_sets_are_a_part_of_all(index):
    everything = [tuple(pair) for pair in index.duplicates(0.5)]
    names = index.ids
    parts = [index.duplicates(0.5, id=names[first : first + 5]) for first in range(0, len(names), 5)]
    assert sorted(tuple(pair) for part in parts for pair in part) == sorted(everything)
    assert all(pair[0] in names[:5] for pair in parts[0])
    late = [tuple(pair) for pair in index.duplicates(0.5, id=["13", "14"], where={"late": True})]
    assert late == [tuple(pair) for pair in index.duplicates(0.5, where={"late": True}) if pair[0] in ("13", "14")]
    with pytest.raises(UnknownId):
        index.duplicates(0.5, id=["nobody"])


def test_the_version_counts_changes(index):
    before = index.version
    index.search(id="3")
    assert index.version == before
    index.remove("7")
    assert index.version > before
