"""Filters that are put together from the masks of their conditions: the same rows, and each read once."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_strategies import BOUNDS, FILTERS, METADATA
from oracle import holds
from slosh.engines.sqlite import filters, masks
from slosh.engines.sqlite.masks import mask_of_filter
from slosh.where import fields_of, parse


@pytest.fixture(scope="module")
def database():
    """Return a connection to tables with the metadata of sets, whose ids are their rows."""
    made = []

    def fill(metadata):
        connection = sqlite3.connect(":memory:")
        made.append(connection)
        connection.execute(
            "CREATE TABLE fields(key TEXT, value, row INTEGER, PRIMARY KEY(key, value, row)) WITHOUT ROWID"
        )
        connection.execute("CREATE TABLE sets(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)")
        for row, one in enumerate(metadata):
            connection.execute("INSERT INTO sets VALUES (?, ?)", (row, str(row)))
            lines = [(key, value, row) for key, value in fields_of(one, "metadata")]
            connection.executemany("INSERT INTO fields VALUES (?, ?, ?)", lines)
        return connection

    yield fill
    for connection in made:
        connection.close()


@pytest.fixture
def by_conditions(monkeypatch):
    """Let every filter be put together from its conditions, and a field be read a few lines at a time."""
    for module in (filters, masks):
        monkeypatch.setattr(module, "ASKED_OFTEN", 0)
    monkeypatch.setattr(masks, "LINES_AT_ONCE", 2)


def check(connection, metadata, asked):
    node, expected = parse(asked), [holds(asked, one, str(i)) for i, one in enumerate(metadata)]
    for first in (0, 2):
        assert mask_of_filter(connection, node, first, len(metadata)).tolist() == expected[first:]


@settings(max_examples=150)
@given(st.lists(METADATA, min_size=2, max_size=7), st.lists(FILTERS, min_size=1, max_size=6))
def test_conditions_together_are_the_filter(database, by_conditions, metadata, asked):
    connection = database(metadata)
    for each in asked:
        check(connection, metadata, each)


@settings(max_examples=30)
@given(
    st.lists(st.fixed_dictionaries({"a": st.one_of(st.integers(0, 9), st.text("abc", max_size=2))}), min_size=5),
    st.lists(BOUNDS, min_size=18, max_size=25),
)
def test_many_ranges_each_with_another_condition(database, metadata, bounds):
    pairs = [{"a": each, "@id": {"!=": str(i % 5)}} for i, each in enumerate(bounds)]
    connection = database(metadata)
    check(connection, metadata, {"or": pairs})
    check(connection, metadata, {"not": {"or": [*pairs, {"a": 3}]}})


N, PAIRS = 2000, 300
SHOPS = [{"year": i * 7919 % 1000, "kind": f"k{i % 10}", "shop": f"s{i % 500}"} for i in range(N)]
REPEATED = {
    "a range and the same kind": [{"year": {">=": 3 * i, "<": 3 * i + 1}, "kind": "k3"} for i in range(PAIRS)],
    "a range and one of ten kinds": [{"year": {">=": 3 * i, "<": 900}, "kind": f"k{i % 10}"} for i in range(PAIRS)],
    "half of the years and another shop": [{"year": {">=": i}, "shop": f"s{i}"} for i in range(PAIRS)],
    "the same kind and another shop": [{"kind": "k3", "shop": f"s{i}"} for i in range(PAIRS)],
    "a range of ids and of years": [{"@id": {">": str(i)}, "year": {"<=": 3 * i}} for i in range(PAIRS)],
    "a range and a field that exists": [{"year": {">": i}, f"no{i}": {"exists": False}} for i in range(PAIRS)],
}


@pytest.mark.parametrize("pairs", REPEATED.values(), ids=REPEATED)
def test_the_same_rows_are_not_read_over_and_over(database, pairs):
    """The steps of SQLite's machine, of which a row takes a few, are counted; not one row is read for every pair."""
    connection, node, steps = database(SHOPS), parse({"or": pairs}), []
    connection.set_progress_handler(lambda: steps.append(100), 100)
    mask = mask_of_filter(connection, node, 0, N)
    connection.set_progress_handler(None, 0)
    assert sum(steps) < 15 * 3 * N + 100 * PAIRS
    some = range(0, N, 41)
    assert mask[some].tolist() == [any(holds(pair, SHOPS[i], str(i)) for pair in pairs) for i in some]


def test_one_select_answers_all_others(database):
    """It is the fastest way, unless the same rows would be read many times."""
    connection, said = database(SHOPS), []
    connection.set_trace_callback(said.append)
    for asked in (
        "kind = k3 and 10 < year < 400 and shop != s3",
        {"or": REPEATED["a range and the same kind"][:16]},
        {"or": [{"year": {">=": 3 * i, "<": 3 * i + 9}, "shop": f"s{i}"} for i in range(300)]},
        {"or": [{"year": {">=": 3 * i, "<": 3 * i + 1}} for i in range(300)]},
        {"or": [{f"k{i}": i} for i in range(300)]},
        {"and": [{"kind": {"!=": f"k{i}"}} for i in range(300)]},
    ):
        said.clear()
        mask_of_filter(connection, parse(asked), 0, N)
        assert len(said) == 1
