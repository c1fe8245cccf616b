"""Hamming distances of packed codes."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.hash import hamming


@pytest.mark.parametrize("n_bytes", [1, 7, 8, 128, 129])
def test_hamming_counts_different_bits(n_bytes: int) -> None:
    rng = np.random.RandomState(0)
    a, b = (rng.randint(256, size=(n, n_bytes)).astype(np.uint8) for n in (40, 30))
    expected = [[sum(bin(x ^ y).count("1") for x, y in zip(p, q, strict=True)) for q in b.tolist()] for p in a.tolist()]
    result = hamming(a, b)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(hamming(a.astype(int), b[:, ::-1][:, ::-1]), expected)
    assert hamming(a[:0], b).shape == (0, 30)
    assert hamming(a, b[:0]).shape == (40, 0)


def test_hamming_errors() -> None:
    code = np.zeros((2, 4), np.uint8)
    with pytest.raises(ValueError, match="a has codes of 4 bytes, b of 3"):
        hamming(code, code[:, :3])
    with pytest.raises(ValueError, match=r"b must be packed codes \(n, n_bytes\), not float64"):
        hamming(code, code.astype(float))
    with pytest.raises(ValueError, match=r"a must be packed codes.*shape \(4,\)"):
        hamming(code[0], code)
    with pytest.raises(ValueError, match="b holds numbers beyond 0 to 255"):
        hamming(code, [[0, 0, 0, 256]])
