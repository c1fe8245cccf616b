"""Certified answers: the true nearest sets under a distance between sets, proved by bounds.

The distance of two vectors, less what rounding may have moved them, is a lower bound of a distance of their sets: for
the vectors of `SlicedWasserstein` of the sliced distance, and the largest difference of two vectors of `DistanceField`
of the Hausdorff distance (`SetTransformer.lower_bounds`). Distances of sets are computed, nearest lower bound first,
until no bound is left below the k-th distance found. It stands above the engine: it needs an exact range search
(`View.within`) and the sets (`View.prepared`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from ..checkpoints import checkpoint
from ..data.batching import batches_by_points
from ..data.sets import Sets
from ..engines.base import Candidates, Float64, Int64, Mask, View
from ..engines.spec import WHOLE, Vectors
from ..errors import UnsupportedError
from ..rank.hausdorff_pairs import HausdorffPairs
from ..rank.sliced import SlicedPairs
from ..search import Metric
from ..where import Node

ROUNDING = 1 + 1e-5
"""A computed sliced distance is off by less than this factor: float32 sums of 32 terms, the rest in double."""
FETCHED_POINTS = 1 << 20
"""Points of stored sets that are held at once."""
FIRST_WAVE = 4
"""Distances that are computed first for each query; each wave is twice as large as the one before."""


def check_possible(view: View, kind: str) -> None:
    """Refuse an embedding without bounds on the distance `kind`, and an engine that may leave sets out."""
    can, embedding = view.capabilities, view.spec.embedding
    if kind not in embedding.lower_bounds:
        name, remedy = NAMES[kind]
        used, rule = type(embedding).__name__, getattr(embedding, "quantiles", "average")
        used += "" if rule == "average" else f" with quantiles={rule!r}"
        used += " with tf32=True" if getattr(embedding, "tf32_", False) else ""
        problem = f"certify needs bounds on the {name} distance, and this index embeds by {used}"
        if kind == "sliced" and "hausdorff" in embedding.lower_bounds:
            remedy = f"search with rerank='hausdorff', which this embedding can prove; or {remedy}"
        elif kind != "sliced" or embedding.sliced_view is not None:
            remedy = f"search with rerank={kind!r} without certify; or {remedy}"
    elif not (can.exact_range and can.exact_nearest and embedding.lower_bounds[kind] in can.metrics):
        problem, remedy = "certify needs exact searches, which this engine does not have", "copy the index to a folder"
    else:
        return
    raise UnsupportedError(problem, remedy, argument="certify", feature_name="certify")


def scans(view: View, kind: str) -> bool:
    """Return whether a proof compares all vectors, and may find that many of them are near."""
    return view.spec.embedding.lower_bounds[kind] != "euclidean"


class Distances(ABC):
    """A distance between queries and stored sets, computed from their points.

    kind : its name. metric : how two vectors are compared to bound it.
    """

    kind: str

    def __init__(self, view: View, queries: Sets) -> None:
        self._view, self._queries = view, queries

    @property
    def metric(self) -> Metric:
        return self._view.spec.embedding.lower_bounds[self.kind]

    def compute(self, which: Int64, keys: Int64) -> Float64:
        """Return the distance of query which[i] and the set keys[i]; memory is bounded."""
        unique, inverse = np.unique(keys, return_inverse=True)
        distances = np.empty(len(keys))
        for part in batches_by_points(self._view.prepared_sizes(unique), FETCHED_POINTS):
            mine = np.flatnonzero((inverse >= part.start) & (inverse < part.stop))
            candidates = self._view.prepared(unique[part])
            self._check(candidates, unique[part])
            distances[mine] = self._of_pairs(which[mine], candidates, inverse[mine] - part.start)
        return distances

    def _check(self, candidates: Sets, keys: Int64) -> None:
        """Refuse stored sets that have no such distance."""
        return

    @abstractmethod
    def _of_pairs(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        """Return the distance of query which[i] and candidates[index[i]], for each i."""

    @abstractmethod
    def widen(self, distances: Float64) -> Float64:
        """Return what the true distance may be at most where these were computed, and vice versa."""

    def settle(self, which: Int64, keys: Int64, distances: Float64) -> Float64:
        """Return the distances of a few pairs as they are told to the user, where they were computed as these."""
        return distances


class SlicedDistances(Distances):
    """Sliced distances, by the slices of the embedding."""

    kind = "sliced"

    def __init__(self, view: View, queries: Sets) -> None:
        super().__init__(view, queries)
        embedding = view.spec.embedding
        slices, n_jobs = getattr(embedding.sliced_view, "slicer_", "auto"), getattr(embedding, "n_jobs", None)
        self._pairs = SlicedPairs(queries, slices, n_jobs)

    def _of_pairs(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        return self._pairs.distances(which, candidates, index)

    def widen(self, distances: Float64) -> Float64:
        return distances * ROUNDING


class HausdorffDistances(Distances):
    """Hausdorff distances: rounded while candidates are excluded, and then as `slosh.rank.hausdorff` computes them."""

    kind = "hausdorff"

    def __init__(self, view: View, queries: Sets) -> None:
        super().__init__(view, queries)
        self._pairs = HausdorffPairs(queries, getattr(view.spec.embedding, "n_jobs", None))

    def _of_pairs(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        return self._pairs.rounded(which, candidates, index)

    def widen(self, distances: Float64) -> Float64:
        return self._pairs.widen(distances)

    def settle(self, which: Int64, keys: Int64, distances: Float64) -> Float64:
        settled = np.empty(len(keys))
        for i in np.unique(which).tolist():
            mine = np.flatnonzero(which == i)
            for part in batches_by_points(self._view.prepared_sizes(keys[mine]), FETCHED_POINTS):
                settled[mine[part]] = self._pairs.exact(i, self._view.prepared(keys[mine[part]]))
        return settled


PROVABLE: dict[str, type[Distances]] = {each.kind: each for each in (SlicedDistances, HausdorffDistances)}
NAMES = {
    "sliced": ("sliced", "give the index another embedding, index.retrain(embedding=SlicedWasserstein())"),
    "hausdorff": ("Hausdorff", "give the index another embedding, index.retrain(embedding=DistanceField())"),
}
"""Of each distance its name, and how an index can prove it."""


def nearest(
    view: View, queries: Sets, vectors: Vectors, k: int, where: Node | None, exclude: Int64 | None, kind: str
) -> Candidates:
    """Return the k nearest sets of each query by the distance `kind`, and all that are as far as the last of them."""
    near = view.nearest(WHOLE, vectors, k, where=where, recall=1.0, exclude=exclude)
    measure = PROVABLE[kind](view, queries)

    def bounded(limits: Float64) -> Candidates:
        return view.within(WHOLE, vectors, limits, where=where, exclude=exclude, bounds=True, metric=measure.metric)

    return prove_nearest(measure, near, bounded, k)._replace(unlike=near.unlike)


def prove_nearest(measure: Distances, near: Candidates, bounded: Callable[[Float64], Candidates], k: int) -> Candidates:
    """Return the k nearest sets of each query by a distance, and all that are as far as the last of them.

    near : k or more sets of each query to begin with, or all there are; the nearer the better.
    bounded : returns all sets whose lower bound is at most a limit for each query; `distances` less `slack` bound.
    """
    n, which, keys = len(near.offsets) - 1, near.query, near.keys
    distances = measure.compute(which, keys)
    limit = _limits(which, distances, n, k)
    found = bounded(measure.widen(limit))
    rest = _Remaining(found, which, keys)
    wave = FIRST_WAVE
    while len(rest.which):
        checkpoint()
        # The next few of each query, nearest lower bound first: each distance found may spare the ones behind it.
        now = rest.rank() < wave
        more = measure.compute(rest.which[now], rest.keys[now])
        which, keys = np.append(which, rest.which[now]), np.append(keys, rest.keys[now])
        distances = np.append(distances, more)
        limit = np.minimum(limit, _limits(which, distances, n, k))
        rest.keep(~now & (rest.low <= measure.widen(limit)[rest.which]))
        wave *= 2
    found = found._replace(compared=near.compared + found.compared, scanned=near.scanned + found.scanned)
    full = np.bincount(which, minlength=n)
    # One of the true k nearest is computed to be at most twice as far off as rounding allows.
    close = distances <= measure.widen(measure.widen(limit))[which]
    which, keys = which[close], keys[close]
    distances = measure.settle(which, keys, distances[close])
    good = np.flatnonzero(distances <= _limits(which, distances, n, k)[which])
    return _certified(found, which[good], keys[good], distances[good], full, measure.kind)


def within(
    view: View, queries: Sets, vectors: Vectors, radii: Float64, where: Node | None, exclude: Int64 | None, kind: str
) -> Candidates:
    """Return all sets at most a radius away from each query, by the distance `kind`."""
    measure = PROVABLE[kind](view, queries)
    found = view.within(
        WHOLE, vectors, measure.widen(radii), where=where, exclude=exclude, bounds=True, metric=measure.metric
    )
    return prove_within(measure, found, radii)


def prove_within(measure: Distances, found: Candidates, radii: Float64) -> Candidates:
    """Return those of the sets that were found, by a bound of a distance, which are within a radius by the distance."""
    which, keys = found.query, found.keys
    distances = measure.compute(which, keys)
    close = distances <= measure.widen(radii)[which]
    which, keys = which[close], keys[close]
    distances = measure.settle(which, keys, distances[close])
    good = np.flatnonzero(distances <= radii[which])
    return _certified(found, which[good], keys[good], distances[good], np.diff(found.offsets), measure.kind)


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


def _certified(found: Candidates, which: Int64, keys: Int64, distances: Float64, full: Int64, kind: str) -> Candidates:
    """Return the pairs of a query and a key in the order of their distances, with the counts of `found`."""
    order = np.lexsort((distances, which))
    return Candidates(
        np.searchsorted(which[order], np.arange(len(full) + 1)), keys[order], distances[order], kind, 1.0,
        found.compared, found.scanned, full_distances=full,
    )  # fmt: skip
