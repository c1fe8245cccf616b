"""Point clouds: LAS and LAZ of laser scanners, by laspy, and PCD of the Point Cloud Library, read here.

What a header claims is compared with the file before memory is taken. The coordinates of LAS are float64 and lie far
from zero: give `origin`. Points of PCD with NaN among the chosen fields are left out: that is how the format says that
a pixel of a depth camera saw nothing.

Why PCD is not left to pypcd4 (tried with 1.5.1, beside the files of the tests): it reads binary and ascii files that
are cut short as if they were whole, takes 12 GB for a compressed file of 4 kB that claims 10^9 points, and 0.9 GB for
one that claims 3,000,000 values in a field. It refuses files without COUNT or POINTS, of version 0.6, and ascii files
with tabs, two spaces or a space at the end of a line, and fails on an ascii file of one point. So the header and its
checks would have to stay here, and for the values it brings pydantic and a compiled LZF.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.convert import columns_to_points
from ..data.text import format_bytes
from ..native.arrays import Array
from .files import File, Options, Piece

POINTS_AT_ONCE = 1 << 20
"""Points of LAS unpacked in one go."""
_KEYS = ("VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")
MAX_HEADER_LINE = 1 << 16
MAX_LZF_RATIO = 264 // 3 + 1  # three bytes stand for 264 at most


# ---- LAS and LAZ


def read_las(file: File, options: Options) -> Iterator[Piece]:
    """Read one set: x y z, or the dimensions of `columns`, e.g. ["x", "y", "z", "intensity"]."""
    _check_las_header(file)
    return _las_piece(file, options.columns or ["x", "y", "z"])


def _check_las_header(file: File) -> None:
    """Refuse counts that the file cannot hold: laspy would take memory, or time, for them."""
    with open(file.path, "rb") as stream:
        head = stream.read(375)
    if len(head) < 227 or head[:4] != b"LASF":
        raise file.error("not a LAS cloud: it does not start with its header")
    minor = head[25]
    start, records, form, step, count = struct.unpack_from("<IIBHI", head, 96)
    extra = 0
    if minor >= 4:
        if len(head) < 375:
            raise file.error("ends in its header: it is cut short")
        extra, count_14 = struct.unpack_from("<IQ", head, 243)
        count = count_14 or count
    packed = bool(form & 0x80)
    size = file.size
    if start > size or records * 54 > size or extra * 60 > size or step < 20:
        raise file.error("its header claims more than the file has: it is cut short or damaged")
    if not packed and start + count * step > size:
        raise file.error(f"the header claims {count} points, the file ends before: it is cut short or damaged")
    file.check_memory(f"the header, of {count} points,", count * step)
    if packed:
        _check_chunks(file, start, count)


def _check_chunks(file: File, start: int, count: int) -> None:
    """Refuse a table of chunks that the file cannot hold: the library that unpacks them would end the process."""
    size = file.size
    with open(file.path, "rb") as stream:
        stream.seek(start)
        (table,) = struct.unpack("<q", stream.read(8))
        if table == -1:  # written at the end, by a program that could not go back
            stream.seek(size - 8)
            (table,) = struct.unpack("<q", stream.read(8))
        if not start + 8 <= table <= size - 8:
            raise file.error("its table of chunks is not in the file: it is cut short or damaged")
        stream.seek(table)
        _, chunks = struct.unpack("<II", stream.read(8))
    if chunks > count or chunks > table - start:
        raise file.error(f"claims {chunks} chunks for {count} points: it is damaged")


def _las_piece(file: File, names: list[str]) -> Iterator[Piece]:
    import laspy

    with laspy.open(str(file.path), laz_backend=laspy.LazBackend.Lazrs) as las:
        known = ["x", "y", "z", *las.header.point_format.dimension_names]
        file.check_names("dimension", names, known, argument="columns")
        chunks = las.chunk_iterator(POINTS_AT_ONCE)
        parts = [columns_to_points([np.asarray(chunk[name], np.float64) for name in names]) for chunk in chunks]
        points = np.concatenate([np.empty((0, len(names))), *parts])
        if len(points) != las.header.point_count:
            what = f"the header claims {las.header.point_count} points, there are {len(points)}"
            raise file.error(f"{what}: it is cut short")
    yield Piece.one(file, points)


# ---- PCD


def read_pcd(file: File, options: Options) -> Iterator[Piece]:
    """Read one set: the fields x y z, or those of `columns`."""
    with open(file.path, "rb") as stream:
        header = _pcd_header(file, stream)
    wanted = options.columns or ["x", "y", "z"]
    file.check_names("field", wanted, header.names, argument="columns")
    return _pcd_piece(file, header, wanted)


def _pcd_piece(file: File, header: _Header, wanted: list[str]) -> Iterator[Piece]:
    with open(file.path, "rb") as stream:
        stream.seek(header.start)
        fields = _ascii(file, stream, header) if header.data == "ascii" else _binary(file, stream, header)
    points = columns_to_points([fields[name] for name in wanted])
    if points.dtype.kind == "f":
        points = points[~np.isnan(points).any(axis=1)]
    yield Piece.one(file, points)


class _Header(NamedTuple):
    names: list[str]
    dtypes: list[np.dtype[Any]]
    counts: list[int]
    points: int
    data: str
    start: int

    @property
    def step(self) -> int:
        """Bytes of one point."""
        return sum(d.itemsize * count for d, count in zip(self.dtypes, self.counts, strict=True))


def _pcd_header(file: File, stream: Any) -> _Header:
    found: dict[str, list[str]] = {}
    while "DATA" not in found:
        line = stream.readline(MAX_HEADER_LINE)
        if not line.endswith(b"\n"):
            raise file.error("not a PCD cloud: no line DATA in its header")
        words = line.decode("ascii").split()
        if not words or words[0].startswith("#"):
            continue
        key = words[0].upper()
        if key not in _KEYS or key in found:
            raise file.error(f"not a PCD cloud: its header has the line {line[:60]!r}")
        found[key] = words[1:]
    if missing := [key for key in ("FIELDS", "SIZE", "TYPE", "WIDTH") if not found.get(key)]:
        raise file.error(f"not a PCD cloud: its header has no {missing[0]}")
    names, sizes, types = found["FIELDS"], [int(x) for x in found["SIZE"]], found["TYPE"]
    counts = [int(x) for x in found.get("COUNT") or ["1"] * len(names)]
    kinds = [f"<{kind.lower()}{size}" for kind, size in zip(types, sizes, strict=True)]
    if not len(names) == len(kinds) == len(counts) or min(counts) < 1 or max(counts) > file.size:
        raise file.error("FIELDS, SIZE, TYPE and COUNT of the header do not agree")
    if bad := [kind for kind in kinds if kind[1:] not in ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]:
        raise file.error(f"fields of type {bad[0][1:]} are not known")
    points = int(found["WIDTH"][0]) * int((found.get("HEIGHT") or ["1"])[0])
    if found.get("POINTS") and int(found["POINTS"][0]) != points:
        raise file.error(f"POINTS is {found['POINTS'][0]}, WIDTH times HEIGHT is {points}")
    data = (found["DATA"] or [""])[0]
    if data not in ("ascii", "binary", "binary_compressed"):
        raise file.error(f"DATA {data!r:.60} is not known: it must be ascii, binary or binary_compressed")
    header = _Header(names, [np.dtype(kind) for kind in kinds], counts, points, data, stream.tell())
    there = file.size - header.start
    least = {"ascii": 2 * sum(counts), "binary": header.step, "binary_compressed": header.step / MAX_LZF_RATIO}[data]
    if points < 0 or points * least > there + 1:
        claims = f"the header claims {points} points, and {format_bytes(there)} are there"
        raise file.error(f"{claims}: it is cut short or damaged")
    return header


def _ascii(file: File, stream: Any, header: _Header) -> dict[str, Array]:
    wide = any(dtype.kind != "f" and dtype.itemsize == 8 for dtype in header.dtypes)
    width = sum(header.counts)
    file.check_memory("the header", header.points * width * 8)
    dtype = np.longdouble if wide else np.float64
    table = np.empty((0, width))
    if header.points:
        table = np.loadtxt(stream, dtype, comments=None, ndmin=2, max_rows=header.points + 1)
    if table.shape != (header.points, width):
        raise file.error(f"{header.points} lines of {width} numbers were to come, there are {table.shape}")
    fields, column = {}, 0
    for name, kind, count in zip(header.names, header.dtypes, header.counts, strict=True):
        if count == 1:
            fields[name] = table[:, column].astype(kind)
        column += count
    return fields


def _binary(file: File, stream: Any, header: _Header) -> dict[str, Array]:
    size = header.points * header.step
    if header.data == "binary":
        data = stream.read(size)
    else:
        packed, unpacked = struct.unpack("<II", stream.read(8))
        if unpacked != size or packed > file.size or size > packed * MAX_LZF_RATIO:
            claims = f"claims {format_bytes(unpacked)} in {format_bytes(packed)}"
            raise file.error(f"{claims}, its points need {format_bytes(size)}: refused")
        file.check_memory("the header", size)
        data = unpack_lzf(stream.read(packed), size)
    if len(data) != size:
        found = f"{format_bytes(size)} were to come, there are {format_bytes(len(data))}"
        raise file.error(f"{found}: it is cut short")
    fields, start = {}, 0
    for name, dtype, count in zip(header.names, header.dtypes, header.counts, strict=True):
        if count == 1 and header.data == "binary":
            fields[name] = np.ndarray((header.points,), dtype, data, start, (header.step,))
        elif count == 1:  # field after field
            fields[name] = np.frombuffer(data, dtype, header.points, start * header.points)
        start += dtype.itemsize * count
    return fields


def unpack_lzf(data: bytes, size: int) -> bytes:
    """Unpack LZF: a control byte below 32 is a run of bytes, another says how far back and how long to copy."""
    out, at, end = bytearray(), 0, len(data)
    while at < end and len(out) <= size:
        control = data[at]
        at += 1
        if control < 32:
            out += data[at : at + control + 1]
            at += control + 1
            continue
        length, back = (control >> 5) + 2, (control & 31) << 8
        if length == 9:
            length += data[at]
            at += 1
        back += data[at] + 1
        at += 1
        start = len(out) - back
        if start < 0:
            raise ValueError("a copy from before the start of the packed data")
        if back >= length:
            out += out[start : start + length]
        else:  # overlaps what it writes: a pattern that repeats
            out += (out[start:] * (length // back + 1))[:length]
    return bytes(out)
