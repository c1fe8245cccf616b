"""Nearest sets with equal distances in the order of their ids, so that an exact answer does not depend on the history.

The searches below break ties by row, that is by the order of the adds. Where the k-th and the next distance are equal,
all sets at that distance are looked up, and those with the first ids are taken.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.sets import Sets
from ..index.hits import HitLists, Hits, hit_list
from ..search.result import RangeResult, Result, Stats
from ..search.rows import Allowed
from .held import Held

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
NEXT = 1 + 1e-12
"""A radius is this much larger than the distance that it is to include."""


def nearest(
    c: sqlite3.Connection,
    engine: Held,
    queries: Sets,
    k: int,
    allowed: Allowed | None,
    own: Int64 | None,
    *,
    recall: float | None,
    rerank: Any,
    depth: int | None,
    certify: bool,
) -> HitLists:
    """The k nearest of each query; `own` are rows that the queries themselves have, and do not find."""
    started = time.perf_counter()
    sets = engine.ready_sets
    n_allowed = len(sets) if allowed is None else allowed.n
    wanted = k + (own is not None)
    exact = rerank is None and (certify or sets.vector_search._exact(wanted, n_allowed, recall))
    options: dict[str, Any] = {"allowed": allowed, "recall": recall}
    found = sets.search(queries, wanted + exact, rerank=rerank, depth=depth, certify=certify, **options)
    if not exact and rerank is None and found.stats.recall == 1.0:  # so it was after all: then ties are by id, too
        return nearest(c, engine, queries, k, allowed, own, recall=1.0, rerank=None, depth=None, certify=False)
    described = engine.described(c, _different(found.rows))
    stats = replace(found.stats, seconds=time.perf_counter() - started)
    lists = []
    for i in range(len(found)):
        rows, distances = found.rows[i, :wanted], found.distances[i, :wanted]
        if own is not None:
            others = rows != own[i]
            rows, distances = rows[others], distances[others]
        lists.append(_first(hit_list(rows, distances, described, found.distance_kind, stats), k))
    if exact and found.rows.shape[1] > wanted:
        last, after = found.distances[:, wanted - 1], found.distances[:, wanted]
        tied = np.flatnonzero((last == after) & np.isfinite(last))
        if len(tied):
            mine = None if own is None else own[tied]
            again = _all_tied(c, engine, queries.take(tied), last[tied], mine, found, allowed, certify, stats)
            for i, hits in zip(tied.tolist(), again, strict=True):
                lists[i] = _first(hits, k)
    return HitLists(lists, found.distance_kind, stats)


def _all_tied(
    c: sqlite3.Connection,
    engine: Held,
    queries: Sets,
    last: Float64,
    own: Int64 | None,
    found: Result,
    allowed: Allowed | None,
    certify: bool,
    stats: Stats,
) -> list[Hits]:
    """All up to the distance `last` of each query, which several sets have, by distance, then id."""
    recall = None if certify else 1.0
    near = engine.ready_sets.range_search(queries, last * NEXT, allowed=allowed, certify=certify, recall=recall)
    described = engine.described(c, _different(near.rows))
    out = []
    for i, (distances, rows) in enumerate(near):
        there = (distances <= last[i]) & (True if own is None else rows != own[i])
        out.append(hit_list(rows[there], distances[there], described, found.distance_kind, stats))
    return out


def _different(rows: Int64) -> list[int]:
    """Each row once, without those that stand for none."""
    found: list[int] = rows.ravel().tolist() if rows.size <= 64 else np.unique(rows).tolist()
    return [row for row in dict.fromkeys(found) if row >= 0]


def _first(hits: Hits, k: int) -> Hits:
    if len(hits) <= k:
        return hits
    return Hits(hits.ids[:k], hits.distances[:k], hits._texts[:k], hits.distance_kind, hits.stats)


def within(
    c: sqlite3.Connection,
    engine: Held,
    queries: Sets,
    radius: Any,
    allowed: Allowed | None,
    own: Int64 | None,
    *,
    recall: float | None,
    certify: bool,
) -> HitLists:
    """All within a radius of each query."""
    started = time.perf_counter()
    found: RangeResult = engine.ready_sets.range_search(
        queries, radius, allowed=allowed, recall=recall, certify=certify
    )
    described = engine.described(c, _different(found.rows))
    stats = replace(found.stats, seconds=time.perf_counter() - started)
    lists = []
    for i, (distances, rows) in enumerate(found):
        others = slice(None) if own is None else rows != own[i]
        lists.append(hit_list(rows[others], distances[others], described, found.distance_kind, stats))
    return HitLists(lists, found.distance_kind, stats)
