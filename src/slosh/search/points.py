"""The sets themselves by position, growing as they are added: for distances that need the points."""

from __future__ import annotations

import numpy as np

from ..data.checks import Array, mixed_weights
from ..data.sets import Sets
from .rows import Int64
from .store import Room, in_memory


class Points:
    """Ragged points; all sets have weights, or none."""

    def __init__(self, dim: int, weighted: bool, origin: Array | None, room: Room = in_memory) -> None:
        self._points = room("points", (dim,), np.float32)
        self._ends = room("ends", (), np.int64)
        self._weights = room("weights", (), np.float32) if weighted else None
        self.origin = origin

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in (self._points, self._ends, self._weights) if part is not None)

    def check(self, sets: Sets) -> None:
        """Refuses what cannot be appended."""
        if (sets.weights is not None) != (self._weights is not None):
            raise mixed_weights()

    def append(self, sets: Sets) -> None:
        first = self._points.used
        self._points.extend(sets.points)
        self._ends.extend(sets.offsets[1:] + first)
        if self._weights is not None and sets.weights is not None:
            self._weights.extend(sets.weights)

    def cut(self, n: int) -> None:
        """Forgets all after the first n sets."""
        n = min(n, self._ends.used)
        end = int(self._ends.array[n - 1]) if n else 0
        self._ends.used, self._points.used = n, end
        if self._weights is not None:
            self._weights.used = end

    def take(self, positions: Int64) -> Sets:
        """Copies of the sets at these positions."""
        starts = np.where(positions > 0, self._ends.array[positions - 1], 0)
        sizes = self._ends.array[positions] - starts
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        weights = None if self._weights is None else self._weights.array[at]
        return Sets.from_checked(self._points.array[at], offsets, weights, self.origin)

    def keep(self, kept: Int64) -> None:
        sets = self.take(kept)
        self._points.replace(sets.points)
        self._ends.replace(sets.offsets[1:])
        if self._weights is not None and sets.weights is not None:
            self._weights.replace(sets.weights)
