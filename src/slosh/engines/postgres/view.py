"""One version of an index in PostgreSQL, for reading: a transaction that sees one version, and the header of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from ...data.sets import Sets
from ...errors import DamagedError
from ...search import Metric
from ...where import Node, parse_metadata
from ..base import Candidates, Capabilities, Description, Float64, Int64, Mask, Records
from ..spec import WHOLE, Embedded, IndexSpec, Vectors
from . import codec, scanning, search
from .connections import Session
from .errors import error_of, translated
from .filters import compile_filter
from .header import Header, Learnt
from .schema import Tables

if TYPE_CHECKING:
    from .engine import PostgresEngine

FETCHED_SETS = 4096
"""Sets whose points are fetched by one statement."""
MAX_DESCRIBED = 1 << 16
"""Sets whose ids and metadata a view remembers."""


class PostgresView:
    """A `View`; see the contract in `engines/base.py`."""

    capabilities = Capabilities(metrics=("euclidean", "chebyshev"))
    covered = 1.0

    def __init__(self, engine: PostgresEngine, session: Session, header: Header, spec: IndexSpec) -> None:
        self.engine, self.session, self.header, self.spec = engine, session, header, spec
        self.tables = Tables(engine.index, header.generation)
        self.version, self.settings = header.changes, header.settings
        self._described: dict[int, Description] = {}
        self._learnt: Learnt | None = None

    def __enter__(self) -> PostgresView:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.engine.end_reading(self.session, failed=kind is not None)

    def execute(self, sql: Any, parameters: Sequence[Any] = (), prepare: bool | None = None) -> Any:
        """Run one statement in the transaction of the view."""
        try:
            return self.session.execute(sql, parameters, prepare)
        except psycopg.Error as error:
            raise error_of(error, self.engine.location) from None

    def set_modes(self, modes: Mapping[str, str]) -> None:
        """Change settings of the session, as far as they are others."""
        with translated(self.engine.location):
            self.session.set_modes(modes)

    def blocks(self, sql: str, parameters: Sequence[Any] = (), n: int = 2048) -> Iterator[list[Any]]:
        """Yield the lines of a statement in blocks, which the server makes as they are asked for."""
        name, connection = self.engine.cursor_name(), self.session.connection
        with translated(self.engine.location), psycopg.ServerCursor(connection, name) as cursor:
            cursor.execute(sql, parameters, binary=True)
            while lines := cursor.fetchmany(n):
                yield lines

    @property
    def next_id(self) -> int:
        last, called = self.execute(f"SELECT last_value, is_called FROM {self.tables.ids}").fetchone()
        return int(last) + bool(called)

    @property
    def learnt(self) -> Learnt:
        """What was measured of this generation."""
        if self._learnt is None:
            self._learnt = self.engine.learnt_of(self)
        return self._learnt

    @property
    def calibrated(self) -> list[tuple[int, float]]:
        return [(each.k, each.recall) for each in search.holding(self)]

    def __len__(self) -> int:
        return self.header.sets

    def keys(self, ids: Sequence[str]) -> Int64:
        names = [name for name in dict.fromkeys(ids) if _can_be_stored(name)]
        lines = self.execute(f"SELECT id, key FROM {self.tables.sets} WHERE id = ANY (%s)", (names,)) if names else ()
        found = dict(lines)
        return np.array([found.get(name, -1) for name in ids], np.int64)

    def select(self, where: Node | None = None, limit: int | None = None) -> Int64:
        condition, parameters = ("TRUE", []) if where is None else compile_filter(where)
        sql = f"SELECT key FROM {self.tables.sets} WHERE {condition} ORDER BY key"
        if limit is not None:
            sql, parameters = f"{sql} LIMIT %s", [*parameters, limit]
        self.set_modes(scanning.SCAN_MODES)
        return np.array([key for (key,) in self.execute(sql, parameters, prepare=False)], np.int64)

    def ids(self, keys: Int64) -> list[str]:
        return [each.id for each in self.describe(keys)]

    def positions(self, keys: Int64) -> Int64:
        return np.searchsorted(self.select(), keys)

    def describe(self, keys: Int64) -> list[Description]:
        known, wanted = self._described, keys.tolist()
        if missing := [key for key in dict.fromkeys(wanted) if key not in known]:
            found = self._fetched("id, metadata", self.tables.sets, missing)
            self.remember((key, Description(*line)) for key, line in found.items())
            if len(known) < len(found):  # there are more than are remembered
                known = {**known, **{key: Description(*line) for key, line in found.items()}}
        return [known[key] for key in wanted]

    def remember(self, described: Any) -> None:
        """Keep ids and metadata that came with an answer, as hits show them."""
        if len(self._described) < MAX_DESCRIBED:
            self._described.update(described)

    def _fetched(self, columns: str, table: str, keys: Sequence[int], by: str = "key") -> dict[int, tuple[Any, ...]]:
        """Return columns of the rows of these keys, all of which must be there."""
        found: dict[int, tuple[Any, ...]] = {}
        sql = f"SELECT {by}, {columns} FROM {table} WHERE {by} = ANY (%s)"
        for first in range(0, len(keys), FETCHED_SETS):
            lines = self.execute(sql, (list(keys[first : first + FETCHED_SETS]),))
            found.update((line[0], line[1:]) for line in lines)
        lost = next((key for key in keys if key not in found), None)
        if lost is not None:
            raise self.damaged(f"{table} lacks the row {lost}")
        return found

    def damaged(self, what: str, ids: Sequence[str] = ()) -> DamagedError:
        location = self.engine.location
        return DamagedError(f"{location}: {what}", "restore it from a copy", location=location, ids=tuple(ids))

    def fetch_exact(self, column: str, keys: Int64) -> dict[int, bytes]:
        """Return a column of the table of exact vectors and features, by key."""
        found = self._fetched(column, self.tables.exact, list(dict.fromkeys(keys.tolist())))
        return {key: line[0] for key, line in found.items()}

    # Sets

    def _stored(self, keys: Int64) -> tuple[Sets, dict[int, tuple[Any, ...]]]:
        """Return sets as they were added, and the lines that say of them: body, id, metadata."""
        wanted = keys.tolist()
        lines = self._fetched("body, id, metadata", self.tables.sets, list(dict.fromkeys(wanted)))
        bodies = [line[0] for line in lines.values()]
        stored = self._fetched("points, weights, checksum", self.tables.bodies, bodies, "body")
        width = 4 * self.spec.dim
        for body, name, _ in lines.values():
            points, weights, checksum = stored[body]
            if codec.checksum_of(points, weights) != checksum or not points or len(points) % width:
                raise self.damaged(f"the points of {name!r} are not what was stored", [name])
        points, weights = ([stored[lines[key][0]][i] for key in wanted] for i in (0, 1))
        weighted = bool(self.settings["weighted"])
        return codec.joined_sets(points, weights, self.spec.dim, weighted, self.spec.origin), lines

    def records(self, keys: Int64) -> Records:
        sets, lines = self._stored(keys)
        found = [lines[key] for key in keys.tolist()]
        return Records(sets, [line[1] for line in found], [self._metadata(line[1], line[2]) for line in found])

    def _metadata(self, name: str, text: str) -> dict[str, Any]:
        try:
            return parse_metadata(text)
        except ValueError as error:
            raise self.damaged(f"the metadata of {name!r} cannot be read ({error})", [name]) from None

    def prepared(self, keys: Int64) -> Sets:
        return self.spec.prepare(self._stored(keys)[0])

    def sizes(self, keys: Int64) -> Int64:
        found = self._fetched("size", self.tables.sets, list(dict.fromkeys(keys.tolist())))
        return np.array([found[key][0] for key in keys.tolist()], np.int64)

    def prepared_sizes(self, keys: Int64) -> Int64:
        sizes, most = self.sizes(keys), self.spec.preprocess.max_points
        return sizes if most is None else np.minimum(sizes, most)

    def features(self, name: str, keys: Int64) -> Any:
        number = list(self.spec.features).index(name)
        shape, dtype = self.spec.features[name]
        rows = self.fetch_exact(f"feature_{number:d}", keys)
        return codec.rows_of([rows[key] for key in keys.tolist()], np.dtype(dtype).newbyteorder("<"), shape).astype(
            dtype
        )

    def holds(self, keys: Int64, embedded: Embedded, apart: Float64 | None = None) -> Mask:
        wanted, good = keys.tolist(), np.ones(len(keys), np.bool_)
        scales = dict(zip(self.spec.spaces, self.header.scales or (), strict=False))
        for name, vectors in embedded.vectors.items():
            if apart is not None and name == WHOLE:
                vectors, near = self._stored_near(keys, vectors, apart)
                good &= near
            halves, moved = codec.halves_of(vectors.numbers, scales[name])
            stored = self._fetched(f"halfvec_send({name}), {name}_moved, slack", self.tables.sets, wanted)
            exact = self.fetch_exact(name, keys)
            slack = moved if vectors.slack is None else vectors.slack
            numbers = codec.split_rows(np.ascontiguousarray(vectors.numbers, "<f4"))
            lines = zip(wanted, codec.split_rows(halves), numbers, moved.tolist(), slack.tolist(), strict=True)
            for i, (key, half, full, off, own) in enumerate(lines):
                found, found_off, found_slack = stored[key]
                same = found[4:] == half and exact[key] == full and found_off == off
                good[i] &= same and (vectors.slack is None or found_slack == own)
        for name in self.spec.features:
            equal = self.features(name, keys) == embedded.features[name]
            good &= equal.reshape(len(keys), -1).all(axis=1)
        return good

    def _stored_near(self, keys: Int64, vectors: Vectors, apart: Float64) -> tuple[Vectors, Mask]:
        """Return the stored vectors of whole sets, and which are near those that are given; the slack is not compared,
        as it follows from the vectors that were made.
        """
        exact = self.fetch_exact(WHOLE, keys)
        width = vectors.numbers.shape[1]
        stored = codec.rows_of([exact[key] for key in keys.tolist()], "<f4", (width,)).astype(np.float32)
        away = stored.astype(np.float64) - vectors.numbers
        slack = self._fetched("slack", self.tables.sets, keys.tolist())
        own = None if vectors.slack is None else np.array([slack[key][0] for key in keys.tolist()], np.float64)
        return Vectors(stored, own), np.sqrt(np.einsum("ij,ij->i", away, away)) <= apart

    # Searches

    def nearest(
        self,
        space: str,
        queries: Vectors,
        k: int,
        *,
        where: Node | None = None,
        recall: float | None = None,
        exclude: Int64 | None = None,
    ) -> Candidates:
        return search.nearest(self, space, queries, k, where, recall, exclude)

    def within(
        self,
        space: str,
        queries: Vectors,
        radii: Float64,
        *,
        where: Node | None = None,
        recall: float | None = 1.0,
        exclude: Int64 | None = None,
        bounds: bool = False,
        metric: Metric = "euclidean",
    ) -> Candidates:
        return search.within(self, space, queries, radii, where, recall, exclude, bounds, metric)

    def info(self) -> dict[str, Any]:
        smallest, largest = self.execute(f"SELECT min(size), max(size) FROM {self.tables.sets}").fetchone()
        return {
            "engine": "postgresql",
            "points": self.header.points,
            "sizes": None if smallest is None else {"smallest": smallest, "largest": largest},
            "compacted": self.header.generation,
            "embedded_on_open": 0,
            **self.engine.server_info(self),
            "search_info": {
                "graph": self.header.graph,
                "calibrations": [each.as_dict() for each in search.holding(self)],
                "filtered": [each.as_dict() for each in search.holding(self, filtered=True)],
            },
        }


def _can_be_stored(name: str) -> bool:
    """Whether PostgreSQL can hold this text; no id is one that it cannot."""
    return "\0" not in name and not any("\ud800" <= x <= "\udfff" for x in name)
