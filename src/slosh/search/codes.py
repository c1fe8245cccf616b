"""Codes by position, 32 side by side, growing as they are added: what the native scan of Hamming distances reads.

`nearest_codes` scans codes that you have already, without a search around them.

Packed codes (n, n_bytes) come in, as `SignHash.transform` gives them. A group holds 32 of them as words of 64 bits: the
first words of all 32, then their second words. Adding writes into the last group, and never moves the others.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.checks import Array, checked_count
from ..hash.codes import UInt8, as_words, checked_codes
from ..native import scan
from ..native.scan import GROUP
from .rows import Int64

Words: TypeAlias = NDArray[np.uint64]

STEP = 1 << 16
"""Codes that are moved in one go."""


def nearest_codes(
    queries: ArrayLike, codes: ArrayLike, k: int = 10, n_jobs: int | None = -1
) -> tuple[NDArray[np.int64], Int64]:
    """The k nearest codes of each query: in how many bits they differ, and their rows, both (n_queries, k) int64.

    Parameters
    ----------
    queries, codes : uint8 (n, n_bytes), packed as `SignHash.transform` gives them. The first bytes of a code are a
        shorter code: `codes[:, :16]` are its first 128 bits.
    k : at most the number of codes.
    n_jobs : threads; -1 is all cores. The result does not depend on it.

    The nearest come first, and those at the same distance in the order of their rows. For codes that grow, shrink or
    are stored use `HammingSearch`.

    >>> distances, rows = nearest_codes([[0b1100]], [[0b0000], [0b1110], [0b1101]], k=2)
    >>> distances.tolist(), rows.tolist()
    ([[1, 1]], [[1, 2]])
    """
    asked, stored = checked_codes(queries, "queries"), checked_codes(codes, "codes")
    if asked.shape[1] != stored.shape[1]:
        raise ValueError(
            f"queries are codes of {asked.shape[1]} bytes, codes of {stored.shape[1]}: give codes of the same hash"
        )
    k = checked_count("k", k)
    if not len(stored):
        raise ValueError("codes is empty, so nothing can be found: give at least one code")
    if k > len(stored):
        raise ValueError(f"k={k}, but there are {len(stored)} codes: ask for at most so many")
    store = CodeStore(8 * stored.shape[1])
    store.write(stored, 0)
    distances, rows = scan.nearest_codes(as_words(asked), store.groups, len(stored), None, None, k, n_jobs)
    return distances.astype(np.int64), rows


class CodeStore:
    """Codes of n_bits bits."""

    def __init__(self, n_bits: int) -> None:
        self.n_bytes_of_code = -(-n_bits // 8)
        self.n_words = -(-n_bits // 64)
        self._spare = n_bits % 8
        self._used = 0
        self._data = self._room(0)

    @classmethod
    def from_array(cls, array: Array, n: int, n_bits: int) -> CodeStore:
        """From packed codes; what does not fit is refused."""
        self = cls(n_bits)
        if array.shape != (n, self.n_bytes_of_code) or array.dtype != np.uint8:
            raise ValueError(f"its codes are {array.dtype} of shape {array.shape}, not of {n_bits} bits for {n} rows")
        if self._spare and np.any(array[:, -1] & (0xFF >> self._spare)):
            raise ValueError("its codes are longer than they should be")
        self.write(array, 0)
        return self

    @property
    def groups(self) -> Words:
        """(n_groups, n_words, 32); what is behind the last code means nothing."""
        return self._data[: -(-self._used // GROUP)]

    @property
    def n_bytes(self) -> int:
        return int(self.groups.nbytes)

    def cut(self, n: int) -> None:
        """Forgets all from n on."""
        self._used = min(n, self._used)

    def write(self, codes: UInt8, first: int) -> None:
        """Codes for the positions from `first` on, where the store ends afterwards."""
        last = first + len(codes)
        if last > len(self._data) * GROUP:
            data = self._room(max(last, first + first // 2))
            data[: len(self._data)] = self._data
            self._data = data
        for start in range(0, len(codes), STEP):
            words = as_words(codes[start : start + STEP])
            at = np.arange(first + start, first + start + len(words))
            head = min(-(first + start) % GROUP, len(words))  # ends the group that was begun
            whole = head + (len(words) - head) // GROUP * GROUP
            groups = words[head:whole].reshape(-1, GROUP, self.n_words).transpose(0, 2, 1)
            begin = (first + start + head) // GROUP
            self._data[begin : begin + len(groups)] = groups
            rest = np.r_[0:head, whole : len(words)]
            self._data[at[rest] // GROUP, :, at[rest] % GROUP] = words[rest]
        self._used = last

    def take(self, positions: Int64) -> UInt8:
        """Packed codes (n, n_bytes)."""
        out = np.empty((len(positions), self.n_bytes_of_code), np.uint8)
        for start in range(0, len(positions), STEP):
            at = positions[start : start + STEP]
            words = np.ascontiguousarray(self._data[at // GROUP, :, at % GROUP])
            out[start : start + STEP] = words.view(np.uint8)[:, : self.n_bytes_of_code]
        return out

    def keep(self, kept: Int64) -> None:
        """The code of position kept[i] goes to position i; `kept` increases."""
        codes = self.take(kept)
        self._data, self._used = self._room(len(kept)), 0
        self.write(codes, 0)

    def _room(self, n: int) -> Words:
        """Groups for n codes, at an address where no eight words side by side lie across two lines of the cache."""
        n_groups = -(-n // GROUP)
        size = n_groups * self.n_words * GROUP
        memory = np.zeros(size + 8, np.uint64)
        first = -(memory.ctypes.data // 8) % 8
        return memory[first : first + size].reshape(n_groups, self.n_words, GROUP)
