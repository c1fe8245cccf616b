"""One-sided distances of many pairs of sets: how far the elements of one are from the nearest elements of another.

Each distance is a mean over elements, of their distances to the nearest element of the other set or of the squares of
these. The nearest elements are found by the kernel, or in large sets of few dimensions by a tree; the distances are
exact but for the rounding of float64.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from scipy.spatial import cKDTree

from ..checkpoints import checkpoint
from ..data.batching import batches_by_points
from ..data.sets import Sets
from ..errors import bad_value
from ..native import kernel, parts
from ..native.arrays import Array, Float64, Int64, Ragged
from .hausdorff_pairs import counted

Direction = Literal["part", "contained", "both"]

TREE_DIM, TREE_PAIRS = 12, 1 << 27
"""Up to this dimension, and beyond this number of pairs of elements, a k-d tree is faster than the kernel."""
BATCH_STEPS = 1 << 31
"""Pairs of elements times features of one native call: a fraction of a second, so that Ctrl-C is heard."""
BATCH_ELEMENTS = 1 << 20
"""Elements whose nearest ones are held at once."""


class PartPairs:
    r"""One-sided distances of chosen pairs of a query Q and a candidate S, exact but for the rounding of float64.

        "part"       D(Q -> S) = sum over q in Q of w(q) min over s in S of |q - s|, with the weights of the query
        "contained"  D(S -> Q), with the weights of the candidate
        "both"       the mean of the two: the Chamfer distance

    queries : the sets on one side. Elements of weight zero are left out on both sides.
    direction : see above.
    squared : take the mean of the squared distances instead. For vectors of unit length half of it is 1 - MaxSim.
    coverage : the share of the mass that counts, in (0, 1]: the mean is over those elements, or parts of elements, that
        have the nearest neighbours.
    n_jobs : threads, -1 is all cores. The bits of a distance depend on its two sets alone.

    >>> pairs = PartPairs(Sets.from_list([[[0.0], [4.0]]]))
    >>> pairs.distances(np.array([0, 0]), Sets.from_list([[[1.0]], [[0.0], [2.0]]]), np.array([0, 1]))
    array([2., 1.])
    """

    def __init__(
        self,
        queries: Sets,
        direction: Direction = "part",
        squared: bool = False,
        coverage: float = 1.0,
        n_jobs: int | None = -1,
    ) -> None:
        if direction not in get_args(Direction):
            raise bad_value("direction", direction, 'pass "part", "contained" or "both"')
        self._queries, self._direction, self._squared = queries, direction, bool(squared)
        self._coverage, self._threads = checked_coverage(coverage), kernel.threads(n_jobs)

    def widen(self, distances: Array) -> Float64:
        """Return the most that the true distance may be where `distances` says this, and the other way round.

        A square rounds by 2^-53 of itself for each feature; the sums over elements are compensated. With coverage below
        1, the element that straddles the limit may count for 2^-50 of the mass more or less.
        """
        return np.asarray(distances * (1 + (self._queries.dim + 32) * 2.0**-52) + 2.0**-1000)

    def distances(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        """Return the distance of query `which[i]` and `candidates[index[i]]`, for each i."""
        pairs = np.stack([np.asarray(which, np.int64), np.asarray(index, np.int64)], axis=1).reshape(-1, 2)
        if self._direction == "part":
            return self._one_sided(self._queries, candidates, pairs)
        back = self._one_sided(candidates, self._queries, pairs[:, ::-1])
        if self._direction == "contained":
            return back
        return np.asarray((self._one_sided(self._queries, candidates, pairs) + back) / 2)

    def _one_sided(self, x: Sets, y: Sets, pairs: Int64) -> Float64:
        found = np.empty(len(pairs))
        sizes = x.sizes[pairs[:, 0]], y.sizes[pairs[:, 1]]
        steps = sizes[0] * sizes[1]
        by_tree = (steps > TREE_PAIRS) & (x.dim <= TREE_DIM)
        a, b = (Ragged(each.points, each.offsets, each.weights) for each in (x, y))
        rest = np.flatnonzero(~by_tree)
        rest = rest[np.argsort(pairs[rest, 0], kind="stable")]  # the elements of x are laid out once for several pairs
        work = np.maximum(sizes[0], steps * x.dim * BATCH_ELEMENTS // BATCH_STEPS)
        for part in batches_by_points(work[rest], BATCH_ELEMENTS):
            some = rest[part]
            squares, _, starts = parts.nearest_elements(a, b, pairs[some], self._threads)
            found[some] = parts.covered_means(squares, starts, a, pairs[some, 0], self._coverage, self._squared)
        trees: dict[int, cKDTree] = {}
        for i in np.flatnonzero(by_tree).tolist():
            checkpoint()
            j, k = pairs[i].tolist()
            if k not in trees:
                trees = {k: cKDTree(counted(y, k))}
            distances, _ = trees[k].query(np.asarray(x[j], np.float64), workers=self._threads)
            starts = np.array([0, len(distances)])
            found[i] = parts.covered_means(
                np.square(distances), starts, a, pairs[i : i + 1, 0], self._coverage, self._squared
            )[0]
        return found


def checked_coverage(coverage: object, name: str = "coverage") -> float:
    """Return a share of the mass as a number in (0, 1]."""
    if isinstance(coverage, (int, float, np.integer, np.floating)) and not isinstance(coverage, bool):
        value = float(coverage)
        if 0 < value <= 1:
            return value
    raise bad_value(name, coverage, "pass a share of the mass, above 0 and at most 1")
