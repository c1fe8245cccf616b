"""The exceptions of slosh: classes with fields, so that programs look at fields and never parse a message.

`problem` says what is wrong and where, `remedy` what to do about it in Python; `str(error)` joins the two. A front end
(the command line, a server) words its own remedy from the class and its fields. Every class also has the built-in base
that fits it (ValueError, KeyError, OSError, ImportError), so that code which catches those goes on working.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = [
    "DamagedError",
    "DuplicateId",
    "FormatError",
    "IndexClosed",
    "IndexExists",
    "IndexLocked",
    "InputError",
    "MissingExtra",
    "PrecisionWarning",
    "ReadOnlyIndex",
    "ScaleWarning",
    "SloshError",
    "StorageError",
    "UnknownId",
    "UnsupportedError",
]


class SloshError(Exception):
    """Base class of all errors that slosh raises on purpose."""

    problem: str
    remedy: str

    def __init__(self, problem: str, remedy: str = "", **fields: Any) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy
        for name, value in fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), dict(vars(self)))


def _rebuild(kind: type[SloshError], fields: dict[str, Any]) -> SloshError:
    return kind(**fields)


class InputError(SloshError, ValueError):
    """Something that the caller passed is wrong.

    argument : the name of the parameter, or "".
    set, element, feature : where in a collection of sets the problem is; None where that does not apply.
    """

    argument: str = ""
    set: int | None = None
    element: int | None = None
    feature: int | None = None


class DuplicateId(InputError):
    """An id exists already, or was passed twice. `id` is the id."""

    id: str


class UnknownId(SloshError, KeyError):
    """No set has this id. `id` is the id."""

    id: str

    __str__ = SloshError.__str__


class UnsupportedError(InputError):
    """This embedding, search or engine cannot do what was asked for. `feature_name` says what."""

    feature_name: str = ""


class IndexClosed(SloshError, ValueError):
    """The index was closed, or was opened by the process that this one was forked from."""


class ReadOnlyIndex(SloshError, ValueError):
    """The index is open for reading only. `location` is its path or address."""

    location: str


class FormatError(SloshError, ValueError):
    """A file or a database is not what slosh writes, or has a format version that this slosh does not read.

    location : its path or address. found, supported : format versions, None where there is none.
    """

    location: str
    found: int | None = None
    supported: int | None = None


class DamagedError(SloshError, ValueError):
    """Stored data fail their checks. `location` is the path or address, `ids` are the sets concerned, if known."""

    location: str
    ids: tuple[str, ...] = ()


class StorageError(SloshError, OSError):
    """The operating system or the database refused a read or a write; `errno` says why, as for every OSError."""

    location: str

    def __init__(self, problem: str, remedy: str = "", errno: int | None = None, **fields: Any) -> None:
        super().__init__(problem, remedy, **fields)
        self.errno = errno

    __str__ = SloshError.__str__


class IndexLocked(StorageError):
    """Another process, or another object of this one, has the index open for writing. `pid` is None if unknown."""

    pid: int | None = None


class IndexExists(StorageError, FileExistsError):
    """There is something already where an index was to be created."""


class MissingExtra(SloshError, ImportError):
    """An optional package is not installed. `package` is its name, `extra` the extra of slosh that brings it."""

    package: str
    extra: str | None = None

    __str__ = SloshError.__str__


class PrecisionWarning(UserWarning):
    """float32 cannot hold the detail of a feature: its values lie far from zero, next to their spread."""


class ScaleWarning(UserWarning):
    """One feature carries nearly all of the variance, so distances see little else."""


def is_path_error(error: BaseException) -> bool:
    """Return whether an OSError of Python itself already names its file."""
    return isinstance(error, OSError) and error.filename is not None and not isinstance(error, SloshError)


def location_of(path: str | os.PathLike[str] | None) -> str:
    """Return the place of an index as errors name it."""
    return "the index in memory" if path is None else os.fspath(path)


def user_level() -> int:
    """Return the stacklevel, for a warning of the caller's, of the first frame outside slosh and scikit-learn."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ("slosh", "sklearn"):
        level, frame = level + 1, frame.f_back
    return level
