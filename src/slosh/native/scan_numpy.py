"""The ladder and the scan of codes in NumPy: the twins of scan.h and hamming.h.

They run where there is no compiler, and the tests compare the compiled kernels with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, Float32, Float64, Int64, Mask, UInt8, Words
from .product import ExactProduct

if TYPE_CHECKING:
    from .scan import Ladder

BLOCK_PAIRS = 1 << 14
"""Pairs of codes compared at once: their words stay in the cache."""
BLOCK_QUERIES, BLOCK_CODES = 64, 1 << 14
"""Queries and codes that are compared at once."""
PREFIX_NUMBERS = 1 << 20
"""Numbers of the vectors whose prefixes are computed at once."""
DISTANCE_NUMBERS = 1 << 18
"""Numbers of the vectors that are compared with queries at once."""
ROW_BITS = 40
"""Bits of a row's rank in a sort key; the Hamming distance stands above them."""


def as_stored(vectors: Array, scale: Float32 | None, at: Any) -> Float64:
    """Return the vectors at these positions: floats, or 16-bit integers times the scale of their vector."""
    if scale is None:
        return np.asarray(vectors[at], np.float64)
    return np.asarray(vectors[at] * scale[at][:, None], np.float64)


def prefixes(
    vectors: Array, scale: Float32 | None, middle: Float64, directions: Float64 | None, out: Float32, norms: Float64
) -> None:
    """Write the coordinates along the directions and the norm of the rest into `out`, the whole norms into `norms`."""
    product = None if directions is None else ExactProduct(directions)
    step = max(1, PREFIX_NUMBERS // vectors.shape[1])
    for first in range(0, len(vectors), step):
        part = slice(first, first + step)
        centred = as_stored(vectors, scale, part)
        centred -= middle
        norms[part] = np.sqrt(np.square(centred).sum(axis=1))
        if product is None or directions is None:
            out[part] = centred
            continue
        along = product(centred)
        out[part, :-1] = along
        centred -= along @ directions  # a difference of squares would lose the digits of a small rest
        out[part, -1] = np.sqrt(np.square(centred).sum(axis=1))


def nearest_lists(centres: Float32, rows: Float32) -> tuple[Int64, Float32]:
    """Return the nearest centre of each row, and its squared distance."""
    which, squares = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    step = max(1, DISTANCE_NUMBERS // centres.size)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        with np.errstate(over="ignore"):
            table = np.square(rows[part, None] - centres[None]).sum(axis=2)
        which[part] = table.argmin(axis=1)
        squares[part] = table.min(axis=1)
    return which, squares


def nearest_of(squares: Float64, positions: Int64, ranks: Int64 | None, k: int) -> tuple[Float64, Int64]:
    """Return the k smallest, by distance, then rank: (k,) each, padded with inf and -1."""
    order = np.lexsort((positions if ranks is None else ranks[positions], squares))[:k]
    out, found = np.full(k, np.inf), np.full(k, -1, np.int64)
    out[: len(order)], found[: len(order)] = squares[order], positions[order]
    return out, found


def rounded_to_16_bits(queries: Float32) -> Float32:
    """Return queries as 16 bits would store them (see search/store.py)."""
    scale = np.maximum(np.abs(queries).max(axis=1) / np.float32(32767), np.float32(1e-37))[:, None]
    return np.asarray(np.rint(queries / scale) * scale, np.float32)


def flat(
    queries: Float32,
    vectors: Array,
    scale: Float32 | None,
    allowed: Mask | None,
    skip: Int64 | None,
    ranks: Int64 | None,
    out: Float64,
    found: Int64,
    tied: Mask,
) -> None:
    """Write what `scan.flat` returns."""
    at, k = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed), out.shape[1]
    if scale is not None:
        queries = rounded_to_16_bits(queries)
    for i in range(len(queries)):
        there = at if skip is None else at[at != skip[i]]
        exact = squares(queries[i : i + 1], vectors, scale, np.zeros(len(there), np.int64), there)
        near, positions = nearest_of(exact, there, ranks, k + 1)  # one more shows a tie
        distances = np.sqrt(near)
        out[i], found[i], tied[i] = distances[:k], positions[:k], positions[k] >= 0 and distances[k] == distances[k - 1]


class Climb:
    """Queries that climb a ladder one by one; the methods return what those of `scan.Ladder` do, of query i.

    The rows are as coded, the queries are not: estimates are a little better than those of the kernel.
    """

    def __init__(self, job: Ladder, queries: Float32, allowed: Mask | None = None) -> None:
        self._job, self._allowed = job, allowed
        if job.scale is not None:
            queries = rounded_to_16_bits(queries)
        dim = queries.shape[1]
        numbers, norms = job.heads.centres.shape[1], np.empty(len(queries))
        self._queries, self._prefixes = queries, np.empty((len(queries), numbers), np.float32)
        directions = None if job.directions is None else job.directions[:, :dim]
        prefixes(queries, None, job.middle[:dim], directions, self._prefixes, norms)
        self._slack = job.rounding * (norms + job.farthest)

    def nearest(
        self, i: int, k: int, depth: int, reach: float, exact: bool, skip: int, ranks: Int64 | None
    ) -> tuple[Float64, Int64, int, int]:
        positions, scanned = self._approach(i, k, max(depth, k), reach, skip)
        squares = self._squares(i, positions)
        compared = len(positions)
        if exact:
            radius = np.sqrt(np.partition(squares, k - 1)[k - 1]) if len(squares) >= k else np.inf
            squares, positions, more, close = self.within(i, radius, skip)
            scanned, compared = scanned + more, compared + close
        return *nearest_of(squares, positions, ranks, k), scanned, compared

    def within(self, i: int, radius: float, skip: int) -> tuple[Float64, Int64, int, int]:
        """Return all within the radius: squared distances and positions; rows scanned, vectors compared."""
        low, positions, which = self._scan(i, np.arange(len(self._job.radii)), skip)
        scanned = len(positions)
        near = np.sqrt(low) * (1 - 1e-5) - self._slack[i] - self._job.errors[which] <= radius
        positions = positions[near]
        squares = self._squares(i, positions)
        near = np.sqrt(squares) <= radius
        return squares[near], positions[near], scanned, len(positions)

    def _approach(self, i: int, k: int, depth: int, reach: float, skip: int) -> tuple[Int64, int]:
        """Return the positions of the `depth` nearest rows of the lists that are scanned, and how many rows these are.

        Lists are scanned nearest first, until the next one is too far away.
        """
        away = np.square(self._job.heads.centres - self._prefixes[i], dtype=np.float64).sum(axis=1)
        near, positions, kth = np.empty(0), np.empty(0, np.int64), np.inf
        for c in np.argsort(away, kind="stable"):
            if away[c] > away.min() + reach * kth**0.75:
                break
            low, more, _ = self._scan(i, np.array([c]), skip)
            near, positions = np.append(near, low), np.append(positions, more)
            if len(near) >= k:
                kth = np.partition(near, k - 1)[k - 1]
        best = np.argsort(near, kind="stable")[:depth]
        return positions[best], len(near)

    def _scan(self, i: int, lists: Int64, skip: int) -> tuple[Float64, Int64, Int64]:
        """Return the squared distances to the rows of these lists, their positions, and the list of each."""
        job = self._job
        blocks = np.concatenate([job.order[job.start[c] : job.start[c + 1]] for c in lists])
        which = np.repeat(lists, job.start[lists + 1] - job.start[lists])
        masks = job.masks[blocks]
        there = np.unpackbits(np.stack([masks & 255, masks >> 8], axis=1).astype(np.uint8), axis=1, bitorder="little")
        positions = np.where(there.astype(bool), job.slots[blocks], -1)
        mask = (positions >= 0) & (positions != skip)
        if self._allowed is not None:
            mask &= self._allowed[positions]
        query = self._prefixes[i] - job.heads.centres[which]
        codes = job.codes[blocks].transpose(0, 2, 1, 3).reshape(len(blocks), 16, 4 * job.codes.shape[1])
        codes = codes[:, :, : query.shape[1]]
        rows = (codes.astype(np.float64) - 128) * job.steps[which][:, None, None]
        away = np.square(rows - query[:, None]).sum(axis=2)
        return away[mask], positions[mask], np.broadcast_to(which[:, None], mask.shape)[mask]

    def _squares(self, i: int, positions: Int64) -> Float64:
        job, which = self._job, np.zeros(len(positions), np.int64)
        return squares(self._queries[i : i + 1], job.vectors, job.scale, which, positions)


def squares(queries: Float32, vectors: Array, scale: Float32 | None, which: Int64, positions: Int64) -> Float64:
    """Return |query - vector|^2 of query which[i] and the vector at positions[i], in float64."""
    out = np.empty(len(positions))
    step = max(1, DISTANCE_NUMBERS // max(1, queries.shape[1]))
    for first in range(0, len(positions), step):
        part = slice(first, first + step)
        block = as_stored(vectors, scale, positions[part])
        block -= queries[which[part]]
        block *= block
        # pairwise sums down the rows: the order does not depend on how many rows there are
        out[part] = np.add.reduce(block, axis=1)
    return out


def largest_within(
    queries: Float32, vectors: Array, scale: Float32 | None, positions: Int64 | None, radii: Float64
) -> tuple[Int64, Float64, Int64]:
    """Return queries, largest differences and positions of all that `scan.largest_within` is to find, in no order."""
    which, largest, found = [np.empty(0, np.int64)], [np.empty(0)], [np.empty(0, np.int64)]
    at = np.arange(len(vectors)) if positions is None else positions
    step = max(1, DISTANCE_NUMBERS // max(1, queries.shape[1]))
    for first in range(0, len(at), step):
        some = at[first : first + step]
        block = as_stored(vectors, scale, some)
        for i, query in enumerate(queries):
            most = np.abs(block - query).max(axis=1)
            near = most <= radii[i]
            which.append(np.full(np.count_nonzero(near), i))
            largest.append(most[near])
            found.append(some[near])
    return np.concatenate(which), np.concatenate(largest), np.concatenate(found)


def nearest_codes(
    queries: Words, groups: Words, n: int, mask: Mask | None, rows: Int64 | None, k: int
) -> tuple[Float64, Int64]:
    """See `scan.nearest_codes`. Distance and rank of the row make one integer, of which the k smallest are kept."""
    order = np.arange(n) if rows is None else np.argsort(rows[:n], kind="stable")
    rank = np.empty(n, np.int64)
    rank[order] = np.arange(n)
    none = np.int64(np.iinfo(np.int64).max)
    best = np.full((len(queries), k), none)
    for part, positions, distances in _compared(queries, groups, n, mask):
        keys = distances.astype(np.int64) << ROW_BITS | rank[positions]
        keys = np.concatenate([best[part], keys], axis=1)
        best[part] = np.partition(keys, k - 1, axis=1)[:, :k]
    best.sort(axis=1)
    there = best != none
    away = np.where(there, best >> ROW_BITS, np.inf)
    positions = np.full(best.shape, -1, np.int64)
    positions[there] = order[best[there] & ((1 << ROW_BITS) - 1)]
    return away, positions


def codes_within(
    queries: Words, groups: Words, n: int, mask: Mask | None, limits: Int64
) -> tuple[Int64, Float64, Int64]:
    """Return the offsets, distances and positions of all codes at most limits[i] bits away from query i."""
    which, found, away = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    for part, positions, distances in _compared(queries, groups, n, mask):
        q, column = np.nonzero(distances <= limits[part, None])
        which.append(q + part.start)
        found.append(positions[column])
        away.append(distances[q, column].astype(np.float64))
    query = np.concatenate(which)
    order = np.argsort(query, kind="stable")
    offsets = np.searchsorted(query[order], np.arange(len(queries) + 1)).astype(np.int64)
    return offsets, np.concatenate(away)[order], np.concatenate(found)[order]


def _compared(
    queries: Words, groups: Words, n: int, mask: Mask | None
) -> Iterator[tuple[slice, Int64, NDArray[np.int32]]]:
    """Yield, block by block, the queries, the positions that may be found, and the Hamming distances between them."""
    at = np.arange(n) if mask is None else np.flatnonzero(mask)
    for first in range(0, len(at), BLOCK_CODES):
        positions = at[first : first + BLOCK_CODES]
        words = np.ascontiguousarray(groups[positions // 32, :, positions % 32])
        for start in range(0, len(queries), BLOCK_QUERIES):
            part = slice(start, min(start + BLOCK_QUERIES, len(queries)))
            yield part, positions, hamming_distances(queries[part], words)


def hamming_distances(a: Words, b: Words) -> NDArray[np.int32]:
    """Return the number of bits in which each code of `a` (n, n_words) differs from each of `b` (m, n_words)."""
    words_a, words_b = (np.ascontiguousarray(words.T) for words in (a, b))  # all first words come first
    out = np.zeros((len(a), len(b)), np.int32)
    step = max(1, BLOCK_PAIRS // max(1, len(b)))
    for start in range(0, len(a), step):
        for first in range(0, len(b), BLOCK_PAIRS):
            part = out[start : start + step, first : first + BLOCK_PAIRS]
            different = np.empty(part.shape, np.uint64)
            rows, columns = words_a[:, start : start + step, None], words_b[:, first : first + BLOCK_PAIRS]
            for row, column in zip(rows, columns, strict=True):
                np.bitwise_xor(row, column, out=different)
                part += bit_count(different)
    return out


def bit_count_by_table(words: Words) -> UInt8:
    """Return the number of bits that are set in each word; for NumPy before 2.0."""
    counts: UInt8 = _BITS_OF_16[np.ascontiguousarray(words)[..., None].view(np.uint16)].sum(axis=-1, dtype=np.uint8)
    return counts


_BITS_OF_16: UInt8 = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2), axis=1).sum(
    axis=1, dtype=np.uint8
)
bit_count: Callable[[Any], UInt8] = getattr(np, "bitwise_count", bit_count_by_table)
