"""What a job reads: a folder of files, cut into pieces that can be read, done and counted by themselves.

A piece is some row groups of a Parquet file with a list column, or a whole file of any other kind, which
`slosh.readers` reads. Pieces are small values that are sent to workers. Each says how large its file was and when it
was changed, so that a job notices when it is not the file of before.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..checkpoints import in_threads
from ..data.batching import MAX_BATCH_SETS
from ..errors import DuplicateId, InputError, ReaderError, SourceChanged
from ..readers import read
from ..readers.batches import Batch, join
from ..readers.files import File, Options, metadata_rows, reader_error, reading, to_ids
from ..readers.formats import FORMATS
from ..readers.sources import find
from ..readers.tables import EXPORT_KEY, is_scalar, list_depth
from .arrow import NO_SETS, Columns, find_columns, sets_of

BATCH_NUMBERS = 1 << 22
"""Numbers of the points of one batch, about; a set with more is a batch of its own."""
READ_BYTES = 1 << 20
"""Bytes of a column that are read from a Parquet file at a time."""
FOOTERS_AT_ONCE = 8
"""Threads that read the footers of Parquet files."""
_NOT_OURS = ("source", "origin", "on_error", "progress", "batch_points", "unique_ids", "source_as_folder")


class Piece(NamedTuple):
    """Row groups first_group to first_group + n_groups - 1 of a Parquet file; or a whole file, if n_groups is 0.

    name : below the source, with forward slashes. path : absolute. size, changed_ns : of the file.
    first_row : of these groups, in the file. n_rows : their sets; None where only reading tells.
    n_bytes : what it takes on disk. schema : pieces of different schemas are not written into one file.
    """

    name: str
    path: str
    suffix: str
    size: int
    changed_ns: int
    first_group: int = 0
    n_groups: int = 0
    first_row: int = 0
    n_rows: int | None = None
    n_bytes: int = 0
    schema: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        """What a ledger knows it by."""
        return self.path, self.first_group, self.n_groups

    @property
    def stamp(self) -> list[int]:
        """What is different if the file was changed."""
        return [self.size, self.changed_ns]

    @property
    def line(self) -> list[Any]:
        """What a ledger says of it: key and stamp."""
        return [*self.key, *self.stamp]

    @property
    def file(self) -> File:
        """The file, as readers know it."""
        return File(Path(self.path), self.name, self.suffix)

    def check_unchanged(self) -> None:
        """Refuse (SourceChanged) a file that is not the one that was planned for."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            raise source_changed(self.path, "is gone") from None
        if [now.st_size, now.st_mtime_ns] != self.stamp:
            raise source_changed(self.path, "was changed while the job ran")


def source_changed(path: str, what: str, remedy: str = "call it again: what is finished stays") -> SourceChanged:
    """Return the error for a file that is not as it was."""
    return SourceChanged(f"{path} {what}", remedy, location=path, argument="source")


def checked_reading(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `slosh.readers.read` that a job takes; None and defaults are left out."""
    known = [name for name in inspect.signature(read).parameters if name not in _NOT_OURS]
    for name in options:
        if name not in known:
            problem = f"{name}= is no option of this job, nor of slosh.readers.read"
            raise InputError(problem, f"the options of reading are {', '.join(known)}", argument=name)
    return {name: value for name, value in options.items() if value is not None}


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of reading for JSON."""
    return {key: list(value) if isinstance(value, list | tuple) else value for key, value in options.items()}


def count_rows(pieces: Iterable[Piece]) -> int:
    """Return how many sets pieces have, counting a file that does not tell as one."""
    return sum(1 if piece.n_rows is None else piece.n_rows for piece in pieces)


def check_apart(source: Any, target: str | os.PathLike[str]) -> None:
    """Refuse a target within the source: the next call would take what is written there for sets."""
    place = os.path.realpath(target)
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        if isinstance(one, str | os.PathLike) and os.path.isdir(one):
            root = os.path.realpath(one)
            if os.path.commonpath([root, place]) == root:
                problem = f"the target {os.fspath(target)} lies within the source {os.fspath(one)}"
                raise InputError(problem, "give a folder beside it", argument="target")


def check_format(options: Mapping[str, Any]) -> None:
    """Refuse a format that is not known."""
    chosen = options.get("format")
    if chosen is not None and f".{str(chosen).lower().removeprefix('.')}" not in FORMATS:
        remedy = f"what can be read is {' '.join(FORMATS)}"
        raise InputError(f"format={chosen!r:.80} is not known", remedy, argument="format")


def find_pieces(source: Any, options: Mapping[str, Any]) -> list[Piece]:
    """Return the pieces of a source, in the order of its files; every file is looked at, and none is read."""
    check_format(options)
    chosen = options.get("format")
    files = find(source, chosen if chosen is None else f".{str(chosen).lower().removeprefix('.')}")
    if files[0].suffix != ".parquet":  # it checks the options, and opens the file
        read(files[0].path, progress=False, **options)
    seen: set[str] = set()
    for file in files:
        path = os.path.abspath(file.path)
        if path in seen:
            raise reader_error(path, "it is named twice", "give each file once")
        seen.add(path)
    found = in_threads(lambda file: _pieces_of(file, options), files, FOOTERS_AT_ONCE)
    pieces = [piece for each in found for piece in each]
    if not pieces:
        raise reader_error(files[0].path, "there are no sets in it", "give files that have rows")
    return pieces


def _pieces_of(file: File, options: Mapping[str, Any]) -> list[Piece]:
    about, path = os.stat(file.path), os.path.abspath(file.path)
    whole = Piece(file.name, path, file.suffix, about.st_size, about.st_mtime_ns, n_bytes=about.st_size)
    if file.suffix != ".parquet":
        return [whole._replace(n_rows=1 if FORMATS[file.suffix].one_set else None)]
    from pyarrow import parquet

    with reading(file, FORMATS[file.suffix].what), parquet.ParquetFile(file.path) as table:
        schema, footer = table.schema_arrow, table.metadata
    asked = options.get("columns")
    wanted = [options.get("id_column"), options.get("by"), options.get("weights") or None]
    file.check_names("column", [*wanted, *([asked] if isinstance(asked, str) else asked or [])], schema.names)
    if not _is_native(schema, options):
        return [whole]
    _columns(file, schema, options)
    pieces, row = [], 0
    kind = crc32(schema.to_string(show_field_metadata=False, show_schema_metadata=False).encode())
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        n_bytes = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
        place = {"first_group": number, "n_groups": 1, "first_row": row, "n_rows": group.num_rows}
        if group.num_rows:
            pieces.append(whole._replace(**place, n_bytes=n_bytes, schema=kind))
        row += group.num_rows
    return pieces


def _is_native(schema: Any, options: Mapping[str, Any]) -> bool:
    """Return whether one row is one set; otherwise the readers make sets of the rows."""
    lists = [field.name for field in schema if list_depth(field.type) == 2]
    asked = options.get("columns")
    names = lists if asked is None else [asked] if isinstance(asked, str) else list(asked)
    return any(name in lists for name in names) or (not lists and options.get("id_column", options.get("by")) is None)


def _columns(file: File, schema: Any, options: Mapping[str, Any]) -> Columns:
    """Return what is read of a table; errors name the file."""
    named = options.get("id_column") or options.get("by")
    if named is None and "id" in schema.names and is_scalar(schema.field("id").type):
        named = "id"
    try:
        return find_columns(schema, options.get("columns"), options.get("weights"), named)
    except InputError as error:
        long = "for long form, one row an element, give id_column=, the column that says what set a row belongs to; "
        remedy = f"{long}{error.remedy}" if error.problem == NO_SETS else error.remedy
        raise file.error(error.problem, remedy, argument=error.argument) from None


def group_pieces(pieces: list[Piece], most_bytes: int, most_rows: int | None = None) -> list[list[Piece]]:
    """Return runs of pieces of one schema, each of at most so many bytes, and sets, together, or of one piece."""
    groups: list[list[Piece]] = []
    n_bytes = n_rows = 0
    for piece in pieces:
        rows = most_rows if piece.n_rows is None else piece.n_rows  # unknown: alone
        n_bytes, n_rows = n_bytes + piece.n_bytes, n_rows + (rows or 0)
        fits = n_bytes <= most_bytes and (most_rows is None or n_rows <= most_rows)
        if groups and fits and groups[-1][-1].schema == piece.schema:
            groups[-1].append(piece)
        else:
            groups.append([piece])
            n_bytes, n_rows = piece.n_bytes, rows or 0
    return groups


class Rows(NamedTuple):
    """Some rows of a piece as an Arrow batch, with the row of the file that the first one is."""

    batch: Any
    columns: Columns
    first: int


def read_rows(piece: Piece, options: Mapping[str, Any]) -> Iterator[Rows]:
    """Yield Arrow batches of bounded size. Files that are no tables of sets get the columns id, points, weights and
    metadata (JSON).
    """
    if piece.n_groups:
        yield from _table_rows(piece, options)
        return
    import pyarrow as pa

    first = 0
    for batch in read_batches(piece, options):
        texts = [json.dumps(each, ensure_ascii=False) for each in batch.metadata]
        made = {"id": batch.ids, "points": batch.sets.to_arrow(), "metadata": texts}
        weights = None
        if batch.sets.weights is not None:
            weights = "weights"
            made[weights] = pa.LargeListArray.from_arrays(pa.array(batch.sets.offsets), pa.array(batch.sets.weights))
        yield Rows(pa.RecordBatch.from_pydict(made), Columns("points", weights, "id"), first)
        first += len(batch.ids)


def _table_rows(piece: Piece, options: Mapping[str, Any]) -> Iterator[Rows]:
    from pyarrow import parquet

    piece.check_unchanged()
    file, groups = piece.file, range(piece.first_group, piece.first_group + piece.n_groups)
    how: dict[str, Any] = {"buffer_size": READ_BYTES, "pre_buffer": False}  # otherwise it holds all of a row group
    with reading(file, FORMATS[piece.suffix].what), parquet.ParquetFile(piece.path, **how) as table:
        columns = _columns(file, table.schema_arrow, options)
        chunks = (table.metadata.row_group(g).column(i) for g in groups for i in range(table.metadata.num_columns))
        values = sum(x.num_values for x in chunks if x.path_in_schema.partition(".")[0] == columns.points)
        count = max(1, min(MAX_BATCH_SETS, BATCH_NUMBERS * max(1, piece.n_rows or 1) // max(values, 1)))
        row = piece.first_row
        for batch in table.iter_batches(batch_size=count, row_groups=list(groups), use_threads=False):
            yield Rows(batch, columns, row)
            row += len(batch)


def read_batches(
    piece: Piece, options: Mapping[str, Any], dim: int | None = None, origin: Any = None
) -> Iterator[Batch]:
    """Yield sets with ids and metadata, as `slosh.readers.read` does, of a piece."""
    file = piece.file
    if piece.n_groups:
        for rows in _table_rows(piece, options):
            yield Batch(sets_in_file(rows, piece, dim, origin), ids_of(rows, file), _metadata(rows, file))
        return
    piece.check_unchanged()
    form = FORMATS[piece.suffix]
    given = {name: value for name, value in options.items() if name not in ("format", "max_expansion")}
    if isinstance(given.get("columns"), str):
        given["columns"] = [given["columns"]]
    file = file._replace(max_expansion=options.get("max_expansion", file.max_expansion))
    chosen = Options(**given, batch_points=BATCH_NUMBERS // 4)
    with reading(file, form.what):
        for batch in join(form.read(file, chosen), chosen, origin):
            if dim is not None and batch.sets.dim != dim:
                problem = f"{batch.sets.dim} features, and the specification is for {dim}"
                raise file.error(problem, "name the features with columns=, or read such files apart")
            yield batch


def sets_in_file(rows: Rows, piece: Piece, dim: int | None, origin: Any) -> Any:
    """Return the sets of some rows; an error names the file, the row and the id."""
    try:
        return sets_of(rows.batch, rows.columns, dim, origin)
    except InputError as error:
        raise in_file(error, rows, piece) from None


def in_file(error: InputError, rows: Rows, piece: Piece) -> ReaderError:
    """Return the error of a batch as one of the file that it is of."""
    if error.set is None:
        remedy = "rename that column of the file" if error.argument == "vectors" else error.remedy
        return piece.file.error(error.problem, remedy)
    row = rows.first + error.set
    column = rows.columns.points
    about = f"column {column!r}, row {row}" + ("" if error.id is None else f" (id {error.id!r:.80})")
    where = {"element": error.element, "feature": error.feature}
    places = [f", {name} {at}" for name, at in where.items() if at is not None]
    what = f"{about}{''.join(places)} {error.what}"
    return piece.file.error(what, error.remedy, row=row, column=column, id=error.id, **where)


def ids_of(rows: Rows, file: File) -> list[str]:
    """Return the ids of some rows; numbers of rows where there is no column of ids."""
    n, named = len(rows.batch), rows.columns.id
    if named is None:
        return file.numbered(rows.first, n)
    ids = to_ids(file, f"column {named!r}", rows.batch.column(named).to_pylist(), range(rows.first, rows.first + n))
    if len(set(ids)) < n:
        order = np.argsort(np.array(ids, dtype=object), kind="stable").tolist()
        again = next((a, b) for a, b in pairwise(order) if ids[a] == ids[b])
        name, where = ids[again[0]], [rows.first + i for i in again]
        problem = f"{file}: the id {name!r:.100} occurs twice, in rows {where[0]} and {where[1]}"
        raise DuplicateId(problem, "rename one, or give another id_column", id=name)
    return ids


def _metadata(rows: Rows, file: File) -> list[dict[str, Any]]:
    schema = rows.batch.schema
    used = {*rows.columns.used, rows.columns.id}
    values = {x.name: rows.batch.column(x.name).to_pylist() for x in schema if x.name not in used and is_scalar(x.type)}
    if EXPORT_KEY in (schema.metadata or {}) and "metadata" in values:
        return [json.loads(text) for text in values["metadata"]]
    return metadata_rows(file, values, len(rows.batch))


def places_of(name: str, pieces: Iterable[Piece], options: Mapping[str, Any]) -> list[str]:
    """Return where an id occurs, in words: file and row. It reads what may have it, and is for error messages."""
    found = []
    for piece in pieces:
        row = piece.first_row
        for batch in read_batches(piece, options):
            found += [f"{piece.path}, row {row + i}" for i, other in enumerate(batch.ids) if other == name]
            row += len(batch.ids)
        if len(found) > 1:
            break
    return found
