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

from ..hits import HitLists, Hits, hit_list
from ..search.result import RangeResult, Result, Stats
from ..search.rows import Allowed
from ..sets import Sets
from .held import Held

Int64 = NDArray[np.int64]
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
    described = engine.described(c, _different(found.rows))
    stats = replace(found.stats, seconds=time.perf_counter() - started)
    lists = [
        _without(hit_list(found.rows[i, :wanted], found.distances[i, :wanted], described, found.distance_kind, stats),
                 None if own is None else described.get(int(own[i])), k)
        for i in range(len(found))
    ]  # fmt: skip
    if exact and found.rows.shape[1] > wanted:
        last, after = found.distances[:, wanted - 1], found.distances[:, wanted]
        tied = np.flatnonzero((last == after) & np.isfinite(last))
        if len(tied):
            for i, hits in zip(
                tied.tolist(), _all_tied(c, engine, queries, tied, found, wanted, allowed, certify, stats), strict=True
            ):
                lists[i] = _without(hits, None if own is None else described.get(int(own[i])), k)
    return HitLists(lists, found.distance_kind, stats)


def _all_tied(
    c: sqlite3.Connection,
    engine: Held,
    queries: Sets,
    tied: Int64,
    found: Result,
    k: int,
    allowed: Allowed | None,
    certify: bool,
    stats: Stats,
) -> list[Hits]:
    """The first k by distance, then id, of queries whose k-th distance several sets have."""
    last, sets = found.distances[tied, k - 1], engine.ready_sets
    recall = None if certify else 1.0
    near = sets.range_search(queries.take(tied), last * NEXT, allowed=allowed, certify=certify, recall=recall)
    described = engine.described(c, _different(near.rows))
    out = []
    for i, (distances, rows) in enumerate(near):
        there = distances <= last[i]
        hits = hit_list(rows[there], distances[there], described, found.distance_kind, stats)
        out.append(_first(hits, k))
    return out


def _different(rows: Int64) -> list[int]:
    """Each row once, without those that stand for none."""
    found: list[int] = rows.ravel().tolist() if rows.size <= 64 else np.unique(rows).tolist()
    return [row for row in dict.fromkeys(found) if row >= 0]


def _first(hits: Hits, k: int) -> Hits:
    return Hits(hits.ids[:k], hits.distances[:k], hits._texts[:k], hits.distance_kind, hits.stats)


def _without(hits: Hits, own: tuple[str, str] | None, k: int) -> Hits:
    """Without the query itself, and k of them."""
    if own is not None and own[0] in hits.ids:
        at = hits.ids.index(own[0])
        rest = [i for i in range(len(hits)) if i != at]
        hits = Hits(
            [hits.ids[i] for i in rest],
            hits.distances[rest],
            [hits._texts[i] for i in rest],
            hits.distance_kind,
            hits.stats,
        )
    return hits if len(hits) <= k else _first(hits, k)


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
