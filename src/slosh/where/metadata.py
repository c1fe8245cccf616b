"""The metadata of a set: a dict comes in and goes out checked, as JSON and as the fields that filters look at.

Each value is checked here, those of filters too.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..data.checks import kind_of
from ..data.dates import date_text
from ..errors import InputError
from .tree import Value

MAX_DEPTH = 100
"""Filters and metadata may be nested this deep."""
INT64_END = 1 << 63
"""Whole numbers from -INT64_END to INT64_END - 1 fit into 64 bits."""

NO_VALUE = b""
"""The value of a field that is a list or a dict without values: it exists, and is equal to nothing."""

_ALLOWED = "give a string, a finite number of at most 64 bits, true or false, or a date"
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=lambda x: x.item() if (date := date_text(x)) is None else date
)
Field: TypeAlias = tuple[str, Value | bytes]


class Metadata(NamedTuple):
    """Checked metadata of one set: compact JSON, and the (key, value) pairs that filters look at."""

    json: str
    fields: list[Field]


NO_METADATA = Metadata("{}", [])


def checked_metadata(metadata: Any, place: str) -> Metadata:
    """Return the metadata of one set, a dict or None, in the form in which engines store it."""
    if metadata is None or metadata == {}:
        return NO_METADATA
    fields = fields_of(metadata, place)
    return Metadata(as_json(metadata), fields)


def parse_metadata(text: str) -> dict[str, Any]:
    """Return stored metadata as a dict; ValueError if the text is something else, whoever has written it."""
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"metadata {text!r:.60} are not a JSON object")
    return found


def fields_of(metadata: Any, where: str) -> list[Field]:
    """Return the (key, value) pairs that filters look at in one set's metadata; errors start with `where`.

    Every string, number, boolean and date is a pair, and so is every item of a list that is one of these; the keys of a
    nested dict are joined with dots. None is no pair, and neither are lists and dicts inside of a list. A list or a
    dict that would be no pair is one with `NO_VALUE`. No pair comes twice; 1, 1.0 and True are the same.

    >>> fields_of({"kind": "chair", "tags": ["red", "old"], "camera": {"iso": 100}, "by": None, "x": []}, "metadata")
    [('kind', 'chair'), ('tags', 'red'), ('tags', 'old'), ('camera.iso', 100), ('x', b'')]
    """
    if not isinstance(metadata, dict):
        raise InputError(f"{where} is {kind_of(metadata)}", "give a dict with strings as keys", argument="metadata")
    lines: list[Field] = []
    simple = True
    for key, value in metadata.items():
        kind = type(value)
        # What nearly all metadata is, in few steps: 60,000 sets of two keys take 30 ms.
        if (
            type(key) is str
            and key.isascii()
            and (
                (kind is str and value.isascii())
                or (kind is int and -INT64_END <= value < INT64_END)
                or (kind is float and value - value == 0)
                or kind is bool
            )
        ):
            lines.append((key, value))
        else:
            simple = False
            _add_lines(checked_key(key, where), value, where, lines, 0)
    return lines if simple else list(dict.fromkeys(lines))


def _add_lines(key: str, value: Any, where: str, lines: list[Field], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InputError(
            f"{where}: key {key!r:.60} is nested more than {MAX_DEPTH} deep, or holds itself",
            "make it flatter",
            argument="metadata",
        )
    before = len(lines)
    if isinstance(value, dict):
        for name, inner in value.items():
            _add_lines(f"{key}.{checked_key(name, where)}", inner, where, lines, depth + 1)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            if isinstance(item, dict | list | tuple):
                _add_lines(key, item, where, [], depth + 1)  # checked, but without lines
            elif item is not None:
                lines.append((key, checked(item, f"{where}: key {key!r}, item {i},")))
    elif value is not None:
        lines.append((key, checked(value, f"{where}: key {key!r}")))
    if len(lines) == before and value is not None:
        lines.append((key, NO_VALUE))


def as_json(metadata: dict[str, Any]) -> str:
    """Return metadata that `fields_of` has checked as compact JSON: NumPy's scalars as numbers, dates as text.

    >>> as_json({"kind": "Stühle", "year": np.int64(2015), "tags": ("red", None)})
    '{"kind":"Stühle","year":2015,"tags":["red",null]}'
    """
    return _ENCODER.encode(metadata)


def checked_key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise InputError(f"{place}: the key {key!r:.60} is {kind_of(key)}", "keys are strings, so pass str(key)")
    return str(checked(key, f"{place}: the key {key!r:.60}"))


def checked(value: Any, place: str) -> Value:
    """Return a plain string, number or boolean, and a date as text; refuse anything else."""
    if isinstance(value, np.generic) and value.dtype.kind in "iufb":
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{place} has half of a surrogate pair at character {error.start}, which no file can hold",
                "decode the text with the encoding it was written in",
            ) from None
        return str.__str__(value)
    if isinstance(value, int):
        if not -INT64_END <= value < INT64_END:
            raise InputError(f"{place} is a whole number beyond 64 bits", "give it as a string, or as a float")
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if (date := date_text(value)) is not None:
        return date
    found = f"{value!r:.60}" if isinstance(value, float) else kind_of(value)
    raise InputError(f"{place} is {found}", _ALLOWED + ", e.g. by x.tolist()" * isinstance(value, np.ndarray))


def filter_value(value: Any, place: str) -> Value:
    """Return a value of a filter in one form, so that equal filters are the same text."""
    value = checked(value, place)
    return int(value) if isinstance(value, bool) or (isinstance(value, float) and _is_int64(value)) else value


def _is_int64(value: float) -> bool:
    return value.is_integer() and -INT64_END <= value < INT64_END
