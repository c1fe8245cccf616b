"""The tree of a filter: what it asks of the fields of a set, in one form, so that equal filters are equal.

Conditions come in and are put together by `all_of`, `any_of`, `one_of`, `not_` and `between`; a `Node` goes out. Its
str() is the text form, with the quotes that `text.py` takes off again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Value: TypeAlias = str | int | float
Key: TypeAlias = str | None
"""A field of the metadata; None is the id of the set."""

ID = "@id"
"""How a filter names the id of a set. A field of this name is quoted, in the text form."""
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "prefix", "in", "not in", "exists")
KEYWORDS = {"and", "or", "not", "in", "exists", "true", "false", "null"}
EMPTY_PREFIX = "the prefix is empty, and every string begins with it"
"""Why it is refused: where a variable was not set, "all sets" would be a disaster."""
EMPTY_ID = "no id is empty, so that all sets or none would match"
OTHER_SIDE = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True)
class Node:
    """A filter, made by `parse`. Filters that say the same in another order are equal; str() gives the text form."""


@dataclass(frozen=True)
class Equal(Node):
    key: Key
    value: Value

    def __str__(self) -> str:
        return f"{_name(self.key)} = {_quoted(self.value)}"


@dataclass(frozen=True)
class In(Node):
    key: Key
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{_name(self.key)} in ({', '.join(map(_quoted, self.values))})"


@dataclass(frozen=True)
class Range(Node):
    """low is (">" or ">=", value) or None, high is ("<" or "<=", value) or None; both are numbers or both strings.

    The strings with a prefix are a range too, since strings compare by code point.
    """

    key: Key
    low: tuple[str, Value] | None
    high: tuple[str, Value] | None

    @property
    def bounds(self) -> list[tuple[str, Value]]:
        return [bound for bound in (self.low, self.high) if bound is not None]

    @property
    def is_text(self) -> bool:
        return isinstance(self.bounds[0][1], str)

    def __str__(self) -> str:
        key = _name(self.key)
        prefix = "" if self.low is None else str(self.low[1])
        if prefix and self.low == (">=", prefix) and self.high == _end_of(prefix):
            return f"{key} prefix {_quoted(prefix)}"
        if self.low is not None and self.high is not None:
            left = f"{_quoted(self.low[1])} {OTHER_SIDE[self.low[0]]}"
            return f"{left} {key} {self.high[0]} {_quoted(self.high[1])}"
        op, value = self.bounds[0]
        return f"{key} {op} {_quoted(value)}"


@dataclass(frozen=True)
class Exists(Node):
    key: str

    def __str__(self) -> str:
        return f"{_name(self.key)} exists"


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
            return f"{_name(part.key)} != {_quoted(part.value)}"
        if isinstance(part, In | Exists):
            return f"{_name(part.key)} not {str(part)[len(_name(part.key)) + 1 :]}"
        return f"not ({part})" if isinstance(part, And | Or) and part != ALL else f"not {part}"


ALL = And(())
Leaf: TypeAlias = Equal | In | Range | Exists
"""A condition on one field."""


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the conditions of a filter, as often as they are in it."""
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from leaves(part)
    elif isinstance(node, Not):
        yield from leaves(node.part)
    elif isinstance(node, Leaf):
        yield node


def all_of(parts: Iterable[Node]) -> Node:
    """One form for an `and`: no `and` inside, no part twice, in the order of the text."""
    flat = {p for part in parts for p in (part.parts if isinstance(part, And) else [part])}
    return flat.pop() if len(flat) == 1 else And(tuple(sorted(flat, key=str)))


def any_of(parts: Iterable[Node]) -> Node:
    """One form for an `or`; what is asked of one field by = and in is one `in`, and its ranges do not overlap."""
    flat = {p for part in parts for p in (part.parts if isinstance(part, Or) else [part])} - {Not(ALL)}
    if ALL in flat:
        return ALL
    values: dict[Key, list[Value]] = {}
    ranges: dict[tuple[Key, bool], list[Range]] = {}
    rest = set()
    for part in flat:
        if isinstance(part, Equal | In):
            values.setdefault(part.key, []).extend([part.value] if isinstance(part, Equal) else part.values)
        elif isinstance(part, Range):
            ranges.setdefault((part.key, part.is_text), []).append(part)
        else:
            rest.add(part)
    rest.update(one_of(key, found) for key, found in values.items())
    rest.update(one for found in ranges.values() for one in (_union(found) if len(found) > 1 else found))
    if not rest:
        return Not(ALL)
    return rest.pop() if len(rest) == 1 else Or(tuple(sorted(rest, key=str)))


def _union(ranges: list[Range]) -> list[Range]:
    """Return ranges that hold for the same values and do not overlap. All are of one field and one kind of value."""
    found: list[Range] = []
    for one in sorted(ranges, key=lambda one: (one.low is not None, edge(one.low))):
        if one.low is not None and one.high is not None and edge(one.high) <= edge(one.low):
            continue
        last = found[-1] if found else None
        if last is None or (last.high is not None and one.low is not None and edge(one.low) > edge(last.high)):
            found.append(one)
        elif last.high is not None and (one.high is None or edge(one.high) > edge(last.high)):
            found[-1] = Range(one.key, last.low, one.high)
    if found and found[0].low is found[0].high is None:  # which is no range, since it does not say of what
        first = min((one.low for one in ranges if one.low is not None and one.high is None), key=edge)
        return [Range(found[0].key, None, ("<", first[1])), Range(found[0].key, (">=", first[1]), None)]
    return found


def edge(bound: tuple[str, Value] | None) -> tuple[Any, ...]:
    """Return what compares as the bound does: it is just before its value, or just after it."""
    return () if bound is None else (bound[1], bound[0] in (">", "<="))


def one_of(key: Key, values: Iterable[Value]) -> Node:
    found = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    return Equal(key, found[0]) if len(found) == 1 else In(key, tuple(found))


def not_(node: Node) -> Node:
    return node.part if isinstance(node, Not) else Not(node)


def exists(key: Key) -> Node:
    return ALL if key is None else Exists(key)


def between(key: Key, bounds: Iterable[tuple[str, Value]], fail: Callable[[str], NoReturn]) -> Node:
    """One Range of all bounds and prefixes, the tightest on each side."""
    given: list[tuple[str, Any]] = []
    for op, value in bounds:
        if op == "prefix":
            end = _end_of(str(value))
            given += [(">=", value)] if end is None else [(">=", value), end]
        else:
            given.append((op, value))
    if len({isinstance(value, str) for _, value in given}) > 1:
        fail("compares with a number and with a string, and nothing is both: give bounds of one kind")
    lows, highs = ([bound for bound in given if bound[0][0] == side] for side in "><")
    low = max(lows, key=lambda bound: (bound[1], bound[0] == ">"), default=None)
    high = min(highs, key=lambda bound: (bound[1], bound[0] == "<="), default=None)
    return Range(key, low, high)


def _end_of(prefix: str) -> tuple[str, str] | None:
    """Return the bound of the strings that begin with `prefix`; None where nothing comes after them."""
    prefix = prefix.rstrip(chr(sys.maxunicode))
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    return "<", prefix[:-1] + chr(0xE000 if following == 0xD800 else following)  # no string holds a surrogate


def _name(key: Key) -> str:
    return ID if key is None else _quoted(key)


def _quoted(value: Value) -> str:
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value.lower() not in KEYWORDS:
        return value
    return '"' + value.replace('"', '""') + '"'


def unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])
