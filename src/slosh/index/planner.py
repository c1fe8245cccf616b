"""How a question is answered, step by step: embed, ask the engine for candidates, re-rank or certify, make hits.

It is the only module that knows all of these steps. A view of the index and prepared queries come in; hits go out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..data.checks import checked_count
from ..data.sets import Sets
from ..engines.base import Candidates, Float64, Int64, View
from ..engines.spec import WHOLE, Vectors
from ..errors import InputError, UnsupportedError
from ..search import Stats, checked_radii, checked_recall
from ..where import Node, parse
from . import certify, rerank
from .hits import HitLists, Hits, Ranked, make_hits

BATCH_QUERIES = 256
"""Queries worked on together."""
MIN_DEPTH, DEPTH_FACTOR = 32, 4
"""Without `depth`, so many candidates are re-ranked for each of the k that are asked for, and at least so many."""


@dataclass(frozen=True)
class Question:
    """What is asked about each query; `checked` makes one from what a user passed."""

    k: int | None = None
    radius: Any = None
    where: Node | None = None
    recall: float | None = None
    measure: rerank.Measure | None = None
    depth: int = 0
    certify: bool = False
    slack: bool = False
    """Widen the radius by what rounding may have moved each pair, so that none is left out."""

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
    ) -> Question:
        if k is not None:
            checked_count("k", k)
        if depth is not None:
            checked_count("depth", depth)
        goal = checked_recall(recall)
        if certify and (rerank_by is not None or depth is not None or goal not in (None, 1.0)):
            raise InputError(
                "certify is exact, by the sliced distance", "leave rerank, depth and recall out", argument="certify"
            )
        if depth is not None and rerank_by is None:
            raise InputError("depth says how many are re-ranked", "give rerank too", argument="depth")
        if goal is None and k is not None and not certify:
            goal = view.settings["recall"]
        measure = rerank.measure_of(rerank_by, view.spec.embedding)
        deep = 0 if k is None else max(k, depth or max(DEPTH_FACTOR * k, MIN_DEPTH))
        node = None if where is None else parse(where)
        return cls(None if k is None else int(k), radius, node, goal, measure, deep, certify)


def answer(view: View, queries: Sets, exclude: Int64 | None, question: Question) -> HitLists:
    """Return the hits of each prepared query; `exclude` are keys that the queries themselves have and must not find."""
    started = time.perf_counter()
    ranked = rank(view, queries, exclude, question)
    hits = make_hits(view.describe, ranked, question.k)
    seconds = time.perf_counter() - started
    stats = Stats(ranked.compared, ranked.scanned, ranked.promise, seconds, ranked.full_distances)
    return HitLists([Hits(*each, ranked.kind, stats) for each in hits], ranked.kind, stats)


def rank(view: View, queries: Sets, exclude: Int64 | None, question: Question) -> Ranked:
    """Return the keys of what is found for each prepared query, in the order of distances; arguments as in `answer`."""
    if not len(view):
        raise InputError("the index is empty", "add sets first")
    if question.certify:
        certify.check_possible(view)
    elif question.recall == 1.0 and not view.capabilities.exact_nearest:
        problem = "recall=1.0 asks for an exact search, which this engine does not have"
        raise UnsupportedError(problem, "ask for less", argument="recall", feature_name="recall")
    radii = None if question.radius is None else checked_radii(question.radius, len(queries))
    slack = question.certify or question.slack  # a plain search needs no bounds, and so no time for them
    parts: list[Ranked] = []
    for part in _batches(len(queries)):
        batch, own = queries[part], None if exclude is None else exclude[part]
        limits = None if radii is None else radii[part]
        parts.append(_ranked(view, batch, view.spec.vectors(batch, slack=slack), own, limits, question))
    return _joined(parts, view, question)


def _ranked(
    view: View, queries: Sets, vectors: Vectors, exclude: Int64 | None, radii: Float64 | None, question: Question
) -> Ranked:
    where, recall = question.where, question.recall
    if radii is not None:
        if question.certify:
            return certify.within(view, queries, vectors, radii, where, exclude)
        bounds = question.slack and view.spec.embedding.has_bounds
        return _plain(view.within(WHOLE, vectors, radii, where=where, recall=recall, bounds=bounds), exclude)
    assert question.k is not None
    if question.certify:
        return certify.nearest(view, queries, vectors, question.k, where, exclude)
    if question.measure is not None:
        near = view.nearest(WHOLE, vectors, question.depth, where=where, recall=recall, exclude=exclude)
        return rerank.rerank(view, queries, near, question.measure, question.k)
    return _plain(view.nearest(WHOLE, vectors, question.k, where=where, recall=recall, exclude=exclude), None)


def _plain(found: Candidates, exclude: Int64 | None) -> Ranked:
    """Rank candidates by the distance that they were found by."""
    offsets, keys, distances = found.offsets, found.keys, found.distances
    if exclude is not None:
        query = found.query
        others = np.flatnonzero(keys != exclude[query])
        offsets = np.searchsorted(query[others], np.arange(len(offsets)))
        keys, distances = keys[others], distances[others]
    return Ranked(offsets, keys, distances, found.kind, found.promise, found.compared, found.scanned)


def _batches(n: int) -> Iterator[slice]:
    if n <= BATCH_QUERIES:  # a bar would take longer than the search
        yield from [slice(0, n)] if n else []
        return
    with tqdm(total=n, unit="query", delay=2, disable=None, leave=False, desc="search") as bar:
        for first in range(0, n, BATCH_QUERIES):
            yield slice(first, min(first + BATCH_QUERIES, n))
            bar.update(min(BATCH_QUERIES, n - first))


def _joined(parts: list[Ranked], view: View, question: Question) -> Ranked:
    """Put the answers of all batches one after the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = np.empty(0, np.int64)
        kind = "sliced" if question.certify else "embedded"
        return Ranked(np.zeros(1, np.int64), none, np.empty(0), kind, 1.0, none, none)
    ends = np.cumsum([0, *(len(part.keys) for part in parts)])
    full = [part.full_distances for part in parts if part.full_distances is not None]
    return Ranked(
        np.concatenate([[0], *(part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True))]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.distances for part in parts]),
        parts[0].kind,
        parts[0].promise if len({part.promise for part in parts}) == 1 else _least(parts),
        np.concatenate([part.compared for part in parts]),
        np.concatenate([part.scanned for part in parts]),
        np.concatenate(full) if full else None,
    )


def _least(parts: list[Ranked]) -> float | None:
    """Return what holds for all batches: a filter may have been answered exactly for some."""
    promises = [part.promise for part in parts]
    return None if None in promises else min(p for p in promises if p is not None)
