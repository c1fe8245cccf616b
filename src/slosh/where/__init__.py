"""Metadata and the filters over it.

A filter comes in as a dict or as text and becomes a small tree, which each engine compiles for itself; the metadata of
a set comes in as a dict and becomes JSON and the fields that filters look at.

    {"kind": "chair", "year": {">": 2010, "<=": 2020}}        kind = chair and 2010 < year <= 2020
    {"or": [{"kind": ["chair", "sofa"]}, {"not": {"camera.iso": {"<": 400}}}]}
                                                              kind in (chair, sofa) or not camera.iso < 400

Operators are = != < <= > >=, prefix, in, not in, and exists. Several keys or operators all hold; a list means `in`;
None means that the field is not there. Numbers compare with numbers and strings with strings, by code point; True is 1
and False is 0. A field that holds a list matches if one of its items does, and bounds and prefixes that are given
together hold for the same item. A field exists unless it is None: an empty list exists, and so does a dict, whose parts
are fields with a dot: "camera.iso". `!=` and `not in` are "not =" and "not in": sets without the field match.

Dates and times (`datetime`, numpy.datetime64, pandas.Timestamp) are stored and compared as text of ISO 8601, times in
UTC: "2024-05-31", "2024-05-31T12:30:00+00:00". A time without a time zone is taken to be in UTC.

"@id" is the id of the set: {"@id": {"prefix": "chair-"}}.

In text, a string is quoted unless it is one plain word (a quote inside is doubled), and so is a field: by '"and" = 1' a
field is reached that is called "and", "or", "not" or "@id". Empty text, an empty prefix and an empty "@id" are
refused, and {} or "()" are all sets.
"""

from .columns import FieldColumns, combined, matches
from .metadata import NO_METADATA, NO_VALUE, Metadata, as_json, checked_metadata, fields_of, parse_metadata
from .parse import parse
from .text import parse_number, parse_text
from .tree import ALL, And, Equal, Exists, In, Key, Leaf, Node, Not, Or, Range, Value, any_of, edge, leaves

__all__ = [
    "ALL",
    "NO_METADATA",
    "NO_VALUE",
    "And",
    "Equal",
    "Exists",
    "FieldColumns",
    "In",
    "Key",
    "Leaf",
    "Metadata",
    "Node",
    "Not",
    "Or",
    "Range",
    "Value",
    "any_of",
    "as_json",
    "checked_metadata",
    "combined",
    "edge",
    "fields_of",
    "leaves",
    "matches",
    "parse",
    "parse_metadata",
    "parse_number",
    "parse_text",
]
