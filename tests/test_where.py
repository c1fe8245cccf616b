"""Filters: every form of the grammar, the errors by their words, and SQL against plain Python on random filters."""

from __future__ import annotations

import datetime
import enum
import json
import math
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh.where import (
    ALL,
    And,
    Equal,
    Exists,
    In,
    Not,
    Or,
    Range,
    as_json,
    compile,
    fields_of,
    matches,
    parse,
    parse_text,
)


def database(metadata):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE fields(key TEXT, value, row INTEGER, PRIMARY KEY(key, value, row)) WITHOUT ROWID")
    connection.execute("CREATE TABLE sets(row INTEGER PRIMARY KEY)")
    for row, one in enumerate(metadata):
        connection.execute("INSERT INTO sets VALUES (?)", (row,))
        lines = [(key, value, row) for key, value in fields_of(one, "metadata")]
        connection.executemany("INSERT INTO fields VALUES (?, ?, ?)", lines)
    return connection


def rows(connection, node, **options):
    return [row for (row,) in connection.execute(*compile(node, **options))]


def plan(connection, node):
    sql, parameters = compile(node)
    return [line[3] for line in connection.execute("EXPLAIN QUERY PLAN " + sql, parameters)]


SHELF = [
    {"kind": "chair", "year": 2012, "tags": ["red", "old"], "camera": {"iso": 100, "lens": {"mm": 50.0}}},
    {"kind": "sofa", "year": 2020, "price": 99.5, "tags": []},
    {"kind": "chair", "year": 1999.5, "new": True},
    {"kind": 7, "year": "2015", "new": False, "tags": ["red", 1, 1.0, True]},
    {"and": 3, 'it\'s "x"': "", "year": [2005, 2025]},
    {},
]


# ---- what filters mean


@pytest.mark.parametrize(
    ("asked", "text", "expected"),
    [
        ({}, "", [0, 1, 2, 3, 4, 5]),
        ({}, "()", [0, 1, 2, 3, 4, 5]),
        ({"kind": "chair"}, "kind = chair", [0, 2]),
        ({"kind": {"=": "chair"}}, "kind='chair'", [0, 2]),
        ({"kind": ["chair", "sofa"]}, "kind in (chair, sofa)", [0, 1, 2]),
        ({"kind": {"in": {"chair", "sofa"}}}, 'kind IN ("chair", sofa,)', [0, 1, 2]),
        ({"kind": {"in": np.array(["chair", "none"])}}, "(kind = chair or kind = none)", [0, 2]),
        ({"kind": []}, "kind in ()", []),
        ({"kind": {"not in": ["chair", "sofa"]}}, "kind not in (chair, sofa)", [3, 4, 5]),
        ({"kind": {"!=": "chair"}}, "kind != chair", [1, 3, 4, 5]),
        ({"kind": 7}, "kind = 7.0", [3]),
        ({"kind": "7"}, 'kind = "7"', []),
        ({"year": {">": 2010, "<=": 2020}}, "2010 < year <= 2020", [0, 1]),
        ({"year": {">": 2010, "<=": 2020}}, "2020 >= year > 2010", [0, 1]),
        ({"and": [{"year": {">": 2010}}, {"year": {"<=": 2020}}]}, "year > 2010 and year <= 2020", [0, 1, 4]),
        ({"year": {"<": 2012}}, "year < 2012", [2, 4]),
        ({"year": {"<=": 2012}}, "year<=2012", [0, 2, 4]),
        ({"year": {">": ""}}, 'year > ""', [3]),
        ({"year": {"<": "3"}}, 'year < "3"', [3]),
        ({"year": {"<=": 1e300}}, "year <= 1e300", [0, 1, 2, 4]),
        ({"year": {">=": -math.pi}}, f"year >= {-math.pi}", [0, 1, 2, 4]),
        ({"year": {">": 2000, ">=": 2012}}, "year >= 2012", [0, 1, 4]),
        ({"year": {">": 2012, ">=": 2012}}, "year > 2012", [1, 4]),
        ({"year": {"<": 2012, "<=": 2012}}, "year < 2012", [2, 4]),
        ({"new": True}, "new = true", [2]),
        ({"new": 1}, "new = 1", [2]),
        ({"new": False}, "new = FALSE", [3]),
        ({"tags": "red"}, "tags = red", [0, 3]),
        ({"tags": 1}, "tags = 1", [3]),
        ({"tags": {"exists": True}}, "tags exists", [0, 3]),
        ({"tags": {"exists": False}}, "tags not exists", [1, 2, 4, 5]),
        ({"tags": None}, "not tags exists", [1, 2, 4, 5]),
        ({"tags": {"!=": None}}, "not not tags exists", [0, 3]),
        ({"camera.iso": 100}, "camera.iso = 100", [0]),
        ({"camera.lens.mm": {">=": np.float32(50)}}, "camera.lens.mm >= 50", [0]),
        ({"camera": {"exists": True}}, "camera exists", [0]),
        ({"camera": None}, "camera not exists", [1, 2, 3, 4, 5]),
        ({"camera.lens": {"exists": True}}, "camera.lens exists", [0]),
        ({"camera.le": {"exists": True}}, "camera.le exists", []),
        ({"camera.lens.mm": None, "kind": "chair"}, "kind = chair and camera.lens.mm not exists", [2]),
        ({"or": [{"kind": "sofa"}, {"new": True}]}, "kind = sofa or new = true", [1, 2]),
        ({"or": []}, "not ()", []),
        ({"and": []}, "()", [0, 1, 2, 3, 4, 5]),
        ({"not": {"kind": "chair", "new": True}}, "not (kind = chair and new = 1)", [0, 1, 3, 4, 5]),
        ({"not": {"not": {"kind": "chair"}}}, "not not kind = chair", [0, 2]),
        ({"kind": "chair", "or": [{"new": 1}, {"tags": "red"}]}, "kind = chair and (new = 1 or tags = red)", [0, 2]),
        ({"and": ["kind = chair", Equal("new", 1)]}, "kind = chair and new = 1", [2]),
        ({"price": {">": 1}, "kind": {"!=": "chair"}}, "kind != chair and price > 1", [1]),
        ({"not": {"year": {"<": 2012}}}, "not year < 2012", [0, 1, 3, 5]),
        ({'it\'s "x"': ""}, "'it''s \"x\"' = ''", [4]),
    ],
)
def test_meaning(asked, text, expected):
    node = parse(asked)
    assert parse_text(text) == node
    assert hash(parse_text(text)) == hash(node)
    assert parse(str(node)) == node
    assert parse(node) is node
    assert sorted(rows(database(SHELF), node)) == expected
    assert [i for i, one in enumerate(SHELF) if matches(node, one)] == expected


def test_fields_with_the_names_of_words():
    """and, or, not as fields: by the text form, with quotes."""
    node = parse('"and" = 3')
    assert node == Equal("and", 3)
    assert str(node) == '"and" = 3'
    assert rows(database(SHELF), node) == [4]
    assert parse({"in": 3, "exists": {"=": 1}}) == And((Equal("exists", 1), Equal("in", 3)))


def test_nodes():
    assert parse("a exists or b = 1") == Or((Exists("a"), Equal("b", 1)))
    assert repr(parse("a > 1")) == "Range(key='a', low=('>', 1), high=None)"


def test_one_form_for_what_is_the_same():
    same = [
        {"a": 1, "b": {"in": [2, "x", 2.0]}},
        {"b": ["x", 2], "a": True},
        {"and": [{"b": {"in": ["x", 2]}}, {"and": [{"a": 1.0}, {"a": 1}]}]},
        {"and": [{"or": [{"b": 2}, {"b": "x"}]}, {"not": {"a": {"!=": 1}}}]},
    ]
    assert {parse(one) for one in same} == {And((Equal("a", 1), In("b", (2, "x"))))}
    assert {str(parse(one)) for one in same} == {"a = 1 and b in (2, x)"}
    assert parse({"or": [{}, {"a": 1}]}) == ALL
    assert parse({"or": [{"or": []}, {"a": 1}]}) == Equal("a", 1)
    assert parse({"a": {"<": 2.5}}) == Range("a", None, ("<", 2.5))
    assert parse({"a": -0.0}) == Equal("a", 0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (3, ["where is an int: give a dict"]),
        (None, ["where is None"]),
        ({1: 2}, ["where: the key 1 is an int: keys are strings"]),
        ({"a": math.nan}, ["where['a']['='] is nan: give a string, a finite number"]),
        ({"a": {">": math.inf}}, ["where['a']['>'] is inf"]),
        ({"a": 1 << 63}, ["where['a']['='] is a whole number beyond 64 bits"]),
        ({"a": 10**5000}, ["where['a']['='] is a whole number beyond 64 bits"]),
        ({"a": {"in": [1, None]}}, ["where['a']['in'][1] is None: give a string"]),
        ({"a": {"in": "chair"}}, ["where['a']['in'] is a str: give a list"]),
        ({"a": np.zeros((2, 2))}, ["where['a']['in'] is a ndarray: give a list"]),
        ({"a": {"in": [[1]]}}, ["where['a']['in'][0] is a list"]),
        ({"a": {"<": None}}, ["where['a']['<'] is None"]),
        ({"a": b"x"}, ["where['a']['='] is a bytes"]),
        ({"a": datetime.date(2020, 1, 1)}, ["is a date", "x.isoformat()"]),
        ({"a": np.datetime64(1, "ns")}, ["is a datetime64"]),
        ({"a": {"==": 1}}, ["where['a']: '==' is no operator; give one of '=', '!=', '<'", "'camera.iso'"]),
        ({"a": {"iso": 1}}, ["'iso' is no operator"]),
        ({"a": {}}, ["where['a'] is an empty dict: give an operator"]),
        ({"a": {"exists": 1}}, ["where['a']['exists'] is an int: give True or False"]),
        ({"a": {"<": 1, ">": "b"}}, ["where['a'] compares with a number and with a string"]),
        ({"and": {"a": 1}}, ["where['and'] is a dict: give a list of filters", "'\"and\" = 1'"]),
        ({"or": "x"}, ["where['or'] is a str: give a list"]),
        ({"not": [{"a": 1}]}, ["where['not'] is a list: give the dict of a filter"]),
        ({"or": [{"a": 1}, {"b": {"and": []}}]}, ["where['or'][1]['b']: 'and' is no operator"]),
        ({"or": [{"a": 1}, 3]}, ["where['or'][1] is an int"]),
        ({"a\ud800": 1}, ["where: the key", "half of a surrogate pair at character 1"]),
        ({"a": "\ud800"}, ["where['a']['='] has half of a surrogate pair at character 0"]),
    ],
)
def test_dicts_are_checked(asked, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse(asked)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("kind =", 7, "expected a value after ="),
        ("kind", 5, "expected one of =, !=, <, <=, >, >=, in, not in, exists here"),
        ("kind not = 3", 10, "expected in or exists here"),
        ("= 3", 1, "expected a field here"),
        ("kind == 3", 6, "== is no operator"),
        ("kind = chair year = 3", 14, "expected and, or, or the end here"),
        ("(kind = chair", 14, "closing parenthesis"),
        ("kind = chair)", 13, "expected and, or, or the end"),
        ("kind in chair", 9, "expected a list in parentheses after in"),
        ("kind in (a b)", 12, "expected a comma or a closing parenthesis"),
        ("kind in (a, b", 14, "expected a comma or a closing parenthesis"),
        ("kind in (a,, b)", 12, "expected a value or a closing parenthesis"),
        ("kind = 'chair", 8, "this quote is not closed"),
        ("kind = it's", 10, "this quote is not closed"),
        ("2010 < year", 1, "expected a field; quote one that is called 2010"),
        ("2010 < year > 3", 13, "two comparisons in a row go one way"),
        ("a = b = c", 7, "two comparisons in a row go one way"),
        ("1 < a < b", 7, "this compares with a number and with a string"),
        ("1 < 2 < 3", 5, "expected a field"),
        ("1 < a <", 8, "expected a value after <"),
        ("a = and", 5, 'quote a string that is and: "and"'),
        ("and = 3", 1, 'expected a field; quote one that is called and: "and"'),
        ("a = null", 5, "null is no value: write"),
        ("a = 1e999", 5, "this is inf"),
        ("a = 9223372036854775808", 5, "beyond 64 bits"),
        ("a = " + "9" * 5000, 5, "beyond 64 bits"),
        ("a and b = 1", 3, "expected one of"),
        ("a = 1 or", 9, "expected a field here"),
        ("not", 4, "expected a field here"),
        ("a = 1;", None, ""),
    ],
)
def test_text_is_checked(text, place, words):
    if place is None:
        assert parse(text) == Equal("a", "1;")
        return
    with pytest.raises(ValueError, match=f"^where, character {place}: ") as error:
        parse(text)
    assert words in str(error.value)
    lines = str(error.value).splitlines()
    assert len(lines[2]) - 5 == min(place - 1, 70)  # the caret


def test_depth():
    deep = {"a": 1}
    text = "a = 1"
    for i in range(99):
        deep = {"not": {"b": i, "c": {">": 1}, "or": [{"d": 1}, {"e": 2}], **deep}}
    node = parse(deep)
    assert parse(str(node)) == node
    metadata = [{"a": 1, "b": 3, "c": 4}, {"b": 98, "c": 2, "d": 1}, {}]
    connection = database(metadata)
    assert rows(connection, node) == [i for i, one in enumerate(metadata) if matches(node, one)]
    deep = {"not": deep}
    with pytest.raises(ValueError, match="where is nested more than 100 deep"):
        parse({"not": deep})
    for _ in range(100):
        text = f"({text})"
    assert parse(text) == Equal("a", 1)
    with pytest.raises(ValueError, match="character 101: parentheses are nested more than 100 deep"):
        parse(f"({text})")
    assert parse("not " * 10_001 + "a = 1") == Not(Equal("a", 1))


def test_what_is_too_deep_for_sqlite():
    """What compiles also runs, up to the place where it is refused."""
    connection, wide = database(SHELF), {"a": 1}
    for i in range(45):
        wide = {f"z{j}": {">": i} for j in range(30)} | {"kind": "chair", "or": [{"y": i}, {"new": True, **wide}]}
        try:
            sql = compile(parse(wide))
        except ValueError as error:
            assert "nested too deep, with too many conditions, for SQLite" in str(error)  # noqa: PT017
            assert i > 10
            break
        assert connection.execute(*sql).fetchall() == []
    else:
        pytest.fail("never refused")


# ---- SQL


def test_the_index_is_used():
    connection = database(SHELF)
    for text in (
        "kind = chair", "kind in (a, b, 3)", "year > 3", "year < 3", "3 <= year < 9", 'kind < "x"', 'kind > "x"',
        "kind exists", "kind exists and year > 3 and x not exists", "year > 3 and kind = chair",
        "kind != a and year < 3", "kind = a or year > 3",
    ):  # fmt: skip
        steps = plan(connection, parse(text))
        assert not any("SCAN fields" in step for step in steps), (text, steps)
        assert any("SEARCH fields USING PRIMARY KEY (key=?" in step for step in steps)
        if "exists" in text:
            assert any("SEARCH fields USING PRIMARY KEY (key>? AND key<?)" in step for step in steps)
    assert any("(key=? AND value>? AND value<?)" in step for step in plan(connection, parse("year > 3")))
    assert any("(key=? AND value=?)" in step for step in plan(connection, In("kind", tuple(range(1000)))))


def test_a_dict_exists():
    """A dict is there if something in it is; a key that only starts alike, or sorts beside it, is another field."""
    metadata = [
        {"a": {"b": 1}},
        {"a": {"b": {"c": [None, "x"]}}},
        {"a": {}},
        {"a": {"b": {}, "c": [], "d": None, "e": [None, {"f": 1}]}},
        {"a": []},
        {"ab": 1, "a-": 1, "a/": 1, "a/b": 1, "a!": 1, "A": {"b": 1}, "": {"a": 1}},
        {"a": 0},
        {"a.b": 1},
    ]
    connection = database(metadata)
    for key, expected in (("a", [0, 1, 6, 7]), ("a.b", [0, 1, 7]), ("a.b.c", [1]), ("", [5]), ("a.", [])):
        for asked, found in (
            ({key: {"exists": True}}, expected),
            ({key: None}, [i for i in range(len(metadata)) if i not in expected]),
        ):
            node = parse(asked)
            assert sorted(rows(connection, node)) == found, asked
            assert [i for i, one in enumerate(metadata) if matches(node, one)] == found, asked


def test_nothing_is_pasted():
    node = parse({"a' OR 1 --": "'; DROP TABLE sets; --", "b": {">": "x'"}, "c": ["'", '"']})
    sql, parameters = compile(node)
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
    sql, parameters = compile(node)
    assert len(parameters) < 10
    assert len(sql) < 300
    assert sorted(rows(connection, node)) == [0, 2, 3, 5, 7, 8, 9]
    assert sorted(rows(connection, Not(node))) == [1, 4, 6, 10, 11]
    assert [i for i, one in enumerate(metadata) if matches(node, one)] == [0, 2, 3, 5, 7, 8, 9]


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
    assert compile(parse({"or": [{"k": i} for i in range(40_000)]}))[1][0] == "k"  # one list
    with pytest.raises(ValueError, match="where has 40,000 parameters, and SQLite takes 32,000: give the values of"):
        compile(parse({"or": [{f"k{i}": i} for i in range(20_000)]}))


def test_rows_come_once():
    connection = database([{"tags": ["a", "b", "c"], "n": [1, 2, 3]}, {"tags": "a"}])
    for asked in ({"tags": ["a", "b"]}, {"n": {">": 0}}, "tags exists", {"or": [{"tags": "a"}, {"n": 1}]}):
        found = rows(connection, parse(asked))
        assert len(found) == len(set(found))
        assert set(found) == set(rows(connection, parse(asked), unique=False))
        for more in ({"and": [asked, {"n": 1}]}, {"and": [asked, {"n": {"<": 9}}]}, {"and": [asked, {"x": None}]}):
            found = rows(connection, parse(more))
            assert len(found) == len(set(found))


KEYS = st.sampled_from(["a", "b", "a.b", "and", "x y", "", "7", "é", "a/", "a-", "a\0"])
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [0.5, -0.0, 2.0, 1e300, 1 << 53, (1 << 53) + 1, 2.0**53, (1 << 63) - 1, 2.0**63, -(1 << 63), 5e-324]
    ),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
STRINGS = st.one_of(
    st.sampled_from(["", "a", "b", "and", "Null", "7", "1e5", 'q"u', "it's", "\0", "a\0", "\uffff", "\U00010000"]),
    st.text(max_size=4),
)
VALUES = st.one_of(NUMBERS, STRINGS)
METADATA = st.dictionaries(
    KEYS,
    st.one_of(
        VALUES,
        st.none(),
        st.lists(st.one_of(VALUES, st.none(), st.lists(VALUES, max_size=2)), max_size=4),
        st.recursive(
            st.one_of(VALUES, st.none(), st.lists(VALUES, max_size=2)),
            lambda inner: st.dictionaries(KEYS, inner, max_size=2),
            max_leaves=4,
        ),
    ),
    max_size=5,
)
BOUNDS = st.one_of(
    *(
        st.dictionaries(st.sampled_from(["<", "<=", ">", ">="]), kind, min_size=1, max_size=3)
        for kind in (NUMBERS, STRINGS)
    )
)
ASKED = st.one_of(
    VALUES,
    st.none(),
    st.lists(VALUES, max_size=4),
    BOUNDS,
    st.fixed_dictionaries({"exists": st.booleans()}),
    st.fixed_dictionaries({}, optional={"=": VALUES, "!=": VALUES, "exists": st.booleans()}).filter(bool),
    st.fixed_dictionaries({"not in": st.lists(VALUES, max_size=3)}),
)
FIELDS = st.sampled_from(["a", "b", "a.b", "x y", "", "7", "é", "a.a", "a.", "é.b"])
FILTERS = st.recursive(
    st.dictionaries(FIELDS, ASKED, max_size=3),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(st.lists(METADATA, min_size=1, max_size=6), st.lists(FILTERS, min_size=1, max_size=6))
def test_sql_is_what_python_says(metadata, filters):
    connection = database(metadata)
    for asked in filters:
        node = parse(asked)
        expected = [i for i, one in enumerate(metadata) if matches(node, one)]
        assert sorted(rows(connection, node)) == expected
        assert sorted(set(rows(connection, node, unique=False))) == expected


@settings(max_examples=400)
@given(FILTERS)
def test_text_reads_back(asked):
    node = parse(asked)
    again = parse_text(str(node))
    assert again == node
    assert str(again) == str(node)
    assert hash(again) == hash(node)


@settings(max_examples=300)
@given(st.lists(st.sampled_from([*"ab1.-<>=!()'\", ", " and ", " not ", " in ", " exists "]), max_size=12))
def test_any_text_is_read_or_refused(parts):
    try:
        node = parse_text("".join(parts))
    except ValueError as error:
        assert str(error).startswith("where, character ")  # noqa: PT017
    else:
        assert parse_text(str(node)) == node


# ---- metadata


class Colour(str, enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


def test_lines():
    lines = fields_of(
        {
            "a": np.float32(0.5),
            "b": np.int16(3),
            "c": np.bool_(True),
            "d": np.str_("x"),
            "e": [1, None, "1", 1.0, True, [5], {"f": 6}, 2],
            "g": {"h": {"i": 1}, "j": None},
            "g.h.i": 1,
            "k": (1.5, "é"),
            "l": Colour.RED,
            "m": Size.LARGE,
        },
        "metadata",
    )
    assert lines == [
        ("a", 0.5), ("b", 3), ("c", True), ("d", "x"), ("e", 1), ("e", "1"), ("e", 2), ("g.h.i", 1), ("k", 1.5),
        ("k", "é"), ("l", "red"), ("m", 3),
    ]  # fmt: skip
    assert {type(value) for _, value in lines} == {float, int, bool, str}


@settings(max_examples=300)
@given(METADATA)
def test_json(metadata):
    lines = fields_of(metadata, "metadata")
    assert len(lines) == len(set(lines))
    text = as_json(metadata)
    assert json.loads(text) == metadata
    assert text == json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    text.encode()


def test_json_of_numpy():
    metadata = {
        "a": np.float32(0.5),
        "b": np.int16(3),
        "c": np.bool_(True),
        "d": np.str_("x"),
        "e": (Size.LARGE, Colour.RED),
    }
    assert as_json(metadata) == '{"a":0.5,"b":3,"c":true,"d":"x","e":[3,"red"]}'


HOLDS_ITSELF: list = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ([1], "set 3 is a list: give a dict with strings as keys"),
        (None, "set 3 is None"),
        ({1: 2}, "set 3: the key 1 is an int: keys are strings, so pass str(key)"),
        ({"x": {2: 3}}, "set 3: the key 2 is an int"),
        ({"x": math.nan}, "set 3: key 'x' is nan: give a string, a finite number"),
        ({"x": -math.inf}, "set 3: key 'x' is -inf"),
        ({"x": np.float32("nan")}, "set 3: key 'x' is nan"),
        ({"x": b"abc"}, "set 3: key 'x' is a bytes"),
        ({"x": np.zeros(2)}, "set 3: key 'x' is a ndarray: give a string, a finite number of at most 64 bits, or true "
                             "or false, e.g. by x.tolist()"),
        ({"x": np.array(1)}, "set 3: key 'x' is a ndarray"),
        ({"x": np.datetime64("2020-01-01")}, "set 3: key 'x' is a datetime64"),
        ({"x": datetime.datetime(2020, 1, 1)}, "e.g. by x.isoformat()"),
        ({"x": 1j}, "set 3: key 'x' is a complex"),
        ({"x": {1, 2}}, "set 3: key 'x' is a set"),
        ({"x": 1 << 63}, "set 3: key 'x' is a whole number beyond 64 bits"),
        ({"x": -(1 << 63) - 1}, "beyond 64 bits"),
        ({"x": np.uint64(1 << 63)}, "beyond 64 bits"),
        ({"x": "a\udc80"}, "set 3: key 'x' has half of a surrogate pair at character 1"),
        ({"\udc80": 1}, "set 3: the key '\\udc80' has half of a surrogate pair at character 0"),
        ({"x": [1, "\udc80"]}, "set 3: key 'x', item 1, has half"),
        ({"x": [1, math.nan]}, "set 3: key 'x', item 1, is nan"),
        ({"x": [[math.nan]]}, "set 3: key 'x', item 0, is nan"),
        ({"x": {"y": [{"z": math.inf}]}}, "set 3: key 'x.y.z' is inf"),
        ({"x": HOLDS_ITSELF}, "nested more than 100 deep, or holds itself"),
    ],
)  # fmt: skip
def test_metadata_is_checked(metadata, words):
    with pytest.raises(ValueError, match=r"^set 3") as error:
        fields_of(metadata, "set 3")
    assert words in str(error.value)
