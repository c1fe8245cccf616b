"""Stored vectors by position: in float32, or in 16 bits with the norm of what was rounded off. Immutable, like states.

The 16-bit form of a vector is whole numbers from -32767 to 32767 and a scale of its own. It depends on that vector
alone: whatever else is stored, it is the same.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.checks import CHECKED_AT_ONCE as BLOCK
from ..data.checks import Array
from ..data.vectors import blocks
from .columns import Column, Float32, Float64, Int64, Mask
from .state import Stored

LARGEST_INT16 = 32767
MIDDLE_SAMPLE = 4096
"""Vectors whose mean is the middle that a scan computes about, at most twice as many."""

Spec = dict[str, tuple[tuple[int, ...], Any]]
"""Columns by name: the shape of a row, and the type."""


class Middle(NamedTuple):
    """A point near the mean of the vectors; of the first vectors |x - point|^2 and |x|, and the columns they lie in."""

    point: Float32
    n_then: int  # vectors when the point was chosen
    squares: Float64
    norms: Float64
    columns: tuple[Column, Column]


class FloatVectors:
    """The first n rows of a column of float32 vectors."""

    scale = None
    """What each row of `array` is to be multiplied by; None: nothing."""
    errors = None
    """How far each vector is from the one that was added, at most; None: not at all."""

    def __init__(
        self, column: Column, n: int, middle: Middle | None = None, lock: threading.Lock | None = None
    ) -> None:
        self.n = n
        self._column, self._middle = column, middle
        self._lock = lock or threading.Lock()  # one for all of a history, since they share the columns of `middle`

    @staticmethod
    def column_names(dim: int) -> Spec:
        """Return the columns that `start` asks for."""
        return {"vectors": ((dim,), np.float32)}

    @classmethod
    def start(cls, stored: Stored) -> FloatVectors:
        """Return what the columns hold."""
        return cls(stored.columns("vectors", (stored.dim,), np.float32), stored.n)

    @property
    def array(self) -> Float32:
        """What is stored, (n, dim)."""
        return self._column.view(self.n)

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        return self._column.n_bytes(self.n)

    def columns(self) -> dict[str, Array]:
        """Return the content of the columns."""
        return {"vectors": self.array}

    def extend(self, vectors: Array) -> FloatVectors:
        """Return these vectors and more, which are written behind them."""
        room = self._column.room(self.n, len(vectors))
        for rows, block in blocks(vectors, max(1, BLOCK // vectors.shape[1])):
            room[rows] = block
        return self.adopt(self.n + len(vectors))

    def adopt(self, n: int) -> FloatVectors:
        """Return the first n vectors of the column."""
        return FloatVectors(self._column, n, self._middle, self._lock)

    def take(self, positions: Int64 | slice) -> Float32:
        """Return vectors as they are stored, in float32."""
        return np.array(self.array[positions])

    def as_stored(self, vectors: Float32) -> Float32:
        """Return vectors as they would be stored, in float32."""
        return vectors

    def moved_by(self, vectors: Float32) -> Float64:
        """Return how far storing would move vectors, at most."""
        return np.zeros(len(vectors))

    def holds(self, positions: Int64, vectors: Float32) -> Mask:
        """Return which positions hold exactly these vectors."""
        return np.asarray((self.array[positions] == vectors).all(axis=1))

    def about_middle(self) -> tuple[Float32, Float64, Float64]:
        """Return a point near the mean of the vectors (dim,), and of each vector |x - point|^2 and |x|, (n,).

        The point is chosen anew when the number of vectors has doubled. What is computed is remembered for vectors
        that are added later.
        """
        known = self._middle
        if known is None or len(known.squares) < self.n:
            with self._lock:
                known = self._middle
                if known is None or len(known.squares) < self.n:
                    known = self._middle = self._about_middle(known)
        return known.point, known.squares, known.norms

    def _about_middle(self, known: Middle | None) -> Middle:
        n, array = self.n, self.array
        if known is None or n > 2 * known.n_then:
            point = array[:: max(1, n // MIDDLE_SAMPLE)].mean(axis=0, dtype=np.float64).astype(np.float32)
            none = np.empty(0)
            known = Middle(point, n, none, none, (Column((), np.float64), Column((), np.float64)))
        done = len(known.squares)
        squares, norms = (column.room(done, n - done) for column in known.columns)
        step = max(1, BLOCK // len(known.point))
        for first in range(0, len(squares), step):
            block = array[done + first : done + first + step].astype(np.float64)
            norms[first : first + step] = np.sqrt(np.einsum("ij,ij->i", block, block))
            block -= known.point
            squares[first : first + step] = np.einsum("ij,ij->i", block, block)
        squares, norms = (column.view(n) for column in known.columns)
        return known._replace(squares=squares, norms=norms)


class ShortVectors:
    """The first n rows of a column of 16-bit vectors, of their scales, and of how far rounding has moved them."""

    def __init__(self, vectors: Column, scale: Column, moved: Column, n: int) -> None:
        self.n = n
        self._vectors, self._scale, self._moved = vectors, scale, moved

    @staticmethod
    def column_names(dim: int) -> Spec:
        """Return the columns that `start` asks for."""
        return {"vectors": ((dim,), np.int16), "scale": ((), np.float32), "moved": ((), np.float32)}

    @classmethod
    def start(cls, stored: Stored) -> ShortVectors:
        """Return what the columns hold."""
        names = cls.column_names(stored.dim)
        vectors, scale, moved = (stored.columns(name, *names[name]) for name in ("vectors", "scale", "moved"))
        return cls(vectors, scale, moved, stored.n)

    @property
    def array(self) -> NDArray[np.int16]:
        """The whole numbers, (n, dim)."""
        return self._vectors.view(self.n)

    @property
    def scale(self) -> Float32:
        """(n,) what each row of `array` is to be multiplied by."""
        return self._scale.view(self.n)

    @property
    def errors(self) -> Float32:
        """(n,) how far each vector is from the one that was added, at most."""
        return self._moved.view(self.n)

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        return sum(column.n_bytes(self.n) for column in (self._vectors, self._scale, self._moved))

    def columns(self) -> dict[str, Array]:
        """Return the content of the columns."""
        return {"vectors": self.array, "scale": self.scale, "moved": self.errors}

    def extend(self, vectors: Array) -> ShortVectors:
        """Return these vectors and more, which are written behind them."""
        parts = (self._vectors, self._scale, self._moved)
        data, scales, moved = (part.room(self.n, len(vectors)) for part in parts)
        for rows, block in blocks(vectors, max(1, BLOCK // 4 // vectors.shape[1])):
            data[rows], scales[rows], moved[rows] = rounded(block)
        return self.adopt(self.n + len(vectors))

    def adopt(self, n: int) -> ShortVectors:
        """Return the first n vectors of the columns."""
        return ShortVectors(self._vectors, self._scale, self._moved, n)

    def take(self, positions: Int64 | slice) -> Float32:
        """Return vectors as they are stored, in float32."""
        return self.array[positions] * self.scale[positions][:, None]

    def as_stored(self, vectors: Float32) -> Float32:
        """Return vectors as they would be stored, in float32."""
        whole, scale = to_int16(vectors)
        return whole * scale[:, None]

    def moved_by(self, vectors: Float32) -> Float64:
        """Return how far storing would move vectors, at most."""
        return rounded(vectors)[2].astype(np.float64)

    def holds(self, positions: Int64, vectors: Float32) -> Mask:
        """Return which positions hold exactly these vectors, rounded."""
        whole, scale, moved = rounded(vectors)
        same = (self.array[positions] == whole).all(axis=1)
        return np.asarray(same & (self.scale[positions] == scale) & (self.errors[positions] == moved))


def to_int16(block: Float32) -> tuple[NDArray[np.int16], Float32]:
    """Round vectors (n, D) to 16-bit whole numbers; return these and their scales."""
    largest = np.abs(block).max(axis=1)
    scale = np.maximum(largest / np.float32(LARGEST_INT16), np.float32(1e-37))
    return np.clip(np.rint(block / scale[:, None]), -LARGEST_INT16, LARGEST_INT16).astype(np.int16), scale


def rounded(block: Float32) -> tuple[NDArray[np.int16], Float32, Float32]:
    """Round vectors (n, D) to 16-bit whole numbers; return these, their scales, and the norms of the differences.

    What is stored for x is the float32 number scale * whole. The norms are rounded up.
    """
    whole, scale = to_int16(block)
    away = (whole * scale[:, None]).astype(np.float64)
    away -= block
    errors = np.sqrt(np.einsum("ij,ij->i", away, away)) * (1 + 1e-6)
    return whole, scale, np.nextafter(errors.astype(np.float32), np.float32(np.inf))
