"""Codes by position, 32 side by side, growing as they are added: what the native scan of Hamming distances reads.

`nearest_codes` scans codes that you have already, without a search around them.

Packed codes (n, n_bytes) come in, as `SignHash.transform` gives them. A group holds 32 of them as words of 64 bits: the
first words of all 32, then their second words. Adding writes into the last group, and never moves the others.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.checks import checked_count
from ..errors import InputError
from ..hash.codes import as_words, checked_codes
from ..native import scan
from ..native.arrays import Array, Int64, UInt8
from ..native.scan import GROUP
from .columns import Column

Words: TypeAlias = NDArray[np.uint64]

MOVED_CODES = 1 << 16
"""Codes that are moved in one go."""


def nearest_codes(queries: ArrayLike, codes: ArrayLike, k: int = 10, n_jobs: int | None = -1) -> tuple[Int64, Int64]:
    """Return the k nearest codes of each query: how many bits differ, and their rows, (n_queries, k) int64 each.

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
        problem = f"queries are codes of {asked.shape[1]} bytes, codes of {stored.shape[1]}"
        raise InputError(problem, "give codes of the same hash")
    k = checked_count("k", k)
    if not len(stored):
        raise InputError("codes is empty, so nothing can be found", "give at least one code", argument="codes")
    if k > len(stored):
        raise InputError(f"k={k}, but there are {len(stored)} codes", "ask for at most so many", argument="k")
    groups = Codes(8 * stored.shape[1]).extend(stored).groups
    distances, rows = scan.nearest_codes(as_words(asked), groups, len(stored), None, None, k, n_jobs)
    return distances.astype(np.int64), rows


class AlignedColumn(Column):
    """A column in memory at an address where no eight words side by side lie across two lines of the cache."""

    def grown(self, used: Array, size: int) -> Array:
        shape = (size, *self.width)
        memory = np.zeros(math.prod(shape) + 8, np.uint64)
        first = -(memory.ctypes.data // 8) % 8
        data = memory[first : first + math.prod(shape)].reshape(shape)
        data[: len(used)] = used
        return data


class Codes:
    """Codes of n_bits bits at the positions 0 to n - 1. Immutable, like states, which share the column of groups."""

    def __init__(self, n_bits: int, column: Column | None = None, n: int = 0) -> None:
        self.n_bits, self.n = n_bits, n
        self.code_bytes, self.n_words = -(-n_bits // 8), -(-n_bits // 64)
        self._column = AlignedColumn((self.n_words, GROUP), np.uint64) if column is None else column

    @property
    def groups(self) -> Words:
        """(n_groups, n_words, 32); what is behind the last code means nothing."""
        return self._column.view(-(-self.n // GROUP))

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        return self._column.n_bytes(len(self.groups))

    def extend(self, codes: UInt8) -> Codes:
        """Return these codes and more, packed (n, code_bytes), which are written behind them."""
        spare = self.n_bits % 8
        if codes.shape[1:] != (self.code_bytes,) or codes.dtype != np.uint8:
            raise ValueError(f"codes of {codes.dtype} and shape {codes.shape} are not of {self.n_bits} bits")
        if spare and np.any(codes[:, -1] & (0xFF >> spare)):
            raise ValueError("its codes are longer than they should be")
        first, last = self.n, self.n + len(codes)
        begun = -(-first // GROUP)
        self._column.room(begun, -(-last // GROUP) - begun)
        data = self._column.view(-(-last // GROUP))
        for start in range(0, len(codes), MOVED_CODES):
            words = as_words(codes[start : start + MOVED_CODES])
            at = np.arange(first + start, first + start + len(words))
            head = min(-(first + start) % GROUP, len(words))  # ends the group that was begun
            whole = head + (len(words) - head) // GROUP * GROUP
            groups = words[head:whole].reshape(-1, GROUP, self.n_words).transpose(0, 2, 1)
            begin = (first + start + head) // GROUP
            data[begin : begin + len(groups)] = groups
            rest = np.r_[0:head, whole : len(words)]
            data[at[rest] // GROUP, :, at[rest] % GROUP] = words[rest]
        return Codes(self.n_bits, self._column, last)

    def take(self, positions: Int64) -> UInt8:
        """Return packed codes (n, code_bytes)."""
        out, groups = np.empty((len(positions), self.code_bytes), np.uint8), self.groups
        for start in range(0, len(positions), MOVED_CODES):
            at = positions[start : start + MOVED_CODES]
            words = np.ascontiguousarray(groups[at // GROUP, :, at % GROUP])
            out[start : start + MOVED_CODES] = words.view(np.uint8)[:, : self.code_bytes]
        return out
