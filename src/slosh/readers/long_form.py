"""Tables in long form, one row an element: the rows of one id become a set, in the order in which ids first appear.

Where the rows of each set lie together, a file is read once for the ids and once for the rest, a piece at a time. Where
they do not, all features of the file are in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.convert import columns_to_points
from ..data.text import format_bytes
from ..native.arrays import Array
from .files import File, Options, Piece, free_memory, metadata_rows, single_values, to_ids

ROWS_AT_ONCE = 1 << 16
"""Rows of a record batch."""


class Table(NamedTuple):
    """A file as a schema and a way to go through record batches of some columns, as often as needed.

    `n_values` is the number of values that the file claims for a column, 0 if it says nothing.
    """

    file: File
    schema: Any
    batches: Callable[[list[str], int], Iterator[Any]]
    n_values: Callable[[str], int] = lambda _: 0
    n_rows: int = 1


class _Columns(NamedTuple):
    """The columns of the ids, of the features and of the weights, and those that may be metadata."""

    ids: str
    features: list[str]
    weights: str | None
    others: list[str]

    @property
    def all(self) -> list[str]:
        return [self.ids, *self.features, *([self.weights] if self.weights else []), *self.others]


def read_long(table: Table, options: Options, named: str) -> Iterator[Piece]:
    """Read the rows that have the same value in the column `named` as one set."""
    names, file, weights = table.schema.names, table.file, options.weights_name
    file.check_names("column", [named, weights, *(options.columns or [])], names)
    numeric = {field.name: None for field in table.schema if is_number(field.type)}  # a dict: there may be many
    features = options.columns or [name for name in numeric if name not in (named, weights)]
    if not features:
        what = "no numeric columns are left for the features"
        raise file.error(what, f"name them with columns=; there are {names!r:.200}", argument="columns")
    for name in (*features, *([weights] if weights else [])):
        if name == named or name not in numeric:
            kind = "the ids" if name == named else f"of type {table.schema.field(name).type}"
            raise file.error(f"column {name!r} is {kind}, not numbers", "leave it out", column=name)
    file.check_expansion("the table", 4 * sum(map(table.n_values, features)))
    used = {named, weights, *features}
    others = [x.name for x in table.schema if x.name not in used and (_is_text(x.type) or x.name in numeric)]
    return _pieces(table, _Columns(named, features, weights, others))


def is_number(kind: Any) -> bool:
    """Return whether values of this type of Arrow are numbers."""
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_boolean(inner))


def _pieces(table: Table, columns: _Columns) -> Iterator[Piece]:
    """Yield pieces that hold whole sets."""
    import pyarrow as pa

    together, total = _lie_together(table, columns.ids)
    if not together:
        _check_room(table, columns, total)
    waiting: list[Any] = []
    last: Any = None
    start = here = 0
    for batch in table.batches(columns.all, ROWS_AT_ONCE):
        cut = 0
        if together and len(batch):
            starts = _run_starts(batch.column(columns.ids), last)
            last = batch.column(columns.ids)[len(batch) - 1].as_py()
            if len(starts):  # the last set of the batch may go on
                cut = int(starts[-1])
                if start < here + cut:
                    yield _piece(table.file, pa.Table.from_batches([*waiting, batch.slice(0, cut)]), start, columns)
                start, waiting = here + cut, []
        waiting.append(batch.slice(cut))
        here += len(batch)
    if start < here:
        yield _piece(table.file, pa.Table.from_batches(waiting), start, columns)


def _lie_together(table: Table, named: str) -> tuple[bool, int]:
    """Return whether each id has its rows in one run, and the number of rows."""
    import pyarrow as pa

    seen: set[Any] = set()
    last: Any = None
    total, together = 0, True
    for batch in table.batches([named], ROWS_AT_ONCE):
        if together and len(batch):
            column = batch.column(0)
            _refuse_missing(table.file, column, total, named, "every row needs an id")
            ids = column.take(pa.array(_run_starts(column, last))).to_pylist()
            last = column[len(column) - 1].as_py()
            together = len(set(ids)) == len(ids) and seen.isdisjoint(ids)
            seen.update(ids)
        total += len(batch)
    return together, total


def _run_starts(column: Any, last: Any) -> Array:
    """Return the rows of a column where another value begins; row 0 too, unless it goes on with `last`."""
    changed = np.flatnonzero(np.diff(_codes(column))) + 1
    return changed if column[0].as_py() == last else np.concatenate(([0], changed))


def _codes(column: Any) -> Array:
    """Return a whole number for each row, the same for the same value; -1 where it is missing."""
    import pyarrow as pa

    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    encoded = chunk.dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _check_room(table: Table, columns: _Columns, total: int) -> None:
    """Refuse to hold a whole table in memory if there is no room for it."""
    # A number is in the table, in the matrix of its file (8 bytes each) and in the batch (4).
    size = total * sum(20 if is_number(table.schema.field(name).type) else 8 for name in columns.all)
    if size > free_memory():
        what = f"the rows of a set do not lie together, so all must be in memory, {format_bytes(size)}"
        raise table.file.error(what, f"sort the file by {columns.ids!r} first")


def _refuse_missing(file: File, column: Any, start: int, name: str, remedy: str) -> None:
    """Refuse a column with a missing value; its rows count from `start`."""
    if column.null_count:
        row = start + int(np.argmax(np.asarray(column.is_null())))
        raise file.error(f"row {row} of column {name!r} is missing", remedy, row=row, column=name)


def _piece(file: File, table: Any, start: int, columns: _Columns) -> Piece:
    """Return the sets of a table whose first row is row `start` of the file."""
    import pyarrow as pa

    _refuse_missing(file, table.column(columns.ids), start, columns.ids, "every row needs an id")
    codes = _codes(table.column(columns.ids))  # numbered in the order in which they appear
    order: Any = np.argsort(codes, kind="stable") if np.any(np.diff(codes) < 0) else slice(None)
    sizes = np.bincount(codes)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = np.arange(len(codes))[order][starts]

    def numbers(name: str) -> Array:
        column = table.column(name)
        _refuse_missing(file, column, start, name, "drop the row, or put a value in its place")
        return np.asarray(column.to_numpy())

    points = columns_to_points([numbers(name) for name in columns.features], order)
    of_sets = {name: table.column(name).take(pa.array(first)).to_pylist() for name in (columns.ids, *columns.others)}
    ids = to_ids(file, f"column {columns.ids!r}", of_sets.pop(columns.ids), start + first)
    for name, values in of_sets.items():  # metadata, where a set has one value
        of_sets[name] = single_values(_codes(table.column(name))[order], starts, values)
    flat = None if columns.weights is None else numbers(columns.weights)[order]
    return Piece(file, points, sizes, flat, ids, metadata_rows(file, of_sets, len(ids)))
