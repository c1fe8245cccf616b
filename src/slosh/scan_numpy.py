"""The ladder of one query in NumPy: the twin of native/scan.h where there is no compiler, and its oracle in the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .scan import Ladder

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def nearest(job: Ladder, i: int, k: int, budget: int, depth: int, exact: bool) -> tuple[Float64, Int64, int, int]:
    """Squared distances and positions (k,) of query i, filled up with inf and -1; rows scanned, vectors compared."""
    _, positions, scanned = _scan(job, i, budget, max(depth, k))
    squares = _squares(job, i, positions)
    compared = len(positions)
    if exact:
        radius = np.sqrt(np.partition(squares, k - 1)[k - 1]) if len(squares) >= k else np.inf
        low, positions, more = _scan(job, i, None, None)
        positions = positions[np.sqrt(low) * (1 - 1e-5) - job.slack[i] <= radius]
        squares = _squares(job, i, positions)
        scanned, compared = scanned + more, compared + len(positions)
    order = np.lexsort((job.rows[positions], squares))[:k]
    rest = k - len(order)
    return (
        np.concatenate([squares[order], np.full(rest, np.inf)]),
        np.concatenate([positions[order], np.full(rest, -1, np.int64)]),
        scanned,
        compared,
    )


def within(job: Ladder, i: int, radius: float, errors: Float32 | None) -> tuple[Float64, Int64, int, int]:
    """Squared distances and positions of all within the radius of query i; rows scanned, vectors compared."""
    low, positions, scanned = _scan(job, i, None, None)
    reach = radius + (0.0 if errors is None else float(errors.max(initial=0.0)))
    positions = positions[np.sqrt(low) * (1 - 1e-5) - job.slack[i] <= reach]
    squares = _squares(job, i, positions)
    near = np.sqrt(squares) - (0.0 if errors is None else errors[positions]) <= radius
    return squares[near], positions[near], scanned, len(positions)


def _scan(job: Ladder, i: int, budget: int | None, depth: int | None) -> tuple[Float64, Int64, int]:
    """Of the rows in the nearest lists, `budget` or more of them (None: all), the `depth` nearest prefixes (None: all)."""
    masks = job.masks[job.list_blocks]
    there = np.unpackbits(np.stack([masks & 255, masks >> 8], axis=1).astype(np.uint8), axis=1, bitorder="little")
    if budget is None:
        chosen = np.arange(len(job.list_blocks))
    else:
        n_lists = len(job.radii)
        centres = job.centroids.transpose(0, 2, 1).reshape(-1, job.prefixes.shape[1])[:n_lists]
        order = np.argsort(np.square(centres - job.prefixes[i], dtype=np.float64).sum(axis=1), kind="stable")
        per_block = np.concatenate([[0], np.cumsum(there.sum(axis=1, dtype=np.int64))])
        sizes = per_block[job.list_start[1:]] - per_block[job.list_start[:-1]]
        taken = order[: int(np.searchsorted(np.cumsum(sizes[order]), budget)) + 1]
        chosen = np.concatenate([np.arange(job.list_start[c], job.list_start[c + 1]) for c in taken])
    mask = there[chosen].astype(bool)
    blocks = job.list_blocks[chosen]
    away = job.blocks[blocks].astype(np.float64) - job.prefixes[i][None, :, None]
    low = np.square(away).sum(axis=1)[mask]
    positions = job.slots[blocks][mask]
    scanned = len(positions)
    if job.skip is not None:
        other = positions != job.skip[i]
        low, positions = low[other], positions[other]
    if depth is not None and len(low) > depth:
        best = np.argpartition(low, depth - 1)[:depth]
        low, positions = low[best], positions[best]
    return low, positions, scanned


def _squares(job: Ladder, i: int, positions: Int64) -> Float64:
    out = np.empty(len(positions))
    step = max(1, (1 << 18) // job.queries.shape[1])
    for first in range(0, len(positions), step):
        part = positions[first : first + step]
        block = job.vectors[part].astype(np.float64)
        if job.scale is not None:
            block *= job.scale[part, None]
        block -= job.queries[i]
        block *= block
        out[first : first + step] = block.sum(axis=1)
    return out
