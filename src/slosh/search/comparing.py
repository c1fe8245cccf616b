"""Every allowed vector compared with every query, as it is stored: what a search does that has nothing better."""

from __future__ import annotations

import numpy as np

from ..native import scan
from ..native.arrays import Float64, Int64, Mask
from .columns import positions_up_to
from .state import Found, FoundWithin, Request, exact_found
from .store import Batch, Vectors

NO_QUERIES: Int64 = np.empty(0, np.int64)


def compare_all(store: Vectors, asked: Request) -> Found:
    """Return the nearest of all allowed vectors."""
    allowed = None if asked.mask is None else np.flatnonzero(asked.mask)
    wanted = min(asked.k + 1, asked.n_allowed)  # one more shows a tie
    ranks = None if asked.in_order else asked.ranks
    queries, rest = store.as_stored(asked.queries), (asked.exclude, ranks, asked.n_jobs)
    if allowed is not None:
        store.check(allowed)
    vectors = store.array if allowed is None else store.unchecked
    squares, positions = scan.flat(queries, vectors, store.scale, allowed, wanted, *rest)
    return exact_found(np.sqrt(squares, out=squares), positions, asked.k, asked.counts(), asked.counts(0))


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
