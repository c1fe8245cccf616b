"""Filters to SQL: a tree comes in; a condition on the columns `id` and `fields`, and its parameters, go out.

`fields` is a JSON object: for every field the list of its values (`fields_json`). Values are parameters, without
exception. `slosh.where.FieldColumns` is its twin in plain Python. PostgreSQL compares strings in JSON paths by code
point, as Python does, whatever the collation of the database is. It cannot store the character NUL: it is written as
two others, so that the order of all strings stays what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ...errors import InputError
from ...where import And, Equal, Exists, In, Metadata, Node, Not, Or, Range, Value

MAX_PARAMETERS = 60_000
"""PostgreSQL takes 65,535."""
SINGLE_VALUES = 32
"""Values of an `in` that are looked up in the GIN index, each by itself; more are compared with the values of a row."""
OPERATORS = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}
PATHS = {
    (low, high): "$[*] ? (" + " && ".join([f"@ {low} $low"] * bool(low) + [f"@ {high} $high"] * bool(high)) + ")"
    for low in ("", ">", ">=")
    for high in ("", "<", "<=")
    if low or high
}


def fields_json(metadata: Metadata) -> str:
    """Return what filters look at in the metadata of a set, as JSON: {field: [values]}.

    A field that has others within it is there with no value of its own, so that it exists.
    """
    if not metadata.fields:
        return "{}"
    found: dict[str, list[Any]] = {}
    for key, value in metadata.fields:
        name = escaped(key)
        values = found.setdefault(name, [])
        if not isinstance(value, bytes):
            values.append(plain(value))
        at = name.find(".")
        while at >= 0:
            found.setdefault(name[:at], [])
            at = name.find(".", at + 1)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def plain(value: Value) -> Value:
    """Return a value as JSON has it: equal numbers are the same number, and compare as in Python."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def escaped(text: str) -> str:
    """Return a text without NUL, in an order with others that is the same as before."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def compile_filter(node: Node) -> tuple[str, list[Any]]:
    """Return a condition and its parameters.

    >>> from slosh.where import parse
    >>> compile_filter(parse({"kind": "chair"}))
    ('fields @> %s::jsonb', ['{"kind": ["chair"]}'])
    """
    parameters: list[Any] = []
    sql = _compiled(node, parameters)
    if len(parameters) > MAX_PARAMETERS:
        raise InputError(
            f"where has {len(parameters):,} parameters, and PostgreSQL takes {MAX_PARAMETERS:,}",
            "give the values of one field as one list, which may have any length, or ask in several steps",
            argument="where",
        )
    return sql, parameters


def _compiled(node: Node, parameters: list[Any]) -> str:
    if isinstance(node, And | Or):
        parts = [_compiled(part, parameters) for part in node.parts]
        if not parts:
            return "TRUE" if isinstance(node, And) else "FALSE"
        return "(" + (" AND " if isinstance(node, And) else " OR ").join(parts) + ")"
    if isinstance(node, Not):
        return f"NOT {_compiled(node.part, parameters)}"
    if isinstance(node, Exists):
        parameters.append(escaped(node.key))
        return "fields ? %s"
    if isinstance(node, Range):
        return _id_range(node, parameters) if node.key is None else _range(node, parameters)
    assert isinstance(node, Equal | In)
    values = [node.value] if isinstance(node, Equal) else list(node.values)
    return _id_in(values, parameters) if node.key is None else _in(node.key, values, parameters)


def _in(key: str, values: list[Value], parameters: list[Any]) -> str:
    name = escaped(key)
    if len(values) <= SINGLE_VALUES:
        parameters += [json.dumps({name: [plain(value)]}, ensure_ascii=False) for value in values]
        each = " OR ".join(["fields @> %s::jsonb"] * len(values)) or "FALSE"
        return f"({each})" if len(values) > 1 else each
    parameters += [name, [json.dumps(plain(value), ensure_ascii=False) for value in values]]
    return "EXISTS (SELECT FROM jsonb_array_elements(fields -> %s) AS e(v) WHERE v = ANY (%s::text[]::jsonb[]))"


def _range(node: Range, parameters: list[Any]) -> str:
    assert node.key is not None
    (low, at_least), (high, at_most) = (bound or ("", None) for bound in (node.low, node.high))
    bounds = {name: plain(v) for name, v in (("low", at_least), ("high", at_most)) if v is not None}
    parameters += [escaped(node.key), PATHS[low, high], json.dumps(bounds, ensure_ascii=False)]
    return "coalesce(jsonb_path_exists(fields -> %s, %s::jsonpath, %s::jsonb, true), FALSE)"


def _id_in(values: Iterable[Value], parameters: list[Any]) -> str:
    names = [value for value in values if isinstance(value, str) and "\0" not in value]
    if not names:
        return "FALSE"
    parameters.append(names)
    return "id = ANY (%s::text[])"


def _id_range(node: Range, parameters: list[Any]) -> str:
    if not node.is_text:
        return "FALSE"
    parts = []
    for operator, value in node.bounds:
        text, nul, _ = str(value).partition("\0")
        if nul:  # no id has one: what comes before the NUL decides
            operator = ">" if operator[0] == ">" else "<="
        parameters.append(text)
        parts.append(f"id {OPERATORS[operator]} %s")
    return "(" + " AND ".join(parts) + ")"
