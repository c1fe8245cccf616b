"""Filters over metadata that is held in memory: the values of each field in a column, with the slot of their set.

The metadata of one set after the other comes in, each into the next slot; a mask of the slots that match goes out.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .metadata import Field, fields_of
from .tree import And, Equal, Exists, In, Key, Leaf, Node, Not, Or, Range, leaves

SORT_ABOVE = 8
"""A column that a filter asks for more often is sorted first; until then it is read each time."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class FieldColumns:
    """Columns that only grow, so that threads may read the first n slots while one appends."""

    def __init__(self) -> None:
        self._columns: dict[Key, tuple[list[Any], list[int]]] = {}

    def append(self, slot: int, id: str, fields: Iterable[Field]) -> None:
        """Put the id and the fields of one set into a slot, which is higher than those before."""
        of_set: list[tuple[Key, Any]] = [(None, id), *fields]
        for key, value in of_set:
            values, slots = self._columns.setdefault(key, ([], []))
            values.append(value)
            slots.append(slot)

    def truncate(self, n: int) -> None:
        """Forget the slots from n on."""
        for values, slots in self._columns.values():
            end = bisect_left(slots, n)
            del values[end:], slots[end:]

    def mask(self, node: Node, n: int, first: int = 0) -> NDArray[np.bool_]:
        """Return which of the first n slots match. Those before `first` are not looked at: what is said is not so."""
        asked = Counter(leaf.key for leaf in leaves(node) if not isinstance(leaf, Exists))
        often = {key: _SortedColumn(*self._column(key, first, n)) for key, times in asked.items() if times > SORT_ABOVE}

        def mask_of(leaf: Leaf) -> NDArray[np.bool_]:
            found = np.zeros(n, np.bool_)
            if isinstance(leaf, Exists):
                inside = f"{leaf.key}."
                for key in list(self._columns):
                    if key is not None and (key == leaf.key or key.startswith(inside)):
                        found[self._column(key, first, n)[1]] = True
            elif leaf.key in often:
                found[often[leaf.key].slots(leaf)] = True
            else:
                values, slots = self._column(leaf.key, first, n)
                matches = _test(leaf)
                found[[slot for value, slot in zip(values, slots, strict=True) if matches(value)]] = True
            return found

        return combined(node, n, mask_of)

    def _column(self, key: Key, first: int, n: int) -> tuple[list[Any], list[int]]:
        values, slots = self._columns.get(key, ([], []))
        part = slice(bisect_left(slots, first), bisect_left(slots, n))
        return values[part], slots[part]


class _SortedColumn:
    """The values of a field in order, for a filter that asks for many of them."""

    def __init__(self, values: list[Any], slots: list[int]) -> None:
        self._of_kind = {}
        for is_text, kind in ((True, str), (False, (int, float))):
            there = [i for i, value in enumerate(values) if isinstance(value, kind)]
            there.sort(key=values.__getitem__)
            self._of_kind[is_text] = [values[i] for i in there], np.array([slots[i] for i in there], np.int64)

    def slots(self, leaf: Equal | In | Range) -> NDArray[np.int64]:
        if not isinstance(leaf, Range):
            wanted = [leaf.value] if isinstance(leaf, Equal) else leaf.values
            each = [self.slots(Range(leaf.key, (">=", value), ("<=", value))) for value in wanted]
            return np.concatenate([np.empty(0, np.int64), *each])
        values, slots = self._of_kind[leaf.is_text]
        first, end = 0, len(values)
        if leaf.low is not None:
            first = (bisect_left if leaf.low[0] == ">=" else bisect_right)(values, leaf.low[1])
        if leaf.high is not None:
            end = (bisect_left if leaf.high[0] == "<" else bisect_right)(values, leaf.high[1])
        return np.asarray(slots[first:end])


def combined(node: Node, n: int, mask_of: Callable[[Leaf], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return which of n sets pass a filter, given which of them pass a condition."""
    if isinstance(node, Not):
        return ~combined(node.part, n, mask_of)
    if isinstance(node, And | Or):
        join = np.logical_and if isinstance(node, And) else np.logical_or
        found = np.full(n, isinstance(node, And))
        for part in node.parts:
            join(found, combined(part, n, mask_of), out=found)
        return found
    assert isinstance(node, Leaf)
    return mask_of(node)


def _test(node: Equal | In | Range) -> Callable[[Any], bool]:
    if not isinstance(node, Range):
        return frozenset([node.value] if isinstance(node, Equal) else node.values).__contains__
    kind: Any = str if node.is_text else (int, float)
    (first, low), (second, high) = ((_COMPARE[op], limit) for op, limit in (node.bounds * 2)[:2])
    return lambda value: isinstance(value, kind) and first(value, low) and second(value, high)


def matches(node: Node, metadata: dict[str, Any], id: str = "") -> bool:
    """Return whether one set passes a filter.

    >>> from slosh.where import parse
    >>> matches(parse("tags = red and year > 2010"), {"tags": ["red", "round"], "year": 2015})
    True
    """
    columns = FieldColumns()
    columns.append(0, id, fields_of(metadata, "metadata"))
    return bool(columns.mask(node, 1)[0])
