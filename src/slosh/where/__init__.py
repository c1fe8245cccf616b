"""Metadata and the filters over it.

A filter comes in as a dict or as text and becomes a small tree, which each engine compiles for itself; the metadata of
a set comes in as a dict and becomes JSON and the fields that filters look at.

    {"kind": "chair", "year": {">": 2010, "<=": 2020}}        kind = chair and 2010 < year <= 2020
    {"or": [{"kind": ["chair", "sofa"]}, {"not": {"camera.iso": {"<": 400}}}]}
                                                              kind in (chair, sofa) or not camera.iso < 400

Operators are = != < <= > >=, in, not in, and exists. Several keys or operators all hold; a list means `in`; None means
that the field is not there. Numbers compare with numbers and strings with strings, by code point; True is 1 and False
is 0. A field that holds a list matches if one of its items does, and bounds that are given together hold for the same
item. A field that holds a dict exists, and its parts are fields with a dot: "camera.iso". An empty dict or list is as
if it were not there, and so is a list of dicts. `!=` and `not in` are "not =" and "not in": sets without the field
match. In text, a string is quoted unless it is one plain word (a quote inside is doubled), and so is a field: by '"and"
= 1' a field is reached that is called "and", "or" or "not".
"""

from .columns import FieldColumns, matches
from .metadata import NO_METADATA, Metadata, as_json, checked_metadata, fields_of, parse_metadata
from .parse import parse
from .text import parse_text
from .tree import ALL, And, Equal, Exists, In, Node, Not, Or, Range, Value

__all__ = [
    "ALL",
    "NO_METADATA",
    "And",
    "Equal",
    "Exists",
    "FieldColumns",
    "In",
    "Metadata",
    "Node",
    "Not",
    "Or",
    "Range",
    "Value",
    "as_json",
    "checked_metadata",
    "fields_of",
    "matches",
    "parse",
    "parse_metadata",
    "parse_text",
]
