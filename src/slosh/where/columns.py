"""Filters over metadata that is held in memory: the values of each field in a column, with the slot of their set.

The metadata of one set after the other comes in, each into the next slot; a mask of the slots that match goes out.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .metadata import fields_of
from .tree import And, Equal, Exists, In, Node, Not, Or, Range, Value

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class FieldColumns:
    """Columns that only grow, so that threads may read the first n slots while one appends."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[list[Value], list[int]]] = {}

    def append(self, slot: int, fields: Iterable[tuple[str, Value]]) -> None:
        """Put the fields of one set into a slot, which is higher than those before."""
        for key, value in fields:
            values, slots = self._columns.setdefault(key, ([], []))
            values.append(value)
            slots.append(slot)

    def truncate(self, n: int) -> None:
        """Forget the slots from n on."""
        for values, slots in self._columns.values():
            end = bisect_left(slots, n)
            del values[end:], slots[end:]

    def mask(self, node: Node, n: int) -> NDArray[np.bool_]:
        """Return which of the first n slots match."""
        if isinstance(node, And | Or):
            join = np.logical_and if isinstance(node, And) else np.logical_or
            found = np.full(n, isinstance(node, And))
            for part in node.parts:
                join(found, self.mask(part, n), out=found)
            return found
        if isinstance(node, Not):
            return ~self.mask(node.part, n)
        assert isinstance(node, Equal | In | Range | Exists)
        found = np.zeros(n, np.bool_)
        if isinstance(node, Exists):
            inside = f"{node.key}."
            for key in list(self._columns):
                if key == node.key or key.startswith(inside):
                    found[self._slots(key, n)[1]] = True
            return found
        values, slots = self._slots(node.key, n)
        matches = _test(node)
        found[[slot for value, slot in zip(values, slots, strict=True) if matches(value)]] = True
        return found

    def _slots(self, key: str, n: int) -> tuple[list[Value], list[int]]:
        values, slots = self._columns.get(key, ([], []))
        end = bisect_left(slots, n)
        return values[:end], slots[:end]


def _test(node: Equal | In | Range) -> Callable[[Any], bool]:
    if isinstance(node, Equal):
        wanted = node.value
        return lambda value: bool(value == wanted)
    if isinstance(node, In):
        return frozenset(node.values).__contains__
    bounds = [bound for bound in (node.low, node.high) if bound is not None]
    text = isinstance(bounds[0][1], str)
    tests = [(_COMPARE[op], limit) for op, limit in bounds]
    return lambda value: isinstance(value, str) == text and all(test(value, limit) for test, limit in tests)


def matches(node: Node, metadata: dict[str, Any]) -> bool:
    """Return whether one set's metadata passes a filter.

    >>> from slosh.where import parse
    >>> matches(parse("tags = red and year > 2010"), {"tags": ["red", "round"], "year": 2015})
    True
    """
    columns = FieldColumns()
    columns.append(0, fields_of(metadata, "metadata"))
    return bool(columns.mask(node, 1)[0])
