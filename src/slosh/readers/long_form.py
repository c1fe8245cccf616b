"""Tables in long form, one row an element: the rows of one id become a set, in the order in which ids first appear.

Where the rows of each set lie together, a file is read once for the ids and once for the rest, a piece at a time. Where
they do not, all features of the file are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.checks import Array
from ..data.text import format_bytes
from ..errors import ReaderError
from .files import File, Options, Piece, free_memory, metadata_rows, reading, to_builtin, to_ids

if TYPE_CHECKING:
    from .tables import Table

ROWS_AT_ONCE = 1 << 16
"""Rows of a record batch."""


def read_long(table: Table, options: Options, named: str) -> Iterator[Piece]:
    """Read the rows that have the same value in the column `named` as one set."""
    names, file = table.schema.names, table.file
    weights = options.weights if isinstance(options.weights, str) else None
    for name in (named, weights, *(options.columns or [])):
        if name is not None and name not in names:
            raise file.error(f"no column {name!r}", f"the columns are {names!r:.300}", column=name)
    numeric = [field.name for field in table.schema if _is_number(field.type)]
    features = options.columns or [name for name in numeric if name not in (named, weights)]
    if not features:
        what = "no numeric columns are left for the features"
        raise file.error(what, f"name them with columns=; there are {names!r:.200}", argument="columns")
    for name in (*features, *([weights] if weights else [])):
        if name == named or name not in numeric:
            kind = "the ids" if name == named else f"of type {table.schema.field(name).type}"
            raise file.error(f"column {name!r} is {kind}, not numbers", "leave it out", column=name)
    constant = [
        field.name
        for field in table.schema
        if field.name not in (named, weights, *features) and (_is_text(field.type) or field.name in numeric)
    ]
    return _pieces(table, named, features, weights, constant)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_boolean(inner))


def _pieces(table: Table, named: str, features: list[str], weights: str | None, constant: list[str]) -> Iterator[Piece]:
    columns = [named, *features, *([weights] if weights else []), *constant]
    with reading(table.file, table.what):
        for start, rows_of_sets in _whole_sets(table, named, columns):
            if len(rows_of_sets):
                yield _piece(table.file, rows_of_sets, start, named, features, weights, constant)


def _whole_sets(table: Table, named: str, columns: list[str]) -> Iterator[tuple[int, Any]]:
    """Yield tables that hold whole sets, each with the number of its first row in the file."""
    import pyarrow as pa

    waiting: list[Any] = []
    last: Any = None
    start = here = 0
    together, total = _lie_together(table, named)
    if not together:
        _check_room(table.file, table.schema, columns, total)
    for batch in table.batches(columns, ROWS_AT_ONCE):
        if together and len(batch):
            starts = _run_starts(batch.column(named), last)
            last = batch.column(named)[len(batch) - 1].as_py()
            if len(starts):  # the last set of the batch may go on
                cut = int(starts[-1])
                yield start, pa.Table.from_batches([*waiting, batch.slice(0, cut)])
                start, waiting = here + cut, [batch.slice(cut)]
            else:
                waiting.append(batch)
        else:
            waiting.append(batch)
        here += len(batch)
    if waiting:
        yield start, pa.Table.from_batches(waiting)


def _lie_together(table: Table, named: str) -> tuple[bool, int]:
    """Return whether each id has its rows in one run, and the number of rows."""
    seen: set[Any] = set()
    last: Any = None
    total, together = 0, True
    for batch in table.batches([named], ROWS_AT_ONCE):
        total += len(batch)
        if not together or not len(batch):
            continue
        column = batch.column(0)
        if column.null_count:
            row = total - len(batch) + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise _missing(table.file, row, named, "every row needs an id")
        starts = _run_starts(column, last)
        ids = column.take(_indices(starts)).to_pylist()
        last = column[len(column) - 1].as_py()
        if len(set(ids)) < len(ids) or not seen.isdisjoint(ids):
            together = False
        seen.update(ids)
    return together, total


def _indices(values: Array) -> Any:
    import pyarrow as pa

    return pa.array(values)


def _run_starts(column: Any, last: Any) -> Array:
    """Return the rows of a column where another value begins; row 0 too, unless it goes on with `last`."""
    codes = _codes(column)
    changed = np.flatnonzero(np.diff(codes)) + 1
    return changed if column[0].as_py() == last else np.concatenate(([0], changed))


def _codes(column: Any) -> Array:
    """Return a whole number for each row, the same for the same value; -1 where it is missing."""
    import pyarrow as pa

    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    encoded = chunk.dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _check_room(file: File, schema: Any, columns: list[str], total: int) -> None:
    """Refuse to hold a whole table in memory if there is no room for it."""
    # A number is in the table, in the matrix of its file (8 bytes each) and in the batch (4).
    size = total * sum(20 if _is_number(schema.field(name).type) else 8 for name in columns)
    if size > free_memory():
        what = f"the rows of a set do not lie together, so all must be in memory, {format_bytes(size)}"
        raise file.error(what, f"sort the file by {columns[0]!r} first")


def _missing(file: File, row: int, column: str, remedy: str) -> ReaderError:
    return file.error(f"row {row} of column {column!r} is missing", remedy, row=row, column=column)


def _piece(
    file: File, table: Any, start: int, named: str, features: list[str], weights: str | None, constant: list[str]
) -> Piece:
    codes = _codes(table.column(named))  # numbered in the order in which they appear
    if (missing := codes < 0).any():
        raise _missing(file, start + int(missing.argmax()), named, "every row needs an id")
    order: Any = slice(None)
    if np.any(np.diff(codes) < 0):
        order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = np.arange(len(codes))[order][starts]
    numbers = [_numbers(file, table, name, start)[order] for name in features]
    points = np.empty((len(codes), len(features)), np.result_type(*numbers))
    for k, values in enumerate(numbers):
        points[:, k] = values
    ids = to_ids(file, f"column {named!r}", table.column(named).take(_indices(first)).to_pylist(), start + first)
    metadata: dict[str, list[Any]] = {}
    for name in constant:
        values = _codes(table.column(name))[order]
        same = np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)
        taken = table.column(name).take(_indices(first)).to_pylist()
        metadata[name] = [to_builtin(value) if kept else None for value, kept in zip(taken, same, strict=True)]
    flat = None if weights is None else _numbers(file, table, weights, start)[order]
    return Piece(file, points, sizes, flat, ids, metadata_rows(file, metadata, len(ids)))


def _numbers(file: File, table: Any, name: str, start: int) -> Array:
    column = table.column(name)
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy()))
        raise _missing(file, row, name, "drop the row, or put a value in its place")
    return np.asarray(column.to_numpy())
