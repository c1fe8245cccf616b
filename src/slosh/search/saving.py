"""What a search is made of, and how it is saved: parameters, versions, one file, pickle.

A subclass has parameters, and implements `first_state` and `column_names`. What the search holds goes into arrays and a
header for JSON (`_packed`), and comes back from them (`_unpack`).
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from ..data import tensors
from ..errors import DamagedError, FormatError, InputError
from ..native import kernel
from ..native.arrays import Array, Mask
from .columns import ColumnFactory, Specs, check_arrays, check_free, filled, in_memory
from .row_table import RowTable
from .state import State, Stored, Trained, checking_trained

Self = TypeVar("Self", bound="SavableSearch")

FILE_KIND = "slosh search"


@dataclass(frozen=True, eq=False)
class Version:
    """What a search holds at one time."""

    rows: RowTable
    state: State


class SavableSearch(BaseEstimator):  # type: ignore[misc]
    """Parameters, and the version that is searched. `hash_class` is the class of the parameter `hash`, if any."""

    hash_class: ClassVar[type[BaseEstimator] | None] = None
    run_time: ClassVar[frozenset[str]] = frozenset()
    """Parameters that say where a search runs, and are not saved with it."""
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

    def check_dim(self, dim: int) -> None:
        """Refuse (InputError) vectors of a length that the parameters are not made for."""

    def saved_params(self) -> dict[str, Any]:
        """Return the parameters of the constructor, for JSON."""
        return {name: value for name, value in json_params(self).items() if name not in self.run_time}

    @classmethod
    def from_saved_params(cls: type[Self], params: dict[str, Any]) -> Self:
        """Return an empty search with the parameters that `saved_params` returned."""
        if cls.hash_class is not None and params["hash"] is not None:
            params = {**params, "hash": cls.hash_class(**params["hash"])}
        return cls(**params)

    # Files and pickle

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

    def _columns(self, content: dict[str, Array] | None = None) -> ColumnFactory:
        """Return what makes the columns of this search, with this content."""
        return filled(content) if content else in_memory

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


def json_params(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the parameters of an estimator, for JSON; the seed is None if it is not a whole number."""

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, BaseEstimator):
            return json_params(value)
        if name == "random_state":
            return int(value) if isinstance(value, Integral) else None
        return value.item() if isinstance(value, np.generic) else value

    return {name: plain(name, value) for name, value in estimator.get_params(deep=False).items()}


def _classes() -> dict[str, type[SavableSearch]]:
    """Return the searches by name."""
    found, left = {}, SavableSearch.__subclasses__()
    while left:
        for kind in left.pop().__subclasses__():
            found[kind.__name__] = kind
            left.append(kind)
    return found
