"""How the SQLite engine compiles filters: to SQL with parameters that uses the index of the fields, and no text pasted.

What filters mean is tested on every engine by tests/contract/test_contract_filters.py.
"""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_strategies import BOUNDS, FILTERS, METADATA
from oracle import holds
from slosh.engines.sqlite.filters import compile_filter
from slosh.where import In, Not, fields_of, matches, parse


def database(metadata):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE fields(key TEXT, value, row INTEGER, PRIMARY KEY(key, value, row)) WITHOUT ROWID")
    connection.execute("CREATE TABLE sets(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)")
    for row, one in enumerate(metadata):
        connection.execute("INSERT INTO sets VALUES (?, ?)", (row, str(row)))
        lines = [(key, value, row) for key, value in fields_of(one, "metadata")]
        connection.executemany("INSERT INTO fields VALUES (?, ?, ?)", lines)
    return connection


def rows(connection, node, first=0):
    """Return the rows that match, each once, however often they come."""
    return list({row for (row,) in connection.execute(*compile_filter(node, first))})


def plan(connection, node, first=0):
    sql, parameters = compile_filter(node, first)
    return [line[3] for line in connection.execute("EXPLAIN QUERY PLAN " + sql, parameters)]


SHELF = [
    {"kind": "chair", "year": 2012, "tags": ["red", "old"], "camera": {"iso": 100, "lens": {"mm": 50.0}}},
    {"kind": "sofa", "year": 2020, "price": 99.5},
    {"kind": "chair", "year": 1999.5, "new": True},
    {"kind": 7, "year": "2015", "new": False, "tags": ["red", 1, 1.0, True]},
    {"and": 3, 'it\'s "x"': "", "year": [2005, 2025]},
    {},
]


def test_the_index_is_used():
    connection = database(SHELF)
    for text in (
        "kind = chair", "kind in (a, b, 3)", "year > 3", "year < 3", "3 <= year < 9", 'kind < "x"', 'kind > "x"',
        "kind exists", "kind exists and year > 3 and x not exists", "year > 3 and kind = chair",
        "kind != a and year < 3", "kind = a or year > 3", "kind prefix ch", "kind prefix ch and @id prefix 1",
    ):  # fmt: skip
        steps = plan(connection, parse(text))
        assert not any("SCAN fields" in step for step in steps), (text, steps)
        assert any("SEARCH fields USING PRIMARY KEY (key=?" in step for step in steps)
        if "exists" in text:
            assert any("SEARCH fields USING PRIMARY KEY (key>? AND key<?)" in step for step in steps)
    for text in ("year > 3", "kind prefix ch", "kind > x", "kind < x"):
        assert any("(key=? AND value>? AND value<?)" in step for step in plan(connection, parse(text))), text
    for text, found in {
        "@id = 3": "id=?", "@id in (3, 4)": "id=?", "@id prefix 3": "id>? AND id<?", "@id > 3": "id>? AND id<?",
    }.items():  # fmt: skip
        assert any(
            f"COVERING INDEX sqlite_autoindex_sets_1 ({found})" in step for step in plan(connection, parse(text))
        )
    assert any("(key=? AND value=?)" in step for step in plan(connection, In("kind", tuple(range(1000)))))
    for text in ("kind = chair", "kind in (a, b, 3)", "kind != a", "kind = a or kind = b", "kind = a and year > 3"):
        assert any("(key=? AND value=? AND row>?)" in step for step in plan(connection, parse(text), 5)), text


def test_a_dict_exists():
    """A dict is there if something in it is; a key that only starts alike, or sorts beside it, is another field."""
    metadata = [
        {"a": {"b": 1}},
        {"a": {"b": {"c": [None, "x"]}}},
        {"ab": 1, "a-": 1, "a/": 1, "a/b": 1, "a!": 1, "A": {"b": 1}, "": {"a": 1}},
        {"a": 0},
        {"a.b": 1},
    ]
    connection = database(metadata)
    for key, expected in (("a", [0, 1, 3, 4]), ("a.b", [0, 1, 4]), ("a.b.c", [1]), ("", [2]), ("a.", [])):
        for asked, found in (
            ({key: {"exists": True}}, expected),
            ({key: None}, [i for i in range(len(metadata)) if i not in expected]),
        ):
            node = parse(asked)
            assert sorted(rows(connection, node)) == found, asked


def test_nothing_is_pasted():
    node = parse({"a' OR 1 --": "'; DROP TABLE sets; --", "b": {">": "x'"}, "c": ["'", '"']})
    sql, parameters = compile_filter(node)
    assert "DROP" not in sql
    assert "--" not in sql
    assert sql.count("?") == len(parameters)
    assert rows(database(SHELF), node) == []


def test_long_lists():
    rng = np.random.default_rng(0)
    values = [*range(0, 200_000, 2), *rng.normal(size=1000).tolist(), "a\0b", "é\U0001f600", 1e300, -(1 << 63), "\0"]
    metadata = [{"n": 4}, {"n": 5}, {"n": values[-20]}, {"n": "a\0b"}, {"n": "a"}, {"n": "é\U0001f600"}, {"n": ""}]
    metadata += [{"n": 1e300}, {"n": -(1 << 63)}, {"n": [5, 6]}, {"n": "a\0c"}, {"n": "4"}]
    connection, node = database(metadata), parse({"n": values})
    sql, parameters = compile_filter(node)
    assert len(parameters) < 10
    assert len(sql) < 300
    assert sorted(rows(connection, node)) == [0, 2, 3, 5, 7, 8, 9]
    assert sorted(rows(connection, Not(node))) == [1, 4, 6, 10, 11]


def test_many_parts():
    metadata = [{f"k{i}": i} for i in range(0, 2000, 7)] + [{f"k{i}": i for i in range(2000)}]
    connection = database(metadata)
    either = parse({"or": [{f"k{i}": i} for i in range(2000)]})
    assert len(either.parts) == 2000
    assert sorted(rows(connection, either)) == list(range(len(metadata)))
    both = parse({f"k{i}": i for i in range(2000)})
    assert rows(connection, both) == [len(metadata) - 1]
    assert sorted(rows(connection, parse({"not": {"or": [{f"k{i}": {">": i}} for i in range(2000)]}}))) == list(
        range(len(metadata))
    )
    assert compile_filter(parse({"or": [{"k": i} for i in range(40_000)]}))[1][0] == "k"  # one list
    with pytest.raises(ValueError, match="where has 40,000 parameters, and SQLite takes 32,000: give the values of"):
        compile_filter(parse({"or": [{f"k{i}": i} for i in range(20_000)]}))


def test_many_ranges_are_one_select():
    connection = database([{"n": i, "kind": f"k{i}"} for i in range(0, 3000, 7)])
    for field, value in (("n", int), ("kind", "k{}".format), ("@id", str)):
        node = parse({"or": [{field: {">=": value(i), "<": value(i + 3)}} for i in range(1000, 4000, 10)]})
        sql = compile_filter(node)[0]
        assert sql.count("SELECT") <= 2, sql
        steps = plan(connection, node)
        assert not any("SCAN fields" in step or "SCAN sets" in step for step in steps), steps
    wide = parse({"or": [{"n": {">": i}} for i in range(500)]})
    assert compile_filter(wide) == compile_filter(parse("n > 0"))
    assert rows(connection, Not(wide)) == rows(
        connection, parse({"and": [{"not": {"n": {">": i}}} for i in range(500)]})
    )


@settings(max_examples=200)
@given(st.lists(METADATA, min_size=1, max_size=6), st.lists(BOUNDS, min_size=2, max_size=12))
def test_a_union_of_ranges(metadata, bounds):
    connection = database(metadata)
    for asked in ({"or": [{"a": each} for each in bounds]}, {"and": [{"not": {"a": each}} for each in bounds]}):
        node = parse(asked)
        expected = [i for i, one in enumerate(metadata) if holds(asked, one)]
        assert sorted(rows(connection, node)) == expected
        assert [i for i, one in enumerate(metadata) if matches(node, one)] == expected
        assert parse(str(node)) == node


def test_what_is_too_deep_for_sqlite():
    """What compiles also runs, up to the place where it is refused."""
    connection, wide = database(SHELF), {"a": 1}
    for i in range(45):
        wide = {f"z{j}": {">": i} for j in range(30)} | {"kind": "chair", "or": [{"y": i}, {"new": True, **wide}]}
        try:
            sql = compile_filter(parse(wide))
            last_rows = compile_filter(parse(wide), 3)
        except ValueError as error:
            assert "nested too deep, with too many conditions, for SQLite" in str(error)  # noqa: PT017
            assert i > 10
            break
        assert connection.execute(*sql).fetchall() == connection.execute(*last_rows).fetchall() == []
    else:
        pytest.fail("never refused")


@settings(max_examples=200)
@given(st.lists(METADATA, min_size=1, max_size=6), st.lists(FILTERS, min_size=1, max_size=6))
def test_sql_finds_what_matches(metadata, filters):
    connection = database(metadata)
    for asked in filters:
        node = parse(asked)
        expected = [i for i, one in enumerate(metadata) if holds(asked, one, str(i))]
        assert sorted(rows(connection, node)) == expected
        assert sorted(rows(connection, node, 2)) == [row for row in expected if row >= 2]
