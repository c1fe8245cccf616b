"""Packed codes: bits in bytes, and the Hamming distances between codes.

Bit i of a code is bit 7 - i % 8 of byte i // 8, the order of `np.packbits`; the last byte is padded with zeros, in
which no two codes differ. `np.unpackbits(codes, axis=1, count=n_bits)` returns the bits.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.checks import as_array
from ..errors import InputError
from ..native.scan_numpy import hamming_distances

UInt8: TypeAlias = NDArray[np.uint8]


def pack(bits: NDArray[np.bool_]) -> UInt8:
    """Pack bits (n, n_bits) into codes (n, ceil(n_bits / 8))."""
    return np.packbits(np.ascontiguousarray(bits), axis=1)


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """Return the number of bits in which each code of `a` differs from each code of `b`.

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
        raise InputError(
            f"a has codes of {x.shape[1]} bytes, b of {y.shape[1]}", "pass codes of the same hash", argument="b"
        )
    return hamming_distances(as_words(x), as_words(y))


def checked_codes(codes: ArrayLike, name: str) -> UInt8:
    """Return `codes` as a uint8 array (n, n_bytes), or raise an InputError that calls it `name`."""
    array = as_array(codes, name)
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} must be packed codes (n, n_bytes), not {array.dtype} of shape {array.shape}", argument=name
        )
    if array.dtype != np.uint8:
        if array.size and not (array.min() >= 0 and array.max() <= 255):
            raise InputError(
                f"{name} holds numbers beyond 0 to 255",
                "pass packed codes, as `SignHash.transform` returns them",
                argument=name,
            )
        array = array.astype(np.uint8)
    return array


def as_words(codes: UInt8) -> NDArray[np.uint64]:
    """Return codes (n, n_bytes) as words of 64 bits, (n, n_words), padded with zeros."""
    padded = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(np.uint64)
