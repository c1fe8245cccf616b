"""LAS and LAZ, the point clouds of laser scanners, by laspy: coordinates in float64, read in chunks.

The counts in the header are compared with the file before laspy sees it. Coordinates lie far from zero: give `origin`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from ..data.convert import columns_to_points
from .files import File, Options, Piece, check_memory

POINTS_AT_ONCE = 1 << 20
"""Points unpacked in one go."""


def read_las(file: File, options: Options) -> Iterator[Piece]:
    """Read one set: x y z, or the dimensions of `columns`, e.g. ["x", "y", "z", "intensity"]."""
    _check_header(file)
    return _piece(file, options.columns or ["x", "y", "z"])


def _check_header(file: File) -> None:
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
    check_memory(file, f"the header, of {count} points,", count * step)
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


def _piece(file: File, names: list[str]) -> Iterator[Piece]:
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
