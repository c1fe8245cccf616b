"""Errors of the decoder in words for people: what is wrong, where in the request, and what to give instead.

msgspec says it in sentences of its own, without fields. They are read here, and nowhere else; one that is not known is
passed on as it is.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ..errors import InputError

TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
NO_JSON = (b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf")


def input_error(
    error: msgspec.ValidationError, kind: Any, place: str, written: Mapping[str, str] | None = None
) -> InputError:
    """Return the error of a value that does not fit a type; `place` is what it stands in, for values without a name.

    `written` are the values of a query string, which are all texts: an error shows what they say, not what they are.
    """
    message, _, path = str(error).partition(" - at `")
    path = path.rstrip("`").removeprefix("$").lstrip(".")
    name = re.match(r"\w*", path)
    first, shown = name[0] if name else "", f"{place}{path}" if path.startswith("[") else path or place
    hint = get_type_hints(kind, include_extras=True).get(first) if isinstance(kind, type) else None
    if found := re.fullmatch(r"Object missing required field `(.+)`", message):
        return InputError(f"{found[1]} is missing", f"give it in {shown}", argument=found[1])
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", message):
        known = ", ".join(getattr(kind, "__struct_encode_fields__", ())) if not path else ""
        remedy = f"it has {known}" if known else "leave it out"
        return InputError(f"{shown} has no field {found[1]!r:.60}", remedy, argument=found[1][:60])
    argument = first or place
    if found := re.fullmatch(r"Invalid (?:enum )?value (.*)", message, re.DOTALL):
        choices = ", ".join(repr(each) for each in _choices(hint))
        return InputError(f"{shown}={found[1]:.60}", f"give one of {choices}" if choices else "", argument=argument)
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", message):
        if written and first in written:
            return InputError(f"{shown}={written[first]!r:.60}", f"give {_named(found[1])}", argument=argument)
        kinds = found[1].split(" | ")
        is_decimal = found[2] == "float" and "int" in kinds and "float" not in kinds  # a whole number is a number, too
        given = "a decimal number" if is_decimal else _named(found[2])
        return InputError(f"{shown} is {given}", f"give {_named(found[1])}", argument=argument)
    if found := re.fullmatch(r"Expected `(.+)` (of length )?(>=|<=|>|<) (\S+)", message):
        unit = "characters" if found[1] == "str" else "elements"
        what = f"{_named(found[1])} of {BOUNDS[found[3]]} {found[4]} {unit}" if found[2] else None
        what = what or f"{_named(found[1])}, {BOUNDS[found[3]]} {found[4].removesuffix('.0')}"
        size = "too short" if found[3][0] == ">" else "too long"
        problem = f"{shown} is {size if found[2] else 'out of range'}"
        return InputError(problem, f"give {what}", argument=argument)
    if message == "Number out of range":
        return InputError(f"{shown} is too large", "give a number of at most 1.8e308", argument=argument)
    if message == "Integer value out of range":
        return InputError(f"{shown} has too many digits", "give a smaller number, or a text", argument=argument)
    if message.startswith("Expected `str` matching regex"):
        described = next((each.description for each in _metas(hint) if each.description), None)
        return InputError(f"{shown} has another form", f"give {described or 'another'}", argument=argument)
    return InputError(f"{shown}: {message}", argument=argument)


def json_error(error: Exception, body: bytes) -> InputError:
    """Return the error of a body that is no JSON."""
    found = re.search(r"\(byte (\d+)\)", str(error))
    at = body[int(found[1]) :] if found else b""
    problem = f"the body is not valid JSON, at byte {found[1]}" if found else "the body is not valid JSON"
    # The decoder stops at the letter that no other word begins with.
    rest = body[max(0, int(found[1]) - 1) :] if found else b""
    if any(at.startswith(word) or rest.startswith(word) for word in NO_JSON):
        return InputError(
            f"{problem}: NaN and Infinity are not numbers of JSON", "give finite numbers", argument="body"
        )
    if not body.strip():
        return InputError("the body is empty", "send a JSON object", argument="body")
    return InputError(problem, "send a JSON object", argument="body")


def _named(kinds: str) -> str:
    """Return types as msgspec writes them, as words."""
    return " or ".join(TYPES.get(each, each) for each in kinds.split(" | "))


def _parts(hint: Any) -> Iterator[Any]:
    """Yield a type and all that it is made of."""
    yield hint
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        for each in get_args(hint):
            yield from _parts(each)


def _choices(hint: Any) -> list[Any]:
    return [value for each in _parts(hint) if get_origin(each) is Literal for value in get_args(each)]


def _metas(hint: Any) -> list[msgspec.Meta]:
    return [each for each in _parts(hint) if isinstance(each, msgspec.Meta)]
