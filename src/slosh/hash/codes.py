"""Packed codes: bits in bytes, and the Hamming distances between codes.

Bit i of a code is bit 7 - i % 8 of byte i // 8, the order of `np.packbits`; the last byte is padded with zeros, in
which no two codes differ. `np.unpackbits(codes, axis=1, count=n_bits)` returns the bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.checks import as_array, input_error
from ..errors import InputError
from ..native.arrays import UInt8, Words
from ..native.scan_numpy import hamming_distances


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """Return the number of bits in which each code of `a` differs from each code of `b`, (n, m).

    a, b : uint8 arrays (n, n_bytes) and (m, n_bytes) of packed codes, as `SignHash.transform` gives them.

    >>> hamming([[0b10110000], [0b00000000]], [[0b10010000]]).tolist()
    [[1], [2]]
    """
    x, y = checked_codes(a, "a"), checked_codes(b, "b")
    if x.shape[1] != y.shape[1]:
        problem = f"a has codes of {x.shape[1]} bytes, b of {y.shape[1]}"
        raise InputError(problem, "pass codes of the same hash", argument="b")
    return hamming_distances(as_words(x), as_words(y))


def checked_codes(codes: ArrayLike, name: str) -> UInt8:
    """Return `codes` as a uint8 array (n, n_bytes), or raise an InputError that calls it `name`."""
    array = as_array(codes, name)
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "iu":
        raise input_error(name, f"must be packed codes (n, n_bytes), not {array.dtype} of shape {array.shape}")
    if array.dtype != np.uint8 and array.size and not (array.min() >= 0 and array.max() <= 255):
        remedy = "pass packed codes, as `SignHash.transform` returns them"
        raise input_error(name, "holds numbers beyond 0 to 255", remedy)
    return array.astype(np.uint8, copy=False)


def as_words(codes: UInt8) -> Words:
    """Return codes (n, n_bytes) as words of 64 bits, (n, n_words), padded with zeros."""
    padded = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(np.uint64)
