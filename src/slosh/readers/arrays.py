"""NumPy's own files: `.npy`, one array, memory-mapped; `.npz`, an archive of arrays, read row by row.

Arrays of objects are pickles, and refused. What an array's header claims must be what its file or its member of the
archive holds, before memory is taken for it.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from ..data.batching import batches_by_points
from ..data.checks import Array, checked_offsets
from .files import DEFLATE, File, Options, Piece, Unreadable, fits, in_words, reading, rows, whole_ids

# ---- .npy


def read_npy(file: File, options: Options) -> Iterator[Piece]:
    """(N, d): one set. (n, N, d): n sets."""
    with reading(file, "NumPy array"), open(file.path, "rb") as stream:
        shape, fortran, dtype = _header(stream, str(file))
        start, size = stream.tell(), math.prod(shape) * dtype.itemsize
        if size != (there := file.size - start):
            raise Unreadable(
                f"{file}: the header claims {in_words(size)} of numbers, the file has {in_words(there)}: it is cut "
                "short or damaged"
            )
        if len(shape) not in (2, 3) or shape[-1] == 0:
            flat = f"; for {shape[0]} elements of one feature save x[:, None]" if len(shape) == 1 else ""
            raise Unreadable(f"{file}: an array of shape {shape}: (N, d) is one set, (n, N, d) is n sets{flat}")
    return _npy_pieces(file, options, shape, "F" if fortran else "C", dtype, start)


def _npy_pieces(file: File, options: Options, shape: Any, order: Any, dtype: Any, start: int) -> Iterator[Piece]:
    array: Array = np.empty(shape, dtype)
    if array.size:
        array = np.memmap(file.path, dtype, "r", start, shape, order).view(np.ndarray)
    if len(shape) == 2:
        yield Piece.one(file, array)
        return
    n, width, dim = shape
    step = max(1, options.limit(dim) // max(width, 1))
    for first in range(0, n, step):
        part = array[first : first + step]
        ids = [f"{file.stem}/{first + i}" for i in range(len(part))]
        sizes = np.full(len(part), width)
        yield Piece(file, part.reshape(-1, dim), sizes, None, ids, rows(file, {}, len(part)))


def _header(stream: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array, of plain values; the stream is left where they start."""
    version = npy.read_magic(stream)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise Unreadable(f"{name}: version {version} of the array format holds no plain numbers")
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise Unreadable(
            f"{name}: an array of objects, which is a pickle and could run code, is never read; save arrays of numbers"
        )
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind not in "biufcSU":
        raise Unreadable(f"{name}: an array of {dtype}, not of plain numbers")
    if min(shape, default=0) < 0:
        raise Unreadable(f"{name}: an array of shape {shape}")
    return shape, fortran, dtype


# ---- .npz


class Member:
    """An array of an archive. `read` gives its next rows; nothing is read before."""

    def __init__(self, file: File, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.name = info.filename.removesuffix(".npy")
        self.label = f"{file}, {self.name!r:.100}"
        self._file, self._size = file, info.file_size
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise Unreadable(f"{self.label}: compressed in a way that NumPy does not write")
        packed = info.compress_size
        if packed > file.size or info.file_size > (packed if info.compress_type == 0 else packed * DEFLATE + 4096):
            raise Unreadable(
                f"{self.label}: claims {in_words(info.file_size)} in {in_words(min(packed, file.size))} of the file, "
                "which cannot be: refused"
            )
        self._stream: BinaryIO = archive.open(info)  # type: ignore[assignment]
        try:
            self.shape, self._fortran, self.dtype = _header(self._stream, self.label)
            size = math.prod(self.shape) * self.dtype.itemsize
            if size != (there := info.file_size - self._stream.tell()):
                raise Unreadable(f"{self.label}: claims {in_words(size)} of numbers and has {in_words(there)}: refused")
        except BaseException:
            self.close()
            raise
        self._whole: Array | None = None
        self._row = 0

    def read(self, count: int | None = None) -> Array:
        """The next `count` rows, or all that are left."""
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
        fits(self._file, f"{self.name!r}", size)
        array = np.empty(shape, self.dtype)
        view = memoryview(array.reshape(-1).view(np.uint8)) if size else memoryview(b"")  # type: ignore[arg-type]
        done = 0
        while done < size:
            got = self._stream.readinto(view[done : done + (1 << 24)])  # type: ignore[attr-defined]
            if not got:
                raise Unreadable(f"{self.label}: ends early; the file is cut short or damaged")
            done += got
        return array

    def finish(self) -> None:
        """Past the last row, where the checksum of the archive is compared."""
        if self._stream.read(1):
            raise Unreadable(f"{self.label}: is longer than its header says")

    def close(self) -> None:
        """Nothing more is read; the archive stays open as long as one of its members is."""
        self._stream.close()


def read_npz(file: File, options: Options) -> Iterator[Piece]:
    """`points` and `offsets`: many sets. `points` alone: one set. Otherwise each 2-D array is a set."""
    with reading(file, "archive of NumPy arrays"):
        archive = zipfile.ZipFile(file.path)
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for info in archive.infolist():
            _check_name(file, info.filename)
        if len(infos) < len(archive.infolist()):
            raise Unreadable(f"{file}: two members have the same name")
        if "points" in infos and "offsets" in infos:
            members = {name: Member(file, archive, info) for name, info in infos.items()}
            return _many(file, options, archive, members)
        if options.id_column is not None:
            raise Unreadable(f"{file}: no 'points' with 'offsets' in it, so id_column={options.id_column!r} is unused")
        if "points" in infos:
            return _single(file, options, archive, infos)
        if isinstance(options.weights, str):
            raise Unreadable(f"{file}: no 'points' in it that could have the weights {options.weights!r}")
        return _each(file, archive, infos)


def _check_name(file: File, name: str) -> None:
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
        raise Unreadable(f"{file}: the member {name!r:.100} climbs out of the archive: refused")
    if not name.endswith(".npy"):
        raise Unreadable(f"{file}: the member {name!r:.100} is not an array: not an archive that NumPy wrote")


def _many(file: File, options: Options, archive: zipfile.ZipFile, members: dict[str, Member]) -> Iterator[Piece]:
    """Sets joined in `points`, cut at `offsets`."""
    with reading(file, "archive of NumPy arrays"), archive:
        points = members["points"]
        if len(points.shape) != 2:
            raise Unreadable(f"{file}: 'points' has the shape {points.shape}: it must be (P, d)")
        try:
            offsets = checked_offsets(members["offsets"].read(), points.shape[0])
        except ValueError as error:
            raise Unreadable(f"{file}: {error}") from None
        n = len(offsets) - 1
        flat = _weights(file, options, members, points.shape[0])
        named = options.id_column or ("names" if "names" in members else None)
        if named is not None and (named not in members or members[named].shape != (n,)):
            raise Unreadable(
                f"{file}: {named!r} is not an array of {n} ids, one for each set; there are {_shapes(members)}"
            )
        ids = (
            [f"{file.stem}/{i}" for i in range(n)]
            if named is None
            else whole_ids(file, repr(named), members[named].read().tolist())
        )
        columns: dict[str, list[Any]] = {}
        classes = members["classes"].read().tolist() if "classes" in members else None
        for name, member in members.items():
            if name in ("points", "offsets", "classes", named) or member is flat or member.shape != (n,):
                continue
            values = member.read().tolist()
            if name == "labels":
                name, values = "label", _class_names(file, values, classes)
            columns[name] = values
        sizes = np.diff(offsets)
        for sets in batches_by_points(sizes, options.limit(points.shape[1])):
            count = int(offsets[sets.stop] - offsets[sets.start])
            part = points.read(count)
            weights = None if flat is None else flat.read(count)
            metadata = rows(file, {name: values[sets] for name, values in columns.items()}, len(ids[sets]))
            yield Piece(file, part, sizes[sets], weights, ids[sets], metadata)
        points.finish()


def _class_names(file: File, labels: list[Any], classes: list[Any] | None) -> list[Any]:
    """The names of labels; a label below zero is none."""
    if classes is None:
        return labels
    if any(not isinstance(x, int) or x >= len(classes) for x in labels):
        raise Unreadable(f"{file}: 'labels' must be whole numbers below {len(classes)}, the number of 'classes'")
    return [classes[x] if x >= 0 else None for x in labels]


def _weights(file: File, options: Options, members: dict[str, Member], total: int) -> Member | None:
    if options.weights is False:
        return None
    name = options.weights or "weights"
    if name in members and members[str(name)].shape == (total,):
        return members[str(name)]
    if options.weights or name in members:
        raise Unreadable(
            f"{file}: {name!r} is not an array of {total} weights, one for each point; there are {_shapes(members)}"
        )
    return None


def _shapes(members: dict[str, Member]) -> str:
    return ", ".join(f"{name} {member.shape}" for name, member in members.items())[:300]


def _single(file: File, options: Options, archive: zipfile.ZipFile, infos: dict[str, Any]) -> Iterator[Piece]:
    """One cloud in `points`; other arrays are left, but for single values, which are metadata."""
    with reading(file, "archive of NumPy arrays"), archive:
        members = {name: Member(file, archive, info) for name, info in infos.items()}
        points = members["points"]
        if len(points.shape) != 2:
            raise Unreadable(
                f"{file}: 'points' has the shape {points.shape}, and there is no 'offsets': it must be (N, d)"
            )
        flat = _weights(file, options, members, points.shape[0])
        values = {name: [member.read().item()] for name, member in members.items() if member.shape == ()}
        array, weights = points.read(), None if flat is None else flat.read()
        points.finish()
        yield Piece(file, array, np.array([len(array)]), weights, [file.name], rows(file, values, 1))


def _each(file: File, archive: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> Iterator[Piece]:
    """Each 2-D array is a set, its name the id; NumPy's own arr_0, arr_1, ... are no names."""
    with reading(file, "archive of NumPy arrays"), archive:
        numbered = all(re.fullmatch(r"arr_\d+", name) for name in infos)
        for name, info in infos.items():
            member = Member(file, archive, info)
            if len(member.shape) != 2:
                raise Unreadable(
                    f"{member.label}: of shape {member.shape}: an archive has 'points' and 'offsets', or 2-D arrays, "
                    "each one set"
                )
            array = member.read()
            member.finish()
            one = f"{file.stem}/{name.removeprefix('arr_')}" if numbered else name
            yield Piece(file, array, np.array([len(array)]), None, [one], rows(file, {}, 1))
