"""The caches of an index on disk: arrays in files that only grow, mapped into memory, and a stamp that covers them.

In the folder `cache`:

    NAME.E     the array NAME of epoch E: plain numbers, row after row; what lies behind the stamped part is nothing
    derived.E  what the search makes of the vectors of epoch E, so that opening need not make it again
    stamp      JSON: the epoch, the index, the generation and the kernel it was made for, the number of rows and the
               token of the commit that ended there, and for each array its type, its stamped bytes, and a CRC-32 of
               every 4 MB of them; and a CRC-32 of all that

Only the writer writes. It appends to the arrays, commits to the database, and then replaces the stamp, so what a stamp
covers never changes while other processes read it. Whoever opens the index checks every byte that the stamp covers. If
anything is wrong nothing of it is used: the writer begins a new epoch, a reader works in its own memory.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data import tensors
from ...data.atomic import replacing
from ...data.checks import Array
from ...errors import SloshError
from ...search import Column, Trained, in_memory

CHECKSUM_BYTES = 1 << 22
"""Bytes of one checksum."""
MAX_SPARE_BYTES = 1 << 26
"""Bytes that a file is made longer than it has to be, at most."""
RAGGED = ("points", "weights")
"""Arrays with a row for each point; all others have one for each set."""
NAMES = {"vectors", "scale", "moved", "codes", "slack", "ends", "points", "weights", "derived"}
"""All there are: nothing else is deleted, whatever else lies in the folder."""
FORMAT_VERSION = 2
MAX_EPOCH = 10**18
DERIVED = "slosh derived"
UNREADABLE = (OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What reading a stamp may end with that somebody else has written."""


class StaleCache(Exception):
    """The caches are not those of this index as it is now, or are damaged."""


class MappedColumn(Column):
    """An array in a file. A reader's own additions stay in its memory."""

    def __init__(self, path: Path, width: tuple[int, ...], dtype: Any, writable: bool) -> None:
        super().__init__(width, dtype)
        self._path, self._writable, self._in_file = path, writable, True
        self.map()

    def map(self) -> None:
        """Map the file as long as it is now. Views of before stay valid."""
        about = self._path.lstat()
        if not stat.S_ISREG(about.st_mode):  # a link could lead to a file of the user's
            raise StaleCache(f"{self._path.name} is not a plain file")
        n = about.st_size // self.row_bytes
        mode: Any = "r+" if self._writable else "c"  # copy on write: the file stays as it is
        shape = (n, *self.width)
        if n:
            self._data = np.memmap(self._path, self.dtype, mode, shape=shape).view(np.ndarray)
        else:
            self._data = np.empty(shape, self.dtype)
        self._in_file = True

    @property
    def capacity(self) -> int:
        return len(self._data)

    def room(self, at: int, n: int) -> Array:
        end = at + n
        if end > len(self._data):
            if self._writable:
                _lengthen(self._path, (end + min(end // 4, MAX_SPARE_BYTES // self.row_bytes)) * self.row_bytes)
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


def _lengthen(path: Path, size: int) -> None:
    """Take the space now, so that a full disk is an error here and not a crash when it is written to."""
    with open(path, "r+b") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.seek(0, os.SEEK_END)
            while (rest := size - stream.tell()) > 0:
                stream.write(bytes(min(rest, CHECKSUM_BYTES)))


@dataclass(frozen=True)
class Stamp:
    """What the arrays hold: rows, points, the token of the commit, and checksums by array."""

    epoch: int
    rows: int
    points: int
    token: str
    arrays: dict[str, Any]
    """By name: width, dtype, crc."""


class Cache:
    """The arrays of one index. Without a folder, or for a reader whose caches are stale, they are in memory."""

    def __init__(self, folder: Path, made_for: dict[str, Any], writable: bool, threads: int) -> None:
        self._folder, self._made_for, self._writable, self._threads = folder, made_for, writable, threads
        self._columns: dict[str, Column] = {}
        self.stamp: Stamp | None = None
        """What was found good when the index was opened or followed, or was stamped last."""
        self.problem: str | None = None
        """Why the caches that were found could not be used."""
        self.epoch, self.derived_rows = 0, 0

    # Opening

    def read_stamp(self) -> Stamp | None:
        """Return the stamp, if there is one for this index; None says why in `problem`."""
        try:
            if self._writable and (self._folder.is_symlink() or not self._folder.is_dir()):
                _clear(self._folder)
                self._folder.mkdir()
            return self._parsed_stamp()
        except StaleCache as reason:
            self.problem = str(reason)
            return None

    def _parsed_stamp(self) -> Stamp:
        path = self._folder / "stamp"
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StaleCache("the stamp is not a plain file")
            outer = json.loads(path.read_bytes())
            if zlib.crc32(outer["content"].encode()) != outer["crc"]:
                raise StaleCache("the stamp is damaged")
            content: dict[str, Any] = json.loads(outer["content"])
            if content["format"] != FORMAT_VERSION or content["for"] != self._made_for:
                raise StaleCache("the stamp is of another index, of another version of it, or of another machine")
            rows, points = int(content["rows"]), int(content["points"])
            if not (0 <= rows <= MAX_EPOCH and 0 <= points <= MAX_EPOCH):
                raise StaleCache("the stamp is damaged")
            arrays = {name: _checked_array(name, about) for name, about in content["arrays"].items()}
            return Stamp(min(int(content["epoch"]), MAX_EPOCH), rows, points, str(content["token"]), arrays)
        except FileNotFoundError:
            raise StaleCache("there is no stamp") from None
        except UNREADABLE as error:
            raise StaleCache(f"the stamp is damaged ({error!r:.80})") from None

    def use(self, stamp: Stamp) -> None:
        """Map what a stamp covers, and check every byte that was not checked before; or raise StaleCache."""
        before = self.stamp if self.stamp is not None and self.stamp.epoch == stamp.epoch else None
        if before is None:
            self._columns = {}
        self.epoch = stamp.epoch
        try:
            for name, about in stamp.arrays.items():
                column = self._columns.get(name)
                if isinstance(column, MappedColumn):
                    column.map()
                else:
                    column = MappedColumn(self._path(name), tuple(about["width"]), about["dtype"], self._writable)
                    self._columns[name] = column
                n = _length(name, stamp)
                if column.capacity < n or len(about["crc"]) != -(-n * column.row_bytes // CHECKSUM_BYTES):
                    raise StaleCache(f"{name} does not fit its stamp")
            if before is not None and set(before.arrays) != set(stamp.arrays):
                raise StaleCache("the stamp has other arrays than before")
        except UNREADABLE as error:
            raise StaleCache(f"the stamp does not fit the files ({error!r:.80})") from None
        self._check_sums(stamp, before)
        self._check_ends(stamp)
        self.stamp = stamp

    def _check_sums(self, stamp: Stamp, before: Stamp | None) -> None:
        def first_block(name: str) -> int:
            if before is None:
                return 0
            return _length(name, before) * self._file(name).row_bytes // CHECKSUM_BYTES

        def is_wrong(task: tuple[str, int]) -> bool:
            name, block = task
            data = self._file(name).bytes(_length(name, stamp))
            part = data[block * CHECKSUM_BYTES : (block + 1) * CHECKSUM_BYTES]
            return bool(zlib.crc32(part.data) != stamp.arrays[name]["crc"][block])

        tasks = [(name, i) for name, about in stamp.arrays.items() for i in range(first_block(name), len(about["crc"]))]
        with ThreadPoolExecutor(self._threads) as pool:
            wrong = next((task for task, bad in zip(tasks, pool.map(is_wrong, tasks), strict=True) if bad), None)
        if wrong is not None:
            raise StaleCache(f"{wrong[0]} is damaged")

    def _check_ends(self, stamp: Stamp) -> None:
        """The arrays fit together, so that no position is out of them."""
        ends = self._columns["ends"].view(stamp.rows) if "ends" in self._columns else np.empty(0, np.int64)
        if len(ends) != stamp.rows or ends.dtype != np.int64:
            raise StaleCache("ends are missing")
        if stamp.rows and (ends[-1] != stamp.points or ends[0] < 0 or np.any(np.diff(ends) < 0)):
            raise StaleCache("ends are out of order")

    def _file(self, name: str) -> MappedColumn:
        column = self._columns[name]
        assert isinstance(column, MappedColumn)
        return column

    def start_again(self, reason: str) -> None:
        """Forget all that is there: the writer begins a new epoch, a reader arrays of its own in memory."""
        self.problem, self.stamp, self._columns, self.derived_rows = reason, None, {}, 0
        if self._writable:
            self.epoch = max([self.epoch, *(_epoch(path) for path in self._folder.iterdir())]) + 1

    def column(self, name: str, width: tuple[int, ...], dtype: Any) -> Column:
        """Return the array of this name, with what is there of it already."""
        known = self._columns.get(name)
        if known is None:
            if self.stamp is not None:
                raise StaleCache(f"{name} is missing")
            if self._writable:
                path = self._path(name)
                _clear(path)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))  # never what a link leads to
                known = MappedColumn(path, width, dtype, True)
            else:
                known = in_memory(name, width, dtype)
            self._columns[name] = known
        if known.width != width or known.dtype != np.dtype(dtype):
            raise StaleCache(f"{name} is of another type")
        return known

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.{self.epoch}"

    # Stamping

    def summed(self, rows: int, points: int, token: str, weighted: bool) -> Stamp:
        """Return the stamp of the arrays as they are, for so many rows; nothing is written.

        A first add with weights that failed leaves an array of them, which is none of an index without.
        """
        before = self.stamp
        stamp = Stamp(self.epoch, rows, points, token, {})
        for name in [name for name in self._columns if weighted or name != "weights"]:
            column = self._file(name)
            data = column.bytes(_length(name, stamp))
            sums: list[int] = [] if before is None else list(before.arrays[name]["crc"])
            done = 0 if before is None else _length(name, before) * column.row_bytes
            while done < len(data):
                end = min(len(data), done // CHECKSUM_BYTES * CHECKSUM_BYTES + CHECKSUM_BYTES)
                if done % CHECKSUM_BYTES:
                    sums[-1] = zlib.crc32(data[done:end].data, sums[-1])
                else:
                    sums.append(zlib.crc32(data[done:end].data))
                done = end
            stamp.arrays[name] = {"width": list(column.width), "dtype": column.dtype.str, "crc": sums}
        return stamp

    def write_stamp(self, stamp: Stamp) -> None:
        """Say that the arrays are good, as far as the stamp goes."""
        content = {"format": FORMAT_VERSION, "for": self._made_for, **vars(stamp)}
        text = json.dumps(content, sort_keys=True)
        target = self._folder / "stamp"
        if target.is_dir():
            _clear(target)
        with replacing(target, sync=False) as stream:
            stream.write(json.dumps({"crc": zlib.crc32(text.encode()), "content": text}).encode())
        self.stamp = stamp

    # What a search makes of the vectors: one file, written whole

    def write_derived(self, derived: Trained, rows: int) -> None:
        if self.stamp is None:
            return
        _clear(self._path("derived"))
        about = {"for": self._made_for, "epoch": self.epoch, "rows": rows, "token": self.stamp.token}
        tensors.write(self._path("derived"), DERIVED, {**about, "derived": derived.header}, derived.arrays)
        self.derived_rows = rows

    def read_derived(self, is_commit: Any) -> Trained | None:
        """Return what was written last, if it is for these arrays; None if there is none, or it is damaged."""
        self.derived_rows = 0
        if self.stamp is None:
            return None
        try:
            header, arrays = tensors.read(self._path("derived"), DERIVED)
            rows, token = int(header["rows"]), str(header["token"])
            # Of these very rows: after a crash there may be others at the same positions.
            fits = (header["for"], header["epoch"]) == (self._made_for, self.epoch) and 0 < rows <= self.stamp.rows
            if not fits or not is_commit(rows, token):
                return None
            self.derived_rows = rows
            return Trained(header["derived"], arrays)
        except (OSError, SloshError, ValueError, KeyError, TypeError):
            return None

    def tidy(self) -> None:
        """Delete the arrays of other epochs; processes that have them open keep them."""
        if not self._writable:
            return
        for path in self._folder.iterdir():
            draft = path.suffix == ".tmp" and path.name.split(".")[0] in {"stamp", *NAMES}
            if draft or (path.stem in NAMES and _epoch(path) not in (0, self.epoch)):
                _clear(path)

    def disk_bytes(self) -> int:
        if not self._folder.is_dir():
            return 0
        return sum(path.stat().st_size for path in self._folder.iterdir() if path.is_file())


def _length(name: str, stamp: Stamp) -> int:
    return stamp.points if name in RAGGED else stamp.rows


def _checked_array(name: str, about: Any) -> dict[str, Any]:
    width, dtype = [int(w) for w in about["width"]], np.dtype(about["dtype"])
    if name not in NAMES or dtype.kind not in "fiu" or min(width, default=1) < 1:
        raise StaleCache(f"{name} is not an array of numbers")
    return {"width": width, "dtype": dtype.str, "crc": [int(crc) for crc in about["crc"]]}


def _epoch(path: Path) -> int:
    """Return the number at the end of a name, 0 if there is none."""
    number = path.suffix[1:]
    return int(number) if number.isdecimal() and len(number) < 19 else 0


def _clear(path: Path) -> None:
    """Delete what is in the way in the folder of the caches; never what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
