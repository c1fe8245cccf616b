"""The inner loops of the searches: compiled if the kernel was built, NumPy otherwise (see `slosh.native.kernel`).

Inputs are float32 queries (n_queries, D) and stored vectors by position, outputs squared distances in float64 and
positions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import checkpoint, pieces
from . import kernel, scan_numpy
from .arrays import Array, Float32, Float64, Int32, Int64, Mask, UInt8, Words

BLOCK_ROWS, CODE_RANGE = 16, 127
"""Rows of eight bits lie side by side in blocks of 16; their codes are 128 and up to so much more or less."""
GROUP, CODES_PER_MASK = 32, 8
"""Codes lie side by side in groups of 32; a mask of the native scan is a byte for eight of them."""
SORTED_AT_ONCE = 1 << 18
"""Distances that are sorted in one go."""
TILE_QUERIES = 16
"""Queries that a thread compares with the same codes, while these are in the cache."""


def squares(
    queries: Float32, vectors: Array, scale: Float32 | None, offsets: Int64, positions: Int64, n_jobs: int | None
) -> Float64:
    """Return |query - vector|^2 of query i and each of its positions[offsets[i]:offsets[i + 1]], in float64.

    `vectors` are float32 (n, D), or int16 with a scale for each. The bits depend on the two vectors only.
    """
    if kernel.native is None:
        which = np.repeat(np.arange(len(queries)), np.diff(offsets))
        return scan_numpy.squares(queries, vectors, scale, which, positions)
    out, threads = np.empty(len(positions)), kernel.threads(n_jobs)
    offsets, positions = (np.ascontiguousarray(array, np.int64) for array in (offsets, positions))
    given = *_floats_or_shorts(vectors, scale), scale
    for part in pieces(len(queries), len(positions) / max(1, len(queries)) * vectors.shape[1], threads):
        at = slice(offsets[part.start], offsets[part.stop])
        starts = offsets[part.start : part.stop + 1] - offsets[part.start]
        kernel.native.squares(queries[part], *given, starts, positions[at], out[at], threads)
    return out


def best(exact: Float64, positions: Int64, offsets: Int64, rows: Int64, k: int) -> tuple[Float64, Int64]:
    """Return the k smallest of each query, by distance, then row: (n_queries, k), padded with inf and -1."""
    n = len(offsets) - 1
    which = np.repeat(np.arange(n), np.diff(offsets))
    order = np.lexsort((rows[positions], exact, which))
    place = np.arange(len(order)) - offsets[which[order]]
    take = order[place < k]
    out, found = np.full((n, k), np.inf), np.full((n, k), -1, np.int64)
    at = which[take], place[place < k]
    out[at], found[at] = exact[take], positions[take]
    return out, found


def within(
    exact: Float64, positions: Int64, offsets: Int64, rows: Int64, radii: Float64
) -> tuple[Int64, Float64, Int64]:
    """Return those within a radius (n_queries,), by query, distance, then row: offsets, squares, positions."""
    n = len(offsets) - 1
    if n > 1 and len(exact) > SORTED_AT_ONCE:
        found = []
        for part in pieces(n, len(exact) / n, most_steps=SORTED_AT_ONCE):
            at, starts = slice(offsets[part.start], offsets[part.stop]), offsets[part.start : part.stop + 1]
            few = within(exact[at], positions[at], starts - starts[0], rows, radii[part])
            found.append((np.diff(few[0]), *few[1:]))
        counts, *rest = (np.concatenate(each) for each in zip(*found, strict=True))
        return np.concatenate([[0], np.cumsum(counts)]), rest[0], rest[1]
    which = np.repeat(np.arange(n), np.diff(offsets))
    near = np.flatnonzero(np.sqrt(exact) <= radii[which])
    order = near[np.lexsort((rows[positions[near]], exact[near], which[near]))]
    return np.searchsorted(which[order], np.arange(n + 1)).astype(np.int64), exact[order], positions[order]


def largest_within(
    queries: Float32,
    vectors: Array,
    scale: Float32 | None,
    mask: Mask | None,
    rows: Int64,
    radii: Float64,
    n_jobs: int | None,
) -> tuple[Int64, Float64, Int64]:
    """Return the vectors whose largest difference to query i, max |query - vector|, is at most radii[i].

    `vectors` are as in `squares`; `mask` (n,) says which may be found, None: all. By query, difference, then row:
    offsets, differences, positions.
    """
    positions = None if mask is None else np.flatnonzero(mask)
    if kernel.native is None:
        which, largest, found = scan_numpy.largest_within(queries, vectors, scale, positions, radii)
    else:
        given, threads = (*_floats_or_shorts(vectors, scale), scale, positions), kernel.threads(n_jobs)
        parts = [(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))]
        for part in pieces(len(queries), vectors.size, threads):
            which, *rest = kernel.native.largest_within(queries[part], *given, radii[part], threads)
            parts.append((which + part.start, *rest))
        which, largest, found = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((rows[found], largest, which))
    offsets = np.searchsorted(which[order], np.arange(len(queries) + 1)).astype(np.int64)
    return offsets, largest[order], found[order]


def prefixes(
    vectors: Array, scale: Float32 | None, middle: Float64, directions: Float64 | None, n_jobs: int | None
) -> tuple[Float32, Float64]:
    """Return the prefixes of vectors (n, D) in float32, and the norms of the vectors less the middle, (n,).

    A prefix is the coordinates of the vector, less the middle, along p orthonormal directions, and the norm of the
    rest, (n, p + 1). Without directions it is the vector, less the middle, (n, D). The middle and the directions are
    padded with zeros to a multiple of eight numbers.
    """
    n, dim = vectors.shape
    out, norms = np.empty((n, dim if directions is None else len(directions) + 1), np.float32), np.empty(n)
    if kernel.native is None:
        cut = None if directions is None else directions[:, :dim]
        scan_numpy.prefixes(vectors, scale, middle[:dim], cut, out, norms)
        return out, norms
    threads = kernel.threads(n_jobs)
    for part in pieces(n, out.shape[1] * dim) if n > 1 else (slice(0, 1),):
        factors = None if scale is None else scale[part]
        given = *_floats_or_shorts(vectors[part], factors), factors, middle, directions, dim
        kernel.native.prefixes(*given, out[part], norms[part], threads)
    return out, norms


def code_shape(numbers: int) -> tuple[int, int, int]:
    """Return the shape of a block of rows of so many numbers: four numbers of each of its rows come together."""
    return -(-numbers // 4), BLOCK_ROWS, 4


def early_numbers(numbers: int) -> int:
    """Return how many of the first numbers of a row are summed first: by them alone most rows are seen to be too far.

    A multiple of four; all of them, filled up, where a row is short.
    """
    width = 4 * code_shape(numbers)[0]
    return width if width < 24 else 3 * width // 32 * 4


def code_rows(rows: Float32, centres: Float32, steps: Float32, which: Array) -> tuple[UInt8, Float32, Float32]:
    """Return rows (n, p) about their centres in eight bits.

    They are centre + step * (code - 128), each number of a row having a code from 0 to 255: the codes, (n, width / 4,
    4), step * (code - 128), (n, p), and how far that is from row - centre, rounded up. Numbers that fill up the last
    four have the code 128.
    """
    n, numbers = rows.shape
    away = rows - centres[which]
    unit = steps[which][:, None]
    with np.errstate(over="ignore"):  # the step of a list of copies is tiny
        whole = np.clip(np.rint(away / unit), -CODE_RANGE - 1, CODE_RANGE)
    codes = np.full((n, 4 * code_shape(numbers)[0]), 128, np.uint8)
    np.add(whole, 128, out=codes[:, :numbers], casting="unsafe")
    whole *= unit
    away -= whole
    off = np.sqrt(np.einsum("ij,ij->i", away, away, dtype=np.float64)) * (1 + 1e-5)
    off = np.nextafter(off.astype(np.float32), np.float32(np.inf))
    return codes.reshape(n, codes.shape[1] // 4, 4), whole, off


def biases_of(coded: Float32, centres: Float32, which: Array, middle: Float32) -> Float32:
    """Return |x|^2 + 2 <centre - middle, x> of each row x (n, p), which is about its centre: see codes8.h."""
    squares = np.einsum("ij,ij->i", coded, coded, dtype=np.float64)
    twice = 2 * np.einsum("ij,ij->i", coded, (centres - middle)[which], dtype=np.float64)
    with np.errstate(over="ignore"):  # the kernel compares rows whose squares float32 cannot hold
        return np.asarray(squares + twice, np.float32)


def rests_of(coded: Float32) -> Float32:
    """Return the norms of rows without their early numbers, rounded up."""
    rest = coded[:, early_numbers(coded.shape[1]) :]
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rest, rest, dtype=np.float64)) * (1 + 1e-5), np.float32)


class Heads:
    """The centres (n, p) of lists, and the same as rows of eight bits, by which the kernel looks for the near ones.

    The middle is that of the first `n_first` (None: all), so that lists founded far away do not move it. Each block of
    sixteen has a step of its own.
    """

    def __init__(self, centres: Float32, n_first: int | None = None) -> None:
        self.centres = centres
        self.middle = centres[:n_first].mean(axis=0, dtype=np.float64).astype(np.float32)
        n, about = len(centres), np.arange(len(centres)) // BLOCK_ROWS
        n_blocks = -(-n // BLOCK_ROWS)
        largest = np.zeros(n_blocks, np.float32)
        np.maximum.at(largest, about, np.abs(centres - self.middle).max(axis=1))
        self.steps = np.maximum(largest / np.float32(CODE_RANGE), np.float32(1e-30))
        middles = np.broadcast_to(self.middle, (n_blocks, len(self.middle)))
        codes, coded, off = code_rows(centres, middles, self.steps, about)
        squares = np.einsum("ij,ij->i", coded, coded, dtype=np.float64)
        self.codes = np.zeros((n_blocks * BLOCK_ROWS, *codes.shape[1:]), np.uint8)
        self.codes[:n] = codes
        self.codes = np.ascontiguousarray(self.codes.reshape(n_blocks, BLOCK_ROWS, -1, 4).transpose(0, 2, 1, 3))
        self.squares = np.full((n_blocks, BLOCK_ROWS), np.inf, np.float32)  # where there is none, nothing is near
        with np.errstate(over="ignore"):  # the kernel looks at lists whose squares float32 cannot hold
            self.squares.reshape(-1)[:n] = squares
        self.errors, self.farthest = np.zeros(n_blocks, np.float32), float(np.sqrt(squares.max()) * (1 + 1e-5))
        np.maximum.at(self.errors, about, off)

    @cached_property
    def native(self) -> Any:
        """The same for the compiled kernel."""
        middle = padded(self.middle[None])[0]
        about = self.steps, self.errors, self.farthest
        return kernel.native.Heads(padded(self.centres), self.codes, self.squares, middle, *about)

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        return int(self.codes.nbytes + self.squares.nbytes + 4 * len(self.centres) * _stride(self.centres.shape[1]))


def _stride(numbers: int) -> int:
    return -(-numbers // BLOCK_ROWS) * BLOCK_ROWS


def padded(rows: Float32) -> Float32:
    """Return rows filled up with zeros to a multiple of sixteen numbers."""
    n, numbers = rows.shape
    if numbers % BLOCK_ROWS == 0:
        return np.ascontiguousarray(rows)
    full = np.zeros((n, _stride(numbers)), np.float32)
    full[:, :numbers] = rows
    return full


def nearest_lists(heads: Heads, rows: Float32, n_jobs: int | None) -> tuple[Int64, Float32]:
    """Return for each row (n, p) the centre that is nearest, the first of several, and its squared distance."""
    if kernel.native is None:
        return scan_numpy.nearest_lists(heads.centres, rows)
    which, squares = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    threads = kernel.threads(n_jobs)
    for part in pieces(len(rows), heads.centres.size):
        kernel.native.nearest_lists(heads.native, padded(rows[part]), which[part], squares[part], threads)
    return which, squares


class Marks:
    """Which vectors the native kernel has read, in groups of 2^shift: they are checked before its answer is used.

    The kernel notes what it reads instead of asking whether it may, so that nothing waits in its loops. A call that has
    read vectors of groups that were not checked says so, and whoever made it calls `check`.
    """

    READ, CHECKED = 1, 2

    def __init__(self, n: int, shift: int, check_rows: Callable[[Int64, Int64], None]) -> None:
        """Of n vectors; `check_rows` checks those from first[i] up to last[i], and raises what it finds wrong."""
        self._n, self.shift, self._check_rows = n, shift, check_rows
        self.of_groups: UInt8 = np.zeros(((n - 1) >> shift) + 1, np.uint8)
        self._lock = threading.Lock()

    def check(self) -> None:
        """Check the groups that were read, by this thread or another, and not checked yet."""
        with self._lock:
            groups = np.flatnonzero(self.of_groups == self.READ)
            self._check_rows(groups << self.shift, np.minimum((groups + 1) << self.shift, self._n))
            self.of_groups[groups] = self.CHECKED


@dataclass(eq=False)
class Ladder:
    """Stored vectors, their prefixes in lists, and the basis of these (see search/lists.py and search/basis.py).

    rounding : rounding moves a prefix by at most this part of its vector's norm about the middle.
    farthest : the largest of these norms.
    marks : where the kernel notes which vectors it reads; None: they need no check.
    """

    vectors: Array
    scale: Float32 | None
    middle: Float64
    directions: Float64 | None
    rounding: float
    farthest: float
    heads: Heads
    codes: UInt8
    biases: Float32
    rests: Float32
    slots: Int32
    masks: NDArray[np.uint16]
    steps: Float32
    errors: Float32
    radii: Float32
    start: Int64
    order: Int64
    marks: Marks | None = None

    @cached_property
    def native(self) -> Any:
        """The same for the compiled kernel, checked once."""
        others = ("vectors", "heads", "marks")
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in others}
        marks = self.marks
        given["marks"], given["mark_shift"] = (None, 0) if marks is None else (marks.of_groups, marks.shift)
        floats, shorts = _floats_or_shorts(self.vectors, self.scale)
        dim, early = self.vectors.shape[1], early_numbers(self.heads.centres.shape[1])
        heads = self.heads.native
        return kernel.native.LadderScan(**given, floats=floats, shorts=shorts, dim=dim, heads=heads, early=early)

    def nearest(
        self,
        queries: Float32,
        k: int,
        depth: int,
        reach: float,
        exact: bool,
        allowed: Mask | None,
        skip: Int64 | None,
        ranks: Int64 | None,
        threads: int,
    ) -> tuple[Float64, Int64, Int64, Int64]:
        """Return the k nearest: squares and positions (n_queries, k), padded with inf and -1; rows scanned and
        compared, (n_queries,).

        The kernel rounds queries as the vectors are rounded. It scans the nearest list, and every list whose centre is,
        squared, at most `reach` times the distance of the k-th row found (to the power 1.5) farther away than the
        nearest one; of the rows it compares the vectors of the `depth` nearest. If it is to be exact it then compares
        all that no bound excludes. `allowed` (n,) says which positions may be found (None: all); `skip` are positions
        that a query must not find, -1 for none; `ranks` decide between equal distances. The vectors that the native
        kernel has read are checked before it returns (see `Marks`).
        """
        n = len(queries)
        out, positions = np.empty((n, k)), np.empty((n, k), np.int64)
        scanned, compared = np.empty(n, np.int64), np.empty(n, np.int64)
        if kernel.native is not None:
            rows, dim = self.vectors.shape
            all_codes = rows * self.heads.centres.shape[1]
            steps = all_codes + max(rows / 4, depth) * dim if exact else all_codes / 4 + depth * dim
            for part in pieces(n, steps, threads) if n > 1 else (slice(0, 1),):
                found = out[part], positions[part], scanned[part], compared[part]
                own = None if skip is None else skip[part]
                if self.native.nearest(queries[part], depth, reach, exact, allowed, own, ranks, *found, threads):
                    self._check_read()
        else:
            climb = scan_numpy.Climb(self, queries, allowed)
            for i in range(n):
                checkpoint()
                one = -1 if skip is None else int(skip[i])
                out[i], positions[i], scanned[i], compared[i] = climb.nearest(i, k, depth, reach, exact, one, ranks)
        return out, positions, scanned, compared

    def _check_read(self) -> None:
        if self.marks is not None:
            self.marks.check()

    def within(
        self, queries: Float32, radii: Float64, allowed: Mask | None, threads: int
    ) -> tuple[Int64, Float64, Int64, Int64, Int64]:
        """Return all within a radius of each query: offsets, squares and positions; rows scanned and compared."""
        n = len(queries)
        scanned, compared = np.zeros(n, np.int64), np.zeros(n, np.int64)
        counts, squares, positions = [np.zeros(1, np.int64)], [], []
        if kernel.native is not None:
            for part in pieces(n, self.vectors.size + self.codes.size, threads):
                about = scanned[part], compared[part]
                *found, unchecked = self.native.within(queries[part], radii[part], allowed, *about, threads)
                if unchecked:
                    self._check_read()
                counts.append(np.diff(found[0]))
                squares.append(found[1])
                positions.append(found[2])
        else:
            climb = scan_numpy.Climb(self, queries, allowed)
            for i in range(n):
                checkpoint()
                near, at, scanned[i], compared[i] = climb.within(i, float(radii[i]), -1)
                counts.append(np.array([len(near)]))
                squares.append(near)
                positions.append(at)
        offsets = np.cumsum(np.concatenate(counts), dtype=np.int64)
        return offsets, np.concatenate(squares), np.concatenate(positions), scanned, compared


def flat(
    queries: Float32,
    vectors: Array,
    scale: Float32 | None,
    allowed: Mask | None,
    k: int,
    skip: Int64 | None,
    ranks: Int64 | None,
    n_jobs: int | None,
) -> tuple[Float64, Int64, Mask]:
    """Return the k nearest of the vectors that are allowed (None: of all), each of which is compared.

    Distances and positions, (n_queries, k), padded with inf and -1; and for each query whether another vector is as far
    as the last of the k, (n_queries,). Queries are rounded as the vectors are. The parameters are those of `squares`
    and `Ladder.nearest`.
    """
    n = len(queries)
    out, found, tied = np.empty((n, k)), np.empty((n, k), np.int64), np.empty(n, np.bool_)
    if kernel.native is None:
        scan_numpy.flat(queries, vectors, scale, allowed, skip, ranks, out, found, tied)
        return out, found, tied
    floats, shorts = _floats_or_shorts(vectors, scale)
    threads = kernel.threads(n_jobs, n)
    n_allowed = len(vectors) if allowed is None else count_true(allowed)
    for part in pieces(n, n_allowed * vectors.shape[1] / 2, TILE_QUERIES * threads) if n > 1 else (slice(0, 1),):
        own, given = None if skip is None else skip[part], (out[part], found[part], tied[part])
        kernel.native.flat(queries[part], floats, shorts, scale, allowed, own, ranks, *given, threads)
    return out, found, tied


def count_true(mask: Mask) -> int:
    """Return how many entries of a mask, which is contiguous, are true."""
    return int(np.count_nonzero(mask)) if kernel.native is None else int(kernel.native.count_true(mask))


def _floats_or_shorts(vectors: Array, scale: Float32 | None) -> tuple[Any, Any]:
    """Return the two arguments, one of them None, by which native functions take float32 or 16-bit vectors."""
    return (vectors, None) if scale is None else (None, vectors)


def nearest_codes(
    queries: Words, groups: Words, n: int, mask: Mask | None, rows: Int64 | None, k: int, n_jobs: int | None
) -> tuple[Float64, Int64]:
    """Return the k nearest codes of each query, by Hamming distance, then row: distances and positions, (n_queries, k).

    queries : (n_queries, n_words) codes as words of 64 bits.
    groups : (n_groups, n_words, 32) n codes, as `CodeStore` keeps them.
    mask : (n,) which codes may be found, or None for all. Results are padded with position -1 at the distance inf.
    rows : (n,) the row of each position, or None if rows increase with the position.
    """
    if kernel.native is None:
        return scan_numpy.nearest_codes(queries, groups, n, mask, rows, k)
    out, positions = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
    allowed, threads = _allowed(mask, n, len(groups)), kernel.threads(n_jobs)
    for part in pieces(len(queries), groups.size, TILE_QUERIES * threads):
        kernel.native.nearest_codes(queries[part], groups, *allowed, rows, out[part], positions[part], threads)
    return out, positions


def codes_within(
    queries: Words, groups: Words, n: int, mask: Mask | None, rows: Int64, limits: Int64, n_jobs: int | None
) -> tuple[Int64, Float64, Int64]:
    """Return all codes that differ from query i in at most limits[i] bits: offsets, distances and positions, sorted."""
    if kernel.native is None:
        offsets, distances, positions = scan_numpy.codes_within(queries, groups, n, mask, limits)
    else:
        allowed, threads = _allowed(mask, n, len(groups)), kernel.threads(n_jobs)
        found = [(np.zeros(1, np.int64), np.empty(0), np.empty(0, np.int64))]
        for part in pieces(len(queries), groups.size, TILE_QUERIES * threads):
            ends, *rest = kernel.native.codes_within(queries[part], groups, *allowed, limits[part], threads)
            found.append((np.diff(ends), *rest))
        counts, distances, positions = (np.concatenate(each) for each in zip(*found, strict=True))
        offsets = np.cumsum(counts)
    which = np.repeat(np.arange(len(queries)), np.diff(offsets))
    order = np.lexsort((rows[positions], distances, which))
    return offsets, distances[order], positions[order]


def _allowed(mask: Mask | None, n: int, n_groups: int) -> tuple[UInt8, Int64 | None]:
    """Return a byte of eight bits, which codes may be found, and the bytes that are not zero; None if nearly all."""
    allowed = np.zeros(n_groups * GROUP // CODES_PER_MASK, np.uint8)
    if mask is None:
        allowed[: n // CODES_PER_MASK] = 255
        if n % CODES_PER_MASK:
            allowed[n // CODES_PER_MASK] = (1 << n % CODES_PER_MASK) - 1
        return allowed, None
    bits = np.packbits(mask, bitorder="little")
    allowed[: len(bits)] = bits
    active = np.flatnonzero(allowed)
    return allowed, None if len(active) > 0.9 * len(allowed) else active
