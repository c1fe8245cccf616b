"""Searches of one version: by the graph where its recall was measured, and by `scanning.py` otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...search import Calibration, HammingSearch, Metric
from ...where import Node
from ..base import Candidates, Float64, Int64
from ..spec import WHOLE, Vectors
from . import codec, scanning
from .scanning import Answer, Condition

if TYPE_CHECKING:
    from .view import PostgresView

GRAPH_ROWS = 1024
"""With fewer sets there is no graph: a scan is as fast."""
TOGETHER = 64
"""Queries that one statement asks the graph for."""
REST, REST_SHARE = 2, 16
"""The same for the graph, so that what is found is the k nearest by the vectors in full precision."""
EF_LARGEST = 1000
"""The largest hnsw.ef_search."""
SCANNED_ALONE = 2000
"""A filter that leaves fewer rows is answered by comparing those."""
WALK_COST = 5
"""Rows that are compared in the time in which the graph looks for one more candidate: more of them are not compared."""
MOVED_ROOM = 4.0
"""What was measured holds for vectors that rounding moves up to so many times as far as those that were there then."""
SPREAD = 2.5
"""By how many standard deviations more sets are passed than k of those that match need on average."""

GRAPH_MODES = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}


def holding(view: PostgresView, filtered: bool = False) -> list[Calibration]:
    """Return what was measured and still holds, of searches without a filter or with one."""
    header, learnt = view.header, view.learnt
    known = learnt.filtered if filtered else learnt.calibrations
    return [each for each in known if each.holds(header.sets, header.added)]


def plan_of(view: PostgresView, k: int, recall: float) -> Calibration | None:
    """Return what was measured for this question, or for one that includes it: what takes least."""
    known = (each for each in holding(view) if each.covers(k, recall))
    return min(known, key=lambda each: (each.exact, each.reach, each.k, each.recall), default=None)


def target_of(view: PostgresView, recall: float | None) -> float:
    """Return the recall to reach."""
    chosen = getattr(view.spec.search, "recall", None) if recall is None else recall
    return 1.0 if chosen is None else float(chosen)


def largest_rounding(view: PostgresView) -> float:
    """Return how far rounding moves a whole vector at most, if nothing of it is cut off."""
    return codec.largest_rounding(view.spec.spaces[WHOLE].length, _whole_scale(view))


def _whole_scale(view: PostgresView) -> float:
    return (view.header.scales or (1.0,))[0]


def moved_within(view: PostgresView) -> float:
    """Return how far rounding may have moved vectors for which what was measured holds.

    At least as far as vectors are moved that have the size of the first ones: there may be nothing to round in those.
    """
    most, measured = largest_rounding(view), view.learnt.moved
    return most if measured is None else min(most, max(MOVED_ROOM * measured, most / 2**codec.ROOM))


def nearest(
    view: PostgresView,
    space: str,
    queries: Vectors,
    k: int,
    where: Node | None,
    recall: float | None,
    exclude: Int64 | None,
) -> Candidates:
    """Return the nearest sets of each query; see `View.nearest`."""
    goal, n = target_of(view, recall), len(queries.numbers)
    own = np.full(n, -1, np.int64) if exclude is None else exclude
    condition = Condition.of(where)
    if by_codes(view, space, recall):
        found = scanning.nearest_codes(view, queries.numbers, k, condition, own)
        return _candidates(found, None, np.zeros(n, np.int64))._replace(kind="hamming")
    graph = space == WHOLE and view.header.graph and goal < 1.0 and 32 * k < view.header.sets
    if graph and n and (walk := _walk_of(view, k, goal, where, condition)) is not None:
        found, lacking = _walked(view, queries.numbers, k, walk, condition, own)
        compared = np.full(n, walk.ef)
        compared[lacking] = view.header.sets
        # What was found with all filters together is more than some of them find, so no more than was asked is stated.
        stated = walk.plan.promise(k) if condition.is_all else walk.plan.recall
        promise = 1.0 if len(lacking) == n else stated
        made = _candidates(found, promise, compared)
        nearest_within = walk.plan.nearest_within
        if where is None and nearest_within is not None and all(len(each.keys) for each in found):
            return made._replace(unlike=np.array([each.distances[0] > nearest_within for each in found]))
        return made
    found = scanning.nearest_exactly(view, space, queries.numbers, k, condition, own)
    return _candidates(found, 1.0, np.full(n, view.header.sets, np.int64))


def _walked(
    view: PostgresView, queries: Any, k: int, walk: Walk, condition: Condition, own: Int64
) -> tuple[list[Answer], Int64]:
    """Return what the graph finds, and which queries were answered by a scan instead.

    Those are the ones that find too few, as what the filter leaves lies far away, or is less than was thought; the ones
    that half precision cuts off; and the ones that find sets which rounding has moved much farther than all that was
    measured.
    """
    most, enough = moved_within(view), min(k, walk.left - 1)
    _, moved = codec.halves_of(queries, _whole_scale(view))
    found = [Answer(np.empty(0, np.int64), np.empty(0), float(each)) for each in moved]
    rows = np.flatnonzero(moved <= largest_rounding(view))
    for i, answer in zip(rows.tolist(), _by_graph(view, queries[rows], k, walk, condition, own[rows]), strict=True):
        found[i] = answer
    lacking = np.array([i for i, x in enumerate(found) if len(x.keys) < enough or x.moved > most], np.int64)
    if len(lacking):
        scanned = scanning.nearest_exactly(view, WHOLE, queries[lacking], k, condition, own[lacking])
        for i, answer in zip(lacking.tolist(), scanned, strict=True):
            found[i] = answer
    return found, lacking


def _candidates(found: list[Answer], promise: float | None, compared: Int64, slack: Any = None) -> Candidates:
    offsets = np.concatenate([[0], np.cumsum([len(each.keys) for each in found])]).astype(np.int64)
    keys = np.concatenate([np.empty(0, np.int64), *(each.keys for each in found)])
    distances = np.concatenate([np.empty(0), *(each.distances for each in found)])
    none = np.zeros(len(found), np.int64)
    return Candidates(offsets, keys, distances, "embedded", promise, compared.astype(np.int64), none, slack=slack)


# By the graph


class Walk(NamedTuple):
    """How the graph is walked.

    plan : what was measured of such walks.
    ef : how many candidates it keeps.
    left : sets that the filter leaves.
    k : how many sets the walk is asked for; fewer may be wanted.
    """

    plan: Calibration
    ef: int
    left: int
    k: int

    @property
    def pays(self) -> bool:
        """Whether it takes less time than to compare all sets that a filter leaves."""
        return self.ef <= EF_LARGEST and self.left > max(SCANNED_ALONE, WALK_COST * self.ef, 32 * self.k)


def _walk_of(view: PostgresView, k: int, recall: float, where: Node | None, condition: Condition) -> Walk | None:
    """Return how to walk the graph; None if all that the filter leaves is to be compared."""
    n = view.header.sets
    if where is None or condition.is_all:
        plan = plan_of(view, k, recall)
        if plan is None or plan.exact:
            return None
        return Walk(plan, max(int(plan.reach), k), n, k)
    known = [each for each in holding(view, filtered=True) if each.covers(k, recall)]
    plan = min(known, key=lambda each: (each.exact, each.k, each.reach), default=None)
    if plan is None or plan.exact:
        return None
    walk = filtered_walk(plan, n, view.engine.count_of(view, where, condition))
    return walk if walk.pays else None


def filtered_walk(plan: Calibration, n: int, left: int) -> Walk:
    """Return how to walk the graph if a filter leaves `left` of n sets.

    Without a filter it keeps `plan.depth` candidates. If the sets that match lie anywhere among the others, the nearest
    (k + spread) n / left of all nearly always have k that match. All that is found is among the candidates of one walk:
    pgvector can go on where it ended, but what it finds there is nearest by chance (docs/postgres.md).
    """
    passed = (plan.k + SPREAD * math.sqrt(plan.k)) * (n / max(left, 1) - 1)
    ef = max(plan.k + _rest(plan.k), math.ceil(plan.reach * (plan.depth + passed)))
    return Walk(plan, ef, left, plan.k)


def _by_graph(
    view: PostgresView, queries: Any, k: int, walk: Walk, condition: Condition, own: Int64
) -> Iterator[Answer]:
    tables, session = view.tables, view.session
    more = "relaxed_order" if condition.is_all else "off"
    view.set_modes(
        {**GRAPH_MODES, "hnsw.ef_search": str(min(walk.ef, EF_LARGEST)), "hnsw.iterative_scan": more},
    )
    halves, _ = codec.halves_of(queries, _whole_scale(view))
    limit = walk.k + _rest(walk.k) + bool((own >= 0).any())
    inner = (
        f"SELECT key, id, metadata, whole_moved FROM {tables.sets} WHERE {condition.sql}"
        f" ORDER BY whole <-> {{}} LIMIT {limit:d}"
    )
    columns = "n.key, n.id, n.metadata, e.whole, n.whole_moved"
    if len(queries) == 1:
        sql = f"SELECT {columns} FROM ({inner.format('%s')}) n JOIN {tables.exact} e USING (key)"
        lines = view.execute(sql, (*condition.parameters, codec.half_parameter(halves[0]))).fetchall()
        yield _found(view, queries[0], k, lines, int(own[0]))
        return
    sql = (
        f"SELECT q.number, {columns} FROM unnest(%s) WITH ORDINALITY AS q(v, number)"
        f" CROSS JOIN LATERAL ({inner.format('q.v')}) n JOIN {tables.exact} e USING (key)"
    )
    for first in range(0, len(queries), TOGETHER):
        part = codec.half_array(halves[first : first + TOGETHER], session.half_oid)
        of_each: list[list[Any]] = [[] for _ in queries[first : first + TOGETHER]]
        for number, *line in view.execute(sql, (part, *condition.parameters)):
            of_each[number - 1].append(line)
        for i, lines in enumerate(of_each, start=first):
            yield _found(view, queries[i], k, lines, int(own[i]))


def _found(view: PostgresView, query: Any, k: int, lines: list[Any], own: int) -> Answer:
    moved = max((line[4] for line in lines), default=0.0)
    return scanning.compared(view, query, k, lines, own)._replace(moved=moved)


def _rest(k: int) -> int:
    """Return how many more than k the graph is asked for, as rounding changes the order of those that are as far."""
    return REST + k // REST_SHARE


def by_codes(view: PostgresView, space: str, recall: float | None) -> bool:
    """Return whether a question is about sign codes: those of a `HammingSearch` that does not re-rank."""
    search = view.spec.search
    return space == WHOLE and recall is None and isinstance(search, HammingSearch) and not search.rerank


def within(
    view: PostgresView,
    space: str,
    queries: Vectors,
    radii: Float64,
    where: Node | None,
    recall: float | None,
    exclude: Int64 | None,
    bounds: bool,
    metric: Metric,
) -> Candidates:
    """Return all sets within a radius of each query; see `View.within`."""
    n = len(queries.numbers)
    own = np.full(n, -1, np.int64) if exclude is None else exclude
    condition = Condition.of(where)
    if by_codes(view, space, recall) and metric == "euclidean" and not bounds:
        near = scanning.nearest_codes(view, queries.numbers, view.header.sets, condition, own)
        kept_codes = [each.distances <= radius for each, radius in zip(near, radii, strict=True)]
        found = [Answer(each.keys[keep], each.distances[keep]) for each, keep in zip(near, kept_codes, strict=True)]
        return _candidates(found, None, np.zeros(n, np.int64))._replace(kind="hamming")
    of_queries = queries.slack if bounds and queries.slack is not None else np.zeros(n)
    if metric != "euclidean" or n > scanning.FEW_QUERIES:
        most = _most_slack(view) if bounds else 0.0
        found = scanning.within_here(view, space, queries.numbers, radii + of_queries + most, condition, own, metric)
    else:
        found = [
            scanning.within_there(view, space, q, float(r), condition, int(x), bounds, float(s))
            for q, r, x, s in zip(queries.numbers, radii, own, of_queries, strict=True)
        ]
    slacks = [np.zeros(len(each.keys)) for each in found]
    if bounds:
        slacks = [_slack_of(view, each.keys) + own_slack for each, own_slack in zip(found, of_queries, strict=True)]
    kept = [each.distances - slack <= r for each, slack, r in zip(found, slacks, radii, strict=True)]
    found = [Answer(each.keys[keep], each.distances[keep]) for each, keep in zip(found, kept, strict=True)]
    slack = np.concatenate([np.empty(0), *(s[keep] for s, keep in zip(slacks, kept, strict=True))]) if bounds else None
    made = _candidates(found, 1.0, np.full(n, view.header.sets, np.int64), slack)
    return made if metric == "euclidean" else made._replace(kind=metric)


def _most_slack(view: PostgresView) -> float:
    (most,) = view.execute(f"SELECT coalesce(max(slack), 0) FROM {view.tables.sets}").fetchone()
    return float(most)


def _slack_of(view: PostgresView, keys: Int64) -> Float64:
    found = dict(view.execute(f"SELECT key, slack FROM {view.tables.sets} WHERE key = ANY (%s)", (keys.tolist(),)))
    return np.array([found[key] for key in keys.tolist()], np.float64)


def by_effort(view: PostgresView, queries: Any, k: int, effort: int) -> list[Answer]:
    """Return what the graph finds if it keeps so many candidates; for measurements."""
    plan = Calibration(k, 0.0, float(effort), effort, 0.0, 0.0, 0, view.header.sets)
    return by_walk(view, queries, Walk(plan, effort, view.header.sets, k), Condition())


def by_walk(view: PostgresView, queries: Any, walk: Walk, condition: Condition) -> list[Answer]:
    """Return what a walk finds; for measurements."""
    return list(_by_graph(view, queries, walk.k, walk, condition, np.full(len(queries), -1, np.int64)))


def by_scan(view: PostgresView, queries: Any, k: int, condition: Condition) -> list[Answer]:
    """Return the true neighbours among those that match; for measurements."""
    return scanning.nearest_here(view, WHOLE, queries, k, condition, np.full(len(queries), -1, np.int64))
