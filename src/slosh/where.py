"""Metadata and the filters over it: a filter comes in as a dict or as text and becomes a small tree, which is compiled
to SQL with parameters, or applied to one dict in Python. The metadata of a set comes in as a dict and becomes the lines
of the table that the SQL looks into, and JSON.

    {"kind": "chair", "year": {">": 2010, "<=": 2020}}        kind = chair and 2010 < year <= 2020
    {"or": [{"kind": ["chair", "sofa"]}, {"not": {"camera.iso": {"<": 400}}}]}
                                                              kind in (chair, sofa) or not camera.iso < 400

Operators are = != < <= > >=, in, not in, and exists. Several keys or operators all hold; a list means `in`; None means
that the field is not there. Numbers compare with numbers and strings with strings, by code point; True is 1 and False
is 0. A field that holds a list matches if one of its items does, and bounds that are given together hold for the same
item. A field that holds a dict exists, and its parts are fields with a dot: "camera.iso". An empty dict or list is as
if it were not there, and so is a list of dicts. `!=` and `not in` are "not =" and "not in": sets without the field
match. In text, a string is quoted unless it is one plain word (a quote inside is doubled), and so is a field: by '"and"
= 1' a field is reached that is called "and", "or" or "not".
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import operator
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from .checks import kind_of

Value: TypeAlias = str | int | float

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in", "exists")
KEYWORDS = {"and", "or", "not", "in", "exists", "true", "false", "null"}
DEEPEST = 100
"""Filters and metadata may be nested this deep."""
FEW = 100
"""Values of an `in` that are parameters of their own; more are handed over as one, in JSON."""
MOST_PARAMETERS = 32_000
"""SQLite takes 32,766."""
MOST_HEIGHT = 950
"""SQLite takes expressions 1,000 high, counted through subqueries."""
GROUP = 100
"""Parts of an `and` or `or` in one SELECT; SQLite joins 500 at most."""

SPAN = 1 << 63
"""Whole numbers from -SPAN to SPAN - 1 fit into 64 bits."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OTHER_SIDE = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ALLOWED = "give a string, a finite number of at most 64 bits, or true or false"
_LISTS = (list, tuple, set, frozenset, np.ndarray)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=lambda x: x.item())


# -- the tree ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A filter, made by `parse`. Filters that say the same in another order are equal; str() gives the text form."""


@dataclass(frozen=True)
class Equal(Node):
    key: str
    value: Value

    def __str__(self) -> str:
        return f"{_quoted(self.key)} = {_quoted(self.value)}"


@dataclass(frozen=True)
class In(Node):
    key: str
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{_quoted(self.key)} in ({', '.join(map(_quoted, self.values))})"


@dataclass(frozen=True)
class Range(Node):
    """low is (">" or ">=", value) or None, high is ("<" or "<=", value) or None; both are numbers or both strings."""

    key: str
    low: tuple[str, Value] | None
    high: tuple[str, Value] | None

    def __str__(self) -> str:
        key = _quoted(self.key)
        if self.low is not None and self.high is not None:
            left = f"{_quoted(self.low[1])} {_OTHER_SIDE[self.low[0]]}"
            return f"{left} {key} {self.high[0]} {_quoted(self.high[1])}"
        op, value = self.low or self.high or ("", "")
        return f"{key} {op} {_quoted(value)}"


@dataclass(frozen=True)
class Exists(Node):
    key: str

    def __str__(self) -> str:
        return f"{_quoted(self.key)} exists"


@dataclass(frozen=True)
class And(Node):
    """All parts hold; without parts, every set matches."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts) or "()"


@dataclass(frozen=True)
class Or(Node):
    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


@dataclass(frozen=True)
class Not(Node):
    part: Node

    def __str__(self) -> str:
        part = self.part
        if isinstance(part, Equal):
            return f"{_quoted(part.key)} != {_quoted(part.value)}"
        if isinstance(part, In):
            return f"{_quoted(part.key)} not {str(part)[len(_quoted(part.key)) + 1 :]}"
        if isinstance(part, Exists):
            return f"{_quoted(part.key)} not exists"
        return f"not ({part})" if isinstance(part, And | Or) and part != ALL else f"not {part}"


ALL = And(())


def _all_of(parts: Iterable[Node]) -> Node:
    """One form for an `and`: no `and` inside, no part twice, in the order of the text."""
    flat = {p for part in parts for p in (part.parts if isinstance(part, And) else [part])}
    return flat.pop() if len(flat) == 1 else And(tuple(sorted(flat, key=str)))


def _any_of(parts: Iterable[Node]) -> Node:
    """One form for an `or`; what is asked of one field by = and in is one `in`."""
    flat = {p for part in parts for p in (part.parts if isinstance(part, Or) else [part])} - {Not(ALL)}
    if ALL in flat:
        return ALL
    values: dict[str, list[Value]] = {}
    rest = set()
    for part in flat:
        if isinstance(part, Equal | In):
            values.setdefault(part.key, []).extend([part.value] if isinstance(part, Equal) else part.values)
        else:
            rest.add(part)
    rest.update(_one_of(key, found) for key, found in values.items())
    if not rest:
        return Not(ALL)
    return rest.pop() if len(rest) == 1 else Or(tuple(sorted(rest, key=str)))


def _one_of(key: str, values: Iterable[Value]) -> Node:
    found = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    return Equal(key, found[0]) if len(found) == 1 else In(key, tuple(found))


def _not(node: Node) -> Node:
    return node.part if isinstance(node, Not) else Not(node)


def _between(key: str, bounds: Iterable[tuple[str, Value]], fail: Callable[[str], NoReturn]) -> Node:
    """One Range of all bounds, the tightest on each side."""
    given: list[tuple[str, Any]] = list(bounds)
    if len({isinstance(value, str) for _, value in given}) > 1:
        fail("compares with a number and with a string, and nothing is both: give bounds of one kind")
    lows, highs = ([bound for bound in given if bound[0][0] == side] for side in "><")
    low = max(lows, key=lambda bound: (bound[1], bound[0] == ">"), default=None)
    high = min(highs, key=lambda bound: (bound[1], bound[0] == "<="), default=None)
    return Range(key, low, high)


# -- from a dict -------------------------------------------------------------------------------------------------------


def parse(where: Any) -> Node:
    """The tree of a filter: a dict, the text form, or a tree.

    >>> print(parse({"year": {">": 2010, "<=": 2020}, "kind": ["sofa", "chair"]}))
    2010 < year <= 2020 and kind in (chair, sofa)
    """
    return _from_any(where, "where", 0)


def _from_any(where: Any, place: str, depth: int) -> Node:
    if isinstance(where, Node):
        return where
    if isinstance(where, str):
        return parse_text(where)
    if not isinstance(where, Mapping):
        raise ValueError(
            f'{place} is {kind_of(where)}: give a dict such as {{"kind": "chair"}}, or text: "kind = chair"'
        )
    if depth > DEEPEST:
        raise ValueError(f"where is nested more than {DEEPEST} deep: take a level out, most hold one part only")
    parts: list[Node] = []
    for key, value in where.items():
        here = f"{place}[{key!r:.60}]"
        if key in ("and", "or"):
            if not isinstance(value, list | tuple):
                raise ValueError(f"{here} is {kind_of(value)}: give a list of filters. {_reserved(key)}")
            inner = [_from_any(part, f"{here}[{i}]", depth + 1) for i, part in enumerate(value)]
            parts.append(_all_of(inner) if key == "and" else _any_of(inner))
        elif key == "not":
            if not isinstance(value, Mapping | Node):
                raise ValueError(f"{here} is {kind_of(value)}: give the dict of a filter. {_reserved(key)}")
            parts.append(_not(_from_any(value, here, depth + 1)))
        else:
            parts.extend(_conditions(_checked_key(key, place), value, here))
    return _all_of(parts)


def _reserved(key: str) -> str:
    return f"For a field that is called {key!r} write the filter as text: '\"{key}\" = 1'"


def _conditions(key: str, asked: Any, place: str) -> Iterator[Node]:
    """What a dict says of one field."""
    if not isinstance(asked, Mapping):
        asked = {"in" if isinstance(asked, _LISTS) else "=": asked}
    elif not asked:
        raise ValueError(f"{place} is an empty dict: give an operator, one of {_operators()}")
    bounds = []
    for op, value in asked.items():
        here = f"{place}[{op!r:.60}]"
        if op in ("=", "!="):
            node = _not(Exists(key)) if value is None else Equal(key, _plain(value, here))
            yield node if op == "=" else _not(node)
        elif op in ("in", "not in"):
            if not isinstance(value, _LISTS) or (isinstance(value, np.ndarray) and value.ndim != 1):
                raise ValueError(f"{here} is {kind_of(value)}: give a list of strings and numbers")
            node = _one_of(key, [_plain(one, f"{here}[{i}]") for i, one in enumerate(value)])
            yield node if op == "in" else _not(node)
        elif op == "exists":
            if not isinstance(value, bool | np.bool_):
                raise ValueError(f"{here} is {kind_of(value)}: give True or False")
            yield Exists(key) if value else Not(Exists(key))
        elif op in OPERATORS:
            bounds.append((op, _plain(value, here)))
        else:
            raise ValueError(
                f"{place}: {op!r:.60} is no operator; give one of {_operators()}. A field inside of a nested "
                "dict of metadata is reached with a dot: {'camera.iso': 100}"
            )
    if bounds:

        def fail(why: str) -> NoReturn:
            raise ValueError(f"{place} {why}")

        yield _between(key, bounds, fail)


def _operators() -> str:
    return ", ".join(map(repr, OPERATORS))


# -- from text ---------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"]|"")*"|'(?:[^']|'')*')|(?P<operator>[=!<>]+)|(?P<mark>[(),])"""
    r"""|(?P<word>[^\s"'=!<>(),]+)|(?P<end>$)|(?P<open>["']))"""
)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def keyword(self) -> str:
        word = self.text.lower()
        return word if self.kind == "word" and word in KEYWORDS else ""


def parse_text(text: str) -> Node:
    """The tree of a filter in the text form; no text, or (), is a filter that every set passes.

    >>> parse_text("kind = chair and not (year > 2010)") == parse({"kind": "chair", "not": {"year": {">": 2010}}})
    True
    """
    parser = _Parser(str(_checked(text, "where")))
    if parser.token.kind == "end":
        return ALL
    node = parser.expression(0)
    if parser.token.kind != "end":
        parser.fail("expected and, or, or the end here")
    return node


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.stop = text, 0
        self.token = self.read()

    def read(self) -> _Token:
        match = _TOKEN.match(self.text, self.stop)
        assert match is not None  # every character begins a token
        kind = str(match.lastgroup)
        self.stop = match.end()
        if kind == "open":
            self.fail("this quote is not closed; a quote inside of quotes is doubled", match.start(kind))
        return _Token(kind, match[kind], match.start(kind))

    def advance(self) -> _Token:
        before, self.token = self.token, self.read()
        return before

    def accept(self, text: str) -> bool:
        """Takes the next token if it is this keyword or mark."""
        found = self.token.keyword == text or (self.token.kind == "mark" and self.token.text == text)
        if found:
            self.advance()
        return found

    def operand(self, expected: str) -> _Token:
        if self.token.kind not in ("word", "string"):
            self.fail(f"expected {expected}")
        return self.advance()

    def fail(self, why: str, start: int | None = None) -> NoReturn:
        at = self.token.start if start is None else start
        first = max(0, at - 70)
        line = re.sub(r"\s", " ", self.text[first : at + 40])
        raise ValueError(f"where, character {at + 1}: {why}\n    {line}\n    {' ' * (at - first)}^")

    def expression(self, depth: int) -> Node:
        parts = [self.term(depth)]
        while self.accept("or"):
            parts.append(self.term(depth))
        return _any_of(parts)

    def term(self, depth: int) -> Node:
        parts = [self.factor(depth)]
        while self.accept("and"):
            parts.append(self.factor(depth))
        return _all_of(parts)

    def factor(self, depth: int) -> Node:
        negated = False
        while self.accept("not"):
            negated = not negated
        start = self.token.start
        if not self.accept("("):
            node = self.comparison()
        elif depth >= DEEPEST:
            self.fail(f"parentheses are nested more than {DEEPEST} deep: take some out", start)
        elif self.accept(")"):
            node = ALL
        else:
            node = self.expression(depth + 1)
            if not self.accept(")"):
                self.fail("expected and, or, or a closing parenthesis here")
        return _not(node) if negated else node

    def comparison(self) -> Node:
        first = self.operand("a field here, as in: kind = chair")
        if self.token.kind != "operator":
            return self.membership(self.field(first))
        op, start = self.token.text, self.token.start
        self.advance()
        if op not in OPERATORS:
            self.fail(f"{op} is no operator; give one of {', '.join(OPERATORS)}", start)
        second = self.operand(f"a value after {op}; quote a string that is not one plain word")
        if self.token.kind == "operator":
            return self.chain(first, op, second)
        key, value = self.field(first), self.value(second)
        if op in ("=", "!="):
            return Equal(key, value) if op == "=" else Not(Equal(key, value))
        return _between(key, [(op, value)], self.fail)

    def chain(self, first: _Token, left: str, field: _Token) -> Node:
        """2010 < year <= 2020: the second operator comes next."""
        right, start = self.token.text, self.token.start
        if left not in _OTHER_SIDE or right not in _OTHER_SIDE or left[0] != right[0]:
            self.fail("two comparisons in a row go one way, as in 2010 < year <= 2020; otherwise write and")
        self.advance()
        last = self.operand(f"a value after {right}")
        bounds = [(_OTHER_SIDE[left], self.value(first)), (right, self.value(last))]
        return _between(self.field(field), bounds, lambda why: self.fail(f"this {why}", start))

    def membership(self, key: str) -> Node:
        negated = self.accept("not")
        if self.accept("exists"):
            return Not(Exists(key)) if negated else Exists(key)
        if not self.accept("in"):
            self.fail(f"expected {'in or exists' if negated else 'one of ' + ', '.join(OPERATORS)} here")
        if not self.accept("("):
            self.fail("expected a list in parentheses after in, as in: kind in (chair, sofa)")
        values: list[Value] = []
        while not self.accept(")"):
            values.append(self.value(self.operand("a value or a closing parenthesis here")))
            if not self.accept(",") and self.token.text != ")":
                self.fail("expected a comma or a closing parenthesis here")
        node = _one_of(key, values)
        return _not(node) if negated else node

    def field(self, token: _Token) -> str:
        if token.kind == "string":
            return _unquoted(token.text)
        if token.keyword or _NUMBER.fullmatch(token.text):
            self.fail(f'expected a field; quote one that is called {token.text}: "{token.text}"', token.start)
        return token.text

    def value(self, token: _Token) -> Value:
        if token.kind == "string":
            return _unquoted(token.text)
        if token.keyword in ("true", "false"):
            return int(token.keyword == "true")
        if token.keyword == "null":
            self.fail('null is no value: write "field not exists", or quote it if it is a string', token.start)
        if token.keyword:
            self.fail(f'expected a value; quote a string that is {token.text}: "{token.text}"', token.start)
        if not _NUMBER.fullmatch(token.text):
            return token.text
        whole = token.text.lstrip("+-").isdigit()
        try:
            return _plain(int(token.text[:30]) if whole else float(token.text), "this")
        except ValueError as error:
            self.fail(str(error), token.start)


def _quoted(value: Value) -> str:
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value.lower() not in KEYWORDS:
        return value
    return '"' + value.replace('"', '""') + '"'


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


# -- to SQL ------------------------------------------------------------------------------------------------------------
#
# Measured on 1,000,000 sets of three fields each (SQLite 3.40, a file in the page cache, all rows fetched), in ms:
#
#                                            INTERSECT or EXCEPT    row [NOT] IN
#     50,000 sets by = and 30,000 by =                  22               18
#     50,000 by = and 940,000 by a range               510              178    the range scanned, the = in the list
#     1,000 and 940,000 by ranges                      458              116    the wide one scanned
#     940,000 by a range, but not 50,000               818              465
#     50,000 by =, but not 940,000                     156              511
#
# So an `and` is a chain of `row IN`: the condition that is likely to be widest is scanned, the narrower are lists. The
# type is part of the range: SQLite orders numbers before strings, so '' lies between them, and the index is used.


def compile(node: Node, *, unique: bool = True) -> tuple[str, list[Value]]:
    """A SELECT of the rows that match, and its parameters, for SQLite.

    It reads `fields(key, value, row)`, the lines of `fields_of` with the row of their set, and `sets(row)`, a line for
    each set that is there. With unique=False it takes half the time where a range or an `in` is outermost, and a set
    with several items that match may come repeatedly.

    >>> compile(parse({"kind": "chair"}))
    ('SELECT row FROM fields WHERE key = ? AND value = ?', ['kind', 'chair'])
    """
    for nested in (3, 0):
        compiler = _Compiler(nested)
        select = compiler.select(node)
        if select.height <= MOST_HEIGHT:
            break
    else:
        raise ValueError("where is nested too deep, with too many conditions, for SQLite: ask in several steps")
    if unique and not select.once:
        select = _Select(f"SELECT DISTINCT row FROM {compiler.named(select)}")
    parameters = [*compiler.parameters, *select.parameters]
    if len(parameters) > MOST_PARAMETERS:
        raise ValueError(
            f"where has {len(parameters):,} parameters, and SQLite takes {MOST_PARAMETERS:,}: give the values of one "
            "field as one list, which may have any length, or ask in several steps"
        )
    return (f"WITH {', '.join(compiler.tables)} " if compiler.tables else "") + select.sql, parameters


@dataclass
class _Select:
    sql: str
    parameters: tuple[Value, ...] = ()
    height: int = 0  # of its expressions, those of the tables it reads included
    once: bool = True  # no row comes twice


class _Compiler:
    """Parts of a tree become named tables of one WITH: SELECTs inside of each other overflow the parser at ten levels.

    `nested` conditions of an `and` are looked up one inside the other, which is fast; the rest beside each other.
    """

    def __init__(self, nested: int) -> None:
        self.nested = nested
        self.tables: list[str] = []
        self.parameters: list[Value] = []

    def named(self, select: _Select) -> str:
        name = f"t{len(self.tables)}"
        self.tables.append(f"{name}(row) AS ({select.sql})")
        self.parameters.extend(select.parameters)
        return name

    def select(self, node: Node) -> _Select:
        if isinstance(node, And):
            return self.all_of(node.parts)
        if isinstance(node, Or):
            return self.any_of([self.select(part) for part in node.parts])
        if isinstance(node, Not):
            return self.scan(None, [], [self.select(node.part)])
        return self.scan(node, [], [])

    def scan(self, leaf: Node | None, kept: list[_Select], dropped: list[_Select]) -> _Select:
        """The rows of a condition, or of all sets, that are in each of `kept` and in none of `dropped`."""
        condition, parameters = ("", ()) if leaf is None else _condition(leaf)
        terms = [condition] if condition else []
        terms += [f"row IN {self.named(one)}" for one in kept]
        terms += [f"row NOT IN {self.named(one)}" for one in dropped]
        height = len(terms) + 3 + max((one.height for one in kept + dropped), default=0)
        sql = f"SELECT row FROM {'sets' if leaf is None else 'fields'}{' WHERE ' * bool(terms)}{' AND '.join(terms)}"
        return _Select(sql, parameters, height, leaf is None or isinstance(leaf, Equal))

    def any_of(self, parts: list[_Select]) -> _Select:
        if len(parts) > GROUP:
            groups = [self.any_of(parts[i : i + GROUP]) for i in range(0, len(parts), GROUP)]
            return self.any_of([_Select(f"SELECT row FROM {self.named(one)}", (), one.height + 1) for one in groups])
        parameters = tuple(value for one in parts for value in one.parameters)
        return _Select(
            " UNION ALL ".join(one.sql for one in parts), parameters, max(one.height for one in parts), False
        )

    def all_of(self, parts: tuple[Node, ...]) -> _Select:
        if len(parts) > GROUP:
            return self.scan(None, [self.all_of(parts[i : i + GROUP]) for i in range(0, len(parts), GROUP)], [])
        leaves = sorted((part for part in parts if not isinstance(part, Or | Not)), key=_width)
        kept = [self.select(part) for part in parts if isinstance(part, Or)]
        dropped = [self.select(part.part) for part in parts if isinstance(part, Not)]
        if not leaves:
            return self.scan(None, kept, dropped)
        inside = max(1, len(leaves) - self.nested)
        found = self.scan(leaves[0], kept + [self.select(leaf) for leaf in leaves[1:inside]], dropped)
        for leaf in leaves[inside:]:
            found = self.scan(leaf, [found], [])
        return found


def _width(leaf: Node) -> int:
    """Orders conditions by how many sets they are likely to match."""
    if isinstance(leaf, Range):
        return 3 if leaf.low is None or leaf.high is None else 2
    return 0 if isinstance(leaf, Equal) else 1 if isinstance(leaf, In) else 4


def _condition(leaf: Node) -> tuple[str, tuple[Value, ...]]:
    if isinstance(leaf, Equal):
        return "key = ? AND value = ?", (leaf.key, leaf.value)
    if isinstance(leaf, In):
        if len(leaf.values) <= FEW:
            return f"key = ? AND value IN ({', '.join('?' * len(leaf.values))})", (leaf.key, *leaf.values)
        text, rest = _as_one(leaf.values)
        others = f" UNION ALL VALUES {', '.join(['(?)'] * len(rest))}" if rest else ""
        return f"key = ? AND value IN (SELECT value FROM json_each(?){others})", (leaf.key, text, *rest)
    if isinstance(leaf, Range):
        terms = [f"value {bound[0]} ?" for bound in (leaf.low, leaf.high) if bound is not None]
        values = [bound[1] for bound in (leaf.low, leaf.high) if bound is not None]
        if isinstance(values[0], str) and leaf.low is None:
            terms.append("value >= ''")
        elif not isinstance(values[0], str) and leaf.high is None:
            terms.append("value < ''")
        return f"key = ? AND {' AND '.join(terms)}", (leaf.key, *values)
    assert isinstance(leaf, Exists)
    # The fields of a dict start with its key and a dot, and "/" comes after ".". Both branches search the primary key.
    return "(key = ? OR (key >= ? AND key < ?))", (leaf.key, f"{leaf.key}.", f"{leaf.key}/")


def _as_one(values: tuple[Value, ...]) -> tuple[str, list[Value]]:
    """The values as one text of JSON, and those that SQLite would not read back from it as they are.

    That is a string with a zero character, and on some machines the last digit of a few floats.
    """
    text = json.dumps(values)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        back = connection.execute("SELECT value FROM json_each(?)", (text,)).fetchall()
    same = [value == other for value, (other,) in zip(values, back, strict=True)]
    if not all(same):
        text = json.dumps(list(itertools.compress(values, same)))
    return text, [value for value, kept in zip(values, same, strict=True) if not kept]


# -- in Python ---------------------------------------------------------------------------------------------------------


def matches(node: Node, metadata: dict[str, Any]) -> bool:
    """Whether one set's metadata passes the filter: what `compile` selects.

    >>> matches(parse("tags = red and year > 2010"), {"tags": ["red", "round"], "year": 2015})
    True
    """
    lines: dict[str, list[Value]] = {}
    for key, value in fields_of(metadata, "metadata"):
        lines.setdefault(key, []).append(value)
    return _holds(node, lines)


def _holds(node: Node, lines: dict[str, list[Value]]) -> bool:
    if isinstance(node, And):
        return all(_holds(part, lines) for part in node.parts)
    if isinstance(node, Or):
        return any(_holds(part, lines) for part in node.parts)
    if isinstance(node, Not):
        return not _holds(node.part, lines)
    assert isinstance(node, Equal | In | Range | Exists)
    found = lines.get(node.key, [])
    if isinstance(node, Equal):
        return node.value in found
    if isinstance(node, In):
        return any(value in node.values for value in found)
    if isinstance(node, Exists):
        return bool(found) or any(key.startswith(f"{node.key}.") for key in lines)
    return any(_inside(value, node.low) and _inside(value, node.high) for value in found)


def _inside(value: Any, bound: tuple[str, Any] | None) -> bool:
    return bound is None or (
        isinstance(value, str) == isinstance(bound[1], str) and _COMPARE[bound[0]](value, bound[1])
    )


# -- metadata ----------------------------------------------------------------------------------------------------------


def fields_of(metadata: Any, where: str) -> list[tuple[str, Value]]:
    """The lines (key, value) of one set's metadata in the table of fields; errors start with `where`.

    Every string, number and boolean has a line, and so has every item of a list that is one of these; the keys of a
    nested dict are joined with dots. None has no line, and neither have lists and dicts inside of a list. No line comes
    twice; 1, 1.0 and True are the same.

    >>> fields_of({"kind": "chair", "tags": ["red", "old"], "camera": {"iso": 100}, "by": None}, "metadata")
    [('kind', 'chair'), ('tags', 'red'), ('tags', 'old'), ('camera.iso', 100)]
    """
    if not isinstance(metadata, dict):
        raise ValueError(f"{where} is {kind_of(metadata)}: give a dict with strings as keys")
    lines: list[tuple[str, Value]] = []
    simple = True
    for key, value in metadata.items():
        kind = type(value)
        # What nearly all metadata is, in few steps: 60,000 sets of two keys take 30 ms.
        if (
            type(key) is str
            and key.isascii()
            and (
                (kind is str and value.isascii())
                or (kind is int and -SPAN <= value < SPAN)
                or (kind is float and value - value == 0)
                or kind is bool
            )
        ):
            lines.append((key, value))
        else:
            simple = False
            _add_lines(_checked_key(key, where), value, where, lines, 0)
    return lines if simple else list(dict.fromkeys(lines))


def _add_lines(key: str, value: Any, where: str, lines: list[tuple[str, Value]], depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(
            f"{where}: key {key!r:.60} is nested more than {DEEPEST} deep, or holds itself: make it flatter"
        )
    if isinstance(value, dict):
        for name, inner in value.items():
            _add_lines(f"{key}.{_checked_key(name, where)}", inner, where, lines, depth + 1)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            if isinstance(item, dict | list | tuple):
                _add_lines(key, item, where, [], depth + 1)  # checked, but without lines
            elif item is not None:
                lines.append((key, _checked(item, f"{where}: key {key!r}, item {i},")))
    elif value is not None:
        lines.append((key, _checked(value, f"{where}: key {key!r}")))


def as_json(metadata: dict[str, Any]) -> str:
    """Metadata that `fields_of` has checked as compact JSON; NumPy's scalars as plain numbers.

    >>> as_json({"kind": "Stühle", "year": np.int64(2015), "tags": ("red", None)})
    '{"kind":"Stühle","year":2015,"tags":["red",null]}'
    """
    return _ENCODER.encode(metadata)


def _checked_key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{place}: the key {key!r:.60} is {kind_of(key)}: keys are strings, so pass str(key)")
    return str(_checked(key, f"{place}: the key {key!r:.60}"))


def _checked(value: Any, place: str) -> Value:
    """A plain string, number or boolean."""
    if isinstance(value, np.generic) and value.dtype.kind in "iufb":
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{place} has half of a surrogate pair at character {error.start}, which no file can hold: decode the "
                "text with the encoding it was written in"
            ) from None
        return str.__str__(value)
    if isinstance(value, int):
        if not -SPAN <= value < SPAN:
            raise ValueError(f"{place} is a whole number beyond 64 bits: give it as a string, or as a float")
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    found = f"{value!r:.60}" if isinstance(value, float) else kind_of(value)
    remedy = "x.tolist()" if isinstance(value, np.ndarray) else "x.isoformat()" if hasattr(value, "isoformat") else ""
    raise ValueError(f"{place} is {found}: {_ALLOWED}{', e.g. by ' * bool(remedy)}{remedy}")


def _plain(value: Any, place: str) -> Value:
    """A value of a filter: of equal ones always the same, so that equal filters are the same text."""
    value = _checked(value, place)
    return int(value) if isinstance(value, bool) or (isinstance(value, float) and _is_int64(value)) else value


def _is_int64(value: float) -> bool:
    return value.is_integer() and -SPAN <= value < SPAN
