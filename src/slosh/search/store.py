"""Vectors by position, growing as they are added: in float32, or in 16 bits with the norm of what was rounded off.

The 16-bit form of a vector is whole numbers from -32767 to 32767 and a scale of its own. It depends on that vector
alone: whatever else is stored, it is the same. Vectors may lie in a file instead of memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..data.checks import CHECKED_AT_ONCE as BLOCK
from ..data.checks import Array
from ..data.vectors import blocks
from .rows import Int64

Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]

SAMPLE = 4096
LARGEST = 32767
EPS = float(np.finfo(np.float32).eps)


class Store(Protocol):
    """Vectors by position."""

    @property
    def array(self) -> NDArray[Any]:
        """What is stored, (n, D)."""

    @property
    def scale(self) -> Float32 | None:
        """(n,) what each row of `array` is to be multiplied by; None: nothing."""

    @property
    def errors(self) -> Float32 | None:
        """(n,) at most so far is each vector from the one that was added; None: not at all."""

    @property
    def n_bytes(self) -> int: ...
    def append(self, vectors: Array) -> None: ...
    def take(self, positions: Int64 | slice) -> Float32:
        """Vectors as they are stored, in float32."""

    def like(self, vectors: Float32) -> tuple[Float32, Float64]:
        """Vectors as they would be stored, and how far that moves them, at most."""

    def cut(self, n: int) -> None:
        """Forgets all from n on."""

    def keep(self, kept: Int64) -> None: ...
    def state(self) -> dict[str, Array]: ...


class Grown:
    """An array that grows at the end: in memory (whose unused end costs nothing until it is written), or in a file."""

    def __init__(self, width: tuple[int, ...], dtype: Any, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else os.fspath(path)
        self._width, self._dtype, self.used = width, np.dtype(dtype), 0
        self._data = self._room(0)

    def _room(self, n: int) -> Array:
        shape = (max(n, 1), *self._width)
        if self._path is None:
            return np.empty(shape, self._dtype)
        mode: Any = "r+" if os.path.exists(self._path) and n else "w+"
        return np.memmap(self._path, self._dtype, mode, shape=shape)

    @property
    def array(self) -> Array:
        return self._data[: self.used]

    @property
    def n_bytes(self) -> int:
        """In memory."""
        return self.array.nbytes if self._path is None else 0

    def more(self, n: int) -> Array:
        """Room for n more at the end, to be written to."""
        end = self.used + n
        if end > len(self._data):
            room = self._room(max(end, self.used + self.used // 2))  # a file is mapped again, longer, with its content
            if self._path is None:
                room[: self.used] = self.array
            self._data = room
        self.used = end
        return self._data[end - n : end]

    def cut(self, n: int) -> None:
        """Forgets all from n on."""
        self.used = min(n, self.used)

    def __getstate__(self) -> dict[str, Any]:
        """A copy is in memory: two must not write into one file."""
        return {**vars(self), "_data": np.array(self.array), "_path": None}

    def extend(self, values: Array) -> None:
        self.more(len(values))[...] = values

    def replace(self, values: Array) -> None:
        """`values` instead of all there was; they may be a part of it."""
        values = np.array(values) if self._path is not None else values
        self.used = 0
        if self._path is None:
            self._data = np.ascontiguousarray(values, self._dtype)
            self.used = len(values)
        else:
            self.extend(values)


Room: TypeAlias = Callable[[str, tuple[int, ...], Any], Grown]
"""Makes the array of a name, a width and a dtype: where vectors and points are kept, if not in memory."""


def in_memory(name: str, width: tuple[int, ...], dtype: Any) -> Grown:
    """The plain `Room`."""
    return Grown(width, dtype)


def check_free(path: str | os.PathLike[str] | None) -> None:
    """Refuses to write vectors over what is there: another search may be reading it."""
    if path is not None and os.path.exists(path) and (os.path.isdir(path) or os.path.getsize(path)):
        raise ValueError(
            f"path: {os.fspath(path)} exists, and may belong to another search: delete it, or give another"
        )


class FloatStore:
    """Float32 vectors."""

    scale = None
    errors = None

    def __init__(self, dim: int, path: str | os.PathLike[str] | None = None, room: Room | None = None) -> None:
        self._data = Grown((dim,), np.float32, path) if room is None else room("vectors", (dim,), np.float32)
        self._middle: tuple[int, Float32, Grown, Grown] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    @classmethod
    def from_array(cls, array: Array, n: int, dim: int, path: str | os.PathLike[str] | None = None) -> FloatStore:
        if array.shape != (n, dim) or array.dtype != np.float32:
            raise ValueError(f"its vectors are {array.dtype} of shape {array.shape}, not float32 of {(n, dim)}")
        self = cls(dim, path)
        self._data.replace(array)
        return self

    @property
    def array(self) -> Float32:
        return self._data.array

    @property
    def n_bytes(self) -> int:
        return self._data.n_bytes

    def append(self, vectors: Array) -> None:
        room = self._data.more(len(vectors))
        for rows, block in blocks(vectors, max(1, BLOCK // vectors.shape[1])):
            room[rows] = block

    def take(self, positions: Int64 | slice) -> Float32:
        return np.array(self.array[positions])

    def like(self, vectors: Float32) -> tuple[Float32, Float64]:
        return vectors, np.zeros(len(vectors))

    def cut(self, n: int) -> None:
        self._data.cut(n)
        self._middle = None

    def keep(self, kept: Int64) -> None:
        self._data.replace(self.array[kept])
        self._middle = None

    def state(self) -> dict[str, Array]:
        return {"vectors": self.array}

    def about_middle(self) -> tuple[Float32, Float64, Float64]:
        """About the mean of the vectors (D,); of each vector |x - mean|^2 and |x|, (n,).

        The mean only has to be near, and is taken anew when their number has doubled.
        """
        n = len(self.array)
        with self._lock:
            if self._middle is None or n > 2 * self._middle[0]:
                middle = self.array[:: max(1, n // SAMPLE)].mean(axis=0, dtype=np.float64).astype(np.float32)
                self._middle = n, middle, Grown((), np.float64), Grown((), np.float64)
            _, middle, sizes, norms = self._middle
            step = max(1, BLOCK // len(middle))
            for first in range(sizes.used, n, step):
                block = self.array[first : first + step].astype(np.float64)
                norms.extend(np.sqrt(np.einsum("ij,ij->i", block, block)))
                block -= middle
                sizes.extend(np.einsum("ij,ij->i", block, block))
            return middle, sizes.array, norms.array


class ShortStore:
    """Vectors of 16-bit whole numbers, the scale being the largest number / 32767."""

    def __init__(self, dim: int, path: str | os.PathLike[str] | None = None, room: Room | None = None) -> None:
        self._data = Grown((dim,), np.int16, path) if room is None else room("vectors", (dim,), np.int16)
        room = room or in_memory
        self._scale, self._errors = room("scale", (), np.float32), room("moved", (), np.float32)

    @classmethod
    def from_state(
        cls, arrays: dict[str, Array], n: int, dim: int, path: str | os.PathLike[str] | None = None
    ) -> ShortStore:
        self = cls(dim, path)
        for name, to in (("vectors", self._data), ("scale", self._scale), ("errors", self._errors)):
            array = arrays[name]
            if array.shape != (n, *to._width) or array.dtype != to._dtype:
                raise ValueError(f"its {name} are {array.dtype} of shape {array.shape}")
            to.replace(array)
        return self

    @property
    def array(self) -> NDArray[np.int16]:
        return self._data.array

    @property
    def scale(self) -> Float32:
        return self._scale.array

    @property
    def errors(self) -> Float32:
        return self._errors.array

    @property
    def n_bytes(self) -> int:
        return self._data.n_bytes + self._scale.n_bytes + self._errors.n_bytes

    def append(self, vectors: Array) -> None:
        data, scales, errors = (part.more(len(vectors)) for part in (self._data, self._scale, self._errors))
        for rows, block in blocks(vectors, max(1, BLOCK // 4 // vectors.shape[1])):
            data[rows], scales[rows], errors[rows] = rounded(block)

    def take(self, positions: Int64 | slice) -> Float32:
        return self.array[positions] * self.scale[positions][:, None]

    def like(self, vectors: Float32) -> tuple[Float32, Float64]:
        whole, scale, errors = rounded(vectors)
        return whole * scale[:, None], errors.astype(np.float64)

    def cut(self, n: int) -> None:
        for part in (self._data, self._scale, self._errors):
            part.cut(n)

    def keep(self, kept: Int64) -> None:
        for part in (self._data, self._scale, self._errors):
            part.replace(part.array[kept])

    def state(self) -> dict[str, Array]:
        return {"vectors": self.array, "scale": self.scale, "errors": self.errors}


def rounded(block: Float32) -> tuple[NDArray[np.int16], Float32, Float32]:
    """Vectors (n, D) as 16-bit whole numbers and their scales, and the norms of the differences, rounded up.

    What is stored for x is the float32 number scale * whole.
    """
    largest = np.abs(block).max(axis=1)
    scale = np.maximum(largest / np.float32(LARGEST), np.float32(1e-37))
    whole = np.clip(np.rint(block / scale[:, None]), -LARGEST, LARGEST).astype(np.int16)
    away = (whole * scale[:, None]).astype(np.float64)
    away -= block
    errors = np.sqrt(np.einsum("ij,ij->i", away, away)) * (1 + 1e-6)
    return whole, scale, np.nextafter(errors.astype(np.float32), np.float32(np.inf))
