"""Checks of an index: the database by itself, the caches against the database, the answers against each other."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from .. import where
from ..evaluate import recall_at_k
from ..index.hits import parsed
from ..search import LadderSearch
from ..search.lists import WIDE
from . import lines as db

if TYPE_CHECKING:
    from .local import Local

MOST = 20
"""Problems of one kind that are listed."""
QUERIES = 200


@dataclass
class Report:
    """What `verify` found. `ok` if there is no problem; `checked` says what was looked at, and how much of it."""

    problems: list[str] = field(default_factory=list)
    checked: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [f"{name}: {what}" for name, what in self.checked.items()]
        return "\n".join([*lines, *(f"PROBLEM: {each}" for each in self.problems), "ok" if self.ok else "not ok"])


def verify(engine: Local, sample: int | None) -> Report:
    """All of the database, and the vectors of all sets, or of `sample` of them; recall by stored sets as queries."""
    report = Report()
    with engine.seen() as c:
        _database(c, engine, report)
        if report.ok and engine._sets is not None and len(engine._sets):
            _caches(c, engine, report, sample)
            _answers(engine, report)
    return report


def _database(c: sqlite3.Connection, engine: Local, report: Report) -> None:
    try:
        for (line,) in c.execute("PRAGMA integrity_check(20)"):
            if line != "ok":
                report.problems.append(f"the database: {line}")
        counts = {
            name: c.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("sets", "bodies", "fields")
        }
    except sqlite3.DatabaseError as error:
        report.problems.append(f"the database: {error}: restore it from a copy")
        return
    report.checked["database"] = ", ".join(f"{n} {name}" for name, n in counts.items())
    lost = [
        ("sets without points", "SELECT id FROM sets LEFT JOIN bodies USING (body) WHERE bodies.body IS NULL"),
        ("points without a set", "SELECT body FROM bodies WHERE body NOT IN (SELECT body FROM sets)"),
        ("metadata lines without a set", "SELECT DISTINCT row FROM fields WHERE row NOT IN (SELECT row FROM sets)"),
        ("sets that are removed, and there", "SELECT id FROM sets WHERE row IN (SELECT row FROM removed)"),
    ]
    for what, sql in lost:
        found = [str(line[0]) for line in c.execute(f"{sql} LIMIT {MOST}")]
        if found:
            report.problems.append(f"{what}: {', '.join(found)}")
    next_row, next_body = db.about(c, "next_row", "next_body")
    for table, column, least in (("sets", "row", next_row), ("bodies", "body", next_body)):
        highest = c.execute(f"SELECT coalesce(max({column}), -1) FROM {table}").fetchone()[0]
        if highest >= least:
            report.problems.append(f"{table}: {column} {highest} is there, and the next would be {least}")
    _points(c, engine.recipe.dim, report)
    _fields(c, report)


def _points(c: sqlite3.Connection, dim: int, report: Report) -> None:
    """Every byte of the points against its checksum."""
    damaged, n = [], 0
    sql = "SELECT id, size, crc, points, weights FROM sets JOIN bodies USING (body) ORDER BY row"
    total = c.execute("SELECT count(*) FROM sets").fetchone()[0]
    for name, size, crc, points, weights in _progress(c.execute(sql), total, "points"):
        if not db.is_whole(size, points, weights, crc, dim):
            damaged.append(repr(name))
        n += 1
    report.checked["points"] = f"{n} sets against their checksums"
    if damaged:
        report.problems.append(f"the points of {len(damaged)} sets are damaged: {', '.join(damaged[:MOST])}")


def _fields(c: sqlite3.Connection, report: Report) -> None:
    """The lines that filters are answered from, against the metadata, set by set."""
    there: int = c.execute("SELECT count(*) FROM fields").fetchone()[0]
    meant, wrong = 0, []
    lines = c.execute("SELECT row, id, metadata FROM sets WHERE metadata != '{}'")
    for row, name, text in lines:
        try:
            fields = set(where.fields_of(parsed(text), repr(name)))
        except ValueError as error:
            wrong.append(f"{name!r} ({error})")
            continue
        meant += len(fields)
        sql = "SELECT count(*) FROM fields WHERE key = ? AND value = ? AND typeof(value) = typeof(?) AND row = ?"
        if any(c.execute(sql, (key, value, value, row)).fetchone()[0] != 1 for key, value in fields):
            wrong.append(repr(name))
    report.checked["metadata"] = f"{there} values"
    if wrong:
        report.problems.append(f"what filters look at is not the metadata of {', '.join(wrong[:MOST])}")
    elif there != meant:
        report.problems.append(f"filters look at {there} values, and the metadata have {meant}")


def _caches(c: sqlite3.Connection, engine: Local, report: Report, sample: int | None) -> None:
    """What is held ready against what is embedded anew, bit for bit."""
    ready = engine._sets
    assert ready is not None
    alive = db.alive(c)
    if not np.array_equal(alive, ready.rows):
        report.problems.append("the sets that are held ready are not those of the database: close it and open it again")
        return
    chosen = alive if sample is None or sample >= len(alive) else alive[:: -(-len(alive) // max(1, sample))]
    weighted = ready._points._weights is not None
    wrong: list[int] = []
    parts = db.stream_sets(c, chosen, engine.recipe.dim, weighted, engine.recipe.origin)
    with tqdm(total=len(chosen), unit="set", delay=2, disable=None, leave=False, desc="vectors") as bar:
        for rows, sets in parts:
            prepared = engine.recipe.prepared(sets)
            kept = ready.sets(rows)
            same = np.array_equal(kept.points, prepared.points) and np.array_equal(kept.offsets, prepared.offsets)
            if kept.weights is not None and prepared.weights is not None:
                same = same and np.array_equal(kept.weights, prepared.weights)
            if not same:
                wrong += rows.tolist()
            else:
                wrong += rows[(_stored(ready, rows) != _as_stored(ready, prepared)).any(axis=1)].tolist()
                wrong += rows[_misfiled(ready.vector_search, rows)].tolist()
            bar.update(len(rows))
    report.checked["caches"] = f"{len(chosen)} sets embedded again"
    if wrong:
        names = [name for name, _ in db.described(c, wrong[:MOST]).values()]
        report.problems.append(
            f"the cached vectors or points of {len(wrong)} sets are wrong ({', '.join(map(repr, names))}): close the "
            "index, delete its folder cache, and open it again"
        )


def _stored(ready: Any, rows: Any) -> Any:
    search = ready.vector_search
    if getattr(search, "_codes", None) is not None:
        return search._codes.take(search._rows._find(rows))
    return search.vectors(rows)


def _misfiled(search: Any, rows: Any) -> Any:
    """Which rows are not in the lists of the ladder as they should be."""
    if not isinstance(search, LadderSearch) or not search._trained:
        return np.zeros(len(rows), np.bool_)
    positions = search._rows._find(rows)
    place = search._lists._place.array[positions]
    filed = search._lists.blocks[place // WIDE, :, place % WIDE]
    return (search._lists.slots[place // WIDE, place % WIDE] != positions) | (
        filed != search._prefixes(positions, search._basis)[0]
    ).any(axis=1)


def _as_stored(ready: Any, sets: Any) -> Any:
    search = ready.vector_search
    vectors = ready._embed(sets)[0]
    if getattr(search, "_codes", None) is not None:
        return search._hash.transform(vectors)
    return search._store.like(vectors)[0]


def _answers(engine: Local, report: Report) -> None:
    """The recall of a default search against an exact one."""
    ready = engine._sets
    assert ready is not None
    k = min(10, len(ready))
    rows = ready.rows[:: max(1, len(ready) // QUERIES)][:QUERIES]
    queries = ready.sets(rows)
    found = ready.search(queries, k, recall=engine.recall)
    if found.stats.recall is None or found.stats.recall == 1.0:
        report.checked["recall"] = "exact" if found.stats.recall == 1.0 else "nothing is promised"
        return
    exact = ready.search(queries, k, recall=1.0)
    measured = float(recall_at_k(found.rows, exact.rows))
    report.checked["recall"] = f"{measured:.4f} over {len(rows)} stored sets, {found.stats.recall:.4f} promised"
    # The promise is of the mean over many queries; these few are off by chance, by three standard errors at most.
    if measured < found.stats.recall - 3 * (measured * (1 - measured) / (len(rows) * k)) ** 0.5 - 0.02:
        report.problems.append(f"recall is {measured:.4f}, promised {found.stats.recall:.4f}: call index.compact()")


def _progress(lines: Any, total: int, what: str) -> Any:
    return tqdm(lines, total=total, unit="set", delay=2, disable=None, leave=False, desc=what)
