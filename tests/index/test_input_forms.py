"""Every form in which sets come into an index, and in which queries are asked."""

from __future__ import annotations

import numpy as np
import pytest

from builders import cloud_list, make_index, plain_answer
from slosh import Sets
from slosh.errors import InputError


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


def test_ids_that_are_asked_as_queries():
    index = make_index()
    index.add(cloud_list(3))
    for asked in ("1", ["1", "2"], ("1", "2")):
        for question in (index.search, index.range_search, index.kneighbors):
            with pytest.raises(InputError) as error:
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
