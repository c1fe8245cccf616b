"""Hamming distances in NumPy, with and without the bit count of NumPy 2."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.native import scan_numpy


@pytest.mark.parametrize("n_words", [1, 3])
@pytest.mark.parametrize("by_table", [False, True])
def test_hamming_distances_count_different_bits(n_words, by_table, monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 63, (n, n_words), dtype=np.uint64) << np.uint64(1) for n in (40, 30))
    expected = [[sum(bin(x ^ y).count("1") for x, y in zip(p, q, strict=True)) for q in b.tolist()] for p in a.tolist()]
    if by_table:
        monkeypatch.setattr(scan_numpy, "bit_count", scan_numpy.bit_count_by_table)
    for block in (1 << 14, 16):
        monkeypatch.setattr(scan_numpy, "BLOCK_PAIRS", block)
        assert scan_numpy.hamming_distances(a, b).tolist() == expected
    assert scan_numpy.hamming_distances(a[:0], b).shape == (0, 30)
    assert scan_numpy.hamming_distances(a, b[:0]).shape == (40, 0)
