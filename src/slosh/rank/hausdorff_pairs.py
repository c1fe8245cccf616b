"""Hausdorff distances of many pairs of sets, by the kernel of the distance field.

Each element of one set is an anchor: its distance to the nearest element of the other set is computed in float32, from
all pairs, with a bound on what is rounded off. That tells nearly everything; the distances of the few elements that may
be the farthest are then computed again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from ..checkpoints import NATIVE_STEPS, checkpoint
from ..data.batching import batches_by_points
from ..data.sets import Sets
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Int64, Ragged

TREE_DIM, TREE_ELEMENTS = 12, 64
"""Up to this dimension, and beyond this number of elements, a k-d tree is faster than comparing all pairs."""
TREE_PAIRS = 1 << 27
"""Pairs of elements from which on a k-d tree is faster than the kernel."""
TABLE_NUMBERS = 1 << 22
"""Distances that are held at once."""


class HausdorffPairs:
    """Hausdorff distances of chosen pairs of a query and a candidate; elements of weight zero are left out.

    queries : the sets on one side.
    n_jobs : threads, -1 is all cores. The bits of a distance depend on its two sets alone.

    >>> pairs = HausdorffPairs(Sets.from_list([[[0.0]], [[4.0], [5.0]]]))
    >>> pairs.rounded(np.array([0, 1, 1]), Sets.from_list([[[1.0]], [[2.0]]]), np.array([0, 0, 1]))
    array([1., 4., 3.])
    """

    def __init__(self, queries: Sets, n_jobs: int | None = -1) -> None:
        self._queries, self._threads = queries, kernel.threads(n_jobs)

    def widen(self, distances: Array) -> Float64:
        """Return the most that `exact` may be where `rounded` is this, and the most that `rounded` may be vice versa.

        The rounding is that of `DistanceField`.
        """
        dim = self._queries.dim
        return np.asarray(distances * (1 + (dim + 8) * 2.0**-24) + math.sqrt(dim) * 2.0**-74)

    def rounded(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        """Return the distance of query `which[i]` and `candidates[index[i]]`, for each i, as far as `widen` says."""
        found = np.empty(len(which))
        for i in np.unique(which).tolist():
            mine = np.flatnonzero(which == i)
            for some in self._runs(i, candidates.sizes[index[mine]]):
                part = mine[some]
                found[part] = self._of_one(i, candidates.take(index[part]), exact=False)
        return found

    def exact(self, i: int, candidates: Sets) -> Float64:
        """Return the distances of query i and each candidate, in float64."""
        parts = (candidates[run] for run in self._runs(i, candidates.sizes))
        return np.concatenate([np.empty(0), *(self._of_one(i, part, exact=True) for part in parts)])

    def _runs(self, i: int, sizes: Int64) -> Iterator[slice]:
        """Yield runs of candidates of these sizes that query i is compared with in one go."""
        n, dim = len(self._queries[i]), self._queries.dim
        return batches_by_points(sizes, max(1, NATIVE_STEPS // (n * dim)), max(1, TABLE_NUMBERS // n))

    def _of_one(self, i: int, candidates: Sets, exact: bool) -> Float64:
        query = self._queries[i : i + 1]
        large = candidates.sizes * len(query.points) > (TREE_PAIRS if query.dim <= TREE_DIM else np.inf)
        if large.all():
            return self._by_trees(query, candidates)
        found = np.empty(len(candidates))
        if large.any():
            found[large] = self._by_trees(query, candidates.take(np.flatnonzero(large)))
            candidates = candidates.take(np.flatnonzero(~large))
        there, back = self._fields(query, candidates)
        farthest = np.maximum(there.max(axis=1), np.maximum.reduceat(back, candidates.offsets[:-1])).astype(np.float64)
        found[~large] = self._again(query, candidates, there, back, farthest) if exact else farthest
        return found

    def _by_trees(self, query: Sets, candidates: Sets) -> Float64:
        x, found = counted(query, 0), np.empty(len(candidates))
        tree = cKDTree(x)
        for j in range(len(candidates)):
            checkpoint()
            y = counted(candidates, j)
            there, _ = cKDTree(y).query(x, workers=self._threads)
            back, _ = tree.query(y, workers=self._threads)
            found[j] = max(there.max(), back.max())
        return found

    def _fields(self, query: Sets, candidates: Sets) -> tuple[Float32, Float32]:
        """Return the distance of each element of the query to each candidate, and of each of theirs to the query.

        Those of elements of weight zero are -1.
        """
        ragged = Ragged(candidates.points, candidates.offsets, candidates.weights)
        there = np.empty((len(candidates), len(query.points)), np.float32)
        kernel.field(ragged, query.points, there, self._threads)
        back = np.empty((1, len(candidates.points)), np.float32)
        kernel.field(Ragged(query.points, query.offsets, query.weights), candidates.points, back, self._threads)
        if query.weights is not None:
            there[:, query.weights <= 0] = -1
        if candidates.weights is not None:
            back[0, candidates.weights <= 0] = -1
        return there, back[0]

    def _again(self, query: Sets, candidates: Sets, there: Float32, back: Float32, farthest: Float64) -> Float64:
        """Return the distances in float64, where these are rounded: those of the farthest elements decide."""
        found, x = np.empty(len(candidates)), counted(query, 0)
        mine, theirs = (self.widen(self.widen(each.astype(np.float64))) for each in (there, back))
        for j, (start, stop) in enumerate(pairwise(candidates.offsets.tolist())):
            checkpoint()
            some, others = query.points[mine[j] >= farthest[j]], candidates.points[start:stop]
            others = others[theirs[start:stop] >= farthest[j]]
            found[j] = max(_farthest(some, counted(candidates, j)), _farthest(others, x))
        return found


def counted(sets: Sets, i: int) -> Float64:
    """Return the elements of set i that have a weight, in float64."""
    points, weights = np.asarray(sets[i], np.float64), sets.weights_of(i)
    return points if weights is None else points[weights > 0]


def _farthest(x: Array, y: Float64) -> float:
    """Return the largest distance of an element of x to the nearest of y; 0 if x has no elements."""
    x = x.astype(np.float64)
    if len(x) > TREE_ELEMENTS and x.shape[1] <= TREE_DIM:
        return float(cKDTree(y).query(x)[0].max())
    rows = max(1, TABLE_NUMBERS // len(y))
    return max((float(cdist(x[i : i + rows], y).min(axis=1).max()) for i in range(0, len(x), rows)), default=0.0)
