"""Sets on their way into the tables of a generation, by COPY in binary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base import Entries, Float64, Int64
from ..spec import Embedded, IndexSpec
from . import codec
from .codec import Rows
from .connections import Session
from .filters import fields_json
from .schema import Tables


def largest_of(embedded: Embedded) -> Float64:
    """Return the largest number of the vectors of each space."""
    return np.array([codec.largest_of(vectors.numbers) for vectors in embedded.vectors.values()])


def scales_of(largest: Float64) -> list[float]:
    """Return what the vectors of each space are multiplied by, if these are their largest numbers."""
    return [codec.scale_of(number) for number in largest.tolist()]


def next_keys(session: Session, tables: Tables, n: int) -> Int64:
    """Return keys that are larger than those of all sets that are there."""
    lines = session.execute(f"SELECT nextval('{tables.keys}') FROM generate_series(1, %s)", (n,))
    return np.sort(np.array([key for (key,) in lines], np.int64))


def store(
    session: Session,
    tables: Tables,
    spec: IndexSpec,
    scales: Sequence[float],
    keys: Int64,
    bodies: Int64,
    entries: Entries,
    embedded: Embedded,
) -> None:
    """Store sets but for their points."""
    n, whole = len(entries.ids), next(iter(embedded.vectors.values()))
    assert whole.slack is not None
    rows = Rows(n).int8(keys.tolist()).int8(bodies.tolist()).int4(entries.sets.sizes.tolist())
    rows.float8(whole.slack.tolist()).text(entries.ids).text(each.json for each in entries.metadata)
    rows.jsonb(map(fields_json, entries.metadata))
    for scale, vectors in zip(scales, embedded.vectors.values(), strict=True):
        halves, moved = codec.halves_of(vectors.numbers, scale)
        rows.vectors(halves).float8(moved.tolist())
    _copy(session, tables.sets, rows)
    rows = Rows(n).int8(keys.tolist())
    for vectors in embedded.vectors.values():
        rows.bytea(codec.split_rows(np.ascontiguousarray(vectors.numbers, "<f4")))
    for name, (_, dtype) in spec.features.items():
        rows.bytea(codec.split_rows(np.ascontiguousarray(embedded.features[name], np.dtype(dtype).newbyteorder("<"))))
    _copy(session, tables.exact, rows)


def store_points(session: Session, tables: Tables, bodies: Int64, entries: Entries) -> None:
    """Store points and weights, with their checksums."""
    points, weights = codec.split_sets(entries.sets)
    sums = (codec.checksum_of(a, b) for a, b in zip(points, weights, strict=True))
    _copy(session, tables.bodies, Rows(len(points)).int8(bodies.tolist()).bytea(points).bytea(weights).int8(sums))


def _copy(session: Session, table: str, rows: Rows) -> None:
    with session.connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(codec.COPY_HEADER)
        for chunk in rows.chunks():
            copy.write(chunk)
        copy.write(codec.COPY_END)
