"""What LadderSearch chooses by measuring: the length of a prefix, the number of lists, the cheapest settings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .base import Float32, Float64


def cost(scanned: float, width: int, compared: float, depth: int, dim: int) -> float:
    """What a search takes: prefixes scanned and sorted, vectors compared. To choose between settings: ratios count."""
    return 0.15 * scanned * width + 25.0 * depth + compared * (50 + 0.3 * dim)


def default_lists(n: int) -> int:
    """How many lists n rows are put into: a scan of all is quick up to some thousands."""
    return 1 if n < 8192 else int(2 ** round(np.log2(n**0.5)))


def steps(first: int, last: int) -> list[int]:
    """From `first` to `last`, each about a third more than the one before."""
    found = [min(first, last)]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, int(found[-1] * 1.35))))
    return found


def least(n: int, good: Callable[[int], bool]) -> int:
    """The first i in [0, n) that is good, where all after a good one are; n if none is."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle + 1
    return low


def prefix_length(prefixes: Float32, sample: Float32) -> int:
    """How many directions pay: more make a scan longer, and leave fewer vectors to compare.

    `prefixes` are those of the sample along all directions. Of some vectors the nearest ten are found among all of the
    sample, and then, for each length, how many rows have a prefix nearer than the tenth: these would be compared.
    """
    n_queries, k, most = min(256, len(sample) // 4), 10, prefixes.shape[1] - 1
    if len(sample) < 64:
        return int(min(most, 8))
    kth = np.partition(table_of(sample, n_queries), k - 1, axis=1)[:, k - 1, None]
    squares = np.square(prefixes, dtype=np.float64)
    lengths = [p for p in (4, 8, 12, 16, 24, 32, 48, 64, 96, 128) if p < most] + [most]
    prices = []
    for p in lengths:
        rest = np.sqrt(squares[:, p:].sum(axis=1))
        low = table_of(np.column_stack([prefixes[:, :p], rest]).astype(np.float32), n_queries)
        compared = float(np.mean(np.sum(low <= kth, axis=1)))
        prices.append(cost(len(sample) / 8, p + 1, compared, 0, sample.shape[1]))
    return int(lengths[int(np.argmin(prices))])


def table_of(vectors: Float32, n_queries: int) -> Float64:
    """Squared distances from the first few vectors to all of them, up to rounding; none is near to itself."""
    middle = vectors.mean(axis=0)
    centred = vectors - middle
    squares = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
    table: Float64 = squares[:n_queries, None] + squares - 2.0 * (centred[:n_queries] @ centred.T)
    table[np.arange(n_queries), np.arange(n_queries)] = np.inf
    return table
