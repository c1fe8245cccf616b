"""Packed codes: bits into bytes, and the Hamming distances between codes.

Bit i of a code is bit 7 - i % 8 of byte i // 8, the order of `np.packbits`; the last byte is filled up with zeros, in
which no two codes differ. `np.unpackbits(codes, axis=1, count=n_bits)` gives the bits back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.checks import as_array

UInt8: TypeAlias = NDArray[np.uint8]

BLOCK = 1 << 14  # pairs looked at in one go: their words stay in the cache


def pack(bits: NDArray[np.bool_]) -> UInt8:
    """Bits (n, n_bits) as codes (n, ceil(n_bits / 8))."""
    return np.packbits(np.ascontiguousarray(bits), axis=1)


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """In how many bits each code of `a` differs from each code of `b`.

    Parameters
    ----------
    a, b : uint8 arrays (n, n_bytes) and (m, n_bytes) of packed codes, as `SignHash.transform` gives them.

    Returns
    -------
    int32 array (n, m)

    >>> hamming([[0b10110000], [0b00000000]], [[0b10010000]]).tolist()
    [[1], [2]]
    """
    x, y = checked_codes(a, "a"), checked_codes(b, "b")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"a has codes of {x.shape[1]} bytes, b of {y.shape[1]}: they must be codes of the same hash")
    words_x, words_y = (np.ascontiguousarray(as_words(codes).T) for codes in (x, y))  # all first words come first
    out = np.zeros((len(x), len(y)), np.int32)
    step = max(1, BLOCK // max(1, len(y)))
    for start in range(0, len(x), step):
        for first in range(0, len(y), BLOCK):
            part = out[start : start + step, first : first + BLOCK]
            different = np.empty(part.shape, np.uint64)
            rows, columns = words_x[:, start : start + step, None], words_y[:, first : first + BLOCK]
            for row, column in zip(rows, columns, strict=True):
                np.bitwise_xor(row, column, out=different)
                part += _count(different)
    return out


def checked_codes(codes: ArrayLike, name: str) -> UInt8:
    array = as_array(codes, name)
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be packed codes (n, n_bytes), not {array.dtype} of shape {array.shape}")
    if array.dtype != np.uint8:
        if array.size and not (array.min() >= 0 and array.max() <= 255):
            raise ValueError(f"{name} holds numbers beyond 0 to 255: pass packed codes, as `SignHash.transform` gives")
        array = array.astype(np.uint8)
    return array


def as_words(codes: UInt8) -> NDArray[np.uint64]:
    """Codes (n, n_bytes) as words of 64 bits, (n, n_words), filled up with zeros."""
    padded = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(np.uint64)


def _table_count(words: NDArray[np.uint64]) -> UInt8:
    """How many bits of each word are set, for NumPy before 2.0."""
    counts: UInt8 = _BITS[np.ascontiguousarray(words)[..., None].view(np.uint16)].sum(axis=-1, dtype=np.uint8)
    return counts


_BITS: UInt8 = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2), axis=1).sum(
    axis=1, dtype=np.uint8
)
_count: Callable[[Any], UInt8] = getattr(np, "bitwise_count", _table_count)
