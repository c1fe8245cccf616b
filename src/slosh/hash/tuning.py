"""Parameters of p-stable hash tables for a goal: width, k, T and probes, with the expected recall and cost.

The goal is a recall of the k nearest, or a radius R with a success probability. Nothing is hashed: the geometry of the
cells is known, and only distances are measured, in a sample of the vectors.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import psi
from threadpoolctl import threadpool_limits

from ..data.checks import checked_count, checked_number
from ..data.vectors import blocks, check_numbers, fitting_vectors
from ..errors import InputError
from ..native.arrays import Float32, Float64
from . import probing
from .pstable import PStableHash

HASHES = (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32)
TABLES = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
WIDTHS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)
"""Widths of a cell that are tried, in distances of the neighbours."""
LEVELS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Numbers of probed buckets of a table, on average, that are tried."""
MAX_PROBES = 1024
"""The largest number of probed buckets, all tables together."""
RATIOS = np.concatenate([[0.01, 0.03], np.geomspace(0.06, 4.0, 26)])
"""Distances, in widths, at which probabilities are tabulated."""
TABLE_DRAWS = 96
"""Draws of the place of a query in its cells, for the tables of probabilities."""
PAIR_QUERIES, PAIR_OTHERS = 128, 4096
"""Pairs of rows whose distances tell how many far rows share a bucket."""
TUNING_VECTORS = 20000
"""Of more vectors, `tune` draws this many."""
RECALL_MARGIN = 0.005
"""The predicted recall must exceed the target by this: it is the mean over all draws, and the tables are one draw."""
ENTRY_BYTES = 12
"""Bytes of a row in a table."""

# Nanoseconds of each step, measured (docs/search-lsh.md); only their ratios matter.
HASH, SCORE, PROBE, LOOKUP, READ, COMPARE, NUMBER, SCAN = 0.18, 8.0, 150.0, 0.075, 50.0, 30.0, 0.5, 0.04


@dataclass(frozen=True)
class Tuning:
    """Parameters of p-stable tables, and what is predicted of them.

    width, n_hashes, n_tables : w, k and T of `PStableHash`.
    n_probes : buckets to look into, all tables together.
    recall : the predicted share of the k nearest that is found; with R, the success probability at R.
    target : the recall that was asked for. If `recall` is below it, it cannot be reached within the bounds.
    candidates : the predicted number of vectors that are compared with a query.
    n : size of the collection.
    microseconds, scan_microseconds : the approximate time of a query, and of a scan, on one core.
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
        """The share of the collection that is compared with a query."""
        return self.candidates / self.n

    def hash(self, random_state: Any = 0) -> PStableHash:
        """Return an unfitted hash with these parameters."""
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
    """Return the cheapest parameters with which the k nearest, or a row within R, are found as often as asked for.

    Given the distance r of a row, the differences of its hashes from the query's are normal with the standard deviation
    r, and the query's place in its cells is uniform: so the probability that one of the probed buckets holds the row is
    a function of r / w alone. Its mean over the distances of the true neighbours of some of the vectors is the recall,
    and its mean over random pairs gives the number of vectors to compare.

    vectors : the collection, or a sample of it, (m, D). Of more than 20,000 vectors as many are drawn.
    n : size of the collection; None is the number of `vectors`. From a sample the distances of the neighbours are
        extrapolated: the mean logarithm of the j-th of n is linear in (psi(j) - log n) / d, with the dimension d of the
        data estimated from the neighbours within the sample.
    k, recall : the share of the k nearest that must be found, on average.
    R, c, success : instead of them, a radius and the probability with which a row at that distance must be found, as
        `LSHSearch.near` asks for it. Rows are far beyond c R, c > 1; `Tuning.far` says how often they are compared.
    memory : bytes a row for the tables, 12 for each; None is the size of the vector, 4 D.
    random_state : seed of the sample.

    >>> tune(np.random.default_rng(0).normal(size=(3000, 8)), R=0.5, success=0.95).recall >= 0.95
    True
    """
    array = fitting_vectors(vectors)
    check_numbers(array)
    size = len(array) if n is None else checked_count("n", n)
    target = _checked_goal(len(array), size, k, recall, R, c, success, memory)
    random = np.random.RandomState(np.array([0x7E5E, random_state], np.uint32))
    picked = random.permutation(len(array))[:TUNING_VECTORS]
    sample = np.concatenate([block for _, block in blocks(array[np.sort(picked)], 4096)])
    m = len(sample)
    queries = random.permutation(m)[: 2 * PAIR_QUERIES]
    table = distances(sample[queries], sample)
    table[np.arange(len(queries)), queries] = np.inf
    if R is None:
        most = min(m - 1, max(k, 16))
        near = np.sort(np.partition(table, most - 1, axis=1)[:, :most], axis=1)
        near = near[:, : min(k, m - 1)] if size == m else extrapolated(near, m, size, k)
    else:
        near = np.full((1, 1), float(R))
    largest = float(np.sqrt(np.einsum("ij,ij->i", sample, sample, dtype=np.float64).max()))
    found = choose(near, table[np.isfinite(table)], size, sample.shape[1], target, memory, largest)
    if R is None:
        return found
    ratio = np.array([float(c) * float(R) / found.width])
    mean, _ = probing.success(found.n_tables, found.n_hashes, found.n_probes, ratio)
    return replace(found, far=float(mean[0]))


def _checked_goal(
    m: int, n: int, k: int, recall: float, R: float | None, c: float, success: float, memory: int | None
) -> float:
    """Refuse arguments of `tune` that are not valid; return the recall, or the success probability, to reach."""
    if m < 2:
        raise InputError(f"tune needs two vectors or more to see distances, not {m}", argument="vectors")
    if n < m:
        raise InputError(f"n={n}, but there are {m} vectors", "pass the size of the whole collection", argument="n")
    checked_count("k", k)
    if R is not None:
        checked_number("R", R, "a positive distance")
    checked_number("c", c, "a number larger than 1", above=1)
    if memory is not None and checked_count("memory", memory) < ENTRY_BYTES:
        raise InputError(f"memory={memory}: one table takes {ENTRY_BYTES} bytes a row", argument="memory")
    name, target = ("success", success) if R is not None else ("recall", recall)
    return checked_number(name, target, "more than 0 and less than 1", below=1, remedy="for 1 use ExactSearch")


def choose(
    near: Float64, pairs: Float64, n: int, dim: int, target: float, memory: int | None = None, largest: float = 0.0
) -> Tuning:
    """Return the cheapest parameters, given the distances of neighbours (queries, k) and of random pairs.

    `largest` is the largest norm of a vector: cells must be wide enough for their numbers to fit 32 bits.
    """
    middle = float(np.median(near[:, -1]))
    if middle == 0:  # more copies than neighbours asked for
        positive = np.concatenate([near.ravel(), pairs])
        middle = float(positive[positive > 0].min(initial=np.inf))
        middle = middle if math.isfinite(middle) else 1.0
    middle = max(middle, largest * 1e-8)
    counts, edges = np.histogram(np.log(np.maximum(pairs, middle * 1e-3)), 256)
    centres, weights = np.exp((edges[1:] + edges[:-1]) / 2), counts / max(1, counts.sum())
    tables = [T for T in TABLES if (4 * dim if memory is None else memory) >= T * ENTRY_BYTES] or [1]
    goal = _Goal(n, dim, target, _summary(near.ravel(), 256), centres, weights)
    with threadpool_limits(1, "blas"):  # many small products, which more threads would only wait for
        return goal.finished(*goal.cheapest(middle, tables))


@dataclass(frozen=True)
class _Goal:
    """A target recall of neighbours at the distances `points`, among n rows at the distances `centres`, by weight."""

    n: int
    dim: int
    target: float
    points: Float64
    centres: Float64
    weights: Float64

    @property
    def wanted(self) -> float:
        return min(self.target + RECALL_MARGIN, (1 + self.target) / 2)

    def cheapest(self, middle: float, tables: list[int]) -> tuple[float, int, int, float]:
        """Return width, k, T and probes of a table at the least price; those of the best recall if none reaches it."""
        best, fallback = (math.inf, 0.0, 0, 0, 0.0), (0.0, WIDTHS[-1] * middle, HASHES[0], tables[-1], LEVELS[-1])
        for k, width in itertools.product(HASHES, WIDTHS):
            w, chance = width * middle, probed_probabilities(k)
            hit, far = _interpolated(chance, self.points / w), _interpolated(chance, self.centres / w)
            for T in tables:
                recalls = _any(hit, T).mean(axis=1)
                level = int(np.searchsorted(recalls, self.wanted))
                if recalls[-1] > fallback[0]:
                    fallback = float(recalls[-1]), w, k, T, LEVELS[-1]
                if level == len(recalls) or LEVELS[level] * T > MAX_PROBES:
                    continue
                compared = self.n * _any(far[level], T) @ self.weights
                entries = self.n * T * far[level] @ self.weights
                price = cost(self.n, self.dim, k, T, LEVELS[level] * T, float(entries), float(compared))
                if price < best[0]:
                    best = price, w, k, T, LEVELS[level]
        return best[1:] if best[0] < math.inf else fallback[1:]

    def finished(self, w: float, k: int, T: int, about: float) -> Tuning:
        """Find the least number of probes for the target, all tables together, and return it with the predictions."""
        levels = sorted({min(MAX_PROBES, max(T, int(T * about * 1.1**i))) for i in range(-10, 6)})
        hits, _ = probing.success(T, k, levels, RATIOS, draws=TABLE_DRAWS)
        recalls = _interpolated(hits, self.points / w).mean(axis=1)
        level = min(int(np.searchsorted(recalls, self.wanted)), len(levels) - 1)
        n, n_probes, ratios = self.n, levels[level], self.centres / w
        compared = float(n * _interpolated(hits[level], ratios) @ self.weights)
        single = _interpolated(probed_probabilities(k), ratios) @ self.weights
        entries = n * T * float(np.interp(n_probes / T, LEVELS, single))
        price, scan = cost(n, self.dim, k, T, n_probes, entries, compared), n * (self.dim * SCAN + 2)
        return Tuning(w, k, T, n_probes, float(recalls[level]), self.target, compared, n, price / 1e3, scan / 1e3)


def cost(n: int, dim: int, k: int, T: int, n_probes: float, entries: float, compared: float) -> float:
    """Return the nanoseconds of a query: hashing, scoring and finding buckets, reading them, comparing vectors."""
    sets = 4 * probing.per_table(T, int(n_probes)) if n_probes > T else 0
    lookup = PROBE + LOOKUP * math.sqrt(n * T)  # the caches are soon too small
    probes = T * (sets * SCORE + k * 40) + n_probes * lookup
    return T * k * dim * HASH + probes + entries * READ + compared * (COMPARE + dim * NUMBER)


@lru_cache(maxsize=64)
def probed_probabilities(k: int) -> Float64:
    """Return the probability that the probed buckets of one table of k hashes hold a row, (LEVELS, RATIOS).

    All draws have the same limit on the score, as they do when the best buckets of many tables are taken.
    """
    random = np.random.RandomState(np.array([0xC0FE, k], np.uint32))
    place = random.uniform(size=(TABLE_DRAWS, k))
    nearer = np.sort(np.minimum(place, 1 - place), axis=1)
    borders = np.concatenate([nearer, 1 - nearer[:, ::-1]], axis=1)
    member = probing.template(k, 2 * int(LEVELS[-1])).member
    order = np.argsort(_bucket_scores(place, borders, member, probing.SPREAD)[:, 1:], axis=None)
    level = np.empty(order.size, np.int64)
    level[order] = np.searchsorted((np.array(LEVELS) - 1) * TABLE_DRAWS, np.arange(1, order.size + 1))
    chance = np.empty((len(LEVELS), len(RATIOS)))
    for i, ratio in enumerate(RATIOS):
        each = np.exp(-_bucket_scores(place, borders, member, float(ratio))) / TABLE_DRAWS
        more = np.bincount(level, each[:, 1:].ravel(), len(LEVELS) + 1)[: len(LEVELS)]
        chance[:, i] = each[:, 0].sum() + np.cumsum(more)
    return np.clip(chance, 1e-300, 1.0)


def _bucket_scores(place: Float64, borders: Float64, member: Float32, spread: float) -> Float64:
    """Return -log P of the query's own bucket, and of the buckets across each set of borders, (draws, 1 + M)."""
    home = -probing.log_stays(place, spread, 2).sum(axis=1, keepdims=True)
    return np.concatenate([home, home + probing.crossing(borders, spread, 2) @ member], axis=1)


def _interpolated(chance: Float64, ratios: Float64) -> Float64:
    """Interpolate chance (..., RATIOS) at other ratios, linearly in its logarithm."""
    x = np.clip(np.interp(ratios, RATIOS, np.arange(len(RATIOS))), 0, len(RATIOS) - 1.001)
    low = x.astype(np.int64)
    logs = np.log(np.maximum(chance, 1e-300))
    return np.asarray(np.exp(logs[..., low] + (x - low) * (logs[..., low + 1] - logs[..., low])))


def _any(chance: Float64, T: int) -> Float64:
    """Return the probability of success in at least one of T tables."""
    return np.asarray(-np.expm1(T * np.log1p(-np.minimum(chance, 1 - 1e-12))))


def _summary(values: Float64, size: int) -> Float64:
    """Return at most `size` numbers that are distributed like the values."""
    return values if len(values) <= size else np.asarray(np.quantile(values, (np.arange(size) + 0.5) / size))


def distances(queries: Float32, others: Float32) -> Float64:
    """Return the distances (n_queries, n_others), up to the rounding of a product in float64."""
    middle = others.mean(axis=0, dtype=np.float64)
    a, b = queries - middle, others - middle
    squares = np.einsum("ij,ij->i", a, a)[:, None] + np.einsum("ij,ij->i", b, b) - 2 * (a @ b.T)
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


def extrapolated(near: Float64, m: int, n: int, k: int) -> Float64:
    """Estimate the distances of the k nearest of n from those in a sample of m, (queries, some) in increasing order.

    Rows are assumed to lie around a query as a Poisson process in d dimensions. There the logarithm of the j-th
    distance has the mean (psi(j) - log n) / d, up to a constant of the query.
    """
    logs = np.log(np.maximum(near, near[near > 0].min(initial=1.0) * 1e-6))
    K = near.shape[1]
    slope = max(float((logs[:, -1:] - logs[:, :-1]).mean()), 1e-3) if K > 1 else 0.1  # 1 / d (Levina and Bickel)
    constant = (logs - slope * (psi(np.arange(1, K + 1)) - math.log(m))).mean(axis=1, keepdims=True)
    return np.asarray(np.exp(constant + slope * (psi(np.arange(1, min(k, n - 1) + 1)) - math.log(n))))
