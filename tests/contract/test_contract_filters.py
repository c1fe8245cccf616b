"""Filters over metadata, on every engine, against plain Python over the dicts."""

from __future__ import annotations

import datetime

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


def test_filters_mean_what_they_say(engine, campaign):
    @settings(max_examples=500 if campaign == "all" else 50 // engine.effort)
    @given(st.lists(METADATA, min_size=3, max_size=9), st.lists(FILTERS, min_size=3, max_size=12))
    def check(metadata, filters):
        with engine.create(embedding=MeanPool(), search=ExactSearch()) as index:
            index.add(points(len(metadata)), metadata=metadata)
            for asked in filters:
                expected = [str(i) for i, one in enumerate(metadata) if holds(asked, one, str(i))]
                assert index.select(asked) == expected
                assert sorted(index.search(points(1)[0], k=9, where=asked).ids, key=int) == expected

    check()


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


def test_a_filter_finds_what_was_added_since_it_was_asked(engine):
    """However many sets that were, and whoever asks: each step is compared with plain Python over all metadata."""
    index = engine.create()
    reader, stored = engine.read_only(index) or index, {}
    filters = {
        "kind = a": lambda i, m: m.get("kind") == "a",
        "year >= 3": lambda i, m: m.get("year", -1) >= 3,
        "kind != a": lambda i, m: m.get("kind") != "a",
        "kind exists and year < 5": lambda i, m: "kind" in m and m.get("year", 9) < 5,
        "@id prefix 1 or year = 6": lambda i, m: i[0] == "1" or m.get("year") == 6,
        " or ".join(f"{j} <= year < {j + 0.5}" for j in range(9)): lambda i, m: "year" in m,
    }

    def check():
        for text, is_kept in filters.items():
            expected = sorted(name for name, metadata in stored.items() if is_kept(name, metadata))
            assert sorted(index.select(text)) == sorted(reader.select(text)) == expected, text

    for n in (40, 1, 70, 5, 0, 1, 130):
        metadata = [[{}, {"kind": "ab"[i % 2], "year": i % 7}, {"kind": "b"}][i % 3] for i in range(n)]
        if n:
            stored |= dict(zip(index.add(points(n), metadata=metadata), metadata, strict=True))
        else:
            index.update("3", metadata={"kind": "a", "year": 6})
            stored["3"] = {"kind": "a", "year": 6}
        check()
        if n > 1:
            last = list(stored)[-1]
            index.remove(["1" if "1" in stored else last])
            del stored["1" if "1" in stored else last]
            index.add(points(1), ["2"], update=True)  # at another row, with the same metadata
            check()
    index.compact()
    check()


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


def test_a_list_without_values_exists(engine):
    index = engine.create()
    index.add(points(6), metadata=[{"tags": []}, {"tags": ["a"]}, {"tags": None}, {}, {"tags": [None]}, {"tags": {}}])
    assert index.select("tags exists") == ["0", "1", "4", "5"]
    assert index.select({"tags": None}) == ["2", "3"]
    assert index.select({"or": [{"tags": {">": ""}}, {"tags": {"<": 9}}, {"tags": ["", 0]}]}) == ["1"]
    index.update("0", metadata={"tags": None})
    index.update("3", metadata={"tags": []})
    index.remove("4")
    index.add(points(1), ["5"], {"tags": "b"}, update=True)
    index = engine.reopen(index) or index
    assert set(index.select("tags exists")) == {"1", "3", "5"}
    assert index.get("3").metadata == {"tags": []}
    assert index.verify().ok


def test_sets_are_found_by_id(engine):
    index = engine.create()
    index.add(points(5), ["chair-1", "chair-2", "sofa-1", "7", "chair"], {"@id": "x", "kind": "all"})
    assert index.select({"@id": "sofa-1"}) == ["sofa-1"]
    assert index.select({"@id": ["sofa-1", 7, "none"]}) == ["sofa-1", "7"]
    assert index.select("@id prefix chair-") == ["chair-1", "chair-2"]
    assert index.select("@id prefix chair and kind = all and @id != chair-2") == ["chair-1", "chair"]
    assert index.select('"@id" = x', limit=2) == ["chair-1", "chair-2"]
    assert index.select('"@id" = sofa-1') == []
    assert sorted(index.search(points(1)[0], where={"@id": {"prefix": "chair-"}}).ids) == ["chair-1", "chair-2"]
    index.remove("chair-1")
    index.add(points(1), ["chair-2"], {"kind": "new"}, update=True)
    assert index.select("@id prefix chair-") == ["chair-2"]
    assert index.select("@id prefix chair- and kind = all") == []


def test_dates_are_in_order(engine):
    """Times in UTC, whatever zone they are given in, and in order with days."""
    utc, tokyo = datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=9))
    taken = [
        datetime.date(2024, 3, 1),
        datetime.datetime(2024, 3, 1, 8, tzinfo=tokyo),
        datetime.datetime(2024, 3, 1, 8, tzinfo=utc),
        datetime.datetime(2024, 3, 1, 8, 0, 0, 5),
        np.datetime64("2024-02-29T23:59:59"),
    ]
    index = engine.create()
    index.add(points(5), metadata=[{"taken": each} for each in taken])
    assert index.get("1").metadata == {"taken": "2024-02-29T23:00:00+00:00"}
    assert index.get("0").metadata == {"taken": "2024-03-01"}
    assert index.select({"taken": {">=": datetime.date(2024, 3, 1)}}) == ["0", "2", "3"]
    assert index.select({"taken": {"<": datetime.date(2024, 3, 1)}}) == ["1", "4"]
    assert index.select({"taken": {"<=": datetime.datetime(2024, 3, 1, 17, tzinfo=tokyo)}}) == ["0", "1", "2", "4"]
    assert index.select({"taken": {">": datetime.datetime(2024, 3, 1, 8)}}) == ["3"]
    assert index.select("taken prefix 2024-02") == ["1", "4"]
    assert index.select({"taken": taken[1].astimezone(utc)}) == ["1"]


def test_hundreds_of_ranges(engine):
    """Each takes a look at the index of its field, and not at all values."""
    index, n = engine.create(), 200
    metadata = [{"n": i, "kind": f"k{i:03}", "both": [i, f"{i}"]} for i in range(n)]
    index.add(points(n), metadata=metadata)
    rng = np.random.default_rng(0)
    ranges = [{"n": {">=": int(low), "<": int(low + width)}} for low, width in rng.integers(0, (n, 3), (300, 2))]
    ranges += [{"kind": {"prefix": f"k{i}"}} for i in range(40)] + [
        {"both": {">": n - 3}},
        {"both": {">=": "98", "<=": "99"}},
    ]
    for asked in ({"or": ranges}, {"not": {"or": ranges}}, {"and": [{"not": each} for each in ranges]}):
        assert index.select(asked) == [str(i) for i in range(n) if holds(asked, metadata[i])]


def test_hundreds_of_pairs_of_conditions(engine):
    """A range and another condition each, also for sets that were added since the filter was asked."""
    index, stored = engine.create(), {}
    pairs = [{"n": {">=": i % 90, "<": i % 90 + 2}, "kind": f"k{i % 7}"} for i in range(0, 300, 2)]
    asked = [
        {"or": pairs},
        {"not": {"or": pairs}},
        {"or": [{"n": {">": i}, "@id": {"<": f"{i}"}} for i in range(60)]},
        {"or": [{"tags": {"prefix": f"t{i % 5}"}, "n": {"!=": i}} for i in range(60)]},
    ]
    for n in (100, 70, 1):
        metadata = [
            {"n": i, "kind": f"k{i % 5}", "tags": [f"t{i % 9}", i]} for i in range(len(stored), len(stored) + n)
        ]
        stored |= dict(zip(index.add(points(n), metadata=metadata), metadata, strict=True))
        for each in asked:
            assert index.select(each) == [name for name, one in stored.items() if holds(each, one, name)]
    index.remove(["5", "31"])
    for name in ("5", "31"):
        del stored[name]
    for each in asked:
        assert index.select(each) == [name for name, one in stored.items() if holds(each, one, name)]


@pytest.mark.parametrize(
    "bad", [5, "", " ", "kind =", {"a": {"~": 1}}, {"a": float("nan")}, {"or": {"a": 1}}], ids=repr
)
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
