"""The float scan: every vector is compared with every query. The twin that all other searches are measured by.

The scan itself is in `flat.py`.
"""

from __future__ import annotations

from typing import Any

from ..data.checks import Array
from . import flat
from .base import Search
from .columns import Float32, Float64, Int64, Mask
from .state import Found, FoundWithin, Request, State, Stored
from .store import FloatVectors


class ExactState(State):
    """Float32 vectors, all of which are compared."""

    def __init__(self, search: Search, stored: Stored) -> None:
        super().__init__(search, stored)
        self._store = FloatVectors.start(stored)

    def extend(self, vectors: Float32) -> ExactState:
        return self._grown(self._store.extend(vectors))

    def adopt(self, n: int) -> ExactState:
        return self._grown(self._store.adopt(n))

    def _grown(self, store: FloatVectors) -> ExactState:
        extended: ExactState = self._extended(store.n - self.n, _store=store)
        return extended

    def remove(self, positions: Int64) -> ExactState:
        left: ExactState = self._without(positions)
        return left

    def vectors(self, positions: Int64) -> Float32:
        return self._store.take(positions)

    def holds(self, positions: Int64, vectors: Float32) -> Mask:
        return self._store.holds(positions, vectors)

    def columns(self) -> dict[str, Array]:
        return self._store.columns()

    def n_bytes(self) -> dict[str, int]:
        return {"vectors": self._store.n_bytes}

    def _nearest(self, asked: Request) -> Found:
        found, tied = flat.nearest(self._store, asked, self.search.n_jobs)
        return Found(*found, asked.counts(), asked.counts(self.n), 1.0, tied)

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        found = flat.within(self._store, asked, radii, self.search.n_jobs)
        return FoundWithin(*found, asked.counts(), asked.counts(self.n), 1.0)


class ExactSearch(Search):
    """Compares each query with every stored vector: exact, and as slow as the number of rows times their length.

    Rows at the same distance come in the order of their numbers; distances are computed in float64 from the float32
    vectors, so that they are the same whatever was added before or after.

    Parameters
    ----------
    n_jobs : threads for the distances that are computed again; the matrix product has NumPy's own threads.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import ExactSearch
    >>> search = ExactSearch()
    >>> search.add(np.eye(4))
    array([0, 1, 2, 3])
    >>> distances, rows = search.search(np.eye(4)[:1], k=3)
    >>> distances.round(3), rows
    (array([[0.   , 1.414, 1.414]]), array([[0, 1, 2]]))
    """

    def __init__(self, *, n_jobs: int | None = -1) -> None:
        self.n_jobs = n_jobs

    def column_names(self, dim: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        return FloatVectors.column_names(dim)

    def first_state(self, stored: Stored) -> ExactState:
        return ExactState(self, stored)
