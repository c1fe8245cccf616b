"""The caches of an index: arrays in files that only grow, mapped into memory, and a stamp that says what is good.

On disk, in the folder `cache`:

    NAME.E     the array NAME of epoch E: plain numbers, row after row; what lies behind the stamped part is nothing
    derived.E  what the search makes of the vectors of epoch E; a saved file like those of `slosh.search`
    stamp      JSON: the epoch, for which generation of the database and by which kernel it was made, after which change
               of the database, and for each array its type, its stamped bytes, and a CRC-32 of every 4 MB of them; and
               a CRC-32 of all that

Only the writer writes. It appends to the arrays and then replaces the stamp (another name, renamed), so what a stamp
covers never changes while there are processes that read it. Whoever opens the index checks every byte that the stamp
covers. If anything is wrong nothing of it is used: the writer begins a new epoch, a reader works in its own memory.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..data.checks import Array
from ..search import files
from ..search.store import Grown, in_memory

BLOCK = 1 << 22
"""Bytes of one checksum."""
SLACK = 1 << 26
"""Bytes that a file is made longer than it has to be, at most."""
NAMES = {"row", "vectors", "scale", "moved", "codes", "errors", "ends", "points", "weights", "derived"}
"""All there are: nothing else is deleted, whatever else lies in the folder."""
RAGGED = ("points", "weights")
"""Arrays with a row for each point; all others have one for each set."""
FORMAT = 1


LAST_EPOCH = 10**18


class Stale(Exception):
    """The caches are not those of this index as it is now, or are damaged."""


class Behind(Exception):
    """The caches are of a change that a reader does not see yet."""


Change: TypeAlias = tuple[str, int]
"""Of a database: who made it, and its number. A database restored from a copy may have others with the same number."""
WRONG = (OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What reading a stamp may end with that somebody else has written."""


class Column(Grown):
    """An array in a file, of which `used` rows are good. A reader's own additions stay in its memory."""

    def __init__(self, path: Path, width: tuple[int, ...], dtype: Any, used: int, writable: bool) -> None:
        self.file, self.writable = path, writable
        self._width, self._dtype, self.used = width, np.dtype(dtype), used
        self.row_bytes = self._dtype.itemsize * math.prod(width)
        self._path: str | None = os.fspath(path)
        self.map()

    def map(self) -> None:
        """Maps the file as long as it is now."""
        about = self.file.lstat()
        if not stat.S_ISREG(about.st_mode):  # a link could lead to a file of the user's
            raise Stale(f"{self.file.name} is no plain file")
        n = about.st_size // self.row_bytes
        if n < self.used:
            raise Stale(f"{self.file.name} is too short")
        mode: Any = "r+" if self.writable else "c"  # copy on write: the file stays as it is
        shape = (n, *self._width)
        self._data = np.memmap(self.file, self._dtype, mode, shape=shape).view(np.ndarray) if n else np.empty(shape)
        if not n:
            self._data = self._data.astype(self._dtype)

    def more(self, n: int) -> Array:
        end = self.used + n
        if end > len(self._data):
            if self._path is None or not self.writable:
                room = np.empty((end + end // 8, *self._width), self._dtype)
                room[: self.used] = self.array
                self._data, self._path = room, None
            else:
                size = (end + min(end // 4, SLACK // self.row_bytes)) * self.row_bytes
                _lengthen(self.file, size)
                self.map()
        self.used = end
        return self._data[end - n : end]

    def replace(self, values: Array) -> None:
        raise NotImplementedError("an array of an index only grows")

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of the file's used bytes, or of the memory that took its place."""
        return self._data.reshape(-1).view(np.uint8)[: self.used * self.row_bytes]


def _lengthen(path: Path, size: int) -> None:
    """Takes the space now, so that a full disk is an error here and not a crash when it is written to."""
    with open(path, "r+b") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.seek(0, os.SEEK_END)
            while (rest := size - stream.tell()) > 0:
                stream.write(bytes(min(rest, BLOCK)))


def _epoch(path: Path) -> int:
    """The number at the end of a name, 0 if there is none."""
    number = path.suffix[1:]
    return int(number) if number.isdecimal() and len(number) < 19 else 0


def _clear(path: Path) -> None:
    """Takes away what is in the way in the folder of the caches; never what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Columns:
    """All arrays of one index. `n_rows` sets are covered by the stamp that was found good.

    `check` refuses (Stale, Behind) the stamp of a change that is not one of this database, or of another generation.
    """

    def __init__(
        self,
        folder: Path | None,
        made_for: dict[str, Any],
        check: Callable[[Change, bool], None],
        writable: bool,
        threads: int,
    ) -> None:
        self._folder, self._made_for, self._writable, self._threads = folder, made_for, writable, threads
        self._check_change = check
        self._columns: dict[str, Column] = {}
        self._sums: dict[str, list[int]] = {}
        self._summed: dict[str, int] = {}
        self.epoch, self.n_rows, self.derived_rows = 0, 0, 0
        self.problem: str | None = None
        self.refused: int | None = None
        if folder is None:
            return
        try:
            if writable and (folder.is_symlink() or not folder.is_dir()):
                _clear(folder)
                folder.mkdir()
            stamped = self._read_stamp()
            self.refused = self.epoch  # unless all of it is good
            self._open(stamped)
            self.refused = None
        except Stale as reason:
            self.problem = str(reason)
            self._begin()

    def limit(self, next_row: int) -> None:
        """Only rows below this one: a stamp may be newer than what a reader sees."""
        rows = self._columns.get("row")
        if rows is None or not rows.used or rows.array[-1] < next_row:
            return
        n = int(np.searchsorted(rows.array, next_row))
        ends = self._columns["ends"].array
        n_points = int(ends[n - 1]) if n else 0
        for name, column in self._columns.items():
            column.used = n_points if name in RAGGED else n
        self.n_rows = n

    def room(self, name: str, width: tuple[int, ...], dtype: Any) -> Grown:
        """The array of this name, with what is there of it already."""
        if self._folder is None or (not self._writable and name not in self._columns):
            if self.n_rows:
                raise Stale(f"{name} is missing")
            return in_memory(name, width, dtype)
        known = self._columns.get(name)
        if known is None:
            if self.n_rows:
                raise Stale(f"{name} is missing")
            path = self._path(name)
            _clear(path)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))  # never what a link leads to
            known = self._columns[name] = Column(path, width, dtype, 0, True)
            self._sums[name], self._summed[name] = [], 0
        if known._width != width or known._dtype != np.dtype(dtype):
            raise Stale(f"{name} is of another type")
        return known

    def start_again(self, reason: str) -> None:
        """Forgets all; the arrays are empty, and those of a reader in memory."""
        self.problem, self.refused = reason, self.epoch
        self._begin()

    def _begin(self) -> None:
        self.n_rows = 0
        self._columns, self._sums, self._summed = {}, {}, {}
        if self._folder is None or not self._writable:
            return
        self.epoch = max([self.epoch, *(_epoch(path) for path in self._folder.iterdir())]) + 1

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.{self.epoch}"

    # The stamp

    def stamp(self, n_rows: int, change: Change) -> None:
        """Says that the arrays are good as they are, for so many sets, after this change."""
        if self._folder is None or not self._writable:
            return
        arrays: dict[str, Any] = {}
        for name, column in self._columns.items():
            self._sum(name, column)
            about = {"width": list(column._width), "dtype": column._dtype.str, "bytes": self._summed[name]}
            arrays[name] = {**about, "crc": self._sums[name]}
        content = {"format": FORMAT, "for": self._made_for, "epoch": self.epoch, "rows": n_rows, "arrays": arrays}
        content["change"] = list(change)
        text = json.dumps(content, sort_keys=True)
        draft, target = self._folder / f"stamp.{os.getpid()}.tmp", self._folder / "stamp"
        try:
            _clear(draft)
            with open(draft, "x") as stream:
                stream.write(json.dumps({"crc": zlib.crc32(text.encode()), "content": text}))
            if target.is_dir():
                _clear(target)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        self.n_rows = n_rows

    def _sum(self, name: str, column: Column) -> None:
        data, done, sums = column.bytes, self._summed[name], self._sums[name]
        while done < len(data):
            end = min(len(data), done // BLOCK * BLOCK + BLOCK)
            if done % BLOCK:
                sums[-1] = zlib.crc32(data[done:end].data, sums[-1])
            else:
                sums.append(zlib.crc32(data[done:end].data))
            done = end
        self._summed[name] = done

    def _read_stamp(self) -> dict[str, Any]:
        """The stamp, if it is one, and for this index."""
        assert self._folder is not None
        try:
            if not stat.S_ISREG((self._folder / "stamp").lstat().st_mode):
                raise Stale("the stamp is no plain file")
            outer = json.loads((self._folder / "stamp").read_bytes())
            if zlib.crc32(outer["content"].encode()) != outer["crc"]:
                raise Stale("the stamp is damaged")
            content: dict[str, Any] = json.loads(outer["content"])
            same = all(content["for"][name] == self._made_for[name] for name in ("index", "kernel"))
            if content["format"] != FORMAT or not same:
                raise Stale("the stamp is of another index, or of another machine")
            made = (str(content["change"][0]), int(content["change"][1]))
            self._check_change(made, content["for"] == self._made_for)
            self.epoch = min(int(content["epoch"]), LAST_EPOCH)
            return content
        except FileNotFoundError:
            raise Stale("there is no stamp") from None
        except WRONG as error:
            raise Stale(f"the stamp is damaged ({error!r:.80})") from None

    def _open(self, stamped: dict[str, Any]) -> None:
        """Maps what the stamp covers, and checks every byte of it."""
        tasks: list[tuple[str, Column, int]] = []
        try:
            n_rows = int(stamped["rows"])
            for name, about in stamped["arrays"].items():
                width, dtype = tuple(int(w) for w in about["width"]), np.dtype(about["dtype"])
                if dtype.kind not in "fiu" or not name.isidentifier() or min(width, default=1) < 1:
                    raise Stale(f"{name} is no array of numbers")
                used, rest = divmod(int(about["bytes"]), dtype.itemsize * math.prod(width))
                if rest or len(about["crc"]) != -(-int(about["bytes"]) // BLOCK):
                    raise Stale(f"{name} does not fit its stamp")
                column = self._columns[name] = Column(self._path(name), width, dtype, used, self._writable)
                self._sums[name], self._summed[name] = list(about["crc"]), int(about["bytes"])
                tasks += [(name, column, block) for block in range(len(about["crc"]))]
        except WRONG as error:
            raise Stale(f"the stamp does not fit the files ({error!r:.80})") from None
        self._check(tasks)
        self._check_sizes(n_rows)
        self.n_rows = n_rows

    def _check_sizes(self, n_rows: int) -> None:
        """The arrays fit together, so that no position is out of them."""
        ends = self._columns.get("ends")
        n_points = int(ends.array[-1]) if ends is not None and n_rows and ends.used == n_rows else 0
        for name, column in self._columns.items():
            if column.used != (n_points if name in RAGGED else n_rows):
                raise Stale(f"{name} has {column.used} rows")
        if n_points and ends is not None and (ends.array[0] < 1 or np.any(np.diff(ends.array) < 1)):
            raise Stale("ends are out of order")

    def _check(self, tasks: list[tuple[str, Column, int]]) -> None:
        def wrong(task: tuple[str, Column, int]) -> str | None:
            name, column, block = task
            part = column.bytes[block * BLOCK : (block + 1) * BLOCK]
            return None if zlib.crc32(part.data) == self._sums[name][block] else name

        with ThreadPoolExecutor(self._threads) as pool:
            damaged = next((name for name in pool.map(wrong, tasks) if name), None)
        if damaged:
            raise Stale(f"{damaged} is damaged")

    def follow(self) -> bool:
        """A reader's: takes what the writer has stamped since; whether that is any. Stale if it is damaged."""
        if self._folder is None or self._writable:
            return False
        before = self.epoch
        try:
            stamped = self._read_stamp()
        except Stale:
            return False
        if not self._columns and self.epoch != self.refused:
            raise Stale("there are caches now")
        if self.epoch != before or set(stamped["arrays"]) != set(self._columns):
            self.epoch = before
            return False
        if stamped["rows"] <= self.n_rows:
            return False
        tasks: list[tuple[str, Column, int]] = []
        try:
            for name, column in self._columns.items():
                about, done = stamped["arrays"][name], self._summed[name]
                self._sums[name], self._summed[name] = list(about["crc"]), int(about["bytes"])
                column.used = self._summed[name] // column.row_bytes
                column._path = os.fspath(column.file)
                column.map()
                tasks += [(name, column, block) for block in range(done // BLOCK, len(about["crc"]))]
        except WRONG as error:
            raise Stale(f"the stamp does not fit the files ({error!r:.80})") from None
        self._check(tasks)
        self._check_sizes(int(stamped["rows"]))
        self.n_rows = int(stamped["rows"])
        return True

    # What a search makes of the vectors: one file, written whole

    def write_derived(self, header: dict[str, Any], arrays: dict[str, Array], n_rows: int) -> None:
        if self._folder is not None and self._writable:
            _clear(self._path("derived"))
            about = {"for": self._made_for, "epoch": self.epoch, "rows": n_rows, "of": self._sum_of_rows(n_rows)}
            files.write(self._path("derived"), {**about, "derived": header}, arrays)
            self.derived_rows = n_rows

    def _sum_of_rows(self, n_rows: int) -> int:
        return zlib.crc32(np.ascontiguousarray(self._columns["row"].array[:n_rows]).data)

    def read_derived(self) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """What was written last, if it is for these arrays; None if there is none, or it is damaged."""
        self.derived_rows = 0
        if self._folder is None or not self.n_rows:
            return None
        try:
            header, arrays = files.read(self._path("derived"))
            n_rows, made = int(header["rows"]), (header["for"], header["epoch"])
            # Of these very rows: after a crash there may be others at the same positions.
            if made != (self._made_for, self.epoch) or not 0 < n_rows <= self.n_rows:
                return None
            if header["of"] != self._sum_of_rows(n_rows):
                return None
            self.derived_rows = n_rows
            return header["derived"], arrays
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def tidy(self) -> None:
        """Deletes the arrays of other epochs; processes that have them open keep them."""
        if self._folder is None or not self._writable:
            return
        for path in self._folder.iterdir():
            draft = path.suffix == ".tmp" and path.name.split(".")[0] in {"stamp", *NAMES}
            if draft or (path.stem in NAMES and _epoch(path) not in (0, self.epoch)):
                _clear(path)

    @property
    def disk_bytes(self) -> int:
        """Of all files of the cache."""
        if self._folder is None or not self._folder.is_dir():
            return 0
        return sum(path.stat().st_size for path in self._folder.iterdir() if path.is_file())
