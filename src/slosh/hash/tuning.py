"""Parameters of p-stable hash tables for a goal: width, k, T and probes, with the recall and the cost to expect.

A sample of the vectors comes in, and a recall of the k nearest, or a radius R with a success probability; a `Tuning`
goes out. Nothing is hashed: the geometry of the cells is known, only distances are measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import psi
from threadpoolctl import threadpool_limits

from ..data.checks import checked_count
from ..data.vectors import blocks, check_numbers, fitting_vectors
from . import probing
from .pstable import PStableHash

Float64: TypeAlias = NDArray[np.float64]
Float32: TypeAlias = NDArray[np.float32]

HASHES = (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32)
TABLES = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
WIDTHS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)
"""In distances of the neighbours."""
LEVELS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Probed buckets of a table, on average."""
MOST_PROBES = 1024
RATIOS = np.concatenate([[0.01, 0.03], np.geomspace(0.06, 4.0, 26)])
"""Distances, in widths, at which probabilities are tabulated."""
DRAWS = 96
QUERIES, OTHERS = 128, 4096
"""Pairs of rows whose distances tell how many far ones share a bucket."""
SAMPLE = 20000
"""Of more vectors, `tune` looks at so many."""
MARGIN = 0.005
"""The predicted recall is to be above the target by so much: it is that of the mean draw, and the tables are one."""
ENTRY = 12
"""Bytes of a row in a table."""

# Nanoseconds, measured (docs/search-lsh.md); only their ratios matter.
HASH, SCORE, PROBE, LOOKUP, READ, COMPARE, NUMBER, SCAN = 0.18, 8.0, 150.0, 0.075, 50.0, 30.0, 0.5, 0.04


@dataclass(frozen=True)
class Tuning:
    """Parameters of p-stable tables, and what is predicted of them.

    width, n_hashes, n_tables : w, k and T of `PStableHash`.
    n_probes : buckets to look into, all tables together.
    recall : the predicted part of the k nearest that is found; with R, the success probability at R.
    target : what was asked for. A `recall` below it says that it cannot be reached within the bounds.
    candidates : the vectors that are compared for a query, as predicted.
    n : size of the collection.
    microseconds : about what a query takes on one core; `scan_microseconds` what a scan does.
    far : with R, the probability that a row at the distance c R is compared; None otherwise.

    >>> rng = np.random.default_rng(0)
    >>> centres = rng.normal(size=(50, 32))
    >>> vectors = centres[rng.integers(50, size=4000)] + 0.1 * rng.normal(size=(4000, 32))
    >>> found = tune(vectors, k=5, recall=0.9)
    >>> found.recall >= 0.9, found.candidates < 400
    (True, True)
    """

    width: float
    n_hashes: int
    n_tables: int
    n_probes: int
    recall: float
    target: float
    candidates: float
    n: int
    microseconds: float
    scan_microseconds: float
    far: float | None = None

    @property
    def fraction(self) -> float:
        """The part of the collection that is compared."""
        return self.candidates / self.n

    def hash(self, random_state: Any = 0) -> PStableHash:
        """The hash with these parameters, to be fitted."""
        return PStableHash(self.width, self.n_hashes, self.n_tables, 2, random_state)

    def __str__(self) -> str:
        return (
            f"{self.n_tables} tables of {self.n_hashes} hashes, width {self.width:.4g}, {self.n_probes} probes: "
            f"recall {self.recall:.3f} predicted (target {self.target:g}), {self.candidates:.0f} of {self.n} vectors "
            f"compared ({self.fraction:.2%})"
        )


def tune(
    vectors: Any,
    n: int | None = None,
    *,
    k: int = 10,
    recall: float = 0.9,
    R: float | None = None,
    c: float = 2.0,
    success: float = 0.9,
    memory: int | None = None,
    random_state: int = 0,
) -> Tuning:
    """The cheapest parameters with which the k nearest, or a row within R, are found as often as asked for.

    Given the distance r of a row, the differences of its hashes from the query's are normal with the standard deviation
    r, and the query's place in its cells is uniform: so the probability that one of the probed buckets holds the row is
    a function of r / w alone. It is averaged over the distances of the true neighbours of some of the vectors, none of
    them its own neighbour, for the recall; and over those of random pairs for the number of vectors to compare.

    Parameters
    ----------
    vectors : the collection, or a sample of it, (m, D). Of more than 20,000 as many are drawn.
    n : size of the collection; None: as many as `vectors`. From a sample the distances of the neighbours are
        extrapolated: the logarithm of the j-th of n is normal to psi(j) - log n over the dimension of the data, which
        is estimated from the sample's own neighbours.
    k, recall : the part of the k nearest that is to be found, on average.
    R, c, success : instead of them, a radius and the probability with which a row at that distance is to be found: the
        question of `LSHSearch.near`. The cost is that of the distances that are in the data; c, more than 1, says where
        a row is far, and `Tuning.far` how often such rows are compared.
    memory : bytes a row for the tables, 12 for each; None: as many as the vector has, 4 D.
    random_state : seed of the sample.

    >>> tune(np.random.default_rng(0).normal(size=(3000, 8)), R=0.5, success=0.95).recall >= 0.95
    True
    """
    array = fitting_vectors(vectors)
    check_numbers(array)
    if len(array) < 2:
        raise ValueError(f"tune needs two vectors or more to see distances, not {len(array)}")
    size = len(array) if n is None else checked_count("n", n)
    if size < len(array):
        raise ValueError(f"n={size}, but there are {len(array)} vectors: n is the size of the whole collection")
    checked_count("k", k)
    target = success if R is not None else recall
    if not isinstance(target, Real) or isinstance(target, bool) or not 0 < float(target) < 1:
        name = "success" if R is not None else "recall"
        raise ValueError(f"{name}={target!r} must be more than 0 and less than 1; for 1 take ExactSearch")
    if R is not None and (not isinstance(R, Real) or isinstance(R, bool) or not 0 < float(R) < math.inf):
        raise ValueError(f"R={R!r} must be a positive distance")
    if not isinstance(c, Real) or isinstance(c, bool) or not 1 < float(c) < math.inf:
        raise ValueError(f"c={c!r} must be a number larger than 1")
    if memory is not None and checked_count("memory", memory) < ENTRY:
        raise ValueError(f"memory={memory}: one table takes {ENTRY} bytes a row")
    random = np.random.RandomState(np.array([0x7E5E, random_state], np.uint32))
    picked = random.permutation(len(array))[:SAMPLE]
    sample = np.concatenate([block for _, block in blocks(array[np.sort(picked)], 4096)])
    m = len(sample)
    queries = random.permutation(m)[: 2 * QUERIES]
    table = distances(sample[queries], sample)
    table[np.arange(len(queries)), queries] = np.inf
    if R is None:
        most = min(m - 1, max(k, 16))
        near = np.sort(np.partition(table, most - 1, axis=1)[:, :most], axis=1)
        near = near[:, : min(k, m - 1)] if size == m else extrapolated(near, m, size, k)
    else:
        near = np.full((1, 1), float(R))
    largest = float(np.sqrt(np.einsum("ij,ij->i", sample, sample, dtype=np.float64).max()))
    found = choose(near, table[np.isfinite(table)], size, sample.shape[1], float(target), memory, largest)
    if R is None:
        return found
    ratio = np.array([float(c) * float(R) / found.width])
    mean, _ = probing.success(found.n_tables, found.n_hashes, found.n_probes, ratio)
    return replace(found, far=float(mean[0]))


def choose(
    near: Float64, pairs: Float64, n: int, dim: int, target: float, memory: int | None = None, largest: float = 0.0
) -> Tuning:
    """The cheapest parameters, by the distances of neighbours (queries, k) and of random pairs.

    `largest` is the largest norm of a vector: cells must be wide enough for their numbers to fit 32 bits.
    """
    with threadpool_limits(1, "blas"):  # many small products, which more threads would only wait for
        return _choose(near, pairs, n, dim, target, 4 * dim if memory is None else memory, largest)


def _choose(near: Float64, pairs: Float64, n: int, dim: int, target: float, memory: int, largest: float) -> Tuning:
    middle = float(np.median(near[:, -1]))
    if middle == 0:  # more copies than neighbours asked for
        positive = np.concatenate([near.ravel(), pairs])
        middle = float(positive[positive > 0].min(initial=np.inf))
        middle = middle if math.isfinite(middle) else 1.0
    middle = max(middle, largest * 1e-8)
    points = _summary(near.ravel(), 256)
    counts, edges = np.histogram(np.log(np.maximum(pairs, middle * 1e-3)), 256)
    centres, weights = np.exp((edges[1:] + edges[:-1]) / 2), counts / max(1, counts.sum())
    tables = [T for T in TABLES if memory >= T * ENTRY] or [1]
    wanted = min(target + MARGIN, (1 + target) / 2)
    best: tuple[float, float, int, int, float] | None = None
    fallback = (0.0, WIDTHS[-1] * middle, HASHES[0], tables[-1], LEVELS[-1])
    for k in HASHES:
        table = curve(k)
        for width in WIDTHS:
            w = width * middle
            hit, far = table.at(points / w), table.at(centres / w)
            for T in tables:
                recalls = _any(hit, T).mean(axis=1)
                level = int(np.searchsorted(recalls, wanted))
                if recalls[-1] > fallback[0]:
                    fallback = float(recalls[-1]), w, k, T, LEVELS[-1]
                if level == len(recalls) or LEVELS[level] * T > MOST_PROBES:
                    continue
                compared, entries = n * _any(far[level], T) @ weights, n * T * far[level] @ weights
                price = cost(n, dim, k, T, LEVELS[level] * T, float(entries), float(compared))
                if best is None or price < best[0]:
                    best = price, w, k, T, LEVELS[level]
    _, w, k, T, about = fallback if best is None else best
    return _finished(w, k, T, about, points, centres, weights, n, dim, target, wanted)


def _finished(
    w: float, k: int, T: int, about: float, points: Float64, centres: Float64, weights: Float64, n: int, dim: int,
    target: float, wanted: float,
) -> Tuning:  # fmt: skip
    """The least probes for the target, over all tables together, and the predictions."""
    levels = sorted({min(MOST_PROBES, max(T, int(T * about * 1.1**i))) for i in range(-10, 6)})
    hits, _ = probing.success(T, k, levels, RATIOS, draws=DRAWS)
    recalls = _interpolated(hits, points / w).mean(axis=1)
    level = min(int(np.searchsorted(recalls, wanted)), len(levels) - 1)
    compared = float(n * _interpolated(hits[level], centres / w) @ weights)
    single = _interpolated(curve(k).chance, centres / w) @ weights
    entries = n * T * float(np.interp(levels[level] / T, LEVELS, single))
    price = cost(n, dim, k, T, levels[level], entries, compared)
    scan = n * (dim * SCAN + 2)
    return Tuning(w, k, T, levels[level], float(recalls[level]), target, compared, n, price / 1e3, scan / 1e3)


def cost(n: int, dim: int, k: int, T: int, n_probes: float, entries: float, compared: float) -> float:
    """Nanoseconds of a query, about: hashing, scoring and finding buckets, reading them, comparing vectors."""
    sets = 4 * probing.per_table(T, int(n_probes)) if n_probes > T else 0
    probes = T * (sets * SCORE + k * 40) + n_probes * (
        PROBE + LOOKUP * math.sqrt(n * T)
    )  # the caches are soon too small
    return T * k * dim * HASH + probes + entries * READ + compared * (COMPARE + dim * NUMBER)


class Curve(NamedTuple):
    """How likely the probed buckets of one table hold a row: (LEVELS, RATIOS), for so many buckets on average."""

    chance: Float64

    def at(self, ratios: Float64) -> Float64:
        return _interpolated(self.chance, ratios)


@lru_cache(maxsize=64)
def curve(k: int) -> Curve:
    """Of k hashes; the same limit on the score for all draws, as it is when the best of many tables are taken."""
    random = np.random.RandomState(np.array([0xC0FE, k], np.uint32))
    place = random.uniform(size=(DRAWS, k))
    nearer = np.sort(np.minimum(place, 1 - place), axis=1)
    borders = np.concatenate([nearer, 1 - nearer[:, ::-1]], axis=1)
    member = probing.template(k, 2 * int(LEVELS[-1])).member
    order = np.argsort(_bucket_scores(place, borders, member, probing.SPREAD)[:, 1:], axis=None)
    level = np.empty(order.size, np.int64)
    level[order] = np.searchsorted((np.array(LEVELS) - 1) * DRAWS, np.arange(1, order.size + 1))
    chance = np.empty((len(LEVELS), len(RATIOS)))
    for i, ratio in enumerate(RATIOS):
        each = np.exp(-_bucket_scores(place, borders, member, float(ratio))) / DRAWS
        more = np.bincount(level, each[:, 1:].ravel(), len(LEVELS) + 1)[: len(LEVELS)]
        chance[:, i] = each[:, 0].sum() + np.cumsum(more)
    return Curve(np.clip(chance, 1e-300, 1.0))


def _bucket_scores(place: Float64, borders: Float64, member: Float32, spread: float) -> Float64:
    """-log of the probabilities of the query's own bucket, and of those across each set of borders, (draws, 1 + M)."""
    home = -probing.log_stays(place, spread, 2).sum(axis=1, keepdims=True)
    return np.concatenate([home, home + probing.crossing(borders, spread, 2) @ member], axis=1)


def _interpolated(chance: Float64, ratios: Float64) -> Float64:
    """chance (..., RATIOS) at other ratios, its logarithm linear between them."""
    x = np.clip(np.interp(ratios, RATIOS, np.arange(len(RATIOS))), 0, len(RATIOS) - 1.001)
    low = x.astype(np.int64)
    logs = np.log(np.maximum(chance, 1e-300))
    found: Float64 = np.exp(logs[..., low] + (x - low) * (logs[..., low + 1] - logs[..., low]))
    return found


def _any(chance: Float64, T: int) -> Float64:
    """In one of T tables at least."""
    found: Float64 = -np.expm1(T * np.log1p(-np.minimum(chance, 1 - 1e-12)))
    return found


def _summary(values: Float64, size: int) -> Float64:
    """As many numbers, or fewer, that are distributed like the values."""
    if len(values) <= size:
        return values
    found: Float64 = np.quantile(values, (np.arange(size) + 0.5) / size)
    return found


def distances(queries: Float32, others: Float32) -> Float64:
    """(n_queries, n_others), up to the rounding of a product in float64."""
    middle = others.mean(axis=0, dtype=np.float64)
    a, b = queries - middle, others - middle
    squares = np.einsum("ij,ij->i", a, a)[:, None] + np.einsum("ij,ij->i", b, b) - 2 * (a @ b.T)
    found: Float64 = np.sqrt(np.maximum(squares, 0))
    return found


def extrapolated(near: Float64, m: int, n: int, k: int) -> Float64:
    """Distances of the k nearest of n, from those of a sample of m, (queries, some) in increasing order.

    Rows are taken to lie around a query as a Poisson process of d dimensions. There the logarithm of the j-th distance
    has the mean (psi(j) - log n) / d and a constant of the query's surroundings.
    """
    logs = np.log(np.maximum(near, near[near > 0].min(initial=1.0) * 1e-6))
    K = near.shape[1]
    slope = max(float((logs[:, -1:] - logs[:, :-1]).mean()), 1e-3) if K > 1 else 0.1  # 1 / d (Levina and Bickel)
    constant = (logs - slope * (psi(np.arange(1, K + 1)) - math.log(m))).mean(axis=1, keepdims=True)
    found: Float64 = np.exp(constant + slope * (psi(np.arange(1, min(k, n - 1) + 1)) - math.log(n)))
    return found
