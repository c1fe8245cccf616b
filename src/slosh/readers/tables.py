"""Tables: Parquet, Arrow and CSV, by pyarrow. One row is one set, with a list column, or one element, in long form.

This module opens the files and reads list columns; `long_form.py` makes sets of rows. A `Table` yields record batches
of some columns; what goes out are pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..data.checks import empty_set, place_of
from ..data.convert import arrow_scalars, arrow_vectors, check_lengths
from ..errors import InputError, ReaderError
from ..native.arrays import Array
from .arrow_messages import FILE_MAGIC, unpacked_sizes
from .files import File, Options, Piece, metadata_rows, to_ids
from .long_form import ROWS_AT_ONCE, Table, is_number, read_long
from .texts import TextCount, is_text, longest_text

BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 20, 1 << 28
"""Of a CSV table, what is parsed at a time: more where lines are long."""
LINES_IN_BLOCK = 8
PARQUET_LIMITS = {"thrift_string_size_limit": 1 << 28, "thrift_container_size_limit": 1 << 24}
BATCH_TEXT_BYTES, PIECE_TEXT_BYTES = 1 << 25, 1 << 28
"""About the most bytes of text in one batch of a Parquet file, 512 a row; and of what is read at once, at worst."""
EXPORT_KEY = b"slosh"
"""The key in the metadata of a schema that marks the export of an index, whose metadata are JSON in one column."""


def read_parquet(file: File, options: Options) -> Iterator[Piece]:
    """Read the row groups of a Parquet file, some rows at a time."""
    from pyarrow import parquet

    with parquet.ParquetFile(file.path, **PARQUET_LIMITS) as table:
        schema, about = table.schema_arrow, table.metadata

    values: Counter[str] = Counter()
    for group in map(about.row_group, range(about.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            values[chunk.path_in_schema.partition(".")[0]] += max(0, chunk.num_values)

    def batches(names: list[str], count: int) -> Iterator[Any]:
        at_once, as_dictionaries = _fit_texts(file, about, schema, names, count)
        with parquet.ParquetFile(file.path, read_dictionary=as_dictionaries, **PARQUET_LIMITS) as table:
            found = table.iter_batches(batch_size=at_once, columns=names)
            yield from found if at_once == count else _joined(found, count)

    return _read_table(Table(file, schema, batches, values.__getitem__, max(1, about.num_rows)), options)


def _fit_texts(file: File, about: Any, schema: Any, names: list[str], count: int) -> tuple[int, list[str]]:
    """Return how many rows of a Parquet file to read together, `count` at most, and what columns as dictionaries.

    A text that is once in the file may be that of millions of rows. Those of a dictionary stay in one, if they are
    long. A text may also have a prefix in common with the one before: it can be as long as all that is in its chunk.
    """
    from pyarrow import parquet, types

    kinds = {name: schema.field(name).type for name in names}
    texts = {name for name, kind in kinds.items() if is_text(kind)}
    longest = {name: kind.byte_width for name, kind in kinds.items() if types.is_fixed_size_binary(kind)}
    with_dictionary: dict[int, list[str]] = {}
    for number, group in enumerate(map(about.row_group, range(about.num_row_groups) if texts else ())):
        for chunk in map(group.column, range(group.num_columns)):
            name, size = chunk.path_in_schema, chunk.total_uncompressed_size
            if name in texts:
                file.check_expansion(f"column {name!r}", size)
                if chunk.has_dictionary_page:
                    with_dictionary.setdefault(number, []).append(name)
                if "DELTA_BYTE_ARRAY" in chunk.encodings:
                    longest[name] = max(longest.get(name, 0), size)
    known: Counter[str] = Counter()
    with parquet.ParquetFile(file.path, read_dictionary=list(texts), **PARQUET_LIMITS) as table:
        for number, listed in with_dictionary.items():
            for row in itertools.islice(table.iter_batches(batch_size=1, row_groups=[number], columns=listed), 1):
                for name in listed:
                    known[name] = max(known[name], longest_text(row.column(name).dictionary))
    fitting: int = PIECE_TEXT_BYTES // max(1, sum(longest.values()))
    rows = max(1, min(count, fitting))
    return rows, list(known) if rows * known.total() > BATCH_TEXT_BYTES else []


def _joined(pieces: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield batches of up to `count` rows, fewer where they are long, of pieces that have a few rows each.

    To work on each piece by itself would take far longer, and the texts of most files are short.
    """
    import pyarrow as pa

    waiting: list[Any] = []
    rows = size = 0
    for piece in pieces:
        waiting.append(piece)
        rows, size = rows + len(piece), size + piece.nbytes
        if rows + len(piece) > count or size > BATCH_TEXT_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def read_arrow(file: File, options: Options) -> Iterator[Piece]:
    """Read Arrow IPC, as a file (which is also Feather) or as a stream; memory-mapped."""
    import pyarrow as pa
    from pyarrow import ipc

    def opened(source: Any) -> tuple[Any, Iterator[Any]]:
        if bytes(source.read(len(FILE_MAGIC))) == FILE_MAGIC:
            table = ipc.open_file(source)
            return table.schema, (table.get_batch(i) for i in range(table.num_record_batches))
        source.seek(0)
        stream = ipc.open_stream(source)
        return stream.schema, iter(stream)

    with pa.memory_map(str(file.path)) as source:
        schema = opened(source)[0]
        sizes = list(unpacked_sizes(source))
    file.check_expansion("the table", sum(sizes))
    file.check_memory("a batch of the table", max(sizes, default=0))

    def batches(names: list[str], count: int) -> Iterator[Any]:
        with pa.memory_map(str(file.path)) as source:
            for batch in opened(source)[1]:
                part = batch.select(names)
                part.validate(full=True)  # offsets that lead outside would be followed
                for start in range(0, len(part), count):
                    yield part.slice(start, count)

    return _read_table(Table(file, schema, batches), options)


def _with_known_texts(file: File, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; refuse texts that are, written out for each row, out of proportion to the file."""
    texts = TextCount(file)
    for batch in batches:
        texts.add(*batch.columns)
        yield batch


def read_csv(file: File, options: Options) -> Iterator[Piece]:
    """Read a table in long form. The types of columns are those of the first megabyte; ids are read as text."""
    import pyarrow as pa
    from pyarrow import csv

    separator = "\t" if file.suffix == ".tsv" else ","
    _check_separator(file, separator)
    parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    blocks = csv.ReadOptions(block_size=_block_bytes(file))
    with csv.open_csv(file.path, read_options=blocks, parse_options=parse) as first:
        guessed = first.schema
        _check_header(file, guessed.names, options.id_column or options.by)
        if all(pa.types.is_null(field.type) for field in guessed) and not any(len(batch) for batch in first):
            what = "is empty: below the line with the names of the columns there are no rows"
            raise file.error(what, "leave it out, or write it again")
    named = options.id_column or options.by or _default_id(guessed, file)
    # Columns that the user names are numbers, too: text in them is then an error with its row.
    numeric = {x.name for x in guessed if is_number(x.type) and x.name != named}.union(options.columns or [])
    kinds = {name: pa.float64() if name in numeric else pa.string() for name in guessed.names}

    def batches(names: list[str], count: int) -> Iterator[Any]:
        # Only what is empty is missing: NA may be an id.
        missing = {"null_values": [""], "strings_can_be_null": True}
        convert = csv.ConvertOptions(column_types=kinds, include_columns=names, **missing)
        with csv.open_csv(file.path, read_options=blocks, parse_options=parse, convert_options=convert) as stream:
            yield from stream

    return read_long(Table(file, pa.schema(list(kinds.items())), batches), options, named)


_SEPARATORS = {
    ",": ("a comma", 'give format="csv"'),
    "\t": ("a tab", 'give format="tsv"'),
    ";": ("a semicolon", "save the table with commas, and with points in the numbers"),
    "|": ("a bar", "save the table with commas"),
}


def _block_bytes(file: File) -> int:
    """Return how many bytes are parsed at a time: a line must fit, and may be longer than that of the names."""
    with open(file.path, "rb") as stream:
        return max(BLOCK_BYTES, min(LINES_IN_BLOCK * len(stream.readline(MAX_BLOCK_BYTES)), MAX_BLOCK_BYTES))


def _check_separator(file: File, separator: str) -> None:
    """Refuse a first line that has another separator and not this one."""
    with open(file.path, encoding="utf-8-sig", errors="replace") as stream:
        line = next((line for line in iter(lambda: stream.readline(1 << 16), "") if line.strip()), "").strip("\r\n")
    if separator in line or "\ufffd" in line or not line.replace("\t", " ").isprintable():
        return
    for other, (what, remedy) in _SEPARATORS.items():
        if other in line:
            found = f"the columns seem to be separated by {what}, not by {_SEPARATORS[separator][0]}"
            raise file.error(found, f"{remedy}; the first line is {line!r:.100}")


def _check_header(file: File, names: list[str], named: str | None) -> None:
    """Refuse a first line that cannot be, or does not look like, the names of columns."""
    if any("\0" in name for name in names):
        raise ValueError("zero bytes in its first line")
    first, others = _is_numeral(names[0]), names[1:]
    # A count or a year may be the name of a column; -0.5 hardly is, if no id is named.
    rows = all(map(_is_numeral, others)) and (first or any(not name.strip().isdigit() for name in others))
    if others and rows and named not in names and "id" not in names:
        example = ",".join(["id", *(f"x{i}" for i in range(1, min(len(names), 4)))])
        remedy = f"put a line such as {example} above it, or give id_column= if these are the names: {names!r:.100}"
        raise file.error("the first line looks like a row and not like the names of the columns", remedy)
    _check_names(file, names)


def _check_names(file: File, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise file.error(f"two columns have the same name: {names!r:.200}")


def _is_numeral(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _default_id(schema: Any, file: File) -> str:
    if "id" in schema.names:
        return "id"
    from pyarrow import types

    first = schema.field(0)
    if types.is_string(first.type):
        return str(first.name)
    what = f"there is no column 'id', and the first column, {first.name!r}, is numeric"
    remedy = f"give id_column=, the column that says what set a row belongs to; the columns are {schema.names!r:.200}"
    raise file.error(what, remedy, argument="id_column")


# ---- one row, one set


def _read_table(table: Table, options: Options) -> Iterator[Piece]:
    """Read list columns if there are any and no columns of numbers were asked for, otherwise long form."""
    names, file = table.schema.names, table.file
    _check_names(file, names)
    file.check_names("column", [options.id_column, options.by, options.weights_name, *(options.columns or [])], names)
    lists = [field.name for field in table.schema if list_depth(field.type) == 2]
    asked = options.columns or lists
    if any(name in lists for name in asked):
        if len(asked) > 1:
            raise file.error(f"several columns hold sets, {asked!r:.200}", "name one with columns=", argument="columns")
        return _list_pieces(table, options, asked[0])
    named = options.id_column or options.by
    if named is None:
        typed = ", ".join(f"{field.name}: {field.type}" for field in table.schema)[:400]
        remedy = (
            "for long form, one row an element, give id_column=, the column that says what set a row belongs to; the "
            f"columns are {typed}"
        )
        raise file.error("no column holds sets (a list of vectors in each row)", remedy, argument="id_column")
    return read_long(table, options, named)


def list_depth(kind: Any) -> int:
    """Return how many lists there are around numbers; -1 if it is something else."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)  # of an extension type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = list_depth(kind.value_type)
        return inner + 1 if inner >= 0 else -1
    return 0 if is_number(kind) else -1


def is_scalar(kind: Any) -> bool:
    """Return whether values of this type can be metadata."""
    from pyarrow import types as t

    inner = kind.value_type if t.is_dictionary(kind) else kind
    text, numbers = (t.is_string, t.is_large_string), (t.is_integer, t.is_floating, t.is_boolean, t.is_decimal)
    return any(is_kind(inner) for is_kind in (*text, *numbers, t.is_date, t.is_timestamp))


def _list_pieces(table: Table, options: Options, column: str) -> Iterator[Piece]:
    file, weights = table.file, options.weights_name
    exported = EXPORT_KEY in (table.schema.metadata or {}) and "metadata" in table.schema.names
    if exported and options.weights is None and "weights" in table.schema.names:
        weights = "weights"
    named = options.id_column or options.by or _unique(table)
    if weights is not None and list_depth(table.schema.field(weights).type) != 1:
        what = f"the weights of sets in a list column are lists too; {weights!r} is not"
        raise file.error(what, argument="weights", column=weights)
    others = [f.name for f in table.schema if is_scalar(f.type) and f.name != named]
    wanted = dict.fromkeys([column, *([weights] if weights else []), *([named] if named else []), *others])
    first, count = 0, 1024
    claimed = table.n_values(column)
    file.check_expansion(f"column {column!r}", 4 * claimed)
    at_once = max(1, min(ROWS_AT_ONCE, 2 * options.batch_points * table.n_rows // max(claimed, 1)))
    for batch in _with_known_texts(file, table.batches(list(wanted), at_once)):
        done = 0
        while done < len(batch):
            part = batch.slice(done, count)
            n = len(part)
            points, sizes, flat = _vectors(file, part, column, weights, first)
            ids = file.numbered(first, n)
            if named:
                ids = to_ids(file, f"column {named!r}", part.column(named).to_pylist(), range(first, first + n))
            values = {name: part.column(name).to_pylist() for name in others}
            if exported:
                metadata = _parse_metadata(file, values["metadata"], ids, first)
            else:
                metadata = metadata_rows(file, values, n)
            yield Piece(file, points, sizes, flat, ids, metadata)
            done, first = done + n, first + n
            # As many rows as make a batch, by the size of those just read.
            count = max(1, min(ROWS_AT_ONCE, options.limit(points.shape[1]) // max(1, len(points) // n)))


def _parse_metadata(file: File, texts: list[Any], ids: list[str], first: int) -> list[dict[str, Any]]:
    """Return the metadata of an exported index, as they were there."""
    found: list[dict[str, Any]] = []
    for row, (name, text) in enumerate(zip(ids, texts, strict=True), first):
        try:
            metadata = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            what = f"the metadata of {name!r} are {text!r:.60}, not a JSON object"
            raise file.error(what, id=name, row=row, column="metadata")
        found.append(metadata)
    return found


def _vectors(file: File, part: Any, column: str, weights: str | None, first: int) -> tuple[Array, Array, Array | None]:
    """Return points, sizes and weights of some rows; errors count the rows from `first`."""
    try:
        file.check_memory(f"column {column!r}", 4 * _count_vectors(part.column(column)))
        parts, sizes, dim = arrow_vectors(part.column(column))
        if dim is None:
            raise empty_set(0)
        file.check_memory(f"column {column!r}", sum(x.nbytes for x in parts))
        flat = None
        if weights is not None:
            flat, lengths = arrow_scalars(part.column(weights))
            check_lengths(lengths, sizes)
    except ReaderError:
        raise
    except InputError as error:
        if error.set is None:
            raise file.error(f"column {column!r}: {error.problem}", error.remedy, column=column) from None
        row, where = first + error.set, {"element": error.element, "feature": error.feature}
        what = f"{place_of(f'column {column!r}, row {row}', **where)} {error.what}"
        raise file.error(what, error.remedy, row=row, column=column, **where) from None
    return np.concatenate(parts), sizes, flat


def _count_vectors(column: Any) -> int:
    """Return how many vectors a column claims: lists of a fixed size take no bytes."""
    from pyarrow import compute

    lists = getattr(column, "storage", column)
    return compute.sum(compute.cast(compute.list_value_length(lists), "int64")).as_py() or 0


def _unique(table: Table) -> str | None:
    """Return the column "id" or "name", if it holds an id for each row, none of them twice."""
    for name in ("id", "name"):
        if name not in table.schema.names or not is_scalar(table.schema.field(name).type):
            continue
        seen: set[str] = set()
        total = 0
        for batch in _with_known_texts(table.file, table.batches([name], ROWS_AT_ONCE)):
            with contextlib.suppress(ReaderError):
                seen.update(to_ids(table.file, name, batch.column(0).to_pylist()))
            total += len(batch)
        if len(seen) == total:
            return name
    return None
