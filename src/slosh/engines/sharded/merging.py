"""The answers of all shards to one question, made into one answer.

The k nearest of the whole collection are among the k nearest of its shards. So an answer that is exact in every shard,
with all sets at the last distance, is exact when it is merged. Of recalls the smallest is promised: docs/shards.md says
why, and when that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import Candidates, Int64, Mask


def merge(parts: Sequence[Candidates], k: int | None = None) -> Candidates:
    """Return the candidates of all parts, nearest first; with k the k nearest of each query.

    There is a part, and all are of the same queries. If all are exact, every set at the last distance is kept.
    """
    if len(parts) == 1:
        return parts[0]
    promises = [part.promise for part in parts]
    promise = None if None in promises else min(p for p in promises if p is not None)
    offsets, order = _order(parts, k, promise == 1.0)

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    def summed(name: str) -> Int64:
        return np.asarray(np.sum([getattr(part, name) for part in parts], axis=0))

    return Candidates(
        offsets, joined("keys"), joined("distances"), parts[0].kind, promise, summed("compared"), summed("scanned"),
        slack=None if any(part.slack is None for part in parts) else joined("slack"), unlike=_unlike(parts),
    )  # fmt: skip


def _order(parts: Sequence[Candidates], k: int | None, ties: bool) -> tuple[Int64, Int64]:
    """Return the offsets of the merged answer, and the places of its candidates when the parts are joined."""
    n = len(parts[0].offsets) - 1
    widths = [len(part.keys) // n if n else 0 for part in parts]
    even = all((np.diff(part.offsets) == width).all() for part, width in zip(parts, widths, strict=True))
    distances = np.concatenate([part.distances for part in parts])
    if n and even and k is not None:
        starts = np.cumsum([0, *(len(part.keys) for part in parts[:-1])])
        places = np.concatenate(
            [
                start + np.arange(n * width).reshape(n, width)
                for start, width in zip(starts.tolist(), widths, strict=True)
            ],
            axis=1,
        )
        far = distances[places]
        near = np.argsort(far, axis=1, kind="stable")
        wide = near.shape[1]
        cut = np.take_along_axis(far, near[:, k - 1 : k + 1], axis=1) if k < wide else None
        if cut is None or not ties or not (cut[:, 0] == cut[:, 1]).any():
            chosen = np.take_along_axis(places, near[:, :k], axis=1)
            return min(k, wide) * np.arange(n + 1), chosen.ravel()
    query = np.concatenate([part.query for part in parts])
    order = np.lexsort((distances, query))  # stable: of equal ones the first shard's come first
    offsets = np.searchsorted(query[order], np.arange(n + 1))
    return (offsets, order) if k is None else _cut(offsets, order, distances, k, ties)


def _cut(offsets: Int64, order: Int64, distances: Any, k: int, ties: bool) -> tuple[Int64, Int64]:
    """Leave the first k of each query, and with `ties` those that are as far as the last of them."""
    counts = np.diff(offsets)
    rank = np.arange(len(order)) - np.repeat(offsets[:-1], counts)
    kept: Mask = rank < k
    if ties and len(order):
        sorted_ = distances[order]
        last = sorted_[np.minimum(offsets[:-1] + np.minimum(counts, k) - 1, len(order) - 1)]
        kept |= sorted_ == np.repeat(last, counts)
    return np.concatenate([[0], np.cumsum(kept)])[offsets], order[kept]


def _unlike(parts: Sequence[Candidates]) -> Mask | None:
    """Return which queries are unlike what is in any of the shards, of those that know."""
    known = [part.unlike for part in parts if part.unlike is not None]
    return np.logical_and.reduce(known) if known else None
