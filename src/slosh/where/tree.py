"""The tree of a filter: what it asks of the fields of a set, in one form, so that equal filters are equal.

Conditions come in and are put together by `all_of`, `any_of`, `one_of`, `not_` and `between`; a `Node` goes out. Its
str() is the text form, with the quotes that `text.py` takes off again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Value: TypeAlias = str | int | float

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in", "exists")
KEYWORDS = {"and", "or", "not", "in", "exists", "true", "false", "null"}
OTHER_SIDE = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")


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
            left = f"{_quoted(self.low[1])} {OTHER_SIDE[self.low[0]]}"
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


def all_of(parts: Iterable[Node]) -> Node:
    """One form for an `and`: no `and` inside, no part twice, in the order of the text."""
    flat = {p for part in parts for p in (part.parts if isinstance(part, And) else [part])}
    return flat.pop() if len(flat) == 1 else And(tuple(sorted(flat, key=str)))


def any_of(parts: Iterable[Node]) -> Node:
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
    rest.update(one_of(key, found) for key, found in values.items())
    if not rest:
        return Not(ALL)
    return rest.pop() if len(rest) == 1 else Or(tuple(sorted(rest, key=str)))


def one_of(key: str, values: Iterable[Value]) -> Node:
    found = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    return Equal(key, found[0]) if len(found) == 1 else In(key, tuple(found))


def not_(node: Node) -> Node:
    return node.part if isinstance(node, Not) else Not(node)


def between(key: str, bounds: Iterable[tuple[str, Value]], fail: Callable[[str], NoReturn]) -> Node:
    """One Range of all bounds, the tightest on each side."""
    given: list[tuple[str, Any]] = list(bounds)
    if len({isinstance(value, str) for _, value in given}) > 1:
        fail("compares with a number and with a string, and nothing is both: give bounds of one kind")
    lows, highs = ([bound for bound in given if bound[0][0] == side] for side in "><")
    low = max(lows, key=lambda bound: (bound[1], bound[0] == ">"), default=None)
    high = min(highs, key=lambda bound: (bound[1], bound[0] == "<="), default=None)
    return Range(key, low, high)


def _quoted(value: Value) -> str:
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value.lower() not in KEYWORDS:
        return value
    return '"' + value.replace('"', '""') + '"'


def unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])
