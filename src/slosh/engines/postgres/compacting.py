"""A new generation of an index: all sets embedded anew, in the order of their ids, in tables of their own.

Readers go on with the tables of the generation before it, which are dropped when nobody reads them any more. Writers
wait, and begin anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.interrupts import interruptible
from ...data.progress import ProgressBar
from ...where import checked_metadata
from ..base import Entries, Float64, Int64
from ..spec import IndexSpec, makers_after
from . import codec, outcome, schema, storing
from .connections import Session
from .header import SELECT, Header
from .schema import Tables
from .view import FETCHED_SETS, PostgresView
from .write import WRITE_DEADLINE

if TYPE_CHECKING:
    from .engine import PostgresEngine


def compact(engine: PostgresEngine, session: Session, spec: IndexSpec | None, packed: bytes | None) -> None:
    """Make a new generation, by another specification if there is one, and make it that of the next version."""
    session.begin("BEGIN ISOLATION LEVEL READ COMMITTED")
    session.allow(WRITE_DEADLINE)
    session.execute("SELECT FROM slosh.indexes WHERE id = %s FOR UPDATE", (engine.index,))
    line: Any = session.connection.execute(f"{SELECT} {engine.index:d}").fetchone()
    before = Header(*line)
    schema.check_version(before.format, engine.location)
    old = PostgresView(engine, session, before, engine.spec_of(session, before.generation))
    new = Tables(engine.index, before.generation + 1)
    chosen = old.spec if spec is None else spec
    with interruptible():
        schema.make_generation(session, new, chosen)
        scales = _fill(session, old, new, chosen)
        schema.make_indexes(session, new)
        schema.copy_rights(session, old.tables, new)
    sql = "UPDATE slosh.indexes SET generation = %s, spec = coalesce(%s, spec), scales = %s WHERE id = %s"
    session.execute(sql, (new.generation, packed, scales, engine.index))
    schema.store_makers(session, engine.index, makers_after(None, 0, chosen.made_on))
    session.execute("INSERT INTO slosh.deltas VALUES (%s, 0, 0, 0, 1)", (engine.index,))
    session.execute("DELETE FROM slosh.learnt WHERE index_id = %s", (engine.index,))
    schema.leave(session, [old.tables.sets, old.tables.exact])
    outcome.commit(engine.pool, engine.location, session, engine.index, "call compact() again: it does no harm")


def _fill(session: Session, old: PostgresView, new: Tables, spec: IndexSpec) -> list[float] | None:
    """Store all sets in the tables of a new generation, and return what vectors are multiplied by there.

    The first ones decide. If later ones are so large that they would be cut off, all are stored again.
    """
    lines = session.execute(f"SELECT key, body FROM {old.tables.sets} ORDER BY id").fetchall()
    numbers = storing.next_keys(session, new, len(lines))
    scales, largest = _store_all(session, old, new, spec, lines, numbers, None)
    if scales is not None and (largest * scales > codec.LARGEST_HALF).any():
        session.execute(f"TRUNCATE {new.sets}, {new.exact}")
        scales, _ = _store_all(session, old, new, spec, lines, numbers, storing.scales_of(largest))
    return scales


def _store_all(
    session: Session,
    old: PostgresView,
    new: Tables,
    spec: IndexSpec,
    lines: list[tuple[int, int]],
    numbers: Int64,
    scales: list[float] | None,
) -> tuple[list[float] | None, Float64]:
    """Store all sets; return what their vectors were multiplied by, and their largest numbers."""
    largest = np.zeros(len(spec.spaces))
    with ProgressBar(total=len(lines), unit="set", desc="compact") as bar:
        for first in range(0, len(lines), FETCHED_SETS):
            part = lines[first : first + FETCHED_SETS]
            keys, bodies = _column(part, 0), _column(part, 1)
            sets, ids, metadata = old.records(keys)
            entries = Entries(sets, ids, [checked_metadata(each, "metadata") for each in metadata])
            embedded = spec.embed(sets)
            largest = np.maximum(largest, storing.largest_of(embedded))
            scales = storing.scales_of(largest) if scales is None else scales
            chosen = numbers[first : first + FETCHED_SETS]
            storing.store(session, new, spec, scales, chosen, bodies, entries, embedded)
            bar.update(len(part))
    return scales, largest


def _column(lines: list[tuple[int, int]], at: int) -> Int64:
    return np.array([line[at] for line in lines], np.int64)
