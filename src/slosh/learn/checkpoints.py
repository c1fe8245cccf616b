"""The file that an interrupted fit goes on from: the state of training after an epoch, and what it is the state of.

A fingerprint of data and parameters comes with every state, so that a fit never goes on from that of another.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data import tensors
from ..data.atomic import replacing
from ..data.sets import Sets
from ..errors import DamagedError, InputError
from ..native.arrays import Array, Int64

KIND = "slosh checkpoint"
LAYOUT = 3
"""What the arrays of a checkpoint are, and what is drawn: another number where one of them changes."""


@dataclass
class State:
    """Training after some epochs: all that the next epoch depends on.

    arrays : of the model, the optimiser and the best model, by name. history : a row for each epoch.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    history: list[list[float]] = field(default_factory=list)
    best_epoch: int = 0
    finished: bool = False


class Checkpoint:
    """Reads and writes the state of one fit. Without a path nothing is read or written."""

    def __init__(self, path: str | os.PathLike[str] | None, fingerprint: str) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InputError(f"checkpoint={path!r:.60} is no path", "give the name of a file", argument="checkpoint")
        self._path, self._fingerprint = None if path is None else Path(path), fingerprint

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def read(self) -> State | None:
        """Return the state to go on from; None if there is no file. Refuse one of other data or parameters."""
        if self._path is None or not self._path.exists():
            return None
        header, arrays = tensors.read(self._path, KIND)
        if header.get("layout") != LAYOUT or header.get("fingerprint") != self._fingerprint:
            raise InputError(
                f"{self._path} is the checkpoint of a fit with other data or parameters",
                "give another path, or remove the file",
                argument="checkpoint",
            )
        try:
            return State(
                dict(arrays), _checked_history(header["history"]), int(header["best_epoch"]), bool(header["finished"])
            )
        except (LookupError, TypeError, ValueError) as error:
            problem = f"{self._path} is no checkpoint that slosh wrote ({error!r:.100})"
            raise DamagedError(problem, "remove it, and fit from the start", location=str(self._path)) from None

    def check_place(self) -> None:
        """Refuse a path that `write` could not write to."""
        if self._path is not None:
            with suppress(_NothingToWrite), replacing(self._path, sync=False):
                raise _NothingToWrite

    def write(self, state: State) -> None:
        """Replace the file, as a whole or not at all."""
        if self._path is not None:
            header = {name: getattr(state, name) for name in ("history", "best_epoch", "finished")}
            tensors.write(
                self._path, KIND, {**header, "layout": LAYOUT, "fingerprint": self._fingerprint}, state.arrays
            )


class _NothingToWrite(Exception):
    """Ends the trial of a path, so that nothing is put there."""


def _checked_history(rows: Any) -> list[list[float]]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("no history")
    return [[float(number) for number in row] for row in rows]


def fingerprint(sets: Sets, examples: Mapping[str, Int64 | None], parameters: Mapping[str, Any]) -> str:
    """Return a text that is another one for other sets, examples or parameters."""
    found = hashlib.blake2b(digest_size=16)
    for array in (sets.points, sets.offsets, sets.weights, sets.origin, *examples.values()):
        found.update(b"none" if array is None else f"{array.dtype} {array.shape}".encode())
        if array is not None and array.size:
            found.update(np.ascontiguousarray(array).data.cast("B"))
    found.update(json.dumps({name: _described(value) for name, value in parameters.items()}, sort_keys=True).encode())
    return found.hexdigest()


def _described(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return what tells a parameter from others, in any process; `inside` are the objects that it is a part of."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in inside:
        return ["again", inside.index(id(value))]

    def parts(of: Any) -> Any:
        return _described(of, (*inside, id(value)))

    if isinstance(value, list | tuple):
        return [parts(each) for each in value]
    if isinstance(value, dict):
        return [[parts(key), parts(each)] for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(parts(each)) for each in value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
    if isinstance(value, np.generic):
        return parts(value.item())
    if hasattr(value, "named_modules") and not isinstance(value, type):  # a network of torch
        numbers = {name: _tensor(each) for name, each in value.state_dict().items()}
        return [repr(value), [[name, _described_module(each, parts)] for name, each in value.named_modules()], numbers]
    if callable(getattr(value, "detach", None)) and callable(getattr(value, "numpy", None)):  # a tensor of torch
        return _tensor(value)
    if callable(params := getattr(value, "get_params", None)) and not isinstance(value, type):
        learnt = {name: each for name, each in vars(value).items() if name.endswith("_")}
        return [type(value).__name__, parts({**params(False), **learnt})]
    return _described_object(value, parts)


def _described_module(module: Any, parts: Callable[[Any], Any]) -> Any:
    """Return what a module of the user's own does, and holds beside its weights; one of torch's says so by its repr."""
    of_torch = [each for each in type(module).__mro__ if each.__module__.startswith("torch.")]
    own = [each for each in type(module).__mro__ if each not in of_torch and each is not object]
    # What layers of torch hold behind an underscore follows from their weights, or is of no matter.
    usual, hidden = vars(of_torch[-1]()), len(of_torch) > 1
    held = {name: each for name, each in vars(module).items() if name not in usual and not (hidden and name[0] == "_")}
    held = held if own else {}
    functions = {f"{each.__qualname__}.{name}": one for each in own for name, one in vars(each).items()}
    code = {name: _code(one, parts) for name, one in functions.items() if isinstance(one, types.FunctionType)}
    return [type(module).__qualname__, parts(held), parts(code)]


def _tensor(value: Any) -> Any:
    return _described(value.detach().cpu().double().numpy())


def _described_object(value: Any, parts: Callable[[Any], Any]) -> Any:
    """Return what tells functions, and objects that hold plain values, from others."""
    if isinstance(value, functools.partial):
        return ["partial", parts(value.func), parts(value.args), parts(value.keywords)]
    if isinstance(value, types.MethodType):
        return [parts(value.__self__), parts(value.__func__)]
    if isinstance(value, types.FunctionType):
        return _code(value, parts)
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
        return [getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__)]
    try:
        held: Any = vars(value)
    except TypeError:  # it has none: it may know how to be pickled all the same, as the generators of NumPy do
        try:
            held = pickle.dumps(value, protocol=4)
        except Exception:
            problem = f"a checkpoint cannot tell whether {value!r:.60} is the same in the next process"
            remedy = "use functions and objects that hold numbers, texts and arrays, or no checkpoint"
            raise InputError(problem, remedy, argument="checkpoint") from None
    return [type(value).__qualname__, parts(held), _code(type(value).__call__ if callable(value) else None, parts)]


def _code(function: Any, parts: Callable[[Any], Any]) -> Any:
    """Return what tells one function from another: its code, its defaults, and what it has captured."""
    code = getattr(function, "__code__", None)
    if code is None:
        return getattr(function, "__qualname__", None)
    captured = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [_compiled(code, parts), parts([function.__defaults__, function.__kwdefaults__, captured])]


def _compiled(code: types.CodeType, parts: Callable[[Any], Any]) -> Any:
    constants = [_compiled(each, parts) if isinstance(each, types.CodeType) else parts(each) for each in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _is_filled(cell: Any) -> bool:
    """Return whether a variable that a function has captured has a value by now."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
