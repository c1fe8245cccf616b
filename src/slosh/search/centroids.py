"""Centres for inverted lists: k-means in two levels, then over all rows.

A sample of prefixes comes in, centres go out. Finding the nearest of n centres for every row in every round is what
k-means takes its time for. So the sample is first parted among the root of n coarse centres, and each part among its
share of the n, where a row is compared with few. Two rounds with all centres then mend what the parting did at the
borders. tests/search/test_centroids.py compares the result with scikit-learn's k-means.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from ..checkpoints import checkpoint
from ..native import scan
from ..native.arrays import Float32, Int64

ROUNDS_IN_PARTS, ROUNDS_WITH_ALL = 2, 2
SMALLEST, LARGEST = 1e-15, 1e15
"""Numbers beyond these are scaled first."""
PARTED_FROM = 64
"""Fewer centres are looked for in one level."""


def centroids(rows: Float32, n_centres: int, random: np.random.RandomState, n_jobs: int | None = 1) -> Float32:
    """Return `n_centres` centres of a sample of rows (n, p), or fewer if many rows are equal; seeded."""
    if n_centres == 1:
        return np.asarray(rows.mean(axis=0, keepdims=True, dtype=np.float64), np.float32)
    largest = np.abs(rows).max()
    if largest > 0 and not SMALLEST < largest < LARGEST:  # squares that float32 cannot hold
        return np.asarray(centroids(rows / largest, n_centres, random, n_jobs) * largest)
    if n_centres < PARTED_FROM:
        return _lloyd(rows, _drawn(rows, n_centres, random), ROUNDS_IN_PARTS + ROUNDS_WITH_ALL, n_jobs)
    coarse = _lloyd(rows, _drawn(rows, round(n_centres**0.5), random), ROUNDS_IN_PARTS, n_jobs)
    part = nearest(rows, coarse, n_jobs)
    sizes = np.bincount(part, minlength=len(coarse))
    by_part = np.split(np.argsort(part, kind="stable"), np.cumsum(sizes)[:-1])
    centres = [
        _lloyd(rows[at], _drawn(rows[at], share, random), ROUNDS_IN_PARTS, n_jobs)
        for at, share in zip(by_part, _shares(sizes, n_centres), strict=True)
        if share
    ]
    return _lloyd(rows, np.concatenate(centres), ROUNDS_WITH_ALL, n_jobs)


def nearest(rows: Float32, centres: Float32, n_jobs: int | None = 1) -> Int64:
    """Return the centre that is nearest to each row, up to rounding."""
    if len(centres) < PARTED_FROM:
        table = rows @ (-2 * centres.T)
        table += np.einsum("ij,ij->i", centres, centres)
        return np.asarray(table.argmin(axis=1))
    return scan.nearest_lists(scan.Heads(centres), rows, n_jobs)[0]


def _lloyd(rows: Float32, centres: Float32, n_rounds: int, n_jobs: int | None) -> Float32:
    """Return the centres after some rounds of k-means. One that no row is nearest to stays where it is."""
    for _ in range(n_rounds):
        checkpoint()
        which = nearest(rows, centres, n_jobs)
        counts = np.bincount(which, minlength=len(centres))
        there = counts > 0
        sums = _by_centre(which, counts) @ rows
        centres = centres.copy()
        centres[there] = sums[there] / counts[there, None].astype(np.float32)
    return centres


def _by_centre(which: Int64, counts: Int64) -> csr_array:
    """Return the matrix (n_centres, n_rows) whose product with rows sums up those of each centre, in their order."""
    few = which.astype(np.uint16) if len(counts) <= 1 << 16 else which  # 16 bits are sorted many times as fast
    ends = np.concatenate([[0], np.cumsum(counts)])
    return csr_array((np.ones(len(which), np.float32), np.argsort(few, kind="stable"), ends))


def _drawn(rows: Float32, n: int, random: np.random.RandomState) -> Float32:
    """Return n of the rows to begin with."""
    return rows[random.choice(len(rows), n, replace=False)]


def _shares(sizes: Int64, n: int) -> Int64:
    """Return how many of n centres each part gets: in proportion to its size, and no more than it has rows."""
    ends = np.floor(np.cumsum(sizes) * (n / sizes.sum()) + 1e-9).astype(np.int64)
    ends[-1] = n
    return np.asarray(np.minimum(np.diff(ends, prepend=0), sizes))
