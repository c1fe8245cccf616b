"""The float scan: every vector is compared with every query. The twin that all other searches are measured by.

The scan itself is in `flat.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.checks import Array
from . import flat
from .base import Float32, Float64, Search, Work
from .rows import Int64, Mask
from .store import FloatStore


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

    _store: FloatStore

    def __init__(self, *, n_jobs: int | None = -1) -> None:
        self.n_jobs = n_jobs

    def _start(self, vectors: Array) -> None:
        self._store = FloatStore(self._dim, room=self._room)

    def _add(self, vectors: Array) -> None:
        self._store.append(vectors)

    def _exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        return True

    def _cut(self, n: int) -> None:
        self._store.cut(n)

    def _close_up(self, kept: Int64) -> None:
        self._store.keep(kept)

    def _vectors(self, positions: Int64) -> Float32:
        return self._store.take(positions)

    def _bytes(self) -> dict[str, int]:
        return {"vectors": self._store.n_bytes}

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"params": {}}, {"vectors": self._store.array}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._store = FloatStore.from_array(arrays["vectors"], self._rows.n_positions, self._dim)

    def _search(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Float64, Int64, Work]:
        found = flat.nearest(self._store, self._rows.row, queries, k, mask, self.n_jobs)
        return *found, self._work(len(queries), n_allowed)

    def _range_search(
        self, queries: Float32, radii: Float64, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Int64, Float64, Int64, Work]:
        found = flat.within(self._store, self._rows.row, queries, radii, mask, self.n_jobs)
        return *found, self._work(len(queries), n_allowed)

    def _work(self, n_queries: int, n_allowed: int) -> Work:
        return Work(np.full(n_queries, n_allowed), np.full(n_queries, self._rows.n_positions), 1.0)
