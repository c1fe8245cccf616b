"""The protocol of all searches: vectors with rows come in, the rows nearest to a query go out.

Here are the checks, the bookkeeping of rows, saving and loading; a subclass keeps the vectors and finds the nearest.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from ..data.checks import Array, as_array, checked_count
from ..data.vectors import check_numbers, checked_vectors
from ..native import kernel
from . import files
from .result import RangeResult, Result, Stats
from .rows import Int64, Mask, Rows
from .store import Room, check_free

Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]
Self = TypeVar("Self", bound="Search")

Learnt: TypeAlias = tuple[dict[str, Any], dict[str, Array]]
CLASSES: dict[str, type[Search]] = {}
"""Searches by name, for `load`."""
LEAST_HOLES = 1024
"""With fewer removals than this, closing up is not worth it."""


class Search(BaseEstimator):  # type: ignore[misc]
    """Base class. What users call is here; a subclass implements the methods with an underscore.

    `rows` are int64, chosen by the user or counted from 0; a row that was removed is never given out again. An error
    leaves everything as it was. Searching from several threads at once is safe, changing meanwhile is not.
    """

    n_jobs: int | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        CLASSES[cls.__name__] = cls

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = str(super().__repr__(N_CHAR_MAX))
        return f"{text} with {len(self)} rows of {self._dim} numbers" if self._started else text

    def __sklearn_is_fitted__(self) -> bool:
        return self._started

    # What users call

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows) if self._started else 0

    def __contains__(self, row: object) -> bool:
        return self._started and isinstance(row, (int, np.integer)) and bool(self._rows._find(np.array([row]))[0] >= 0)

    @property
    def dim(self) -> int | None:
        """The length of the vectors; None before the first `add`."""
        return self._dim if self._started else None

    @property
    def rows(self) -> Int64:
        """The rows that are there, in increasing order."""
        return self._rows.sorted() if self._started else np.empty(0, np.int64)

    def add(self, vectors: Any, rows: Any = None) -> Int64:
        """Adds vectors (n, D) under `rows`, or under the next free ones; returns the rows.

        All of them or, with an error, none. A row that exists is an error. Numbers are kept as float32.
        """
        array = checked_vectors(vectors, self.dim, name="vectors", expected="those of this search have")
        check_numbers(array, "vectors")
        table = self._rows if self._started else Rows()
        new = table.new(rows, len(array))
        fresh, before, highest = not self._started, table.n_positions, table.highest
        if fresh:
            self._check_params()
            self._rows, self._dim, self._lock = table, int(array.shape[1]), threading.RLock()
            self._start(array)
            self._started = True
        try:
            if len(array):
                self._add(array)
                table.add(new)
                self._added()
        except BaseException:  # an interrupt too: nothing of it stays
            table.cut(before, highest)
            self._cut(before)
            self._started = not fresh
            raise
        return new

    def remove(self, rows: Any) -> None:
        """Removes rows; one that is not there, or is given twice, is an error, and nothing is changed."""
        if not self._started:
            raise ValueError("the collection is empty: there is nothing to remove")
        positions = self._rows.removal(rows)
        if not len(positions):
            return
        self._rows.remove(positions)
        self._removed(positions)
        holes = self._rows.n_positions - len(self._rows)
        if holes > max(LEAST_HOLES, len(self._rows)) and self._room is None:
            with uninterrupted():
                self._close_up(self._rows.close_up())

    def search(self, queries: Any, k: int = 10, *, allowed: Any = None, recall: float | None = None) -> Result:
        """The k nearest rows of each query, nearest first, equal distances by row.

        Parameters
        ----------
        queries : vectors (n_queries, D).
        k : how many; if there are fewer (or fewer are allowed), all of them.
        allowed : only these rows: a boolean mask (an entry for each row from 0 to the highest), or a list of rows.
        recall : the part of the true k nearest that is to be found, on average: 1.0 is exact. None is the default of
            this search.

        Returns
        -------
        Result : unpacks as (distances, rows), each (n_queries, min(k, number allowed)); `.stats`.
        """
        started = time.perf_counter()
        checked_count("k", k)
        array = self._queries(queries)
        promise = checked_recall(recall)
        mask, n_allowed = self._rows.allowed(allowed)
        k = min(int(k), n_allowed)
        if k == 0 or not len(array):
            shape = (len(array), k)
            none = np.zeros(len(array), np.int64)
            stats = Stats(none, none, 1.0, time.perf_counter() - started)
            return Result(np.empty(shape), np.empty(shape, np.int64), stats, self._distance_kind)
        squares, positions, work = self._search(array, k, mask, n_allowed, promise)
        rows = np.where(positions >= 0, self._rows.row[positions], -1)
        stats = work.stats(time.perf_counter() - started)
        return Result(self._distances(squares), rows, stats, self._distance_kind)

    def range_search(
        self, queries: Any, radius: ArrayLike, *, allowed: Any = None, recall: float | None = None
    ) -> RangeResult:
        """All rows at most `radius` away from each query, nearest first; one radius for all queries, or one for each.

        The other parameters are those of `search`.
        """
        started = time.perf_counter()
        array = self._queries(queries)
        radii = checked_radii(radius, len(array))
        promise = checked_recall(recall)
        mask, n_allowed = self._rows.allowed(allowed)
        if n_allowed == 0 or not len(array):
            none = np.zeros(len(array), np.int64)
            offsets = np.zeros(len(array) + 1, np.int64)
            stats = Stats(none, none, 1.0, time.perf_counter() - started)
            return RangeResult(offsets, np.empty(0), np.empty(0, np.int64), stats, self._distance_kind)
        offsets, squares, positions, work = self._range_search(array, radii, mask, n_allowed, promise)
        rows = self._rows.row[positions]
        stats = work.stats(time.perf_counter() - started)
        return RangeResult(offsets, self._distances(squares), rows, stats, self._distance_kind)

    def vectors(self, rows: Any) -> Float32:
        """The stored vectors of these rows, (n, D) float32."""
        if not self._started:
            raise ValueError("the collection is empty: it has no vectors")
        return self._vectors(self._rows.positions(rows, done="give rows that are"))

    def info(self) -> dict[str, Any]:
        """Counts, memory in bytes, and what the search has learnt from its vectors."""
        about: dict[str, Any] = {"search": type(self).__name__, "rows": len(self), "dim": self.dim}
        if self._started:
            about["bytes"] = self._bytes()
            about["bytes_per_row"] = round(sum(about["bytes"].values()) / max(1, len(self)), 1)
        return about

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the search with its vectors into one file, which `load` reads. An existing file is replaced whole."""
        if not self._started:
            raise ValueError("the collection is empty: there is nothing to save")
        self._check_params()
        header, arrays = self._state()
        header = {"class": type(self).__name__, "dim": self._dim, **header}
        header["params"] = {"n_jobs": self.n_jobs, **header["params"]}
        files.write(path, header, {**self._rows.state(), **arrays})

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str], /, **params: Any) -> Self:
        """A search that `save` wrote. What is damaged, or was not written by `save`, is refused with a ValueError.

        `params` are parameters of the constructor to be changed, e.g. `n_jobs=1`; a `path` of `LadderSearch` puts the
        vectors into that file.
        """
        header, arrays = files.read(path)
        kind = CLASSES.get(str(header.get("class")))
        if kind is None or not issubclass(kind, cls):
            raise ValueError(
                f"{os.fspath(path)} holds a {header.get('class')}: load it with that class, or search.load"
            )
        if not isinstance(header.get("params"), dict):
            raise ValueError(f"{os.fspath(path)} is damaged (its parameters are missing): build the search again")
        if (unknown := set(params) - set(kind._get_param_names())) or "hash" in params:
            raise ValueError(f"{kind.__name__} has no parameter {', '.join(sorted(unknown)) or 'hash'} to be changed")
        check_free(params.get("path"))
        header["params"] = {**header["params"], **params}
        try:
            self = kind._from_header(header)
            self._check_params()
            self._rows, self._dim, self._lock = Rows.from_state(arrays), int(header["dim"]), threading.RLock()
            self._restore(header, arrays)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{os.fspath(path)} is damaged ({error}): build the search again, and save it") from None
        self._started = True
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: all but the lock, which belongs to the process."""
        return {name: value for name, value in super().__getstate__().items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._started:
            self._lock = threading.RLock()

    def _begin(self, dim: int, rows: Rows, room: Room, learnt: Learnt | None, derived: Learnt | None = None) -> None:
        """Starts as the search of an index: with the vectors that `room` has already, and with what was learnt once.

        `derived` spares some work if it fits. Positions then never change: what was removed stays a hole.
        """
        self._check_params()
        self._rows, self._dim, self._lock, self._room = rows, dim, threading.RLock(), room
        self._start(np.empty((0, dim), np.float32))
        if learnt is not None:
            self._relearn(*learnt)
        self._attached(0, derived)
        self._started = True

    # What a subclass implements

    _started = False
    _room: Room | None = None
    _rows: Rows
    _dim: int
    _lock: threading.RLock

    @property
    def _distance_kind(self) -> str:
        return "embedded"

    def _distances(self, squares: Float64) -> Float64:
        """The distances that stand for what `_search` and `_range_search` return: their roots."""
        return np.sqrt(squares)

    def _check_params(self) -> None:
        """Refuses wrong parameters of the constructor."""
        kernel.threads(self.n_jobs)

    @abstractmethod
    def _start(self, vectors: Array) -> None:
        """Before the first vectors: `_dim` is set, checked vectors are there to learn from."""

    @abstractmethod
    def _add(self, vectors: Array) -> None:
        """Stores vectors at the positions from `_rows.n_positions` on. If it raises, nothing may have changed."""

    def _added(self) -> None:
        """After `_rows` has the new rows."""

    def _removed(self, positions: Int64) -> None:
        """After `_rows` has lost these."""

    @abstractmethod
    def _cut(self, n: int) -> None:
        """Forgets what `_add` and `_added` did for positions from n on, as far as they came."""

    @abstractmethod
    def _close_up(self, kept: Int64) -> None:
        """The vector of position kept[i] goes to position i."""

    @abstractmethod
    def _search(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Float64, Int64, Work]:
        """Squared distances and positions (n_queries, k), sorted by distance, then row; 1 <= k <= n_allowed."""

    @abstractmethod
    def _range_search(
        self, queries: Float32, radii: Float64, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Int64, Float64, Int64, Work]:
        """Offsets (n_queries + 1,), squared distances and positions, sorted in each query; radii (n_queries,)."""

    def _moved(self, positions: Int64) -> Float64:
        """How far storing has moved these vectors, at most; queries are moved in the same way."""
        return np.zeros(len(positions))

    def _moves(self, queries: Float32) -> Float64:
        """How far a search moves these queries, at most."""
        return np.zeros(len(queries))

    @abstractmethod
    def _vectors(self, positions: Int64) -> Float32: ...

    @abstractmethod
    def _bytes(self) -> dict[str, int]:
        """Memory by what it is for."""

    def _learnt(self) -> Learnt:
        """What was learnt from the collection, and holds for vectors to come: a header for JSON, and arrays."""
        return {}, {}

    def _relearn(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Takes over what `_learnt` gave. Must refuse (ValueError, KeyError) what does not fit."""

    def _derived(self) -> Learnt | None:
        """What `_attached` would otherwise make of the vectors, for a cache."""
        return None

    def _attached(self, first: int = 0, derived: Learnt | None = None) -> None:
        """Derives what is to be derived from vectors that are there, and not by `add`: from position `first` on.

        `derived` is what `_derived` gave for the first of them, or of something else; what does not fit is not used.
        """

    def _ready(self) -> None:
        """Learns what is due, so that the next search need not."""

    def _exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        """Whether a search for k of so many allowed rows will be exact."""
        return recall == 1.0

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What `_restore` needs: a header for JSON, and arrays. The parameters go into header["params"]."""

    @abstractmethod
    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        """`_rows` and `_dim` are set. Must refuse (ValueError, KeyError) what does not fit together."""

    @classmethod
    def _from_header(cls: type[Self], header: dict[str, Any]) -> Self:
        return cls(**header["params"])

    def _queries(self, queries: Any) -> Float32:
        if not len(self):
            raise ValueError("the collection is empty: add vectors first")
        array = checked_vectors(queries, self._dim, name="queries", expected="those of this search have")
        check_numbers(array, "queries")
        return np.ascontiguousarray(array, np.float32)


@contextmanager
def uninterrupted() -> Iterator[list[Any]]:
    """Ctrl-C waits until what must not be done by halves is done; what is given is no longer empty when one waits."""
    waiting: list[Any] = []
    if threading.current_thread() is not threading.main_thread():
        yield waiting
        return
    if signal.getsignal(signal.SIGINT) is None:  # of a program that Python is a part of
        yield waiting
        return
    before = signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield waiting
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(*waiting[0])
        elif waiting and before == signal.SIG_DFL:
            signal.raise_signal(signal.SIGINT)


class Work:
    """What was done for each query, on the way to `Stats`."""

    def __init__(self, candidates: Array, scanned: Array, recall: float | None) -> None:
        self.candidates = np.asarray(candidates, np.int64)
        self.scanned = np.asarray(scanned, np.int64)
        self.recall = recall

    def stats(self, seconds: float) -> Stats:
        return Stats(self.candidates, self.scanned, self.recall, seconds)


def checked_recall(recall: Any) -> float | None:
    if recall is None:
        return None
    if not isinstance(recall, Real) or isinstance(recall, bool) or not 0 < float(recall) <= 1:
        raise ValueError(f"recall={recall!r} must be more than 0 and at most 1; 1.0 is exact")
    return float(recall)


def checked_radii(radius: Any, n: int) -> Float64:
    """A radius for each of n queries."""
    array = as_array(radius, "radius")
    if array.dtype.kind not in "fiu" or array.shape not in ((), (n,)) or not np.all(array >= 0):
        raise ValueError(f"radius={radius!r:.60} must be a distance, 0 or more; or {n} of them, one for each query")
    return np.ascontiguousarray(np.broadcast_to(array, n), np.float64)


def load(path: str | os.PathLike[str], /, **params: Any) -> Search:
    """A search that `save` wrote, of whichever class it is; `params` as for `Search.load`."""
    return Search.load(path, **params)
