"""The graph of the vectors (HNSW), and what recalls take with it: measured on the stored sets, by the rule of
`search/calibration.py`, and stored for all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from ...search import Calibration, ExactSearch
from ...search.calibration import (
    GRID_K,
    GRID_RECALLS,
    MANY_K,
    MEASURED_AGAIN_GROWTH,
    USUAL_SHARE,
    Setting,
    Trial,
    check_enough,
    first_that_holds,
    sample_positions,
    settle,
)
from ..base import Float64, Mask
from ..spec import WHOLE, Vectors
from . import building, codec, search
from .connections import Session
from .filter_trial import FilterTrial, likely_filters
from .header import Learnt
from .schema import LONGEST_IN_GRAPH

if TYPE_CHECKING:
    from .view import PostgresView

LINKS, CONSTRUCTION = 16, 64
"""Links of a vector in the graph (m), and candidates while it is built (ef_construction)."""
NEIGHBOURS = 8
"""Neighbours of a stored vector that one like it is made from."""


def is_useful(view: PostgresView) -> bool:
    """Return whether searches of this index would use a graph."""
    long = view.spec.spaces[WHOLE].length > LONGEST_IN_GRAPH
    return view.header.sets >= search.GRAPH_ROWS and not long and not isinstance(view.spec.search, ExactSearch)


def build(session: Session, view: PostgresView) -> bool:
    """Make the graph; return False if another client is making it. See `building.py` for who waits meanwhile."""
    tables = view.tables
    options = f"WITH (m = {LINKS}, ef_construction = {CONSTRUCTION})"
    made = building.make_graph(session, tables, f"ON {tables.sets} USING hnsw (whole halfvec_l2_ops) {options}")
    if made is None:
        return False
    _note_graph(session, view, made)
    session.execute(f"ANALYZE {tables.sets}")
    return True


def tidy(session: Session, view: PostgresView) -> None:
    """File what was added in the index of the fields, where the server keeps new rows in a list for a while."""
    with suppress(psycopg.Error):  # of a role that does not own it, or a server that does it at another time
        session.execute("SELECT gin_clean_pending_list(%s::regclass)", (f"slosh.{view.tables.fields}",))


def _note_graph(session: Session, view: PostgresView, made: bool) -> None:
    """Tell all clients that there is a graph. What was measured stays, if it was measured with this one."""
    session.execute(
        "INSERT INTO slosh.learnt AS l VALUES (%s, %s, 1, true, %s) ON CONFLICT (index_id, generation)"
        " DO UPDATE SET stamp = l.stamp + 1, graph = true,"
        " content = CASE WHEN %s THEN excluded.content ELSE l.content END",
        (view.tables.number, view.tables.generation, Learnt().text, made),
    )


def store(session: Session, view: PostgresView, measured: Learnt) -> Learnt:
    """Store what was measured beside what other clients have measured, for all clients, and return both together."""
    row = "WHERE index_id = %s AND generation = %s"
    of = (view.tables.number, view.tables.generation)
    with session.connection.transaction():
        line = session.execute(f"SELECT content FROM slosh.learnt {row} FOR UPDATE", of).fetchone()
        if line is None:  # the index was compacted meanwhile, and what was measured is of the tables before that
            return measured
        try:
            known = Learnt.from_text(line[0])
        except (ValueError, TypeError, LookupError):
            known = Learnt()
        both = known.merged(measured)
        session.execute(f"UPDATE slosh.learnt SET stamp = stamp + 1, content = %s {row}", (both.text, *of))
    return both


def is_exact(view: PostgresView, k: int, recall: float) -> bool:
    """Return whether a search for this is exact by itself, whatever is measured."""
    return recall == 1.0 or not view.header.graph or 32 * k >= view.header.sets


def due(view: PostgresView, again: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return pairs of k and recall that a writer is to measure."""
    n, added = view.header.sets, view.header.added
    usual = search.target_of(view, None)
    pairs = {(GRID_K, recall) for recall in (*GRID_RECALLS, usual)} | {(MANY_K, usual)}
    pairs |= {(each.k, each.recall) for each in view.learnt.calibrations} | set(again)
    known = view.learnt.calibrations
    fresh = {(each.k, each.recall) for each in known if each.holds(n, added, MEASURED_AGAIN_GROWTH)}
    found = sorted(pair for pair in pairs - fresh if not is_exact(view, *pair))
    if found and search.moved_within(view) < _moved(view):  # the vectors have become others
        return sorted(pair for pair in pairs if not is_exact(view, *pair))
    return found


def _moved(view: PostgresView) -> float:
    """Return how far rounding has moved the vectors at most, but for those that were cut off."""
    sql = f"SELECT coalesce(max(whole_moved), 0) FROM {view.tables.sets} WHERE whole_moved <= %s"
    (moved,) = view.execute(sql, (search.largest_rounding(view),)).fetchone()
    return float(moved)


def measure(view: PostgresView, pairs: Sequence[tuple[int, float]], queries: Vectors | None) -> Learnt:
    """Return these pairs of k and recall measured, all of them with the same queries."""
    n = view.header.sets
    highest = max(recall for _, recall in pairs)
    if queries is None:
        numbers = _like_stored(view, highest)
    else:
        check_enough(queries.numbers, highest)
        numbers = queries.numbers
    trial = GraphTrial(view, numbers, min(max(k for k, _ in pairs), n - 1))
    usual = float(np.quantile(trial.truth[:, 0], USUAL_SHARE))

    def measured(trial: Trial, k: int, recall: float) -> Calibration:
        return replace(settle(trial, k, recall, n), n_added=view.header.added, nearest_within=usual)

    plain = {pair: measured(trial, *pair) for pair in pairs}
    filtered: dict[tuple[int, float], Calibration] = {}
    filters = likely_filters(view)
    for k in {k for k, _ in pairs}:
        efforts = {recall: each.depth for (of, recall), each in plain.items() if of == k}
        if with_filters := FilterTrial.of(view, numbers, filters, k, efforts):
            filtered |= {(k, recall): measured(with_filters, k, recall) for recall in efforts}
    return Learnt(tuple(plain.values()), tuple(filtered.values()), _moved(view))


def _like_stored(view: PostgresView, recall: float) -> Any:
    """Return stored vectors, each moved by the difference of two of its neighbours: links of a stored one lead to its
    neighbours, so that it would be found too easily.
    """
    keys = view.select()
    chosen = keys[sample_positions(np.ones(len(keys), np.bool_), recall, 0)]
    length = view.spec.spaces[WHOLE].length

    def vectors(of: Any) -> Any:
        rows = view.fetch_exact(WHOLE, of)
        return codec.rows_of([rows[key] for key in of.tolist()], "<f4", (length,)).astype(np.float32)

    own = vectors(chosen)
    near = search.nearest(view, WHOLE, Vectors(own, None), NEIGHBOURS, None, 1.0, chosen)
    of_each = np.array([near.keys[a : a + NEIGHBOURS] for a in near.offsets[:-1]])
    random, line = np.random.RandomState(len(keys)), np.arange(len(chosen))
    one = random.randint(NEIGHBOURS, size=len(chosen))
    other = (one + random.randint(1, NEIGHBOURS, size=len(chosen))) % NEIGHBOURS
    return np.asarray(own + vectors(of_each[line, one]) - vectors(of_each[line, other]), np.float32)


class GraphTrial(Trial):
    """Queries whose true neighbours are known, and what the graph finds of them, by how many candidates it keeps."""

    def __init__(self, view: PostgresView, queries: Any, k: int) -> None:
        super().__init__(len(queries))
        self._view, self._queries = view, queries
        near = search.nearest(view, WHOLE, Vectors(queries, None), k, None, 1.0, None)
        self.truth: Float64 = np.array([near.distances[a : a + k] for a in near.offsets[:-1]])
        self._known: dict[tuple[int, bool, int], Mask] = {}

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        efforts = [each for each in _efforts(k) if each > tried.reach]
        at = first_that_holds(len(efforts), lambda i: enough(self._found(efforts[i], True, k)))
        return None if at == len(efforts) else _setting(efforts[at])

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        return self._found(int(setting.reach), False, k)

    def _found(self, effort: int, choosing: bool, k: int) -> Mask:
        """Return which of the k neighbours the graph finds: those of the same distance are as good."""
        if (effort, choosing, k) not in self._known:
            which = self.choosing if choosing else self.measuring
            near = search.by_effort(self._view, self._queries[which], k, effort)
            pairs = zip(self.truth[which, :k], near, strict=True)
            self._known[effort, choosing, k] = np.array([np.isin(truth, found.distances) for truth, found in pairs])
        return self._known[effort, choosing, k]


def _efforts(k: int) -> list[int]:
    """Return how many candidates the graph may keep, for k neighbours."""
    found = [k]
    while found[-1] < search.EF_LARGEST:
        found.append(min(search.EF_LARGEST, max(found[-1] + 1, int(found[-1] * 1.25))))
    return [each for each in found if each <= search.EF_LARGEST]


def _setting(effort: int) -> Setting:
    return Setting(float(effort), effort, float(effort))


def calibration_of(learnt: Learnt, k: int, recall: float) -> Calibration | None:
    return next((each for each in learnt.calibrations if (each.k, each.recall) == (k, recall)), None)
