"""Sets and vectors as bytes of PostgreSQL, and back: what COPY takes, what a vector is rounded to, checksums."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.sets import Sets
from ...errors import DamagedError
from .connections import Half, HalfArray

LARGEST_HALF = 65504.0
ROOM = 8
"""The largest number of the first vectors is stored as two to the power of this: later ones may be larger."""
BLOCK_NUMBERS = 1 << 20
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
COPY_END = b"\xff\xff"
NULL = struct.pack(">i", -1)
INT8, FLOAT8, LENGTH, COUNT = struct.Struct(">iq"), struct.Struct(">id"), struct.Struct(">i"), struct.Struct(">h")

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def largest_of(numbers: Float32) -> float:
    return float(np.abs(numbers).max(initial=0.0))


def scale_of(largest: float) -> float:
    """Return the power of two that vectors are multiplied by before they are stored in half precision."""
    return 1.0 if not largest else 2.0 ** int(np.clip(ROOM - np.ceil(np.log2(largest)), -110, 110))


def halves_of(numbers: Float32, scale: float) -> tuple[NDArray[Any], Float64]:
    """Return vectors in half precision, as they are stored, and how far from them that is, in their own unit."""
    halves, moved = np.empty(numbers.shape, ">f2"), np.empty(len(numbers))
    step = max(1, BLOCK_NUMBERS // numbers.shape[1])
    for first in range(0, len(numbers), step):
        rows = slice(first, first + step)
        scaled = numbers[rows] * np.float32(scale)
        near = np.clip(scaled, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
        apart = scaled.astype(np.float64) - near
        halves[rows], moved[rows] = near, np.sqrt(np.einsum("ij,ij->i", apart, apart)) / scale
    return halves, moved * (1 + 1e-9)


def largest_rounding(length: int, scale: float) -> float:
    """Return how far rounding moves a vector of so many numbers at most; what moved farther was cut off."""
    return 16.0 * math.sqrt(length) / scale


def half_parameter(halves: NDArray[Any]) -> Half:
    """Return one vector as a parameter of a statement."""
    return Half(struct.pack(">hh", len(halves), 0) + halves.tobytes())


def half_array(halves: NDArray[Any], oid: int) -> HalfArray:
    """Return vectors as one parameter; `oid` is the number of the type halfvec."""
    start = struct.pack(">ihh", 4 + halves.shape[1] * 2, halves.shape[1], 0)
    head = struct.pack(">iiIii", 1, 0, oid, len(halves), 1)
    return HalfArray(head + b"".join(start + each.tobytes() for each in halves))


def checksum_of(points: bytes, weights: bytes | None) -> int:
    return zlib.crc32(weights or b"", zlib.crc32(points))


class Rows:
    """Rows for COPY in binary: columns come in, and bytes go out."""

    def __init__(self, n: int) -> None:
        self._n, self._columns = n, list[Sequence[bytes]]()

    def int8(self, numbers: Iterable[int]) -> Rows:
        self._columns.append([INT8.pack(8, number) for number in numbers])
        return self

    def int4(self, numbers: Iterable[int]) -> Rows:
        self._columns.append([struct.pack(">ii", 4, number) for number in numbers])
        return self

    def float8(self, numbers: Iterable[float]) -> Rows:
        self._columns.append([FLOAT8.pack(8, number) for number in numbers])
        return self

    def bytea(self, parts: Iterable[bytes | None], before: bytes = b"") -> Rows:
        """Add bytes, each with the same bytes before it."""
        more = len(before)
        self._columns.append(
            [NULL if part is None else LENGTH.pack(len(part) + more) + before + part for part in parts]
        )
        return self

    def text(self, texts: Iterable[str]) -> Rows:
        return self.bytea(text.encode() for text in texts)

    def jsonb(self, texts: Iterable[str]) -> Rows:
        return self.bytea((text.encode() for text in texts), b"\1")

    def vectors(self, halves: NDArray[Any]) -> Rows:
        return self.bytea(split_rows(halves), struct.pack(">hh", halves.shape[1], 0))

    def chunks(self, n: int = 256) -> Iterator[bytes]:
        """Yield the rows in pieces, without what comes before and after them."""
        count = COUNT.pack(len(self._columns))
        lines = zip(*self._columns, strict=True)
        block: list[bytes] = []
        for line in lines:
            block.append(count)
            block += line
            if len(block) > n * (len(line) + 1):
                yield b"".join(block)
                block = []
        yield b"".join(block)


def _view_of(array: Any) -> memoryview:
    return memoryview(array.view(np.uint8).reshape(-1)) if array.size else memoryview(b"")


def split_rows(array: NDArray[Any]) -> list[bytes]:
    """Return the bytes of each row of an array."""
    content, width = _view_of(np.ascontiguousarray(array)), array[:1].nbytes
    return [bytes(content[i : i + width]) for i in range(0, width * len(array), width)] if width else [b""] * len(array)


def split_sets(sets: Sets) -> tuple[list[bytes], list[bytes | None]]:
    """Return points and weights of each set as bytes."""
    points = np.ascontiguousarray(sets.points, "<f4")
    ends, row = (sets.offsets * points[:1].nbytes).tolist(), _view_of(points)
    parts = [bytes(row[a:b]) for a, b in pairwise(ends)]
    if sets.weights is None:
        return parts, [None] * len(parts)
    weights = _view_of(np.ascontiguousarray(sets.weights, "<f4"))
    ends = (sets.offsets * 4).tolist()
    return parts, [bytes(weights[a:b]) for a, b in pairwise(ends)]


def joined_sets(points: list[bytes], weights: list[bytes | None], dim: int, weighted: bool, origin: Any) -> Sets:
    """Return sets of what `split_sets` made; those without weights count each element the same."""
    together = np.frombuffer(b"".join(points), "<f4").astype(np.float32).reshape(-1, dim)
    sizes = np.array([len(part) // (4 * dim) for part in points], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    of_all = None
    if weighted:
        ones = [np.ones(size, "<f4").tobytes() if w is None else w for w, size in zip(weights, sizes, strict=True)]
        of_all = np.frombuffer(b"".join(ones), "<f4").astype(np.float32)
    return Sets.from_checked(together, offsets, of_all, origin)


def rows_of(parts: Sequence[bytes], dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return rows that `split_rows` took apart."""
    width = np.dtype(dtype).itemsize * math.prod(shape)
    if any(length != width for length in set(map(len, parts))):
        problem = f"a stored vector does not have the {width} bytes that it should have"
        raise DamagedError(
            problem, "call index.verify() to see which, and restore it from a copy, or call index.compact()"
        )
    return np.frombuffer(b"".join(parts), dtype).reshape(-1, *shape)
