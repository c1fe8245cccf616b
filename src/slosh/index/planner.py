"""How a question is answered, step by step: embed, ask the engine for candidates, re-rank or certify, make hits.

It is the only module that knows all of these steps. A view of the index and prepared queries come in; hits go out.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..data.checks import checked_count, checked_flag
from ..data.progress import ProgressBar
from ..data.sets import Sets
from ..engines.base import Candidates, Float64, Int64, View
from ..engines.spec import WHOLE
from ..errors import InputError, UnsupportedError
from ..search import Stats, checked_radii, checked_recall
from ..where import Node, parse
from . import certify, parts, rerank
from .hits import HitLists, Hits, make_hits

BATCH_NUMBERS = 1 << 20
"""Numbers of the query vectors that are searched for together."""
BATCH_RERANKED = 256
"""Queries worked on together where the sets of their candidates are fetched."""
SCANNED_PAIRS = 1 << 23
"""Pairs of a query and a set that a proof may have to look at together, where it compares all of them."""
MIN_DEPTH, DEPTH_FACTOR = 32, 4
"""Without `depth`, so many candidates are re-ranked for each of the k that are asked for, and at least so many."""


class Question(NamedTuple):
    """What is asked about each query; `checked` makes one from what a user passed."""

    k: int | None = None
    radius: Any = None
    where: Node | None = None
    recall: float | None = None
    measure: rerank.Measure | None = None
    depth: int = 0
    """Candidates that are re-ranked; 0 for parts is what was measured for the recall."""
    certify: bool = False
    how: parts.Matching = parts.Matching()
    """Which sets are looked for: those like the query, or those that contain it, or lie within it."""
    slack: bool = False
    """Widen the radius by what rounding may have moved each pair, so that none is left out."""
    max_hits: int | None = None
    """Sets within the radius, of all queries together, of which one more is an error."""

    @property
    def proved_kind(self) -> str:
        """The distance that `certify` is about."""
        if self.how.match != parts.WHOLE_SETS:
            return self.how.kind
        return "sliced" if self.measure is None else self.measure.kind

    @classmethod
    def checked(
        cls,
        view: View,
        *,
        k: Any = None,
        radius: Any = None,
        where: Any = None,
        recall: Any = None,
        rerank_by: Any = None,
        depth: Any = None,
        certify: bool = False,
        offset: int = 0,
        match: Any = parts.WHOLE_SETS,
        coverage: Any = None,
    ) -> Question:
        if k is not None:
            k = checked_count("k", k) + checked_count("offset", offset, least=0)
        checked_flag("certify", certify)
        if depth is not None:
            checked_count("depth", depth)
        goal, how = checked_recall(recall), parts.Matching.checked(view, match, coverage, rerank_by)
        if how.match != parts.WHOLE_SETS:
            return cls._about_parts(view, how, k, radius, where, goal, rerank_by, depth, certify, offset)
        if certify:
            _check_certify(rerank_by, depth, goal)
        elif rerank_by is not None and radius is not None:
            problem = "only a proof finds all sets within a radius by a distance between sets"
            raise InputError(problem, "give certify=True too, or leave rerank out", argument="rerank")
        if depth is not None and rerank_by is None:
            raise InputError("depth says how many are re-ranked", "give rerank too", argument="depth")
        if offset and rerank_by is not None and depth is None and not certify:
            problem = "pages of a re-ranked search are those of one answer only if all of them re-rank as many"
            raise InputError(problem, "give depth, k plus the largest offset or more", argument="depth")
        if goal is None and k is not None and not certify:
            goal = view.settings["recall"]
        measure = rerank.measure_of(rerank_by, view.spec.embedding)
        deep = 0 if k is None else max(k, depth or max(DEPTH_FACTOR * k, MIN_DEPTH))
        node = None if where is None else parse(where)
        return cls(None if k is None else int(k), radius, node, goal, measure, deep, certify)

    @classmethod
    def _about_parts(
        cls,
        view: View,
        how: parts.Matching,
        k: Any,
        radius: Any,
        where: Any,
        goal: float | None,
        rerank_by: Any,
        depth: Any,
        certify: bool,
        offset: int,
    ) -> Question:
        """Return a question about parts; k includes the offset."""
        other = rerank_by is not None and not how.squared
        if other and (certify or radius is not None or goal is not None):
            name = "certify" if certify else "radius" if radius is not None else "recall"
            problem = f"part search promises nothing about rerank={rerank_by!r:.60}"
            raise InputError(problem, f"leave {name} out, or leave rerank out", argument="rerank")
        if certify and goal not in (None, 1.0):
            raise InputError("certify is exact", "leave recall out", argument="certify")
        if depth is not None and (certify or goal is not None):
            problem = "depth says how many are compared, and recall and certify find that out"
            raise InputError(problem, "leave depth out, or recall and certify", argument="depth")
        if offset and depth is None and not certify and goal != 1.0:
            problem = "pages of a part search are those of one answer only if all of them compare as many"
            raise InputError(problem, "give depth, k plus the largest offset or more, or certify", argument="depth")
        measure = rerank.measure_of(rerank_by, view.spec.embedding, how.coverage) if other else None
        deep = 0 if k is None or depth is None else max(k, depth)
        if other and k is not None and depth is None:
            deep = max(DEPTH_FACTOR * k, MIN_DEPTH)
        node = None if where is None else parse(where)
        return cls(None if k is None else int(k), radius, node, goal, measure, deep, certify, how)


def _check_certify(rerank_by: Any, depth: Any, goal: float | None) -> None:
    """Refuse what leaves nothing to prove."""
    if depth is not None or goal not in (None, 1.0):
        raise InputError(
            "certify is exact, by all candidates that it takes", "leave depth and recall out", argument="certify"
        )
    if rerank_by is not None and not (isinstance(rerank_by, str) and rerank_by in certify.PROVABLE):
        problem = f"certify cannot prove the nearest by rerank={rerank_by!r:.60}"
        remedy = "give rerank='hausdorff'; or leave rerank out, for the sliced distance"
        raise InputError(problem, remedy, argument="rerank")


def answer(view: View, queries: Sets, exclude: Int64 | None, question: Question, offset: int = 0) -> HitLists:
    """Return the hits of each prepared query but the first `offset`.

    `exclude` are keys that the queries themselves have and must not find.
    """
    started = perf_counter()
    found = rank(view, queries, exclude, question)
    hits = make_hits(found, view.describe(found.keys), slice(offset, question.k))
    kind = view.spec.distance_kind if found.kind == "embedded" else found.kind
    seconds, covered = perf_counter() - started, view.covered
    promise = found.promise if covered == 1.0 else None  # of sets that were not asked nothing is known
    stats = Stats(found.compared, found.scanned, promise, seconds, found.full_distances, found.unlike, covered)
    return HitLists(Hits(hits.ids, hits.distances, hits.metadata, kind, stats), hits.offsets)


def rank(view: View, queries: Sets, exclude: Int64 | None, question: Question) -> Candidates:
    """Return the keys of what is found for each prepared query, in the order of distances; arguments as in `answer`."""
    if question.certify and question.how.match == parts.WHOLE_SETS:
        certify.check_possible(view, question.proved_kind)
    elif question.recall == 1.0 and not (
        view.capabilities.exact_nearest if question.radius is None else view.capabilities.exact_range
    ):
        problem = "recall=1.0 asks for an exact search, which this engine does not have"
        raise UnsupportedError(problem, "ask for less", argument="recall", feature_name="recall")
    radii = None if question.radius is None else checked_radii(question.radius, len(queries))
    if not len(view):
        return _nothing(len(queries), question, view.spec.distance_kind)
    n = len(queries)
    if n == 1 or n <= (step := _batch_size(view, question)):
        return _not_too_many(_found(view, queries, exclude, radii, question), question, 0)
    answers: list[Candidates] = []
    n_hits = 0
    with ProgressBar(total=n, unit="query", desc="search") as bar:
        for first in range(0, n, step):
            part = slice(first, first + step)
            own, limits = None if exclude is None else exclude[part], None if radii is None else radii[part]
            answers.append(_not_too_many(_found(view, queries[part], own, limits, question), question, n_hits))
            n_hits += len(answers[-1].keys)
            bar.update(min(step, n - first))
    return _joined(answers)


def _not_too_many(found: Candidates, question: Question, before: int) -> Candidates:
    """Return what was found for some queries; refuse more than is wanted, with what was found before."""
    most = question.max_hits
    if most is not None and before + len(found.keys) > most:
        problem = f"more than {most:,} sets are within the radius"
        raise InputError(problem, "ask with fewer queries, a smaller radius or a filter", argument="radius")
    return found


def _nothing(n_queries: int, question: Question, kind: str) -> Candidates:
    """Return what an empty index answers."""
    of_parts = question.how.match != parts.WHOLE_SETS
    if question.measure is not None:
        kind = question.measure.kind
    elif question.certify or of_parts:
        kind = question.proved_kind
    none, zeros = np.empty(0, np.int64), np.zeros(n_queries, np.int64)
    full = None if question.measure is None and not question.certify and not of_parts else zeros
    return Candidates(np.zeros(n_queries + 1, np.int64), none, np.empty(0), kind, 1.0, zeros, zeros, None, full)


def _found(view: View, queries: Sets, exclude: Int64 | None, radii: Float64 | None, question: Question) -> Candidates:
    """Return what is found for one batch of queries."""
    where, recall = question.where, question.recall
    if question.how.match != parts.WHOLE_SETS:
        return _found_by_parts(view, queries, exclude, radii, question)
    # A plain search needs no bounds, and so no time for them.
    vectors = view.spec.vectors(queries, slack=question.certify or question.slack)
    if radii is not None:
        if question.certify:
            return certify.within(view, queries, vectors, radii, where, exclude, question.proved_kind)
        bounds = question.slack and view.spec.embedding.has_bounds
        return view.within(WHOLE, vectors, radii, where=where, recall=recall, exclude=exclude, bounds=bounds)
    assert question.k is not None
    if question.certify:
        return certify.nearest(view, queries, vectors, question.k, where, exclude, question.proved_kind)
    if question.measure is not None:
        near = view.nearest(WHOLE, vectors, question.depth, where=where, recall=recall, exclude=exclude)
        return rerank.rerank(view, queries, near, question.measure)
    return view.nearest(WHOLE, vectors, question.k, where=where, recall=recall, exclude=exclude)


def _found_by_parts(
    view: View, queries: Sets, exclude: Int64 | None, radii: Float64 | None, question: Question
) -> Candidates:
    how, where = question.how, question.where
    if radii is not None:
        return parts.within(view, queries, radii, how, where, exclude)
    assert question.k is not None
    if question.measure is not None:
        near = parts.candidates(view, queries, question.depth, how, where, exclude)
        return rerank.rerank(view, queries, near, question.measure)
    return parts.nearest(
        view, queries, question.k, how, where=where, exclude=exclude, recall=question.recall,
        depth=question.depth or None, prove=question.certify,
    )  # fmt: skip


def _batch_size(view: View, question: Question) -> int:
    """Return how many queries are worked on together: fewer where sets are fetched for each, or vectors are long."""
    if question.how.match != parts.WHOLE_SETS:
        return max(1, min(BATCH_RERANKED, SCANNED_PAIRS // len(view)))
    plain = question.measure is None and not question.certify
    step = max(1, BATCH_NUMBERS // view.spec.spaces[WHOLE].length) if plain else BATCH_RERANKED
    if question.max_hits is not None:  # each query may find all sets
        step = max(1, min(step, max(SCANNED_PAIRS, question.max_hits) // len(view)))
    if question.certify and certify.scans(view, question.proved_kind):
        step = max(1, min(step, SCANNED_PAIRS // len(view)))
    return step


def _joined(answers: list[Candidates]) -> Candidates:
    """Put the answers of all batches one after the other."""

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in answers])

    ends = np.cumsum([0, *(len(part.keys) for part in answers)])
    promises = [part.promise for part in answers]  # a filter may have been answered exactly for some
    return answers[0]._replace(
        offsets=np.concatenate([[0], *(part.offsets[1:] + end for part, end in zip(answers, ends[:-1], strict=True))]),
        **{name: joined(name) for name in ("keys", "distances", "compared", "scanned")},
        promise=None if None in promises else min(p for p in promises if p is not None),
        slack=None,
        full_distances=None if answers[0].full_distances is None else joined("full_distances"),
        unlike=None if any(part.unlike is None for part in answers) else joined("unlike"),
    )
