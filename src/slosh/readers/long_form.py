"""Tables in long form, one row an element: the rows of one id become a set, in the order in which ids first appear.

Where the rows of each set lie together, a file is read once for the ids and once for the rest, a piece at a time. Where
they do not, all features of the file are in memory at once. Of the ids and the texts of a set that spans batches, one
value of each is kept, not one a row: a small file may refer to a long text millions of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.convert import columns_to_points
from ..data.text import format_bytes
from ..errors import ReaderError
from ..native.arrays import Array
from .files import (
    MAX_BATCH_VALUES,
    File,
    Options,
    Piece,
    check_points,
    free_memory,
    metadata_rows,
    single_values,
    to_ids,
)
from .texts import TextCount, text_bytes

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
        return [self.ids, *self.numbers, *self.others]

    @property
    def numbers(self) -> list[str]:
        return [*self.features, *([self.weights] if self.weights else [])]


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
    return _pieces(table, _Columns(named, features, weights, others), options)


def is_number(kind: Any) -> bool:
    """Return whether values of this type of Arrow are numbers."""
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_boolean(inner))


def _pieces(table: Table, columns: _Columns, options: Options) -> Iterator[Piece]:
    """Yield pieces that hold whole sets."""
    at_once = max(1, min(ROWS_AT_ONCE, MAX_BATCH_VALUES // len(columns.all)))
    together, total = _lie_together(table, columns.ids)
    if not together:
        _check_room(table, columns, total)
    texts, waiting = TextCount(table.file), _Waiting(table.file, columns, together)
    last: Any = None
    start = here = done = 0
    for batch in table.batches(columns.all, at_once):
        if not len(batch):
            continue
        cut = 0
        if together:
            starts = _run_starts(batch.column(columns.ids), last)
            last = batch.column(columns.ids)[len(batch) - 1].as_py()
            if len(starts):  # the last set of the batch may go on
                cut = int(starts[-1])
                if start < here + cut:
                    piece = _piece(table.file, waiting.take(batch.slice(0, cut)), start, columns, texts)
                    done += len(piece.ids)
                    yield piece
                start = here + cut
        waiting.add(batch.slice(cut), done)
        here += len(batch)
        if together:
            check_points(table.file, done, [here - start], options)
    if start < here:
        yield _piece(table.file, waiting.take(), start, columns, texts)


class _Encoded(NamedTuple):
    """A column as a code for each row, the same for the same value, and the values: value i has the code i.

    Codes are in the order in which the values appear, and -1 where a row has none.
    """

    codes: Array
    values: Any

    def of_one_set(self) -> _Encoded:
        """Return the column of rows that are all of one set. Its values matter only if there is a single one."""
        import pyarrow as pa

        is_single = len(self.values) == 1 and bool(np.all(self.codes == 0))
        values = self.values if is_single else self.values.take(pa.array([], pa.int64()))  # a slice would keep them all
        return _Encoded(np.broadcast_to(np.int8(0 if is_single else -1), len(self.codes)), values)


class _Rows(NamedTuple):
    """Some rows: features and weights as they are, the other columns as codes."""

    numbers: dict[str, Any]
    encoded: dict[str, _Encoded]


class _Waiting:
    """The rows of sets that are not complete yet. No text is in memory more than once in a batch.

    Where the rows of a set lie together, all that wait are of one set: then one text, at most, is kept of a column.
    """

    def __init__(self, file: File, columns: _Columns, together: bool) -> None:
        self._file, self._columns, self._together = file, columns, together
        self._rows: list[_Rows] = []
        self._size = 0

    def add(self, batch: Any, number: int) -> None:
        """Keep rows, those of set `number` where they lie together."""
        rows = self._encode(batch)
        if self._together:
            rows = rows._replace(encoded={name: column.of_one_set() for name, column in rows.encoded.items()})
        features = [rows.numbers[name].type for name in self._columns.features]
        self._size += len(batch) * sum(min(4, kind.bit_width // 8) for kind in features)
        for column in rows.encoded.values():
            self._size += text_bytes(column.values) + (0 if self._together else int(column.codes.nbytes))
        self._file.check_expansion(f"set {number}" if self._together else "the table", self._size)
        self._rows.append(rows)

    def take(self, batch: Any = None) -> list[_Rows]:
        """Return what waits, and rows that come after it; then nothing waits."""
        rows, self._rows, self._size = self._rows, [], 0
        return rows if batch is None else [*rows, self._encode(batch)]

    def _encode(self, batch: Any) -> _Rows:
        columns = self._columns
        numbers = {name: batch.column(name) for name in columns.numbers}
        return _Rows(numbers, {name: _encode(batch.column(name)) for name in (columns.ids, *columns.others)})


def _lie_together(table: Table, named: str) -> tuple[bool, int]:
    """Return whether each id has its rows in one run, and the number of rows."""
    import pyarrow as pa

    seen: set[Any] = set()
    texts = TextCount(table.file)
    last: Any = None
    total, together = 0, True
    for batch in table.batches([named], ROWS_AT_ONCE):
        if together and len(batch):
            column = batch.column(0)
            _refuse_missing(table.file, column, total, named, "every row needs an id")
            encoded = _encode(column)
            starts = _run_starts(column, last, encoded.codes)
            together = len(np.unique(encoded.codes[starts])) == len(starts)
            if together:
                first = encoded.values.take(pa.array(encoded.codes[starts]))
                texts.add(first)
                ids = first.to_pylist()
                together = seen.isdisjoint(ids)
                seen.update(ids)
            last = column[len(column) - 1].as_py()
        total += len(batch)
    return together, total


def _run_starts(column: Any, last: Any, codes: Array | None = None) -> Array:
    """Return the rows of a column where another value begins; row 0 too, unless it goes on with `last`."""
    changed = np.flatnonzero(np.diff(_encode(column).codes if codes is None else codes)) + 1
    return changed if column[0].as_py() == last else np.concatenate(([0], changed))


def _encode(column: Any) -> _Encoded:
    """Return a column as codes. A dictionary may have a value twice, and values that no row has."""
    from pyarrow import types

    is_dictionary = types.is_dictionary(column.type)
    encoded = (column.indices if is_dictionary else column).dictionary_encode()
    indices, values = encoded.indices, encoded.dictionary
    if is_dictionary:
        known = column.dictionary.take(values).dictionary_encode()
        indices, values = known.indices.take(indices), known.dictionary
    codes = np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False))
    return _Encoded(codes.astype(np.min_scalar_type(-len(values) - 1), copy=False), values)


def _join_encoded(parts: list[_Encoded]) -> _Encoded:
    """Return the column of several parts, its codes as whole numbers of 64 bits."""
    import pyarrow as pa

    codes, values = [part.codes.astype(np.int64) for part in parts], [part.values for part in parts]
    if len(parts) == 1:
        return _Encoded(codes[0], values[0])
    known = pa.concat_arrays(values).dictionary_encode()
    new_codes = np.append(np.asarray(known.indices), -1)  # that of -1 is -1
    first = 0
    for i, part in enumerate(codes):
        part[part >= 0] += first
        codes[i] = new_codes[part]
        first += len(values[i])
    return _Encoded(np.concatenate(codes), known.dictionary)


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
        raise _missing(file, start + int(np.argmax(np.asarray(column.is_null()))), name, remedy)


def _missing(file: File, row: int, name: str, remedy: str) -> ReaderError:
    return file.error(f"row {row} of column {name!r} is missing", remedy, row=row, column=name)


def _piece(file: File, rows: list[_Rows], start: int, columns: _Columns, texts: TextCount) -> Piece:
    """Return the sets of rows, of which the first is row `start` of the file."""
    import pyarrow as pa

    # The ids are numbered in the order in which they appear.
    codes, names = _join_encoded([part.encoded[columns.ids] for part in rows])
    if codes.min() < 0:
        raise _missing(file, start + int(np.argmax(codes < 0)), columns.ids, "every row needs an id")
    order: Any = np.argsort(codes, kind="stable") if np.any(np.diff(codes) < 0) else slice(None)
    sizes = np.bincount(codes)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = np.arange(len(codes))[order][starts]

    def numbers(name: str) -> Array:
        column = pa.chunked_array([part.numbers[name] for part in rows])
        _refuse_missing(file, column, start, name, "drop the row, or put a value in its place")
        return np.asarray(column.to_numpy())

    points = columns_to_points([numbers(name) for name in columns.features], order)
    texts.add(names)
    ids = to_ids(file, f"column {columns.ids!r}", names.to_pylist(), start + first)
    of_sets = {}
    for name in columns.others:  # metadata, where a set has one value
        codes, values = _join_encoded([part.encoded[name] for part in rows])
        codes = codes[order]
        singles = pa.array(single_values(codes, starts, codes[starts].tolist()), pa.int64())
        kept = pa.DictionaryArray.from_arrays(singles, values)
        texts.add(kept)
        of_sets[name] = kept.to_pylist()
    flat = None if columns.weights is None else numbers(columns.weights)[order]
    return Piece(file, points, sizes, flat, ids, metadata_rows(file, of_sets, len(ids)))
