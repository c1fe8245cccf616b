"""Filters: every form of the grammar, what they mean by plain Python over one dict, and the errors by their words."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_strategies import FILTERS, METADATA
from oracle import holds
from slosh.where import ALL, And, Equal, Exists, In, Not, Or, Range, matches, parse, parse_text

SHELF = [
    {"kind": "chair", "year": 2012, "tags": ["red", "old"], "camera": {"iso": 100, "lens": {"mm": 50.0}}},
    {"kind": "sofa", "year": 2020, "price": 99.5},
    {"kind": "chair", "year": 1999.5, "new": True},
    {"kind": 7, "year": "2015", "new": False, "tags": ["red", 1, 1.0, True]},
    {"and": 3, 'it\'s "x"': "", "year": [2005, 2025], "tags": [], "@id": 5, "prefix": "ab"},
    {"taken": datetime.datetime(2024, 2, 29, 12), "prefix": ["b", "\U0010ffff\U0010ffff", "\ud7ffx"]},
]


@pytest.mark.parametrize(
    ("asked", "text", "expected"),
    [
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
        ({"tags": {"exists": True}}, "tags exists", [0, 3, 4]),
        ({"tags": {"exists": False}}, "tags not exists", [1, 2, 5]),
        ({"tags": None}, "not tags exists", [1, 2, 5]),
        ({"tags": {"!=": None}}, "not not tags exists", [0, 3, 4]),
        ({"tags": {"<": 9}}, "tags < 9", [3]),
        ({"tags": {">": ""}}, 'tags > ""', [0, 3]),
        ({"kind": {"prefix": "ch"}}, "kind prefix ch", [0, 2]),
        ({"kind": {"prefix": "chair"}, "new": 1}, 'new = 1 and "chair" <= kind < "chais"', [2]),
        ({"kind": {"prefix": "7"}}, "kind prefix 7", []),
        ({"not": {"kind": {"prefix": "ch"}}}, "not kind prefix ch", [1, 3, 4, 5]),
        ({"prefix": {"prefix": "a"}}, "prefix prefix a", [4]),
        ({"prefix": {"prefix": "a", ">": "ab"}}, '"ab" < prefix < "b"', []),
        ({"prefix": {"prefix": "\ud7ff"}}, 'prefix prefix "\ud7ff"', [5]),
        ({"prefix": {"prefix": "\U0010ffff"}}, 'prefix >= "\U0010ffff"', [5]),
        ({"@id": "s4"}, "@id = s4", [4]),
        ({"@id": {"!=": "s4"}}, "@id != s4", [0, 1, 2, 3, 5]),
        ({"@id": ["s1", "s4", "s9"]}, "@id in (s1, s4, s9)", [1, 4]),
        ({"@id": 4}, "@id = 4", []),
        ({"@id": {"in": np.array([3, 4])}}, "@id in (3, 4)", []),
        ({"@id": {"prefix": "s"}, "kind": "sofa"}, "@id prefix s and kind = sofa", [1]),
        ({"@id": {">=": "s2", "<": "s4"}}, "s2 <= @id < s4", [2, 3]),
        ({"@id": {"exists": True}}, "@id exists", [0, 1, 2, 3, 4, 5]),
        ({"@id": None}, "not ()", []),
        ({"taken": {">=": datetime.date(2024, 2, 29)}}, "taken >= 2024-02-29", [5]),
        ({"taken": {"<": np.datetime64("2024-03-01")}}, "taken < 2024-03-01", [5]),
        ({"taken": datetime.datetime(2024, 2, 29, 12)}, "taken = 2024-02-29T12:00:00+00:00", [5]),
        ({"taken": {">": datetime.datetime(2024, 2, 29, 12)}}, "taken > 2024-02-29T12:00:00+00:00", []),
        ({"taken": {"prefix": "2024-02"}}, "taken prefix 2024-02", [5]),
        ({"taken": {"prefix": datetime.date(2024, 2, 29)}}, "taken prefix 2024-02-29", [5]),
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
    assert [i for i, one in enumerate(SHELF) if matches(node, one, f"s{i}")] == expected


def test_fields_with_the_names_of_words():
    """and, or, not and @id as fields: by the text form, with quotes."""
    node = parse('"@id" = 5')
    assert node == Equal("@id", 5) != parse("@id = 5")
    assert str(node) == '"@id" = 5'
    assert [i for i, one in enumerate(SHELF) if matches(node, one)] == [4]
    node = parse('"and" = 3')
    assert node == Equal("and", 3)
    assert str(node) == '"and" = 3'
    assert [i for i, one in enumerate(SHELF) if matches(node, one)] == [4]
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
    assert parse("1 < a < 3 or a >= 3 or 2 < a < 2 or 0 < a < 2") == Range("a", (">", 0), None)
    assert str(parse("1 < a < 3 or a > 3 or a > x")) == "1 < a < 3 or a > 3 or a > x"
    assert str(parse("a < 5 or a > 1 or a > 3")) == "a < 1 or a >= 1"  # all numbers
    assert parse({"a": -0.0}) == Equal("a", 0)
    for text in ("kind prefix ch", 'kind >= ""', '@id prefix "2024-"', 'not "@id" prefix x', "@id not in (a, b)"):
        assert str(parse(text)) == text


def test_a_dict_exists():
    """A dict is there if something in it is; a key that only starts alike, or sorts beside it, is another field."""
    metadata = [
        {"a": {"b": 1}},
        {"a": {"b": {"c": [None, "x"]}}},
        {"ab": 1, "a-": 1, "a/": 1, "a/b": 1, "a!": 1, "A": {"b": 1}, "": {"a": 1}},
        {"a": 0},
        {"a.b": 1},
    ]
    for key, expected in (("a", [0, 1, 3, 4]), ("a.b", [0, 1, 4]), ("a.b.c", [1]), ("", [2]), ("a.", [])):
        for asked, found in (
            ({key: {"exists": True}}, expected),
            ({key: None}, [i for i in range(len(metadata)) if i not in expected]),
        ):
            node = parse(asked)
            assert [i for i, one in enumerate(metadata) if matches(node, one)] == found, asked


@settings(max_examples=300)
@given(st.lists(METADATA, min_size=1, max_size=6), st.lists(FILTERS, min_size=1, max_size=6))
def test_a_filter_means_what_it_says(metadata, filters):
    for asked in filters:
        node = parse(asked)
        for i, one in enumerate(metadata):
            assert matches(node, one, str(i)) == holds(asked, one, str(i))


@settings(max_examples=400)
@given(FILTERS)
def test_text_reads_back(asked):
    node = parse(asked)
    again = parse_text(str(node))
    assert again == node
    assert str(again) == str(node)
    assert hash(again) == hash(node)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*"ab1.-<>=!()'\", ", " and ", " not ", " in ", " exists "]), max_size=12).filter(
        lambda parts: "".join(parts).strip()
    )
)
def test_any_text_is_read_or_refused(parts):
    try:
        node = parse_text("".join(parts))
    except ValueError as error:
        assert str(error).startswith("where, character ")  # noqa: PT017
    else:
        assert parse_text(str(node)) == node


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
        ({"a": datetime.time(12)}, ["where['a']['='] is a time: give a string, a finite number"]),
        ({"a": np.datetime64("NaT")}, ["is a datetime64"]),
        ("", ["where is empty text: give a condition, such as 'kind = chair'"]),
        ({"or": [{"a": 1}, " \n"]}, ["where is empty text"]),
        ({"a": {"prefix": 3}}, ["where['a']['prefix'] is an int: give a string"]),
        ({"a": {"prefix": ["x"]}}, ["where['a']['prefix'] is a list"]),
        ({"@id": {"prefix": ""}}, ["where['@id']['prefix']: the prefix is empty", 'give {"exists": True}']),
        ({"a": {"<": "b", "prefix": ""}}, ["where['a']['prefix']: the prefix is empty"]),
        ({"@id": ""}, ["where['@id']['='] is empty text: no id is empty", "leave it out to mean all sets"]),
        ({"@id": {">=": ""}}, ["where['@id']['>='] is empty text: no id is empty"]),
        ({"@id": {"<": "b", "!=": ""}}, ["where['@id']['!='] is empty text"]),
        ({"not": {"@id": ["a", ""]}}, ["where['not']['@id']['in'][1] is empty text"]),
        ({"a": {"prefix": "x", "<": 3}}, ["where['a'] compares with a number and with a string"]),
        ({"@id": 1.5}, ["where['@id']['='] is a float: ids are strings", "'\"@id\" = 1'"]),
        ({"@id": [True]}, ["where['@id']['in'][0] is a bool: ids are strings"]),
        ({"@id": datetime.date(2020, 1, 1)}, ["where['@id']['='] is a date: ids are strings"]),
        ({"a": {"==": 1}}, ["where['a']: '==' is not an operator: give one of '=', '!=', '<'", "'camera.iso'"]),
        ({"a": {"iso": 1}}, ["'iso' is not an operator"]),
        ({"a": {}}, ["where['a'] is an empty dict: give an operator"]),
        ({"a": {"exists": 1}}, ["where['a']['exists'] is an int: give True or False"]),
        ({"a": {"<": 1, ">": "b"}}, ["where['a'] compares with a number and with a string"]),
        ({"and": {"a": 1}}, ["where['and'] is a dict: give a list of filters", "'\"and\" = 1'"]),
        ({"or": "x"}, ["where['or'] is a str: give a list"]),
        ({"not": [{"a": 1}]}, ["where['not'] is a list: give the dict of a filter"]),
        ({"or": [{"a": 1}, {"b": {"and": []}}]}, ["where['or'][1]['b']: 'and' is not an operator"]),
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
        ("kind", 5, "expected one of =, !=, <, <=, >, >=, prefix, in, not in, exists here"),
        ("kind prefix", 12, "expected a string after prefix"),
        ("kind prefix and", 13, 'quote a string that is and: "and"'),
        ("@id prefix ''", 12, "the prefix is empty, and every string begins with it: write exists"),
        ('b = 1 and kind prefix ""', 23, "the prefix is empty"),
        ("@id >= ''", 8, "no id is empty, so that all sets or none would match: leave it out to mean all sets"),
        ('@id != ""', 8, "no id is empty"),
        ("kind = a or @id in (a, '')", 24, "no id is empty"),
        ("'' <= @id < b", 1, "no id is empty"),
        ("@id = true", 7, 'quote a string that is true: "true"'),
        ("kind not = 3", 10, "expected in or exists here"),
        ("= 3", 1, "expected a field here"),
        ("kind == 3", 6, "== is not an operator"),
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
        ("a = null", 5, "null is not a value: write"),
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
    assert [matches(node, one) for one in metadata] == [holds(deep, one) for one in metadata]
    deep = {"not": deep}
    with pytest.raises(ValueError, match="where is nested more than 100 deep"):
        parse({"not": deep})
    for _ in range(100):
        text = f"({text})"
    assert parse(text) == Equal("a", 1)
    with pytest.raises(ValueError, match="character 101: parentheses are nested more than 100 deep"):
        parse(f"({text})")
    assert parse("not " * 10_001 + "a = 1") == Not(Equal("a", 1))
