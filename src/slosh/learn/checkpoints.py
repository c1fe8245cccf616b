"""The file that an interrupted fit goes on from: the state of training after an epoch, and what it is the state of.

A fingerprint of data and parameters comes with every state, so that a fit never goes on from that of another.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data import tensors
from ..data.sets import Sets
from ..errors import DamagedError, InputError
from ..native.arrays import Array, Int64

KIND = "slosh checkpoint"
LAYOUT = 2
"""What the arrays of a checkpoint are: another number where that changes."""


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

    def write(self, state: State) -> None:
        """Replace the file, as a whole or not at all."""
        if self._path is not None:
            header = {name: getattr(state, name) for name in ("history", "best_epoch", "finished")}
            tensors.write(
                self._path, KIND, {**header, "layout": LAYOUT, "fingerprint": self._fingerprint}, state.arrays
            )


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


def _described(value: Any) -> Any:
    """Return what tells a parameter from others, as text or a number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    if isinstance(value, np.ndarray):
        return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
    if callable(state := getattr(value, "state_dict", None)):  # a network of torch
        code = _described_code(getattr(type(value), "forward", None))
        numbers = {name: _described(each.detach().cpu().double().numpy()) for name, each in state().items()}
        return [repr(value), code, numbers]
    if callable(params := getattr(value, "get_params", None)):
        learnt = {name: each for name, each in vars(value).items() if name.endswith("_")}
        return [type(value).__name__, {name: _described(each) for name, each in {**params(False), **learnt}.items()}]
    return _described_code(value)


def _described_code(function: Any) -> Any:
    """Return what tells one function from another: its code, its defaults, and what it has captured."""
    code = getattr(function, "__code__", None)
    if code is None:
        return getattr(function, "__qualname__", repr(function))
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    constants = [each if isinstance(each, bool | int | float | str) else repr(type(each)) for each in code.co_consts]
    defaults = [repr(each) for each in (function.__defaults__, function.__kwdefaults__, captured)]
    return [code.co_code.hex(), constants, list(code.co_names), defaults]
