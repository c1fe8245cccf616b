"""The searches that users call: vectors with rows come in, the rows nearest to a query go out.

Here are the checks, the user's rows, saving and loading. What is held, and how the nearest are found, is a `State`
(state.py) that each search makes with `start`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ..checkpoints import locked
from ..data import tensors
from ..data.checks import as_array, checked_count
from ..data.vectors import FLOAT32, as_float32, check_numbers, checked_vectors
from ..errors import InputError, bad_value
from ..native.arrays import Array, Float32, Float64, Int64, Mask
from .calibration import Calibration, checked_calibration
from .result import RangeResult, Result, Stats
from .row_table import RowTable
from .saving import FILE_KIND, SavableSearch, Version
from .state import Found, FoundWithin, State

Self = TypeVar("Self", bound="Search")

CLOSE_UP_HOLES = 1024
"""With fewer holes than this, closing up is not worth it."""


class Search(SavableSearch):
    """Base class of the searches over vectors.

    `rows` are int64, chosen by the user or counted from 0; a row that was removed is never given out again. An error or
    an interrupt leaves everything as it was. Several threads may search at once, also while another one adds or
    removes: a search sees what was there when it began. Changes wait for each other. A search waits only where
    something must be learnt first: the first search, or the first for another recall, or after the collection has grown
    much, trains or calibrates under the lock of the changes. It waits for a change that is being made, and other
    changes, and searches that need the same, wait for it.

    A subclass has parameters, and implements `first_state` and `column_names`.
    """

    # What users call

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text, version = str(super().__repr__(N_CHAR_MAX)), self._version
        return text if version is None else f"{text} with {len(self)} rows of {version.state.dim} numbers"

    def __sklearn_is_fitted__(self) -> bool:
        return self._version is not None

    def __len__(self) -> int:
        """Return how many rows there are."""
        return 0 if self._version is None else self._version.state.n_alive

    def __contains__(self, row: object) -> bool:
        version = self._version
        if version is None or not isinstance(row, (int, np.integer)):
            return False
        return bool(version.rows.find(np.array([row]))[0] >= 0)

    @property
    def dim(self) -> int | None:
        """The length of the vectors; None before the first `add`."""
        return None if self._version is None else self._version.state.dim

    @property
    def rows(self) -> Int64:
        """The rows that are there, in increasing order."""
        return np.empty(0, np.int64) if self._version is None else self._version.rows.sorted()

    @property
    def state(self) -> State | None:
        """What is held now, by position; None before the first `add`."""
        return None if self._version is None else self._version.state

    def add(self, vectors: Any, rows: Any = None) -> Int64:
        """Add vectors (n, D) under `rows`, or under the next free ones; return the rows.

        All of them are added or, with an error, none. A row that exists is an error. Numbers are kept as float32.
        """
        with locked(self._lock):
            version = self._version
            array = self._shaped(vectors, "vectors")
            check_numbers(array, "vectors")
            new = (RowTable.empty() if version is None else version.rows).new(rows, len(array))
            if version is None:
                self.check_params()
                version = Version(RowTable.empty(), self.start(int(array.shape[1]), columns=self._columns()))
            if len(array):
                state = version.state.extend(array)
                version = Version(version.rows.extend(new, state.alive), state)
            self._version = version
        return new

    def remove(self, rows: Any) -> None:
        """Remove rows. One that is not there, or is given twice, is an error, and nothing is changed."""
        with locked(self._lock):
            version = self._version
            if version is None:
                raise InputError("the collection is empty", "there is nothing to remove")
            positions = version.rows.removal(rows)
            if not len(positions):
                return
            state = version.state.remove(positions)
            version = Version(version.rows.remove(state.alive), state)
            if state.n - state.n_alive > max(CLOSE_UP_HOLES, state.n_alive):
                version = self._closed_up(version)
            self._version = version

    def search(
        self, queries: Any, k: int = 10, *, allowed: Any = None, recall: float | None = None, exclude: Any = None
    ) -> Result:
        """Return the k nearest rows of each query, nearest first, equal distances by row.

        Parameters
        ----------
        queries : vectors (n_queries, D).
        k : how many; if there are fewer (or fewer are allowed), all of them.
        allowed : only these rows: a boolean mask (an entry for each row from 0 to the highest), or a list of rows.
        recall : the fraction of the true k nearest to find, on average: 1.0 is exact. None is the default of this
            search.
        exclude : a row for each query that it must not find, for example its own; -1 for none. An answer may then end
            in -1 at the distance inf.

        Returns
        -------
        Result : unpacks as (distances, rows), each (n_queries, min(k, number allowed)); `.stats`.
        """
        started = perf_counter()
        k = checked_count("k", k)
        array, recall = self._checked_queries(queries), checked_recall(recall)
        version = self._ready(k, recall)
        rows, state = version.rows, version.state
        if allowed is None and exclude is None:
            found = state.nearest(array, k, recall=recall, ranks=rows.ranks)
        else:
            own = None if exclude is None else _excluded(exclude, len(array), rows)
            permitted = rows.allowed(allowed)
            found = state.nearest(array, k, allowed=permitted, recall=recall, exclude=own, ranks=rows.ranks)
        stats = stats_of(found, started, state.unlike(found) if allowed is None else None)
        return Result(found.distances, rows.at(found.positions), stats, self.distance_kind)

    def range_search(
        self, queries: Any, radius: ArrayLike, *, allowed: Any = None, recall: float | None = None
    ) -> RangeResult:
        """Return all rows at most `radius` away from each query, nearest first.

        `radius` is one number for all queries, or one for each. The other parameters are those of `search`.
        """
        started = perf_counter()
        array = self._checked_queries(queries)
        radii, recall = checked_radii(radius, len(array)), checked_recall(recall)
        version = self._ready(10, recall, measure=False)
        rows, state = version.rows, version.state
        found = state.within(array, radii, allowed=rows.allowed(allowed), recall=recall, ranks=rows.ranks)
        stats = stats_of(found, started)
        return RangeResult(found.offsets, found.distances, rows.row[found.positions], stats, self.distance_kind)

    def vectors(self, rows: Any) -> Float32:
        """Return the stored vectors of these rows, (n, D) float32."""
        version = self._version
        if version is None:
            raise InputError("the collection is empty", "it has no vectors")
        return version.state.vectors(version.rows.positions(rows, done="give rows that are"))

    def info(self) -> dict[str, Any]:
        """Return counts, memory in bytes, and what the search has learnt from its vectors."""
        about: dict[str, Any] = {"search": type(self).__name__, "rows": len(self), "dim": self.dim}
        if self._version is not None:
            state = self._version.state
            about["bytes"] = state.n_bytes()
            about["bytes_per_row"] = round(sum(about["bytes"].values()) / max(1, len(self)), 1)
            about |= state.info()
        return about

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the search with its vectors into one file, which `load` reads. An existing file is replaced whole."""
        if self._version is None:
            raise InputError("the collection is empty", "there is nothing to save")
        self.check_params()
        tensors.write(path, FILE_KIND, *self._packed(self._ready(10, None, measure=False)))

    # How a search moves from one version to the next

    @property
    def _lock(self) -> threading.RLock:
        """Held by whoever makes the next version."""
        return self.__dict__.setdefault("_write_lock", threading.RLock())  # type: ignore[no-any-return]

    def _ready(self, k: int, recall: float | None, *, measure: bool = True) -> Version:
        """Return the version to be searched for the k nearest: trained if that is due, and calibrated for these."""
        version = self._version
        if measure and version is not None and version.state.is_ready(k, recall):
            return version
        version = self._train_if(lambda state: state.train_due, lambda state: state.train())
        return self._calibrated(k, recall) if measure else version

    def _calibrated(self, k: int, recall: float | None) -> Version:
        return self._train_if(lambda state: state.lacks(k, recall), lambda state: state.calibrate(k, recall))

    def _calibrate(self, k: int, recall: float, queries: Float32 | None = None) -> Calibration:
        """Measure what `search` does by itself, or by these queries, and return it."""
        checked_calibration(k, len(self))
        with locked(self._lock):
            version = self._ready(k, recall, measure=False)
            state = version.state.calibrate(k, recall, queries)
            self._version = replace(version, state=state)
        found = state.calibration(k, recall)
        assert found is not None
        return found

    def _train_if(self, due: Callable[[Any], bool], train: Callable[[Any], State]) -> Version:
        """Return the version, which is trained first if that is due; one thread does it, the others wait for it."""
        version = self._version
        assert version is not None
        if due(version.state):
            with locked(self._lock):
                version = self._version
                assert version is not None
                if due(version.state):
                    version = self._version = replace(version, state=train(version.state))
        return version

    def _closed_up(self, version: Version) -> Version:
        """Return the same version without holes, in columns of its own."""
        state = version.state
        kept = np.flatnonzero(state.alive)
        content = {name: array[kept] for name, array in state.columns().items()}
        moved = self.start(state.dim, n=len(kept), columns=self._columns(content), trained=state.trained_among(kept))
        return Version(version.rows.keep(kept), moved)

    def _checked_queries(self, queries: Any) -> Float32:
        version = self._version
        if version is None or not version.state.n_alive:
            raise InputError("the collection is empty", "add vectors first", argument="queries")
        dim = version.state.dim
        plain = type(queries) is np.ndarray and queries.dtype == FLOAT32 and queries.shape[1:] == (dim,)
        return as_float32(queries if plain else self._shaped(queries, "queries"), "queries")

    def _shaped(self, vectors: Any, name: str) -> Array:
        """Return vectors as an array of this length; the numbers are not looked at yet."""
        return checked_vectors(vectors, self.dim, name=name, expected="those of this search have")


def stats_of(found: Found | FoundWithin, started: float, unlike: Mask | None = None) -> Stats:
    """Return what a search did, and the time since `started`."""
    return Stats(found.compared, found.scanned, found.promise, perf_counter() - started, None, unlike)


def _excluded(exclude: Any, n: int, rows: RowTable) -> Int64:
    array = as_array(exclude, "exclude")
    if array.shape != (n,) or array.dtype.kind not in "iu":
        problem, remedy = f"exclude is {array.dtype} of shape {array.shape}", f"give {n} rows, one for each query"
        raise InputError(problem, f"{remedy}, -1 for none", argument="exclude")
    return rows.find(array.astype(np.int64))


def checked_recall(recall: Any) -> float | None:
    """Return a recall as a float, or None; refuse anything else."""
    return None if recall is None else needed_recall(recall)


def needed_recall(recall: Any) -> float:
    """Return a recall as a float; refuse anything else, also None."""
    if recall is None:
        raise bad_value("recall", recall, "give a number up to 1.0")
    if type(recall) is float and 0 < recall <= 1:
        return recall
    if not isinstance(recall, Real) or isinstance(recall, bool) or not 0 < float(recall) <= 1:
        raise InputError(f"recall={recall!r} must be more than 0 and at most 1", "1.0 is exact", argument="recall")
    return float(recall)


def checked_radii(radius: Any, n: int) -> Float64:
    """Return a radius for each of n queries."""
    array = as_array(radius, "radius")
    if array.dtype.kind not in "fiu" or array.shape not in ((), (n,)) or not np.all(array >= 0):
        problem = f"radius={radius!r:.60} must be a distance, 0 or more; or {n} of them, one for each query"
        raise InputError(problem, argument="radius")
    return np.ascontiguousarray(np.broadcast_to(array, n), np.float64)


def load(path: str | os.PathLike[str], /, **params: Any) -> Search:
    """Return a search that `save` wrote, of whichever class it is; `params` as for `Search.load`."""
    return Search.load(path, **params)
