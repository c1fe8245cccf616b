"""Graphs of neighbours and duplicates as jobs: what the index itself answers, part by part."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from batch_data import pq
from builders import clouds, make_index
from slosh.errors import InputError, SourceChanged

PARTS = 37


@pytest.fixture
def index(tmp_path):
    sets = clouds(120, dim=2, largest=8)
    with make_index(tmp_path / "x.slosh", search=slosh.search.ExactSearch()) as made:
        metadata = [{"odd": bool(i % 2)} for i in range(135)]
        made.add(slosh.Sets.concat([sets, sets[:15]]), ids=[f"s{i}" for i in range(135)], metadata=metadata)
        yield made


def edges(folder):
    rows = pq.read_table(folder).to_pylist()
    found = {(row["id"], row["rank"]): (row["neighbor"], row["distance"]) for row in rows}
    assert len(found) == len(rows)
    return found


def pairs(folder):
    rows = [tuple(row.values()) for row in pq.read_table(folder).to_pylist()]
    assert len(set(rows)) == len(rows)
    return sorted(rows, key=lambda row: (row[2], row[0], row[1]))


@pytest.mark.parametrize("certify", [False, True])
def test_the_graph_is_that_of_search(certify, index, tmp_path):
    report = slosh.batch.neighbor_graph(index, 5, tmp_path / "g", part_sets=PARTS, certify=certify)
    assert report[:3] == (135, 0, 4)
    expected = {}
    for name in index.ids:
        hits = index.search(id=name, k=5, certify=certify)
        expected |= {(name, i + 1): (hit.id, hit.distance) for i, hit in enumerate(hits)}
    found = edges(tmp_path / "g")
    assert found.keys() == expected.keys()
    assert [found[key][0] for key in expected] == [each[0] for each in expected.values()]
    assert np.allclose([found[key][1] for key in expected], [each[1] for each in expected.values()], rtol=1e-12)


def test_fewer_neighbours_than_asked_for(tmp_path):
    with make_index(None) as index:
        index.add(clouds(3))
        slosh.batch.neighbor_graph(index, 10, tmp_path / "g")
        assert len(edges(tmp_path / "g")) == 6
    with make_index(None) as index:
        assert slosh.batch.neighbor_graph(index, 10, tmp_path / "h")[:3] == (0, 0, 1)
        slosh.batch.duplicates(index, 1.0, tmp_path / "i")
    assert pq.read_table(tmp_path / "h").schema == pq.read_table(tmp_path / "g").schema
    assert pq.read_table(tmp_path / "h").num_rows == pq.read_table(tmp_path / "i").num_rows == 0


@pytest.mark.parametrize("options", [{}, {"certify": True}, {"where": {"odd": True}}])
@pytest.mark.parametrize("radius", [0.0, 0.7])
def test_duplicates_are_those_of_the_index(options, radius, index, tmp_path):
    slosh.batch.duplicates(index, radius, tmp_path / "d", part_sets=PARTS, **options)
    assert pairs(tmp_path / "d") == [tuple(pair) for pair in index.duplicates(radius, **options)]
    assert options or len(pairs(tmp_path / "d")) >= 15


def test_a_graph_goes_on_where_it_stopped(index, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total):
        if done >= 2 * PARTS:
            raise Stop

    target = tmp_path / "g"
    with pytest.raises(Stop):
        slosh.batch.neighbor_graph(tmp_path / "x.slosh", 3, target, part_sets=PARTS, progress=stop)
    assert slosh.batch.neighbor_graph(tmp_path / "x.slosh", 3, target, part_sets=PARTS)[:3] == (61, 74, 2)
    assert len(edges(target)) == 3 * 135
    with pytest.raises(InputError, match="k=3, not 4"):
        slosh.batch.neighbor_graph(index, 4, target, part_sets=PARTS)
    index.remove(["s0"])
    with pytest.raises(InputError, match="version"):
        slosh.batch.neighbor_graph(index, 3, target, part_sets=PARTS)


def test_an_index_that_changes_meanwhile_is_noticed(index, tmp_path):
    with pytest.raises(SourceChanged) as caught:
        slosh.batch.neighbor_graph(index, 3, tmp_path / "g", part_sets=PARTS, progress=lambda *_: index.remove(["s0"]))
    assert caught.value.location == index.location
    assert "backup" in caught.value.remedy


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda index, target: slosh.batch.neighbor_graph(index, 0, target), "k"),
        (lambda index, target: slosh.batch.neighbor_graph(index, 3, target, part_sets=0), "part_sets"),
        (lambda index, target: slosh.batch.duplicates(index, -1.0, target), "radius"),
        (lambda index, target: slosh.batch.duplicates(index, "x", target), "radius"),
        (lambda index, target: slosh.batch.neighbor_graph(index, 3, target, run=map), "index"),
    ],
)
def test_arguments_that_are_wrong(call, argument, tmp_path):
    with make_index(None) as index:
        index.add(clouds(3))
        with pytest.raises(InputError) as caught:
            call(index, tmp_path / "g")
    assert caught.value.argument == argument
    assert not (tmp_path / "g").exists()
