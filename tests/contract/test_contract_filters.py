"""Filters over metadata, on every engine, against plain Python over the dicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_index
from filter_strategies import FILTERS, METADATA
from oracle import holds
from slosh.embed import MeanPool
from slosh.search import ExactSearch


def points(n):
    return np.arange(2.0 * n).reshape(n, 1, 2)


@settings(max_examples=100)
@given(st.lists(METADATA, min_size=1, max_size=8), st.lists(FILTERS, min_size=1, max_size=8))
def test_filters_mean_what_they_say(engine, metadata, filters):
    with engine.create(embedding=MeanPool(), search=ExactSearch()) as index:
        index.add(points(len(metadata)), metadata=metadata)
        for asked in filters:
            expected = [str(i) for i, one in enumerate(metadata) if holds(asked, one)]
            assert index.select(asked) == expected
            assert sorted(index.search(points(1)[0], k=9, where=asked).ids, key=int) == expected


def test_ids_by_filter(engine):
    index = engine.create(dim=1)
    assert index.select() == []
    index.add([[[float(i)]] for i in range(6)], metadata=[{"n": i, "odd": i % 2 == 1} for i in range(6)])
    assert index.select() == index.ids
    assert index.select({"odd": True}) == ["1", "3", "5"]
    assert index.select("n >= 2 and odd = false", limit=1) == ["2"]
    assert index.select({"n": {"in": [0, 5], "<": 3}}) == ["0"]
    assert index.select({"n": {">": 99}}) == []
    index.remove(["3"])
    assert index.select({"odd": True}) == ["1", "5"]


def test_a_filter_never_shows_what_it_was_before_a_change(engine):
    """The sets that a filter lets through may be remembered, but not for longer than they are those."""
    index = engine.create()
    index.add(points(6), metadata=[{"kind": "ab"[i % 2]} for i in range(6)])
    query, where = points(1)[0], {"kind": "a"}

    def found():
        return sorted(index.search(query, k=9, where=where).ids), sorted(index.range_search(query, 99, where=where).ids)

    for _ in range(2):
        assert found() == (["0", "2", "4"],) * 2
    index.remove("2")
    assert found() == (["0", "4"],) * 2
    index.update("1", metadata={"kind": "a"})
    assert found() == (["0", "1", "4"],) * 2
    index.add(points(1), ["new"], {"kind": "a"})
    assert found() == (["0", "1", "4", "new"],) * 2
    index.update("4", points(1)[0], {"kind": "b"})
    assert found() == (["0", "1", "new"],) * 2
    index.compact()
    assert found() == (["0", "1", "new"],) * 2


def test_values_of_every_kind_are_found_again(engine):
    values = [0, 1, -1, 0.5, 1e300, -(1 << 63), (1 << 63) - 1, "", "a", "A", "é", "e\u0301", "\U0001f600", "a\0b", "1"]
    index = engine.create()
    index.add(points(len(values)), metadata=[{"v": value} for value in values])
    for i, value in enumerate(values):
        assert index.select({"v": value}) == [str(i)], value
        assert index.select({"v": {"!=": value}}) == [str(j) for j in range(len(values)) if j != i], value
        assert index.get(str(i)).metadata == {"v": value}
    long = [*range(0, 100_000, 2), "a", "é", -(1 << 63)]
    assert index.select({"v": long}) == [str(i) for i, value in enumerate(values) if value in long]


@pytest.mark.parametrize("bad", [5, "kind =", {"a": {"~": 1}}, {"a": float("nan")}, {"or": {"a": 1}}], ids=repr)
def test_what_is_no_filter_is_refused_everywhere(engine, bad):
    index = engine.create()
    index.add(points(2))
    for call in (
        lambda: index.select(bad),
        lambda: index.search(points(1)[0], where=bad),
        lambda: index.range_search(points(1)[0], 1.0, where=bad),
        lambda: index.duplicates(where=bad),
    ):
        with pytest.raises(ValueError, match="where"):
            call()


def test_filters_are_those_of_the_same_index_elsewhere(engine):
    """Two indexes with other metadata never share what they remember."""
    one, two = engine.create(), make_index()
    one.add(points(3), metadata=[{"k": i} for i in range(3)])
    two.add(points(3), metadata=[{"k": 2 - i} for i in range(3)])
    assert one.search(points(1)[0], where={"k": 0}).ids == ["0"]
    assert two.search(points(1)[0], where={"k": 0}).ids == ["2"]
