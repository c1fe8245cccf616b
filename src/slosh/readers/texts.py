"""Texts in columns of Arrow: which columns hold them, and how many bytes they take where one is written out many times.

A dictionary, or the pages of a Parquet file, hold a text once for all its rows: a small file may so refer to more text
than fits into the memory.
"""

from __future__ import annotations

from typing import Any

from .files import File


def is_text(kind: Any) -> bool:
    """Return whether values of this type of Arrow are texts or bytes of any length."""
    from pyarrow import types as t

    tests = (t.is_string, t.is_large_string, t.is_string_view, t.is_binary, t.is_large_binary, t.is_binary_view)
    return any(is_kind(kind) for is_kind in tests)


def text_bytes(column: Any) -> int:
    """Return how many bytes the texts of a column take if each row has its own; 0 if they are no texts."""
    from pyarrow import compute, types

    is_dictionary = types.is_dictionary(column.type)
    lengths = _lengths(column.dictionary if is_dictionary else column)
    if lengths is None:
        return 0
    return compute.sum(lengths.take(column.indices) if is_dictionary else lengths).as_py() or 0


def longest_text(column: Any) -> int:
    """Return how many bytes the longest text of a column takes; 0 if it has none."""
    from pyarrow import compute

    lengths = _lengths(column)
    return 0 if lengths is None else compute.max(lengths).as_py() or 0


def _lengths(column: Any) -> Any:
    from pyarrow import compute, types

    if not is_text(column.type):
        return None
    if types.is_string_view(column.type) or types.is_binary_view(column.type):
        column = column.cast("large_binary")  # views have no lengths of their own
    return compute.cast(compute.binary_length(column), "int64")


class TextCount:
    """Count the texts that are taken from a file; refuse those that are out of proportion to it."""

    def __init__(self, file: File) -> None:
        self._file, self._size = file, 0

    def add(self, *columns: Any) -> None:
        self._size += sum(map(text_bytes, columns))
        self._file.check_expansion("the text of the table", self._size)
