"""NumPy's own files: `.npy`, one array, memory-mapped; `.npz`, an archive of arrays, read row by row.

Arrays of objects are pickles, and are refused. What the header of an array claims is compared with what its file or its
member of the archive holds, before memory is taken for it.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from ..data.batching import MAX_BATCH_SETS, batches_by_points
from ..data.checks import checked_offsets
from ..data.text import format_bytes
from ..errors import InputError
from ..native.arrays import Array
from .files import File, Options, Piece, metadata_rows, to_ids

# ---- .npy


def read_npy(file: File, options: Options) -> Iterator[Piece]:
    """Read an array (N, d) as one set, or (n, N, d) as n sets."""
    with open(file.path, "rb") as stream:
        shape, fortran, dtype = plain_header(stream, file.error)
        start, size = stream.tell(), math.prod(shape) * dtype.itemsize
    if size != (there := file.size - start):
        claims = f"the header claims {format_bytes(size)} of numbers, the file has {format_bytes(there)}"
        raise file.error(f"{claims}: it is cut short or damaged")
    if len(shape) not in (2, 3) or shape[-1] == 0:
        flat = f"; for {shape[0]} elements of one feature save x[:, None]" if len(shape) == 1 else ""
        raise file.error(f"an array of shape {shape}", f"(N, d) is one set, (n, N, d) is n sets{flat}")
    array: Array = np.empty(shape, dtype)
    if size:
        array = np.memmap(file.path, dtype, "r", start, shape, "F" if fortran else "C").view(np.ndarray)
    return _npy_pieces(file, options, array)


def _npy_pieces(file: File, options: Options, array: Array) -> Iterator[Piece]:
    if array.ndim == 2:
        yield Piece.one(file, array)
        return
    n, width, dim = array.shape
    step = max(1, min(MAX_BATCH_SETS, options.limit(dim) // max(width, 1)))
    for first in range(0, n, step):
        part = array[first : first + step]
        ids, metadata = file.numbered(first, len(part)), metadata_rows(file, {}, len(part))
        yield Piece(file, part.reshape(-1, dim), np.full(len(part), width), None, ids, metadata)


def plain_header(stream: Any, refuse: Callable[[str, str], InputError]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of an array of plain values; the stream is left where the values start.

    `refuse` makes the error of what is wrong and its remedy.
    """
    version = npy.read_magic(stream)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise refuse(f"version {version} of the array format holds no plain numbers", "")
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject:
        what = "an array of objects, which is a pickle and could run code, is never read"
        raise refuse(what, "save arrays of numbers")
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind not in "biufcSU":
        raise refuse(f"an array of {dtype}, not of plain numbers", "")
    if min(shape, default=0) < 0:
        raise refuse(f"an array of shape {shape}", "")
    return shape, fortran, dtype


# ---- .npz


class Member:
    """An array of an archive. `read` returns its next rows; nothing is read before."""

    def __init__(self, file: File, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.name = info.filename.removesuffix(".npy")
        self._file, self._label = file, f"{self.name!r:.100}: "
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise self.error("compressed in a way that NumPy does not write")
        self._stream: BinaryIO = archive.open(info)  # type: ignore[assignment]
        try:
            self.shape, self._fortran, self.dtype = plain_header(self._stream, self.error)
            size = math.prod(self.shape) * self.dtype.itemsize
            if size != (there := info.file_size - self._stream.tell()):
                raise self.error(f"claims {format_bytes(size)} of numbers and has {format_bytes(there)}: refused")
        except BaseException:
            self.close()
            raise
        self._whole: Array | None = None
        self._row = 0

    def error(self, what: str, remedy: str = "") -> InputError:
        """Return the error that says `what` is wrong with this array."""
        return self._file.error(f"{self._label}{what}", remedy)

    def read(self, count: int | None = None) -> Array:
        """Return the next `count` rows, or all that are left."""
        if not self.shape:
            return self._take(())
        count = self.shape[0] - self._row if count is None else count
        start, self._row = self._row, self._row + count
        if self._fortran and len(self.shape) > 1:  # column after column: no row is there before all are
            if self._whole is None:
                self._whole = self._take(self.shape[::-1]).T
            return self._whole[start : self._row]
        return self._take((count, *self.shape[1:]))

    def _take(self, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape) * self.dtype.itemsize
        self._file.check_memory(f"{self.name!r}", size)
        array = np.empty(shape, self.dtype)
        view = memoryview(array.reshape(-1).view(np.uint8)) if size else memoryview(b"")  # type: ignore[arg-type]
        done = 0
        while done < size:
            got = self._stream.readinto(view[done : done + (1 << 24)])  # type: ignore[attr-defined]
            if not got:
                raise self.error("ends early; the file is cut short or damaged")
            done += got
        return array

    def finish(self) -> None:
        """Read past the last row, where the checksum of the archive is compared."""
        if self._stream.read(1):
            raise self.error("is longer than its header says")

    def close(self) -> None:
        """Close the stream; the archive stays open as long as one of its members is."""
        self._stream.close()


def read_npz(file: File, options: Options) -> Iterator[Piece]:
    """Read `points` and `offsets` as many sets, `points` alone as one set, and otherwise each 2-D array as a set."""
    archive = zipfile.ZipFile(file.path)
    infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    for name in archive.namelist():
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
            raise file.error(f"the member {name!r:.100} climbs out of the archive: refused")
        if not name.endswith(".npy"):
            raise file.error(f"the member {name!r:.100} is not an array, so it is not an archive that NumPy wrote")
    file.check_expansion("the archive", sum(info.file_size for info in archive.infolist()))
    if len(infos) < len(archive.infolist()):
        raise file.error("two members have the same name")
    if options.id_column is not None and not {"points", "offsets"} <= infos.keys():
        what = f"no 'points' with 'offsets' in it, so id_column={options.id_column!r} is unused"
        raise file.error(what, argument="id_column")
    if "points" in infos:
        return _joined(file, options, archive, {name: Member(file, archive, info) for name, info in infos.items()})
    if options.weights_name is not None:
        raise file.error(f"no 'points' in it that could have the weights {options.weights_name!r}", argument="weights")
    return _each(file, archive, infos)


def _joined(file: File, options: Options, archive: zipfile.ZipFile, members: dict[str, Member]) -> Iterator[Piece]:
    """Yield the sets in `points`, which is cut at `offsets`; without them it is one set, named after its file."""
    points, several = members["points"], "offsets" in members
    if len(points.shape) != 2:
        raise file.error(f"'points' has the shape {points.shape}", f"it must be ({'P' if several else 'N'}, d)")
    try:
        offsets = checked_offsets(members["offsets"].read(), points.shape[0]) if several else [0, points.shape[0]]
    except InputError as error:
        raise file.error(error.problem, error.remedy) from None
    sizes = np.diff(offsets)
    flat = None
    if options.weights or (options.weights is None and "weights" in members):
        name = options.weights_name or "weights"
        flat = _member(members, file, name, points.shape[0], "weights, one for each point", "weights")
    ids = file.numbered(0, len(sizes)) if several else [file.name]
    id_name = options.id_column or ("names" if several and "names" in members else None)
    if id_name is not None:
        found = _member(members, file, id_name, len(sizes), "ids, one for each set", "id_column")
        ids = to_ids(file, repr(id_name), found.read().tolist())
    used = {"points", "offsets", id_name, flat.name if flat else None}
    columns = _columns(file, members, used, len(sizes) if several else None)
    with archive:
        for sets in batches_by_points(sizes, options.limit(points.shape[1]), MAX_BATCH_SETS):
            count = int(sizes[sets].sum())
            part = points.read(count)
            weights = None if flat is None else flat.read(count)
            metadata = metadata_rows(file, {name: values[sets] for name, values in columns.items()}, len(ids[sets]))
            yield Piece(file, part, sizes[sets], weights, ids[sets], metadata)
        points.finish()


def _member(members: dict[str, Member], file: File, name: str, length: int, what: str, argument: str) -> Member:
    """Return an array of this length, or raise an error that says what was expected for an argument."""
    if name not in members or members[name].shape != (length,):
        shapes = ", ".join(f"{name} {member.shape}" for name, member in members.items())[:300]
        raise file.error(f"{name!r} is not an array of {length} {what}", f"there are {shapes}", argument=argument)
    return members[name]


def _columns(file: File, members: dict[str, Member], used: set[str | None], n: int | None) -> dict[str, list[Any]]:
    """Return the arrays of one value for each of n sets, which are metadata; labels by their names in `classes`.

    None stands for a file that is one set: its metadata are the single values, as they are.
    """
    if n is None:
        return {name: [member.read().item()] for name, member in members.items() if member.shape == ()}
    columns: dict[str, list[Any]] = {}
    for name, member in members.items():
        if name in used or name == "classes" or member.shape != (n,):
            continue
        values = member.read().tolist()
        if name == "labels" and "classes" in members:
            classes = members["classes"].read().tolist()
            if any(not isinstance(x, int) or x >= len(classes) for x in values):
                raise file.error(f"'labels' must be whole numbers below {len(classes)}, the number of 'classes'")
            values = [classes[x] if x >= 0 else None for x in values]  # a label below zero is none
        columns["label" if name == "labels" else name] = values
    return columns


def _each(file: File, archive: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> Iterator[Piece]:
    """Yield each 2-D array as a set, its name the id; NumPy's own arr_0, arr_1, ... are not names."""
    with archive:
        numbered = all(re.fullmatch(r"arr_\d+", name) for name in infos)
        for name, info in infos.items():
            member = Member(file, archive, info)
            if len(member.shape) != 2:
                remedy = "an archive has 'points' and 'offsets', or 2-D arrays, each one set"
                raise member.error(f"of shape {member.shape}", remedy)
            array = member.read()
            member.finish()
            one = f"{file.stem}/{name.removeprefix('arr_')}" if numbered else name
            yield Piece(file, array, np.array([len(array)]), None, [one], metadata_rows(file, {}, 1))
