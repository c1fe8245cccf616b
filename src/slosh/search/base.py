"""The searches that users call: vectors with rows come in, the rows nearest to a query go out.

Here are the checks, the user's rows, saving and loading. What is held, and how the nearest are found, is a `State`
(state.py) that each search makes with `start`.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from ..data import tensors
from ..data.checks import as_array, checked_count
from ..data.vectors import check_numbers, checked_vectors
from ..errors import DamagedError, FormatError, InputError, bad_value
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Int64, Mask
from .calibration import Calibration, checked_calibration
from .columns import ColumnFactory, Specs, check_arrays, check_free, filled, in_memory
from .result import RangeResult, Result, Stats
from .row_table import RowTable
from .state import Found, FoundWithin, State, Stored, Trained, checking_trained

Self = TypeVar("Self", bound="Search")

FILE_KIND = "slosh search"
CLOSE_UP_HOLES = 1024
"""With fewer holes than this, closing up is not worth it."""


@dataclass(frozen=True, eq=False)
class Version:
    """What a search holds at one time."""

    rows: RowTable
    state: State


class Search(BaseEstimator):  # type: ignore[misc]
    """Base class of the searches over vectors.

    `rows` are int64, chosen by the user or counted from 0; a row that was removed is never given out again. An error or
    an interrupt leaves everything as it was. Several threads may search at once, also while another one adds or
    removes: a search sees what was there when it began. Changes wait for each other.

    A subclass has parameters, and implements `first_state` and `column_names`. `hash_class` is the class of its
    parameter `hash`, if it has one.
    """

    hash_class: ClassVar[type[BaseEstimator] | None] = None
    n_jobs: int | None
    _version: Version | None = None

    @property
    def distance_kind(self) -> str:
        """What distances are: "embedded" (Euclidean, of the vectors) or "hamming" (bits)."""
        return "embedded"

    # What a subclass implements

    @abstractmethod
    def first_state(self, stored: Stored) -> State:
        """Return the state that `start` returns; raise ValueError, KeyError or TypeError if `trained` does not fit."""

    def start(
        self,
        dim: int,
        *,
        n: int = 0,
        columns: ColumnFactory = in_memory,
        alive: Mask | None = None,
        trained: Trained | None = None,
        derived: Trained | None = None,
    ) -> State:
        """Return the state to begin with: that of an empty collection, or one that was stored.

        Parameters
        ----------
        dim : numbers of a vector.
        n : rows that the columns hold already.
        columns : makes the columns; it is called once for each of `column_names`.
        alive : (n,) which positions are not holes; None: all.
        trained : what `State.trained` returned. Raises DamagedError if it does not fit.
        derived : what `State.derived` returned, to save time; ignored if it does not fit.
        """
        stored = Stored(dim, n, columns, alive, trained, derived)
        if trained is None and n == 0:
            return self.first_state(stored)
        with checking_trained():
            return self.first_state(stored)

    @abstractmethod
    def column_names(self, dim: int) -> Specs:
        """Return the columns that `start` asks for, by name: the shape of a row, and the type."""

    def check_params(self) -> None:
        """Refuse wrong parameters (InputError)."""
        kernel.threads(self.n_jobs)
        if self.hash_class is not None and (hash_ := self.get_params()["hash"]) is not None:
            if not isinstance(hash_, self.hash_class):
                problem = f"hash must be a {self.hash_class.__name__} or None, not a {type(hash_).__name__}"
                raise InputError(problem, argument="hash")
            hash_.check_params()

    def saved_params(self) -> dict[str, Any]:
        """Return the parameters of the constructor, for JSON."""
        return json_params(self)

    @classmethod
    def from_saved_params(cls: type[Self], params: dict[str, Any]) -> Self:
        """Return an empty search with the parameters that `saved_params` returned."""
        if cls.hash_class is not None and params["hash"] is not None:
            params = {**params, "hash": cls.hash_class(**params["hash"])}
        return cls(**params)

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
        with self._lock:
            version = self._version
            array = self._checked(vectors, "vectors")
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
        with self._lock:
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
        started = time.perf_counter()
        k = checked_count("k", k)
        array, recall = self._checked_queries(queries), checked_recall(recall)
        version = self._ready(k, recall)
        rows, state = version.rows, version.state
        own = None if exclude is None else _excluded(exclude, len(array), rows)
        permitted = rows.allowed(allowed)
        found = state.nearest(array, k, allowed=permitted, recall=recall, exclude=own, ranks=rows.ranks)
        return Result(found.distances, rows.at(found.positions), stats_of(found, started), state.distance_kind)

    def range_search(
        self, queries: Any, radius: ArrayLike, *, allowed: Any = None, recall: float | None = None
    ) -> RangeResult:
        """Return all rows at most `radius` away from each query, nearest first.

        `radius` is one number for all queries, or one for each. The other parameters are those of `search`.
        """
        started = time.perf_counter()
        array = self._checked_queries(queries)
        radii, recall = checked_radii(radius, len(array)), checked_recall(recall)
        version = self._ready(10, recall, measure=False)
        rows, state = version.rows, version.state
        found = state.within(array, radii, allowed=rows.allowed(allowed), recall=recall, ranks=rows.ranks)
        stats = stats_of(found, started)
        return RangeResult(found.offsets, found.distances, rows.row[found.positions], stats, state.distance_kind)

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

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str], /, **params: Any) -> Self:
        """Return a search that `save` wrote.

        What is damaged is refused with a DamagedError, and what `save` has not written with a FormatError; both are
        ValueErrors. `params` are parameters of the constructor to be changed, e.g. `n_jobs=1`; a `path` of
        `LadderSearch` puts the vectors into that file.
        """
        name = os.fspath(path)
        header, arrays = tensors.read(path, FILE_KIND)
        kind = _classes().get(str(header.get("class")))
        if kind is None or not issubclass(kind, cls):
            problem = f"{name} holds a {header.get('class')!s:.80}"
            raise FormatError(problem, "load it with that class, or search.load", location=name)
        if (unknown := set(params) - set(kind().get_params(deep=False))) or "hash" in params:
            raise InputError(f"{kind.__name__} has no parameter {', '.join(sorted(unknown)) or 'hash'} to be changed")
        check_free(params.get("path"))
        try:
            self = kind.from_saved_params({**header["params"], **params})
            self.check_params()
            self._unpack(header, arrays)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            why, remedy = getattr(error, "problem", error), "build the search again, and save it"
            raise DamagedError(f"{name} is damaged ({why})", remedy, location=name) from None
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the parameters and, in one piece, what is held."""
        state = dict(super().__getstate__())
        state.pop("_write_lock", None)
        if (version := state.pop("_version", None)) is not None:
            state["_packed"] = self._packed(version)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.pop("_packed", None)
        super().__setstate__(state)
        if packed is not None:
            header, arrays = packed
            self._unpack(header, arrays, in_place=False)

    # How a search moves from one version to the next

    @property
    def _lock(self) -> threading.RLock:
        """Held by whoever makes the next version."""
        return self.__dict__.setdefault("_write_lock", threading.RLock())  # type: ignore[no-any-return]

    def _columns(self, content: dict[str, Array] | None = None) -> ColumnFactory:
        """Return what makes the columns of this search, with this content."""
        return filled(content) if content else in_memory

    def _ready(self, k: int, recall: float | None, *, measure: bool = True) -> Version:
        """Return the version to be searched for the k nearest: trained if that is due, and calibrated for these."""
        version = self._train_if(lambda state: state.train_due, lambda state: state.train())
        return self._calibrated(k, recall) if measure else version

    def _calibrated(self, k: int, recall: float | None) -> Version:
        return self._train_if(lambda state: state.lacks(k, recall), lambda state: state.calibrate(k, recall))

    def _calibrate(self, k: int, recall: float, queries: Float32 | None = None) -> Calibration:
        """Measure what `search` does by itself, or by these queries, and return it."""
        checked_calibration(k, len(self), queries)
        with self._lock:
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
            with self._lock:
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
        moved = self.start(state.dim, n=len(kept), columns=self._columns(content), trained=state.trained())
        return Version(version.rows.keep(kept), moved)

    def _packed(self, version: Version) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return a version as a header for JSON and arrays."""
        state, rows = version.state, version.rows
        header: dict[str, Any] = {"class": type(self).__name__, "params": self.saved_params()}
        header |= {"dim": state.dim, "highest": rows.highest}
        arrays: dict[str, Array] = {"row": rows.row, "alive": state.alive}
        arrays |= {f"column.{name}": array for name, array in state.columns().items()}
        for part, learnt in (("trained", state.trained()), ("derived", state.derived())):
            header[part] = None if learnt is None else learnt.header
            if learnt is not None:
                arrays |= {f"{part}.{name}": array for name, array in learnt.arrays.items()}
        return header, arrays

    def _unpack(self, header: dict[str, Any], arrays: dict[str, Array], in_place: bool = True) -> None:
        """Take over what `_packed` returned; with `in_place` the columns lie where the parameters say."""

        def part(name: str) -> dict[str, Array]:
            return {key.removeprefix(name): array for key, array in arrays.items() if key.startswith(name)}

        def learnt(name: str) -> Trained | None:
            return None if header[name] is None else Trained(header[name], part(f"{name}."))

        rows = RowTable.from_arrays(arrays["row"], arrays["alive"], int(header["highest"]))
        n, dim, content = len(rows.row), int(header["dim"]), part("column.")
        check_arrays(content, {name: ((n, *width), dtype) for name, (width, dtype) in self.column_names(dim).items()})
        columns = self._columns(content) if in_place else filled(content)
        state = self.start(
            dim, n=n, columns=columns, alive=rows.alive, trained=learnt("trained"), derived=learnt("derived")
        )
        self._version = Version(rows, state)

    def _checked_queries(self, queries: Any) -> Float32:
        if not len(self):
            raise InputError("the collection is empty", "add vectors first", argument="queries")
        return np.ascontiguousarray(self._checked(queries, "queries"), np.float32)

    def _checked(self, vectors: Any, name: str) -> Array:
        array = checked_vectors(vectors, self.dim, name=name, expected="those of this search have")
        check_numbers(array, name)
        return array


def stats_of(found: Found | FoundWithin, started: float) -> Stats:
    """Return what a search did, and the time since `started`."""
    return Stats(found.compared, found.scanned, found.promise, time.perf_counter() - started)


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


def json_params(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the parameters of an estimator, for JSON; the seed is None if it is not a whole number."""

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, BaseEstimator):
            return json_params(value)
        if name == "random_state":
            return int(value) if isinstance(value, Integral) else None
        return value.item() if isinstance(value, np.generic) else value

    return {name: plain(name, value) for name, value in estimator.get_params(deep=False).items()}


def _classes() -> dict[str, type[Search]]:
    """Return the searches by name."""
    found, left = {}, [Search]
    while left:
        for kind in left.pop().__subclasses__():
            found[kind.__name__] = kind
            left.append(kind)
    return found


def load(path: str | os.PathLike[str], /, **params: Any) -> Search:
    """Return a search that `save` wrote, of whichever class it is; `params` as for `Search.load`."""
    return Search.load(path, **params)
