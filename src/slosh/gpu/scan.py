"""The exact scan on a device: vectors stay there, and of every query come back the few that may be among its nearest.

A tile of rows and a batch of queries go through one product of float32. What its rounding leaves open is not decided
here: all positions that may be within come back, and whoever asked compares them exactly. The columns of a tile are
looked at by groups: only the least of each group is written down, and only the groups that may hold one of the nearest
are looked into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..checkpoints import checkpoint
from ..native.arrays import Float32, Float64, Int64, Mask
from .devices import free_memory, memory_errors, memory_is_full
from .products import full_products
from .tensors import sent

CHUNK_NUMBERS = 1 << 28
"""Numbers of the rows that lie together on the device: 1 GB."""
TILE_NUMBERS = 1 << 29
"""Scores of one tile: 2 GB."""
LEAST_TILE = 1 << 24
"""Scores of a tile below which fewer queries are taken, if memory is full, before tiles become still smaller."""
QUERIES = 1024
"""Queries of one batch."""
GROUP = 64
"""Columns of a group."""
LOOKED_INTO = 1 << 26
"""Scores of groups that are looked into at once."""
MAX_PAIRS = 1 << 26
"""Pairs of query and position that a batch of queries may give; more of them, and it is cut."""
ROOM, ROOM_PART = 6 << 30, 4
"""Bytes of the device that rows leave free, for tiles."""
MIDDLE_SAMPLE = 4096
FLOAT32_LIMIT = 1e30
"""Beyond this the squares of norms are scored in float64."""
TINY = 1e-30
Pairs: TypeAlias = tuple[Int64, Int64]
"""Queries and positions, sorted by query."""


class TooManyPairs(Exception):
    """The queries of a batch have more candidates than there is room for."""


class Chunk(NamedTuple):
    """Rows that lie together on the device, less the middle, and |row|^2; padded to whole groups."""

    first: int
    n: int
    rows: Tensor  # (padded, D)
    squares: Tensor  # (padded,) float32; inf where there is no row
    largest: float  # of the squares


class DeviceRows:
    """The first n rows of vectors (n, D), on a device as far as its memory goes; the others are sent for each search.

    Immutable: `extended` gives the next one, which shares what is on the device.
    """

    def __init__(self, array: Float32, device: str, *, before: DeviceRows | None = None, room: int = ROOM) -> None:
        self._array, self._device, self._room = array, device, room
        self.n, self._dim = array.shape
        chunk_rows = max(GROUP, CHUNK_NUMBERS // self._dim // GROUP * GROUP)
        if before is None:
            sample = array[:: max(1, self.n // MIDDLE_SAMPLE)].mean(axis=0, dtype=np.float64)
            self._chunk_rows, self._middle = chunk_rows, sample.astype(np.float32)
            kept: tuple[Chunk | None, ...] = ()
        else:  # whole chunks stay as they are
            self._chunk_rows, self._middle, kept = before.whole_chunks()
        self._chunks: tuple[Chunk | None, ...] = self._completed(kept)

    def extended(self, array: Float32) -> DeviceRows:
        """Return these rows and those behind them."""
        return DeviceRows(array, self._device, before=self, room=self._room)

    def whole_chunks(self) -> tuple[int, Float32, tuple[Chunk | None, ...]]:
        """Return the rows of a chunk, the middle, and the chunks that more rows do not change."""
        return self._chunk_rows, self._middle, self._chunks[: self.n // self._chunk_rows]

    @property
    def n_bytes(self) -> int:
        """Memory of the device, in bytes."""
        there = [each for each in self._chunks if each is not None]
        return sum(each.rows.nbytes + each.squares.nbytes for each in there)

    # Rows

    def _completed(self, chunks: tuple[Chunk | None, ...]) -> tuple[Chunk | None, ...]:
        """Send what is missing, as long as there is room."""
        made = list(chunks)
        starts = range(len(made) * self._chunk_rows, self.n, self._chunk_rows)
        for first in starts:
            checkpoint()
            chunk = None
            if self.has_room():
                try:
                    chunk = self._sent(first)
                except RuntimeError as error:
                    if not memory_is_full(error):
                        raise
                if chunk is None:
                    free_memory()
            made.append(chunk)
        return tuple(made)

    def has_room(self) -> bool:
        """Return whether the device has memory for another chunk."""
        if torch.device(self._device).type != "cuda":
            return True
        free, total = torch.cuda.mem_get_info(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return bool(free + kept - 4 * self._chunk_rows * self._dim > min(self._room, total // ROOM_PART))

    def _sent(self, first: int) -> Chunk:
        """Send a chunk to the device."""
        part = self._array[first : first + self._chunk_rows]
        n, dim = part.shape
        padded = -(-n // GROUP) * GROUP
        rows = torch.zeros((padded, dim), dtype=torch.float32, device=self._device)
        squares = torch.full((padded,), torch.inf, dtype=torch.float32, device=self._device)
        rows[:n] = sent(part, self._device)
        rows[:n] -= sent(self._middle, self._device)
        step = max(1, (1 << 24) // dim)
        for start in range(0, n, step):
            some = slice(start, min(start + step, n))
            squares[some] = rows[some].double().square().sum(1).clamp_(max=torch.finfo(torch.float32).max).float()
        return Chunk(first, n, rows, squares, float(squares[:n].max()))

    def _each_chunk(self) -> Iterator[Chunk]:
        for i, chunk in enumerate(self._chunks):
            checkpoint()
            yield self._sent(i * self._chunk_rows) if chunk is None else chunk

    # What is asked

    def nearest(self, queries: Float32, k: int, allowed: Mask | None) -> Iterator[tuple[slice, Pairs]]:
        """Yield batches of queries, and the positions that may be among the k nearest allowed ones of each."""
        yield from self._asked(queries, None, k, allowed)

    def within(self, queries: Float32, radii: Float64, allowed: Mask | None) -> Iterator[tuple[slice, Pairs]]:
        """Yield batches of queries, and the allowed positions that may be within the radius of each."""
        yield from self._asked(queries, radii, 0, allowed)

    def _asked(
        self, queries: Float32, radii: Float64 | None, k: int, allowed: Mask | None
    ) -> Iterator[tuple[slice, Pairs]]:
        most = max(1, min(QUERIES, LOOKED_INTO // (GROUP * max(1, k))))
        tile, first = TILE_NUMBERS, 0
        with memory_errors(self._device, "which vectors are allowed"):
            mask = None if allowed is None else sent(allowed, self._device)
        while first < len(queries):
            part = slice(first, min(len(queries), first + most))
            n, pairs = part.stop - first, None
            try:
                limits = None if radii is None else np.square(radii[part]) * (1 + 1e-12)
                pairs = self._batch(queries[part], limits, k, mask, tile)
            except TooManyPairs:
                most = max(1, n // 2)
                continue
            except RuntimeError as error:
                if not memory_is_full(error):
                    raise
                if tile > LEAST_TILE:
                    tile //= 4
                elif n > 1:
                    most = max(1, n // 2)
                elif tile > GROUP:
                    tile //= 4
                else:
                    with memory_errors(self._device, "the scores of one query"):
                        raise
            if pairs is None:  # the error is gone, and with it what the batch held
                free_memory()
                continue
            yield part, pairs
            first = part.stop

    def _batch(self, queries: Float32, limits: Float64 | None, k: int, mask: Tensor | None, tile: int) -> Pairs:
        with full_products(self._device):
            scan = _Scan(sent(queries, self._device), self._middle, limits, k)
            rows = max(GROUP, tile // len(queries) // GROUP * GROUP)
            for chunk in self._each_chunk():
                squares = chunk.squares
                if mask is not None:
                    squares = squares.clone()
                    squares[: chunk.n].masked_fill_(~mask[chunk.first : chunk.first + chunk.n], torch.inf)
                for first in range(0, len(squares), rows):
                    part = slice(first, first + rows)
                    scan.take(chunk.first + first, chunk.rows[part], squares[part], chunk.largest)
            return scan.found()


class _Scan:
    """A batch of queries on their way through all tiles.

    The score of row x and query q, both about the middle, is |x|^2 - 2 <q, x>: the squared distance less |q|^2. As it
    is computed, it is off by at most unit (|q|^2 + |x|^2), since 2 |q| |x| is no more than that sum. `low` is the score
    less unit |x|^2, so that what the query adds is the same for all rows.
    """

    def __init__(self, queries: Tensor, middle: Float32, limits: Float64 | None, k: int) -> None:
        self._k, self._n = k, len(queries)
        exact = queries.double() - sent(middle, queries.device).double()
        self._queries = {torch.float64: exact, torch.float32: exact.float()}
        squares = exact.square().sum(1)
        self._largest = float(squares.max())
        # Whatever a tile is computed in, rows and queries about the middle were rounded to float32.
        self._unit = (queries.shape[1] + 32) * torch.finfo(torch.float32).eps
        self._between = 2 * self._unit * squares + TINY  # a low score and a high one may differ by that, the rows apart
        self._limit = None if limits is None else sent(limits, queries.device) - squares + self._between
        self._top = torch.full((self._n, k), torch.inf, dtype=torch.float64, device=queries.device)
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._n_pairs = 0

    def take(self, first: int, rows: Tensor, squares: Tensor, largest: float) -> None:
        """Look at a tile of rows, from the position `first` on; `largest` is the largest of their squares."""
        dtype = torch.float32
        if max(self._largest, largest) > FLOAT32_LIMIT:  # whose squares it could not hold
            dtype, squares = torch.float64, torch.where(squares < torch.inf, rows.double().square().sum(1), torch.inf)
        low = torch.addmm((squares * (1 - self._unit)).to(dtype), self._queries[dtype], rows.to(dtype).T, alpha=-2.0)
        groups = low.view(self._n, -1, GROUP)
        least = groups.amin(2)
        if self._limit is None:
            self._lower_top(groups, least, (2 * self._unit * squares).to(dtype).view(-1, GROUP))
        limit = self._limits().to(dtype)
        limit = torch.where(limit < torch.inf, torch.nextafter(limit, torch.full_like(limit, torch.inf)), limit)
        query, group = ((least <= limit[:, None]) & (least < torch.inf)).nonzero(as_tuple=True)
        step = LOOKED_INTO // GROUP
        for start in range(0, len(query), step):
            self._look_into(first, groups, query[start : start + step], group[start : start + step], limit)

    def _limits(self) -> Tensor:
        """Return which low score a row may have at most, for each query."""
        return self._top[:, -1] + self._between if self._limit is None else self._limit

    def _lower_top(self, groups: Tensor, least: Tensor, spans: Tensor) -> None:
        """Lower the k smallest high scores so far by those of the k groups that begin lowest."""
        best = least.topk(min(self._k, least.shape[1]), dim=1, largest=False, sorted=False).indices
        high = groups.gather(1, best[:, :, None].expand(-1, -1, GROUP)) + spans[best]
        high = high.view(self._n, -1)
        high = high.topk(min(self._k, high.shape[1]), dim=1, largest=False, sorted=False).values
        self._top = torch.cat([self._top, high.double()], 1).topk(self._k, dim=1, largest=False, sorted=True).values

    def _look_into(self, first: int, groups: Tensor, query: Tensor, group: Tensor, limit: Tensor) -> None:
        """Keep the positions of these groups that are within the limit."""
        scores = groups[query, group]
        which, lane = ((scores <= limit[query][:, None]) & (scores < torch.inf)).nonzero(as_tuple=True)
        self._n_pairs += len(which)
        if self._n_pairs > MAX_PAIRS and self._n > 1:
            raise TooManyPairs
        position = first + group[which] * GROUP + lane
        self._pairs.append((query[which], position, scores[which, lane].double()))

    def found(self) -> Pairs:
        """Return the pairs that are left, sorted by query."""
        if not self._pairs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        query, position, score = (torch.cat(each) for each in zip(*self._pairs, strict=True))
        kept = score <= self._limits()[query] * (1 + 1e-6) + self._between[query]
        query, order = query[kept].sort(stable=True)
        return query.cpu().numpy(), position[kept][order].cpu().numpy()
