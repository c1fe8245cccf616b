"""The cost model of LadderSearch: what a plan takes, and by it the length of a prefix and the number of lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..checkpoints import checkpoint
from ..native.arrays import Float32, Float64

QUERIES_ALONE = 3
"""So few queries compare vectors each by itself (see `flat` of the kernel)."""


def cost(scanned: float, width: int, compared: float, dim: int) -> float:
    """Return what a search takes, in nanoseconds or so: rows scanned, vectors compared. Only ratios mean anything."""
    return scanned * (0.15 + 0.008 * width) + compared * (25 + 0.16 * dim)


def cost_of_exact(n: int, width: int, n_queries: int = 1000) -> float:
    """Return what an exact search among n rows takes, in the same unit: nearly all prefixes are scanned at worst.

    A query that is alone reads every list for itself.
    """
    each = 15_000 + n * (0.15 + 0.0095 * width)
    return 2 * each if n_queries <= QUERIES_ALONE else each


def cost_of_each(n: int, n_queries: int, dim: int) -> float:
    """Return what comparing n vectors one by one takes a query: less where several queries read them together."""
    if n_queries <= QUERIES_ALONE:
        return n * (8 + 0.16 * dim)
    return n * (0.35 + 0.021 * dim + 1.2 * dim / n_queries)


def most_compared_alone(n: int, width: int, dim: int) -> int:
    """Return of how many vectors one query compares each, rather than scan the prefixes of all n rows."""
    return int(cost_of_exact(n, width, 1) / cost_of_each(1, 1, dim))


def default_lists(n: int) -> int:
    """Return how many lists n rows are put into: a scan of all is quick up to some thousands.

    Sixteen centres are compared at a time.
    """
    return 1 if n < 4096 else 16 * round(n**0.6 / 16)


def candidate_depths(first: int, last: int) -> list[int]:
    """Return depths from `first` to `last`, each about a tenth more than the one before."""
    found = [min(first, last)]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, int(found[-1] * 1.1))))
    return found


def prefix_length(prefixes: Float32, sample: Float32) -> int | None:
    """Return how many directions pay: more make a scan longer, and leave fewer vectors to compare; None: all numbers.

    `prefixes` are those of the sample along all directions. Of some vectors the nearest ten are found among all of the
    sample, and then, for each length, how many rows have a prefix nearer than the tenth: these would be compared.
    """
    n_queries, k, longest, dim = min(256, len(sample) // 4), 10, prefixes.shape[1] - 1, sample.shape[1]
    if len(sample) < 64:
        return None if dim <= 16 else int(min(longest, 15))
    kth = np.partition(squared_distances(sample, n_queries), k - 1, axis=1)[:, k - 1, None]
    best: int | None = None
    least = cost(len(sample) / 8, dim, k, dim) if dim <= longest + 1 else np.inf
    lengths = [p for p in (3, 7, 11, 15, 23, 31, 47, 63, 95, 127) if p <= longest and p + 1 < dim]
    for p, compared in zip(lengths, _numbers_compared(prefixes, lengths, kth), strict=True):
        price = cost(len(sample) / 8, p + 1, compared, dim)
        if price < least:
            best, least = p, price
    return best


def _numbers_compared(prefixes: Float32, lengths: list[int], kth: Float64) -> Iterator[float]:
    """Yield for each length how many rows have a prefix nearer than the k-th distance of a query, squared, on average.

    Each length adds to the table of distances what the numbers since the one before do.
    """
    n_queries, largest = len(kth), np.abs(prefixes).max(initial=0.0)
    exponent = int(np.frexp(largest)[1])
    scaled = np.ldexp(prefixes, -exponent)  # squares that float32 can hold; by a power of two nothing is rounded
    with np.errstate(over="ignore"):
        limit = np.ldexp(kth, -2 * exponent).astype(np.float32)
    squares = np.square(scaled, dtype=np.float64)
    table = np.zeros((n_queries, len(prefixes)), np.float32)
    for first, last in pairwise([0, *lengths]):
        checkpoint()
        table += _part_of_squares(scaled[:, first:last], n_queries)
        rest = np.sqrt(squares[:, last:].sum(axis=1)).astype(np.float32)
        near = table + _part_of_squares(rest[:, None], n_queries) <= limit
        near[np.arange(n_queries), np.arange(n_queries)] = False
        yield float(np.count_nonzero(near)) / n_queries


def _part_of_squares(numbers: Float32, n_queries: int) -> Float32:
    """Return |x - y|^2 of the first few rows x and all rows y, up to rounding."""
    squares = np.einsum("ij,ij->i", numbers, numbers)
    table: Float32 = numbers[:n_queries] @ (-2 * numbers.T)
    table += squares
    table += squares[:n_queries, None]
    return table


def squared_distances(vectors: Float32, n_queries: int) -> Float64:
    """Return squared distances from the first few vectors to all, up to rounding; none is near to itself."""
    centred = vectors - vectors.mean(axis=0)
    exponent = int(np.frexp(np.abs(centred).max(initial=0.0))[1])
    centred = np.ldexp(centred, -exponent)  # squares that float32 can hold; by a power of two nothing is rounded
    squares = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
    table: Float64 = squares[:n_queries, None] + squares - 2.0 * (centred[:n_queries] @ centred.T)
    table[np.arange(n_queries), np.arange(n_queries)] = np.inf
    return np.ldexp(table, 2 * exponent)
