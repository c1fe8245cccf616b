"""The exact sliced distance, computed from the points: what the embedding approximates.

It is the root of the mean, over L slices, of the integral of (Q_X - Q_Y)^2: exact one-dimensional transport for any
sizes and weights, without binning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..checkpoints import checkpoint
from ..data.batching import batches_by_points
from ..data.checks import random_stream
from ..data.points import is_set_item
from ..data.progress import ProgressBar
from ..data.sets import Sets, as_sets
from ..embed.sliced_wasserstein import auto_slicer
from ..errors import InputError
from ..native import kernel
from ..native.arrays import Float64, Int64, Ragged
from ..slices import Slicer

TRANSPORT_STEPS = 1 << 25
"""Elements times slices of one native call: between two calls Ctrl-C is heard and the progress bar moves."""
SORTED_NUMBERS = 1 << 23
"""Sorted values, elements times slices, of one batch of sets: bounds the memory."""


def distance(
    a: Any, b: Any, *, n_slices: int | None = None, slices: Any = "auto", random_state: Any = 0, n_jobs: int | None = -1
) -> float:
    r"""Return the sliced distance of two sets, sqrt( mean over L slices of integral_0^1 (Q_a(t) - Q_b(t))^2 dt ).

    `a` and `b` are sets, arrays (N, d) and (N', d), or `Sets` of one set each (for weights). `slices` and `n_slices`
    are those of `SlicedWasserstein`; the same seed gives the same slices.

    >>> distance([[0.0], [1.0]], [[2.0], [3.0]])
    2.0
    """
    x, y = two_sides(a, b, single=True)
    return float(pairwise(x, y, n_slices=n_slices, slices=slices, random_state=random_state, n_jobs=n_jobs)[0, 0])


def pairwise(
    sets: Any,
    other: Any = None,
    *,
    n_slices: int | None = None,
    slices: Any = "auto",
    random_state: Any = 0,
    n_jobs: int | None = -1,
) -> Float64:
    r"""Return the sliced distances between all sets of a collection, (n, n), or between those of two, (n, m).

    A pair costs about (N + N') * L steps, after each set is sorted once: a thousand sets of 150 points take seconds, a
    hundred thousand take days. To search, embed them (`SlicedWasserstein`).

    >>> pairwise([[[0.0]], [[3.0], [3.0]], [[4.0]]])
    array([[0., 3., 4.],
           [3., 0., 1.],
           [4., 1., 0.]])
    """
    if isinstance(sets, list | tuple) and len(sets) == 0:
        return np.zeros((0, 0 if other is None else len(as_sets(other))))
    x = as_sets(sets)
    y = x if other is None else as_sets(other, dim=x.dim, origin=x.origin)
    slicer = fitted_slicer(slices, x.dim, n_slices, random_state)
    threads = kernel.threads(n_jobs)

    result = np.zeros((len(x), len(y)))
    batch_points = max(1, SORTED_NUMBERS // slicer.n_slices_)
    blocks_x, blocks_y = (list(batches_by_points(each.sizes, batch_points)) for each in (x, y))
    total = result.size if other is not None else result.size // 2
    with ProgressBar(total=total, unit="pair", unit_scale=True, desc="pairwise") as bar:
        for i, rows in enumerate(blocks_x):
            a = sorted_slices(x[rows], slicer, threads)
            for j, columns in enumerate(blocks_y):
                if other is None and j < i:
                    continue
                b = a if other is None and i == j else sorted_slices(y[columns], slicer, threads)
                n_rows, n_columns = rows.stop - rows.start, columns.stop - columns.start
                steps = slicer.n_slices_ * (len(a.points) // n_rows + len(b.points) // n_columns)
                at_once = min(1 << 16, max(1, TRANSPORT_STEPS // steps))
                for first in range(0, n_rows * n_columns, at_once):
                    flat = np.arange(first, min(first + at_once, n_rows * n_columns))
                    part = np.stack(np.divmod(flat, n_columns), axis=1)
                    if other is None and i == j:
                        part = part[part[:, 0] < part[:, 1]]
                    found = kernel.transport(a, b, part, threads)
                    result[rows.start + part[:, 0], columns.start + part[:, 1]] = found
                    bar.update(len(part))
    if other is None:
        result += result.T
    return np.sqrt(result, out=result)


class SlicedPairs:
    """Exact sliced distances of chosen pairs of a query and a candidate. The queries are sorted once, on construction.

    queries : the sets on one side; their sorted values, points times slices, stay in memory.
    slices : as for `SlicedWasserstein`; pass the `slices_` of a fitted one to use its slices.
    n_jobs : threads, -1 is all cores.

    >>> pairs = SlicedPairs(Sets.from_list([[[0.0]], [[4.0]]]), slices="axis")
    >>> pairs.distances(np.array([0, 1, 1]), Sets.from_list([[[1.0]], [[2.0]]]), np.array([0, 0, 1]))
    array([1., 3., 2.])
    """

    def __init__(self, queries: Sets, slices: Any = "auto", n_jobs: int | None = -1) -> None:
        self._threads = kernel.threads(n_jobs)
        self._slicer = fitted_slicer(slices, queries.dim, None, 0)
        self._queries, self._sizes = sorted_slices(queries, self._slicer, self._threads), queries.sizes

    def distances(self, which: Int64, candidates: Sets, index: Int64) -> Float64:
        """Return the distance of query `which[i]` and `candidates[index[i]]`, for each i.

        Each candidate that occurs in `index` is sorted once, in batches of bounded memory. The bits of a distance
        depend on its two sets alone.
        """
        used, inverse = np.unique(index, return_inverse=True)
        everything = len(used) == len(candidates)
        sizes = candidates.sizes if everything else candidates.sizes[used]
        order = np.argsort(inverse, kind="stable")  # pairs by candidate
        starts = np.searchsorted(inverse[order], np.arange(len(used) + 1))
        squares = np.empty(len(index))
        for part in batches_by_points(sizes, max(1, SORTED_NUMBERS // self._slicer.n_slices_)):
            batch = candidates[part] if everything else candidates.take(used[part])
            pairs = order[starts[part.start] : starts[part.stop]]
            values = sorted_slices(batch, self._slicer, self._threads)
            chosen = np.stack([which[pairs], inverse[pairs] - part.start], axis=1)
            sizes_of_pairs = self._sizes[chosen[:, 0]] + sizes[part][chosen[:, 1]]
            for some in batches_by_points(sizes_of_pairs, max(1, TRANSPORT_STEPS // self._slicer.n_slices_)):
                checkpoint()
                squares[pairs[some]] = kernel.transport(self._queries, values, chosen[some], self._threads)
        return np.sqrt(squares, out=squares)


def sorted_slices(sets: Sets, slicer: Slicer, threads: int) -> Ragged:
    """Return the sorted values of sets and their weights, as `kernel.transport` takes them."""
    points = slicer.project(sets.points) if slicer.directions_ is None else sets.points
    return kernel.sort(Ragged(points, sets.offsets, sets.weights), slicer.directions_, slicer.n_slices_, threads)


def two_sides(x: Any, y: Any, *, single: bool = False) -> tuple[Sets, Sets]:
    """Return one set, and another or (without `single`) a collection, of the same dimension and origin."""
    origin = y.origin if isinstance(y, Sets) or is_set_item(y) else ...
    a = _single(x, "the first", origin)
    if not single:
        return a, as_sets(y, dim=a.dim, origin=a.origin)
    b = _single(y, "the second", a.origin)
    if a.dim != b.dim:
        raise InputError(f"the first set has {a.dim} features, the second {b.dim}", "both need the same features")
    return a, b


def _single(x: Any, name: str, origin: Any) -> Sets:
    collection = isinstance(x, list | tuple) and len(x) > 0 and getattr(x[0], "ndim", 0) == 2
    sets = as_sets(x if isinstance(x, Sets) or collection else [x], origin=origin)
    if collection or len(sets) != 1:
        raise InputError(f"{name} is a collection, not a single set", "use slosh.pairwise, or pass one of its sets")
    return sets


def fitted_slicer(slices: Any, dim: int, n_slices: int | None, random_state: Any) -> Slicer:
    """Return the slicer that `SlicedWasserstein` would fit; a fitted one, as its `slices_`, is returned as it is."""
    if isinstance(slices, Slicer) and getattr(slices, "dim_", None) == dim:
        return slices
    return auto_slicer(slices, dim, n_slices, random_stream(random_state))
