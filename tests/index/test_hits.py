"""Hits, HitLists and Pairs in every form: items, slices, text, pandas, Arrow."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from builders import cloud_list, make_index
from slosh.engines.base import Candidates, Description
from slosh.index.hits import make_hits


def test_hits_in_every_form():
    index = make_index()
    about = [{"kind": "a", "id": 7}, {"kind": "b", "tags": ["x", "y"]}, {}, {"deep": {"er": 1}}]
    sets = cloud_list(4)
    index.add(sets, ids=list("abcd"), metadata=about)
    hits = index.search(sets[0], k=4)
    assert [hit.id for hit in hits] == hits.ids
    assert len(hits[1:3]) == 2
    assert hits[-1] == hits[3]
    assert hits[0].metadata == {"kind": "a", "id": 7}
    hits[0].metadata["kind"] = "changed"
    assert hits[0].metadata["kind"] == "a"
    assert index.get("a").metadata["kind"] == "a"
    with pytest.raises(IndexError):
        hits[4]
    text = repr(hits)
    assert "embedded" in text
    assert len(text.splitlines()) == 5
    assert "Hit(id='a'" in repr(hits[0])
    frame = hits.to_pandas()
    assert list(frame["id"]) == hits.ids
    assert {"id", "distance", "metadata.id", "kind", "tags", "deep"} == set(frame.columns)
    table = hits.to_arrow()
    assert table.column_names == ["id", "distance", "metadata"]
    assert [json.loads(text.as_py()) for text in table["metadata"]] == hits.metadata
    assert hits.distance_kind == "embedded"


def test_lists_of_hits_in_every_form():
    index, sets = make_index(), cloud_list(4)
    index.add(sets, metadata=[{"kind": "ab"[i % 2]} for i in range(4)])
    lists = index.search(sets[:3], k=2)
    assert list(lists.to_pandas()["query"]) == [0, 0, 1, 1, 2, 2]
    assert lists.to_arrow().num_rows == 6
    assert "6 hits of 3 queries" in repr(lists)
    assert [len(part) for part in lists[1:]] == [2, 2]
    assert lists.ids == [hits.ids for hits in lists]
    assert lists.metadata == [hits.metadata for hits in lists]
    assert all(np.array_equal(a, hits.distances) for a, hits in zip(lists.distances, lists, strict=True))
    assert lists.stats.recall == 1.0
    assert lists.distance_kind == "embedded"


def test_no_hits_in_every_form():
    index, sets = make_index(), cloud_list(4)
    index.add(sets, metadata={"kind": "a"})
    none = index.search(sets[0], where={"kind": "z"})
    assert len(none) == 0
    assert none.to_pandas().empty
    assert none.to_arrow().num_rows == 0
    assert "0 hits" in repr(none)
    assert index.search(sets[:2], k=1, where={"kind": "z"}).to_pandas().empty


def test_pairs_in_every_form():
    index, sets = make_index(), cloud_list(6)
    index.add([sets[0], sets[0], sets[1], sets[0], sets[2], sets[2]], ids=list("abcdef"))
    pairs = index.duplicates()
    assert [tuple(pair) for pair in pairs] == [("a", "b", 0.0), ("a", "d", 0.0), ("b", "d", 0.0), ("e", "f", 0.0)]
    assert pairs.groups() == [["a", "b", "d"], ["e", "f"]]
    assert pairs[0].other == "b"
    assert [pair.id for pair in pairs[1:3]] == ["a", "b"]
    assert list(pairs.to_pandas().columns) == ["id", "other", "distance"]
    assert pairs.to_arrow().num_rows == 4
    assert "4 pairs" in repr(pairs)
    none = index.duplicates(where={"kind": "z"})
    assert len(none) == 0
    assert none.groups() == []
    assert none.to_pandas().empty


@pytest.mark.parametrize("which", [slice(0, None), slice(0, 3), slice(2, 5), slice(4, None), slice(0, 50)])
@pytest.mark.parametrize("sizes", [[6], [0], [], [4, 0, 6, 1, 0], [5, 5, 5]])
def test_hits_of_each_query_are_in_the_order_of_distances_and_then_of_ids(sizes, which):
    random = np.random.default_rng(len(sizes))
    for steps in (1, 3, 1000):  # how many distances there are: all of them are equal, many, or hardly any
        offsets = np.cumsum([0, *sizes])
        n = int(offsets[-1])
        distances = np.concatenate([np.empty(0), *(np.sort(random.integers(steps, size=each) / 4) for each in sizes)])
        described = [Description(f"s{i:02}", f'{{"i": {i}}}') for i in random.permutation(n)]
        zeros = np.zeros(len(sizes), np.int64)
        found = Candidates(offsets, np.arange(n), distances, "embedded", 1.0, zeros, zeros)
        made = make_hits(found, described, which)
        expected = [
            sorted(zip(distances[a:b].tolist(), described[a:b], strict=True))[which]
            for a, b in itertools.pairwise(offsets.tolist())
        ]
        flat = [each for query in expected for each in query]
        assert made.offsets == [0, *np.cumsum([len(query) for query in expected]).tolist()]
        assert (made.distances.tolist(), made.ids) == ([d for d, _ in flat], [hit.id for _, hit in flat])
        assert made.metadata == [hit.metadata for _, hit in flat]


def test_joined_hits_are_those_of_all_queries():
    index = make_index()
    sets = cloud_list(5)
    index.add(sets)
    lists = index.search(sets[:3], k=2)
    assert lists.joined.ids == [name for hits in lists for name in hits.ids]
    assert lists.offsets == [0, 2, 4, 6]
    assert [hits.ids for hits in lists] == lists.ids
