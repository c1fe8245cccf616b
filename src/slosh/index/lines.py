"""What `SetIndex.describe` returns of stored sets: a list that may end where it would take too much memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..data.text import utf8_bytes
from ..engines.base import Description, Int64, Lines, View

READ_TOGETHER = 1024
"""Lines that are read at a time, where their bytes are counted."""


def lines_of(view: View, keys: Int64, max_bytes: int | None) -> Lines:
    """Return ids, sizes and metadata of keys, up to the first one with which ids and metadata take more bytes."""
    described = view.describe(keys) if max_bytes is None else list(_first(_read(view, keys), max_bytes))
    sizes = view.sizes(keys[: len(described)])
    return Lines([each.id for each in described], sizes, [each.metadata for each in described])


def first_lines(lines: Lines, max_bytes: int | None) -> Lines:
    """Return lines up to the first one with which ids and metadata take more bytes."""
    if max_bytes is None:
        return lines
    n = sum(1 for _ in _first(map(Description, lines.ids, lines.metadata_json), max_bytes))
    return Lines(lines.ids[:n], lines.sizes[:n], lines.metadata_json[:n])


def _read(view: View, keys: Int64) -> Iterator[Description]:
    for first in range(0, len(keys), READ_TOGETHER):
        yield from view.describe(keys[first : first + READ_TOGETHER])


def _first(described: Iterable[Description], max_bytes: int) -> Iterator[Description]:
    n_bytes = 0
    for i, each in enumerate(described):
        n_bytes += utf8_bytes(each.id) + utf8_bytes(each.metadata)
        if i and n_bytes > max_bytes:
            return
        yield each
