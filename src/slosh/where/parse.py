"""Filters from dicts: a dict comes in, the tree goes out, or an error that names the place in the dict.

Text and trees are taken too, also as parts of a dict, so `parse` is the one door for all forms of a filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

from ..data.checks import kind_of
from ..errors import InputError
from .metadata import MAX_DEPTH, checked_key, filter_value
from .text import parse_text
from .tree import (
    EMPTY_ID,
    EMPTY_PREFIX,
    ID,
    OPERATORS,
    Equal,
    Key,
    Node,
    Value,
    all_of,
    any_of,
    between,
    exists,
    not_,
    one_of,
)

_LISTS = (list, tuple, set, frozenset, np.ndarray)


def parse(where: Any) -> Node:
    """Return the tree of a filter, which may be a dict, the text form, or a tree.

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
        raise _wrong(f"{place} is {kind_of(where)}", 'give a dict such as {"kind": "chair"}, or text: "kind = chair"')
    if depth > MAX_DEPTH:
        raise _wrong(f"where is nested more than {MAX_DEPTH} deep", "take a level out, most hold one part only")
    parts: list[Node] = []
    for key, value in where.items():
        here = f"{place}[{key!r:.60}]"
        if key in ("and", "or"):
            if not isinstance(value, list | tuple):
                raise _wrong(f"{here} is {kind_of(value)}", f"give a list of filters. {_reserved(key)}")
            inner = [_from_any(part, f"{here}[{i}]", depth + 1) for i, part in enumerate(value)]
            parts.append(all_of(inner) if key == "and" else any_of(inner))
        elif key == "not":
            if not isinstance(value, Mapping | Node):
                raise _wrong(f"{here} is {kind_of(value)}", f"give the dict of a filter. {_reserved(key)}")
            parts.append(not_(_from_any(value, here, depth + 1)))
        else:
            parts.extend(_conditions(None if key == ID else checked_key(key, place), value, here))
    return all_of(parts)


def _reserved(key: str) -> str:
    return f"For a field that is called {key!r} write the filter as text: '\"{key}\" = 1'"


def _conditions(key: Key, asked: Any, place: str) -> Iterator[Node]:
    """Yield what a dict says of one field."""
    if not isinstance(asked, Mapping):
        asked = {"in" if isinstance(asked, _LISTS) else "=": asked}
    elif not asked:
        raise _wrong(f"{place} is an empty dict", f"give an operator, one of {_operators()}")
    bounds = []
    for op, value in asked.items():
        here = f"{place}[{op!r:.60}]"
        if op in ("=", "!="):
            node = not_(exists(key)) if value is None else Equal(key, _value(key, value, here))
            yield node if op == "=" else not_(node)
        elif op in ("in", "not in"):
            if not isinstance(value, _LISTS) or (isinstance(value, np.ndarray) and value.ndim != 1):
                raise _wrong(f"{here} is {kind_of(value)}", "give a list of strings and numbers")
            node = one_of(key, [_value(key, one, f"{here}[{i}]") for i, one in enumerate(value)])
            yield node if op == "in" else not_(node)
        elif op == "exists":
            if not isinstance(value, bool | np.bool_):
                raise _wrong(f"{here} is {kind_of(value)}", "give True or False")
            yield exists(key) if value else not_(exists(key))
        elif op in OPERATORS:
            if op == "prefix" and value == "":
                raise _wrong(f"{here}: {EMPTY_PREFIX}", 'give {"exists": True} to ask for any value')
            bounds.append((op, _value(key, value, here)))
            if op == "prefix" and not isinstance(bounds[-1][1], str):
                raise _wrong(f"{here} is {kind_of(value)}", "give a string")
        else:
            raise _wrong(
                f"{place}: {op!r:.60} is not an operator",
                f"give one of {_operators()}. A field inside of a nested dict of metadata is reached with a dot: "
                "{'camera.iso': 100}",
            )
    if bounds:

        def fail(why: str) -> NoReturn:
            raise _wrong(f"{place} {why}")

        yield between(key, bounds, fail)


def _value(key: Key, value: Any, place: str) -> Value:
    if key is not None:
        return filter_value(value, place)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))  # as `ids=` takes it
    if not isinstance(value, str):
        raise _wrong(f"{place} is {kind_of(value)}", f"ids are strings. {_reserved(ID)}")
    if not value:
        raise _wrong(f"{place} is empty text: {EMPTY_ID}", "leave it out to mean all sets")
    return filter_value(value, place)


def _wrong(problem: str, remedy: str = "") -> InputError:
    return InputError(problem, remedy, argument="where")


def _operators() -> str:
    return ", ".join(map(repr, OPERATORS))
