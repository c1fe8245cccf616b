"""Part search: the stored sets that contain a query, those that lie within it, or those that match it both ways.

Distances are one-sided: the mean distance from the elements of one set to the nearest element of the other. Candidates
come from the short vectors of the space "parts", or, where these say nothing (`coverage`, the other direction), from
all sets; of those with the smallest estimates, made from their stored features, the distances are computed from the
points. A proof computes a lower bound of every set that matches the filter from its stored features, and then distances
in the order of the bounds, as `certify.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import NATIVE_STEPS, checkpoint, pieces
from ..data.sets import Sets
from ..embed.part_bounds import contained_bounds
from ..embed.part_field import FIELD, SHARES, SPREAD, PartField, PartQueries
from ..engines.base import Candidates, Float64, Int64, View
from ..engines.spec import PARTS, Vectors
from ..errors import InputError, UnsupportedError
from ..native import kernel, parts
from ..rank.part import check_unit_length, not_of_unit_length
from ..rank.part_pairs import Direction, PartPairs, checked_coverage
from ..where import Node
from . import certify, part_recall

WHOLE_SETS, PART, CONTAINED, BOTH = "whole", "part", "contained", "both"
MATCHES = (WHOLE_SETS, PART, CONTAINED, BOTH)
"""What `match=` may be."""
DIRECTIONS: dict[str, Direction] = {PART: "part", CONTAINED: "contained", BOTH: "both"}
KINDS = {PART: "part", CONTAINED: "contained", BOTH: "chamfer"}
"""What the distances of each are called."""
BLOCK_BYTES = 1 << 26
"""Bytes of features that are fetched at once."""
MIN_DEPTH, DEPTH_FACTOR = 64, 4
"""Where nothing was measured: candidates whose distances are computed, at least, and for each of the k asked for."""
POOL_FACTOR = 8
"""Candidates from the short vectors for each whose distance is computed: estimates choose among them."""
POOL_RECALL = 0.97
"""The share of these candidates that the search of the short vectors has to find, if that was measured for as many;
otherwise it finds all."""
EXACT_BELOW_SETS = 1024
"""With fewer sets that match a proof takes no longer than finding candidates."""


class Matching(NamedTuple):
    """How sets are matched: `match` is one of MATCHES, `coverage` the share of the mass that counts, the best first.

    squared : compare by squared distances, for MaxSim.
    """

    match: str = WHOLE_SETS
    coverage: float = 1.0
    squared: bool = False

    @property
    def kind(self) -> str:
        """What its distances are called."""
        return "maxsim" if self.squared else KINDS[self.match]

    @classmethod
    def checked(cls, view: View, match: Any, coverage: Any, rerank_by: Any) -> Matching:
        """Return how sets are matched, from what a user passed."""
        if not isinstance(match, str) or match not in MATCHES:
            raise InputError(f"match={match!r:.60}", f"give {', '.join(map(repr, MATCHES))}", argument="match")
        if match == WHOLE_SETS:
            if coverage is not None:
                problem = "coverage says how much of a part must be there, and whole sets are compared"
                raise InputError(problem, "give match='part' too, or leave coverage out", argument="coverage")
            return cls()
        share = 1.0 if coverage is None else checked_coverage(coverage)
        if view.spec.parts is None:
            problem = f"match={match!r} needs what part search stores, and this index has none of it"
            raise UnsupportedError(problem, 'call index.enable("parts") once', argument="match", feature_name="parts")
        if match == BOTH and share < 1:
            problem = "match='both' compares all of both sets, and coverage leaves some out"
            raise InputError(problem, "give match='part' or 'contained', or leave coverage out", argument="coverage")
        squared = isinstance(rerank_by, str) and rerank_by == "maxsim"
        if squared and match != PART:
            problem = f"MaxSim goes from the query to a stored set, and match={match!r} does not"
            raise InputError(problem, "give match='part', or another rerank", argument="rerank")
        return cls(match, share, squared)


class PartDistances(certify.Distances):
    """One-sided distances, or their mean for both directions; 1 - MaxSim where they are squared."""

    def __init__(self, view: View, queries: Sets, how: Matching) -> None:
        super().__init__(view, queries)
        self.kind, self._squared = how.kind, how.squared
        n_jobs = getattr(view.spec.parts, "n_jobs", None)
        self._pairs = PartPairs(queries, DIRECTIONS[how.match], how.squared, how.coverage, n_jobs)

    def _check(self, candidates: Sets, keys: Int64) -> None:
        if self._squared and (found := not_of_unit_length(candidates)):
            name = self._view.ids(keys[found.set : found.set + 1])[0]
            at = f"element {found.element} of the stored set {name!r}"
            problem = f"{at} has the length {found.length:.6g}, and MaxSim needs 1"
            remedy = "update that set by one of unit vectors, or remove it"
            raise InputError(problem, remedy, argument="rerank", id=name, element=found.element)

    def _of_pairs(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        distances = self._pairs.distances(which, candidates, index)
        return distances / 2 if self._squared else distances

    def widen(self, distances: Float64) -> Float64:
        return self._pairs.widen(distances)


class Bounds:
    """Lower bounds of the distances of queries to stored sets, from what is stored of these.

    With `estimate` it is as if every element were where its anchor is: no bound, but nearer to the distance, and of
    use where there are so many dimensions that all anchors are far off and the bounds next to nothing.
    """

    def __init__(self, view: View, queries: Sets, asked: PartQueries, how: Matching, *, estimate: bool = False) -> None:
        field = view.spec.parts
        assert field is not None
        if estimate:
            asked = asked._replace(
                anchors=np.ascontiguousarray(asked.anchors[:, :1]), distances=np.zeros((len(asked.anchors), 1))
            )
        self._view, self._how, self._parts, self._asked, self._estimate = view, how, field, asked, estimate
        self._fields = None if how.match == PART else _rounded_down(field, queries)
        self._threads = kernel.threads(field.n_jobs)

    def of(self, keys: Int64) -> Float64:
        """Return the bounds, or estimates, (n_queries, n_keys)."""
        low = np.empty((len(self._asked.offsets) - 1, len(keys)))
        for part in self._blocks(len(keys)):
            low[:, part] = self._of_block(keys[part])
        return low

    def of_query(self, i: int, keys: Int64) -> Float64:
        """Return those of one query, for match="part", (n_keys,)."""
        asked = self._asked
        part = slice(asked.offsets[i], asked.offsets[i + 1])
        one = asked._replace(
            offsets=asked.offsets[i : i + 2] - asked.offsets[i],
            anchors=asked.anchors[part],
            distances=asked.distances[part],
            weights=None if asked.weights is None else asked.weights[part],
        )
        return np.asarray(self._of_queries(self._view.features(FIELD, keys), one)[0])

    def _blocks(self, n: int) -> Iterator[slice]:
        step = max(1, BLOCK_BYTES // self._parts.n_anchors_)
        steps_each = max(self._asked.anchors.size, (len(self._asked.offsets) - 1) * self._parts.n_anchors_)
        return pieces(n, max(steps_each, NATIVE_STEPS / step), self._threads)

    def _of_block(self, keys: Int64) -> Float64:
        match = self._how.match
        total = np.zeros((len(self._asked.offsets) - 1, len(keys)))
        if match in (PART, BOTH):
            total += self._of_queries(self._view.features(FIELD, keys), self._asked)
        if match in (CONTAINED, BOTH):
            total += self._of_sets(self._view.features(SHARES, keys), self._view.features(SPREAD, keys))
        return total / 2 if match == BOTH or self._how.squared else total

    def _of_queries(self, fields: Any, asked: PartQueries) -> Float64:
        """Return bounds from the queries' elements to the sets of these fields."""
        how = self._how
        lower, _ = parts.field_bounds(
            fields, self._parts.step_, asked.anchors, asked.distances, asked.offsets, asked.weights, how.coverage,
            how.squared, threads=self._threads,
        )  # fmt: skip
        return lower

    def _of_sets(self, shares: Any, spread: Any) -> Float64:
        """Return bounds from the stored sets' elements to the queries."""
        assert self._fields is not None
        if self._estimate:
            spread = spread * np.array([1, 0], np.float32)
        return contained_bounds(shares, spread, self._fields, self._how.coverage, self._threads)


def _rounded_down(field: PartField, queries: Sets) -> NDArray[np.float32]:
    """Return the fields of queries, no number larger than the true one."""
    found = field.field(queries)
    return np.asarray(np.maximum(found - field.rounding(found), 0), np.float32)


def nearest(
    view: View,
    queries: Sets,
    k: int,
    how: Matching,
    *,
    where: Node | None,
    exclude: Int64 | None,
    recall: float | None,
    depth: int | None,
    prove: bool,
) -> Candidates:
    """Return the k nearest sets of each query; with `prove`, or a recall of 1, these are the true ones.

    `depth` is the number of candidates whose distances are computed, None what was measured for the recall.
    """
    field = view.spec.parts
    assert field is not None
    asked, measure = field.queries(queries), PartDistances(view, queries, how)
    if how.squared:
        check_unit_length(queries, "queries")
    n_match = len(view) if where is None else len(view.select(where))
    plan = part_recall.Plan(depth, None) if depth is not None else _plan(view, k, how, where, recall, n_match)
    if prove or recall == 1.0 or plan is None:
        bounds = _Scan(view, Bounds(view, queries, asked, how), where, exclude)
        return certify.prove_nearest(measure, bounds.best(k), bounds.within, k)
    near = _candidates(view, queries, asked, plan.depth, how, where, exclude)
    which = near.query
    distances = measure.compute(which, near.keys)
    order = np.lexsort((distances, which))
    rank = np.arange(len(order)) - near.offsets[which]
    kept = order[rank < k]
    full = np.diff(near.offsets)
    n_there: Any = n_match
    if exclude is not None:
        n_there = n_match - (exclude >= 0 if where is None else np.isin(exclude, view.select(where)))
    all_seen = bool((full >= n_there).all())
    return Candidates(
        np.searchsorted(which[kept], np.arange(len(queries) + 1)), near.keys[kept], distances[kept], how.kind,
        1.0 if all_seen else plan.promise, near.compared, near.scanned, full_distances=full,
    )  # fmt: skip


def candidates(
    view: View, queries: Sets, depth: int, how: Matching, where: Node | None, exclude: Int64 | None
) -> Candidates:
    """Return candidates of each query, best first, for a re-rank by another distance."""
    assert view.spec.parts is not None
    return _candidates(view, queries, view.spec.parts.queries(queries), depth, how, where, exclude)


def within(
    view: View, queries: Sets, radii: Float64, how: Matching, where: Node | None, exclude: Int64 | None
) -> Candidates:
    """Return all sets at most a radius away from each query."""
    assert view.spec.parts is not None
    if how.squared:
        check_unit_length(queries, "queries")
    bounds = Bounds(view, queries, view.spec.parts.queries(queries), how)
    measure = PartDistances(view, queries, how)
    found = _Scan(view, bounds, where, exclude).within(measure.widen(radii))
    return certify.prove_within(measure, found, radii)


def _plan(
    view: View, k: int, how: Matching, where: Node | None, recall: float | None, n_match: int
) -> part_recall.Plan | None:
    """Return how many candidates are compared and what is promised; None is a proof."""
    if n_match < EXACT_BELOW_SETS:
        return None
    usual = part_recall.Plan(max(DEPTH_FACTOR * k, MIN_DEPTH), None)
    if how != Matching(PART):
        return usual if recall is None else None
    known = part_recall.plan(view, k, recall)
    if known is None:
        return usual if recall is None else None
    return known if where is None else known._replace(promise=None)


def _candidates(
    view: View, queries: Sets, asked: PartQueries, depth: int, how: Matching, where: Node | None, exclude: Int64 | None
) -> Candidates:
    estimates = Bounds(view, queries, asked, how, estimate=True)
    if how.match != PART or how.coverage < 1:
        return _Scan(view, estimates, where, exclude).best(depth)
    vectors = Vectors(asked.vectors, None)
    pool = view.nearest(PARTS, vectors, pool_size(depth), where=where, recall=POOL_RECALL, exclude=exclude)
    chosen = [_best_of(pool, i, estimates, depth) for i in range(len(queries))]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in chosen])])
    at = np.concatenate([np.empty(0, np.int64), *chosen])
    return pool._replace(offsets=offsets, keys=pool.keys[at], distances=pool.distances[at], unlike=None)


def pool_size(depth: int) -> int:
    """Return how many candidates the short vectors find where the distances of so many are computed."""
    return POOL_FACTOR * depth


def _best_of(pool: Candidates, i: int, estimates: Bounds, depth: int) -> Int64:
    """Return the places of the candidates of query i that have the smallest estimates, `depth` of them."""
    checkpoint()
    first, last = int(pool.offsets[i]), int(pool.offsets[i + 1])
    if last - first <= depth:
        return np.arange(first, last)
    low = estimates.of_query(i, pool.keys[first:last])
    return np.sort(np.argsort(low, kind="stable")[:depth]) + first


class _Scan:
    """The bounds, or estimates, of all sets that match, as candidates."""

    def __init__(self, view: View, bounds: Bounds, where: Node | None, exclude: Int64 | None) -> None:
        self._keys = view.select(where)
        self._low = bounds.of(self._keys)
        if exclude is not None:
            self._low[self._keys[None, :] == exclude[:, None]] = np.inf

    def best(self, k: int) -> Candidates:
        """Return the k sets of the smallest bounds of each query, and none that is excluded."""
        n = min(k, len(self._keys))
        if not n:
            return self._made(np.zeros(self._low.shape, np.bool_))
        order = np.argpartition(self._low, n - 1, axis=1)[:, :n] if n < len(self._keys) else None
        chosen = np.ones(self._low.shape, np.bool_)
        if order is not None:
            chosen[:] = False
            np.put_along_axis(chosen, order, True, axis=1)
        return self._made(chosen & np.isfinite(self._low))

    def within(self, limits: Float64) -> Candidates:
        """Return all sets whose bound is at most the limit of their query."""
        return self._made(self._low <= limits[:, None])

    def _made(self, chosen: Any) -> Candidates:
        which, at = np.nonzero(chosen)
        low = self._low[which, at]
        order = np.lexsort((low, which))
        n, zeros = len(self._low), np.zeros(len(self._low), np.int64)
        offsets = np.searchsorted(which, np.arange(n + 1))
        return Candidates(
            offsets, self._keys[at[order]], low[order], "bound", None, zeros,
            np.full(n, len(self._keys), np.int64), slack=np.zeros(len(order)),
        )  # fmt: skip
