"""An array of a cache: a file that only grows, mapped into memory. A block is checked when it is first used."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.atomic import check_plain_file
from ...errors import DamagedError
from ...native.arrays import Array, Int64
from ...search import Column
from ...search.columns import lengthen

MAX_SPARE_BYTES = 1 << 26
"""Bytes that a file is made longer than it has to be, at most."""


class DamagedCache(DamagedError):
    """A block of a cache is not what was written. What was stored is not concerned."""

    def __init__(self, path: Path) -> None:
        remedy = f"close the index, delete {path.parent}, which is made again from what is stored, and open the index"
        super().__init__(f"the cache {path} is damaged", remedy, location=str(path))


class MappedColumn(Column):
    """An array in a file. A reader's own additions stay in its memory.

    What was written before the file was mapped is checked block by block, each when it is first used (`expect`).
    """

    def __init__(self, path: Path, width: tuple[int, ...], dtype: Any, writable: bool) -> None:
        super().__init__(width, dtype)
        self._path, self._writable, self._checking = path, writable, threading.Lock()
        self.expect([], 0, 1, ())
        self.map()

    def map(self) -> None:
        """Map the file as long as it is now. Views of before stay valid."""
        check_plain_file(self._path)  # a link could lead to a file of the user's
        n = self._path.stat().st_size // self.row_bytes
        mode: Any = "r+" if self._writable else "c"  # copy on write: the file stays as it is
        self._map = np.memmap(self._path, self.dtype, mode, shape=(n, *self.width)) if n else None
        self._data = np.empty((0, *self.width), self.dtype) if self._map is None else self._map.view(np.ndarray)
        self._in_file = True

    def view(self, n: int) -> Array:
        self.check(0, n)
        return self._data[:n]

    def expect(self, sums: list[int], n: int, block_bytes: int, unchecked: Iterable[int]) -> None:
        """Say what the first n rows must be: a CRC-32 of each block of so many bytes, and which blocks to check."""
        with self._checking:
            self._sums, self._n_summed, self._block_bytes = sums, n, block_bytes
            self._unchecked = np.zeros(len(sums), np.bool_)
            self._unchecked[list(unchecked)] = True
            self._n_unchecked = int(np.count_nonzero(self._unchecked))

    @property
    def is_checked(self) -> bool:
        return not self._n_unchecked

    def unchecked_blocks(self) -> set[int]:
        """Return the blocks that were not checked yet."""
        return set(np.flatnonzero(self._unchecked).tolist())

    def check(self, first: Int64 | int, last: Int64 | int) -> None:
        if not self._n_unchecked:
            return
        with self._checking:
            begin, end = np.atleast_1d(first), np.minimum(np.atleast_1d(last), self._n_summed)
            some = begin < end
            steps = np.zeros(len(self._sums) + 1, np.int64)  # up where a range of blocks begins, down where it ends
            np.add.at(steps, begin[some] * self.row_bytes // self._block_bytes, 1)
            np.add.at(steps, (end[some] * self.row_bytes - 1) // self._block_bytes + 1, -1)
            for block in np.flatnonzero((np.cumsum(steps[:-1]) > 0) & self._unchecked).tolist():
                if not self.fits(block):
                    raise DamagedCache(self._path)
                self._unchecked[block] = False
                self._n_unchecked -= 1

    def fits(self, block: int) -> bool:
        """Return whether a block is what is expected."""
        whole = self.bytes(self._n_summed)
        part = whole[block * self._block_bytes : (block + 1) * self._block_bytes]
        return zlib.crc32(part.data) == self._sums[block]

    def flush(self) -> None:
        """Return when everything that was written is on disk."""
        if self._map is not None:
            self._map.flush()

    def room(self, at: int, n: int) -> Array:
        end = at + n
        if end > len(self._data):
            if self._writable:
                spare = min(end // 4, MAX_SPARE_BYTES // self.row_bytes)
                lengthen(self._path, (end + spare) * self.row_bytes)
                self.map()
            else:
                larger = np.empty((end + end // 8, *self.width), self.dtype)
                larger[:at] = self._data[:at]
                self._data, self._in_file = larger, False
        return self._data[at:end]

    def n_bytes(self, n: int) -> int:
        return 0 if self._in_file else n * self.row_bytes

    def bytes(self, n: int) -> NDArray[np.uint8]:
        return self._data.reshape(-1).view(np.uint8)[: n * self.row_bytes]
