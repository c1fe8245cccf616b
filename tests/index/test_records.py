"""Every form in which sets, ids and metadata come into an index, and in which queries are asked."""

from __future__ import annotations

import numpy as np
import pytest

from builders import cloud_list, make_index, plain_answer
from slosh import Sets, errors
from slosh.index.records import (
    checked_ids,
    checked_metadata,
    is_single_set,
    merge_metadata,
    metadata_of_each,
)


def test_every_form_of_sets():
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    sets = cloud_list(4)
    index = make_index()
    forms = {
        "list": sets,
        "lists": [x.tolist() for x in sets],
        "sets": Sets.from_list(sets),
        "arrow": pa.array([x.tolist() for x in sets]),
        "series": pd.Series(sets),
        "iterator": iter(sets),
        "double": [x.astype(np.float64) for x in sets],
        "batches": iter([Sets.from_list(sets[:3]), Sets.from_list(sets[3:])]),
        "triples": iter([(sets[:1], None, None), (sets[1:], None, [{"x": 1}] * 3)]),
    }
    for form, given in forms.items():
        names = index.add(given, ids=[f"{form}{i}" for i in range(4)])
        assert names == [f"{form}{i}" for i in range(4)]
        for name, x in zip(names, sets, strict=True):
            assert np.array_equal(index.get(name).points, x), form
    assert index.add([]) == []
    assert index.add(iter([])) == []
    assert len(index.add(np.random.default_rng(0).normal(size=(5, 6, 2)))) == 5
    assert index.verify().ok


def test_one_query_and_several():
    """One set gives Hits, several give one Hits for each."""
    index = make_index()
    cube = np.random.default_rng(0).normal(size=(5, 6, 2)).astype(np.float32)
    index.add(cube)
    one = plain_answer(index.search(cube[0], k=2))
    assert plain_answer(index.search(cube[0].tolist(), k=2)) == one
    assert plain_answer(index.search(cube[0].astype(np.float64), k=2)) == one
    for several in (cube, list(cube), cube.tolist(), Sets.from_list(list(cube)), tuple(cube)):
        found = index.search(several, k=2)
        assert len(found) == 5
        assert plain_answer(found[0]) == one
    assert len(index.search(cube[:1], k=2)) == 1
    assert index.search(id="0", k=1).ids == index.search(id=["0"], k=1)[0].ids


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ("a", ["a"]),
        (7, ["7"]),
        (np.int32(7), ["7"]),
        (["a", 7, np.int64(-1)], ["a", "7", "-1"]),
        (np.array([5, 6]), ["5", "6"]),
        (np.array(["x", "y"]), ["x", "y"]),
        ((name for name in "ab"), ["a", "b"]),
        (["x" * 1024, "e\u0301", "é"], ["x" * 1024, "e\u0301", "é"]),
        ([], []),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_ids_become_strings(ids, expected):
    found = checked_ids(ids)
    assert found == expected
    assert {type(name) for name in found} <= {str}


@pytest.mark.parametrize("bad", ["", "x" * 1025, "a\0b", "\ud800", b"x", 1.5, None, True, ("a",)], ids=repr)
def test_what_is_no_id_is_refused(bad):
    with pytest.raises(errors.InputError, match="id 1") as told:
        checked_ids(["fine", bad])
    assert (told.value.argument, told.value.set) == ("ids", 1)


@pytest.mark.parametrize("bad", [None, b"ab", 1.5, True], ids=repr)
def test_what_is_no_list_of_ids_is_refused(bad):
    with pytest.raises(errors.InputError, match="list of strings") as told:
        checked_ids(bad)
    assert told.value.argument == "ids"


def test_an_id_comes_once():
    with pytest.raises(errors.DuplicateId, match="twice") as told:
        checked_ids(["1", "b", 1])
    assert told.value.id == "1"
    assert checked_ids(["a", "b", "a"], repeats=True) == ["a", "b", "a"]


def test_metadata_for_each_set_or_for_all():
    assert metadata_of_each(None, 2) == [None, None]
    assert metadata_of_each({"x": 1}, 2) == [{"x": 1}, {"x": 1}]
    assert metadata_of_each(iter([{"x": 1}, None]), 2) == [{"x": 1}, None]
    assert merge_metadata(None, None, 2) is None
    assert merge_metadata(None, {"x": 1}, 2) == {"x": 1}
    assert merge_metadata([{"x": 2}, None], {"x": 1, "y": 3}, 2) == [{"x": 2, "y": 3}, {"x": 1, "y": 3}]
    assert merge_metadata({"x": 2}, {"y": 3}, 1) == [{"x": 2, "y": 3}]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([{}], "2 sets and 1 metadata"),
        ([{}, {}, {}], "2 sets and 3 metadata"),
        ("x", "dict"),
        (b"xy", "dict"),
        (5, "dict"),
        ({"x": float("nan")}, "x"),
        ({"x": float("inf")}, "x"),
        ({"x": b"bytes"}, "x"),
        ({"x": {"y": {1, 2}}}, "x"),
        ({1: "x"}, "key"),
        ({"x": 1 << 70}, "x"),
        ([{}, "no dict"], r"set 1 \('b'\).*dict"),
        ([{}, 0], "dict"),
        ([{}, ""], "dict"),
        ([{}, []], "dict"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_what_is_no_metadata_is_refused(metadata, message):
    with pytest.raises(errors.InputError, match=message):
        checked_metadata(metadata_of_each(metadata, 2), ["a", "b"])


def test_one_set_is_not_a_collection():
    flat = np.zeros((3, 2))
    for one in (flat, flat.tolist(), tuple(map(tuple, flat)), list(flat)):
        assert is_single_set(one)
    for several in (flat[None], [flat], [flat.tolist()], Sets.from_list([flat]), [], (flat, flat)):
        assert not is_single_set(several)


def test_ids_that_are_asked_as_queries():
    index = make_index()
    index.add(cloud_list(3))
    for asked in ("1", ["1", "2"], ("1", "2")):
        for question in (index.search, index.range_search, index.kneighbors):
            with pytest.raises(errors.InputError) as error:
                question(asked)
            assert error.value.argument == "queries"
            assert error.value.remedy == f"give id={asked!r} for what is stored"


def test_items_with_weights_and_arrays_in_one_list():
    index = make_index(weighted=True)
    plain = cloud_list(6)
    sets = Sets.from_list(plain, [np.arange(1, len(x) + 1) for x in plain])
    index.add(sets[:3])
    index.add(plain[3:], ids=["3", "4", "5"])
    found = index.search([sets[1], plain[4]], 1)
    assert [hits.ids for hits in found] == [["1"], ["4"]]
    assert [hits.distances.tolist() for hits in found] == [[0.0], [0.0]]
