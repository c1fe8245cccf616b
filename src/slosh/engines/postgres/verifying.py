"""Checks of the tables of an index by themselves; vectors and answers are checked by the index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DamagedError, StorageError
from ...where import checked_metadata, parse_metadata
from ..spec import IndexSpec
from . import building, codec
from .filters import fields_json

if TYPE_CHECKING:
    from .view import PostgresView

MAX_LISTED = 20


def verify_tables(view: PostgresView) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what was checked, how much of it, and the problems that were found."""
    try:
        yield _verify_rows(view)
        yield _verify_points(view)
        yield _verify_fields(view)
    except (DamagedError, StorageError) as error:
        yield "tables", "unreadable", [f"the database: {error}"]


def _verify_rows(view: PostgresView) -> tuple[str, str, list[str]]:
    tables, problems = view.tables, []
    checks = {
        "sets without points": f"SELECT id FROM {tables.sets} s WHERE NOT EXISTS"
        f" (SELECT FROM {tables.bodies} b WHERE b.body = s.body)",
        "sets without vectors": f"SELECT id FROM {tables.sets} s WHERE NOT EXISTS"
        f" (SELECT FROM {tables.exact} e WHERE e.key = s.key)",
        "points without a set": f"SELECT body::text FROM {tables.bodies} b WHERE NOT EXISTS"
        f" (SELECT FROM {tables.sets} s WHERE s.body = b.body)",
        "vectors without a set": f"SELECT key::text FROM {tables.exact} e WHERE NOT EXISTS"
        f" (SELECT FROM {tables.sets} s WHERE s.key = e.key)",
    }
    for column, width in _widths(view.spec).items():
        checks[f"rows of {tables.exact} with a wrong length of {column}"] = (
            f"SELECT key::text FROM {tables.exact} WHERE octet_length({column}) <> {width:d}"
        )
    for what, sql in checks.items():
        if found := [name for (name,) in view.execute(f"{sql} LIMIT {MAX_LISTED}", prepare=False)]:
            problems.append(f"{what}: {', '.join(found)}")
    n, points = view.execute(f"SELECT count(*), coalesce(sum(size), 0)::bigint FROM {tables.sets}").fetchone()
    if (n, points) != (view.header.sets, view.header.points):
        problems.append(f"there are {n} sets with {points} points, which does not fit the counters")
    (last,) = view.execute(f"SELECT last_value FROM {tables.keys}").fetchone()
    (highest,) = view.execute(f"SELECT coalesce(max(key), -1) FROM {tables.sets}").fetchone()
    if highest > last:
        problems.append(f"the key {highest} is there, and the last one given out is {last}")
    if view.header.graph and not building.is_valid(view.session, tables):
        problems.append("the graph is gone, so that every search compares all sets: call index.compact()")
    return "tables", f"{n} sets", problems


def _widths(spec: IndexSpec) -> dict[str, int]:
    """Return how many bytes the columns of the table of exact vectors have."""
    widths = {name: 4 * space.length for name, space in spec.spaces.items()}
    for i, (shape, dtype) in enumerate(spec.features.values()):
        widths[f"feature_{i:d}"] = np.dtype(dtype).itemsize * math.prod(shape)
    return widths


def _verify_points(view: PostgresView) -> tuple[str, str, list[str]]:
    wrong, n = [], 0
    sql = (
        f"SELECT s.id, s.size, b.points, b.weights, b.checksum FROM {view.tables.sets} s"
        f" JOIN {view.tables.bodies} b USING (body)"
    )
    for lines in view.blocks(sql, n=512):
        n += len(lines)
        for name, size, points, weights, checksum in lines:
            if codec.checksum_of(points, weights) != checksum or len(points) != size * 4 * view.spec.dim:
                wrong.append(name)
    names = ", ".join(map(repr, wrong[:MAX_LISTED]))
    return "points", f"{n} sets", [f"the points of {len(wrong)} sets are damaged: {names}"] if wrong else []


def _verify_fields(view: PostgresView) -> tuple[str, str, list[str]]:
    wrong, n = [], 0
    for lines in view.blocks(f"SELECT id, metadata, fields::text FROM {view.tables.sets}"):
        n += len(lines)
        for name, text, fields in lines:
            try:
                expected = json.loads(fields_json(checked_metadata(parse_metadata(text), "metadata")))
            except ValueError:
                expected = None
            if expected is None or not _same(expected, json.loads(fields)):
                wrong.append(name)
    names = ", ".join(map(repr, wrong[:MAX_LISTED]))
    problem = f"filters see other metadata of {len(wrong)} sets than they have: {names}"
    return "metadata", f"{n} sets", [problem] if wrong else []


def _same(one: object, other: object) -> bool:
    """Return whether two JSON values are the same, where numbers may be written in another way."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or float(one) == float(other)
    return one == other
