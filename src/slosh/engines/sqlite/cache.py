"""The caches of an index on disk: arrays in files that only grow, mapped into memory, and a stamp that covers them.

In the folder `cache`:

    NAME.E     the array NAME of epoch E: plain numbers, row after row; what lies behind the stamped part is nothing
    derived.E  what the search makes of the vectors of epoch E, so that opening need not make it again; parts_derived.E
               is that of part search, and its arrays are named alike
    stamp      JSON: the index and the kernel it was made for, the epoch, the number of rows and the token of the commit
               that ends there, for each array its type and a CRC-32 of every 4 MB, and how many rows were flushed to
               disk; the same of the commit before, and a CRC-32 of all that

Only the writer writes. It appends to the arrays, replaces the stamp, and then commits to the database. So whoever sees
a commit finds its stamp, and a stamp whose token is not in the database is of a change that was not committed (yet):
the one before is valid then. What a valid stamp covers never changes.

Opening reads little: it checks what was not flushed to disk before the stamp said so, which a power cut may have torn,
and the last block of each array, which shows files of another time. If anything is wrong there nothing is used: the
writer begins a new epoch, a reader works in its own memory. Every other block is checked when it is first used
(`mapped_column.py`); what was computed from a damaged one ends with a DamagedError. `verify` checks every byte.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoints import in_threads
from ...data import tensors
from ...data.atomic import check_plain_file, replacing
from ...embed.part_field import FIELD, SHARES, SPREAD
from ...errors import SloshError
from ...gpu.devices import CPU
from ...search import Column, Trained, in_memory
from ..snapshot import PreparedSets, column_name
from ..spec import PARTS, WHOLE
from .mapped_column import MappedColumn
from .sizes import folder_bytes

CHECKSUM_BYTES = 1 << 22
"""Bytes of one checksum."""
FLUSH_BYTES = 1 << 28
"""When so many bytes were appended since, the arrays are flushed to disk; closing the index flushes the rest."""
RAGGED = ("points", "weights")
"""Arrays with a row for each point; all others have one for each set."""
OF_A_SEARCH = ("vectors", "scale", "moved", "codes", "derived")
NAMES = {
    *OF_A_SEARCH, *(f"{PARTS}_{name}" for name in OF_A_SEARCH), "slack", "ends", "points", "weights", FIELD, SHARES,
    SPREAD,
}  # fmt: skip
"""All there are: nothing else is deleted, whatever else lies in the folder."""
FORMAT_VERSION = 2
MAX_NUMBER = 10**18
MAX_MAKERS, MAX_NAME = 64, 200
"""How many devices a stamp may name, and characters of a name."""
DERIVED = "slosh derived"
UNREADABLE = (*tensors.BROKEN, SloshError, OSError)
"""What reading a stamp may end with that somebody else has written."""


class StaleCache(Exception):
    """The caches are not those of this index as it is now, or are damaged."""


@dataclass(frozen=True)
class Stamp:
    """What the arrays hold: rows, points, the token of the commit, and checksums by array."""

    epoch: int
    rows: int
    points: int
    token: str
    arrays: dict[str, Any]
    """By name: width, dtype, crc."""
    flushed: tuple[int, int] = (0, 0)
    """Rows and points that are on disk, whatever happens."""
    made_on: tuple[str, ...] | None = None
    """What has made the vectors; None: the CPU alone."""

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Stamp:
        """Return a stamp from JSON; raise one of UNREADABLE for anything else."""
        epoch, rows, points = (int(content[name]) for name in ("epoch", "rows", "points"))
        flushed = [int(number) for number in content.get("flushed", (0, 0))]
        if not all(0 <= number <= MAX_NUMBER for number in (epoch, rows, points, *flushed)):
            raise ValueError("its numbers are out of range")
        arrays = {name: _checked_array(name, about) for name, about in content["arrays"].items()}
        makers = content.get("made_on")
        made_on = None if makers is None else tuple(str(name)[:MAX_NAME] for name in makers[:MAX_MAKERS])
        known = min(flushed[0], rows), min(flushed[1], points)
        return cls(epoch, rows, points, str(content["token"]), arrays, known, made_on)

    def length(self, name: str) -> int:
        """Return how many rows of an array are covered."""
        return self.points if name in RAGGED else self.rows

    @property
    def needs_no_kernel(self) -> bool:
        """Whether none of it was made by the kernel of a CPU, so that it does not matter which one that was."""
        return bool(self.made_on) and CPU not in (self.made_on or ()) and FIELD not in self.arrays

    def n_bytes(self) -> int:
        """Return how many bytes are covered."""
        sizes = {
            name: np.dtype(about["dtype"]).itemsize * math.prod(about["width"]) for name, about in self.arrays.items()
        }
        return sum(size * self.length(name) for name, size in sizes.items())


class Cache:
    """The arrays of one index. For a reader whose caches are stale, they are in its memory."""

    def __init__(self, folder: Path, made_for: dict[str, Any], writable: bool, threads: int) -> None:
        self._folder, self._made_for, self._writable, self._threads = folder, made_for, writable, threads
        self._columns: dict[str, Column] = {}
        self.stamp: Stamp | None = None
        """Of the last commit that the arrays are known to cover."""
        self.problem: str | None = None
        """Why there are no stamps."""
        self.epoch = 0
        self._derived: dict[str, tuple[int, tensors.MappedArrays | None]] = {}  # by space
        if writable and (folder.is_symlink() or not folder.is_dir()):
            _clear(folder)
            folder.mkdir()

    # Opening

    def read_stamps(self) -> list[Stamp]:
        """Return the stamp and that of the commit before, newest first; none if they are not for this index."""
        path, self.problem = self._folder / "stamp", None
        try:
            check_plain_file(path)
            outer = json.loads(path.read_bytes())
            if zlib.crc32(outer["content"].encode()) != outer["crc"]:
                raise ValueError("its checksum is wrong")
            content: dict[str, Any] = json.loads(outer["content"])
            if content["format"] == FORMAT_VERSION and content["for"]["index"] == self._made_for["index"]:
                parts = [part for part in (content, content.get("before")) if part is not None]
                same = content["for"] == self._made_for
                if stamps := [stamp for stamp in map(Stamp.parse, parts) if same or stamp.needs_no_kernel]:
                    return stamps
            self.problem = "the stamp is of another index, of another version of it, or of another machine"
        except FileNotFoundError:
            self.problem = "there is no stamp"
        except UNREADABLE as error:
            self.problem = f"the stamp is damaged ({error!r:.80})"
        return []

    def use(self, stamp: Stamp) -> None:
        """Map what a stamp covers, and check what may be torn; or raise StaleCache."""
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
                n = stamp.length(name)
                if len(column.unchecked_view(n)) < n or len(about["crc"]) != -(-n * column.row_bytes // CHECKSUM_BYTES):
                    raise StaleCache(f"{name} does not fit its stamp")
            if before is not None and set(before.arrays) != set(stamp.arrays):
                raise StaleCache("the stamp has other arrays than before")
        except UNREADABLE as error:
            raise StaleCache(f"the stamp does not fit the files ({error!r:.80})") from None
        good = stamp.flushed if before is None else max(stamp.flushed, (before.rows, before.points))
        for name, about in stamp.arrays.items():
            column, n = self._file(name), stamp.length(name)
            whole = 0 if before is None else before.length(name) * column.row_bytes // CHECKSUM_BYTES
            later = column.unchecked_blocks() | set(range(whole, self._first_to_check(stamp, name, *good)))
            column.expect(about["crc"], n, CHECKSUM_BYTES, later)
        if wrong := self._first_damaged(stamp, *good):
            raise StaleCache(f"{wrong} is damaged")
        self._check_last(stamp)
        self.stamp = stamp

    def _first_to_check(self, stamp: Stamp, name: str, rows: int, points: int) -> int:
        """Return the first block behind so many rows, or the last one."""
        good = (points if name in RAGGED else rows) * self._file(name).row_bytes // CHECKSUM_BYTES
        return max(0, min(good, len(stamp.arrays[name]["crc"]) - 1))

    def _first_damaged(self, stamp: Stamp, rows: int = 0, points: int = 0) -> str | None:
        """Return an array that is not what the stamp says, looking behind so many rows and at the last block."""

        def is_wrong(task: tuple[str, int]) -> bool:
            name, block = task
            data = self._file(name).bytes(stamp.length(name))
            part = data[block * CHECKSUM_BYTES : (block + 1) * CHECKSUM_BYTES]
            return bool(zlib.crc32(part.data) != stamp.arrays[name]["crc"][block])

        tasks = []
        for name, about in stamp.arrays.items():
            first = self._first_to_check(stamp, name, rows, points)
            tasks += [(name, i) for i in range(first, len(about["crc"]))]
        found = in_threads(is_wrong, tasks, self._threads)
        return next((name for (name, _), bad in zip(tasks, found, strict=True) if bad), None)

    def verify(self) -> tuple[str, str, list[str]]:
        """Check every byte that the stamp covers: what was checked, how much of it, and the problems."""
        stamp = self.stamp
        name, n_bytes = (None, 0) if stamp is None else (self._first_damaged(stamp), stamp.n_bytes())
        problem = f"the cache {name} is damaged: close the index, delete its folder cache, and open it again"
        return "arrays", f"{n_bytes} bytes of the caches against their checksums", [problem] if name else []

    def _check_last(self, stamp: Stamp) -> None:
        """The last set ends with the last point. Of the others, those who use their ends look (`PreparedSets`)."""
        ends = self._columns["ends"].unchecked_view(stamp.rows) if "ends" in self._columns else np.empty(0, np.int64)
        if len(ends) != stamp.rows or ends.dtype != np.int64:
            raise StaleCache("ends are missing")
        if stamp.rows and ends[-1] != stamp.points:
            raise StaleCache("ends are out of order")

    def _file(self, name: str) -> MappedColumn:
        column = self._columns[name]
        assert isinstance(column, MappedColumn)
        return column

    def start_again(self) -> None:
        """Forget all that is there: the writer begins a new epoch, a reader arrays of its own in memory."""
        self.stamp, self._columns, self._derived = None, {}, {}
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

    def summed(self, sets: PreparedSets, token: str | None = None, made_on: tuple[str, ...] | None = None) -> Stamp:
        """Return the stamp of the arrays up to the last of these sets, with a new token or that of a commit.

        made_on : what has made the vectors, None for the CPU alone.

        A first add with weights that failed leaves an array of them, which is none of an index without.
        """
        before, weighted = self.stamp, sets.weights is not None
        flushed = (0, 0) if before is None else before.flushed
        stamp = Stamp(self.epoch, sets.n, sets.n_points, token or secrets.token_hex(16), {}, flushed, made_on)
        for name in [name for name in self._columns if weighted or name != "weights"]:
            column = self._file(name)
            data = column.bytes(stamp.length(name))
            sums: list[int] = [] if before is None else list(before.arrays[name]["crc"])
            done = 0 if before is None else before.length(name) * column.row_bytes
            while done < len(data):
                end = min(len(data), done // CHECKSUM_BYTES * CHECKSUM_BYTES + CHECKSUM_BYTES)
                if done % CHECKSUM_BYTES:
                    sums[-1] = zlib.crc32(data[done:end].data, sums[-1])
                else:
                    sums.append(zlib.crc32(data[done:end].data))
                done = end
            stamp.arrays[name] = {"width": list(column.width), "dtype": column.dtype.str, "crc": sums}
        return stamp

    def write_stamp(self, stamp: Stamp, before: Stamp | None = None, *, sync: bool = False) -> None:
        """Say that the arrays are good as far as the stamp goes, if its commit is done; otherwise `before` is valid."""
        content = {"format": FORMAT_VERSION, "for": self._made_for, **vars(stamp)}
        text = json.dumps({**content, "before": None if before is None else vars(before)}, sort_keys=True)
        target = self._folder / "stamp"
        if target.is_dir():
            _clear(target)
        with replacing(target, sync=sync) as stream:
            stream.write(json.dumps({"crc": zlib.crc32(text.encode()), "content": text}).encode())

    def flush(self, unless: int = 0) -> None:
        """Flush what was appended, and say so in the stamp; unless that is only so many bytes."""
        stamp = self.stamp
        if not self._writable or stamp is None:
            return
        rows, points = stamp.flushed
        behind = stamp.n_bytes() - replace(stamp, rows=rows, points=points).n_bytes()
        if behind > unless:
            for name in stamp.arrays:
                self._file(name).flush()
            self.stamp = replace(stamp, flushed=(stamp.rows, stamp.points))
            self.write_stamp(self.stamp, sync=True)

    def close(self) -> None:
        """Let go of the files."""
        self.stamp, self._columns = None, {}

    # What a search makes of the vectors: one file, written whole

    def write_derived(self, derived: Trained, rows: int, space: str = WHOLE) -> None:
        if self.stamp is None:
            return
        path = self._path(column_name(space, "derived"))
        _clear(path)
        about = {"for": self._made_for, "epoch": self.epoch, "rows": rows, "token": self.stamp.token}
        tensors.write(path, DERIVED, {**about, "derived": derived.header}, derived.arrays)
        self._derived[space] = rows, None

    def derived_rows(self, space: str = WHOLE) -> int:
        """Return how many rows of a space there is something derived of in a file; 0 if that was found damaged."""
        rows, arrays = self._derived.get(space, (0, None))
        return 0 if arrays is not None and arrays.damaged else rows

    def read_derived(self, is_commit: Callable[[int, str], bool], space: str = WHOLE) -> Trained | None:
        """Return what was written last, if it is for these arrays; None if there is none, or it is damaged.

        The arrays are read and checked when one of them is first asked for.
        """
        self._derived.pop(space, None)
        if self.stamp is None:
            return None
        try:
            header, arrays = tensors.read_mapped(self._path(column_name(space, "derived")), DERIVED)
            rows, token = int(header["rows"]), str(header["token"])
            # Of these very rows: after a crash there may be others at the same positions.
            fits = (header["for"], header["epoch"]) == (self._made_for, self.epoch) and 0 < rows <= self.stamp.rows
            if not fits or not is_commit(rows, token):
                return None
            self._derived[space] = rows, arrays
            return Trained(header["derived"], arrays)
        except (OSError, SloshError, ValueError, KeyError, TypeError):
            return None

    def tidy(self) -> None:
        """Delete the arrays of other epochs; processes that have them open keep them."""
        for path in self._folder.iterdir():
            draft = path.suffix == ".tmp" and path.name.split(".")[0] in {"stamp", *NAMES}
            if draft or (path.stem in NAMES and _epoch(path) not in (0, self.epoch)):
                _clear(path)

    def disk_bytes(self) -> int:
        return folder_bytes(self._folder)


def _checked_array(name: str, about: Any) -> dict[str, Any]:
    width, dtype = [int(w) for w in about["width"]], np.dtype(about["dtype"])
    if name not in NAMES or dtype.kind not in "fiu" or min(width, default=1) < 1:
        raise ValueError(f"{name} is not an array of numbers")
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
