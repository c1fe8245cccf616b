"""Every allowed vector compared with every query, as it is stored: what a search does that has nothing better."""

from __future__ import annotations

import numpy as np

from ..native import scan
from ..native.arrays import Float64, Int64, Mask
from .columns import positions_up_to
from .state import Found, FoundWithin, Request
from .store import Batch, Vectors

NO_QUERIES: Int64 = np.empty(0, np.int64)


def compare_all(store: Vectors, asked: Request) -> Found:
    """Return the nearest of all allowed vectors."""
    ranks = None if asked.in_order else asked.ranks
    if asked.mask is not None and not store.is_checked:
        store.check(np.flatnonzero(asked.mask))
    vectors = store.array if asked.mask is None else store.unchecked
    rest = asked.exclude, ranks, asked.n_jobs
    distances, positions, tied = scan.flat(asked.queries, vectors, store.scale, asked.mask, asked.k, *rest)
    return Found(distances, positions, asked.counts(), asked.counts(0), 1.0, tied)


def compare_within(store: Vectors, asked: Request, radii: Float64) -> FoundWithin:
    """Return all allowed vectors within the radii."""
    at = positions_up_to(store.n) if asked.mask is None else np.flatnonzero(asked.mask)
    asked.queries = store.as_stored(asked.queries)
    each = (Batch(slice(i, i + 1), np.array([0, len(at)]), at) for i in range(len(asked)))
    found = store.within(asked, radii, each)
    return FoundWithin(*found, asked.counts(), asked.counts(0), 1.0)


def unfilled(positions: Int64, k: int, asked: Request, alive: Mask) -> Int64:
    """Return the queries that have found fewer positions, of (n_queries, k), than there are for them."""
    last = positions[:, -1]
    if last.min() >= 0:
        return NO_QUERIES
    if asked.exclude is None:
        return np.flatnonzero(last < 0)
    there = alive if asked.mask is None else asked.mask
    left_out = (asked.exclude >= 0) & there[asked.exclude]
    return np.flatnonzero((positions >= 0).sum(axis=1) < np.minimum(k, asked.n_allowed - left_out))
