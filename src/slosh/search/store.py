"""Vectors by position, growing as they are added: in float32, or in 16 bits with the norm of what was rounded off."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import BLOCK, Array
from ..vectors import blocks
from .rows import Int64

Float32: TypeAlias = NDArray[np.float32]

SAMPLE = 4096


class FloatStore:
    """Float32 vectors."""

    def __init__(self, dim: int) -> None:
        self._data: Float32 = np.empty((0, dim), np.float32)
        self._used = 0
        self._middle: tuple[int, Float32] | None = None

    @classmethod
    def from_array(cls, array: Array, n: int, dim: int) -> FloatStore:
        if array.shape != (n, dim) or array.dtype != np.float32:
            raise ValueError(f"its vectors are {array.dtype} of shape {array.shape}, not float32 of {(n, dim)}")
        self = cls(dim)
        self._data, self._used = array, n
        return self

    @property
    def array(self) -> Float32:
        return self._data[: self._used]

    @property
    def n_bytes(self) -> int:
        return self._data.nbytes

    def append(self, vectors: Array) -> None:
        end = self._used + len(vectors)
        if end > len(self._data):
            larger = np.empty((max(end, self._used + self._used // 2), self._data.shape[1]), np.float32)
            larger[: self._used] = self.array
            self._data = larger
        for rows, block in blocks(vectors, max(1, BLOCK // self._data.shape[1])):
            self._data[self._used + rows.start : self._used + rows.stop] = block
        self._used = end

    def take(self, positions: Int64) -> Float32:
        return self.array[positions]

    def keep(self, kept: Int64) -> None:
        self._data = self.array[kept]
        self._used = len(kept)
        self._middle = None

    def middle(self) -> Float32:
        """About the mean of the vectors; it only has to be near, and is taken anew when their number has doubled."""
        if self._middle is None or self._used > 2 * self._middle[0]:
            step = max(1, self._used // SAMPLE)
            self._middle = self._used, self.array[::step].mean(axis=0, dtype=np.float64).astype(np.float32)
        return self._middle[1]
