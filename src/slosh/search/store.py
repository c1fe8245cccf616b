"""Stored vectors by position: in float32, or in 16 bits with the norm of what was rounded off. Immutable, like states.

The 16-bit form of a vector is whole numbers from -32767 to 32767 and a scale of its own. It depends on that vector
alone: whatever else is stored, it is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import checkpoint, locked
from ..data.vectors import blocks
from ..native import scan
from ..native.arrays import Array, Float32, Float64, Int64, Mask
from .columns import Column, Specs
from .state import Pairs, Request, Stored

LARGEST_INT16 = 32767
MIDDLE_SAMPLE = 4096
"""Vectors whose mean is the middle that a scan computes about, at most twice as many."""
WRITE_BLOCK_NUMBERS = 1 << 18
"""Numbers that are converted and written to columns in one go."""
MARKED_BYTES = 1 << 22
"""Bytes of vectors of which one mark says that some of them were read, at most."""
NORM_BLOCK_NUMBERS = 1 << 20
"""Numbers of which norms are computed in one go."""

V = TypeVar("V", bound="Vectors")


class Batch(NamedTuple):
    """Of some queries (a slice) the positions to compare: those of query i are positions[offsets[i]:offsets[i + 1]]."""

    queries: slice
    offsets: Int64
    positions: Int64


class Vectors:
    """The first n rows of columns that hold vectors. This base class has no columns: it keeps none of the vectors."""

    scale: Float32 | None = None
    """What each row of `array` is to be multiplied by; None: nothing."""
    errors: Float32 | None = None
    """How far each vector is from the one that was added, at most; None: not at all."""

    def __init__(self, columns: dict[str, Column], n: int) -> None:
        self.n, self._columns = n, columns

    @staticmethod
    def column_names(dim: int) -> Specs:
        """Return the columns that `start` asks for."""
        return {}

    @classmethod
    def start(cls: type[V], stored: Stored) -> V:
        """Return what the columns hold."""
        names = cls.column_names(stored.dim)
        return cls({name: stored.columns(name, *spec) for name, spec in names.items()}, stored.n)

    @property
    def array(self) -> NDArray[Any]:
        """What is stored, (n, dim), all of it checked."""
        return self._columns["vectors"].view(self.n)

    @property
    def unchecked(self) -> NDArray[Any]:
        """The same for one who calls `check` for the positions it uses."""
        return self._columns["vectors"].unchecked_view(self.n)

    @property
    def is_checked(self) -> bool:
        """Whether no vector needs a check."""
        return self._columns["vectors"].is_checked

    def check(self, positions: Int64 | slice) -> None:
        """Refuse (DamagedError) vectors that are not what was stored."""
        column = self._columns["vectors"]
        if not column.is_checked:
            where = (positions, positions + 1) if not isinstance(positions, slice) else positions.indices(self.n)[:2]
            column.check(*where)

    def marks(self) -> scan.Marks | None:
        """Return where the native kernel notes which vectors it reads; None if none of them needs a check."""
        column = self._columns["vectors"]
        if column.is_checked or not self.n:
            return None
        return scan.Marks(self.n, max(0, (MARKED_BYTES // column.row_bytes).bit_length() - 1), column.check)

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        return sum(column.n_bytes(self.n) for column in self._columns.values())

    def columns(self) -> dict[str, Array]:
        """Return the content of the columns."""
        return {name: column.view(self.n) for name, column in self._columns.items()}

    def extend(self: V, vectors: Array) -> V:
        """Return these vectors and more, which are written behind them."""
        room = [column.room(self.n, len(vectors)) for column in self._columns.values()]
        for rows, block in blocks(vectors, max(1, WRITE_BLOCK_NUMBERS // vectors.shape[1])):
            for part, values in zip(room, self.content(block), strict=True):
                part[rows] = values
        return self.adopt(self.n + len(vectors))

    def adopt(self: V, n: int) -> V:
        """Return the first n vectors of the columns."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, n=n)
        return made

    def content(self, vectors: Float32) -> tuple[Array, ...]:
        """Return what the columns hold of vectors."""
        return ()

    def holds(self, positions: Int64, vectors: Float32, apart: Float64 | None = None) -> Mask:
        """Return which positions hold exactly these vectors, as they are stored; or, with `apart`, vectors that are no
        farther than that from them, each of them before it was stored.
        """
        if apart is not None and self._columns:
            away = self.take(positions).astype(np.float64) - vectors
            moved = 0.0 if self.errors is None else self.errors[positions]
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", away, away)) <= apart + moved)
        same = np.ones(len(positions), np.bool_)
        for column, right in zip(self._columns.values(), self.content(vectors), strict=True):
            column.check(positions, positions + 1)
            equal = column.unchecked_view(self.n)[positions] == right
            same &= equal if equal.ndim == 1 else equal.all(axis=1)
        return same

    def take(self, positions: Int64 | slice) -> Float32:
        """Return vectors as they are stored, in float32."""
        raise NotImplementedError

    def as_stored(self, vectors: Float32) -> Float32:
        """Return vectors as they would be stored, in float32."""
        return vectors

    def moved_by(self, vectors: Float32) -> Float64:
        """Return how far storing would move vectors, at most."""
        return np.zeros(len(vectors))

    def nearest(self, asked: Request, k: int, batches: Iterable[Batch]) -> Pairs:
        """Return the k nearest of the positions that the batches name."""
        squares, found = np.empty((len(asked), k)), np.empty((len(asked), k), np.int64)
        for part, offsets, positions in batches:
            checkpoint()
            exact = self._squares(asked, part, offsets, positions)
            if len(positions) > 8 * k * (len(offsets) - 1):
                near = shortlist(exact, offsets, k)
                offsets = np.concatenate([[0], np.cumsum(near)])[offsets]
                exact, positions = exact[near], positions[near]
            squares[part], found[part] = scan.best(exact, positions, offsets, asked.ranks, k)
        return np.sqrt(squares, out=squares), found

    def within(self, asked: Request, radii: Float64, batches: Iterable[Batch]) -> tuple[Int64, Float64, Int64]:
        """Return those of the positions that the batches name within a radius: offsets, distances, positions."""
        parts = []
        for part, offsets, positions in batches:
            checkpoint()
            exact = self._squares(asked, part, offsets, positions)
            parts.append(scan.within(exact, positions, offsets, asked.ranks, radii[part]))
        all_offsets, squares, found = zip(*parts, strict=True)
        counts = np.concatenate([np.diff(offsets) for offsets in all_offsets])
        together = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return together, np.sqrt(np.concatenate(squares)), np.concatenate(found)

    def largest_within(self, asked: Request, radii: Float64) -> tuple[Int64, Float64, Int64]:
        """Return the allowed positions within a radius by the largest difference: offsets, differences, positions."""
        queries = np.ascontiguousarray(self.as_stored(asked.queries), np.float32)
        return scan.largest_within(queries, self.array, self.scale, asked.mask, asked.ranks, radii, asked.n_jobs)

    def _squares(self, asked: Request, part: slice, offsets: Int64, positions: Int64) -> Float64:
        self.check(positions)
        return scan.squares(asked.queries[part], self.unchecked, self.scale, offsets, positions, asked.n_jobs)


class Middle(NamedTuple):
    """A point near the mean of the vectors; of the first vectors |x - point|^2 and |x|, and the columns they lie in."""

    point: Float32
    n_then: int  # vectors when the point was chosen
    squares: Float64
    norms: Float64
    columns: tuple[Column, Column]


class FloatVectors(Vectors):
    """Vectors in float32."""

    def __init__(self, columns: dict[str, Column], n: int) -> None:
        super().__init__(columns, n)
        self._middle: Middle | None = None
        self._lock = threading.Lock()  # one for all of a history, since they share the columns of `_middle`

    @staticmethod
    def column_names(dim: int) -> Specs:
        return {"vectors": ((dim,), np.float32)}

    def content(self, vectors: Float32) -> tuple[Array, ...]:
        return (vectors,)

    def take(self, positions: Int64 | slice) -> Float32:
        self.check(positions)
        return np.array(self.unchecked[positions])

    def about_middle(self) -> tuple[Float32, Float64, Float64]:
        """Return a point near the mean of the vectors (dim,), and of each vector |x - point|^2 and |x|, (n,).

        The point is chosen anew when the number of vectors has doubled. What is computed is remembered for vectors
        that are added later.
        """
        known = self._middle
        if known is None or len(known.squares) < self.n:
            with locked(self._lock):
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
        step = max(1, NORM_BLOCK_NUMBERS // len(known.point))
        for first in range(0, len(squares), step):
            checkpoint()
            block = array[done + first : done + first + step].astype(np.float64)
            norms[first : first + step] = np.sqrt(np.einsum("ij,ij->i", block, block))
            block -= known.point
            squares[first : first + step] = np.einsum("ij,ij->i", block, block)
        squares, norms = (column.view(n) for column in known.columns)
        return known._replace(squares=squares, norms=norms)


class ShortVectors(Vectors):
    """Vectors in 16 bits, their scales, and how far rounding has moved them."""

    @staticmethod
    def column_names(dim: int) -> Specs:
        return {"vectors": ((dim,), np.int16), "scale": ((), np.float32), "moved": ((), np.float32)}

    @property
    def scale(self) -> Float32:  # type: ignore[override]
        return self._columns["scale"].view(self.n)

    @property
    def errors(self) -> Float32:  # type: ignore[override]
        return self._columns["moved"].view(self.n)

    def content(self, vectors: Float32) -> tuple[Array, ...]:
        return rounded(vectors)

    def take(self, positions: Int64 | slice) -> Float32:
        self.check(positions)
        taken: Float32 = self.unchecked[positions] * self.scale[positions][:, None]
        return taken

    def as_stored(self, vectors: Float32) -> Float32:
        whole, scale = to_int16(vectors)
        return whole * scale[:, None]

    def moved_by(self, vectors: Float32) -> Float64:
        return rounded(vectors)[2].astype(np.float64)


def to_int16(block: Float32) -> tuple[NDArray[np.int16], Float32]:
    """Round vectors (n, D) to 16-bit whole numbers; return these and their scales."""
    largest = np.abs(block).max(axis=1)
    scale = np.maximum(largest / np.float32(LARGEST_INT16), np.float32(1e-37))
    return np.rint(block / scale[:, None]).astype(np.int16), scale  # at most largest / scale < 32767.01


def rounded(block: Float32) -> tuple[NDArray[np.int16], Float32, Float32]:
    """Round vectors (n, D) to 16-bit whole numbers; return these, their scales, and the norms of the differences.

    What is stored for x is the float32 number scale * whole. The norms are rounded up.
    """
    whole, scale = to_int16(block)
    away = (whole * scale[:, None]).astype(np.float64)
    away -= block
    errors = np.sqrt(np.einsum("ij,ij->i", away, away)) * (1 + 1e-6)
    return whole, scale, np.nextafter(errors.astype(np.float32), np.float32(np.inf))


def shortlist(squares: Float64, offsets: Int64, k: int) -> Mask:
    """Return which of each query's squares[offsets[i]:offsets[i + 1]] may be among its k smallest, and few others.

    The k-th smallest of the minima of 4 k parts is no less than the k-th smallest of all.
    """
    parts = 4 * k
    counts = np.diff(offsets)
    many = np.flatnonzero(counts > 2 * parts)
    limit = np.full(len(counts), np.inf)
    if len(many):
        bounds = offsets[many, None] + counts[many, None] * np.arange(parts + 1) // parts
        minima = np.minimum.reduceat(np.append(squares, np.inf), bounds.ravel()).reshape(len(many), -1)[:, :-1]
        limit[many] = np.partition(minima, k - 1, axis=1)[:, k - 1]
    return np.asarray(squares <= np.repeat(limit, counts))
