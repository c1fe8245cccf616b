"""The inner loops of the searches: compiled if the kernel was built, NumPy otherwise (see `slosh.native.kernel`).

Inputs are float32 queries (n_queries, D) and stored vectors by position, outputs squared distances in float64 and
positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel, scan_numpy
from .arrays import Array, Float32, Float64, Int32, Int64, Mask, UInt8, Words

GROUP, CODES_PER_MASK = 32, 8
"""Codes lie side by side in groups of 32; a mask of the native scan is a byte for eight of them."""


def squares(
    queries: Float32, vectors: Array, scale: Float32 | None, offsets: Int64, positions: Int64, n_jobs: int | None
) -> Float64:
    """Return |query - vector|^2 of query i and each of its positions[offsets[i]:offsets[i + 1]], in float64.

    `vectors` are float32 (n, D), or int16 with a scale for each. The bits depend on the two vectors only.
    """
    if kernel.native is None:
        which = np.repeat(np.arange(len(queries)), np.diff(offsets))
        return scan_numpy.squares(queries, vectors, scale, which, positions)
    out = np.empty(len(positions))
    offsets, positions = (np.ascontiguousarray(array, np.int64) for array in (offsets, positions))
    kernel.native.squares(
        queries, *_floats_or_shorts(vectors, scale), scale, offsets, positions, out, kernel.threads(n_jobs)
    )
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
        which, largest, found = kernel.native.largest_within(
            queries, *_floats_or_shorts(vectors, scale), scale, positions, radii, kernel.threads(n_jobs)
        )
    order = np.lexsort((rows[found], largest, which))
    offsets = np.searchsorted(which[order], np.arange(len(queries) + 1)).astype(np.int64)
    return offsets, largest[order], found[order]


def prefixes(vectors: Array, scale: Float32 | None, filled: Float64, n_jobs: int | None) -> tuple[Float32, Float64]:
    """Return the prefixes of vectors (n, D), float32 (n, p + 1), and the norms of the vectors less the middle, (n,).

    A prefix is the coordinates of the vector, less the middle, along p orthonormal directions, and the norm of the
    rest. The rows of `filled` are the middle and the directions, padded with zeros to a multiple of eight numbers.
    """
    n, dim = vectors.shape
    out, norms = np.empty((n, len(filled)), np.float32), np.empty(n)
    if kernel.native is None:
        scan_numpy.prefixes(vectors, scale, filled[0, :dim], filled[1:, :dim], out, norms)
        return out, norms
    kernel.native.prefixes(
        *_floats_or_shorts(vectors, scale), scale, filled[0], filled[1:], dim, out, norms, kernel.threads(n_jobs)
    )
    return out, norms


@dataclass
class Ladder:
    """Queries, and the prefixes of stored vectors in blocks and lists (see search/ladder.py and search/lists.py)."""

    queries: Float32
    prefixes: Float32
    slack: Float64
    skip: Int64 | None
    vectors: Array
    scale: Float32 | None
    rows: Int64
    blocks: Float32
    slots: Int32
    masks: NDArray[np.uint16]
    centroids: Float32
    radii: Float32
    margins: Float32
    list_start: Int64
    list_blocks: Int64


def _floats_or_shorts(vectors: Array, scale: Float32 | None) -> tuple[Any, Any]:
    """Return the two arguments, one of them None, by which native functions take float32 or 16-bit vectors."""
    return (vectors, None) if scale is None else (None, vectors)


def _native_ladder(job: Ladder, threads: int, **rest: Any) -> Any:
    given = dict(vars(job))
    floats, shorts = _floats_or_shorts(given.pop("vectors"), job.scale)
    return kernel.native.ladder(**given, floats=floats, shorts=shorts, threads=threads, **rest)


def ladder(job: Ladder, k: int, depth: int, exact: bool, threads: int) -> tuple[Float64, Int64, Int64, Int64]:
    """Return the k nearest: squares and positions (n_queries, k), padded with inf and -1; rows scanned and compared."""
    n = len(job.queries)
    out, positions = np.empty((n, k)), np.empty((n, k), np.int64)
    scanned, candidates = np.zeros(n, np.int64), np.zeros(n, np.int64)
    if kernel.native is not None:
        _native_ladder(
            job, threads, stretch=scan_numpy.STRETCH, depth=depth, exact=exact, radius=None, out=out,
            out_positions=positions, scanned=scanned, candidates=candidates,
        )  # fmt: skip
    else:
        for i in range(n):
            out[i], positions[i], scanned[i], candidates[i] = scan_numpy.nearest(job, i, k, depth, exact)
    return out, positions, scanned, candidates


def ladder_within(job: Ladder, radii: Float64, threads: int) -> tuple[Int64, Float64, Int64, Int64, Int64]:
    """Return all within a radius of each query: offsets, squares and positions; rows scanned and compared."""
    n = len(job.queries)
    scanned, candidates = np.zeros(n, np.int64), np.zeros(n, np.int64)
    if kernel.native is not None:
        found = _native_ladder(
            job, threads, stretch=1.0, depth=0, exact=True, radius=radii, out=None,
            out_positions=None, scanned=scanned, candidates=candidates,
        )  # fmt: skip
        return *found, scanned, candidates
    parts = [scan_numpy.within(job, i, float(radii[i])) for i in range(n)]
    squares, positions, scanned[:], candidates[:] = zip(*parts, strict=True)
    offsets = np.cumsum([0, *map(len, squares)], dtype=np.int64)
    return offsets, np.concatenate(squares), np.concatenate(positions), scanned, candidates


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
    kernel.native.nearest_codes(
        queries, groups, *_allowed(mask, n, len(groups)), rows, out, positions, kernel.threads(n_jobs)
    )
    return out, positions


def codes_within(
    queries: Words, groups: Words, n: int, mask: Mask | None, rows: Int64, limits: Int64, n_jobs: int | None
) -> tuple[Int64, Float64, Int64]:
    """Return all codes that differ from query i in at most limits[i] bits: offsets, distances and positions, sorted."""
    if kernel.native is None:
        offsets, distances, positions = scan_numpy.codes_within(queries, groups, n, mask, limits)
    else:
        offsets, distances, positions = kernel.native.codes_within(
            queries, groups, *_allowed(mask, n, len(groups)), limits, kernel.threads(n_jobs)
        )
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
