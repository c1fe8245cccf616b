"""Count the bits in which packed codes differ, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
UInt8 = NDArray[np.uint8]

BLOCK_PAIRS = 1 << 14
"""Pairs of codes compared at once: their words stay in the cache."""


def hamming_distances(a: Words, b: Words) -> NDArray[np.int32]:
    """Return the number of bits in which each code of `a` (n, n_words) differs from each of `b` (m, n_words)."""
    words_a, words_b = (np.ascontiguousarray(words.T) for words in (a, b))  # all first words come first
    out = np.zeros((len(a), len(b)), np.int32)
    step = max(1, BLOCK_PAIRS // max(1, len(b)))
    for start in range(0, len(a), step):
        for first in range(0, len(b), BLOCK_PAIRS):
            part = out[start : start + step, first : first + BLOCK_PAIRS]
            different = np.empty(part.shape, np.uint64)
            rows, columns = words_a[:, start : start + step, None], words_b[:, first : first + BLOCK_PAIRS]
            for row, column in zip(rows, columns, strict=True):
                np.bitwise_xor(row, column, out=different)
                part += bit_count(different)
    return out


def bit_count_by_table(words: Words) -> UInt8:
    """Return the number of bits that are set in each word; for NumPy before 2.0."""
    counts: UInt8 = _BITS_OF_16[np.ascontiguousarray(words)[..., None].view(np.uint16)].sum(axis=-1, dtype=np.uint8)
    return counts


_BITS_OF_16: UInt8 = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2), axis=1).sum(
    axis=1, dtype=np.uint8
)
bit_count: Callable[[Any], UInt8] = getattr(np, "bitwise_count", bit_count_by_table)
