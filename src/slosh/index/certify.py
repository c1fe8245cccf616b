"""Certified answers: the true nearest sets under the sliced distance, proved by bounds.

The distance of two vectors, less what rounding may have moved them, is a lower bound of the sliced distance of their
sets. Sliced distances are computed, nearest lower bound first, until no bound is left below the k-th distance found.
It stands above the engine: it needs an exact range search (`View.within`) and the sets (`View.prepared`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..data.batching import batches_by_points
from ..data.sets import Sets
from ..engines.base import Candidates, Float64, Int64, Mask, View
from ..engines.spec import WHOLE, Vectors
from ..errors import UnsupportedError
from ..rank.sliced import SlicedPairs
from ..where import Node

ROUNDING = 1 + 1e-5
"""A computed sliced distance is off by less than this factor: float32 sums of 32 terms, the rest in double."""
FETCHED_POINTS = 1 << 20
"""Points of stored sets that are held at once."""
FIRST_WAVE = 4
"""Distances that are computed first for each query; each wave is twice as large as the one before."""


def check_possible(view: View) -> None:
    """Refuse an embedding without bounds, and an engine that may leave sets out."""
    if not view.spec.embedding.has_bounds:
        problem = f"certify needs bounds on the sliced distance, and this index embeds by {view.spec.embedding!r}"
        remedy = "create it with SlicedWasserstein(quantiles='average')"
    elif not (view.capabilities.exact_range and view.capabilities.exact_nearest):
        problem, remedy = "certify needs exact searches, which this engine does not have", "copy the index to a folder"
    else:
        return
    raise UnsupportedError(problem, remedy, argument="certify", feature_name="certify")


class SlicedDistances:
    """Sliced distances between queries and stored sets, from their points."""

    def __init__(self, view: View, queries: Sets) -> None:
        embedding = view.spec.embedding
        slices, n_jobs = getattr(embedding, "slicer_", "auto"), getattr(embedding, "n_jobs", None)
        self._view, self._pairs = view, SlicedPairs(queries, slices, n_jobs)

    def compute(self, which: Int64, keys: Int64) -> Float64:
        """Return the distance of query which[i] and the set keys[i]; memory is bounded."""
        unique, inverse = np.unique(keys, return_inverse=True)
        distances = np.empty(len(keys))
        for part in batches_by_points(self._view.prepared_sizes(unique), FETCHED_POINTS):
            mine = np.flatnonzero((inverse >= part.start) & (inverse < part.stop))
            candidates = self._view.prepared(unique[part])
            distances[mine] = self._pairs.distances(which[mine], candidates, inverse[mine] - part.start)
        return distances


def nearest(
    view: View, queries: Sets, vectors: Vectors, k: int, where: Node | None, exclude: Int64 | None
) -> Candidates:
    """Return the k nearest sets of each query, and all that are as far as the last of them."""
    n = len(queries)
    near = view.nearest(WHOLE, vectors, k, where=where, recall=1.0, exclude=exclude)
    which, keys, sliced = near.query, near.keys, SlicedDistances(view, queries)
    distances = sliced.compute(which, keys)
    limit = _limits(which, distances, n, k)
    found = view.within(WHOLE, vectors, limit * ROUNDING, where=where, exclude=exclude, bounds=True)
    rest = _Remaining(found, which, keys)
    wave = FIRST_WAVE
    while len(rest.which):
        # The next few of each query, nearest lower bound first: each distance found may spare the ones behind it.
        now = rest.rank() < wave
        more = sliced.compute(rest.which[now], rest.keys[now])
        which, keys = np.append(which, rest.which[now]), np.append(keys, rest.keys[now])
        distances = np.append(distances, more)
        limit = np.minimum(limit, _limits(which, distances, n, k))
        rest.keep(~now & (rest.low <= limit[rest.which] * ROUNDING))
        wave *= 2
    good = np.flatnonzero(distances <= limit[which])
    found = replace(found, compared=near.compared + found.compared, scanned=near.scanned + found.scanned)
    return _certified(found, which[good], keys[good], distances[good], np.bincount(which, minlength=n))


def within(
    view: View, queries: Sets, vectors: Vectors, radii: Float64, where: Node | None, exclude: Int64 | None
) -> Candidates:
    """Return all sets at most a radius away from each query."""
    found = view.within(WHOLE, vectors, radii * ROUNDING, where=where, exclude=exclude, bounds=True)
    which = found.query
    distances = SlicedDistances(view, queries).compute(which, found.keys)
    near = np.flatnonzero(distances <= radii[which])
    return _certified(found, which[near], found.keys[near], distances[near], np.diff(found.offsets))


class _Remaining:
    """Candidates that are not excluded yet: of which query, and with which lower bound; sorted by it."""

    def __init__(self, found: Candidates, which: Int64, keys: Int64) -> None:
        """Take what was found, without the pairs (which, keys)."""
        assert found.slack is not None
        self.which, self.keys = found.query, found.keys
        self.low = np.maximum(found.distances - found.slack, 0.0)
        unique, dense = np.unique(np.concatenate([keys, self.keys]), return_inverse=True)
        pairs = np.concatenate([which, self.which]) * len(unique) + dense
        known = np.isin(pairs[len(keys) :], pairs[: len(keys)], kind="sort")
        order = np.lexsort((self.low, self.which))
        self.which, self.keys, self.low = self.which[order], self.keys[order], self.low[order]
        self.keep(~known[order])

    def keep(self, kept: Mask) -> None:
        self.which, self.keys, self.low = self.which[kept], self.keys[kept], self.low[kept]

    def rank(self) -> Int64:
        """Return the rank of each candidate within its query."""
        return np.arange(len(self.which)) - np.searchsorted(self.which, self.which)


def _limits(which: Int64, distances: Float64, n: int, k: int) -> Float64:
    """Return the k-th smallest distance of each query, or the largest where there are fewer; 0 where there is none."""
    order = np.lexsort((distances, which))
    starts = np.searchsorted(which[order], np.arange(n + 1))
    counts = np.diff(starts)
    limits = np.zeros(n)
    there = counts > 0
    limits[there] = distances[order][(starts[:-1] + np.minimum(counts, k) - 1)[there]]
    return limits


def _certified(found: Candidates, which: Int64, keys: Int64, distances: Float64, full: Int64) -> Candidates:
    """Return the pairs of a query and a key in the order of their sliced distances, with the counts of `found`."""
    order = np.lexsort((distances, which))
    return Candidates(
        np.searchsorted(which[order], np.arange(len(full) + 1)), keys[order], distances[order], "sliced", 1.0,
        found.compared, found.scanned, full_distances=full,
    )  # fmt: skip
