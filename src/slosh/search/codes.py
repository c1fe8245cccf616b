"""Codes by position, eight side by side, growing as they are added: what the native scan of Hamming distances reads.

Packed codes (n, n_bytes) come in, as `SignHash.transform` gives them. A block holds eight of them as words of 64 bits:
the first words of all eight, then their second words. Adding writes into the last block, and never moves the others.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import Array
from ..hash.codes import UInt8, as_words
from ..scan import CODES, FOUR
from .rows import Int64

Words: TypeAlias = NDArray[np.uint64]

GROUP = CODES * FOUR
STEP = 1 << 16
"""Codes that are moved in one go."""


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
    def blocks(self) -> Words:
        """(n_blocks, n_words, 8), n_blocks a multiple of 4; what is behind the last code means nothing."""
        return self._data[: -(-self._used // GROUP) * FOUR]

    @property
    def n_bytes(self) -> int:
        return int(self.blocks.nbytes)

    def write(self, codes: UInt8, first: int) -> None:
        """Codes for the positions from `first` on, where the store ends afterwards."""
        last = first + len(codes)
        if last > len(self._data) * CODES:
            data = self._room(max(last, first + first // 2))
            data[: len(self._data)] = self._data
            self._data = data
        for start in range(0, len(codes), STEP):
            words = as_words(codes[start : start + STEP])
            at = np.arange(first + start, first + start + len(words))
            head = min(-(first + start) % CODES, len(words))  # ends the block that was begun
            whole = head + (len(words) - head) // CODES * CODES
            blocks = words[head:whole].reshape(-1, CODES, self.n_words).transpose(0, 2, 1)
            begin = (first + start + head) // CODES
            self._data[begin : begin + len(blocks)] = blocks
            rest = np.r_[0:head, whole : len(words)]
            self._data[at[rest] // CODES, :, at[rest] % CODES] = words[rest]
        self._used = last

    def take(self, positions: Int64) -> UInt8:
        """Packed codes (n, n_bytes)."""
        out = np.empty((len(positions), self.n_bytes_of_code), np.uint8)
        for start in range(0, len(positions), STEP):
            at = positions[start : start + STEP]
            words = np.ascontiguousarray(self._data[at // CODES, :, at % CODES])
            out[start : start + STEP] = words.view(np.uint8)[:, : self.n_bytes_of_code]
        return out

    def keep(self, kept: Int64) -> None:
        """The code of position kept[i] goes to position i; `kept` increases."""
        codes = self.take(kept)
        self._data, self._used = self._room(len(kept)), 0
        self.write(codes, 0)

    def _room(self, n: int) -> Words:
        """Blocks for n codes, at an address where no vector of eight words lies across two lines of the cache."""
        n_blocks = -(-n // GROUP) * FOUR
        size = n_blocks * self.n_words * CODES
        memory = np.zeros(size + CODES, np.uint64)
        first = -(memory.ctypes.data // 8) % CODES
        return memory[first : first + size].reshape(n_blocks, self.n_words, CODES)
