"""Filters to SQL: a tree comes in, one SELECT and its parameters go out, for the tables that `compile_filter` names.

What SQLite would refuse is refused here, so that what compiles also runs. `slosh.where.FieldColumns` is its twin in
plain Python.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...where import ALL, And, Equal, Exists, In, Key, Leaf, Node, Not, Or, Range, Value, any_of, edge, leaves

IN_PARAMETERS = 100
"""Values of an `in` that are parameters of their own; more are handed over as one, in JSON."""
MAX_PARAMETERS = 32_000
"""SQLite takes 32,766."""
MAX_HEIGHT = 950
"""SQLite takes expressions 1,000 high, counted through subqueries."""
JOINED_RANGES = 8
"""Ranges of an `or` from which on one SELECT looks for all of them."""
ASKED_OFTEN = 16
"""If the same rows would be read more often, a filter is not answered by one SELECT: see `masks.py`."""
MAX_TERMS = 100
"""Parts of an `and` or `or` in one SELECT; SQLite joins 500 at most."""

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
# type is part of the range, so that the index is used: SQLite orders numbers before strings and strings before blobs;
# '' is the first string and x'' the first blob. Many ranges of one `or` are a table that is joined: 1,000 of them over
# 300,000 sets take 30 ms, and 700 ms as SELECTs of their own.


def compile_filter(node: Node, first: int = 0) -> tuple[str, list[Value]]:
    """A SELECT of the rows that match, from row `first` on, and its parameters, for SQLite.

    It reads `fields(key, value, row)`, the lines of `fields_of` with the row of their set, and `sets(row, id)`, a line
    for each set that is there. A set with several items that match may come repeatedly.

    >>> from slosh.where import parse
    >>> compile_filter(parse({"kind": "chair"}))
    ('SELECT row FROM fields WHERE key = ? AND value = ?', ['kind', 'chair'])
    """
    for nested in (3, 0):
        compiler = _Compiler(nested, first)
        select = compiler.select(node)
        if select.height <= MAX_HEIGHT:
            break
    else:
        raise InputError(
            "where is nested too deep, with too many conditions, for SQLite", "ask in several steps", argument="where"
        )
    parameters = [*compiler.parameters, *select.parameters]
    if len(parameters) > MAX_PARAMETERS:
        raise InputError(
            f"where has {len(parameters):,} parameters, and SQLite takes {MAX_PARAMETERS:,}",
            "give the values of one field as one list, which may have any length, or ask in several steps",
            argument="where",
        )
    return (f"WITH {', '.join(compiler.tables)} " if compiler.tables else "") + select.sql, parameters


def reads_repeatedly(node: Node) -> bool:
    """Return whether one SELECT would read the same rows over and over.

    That is so if a condition is in the filter many times, or if many ranges of a field overlap, and they are not looked
    for together.
    """
    if sum(1 for _ in leaves(node)) <= ASKED_OFTEN:
        return False
    compiler = _Compiler(0, 0)
    compiler.select(node)
    return max(compiler.asked.values(), default=0) > ASKED_OFTEN or bool(overlapping(compiler.asked.elements()))


def overlapping(conditions: Iterable[Leaf]) -> dict[Key, list[Range]]:
    """Return the ranges of each field with a value that more than `ASKED_OFTEN` of its ranges hold."""
    ranges: dict[Key, list[Range]] = {}
    for leaf in conditions:
        if isinstance(leaf, Range):
            ranges.setdefault(leaf.key, []).append(leaf)
    return {
        key: found
        for key, found in ranges.items()
        if max(_deepest([one for one in found if one.is_text == is_text]) for is_text in (False, True)) > ASKED_OFTEN
    }


def _deepest(ranges: list[Range]) -> int:
    """Return how many of these ranges hold the same value, at most."""
    ends = sorted(edge(one.high) for one in ranges if one.high is not None)
    starts = sorted(edge(one.low) for one in ranges)
    return max((begun - bisect_right(ends, start) for begun, start in enumerate(starts, 1)), default=0)


@dataclass
class _Select:
    sql: str
    parameters: tuple[Value, ...] = ()
    height: int = 0  # of its expressions, those of the tables it reads included


class _Compiler:
    """Parts of a tree become named tables of one WITH: SELECTs inside of each other overflow the parser at ten levels.

    `nested` conditions of an `and` are looked up one inside the other, which is fast; the rest beside each other. The
    height is counted with the condition on the row, so that what compiles for all rows compiles for the last ones.
    """

    def __init__(self, nested: int, first: int) -> None:
        self.nested = nested
        self.rows = [f"row >= {first:d}"] if first else []
        self.tables: list[str] = []
        self.parameters: list[Value] = []
        self.asked: Counter[Leaf] = Counter()  # conditions that look for their rows by themselves

    def named(self, select: _Select) -> str:
        name = f"t{len(self.tables)}"
        self.tables.append(f"{name}(row) AS ({select.sql})")
        self.parameters.extend(select.parameters)
        return name

    def select(self, node: Node) -> _Select:
        if isinstance(node, And):
            return self.all_of(node.parts)
        if isinstance(node, Or):
            return self.any_of(self.each(node.parts))
        if isinstance(node, Not):
            return self.scan(None, [], [self.select(node.part)])
        return self.scan(node, [], [])

    def each(self, parts: tuple[Node, ...]) -> list[_Select]:
        """The SELECT of each part of an `or`; one of all ranges of the same form, if they are many."""
        groups: dict[Any, list[Range]] = {}
        for part in parts:
            if isinstance(part, Range) and part.low is not None and part.high is not None:
                groups.setdefault((part.key, part.low[0], part.high[0]), []).append(part)
        joined = {form: ranges for form, ranges in groups.items() if len(ranges) >= JOINED_RANGES}
        together = {part for ranges in joined.values() for part in ranges}
        found = [self.select(part) for part in parts if part not in together]
        for (key, low, high), ranges in joined.items():
            table, column = ("sets", "id") if key is None else ("fields", "value")
            sql = (
                f"SELECT row FROM (VALUES {', '.join(['(?, ?)'] * len(ranges))}) CROSS JOIN {table} "
                f"WHERE {'key = ? AND ' * (key is not None)}{column} {low} column1 AND {column} {high} column2"
            )
            sql = " AND ".join([sql, *self.rows])
            bounds = (bound[1] for part in ranges for bound in part.bounds)
            found.append(_Select(sql, (*bounds, *[key] * (key is not None)), 5))
        return found

    def scan(self, leaf: Node | None, kept: list[_Select], dropped: list[_Select]) -> _Select:
        """The rows of a condition, or of all sets, that are in each of `kept` and in none of `dropped`."""
        if isinstance(leaf, Leaf):
            self.asked[leaf] += 1
        table, condition, parameters = ("sets", "", ()) if leaf is None else _condition(leaf)
        terms = [*([condition] if condition else []), *self.rows]
        terms += [f"row IN {self.named(one)}" for one in kept]
        terms += [f"row NOT IN {self.named(one)}" for one in dropped]
        height = len(terms) + 4 - len(self.rows) + max((one.height for one in kept + dropped), default=0)
        sql = f"SELECT row FROM {table}{' WHERE ' * bool(terms)}{' AND '.join(terms)}"
        return _Select(sql, parameters, height)

    def any_of(self, parts: list[_Select]) -> _Select:
        if len(parts) > MAX_TERMS:
            groups = [self.any_of(parts[i : i + MAX_TERMS]) for i in range(0, len(parts), MAX_TERMS)]
            return self.any_of([_Select(f"SELECT row FROM {self.named(one)}", (), one.height + 1) for one in groups])
        parameters = tuple(value for one in parts for value in one.parameters)
        return _Select(" UNION ALL ".join(one.sql for one in parts), parameters, max(one.height for one in parts))

    def all_of(self, parts: tuple[Node, ...]) -> _Select:
        if len(parts) > MAX_TERMS:
            return self.scan(None, [self.all_of(parts[i : i + MAX_TERMS]) for i in range(0, len(parts), MAX_TERMS)], [])
        leaves = sorted((part for part in parts if not isinstance(part, Or | Not)), key=_width)
        kept = [self.select(part) for part in parts if isinstance(part, Or)]
        without = any_of(part.part for part in parts if isinstance(part, Not))
        dropped = [] if without == Not(ALL) else [self.select(without)]
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


def _condition(leaf: Node) -> tuple[str, str, tuple[Value, ...]]:
    """Return the table that a condition reads, the condition and its parameters."""
    if isinstance(leaf, Exists):
        # The fields of a dict start with its key and a dot, and "/" comes after ".". Both branches search the primary
        # key.
        return "fields", "(key = ? OR (key >= ? AND key < ?))", (leaf.key, f"{leaf.key}.", f"{leaf.key}/")
    assert isinstance(leaf, Equal | In | Range)
    column, values = ("id" if leaf.key is None else "value"), _values(leaf)
    if isinstance(leaf, Equal):
        condition = f"{column} = ?"
    elif isinstance(leaf, Range):
        terms = [f"{column} {op} ?" for op, _ in leaf.bounds]
        terms += [f"{column} >= ''"] * (leaf.is_text and leaf.low is None)
        terms += [f"{column} < {'x' * leaf.is_text}''"] * (leaf.high is None)
        condition = " AND ".join(terms)
    elif len(values) <= IN_PARAMETERS:
        condition = f"{column} IN ({', '.join('?' * len(values))})"
    else:
        listed, rest = _as_one(values)
        others = f" UNION ALL VALUES {', '.join(['(?)'] * len(rest))}" if rest else ""
        condition, values = f"{column} IN (SELECT value FROM json_each(?){others})", (listed, *rest)
    return (
        ("sets", condition, values) if leaf.key is None else ("fields", f"key = ? AND {condition}", (leaf.key, *values))
    )


def _values(leaf: Equal | In | Range) -> tuple[Value, ...]:
    if isinstance(leaf, Range):
        return tuple(value for _, value in leaf.bounds)
    return (leaf.value,) if isinstance(leaf, Equal) else leaf.values


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
