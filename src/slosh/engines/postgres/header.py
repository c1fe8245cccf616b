"""What a view begins with: the row of its index as one transaction sees it, and what was learnt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.errors import InvalidSqlStatementName

from ...search import Calibration
from . import schema
from .connections import Session
from .schema import Tables

SELECT = """
    SELECT i.format, i.generation, i.weighted, i.recall, i.part_recalls, i.scales, l.stamp, coalesce(l.graph, false),
        d.sets, d.added, d.points, d.changes, a.value
    FROM slosh.indexes i LEFT JOIN slosh.about a ON a.name = 'made_on of ' || i.id::text
    LEFT JOIN slosh.learnt l ON l.index_id = i.id AND l.generation = i.generation
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(sets), 0)::bigint AS sets, coalesce(sum(added), 0)::bigint AS added,
            coalesce(sum(points), 0)::bigint AS points, coalesce(sum(changes), 0)::bigint AS changes
        FROM slosh.deltas WHERE index_id = i.id) d
    WHERE i.id = """
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Learnt(NamedTuple):
    """What was measured of a generation, of searches for whole sets: without a filter, and with one.

    The reach of a calibration is how many candidates the graph keeps. With a filter the depth is that number without
    one, and the reach is how many times as many it keeps as that and those that a walk would pass (`filtered_walk`).

    `moved` is how far rounding had moved the vectors then, at most; None if that was not noted.
    """

    calibrations: tuple[Calibration, ...] = ()
    filtered: tuple[Calibration, ...] = ()
    moved: float | None = None

    @classmethod
    def from_text(cls, text: str) -> Learnt:
        """Return what `text` returned; ValueError or TypeError for anything else."""
        found = json.loads(text)
        both = (found["calibrations"], found.get("filtered", ()))
        calibrations, filtered = (tuple(Calibration.from_dict(each) for each in part) for part in both)
        moved = found.get("moved")
        return cls(calibrations, filtered, None if moved is None else float(moved))

    @property
    def text(self) -> str:
        parts = {"calibrations": self.calibrations, "filtered": self.filtered}
        lists = {name: [each.as_dict() for each in part] for name, part in parts.items()}
        return json.dumps({**lists, "moved": self.moved})

    def merged(self, newer: Learnt) -> Learnt:
        """Return both together; of one question what was measured later counts."""

        def both(old: tuple[Calibration, ...], new: tuple[Calibration, ...]) -> tuple[Calibration, ...]:
            found = {(each.k, each.recall): each for each in old}
            for each in new:
                known = found.get((each.k, each.recall))
                if known is None or known.n_added <= each.n_added:
                    found[each.k, each.recall] = each
            return tuple(found.values())

        calibrations = both(self.calibrations, newer.calibrations)
        moved = newer.moved if len(calibrations) == len(newer.calibrations) else _least(self.moved, newer.moved)
        return Learnt(calibrations, both(self.filtered, newer.filtered), moved)


def _least(*numbers: float | None) -> float | None:
    return min((number for number in numbers if number is not None), default=None)


class Header(NamedTuple):
    """The row of an index. `sets` are those that are there, `added` those that ever were.

    `format` is the version of the layout, as `slosh.about` says it: by this one a client that has the index open
    notices an upgrade, without a further question.
    """

    format: int
    generation: int
    weighted: bool | None
    recall: float | None
    part_recalls: str | None
    scales: Sequence[float] | None
    stamp: int | None
    graph: bool
    sets: int
    added: int
    points: int
    changes: int
    made_on: str | None

    @property
    def settings(self) -> Mapping[str, Any]:
        makers = schema.parse_makers(self.made_on)
        of_row = {"weighted": self.weighted, "recall": self.recall, "part_recalls": self.part_recalls}
        return {**of_row, "made_on": makers}


def begin(session: Session, tables: Tables) -> Header | None:
    """Begin a transaction that reads one version, and return its header; None if the index is gone.

    All in one message to the server. The tables of the generation that is known are held before the version is
    chosen: if it is of that generation, nobody drops them. The server plans the longest statement only once.
    """
    sql = (
        f"{BEGIN_READING}; LOCK TABLE {tables.sets}, {tables.exact} IN ACCESS SHARE MODE;"
        f" EXECUTE slosh_header ({tables.number:d})"
    )
    kept = f"PREPARE slosh_header (bigint) AS {SELECT} $1"
    try:
        session.prepare("slosh_header", kept)
        cursor = session.connection.execute(sql, prepare=False)  # several statements cannot be prepared
    except InvalidSqlStatementName:  # psycopg has the server forget all statements after some commands
        session.rollback()
        session.prepare("slosh_header", kept, again=True)
        cursor = session.connection.execute(sql, prepare=False)  # several statements cannot be prepared
    cursor.nextset()
    cursor.nextset()
    line = cursor.fetchone()
    return None if line is None else Header(*line)


def find(session: Session, name: str) -> tuple[int, int] | None:
    """Return the number of the index of a name, and its generation; None if there is none."""
    found: tuple[int, int] | None = session.execute(
        "SELECT id, generation FROM slosh.indexes WHERE name = %s", (name,)
    ).fetchone()
    return found


def list_names(session: Session, most: int | None = None) -> tuple[str, ...]:
    """Return the names of indexes of this database, the first ones by name."""
    return tuple(name for (name,) in session.execute("SELECT name FROM slosh.indexes ORDER BY name LIMIT %s", (most,)))
