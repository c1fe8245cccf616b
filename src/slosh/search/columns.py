"""Append-only arrays: where the vectors of a search lie, in memory or in a file.

A column is written at its end and read through views. A view never changes: rows that a view shows are not written
again, and where a column has to grow the views that exist keep the memory they have. What another process has written
to a file may be damaged: it is checked when it is first used, and never used unchecked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import numpy as np

from ..errors import InputError, system_error
from ..native.arrays import Array, Int64

Specs: TypeAlias = dict[str, tuple[tuple[int, ...], Any]]
"""Columns by name: the shape of a row, and the type. Or arrays: their shape, and the type."""


class Column:
    """Rows of the shape `width` and the type `dtype`, in memory. `view(n)` is what a state holds.

    Several states share a column: each shows its first n rows, and only the newest is extended, by rows behind its n.
    One thread writes; others may read their views meanwhile.
    """

    def __init__(self, width: tuple[int, ...], dtype: Any, content: Array | None = None) -> None:
        """`content` becomes the first rows, without a copy where its type is right."""
        self.width: Final[tuple[int, ...]] = tuple(width)
        self.dtype: Final[np.dtype[Any]] = np.dtype(dtype)
        if content is None:
            content = np.empty((0, *self.width), self.dtype)
        if content.shape[1:] != self.width or content.dtype != self.dtype:
            raise ValueError(f"{content.dtype} of shape {content.shape}, not {self.dtype} of {('n', *self.width)}")
        self._data: Array = np.ascontiguousarray(content)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(self.dtype.itemsize) * math.prod(self.width)

    def write(self, at: int, values: Array) -> None:
        """Make `values` the rows from `at` on. Rows before `at` are not touched."""
        self.room(at, len(values))[...] = values

    def room(self, at: int, n: int) -> Array:
        """Return a writable array of the n rows from `at` on, to be filled; the column grows as needed."""
        if at + n > len(self._data):
            self._data = self.grown(self._data[:at], max(at + n, at + at // 2))
        return self._data[at : at + n]

    def view(self, n: int) -> Array:
        """Return the first n rows. If they lie in a file of another process, all of them are checked first."""
        return self._data[:n]

    def unchecked_view(self, n: int) -> Array:
        """Return the first n rows to one who calls `check` for those it uses, before it uses what they say."""
        return self._data[:n]

    @property
    def is_checked(self) -> bool:
        """Whether no row needs a check any more."""
        return True

    def check(self, first: Int64 | int, last: Int64 | int) -> None:
        """Refuse (DamagedError) the rows from first[i] up to last[i] if they are not what was written."""

    def n_bytes(self, n: int) -> int:
        """Return how much memory n rows take; 0 for a column in a file."""
        return n * self.row_bytes

    def grown(self, used: Array, size: int) -> Array:
        """Return an array of `size` rows that begins with `used`. Memory that is not written to yet costs nothing."""
        data = np.empty((size, *self.width), self.dtype)
        data[: len(used)] = used
        return data


class FileColumn(Column):
    """A column in a file of its own, mapped into memory. The file belongs to this object and holds nothing else."""

    def __init__(self, path: str | os.PathLike[str], width: tuple[int, ...], dtype: Any) -> None:
        """Create the file; it must not exist, or be empty."""
        super().__init__(width, dtype)
        check_free(path)
        self._file: IO[bytes] = open(path, "w+b")  # noqa: SIM115  (kept open: a rename does not part it from its file)

    def grown(self, used: Array, size: int) -> Array:
        lengthen(self._file, size * self.row_bytes)
        mapped = np.memmap(self._file, self.dtype, "r+", shape=(size, *self.width))
        return mapped.view(np.ndarray)  # the same file: what is used is there already

    def n_bytes(self, n: int) -> int:
        return 0


def lengthen(file: Path | IO[bytes], size: int) -> None:
    """Make a file at least `size` bytes long, and take the space on the disk now.

    So a full disk is a StorageError here, and not a crash when a map of the file is written to.
    """
    try:
        with open(file, "r+b") if isinstance(file, Path) else nullcontext(file) as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
                return
            end = os.lseek(stream.fileno(), 0, os.SEEK_END)
            while end < size:  # not truncate: what it adds takes no space yet
                end += os.write(stream.fileno(), bytes(min(size - end, 1 << 22)))
    except OSError as error:
        raise system_error(error, str(file if isinstance(file, Path) else file.name)) from None


ColumnFactory: TypeAlias = Callable[[str, tuple[int, ...], Any], Column]
"""Makes the column of a name, a width and a dtype."""


def in_memory(name: str, width: tuple[int, ...], dtype: Any) -> Column:
    """Make an empty column in memory: the usual `ColumnFactory`."""
    return Column(width, dtype)


def filled(arrays: dict[str, Array]) -> ColumnFactory:
    """Return a factory of columns in memory that begin with these arrays; other columns are empty."""

    def make(name: str, width: tuple[int, ...], dtype: Any) -> Column:
        try:
            return Column(width, dtype, arrays.get(name))
        except ValueError as error:
            raise ValueError(f"its {name} are {error}") from None

    return make


def check_arrays(arrays: Mapping[str, Array], shapes: Specs, whose: str = "") -> None:
    """Refuse stored arrays (ValueError, KeyError) if one is missing, or has another shape or type."""
    for name, (shape, dtype) in shapes.items():
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            raise ValueError(f"its {name}{whose} are {arrays[name].dtype} of shape {arrays[name].shape}")


def check_free(path: str | os.PathLike[str] | None) -> None:
    """Refuse to write vectors over what is there: another search may be reading it."""
    if path is not None and os.path.exists(path) and (os.path.isdir(path) or os.path.getsize(path)):
        problem = f"path: {os.fspath(path)} exists, and may belong to another search"
        raise InputError(problem, "delete it, or give another", argument="path")


_positions: Int64 = np.empty(0, np.int64)


def positions_up_to(n: int) -> Int64:
    """Return 0, 1, ..., n - 1 as a read-only view of an array that all searches share."""
    global _positions
    known = _positions
    if len(known) < n:
        known = np.arange(max(n, len(known) + len(known) // 2), dtype=np.int64)
        known.setflags(write=False)
        _positions = known
    return known[:n]
