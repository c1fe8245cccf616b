"""The exceptions of slosh: classes with fields, so that programs look at fields and never parse a message.

`problem` says what is wrong and where, `remedy` what to do about it in Python; `str(error)` joins the two. A front end
(the command line, a server) words its own remedy from the class and its fields. Every class also has the built-in base
that fits it (ValueError, KeyError, OSError, ImportError), so that code which catches those goes on working.
"""

from __future__ import annotations

import errno
import importlib
import inspect
from typing import Any

__all__ = [
    "AccessDenied",
    "DamagedError",
    "DataWarning",
    "DeadlineExceeded",
    "DeviceError",
    "DeviceMemoryError",
    "DuplicateId",
    "FolderNotFound",
    "FormatError",
    "IndexClosed",
    "IndexExists",
    "IndexLocked",
    "IndexNotFound",
    "InputError",
    "MissingExtra",
    "NestedChange",
    "NotAFile",
    "PrecisionWarning",
    "ReadOnlyIndex",
    "ReaderError",
    "ScaleWarning",
    "ServerBusy",
    "ServerLost",
    "SloshError",
    "SourceChanged",
    "SourceNotFound",
    "StorageError",
    "UnknownId",
    "UnknownOutcome",
    "UnsupportedError",
    "WorkCancelled",
    "WorkerLost",
    "WriteConflict",
]


class SloshError(Exception):
    """Base class of all errors that slosh raises on purpose.

    The fields of a class are its attributes, passed by keyword. Those that are not passed keep their default.
    """

    problem: str = ""
    remedy: str = ""
    stored: int | None = None
    """How many sets of a stream were stored before the error; None where there was no stream."""

    def __init__(self, problem: str, remedy: str = "", **fields: Any) -> None:
        Exception.__init__(self, problem, remedy)  # the built-in bases would read a meaning into the arguments
        self.problem, self.remedy = problem, remedy
        for name, value in fields.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem

    def __reduce__(self) -> Any:
        """Pickle the attributes: the base classes pickle the arguments only, and OSError changes their number."""
        return _blank, (type(self),), {"args": self.args, **vars(self)}


def _blank(kind: type[SloshError]) -> SloshError:
    return kind.__new__(kind)


class InputError(SloshError, ValueError):
    """Something that the caller passed is wrong.

    argument : the name of the parameter, or "".
    set, element, feature : where in a collection of sets the problem is; None where that does not apply.
    id : the stored set concerned, by its id; None where that does not apply.
    what : for a problem of one set, the problem without its place ("is empty"), for those who name the place
        themselves; otherwise "".
    """

    argument: str = ""
    set: int | None = None
    element: int | None = None
    feature: int | None = None
    id: str | None = None
    what: str = ""


class ReaderError(InputError):
    """A file cannot be read as sets: it is damaged, is not what its name says, or claims what it does not have.

    location : the path of the file or folder; `problem` begins with it.
    id : the set concerned, by its id; None if it is the whole file.
    row, column : where in a table the problem is, rows counted from 0; None where that does not apply.

    `str` escapes what a terminal would obey, as the problem may quote anything from a file.
    """

    location: str = ""
    id: str | None = None
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        return printable(super().__str__())


class SourceChanged(InputError):
    """A file that a job has read, or was to read, is not the file that it was. `location` is its path."""

    location: str = ""


class DuplicateId(InputError):
    """An id exists already, or was passed twice. `id` is the id."""

    id: str = ""


class UnknownId(SloshError, KeyError):
    """No set has this id. `id` is the id."""

    id: str = ""


class UnsupportedError(InputError):
    """This embedding, search or engine cannot do what was asked for. `feature_name` says what."""

    feature_name: str = ""


class IndexClosed(SloshError, ValueError):
    """The index was closed, or was opened by the process that this one was forked from."""


class ReadOnlyIndex(SloshError, ValueError):
    """The index is open for reading only. `location` is its path or address."""

    location: str = ""


class FormatError(SloshError, ValueError):
    """A file or a database is not what slosh writes, or has a format version that this slosh does not read.

    location : its path or address. found, supported : format versions, None where there is none.
    """

    location: str = ""
    found: int | None = None
    supported: int | None = None


class DamagedError(SloshError, ValueError):
    """Stored data fail their checks. `location` is the path or address, `ids` are the sets concerned, if known."""

    location: str = ""
    ids: tuple[str, ...] = ()


class _SystemError(SloshError, OSError):
    """An OSError with the attributes that every OSError has: `errno`, `strerror`, and the location as `filename`."""

    location: str = ""

    def __init__(self, problem: str, remedy: str = "", errno: int | None = None, **fields: Any) -> None:
        super().__init__(problem, remedy, **fields)
        self.errno, self.strerror, self.filename = errno, problem, self.location or None

    def __reduce__(self) -> Any:
        new, args, state = super().__reduce__()
        return new, args, {**state, "errno": self.errno, "strerror": self.strerror, "filename": self.filename}


class SourceNotFound(_SystemError, FileNotFoundError):
    """There is no file or folder to read sets from at `location`, or nothing matches it as a pattern."""


class StorageError(_SystemError):
    """The operating system or the database refused a read or a write of an index, or of a file that slosh writes.

    location : the path or address; also `filename`, as for every OSError. errno : the reason, None if unknown.
    """


class IndexLocked(StorageError):
    """Another process, or another object of this one, has the index open for writing. `pid` is None if unknown."""

    pid: int | None = None


class IndexNotFound(StorageError, FileNotFoundError):
    """There is no index where one was to be opened. `names` are some that are in the same database."""

    names: tuple[str, ...] = ()


class IndexExists(StorageError, FileExistsError):
    """There is something already where an index was to be created."""


class FolderNotFound(StorageError, FileNotFoundError):
    """There is no folder in which a file or an index was to be created."""


class NotAFile(StorageError, IsADirectoryError):
    """There is a folder where a file was to be read or written."""


class AccessDenied(StorageError, PermissionError):
    """The operating system, or the server of an index, does not let this process read or write `location`."""


class ServerLost(StorageError, ConnectionError):
    """The server of an index cannot be reached, or went away. Nothing was changed."""


class ServerBusy(StorageError):
    """The server of an index has more requests than it takes at once. Nothing was changed.

    retry_after : seconds after which the server asks to try again; None where it does not say.
    """

    retry_after: float | None = None


class DeadlineExceeded(StorageError, TimeoutError):
    """What was asked of a server takes longer than the server allows. Nothing was changed; the same request would fail
    again.
    """


class WriteConflict(StorageError):
    """Another writer changed the same sets at the same time, or locked the index for long (errno ETIMEDOUT).

    Nothing was changed, and it may be tried again.
    """


class UnknownOutcome(StorageError):
    """The disk or the connection failed while a change was committed, and nobody can tell whether it is stored.

    The next `slosh.open` settles it; then `id in index` tells.

    ids : the sets that were to be added or replaced; () for other changes.
    """

    ids: tuple[str, ...] = ()


_REMEDIES = {
    errno.ENOSPC: "make room and try again",
    errno.EIO: "check whether the disk is failing",
    errno.EMFILE: "close files, or raise the limit (ulimit -n)",
    errno.ENFILE: "close files in other programs",
}


def system_error(error: OSError, location: str) -> StorageError:
    """Return an error of the operating system as one of slosh."""
    problem = f"{location}: {error.strerror or error}"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return AccessDenied(problem, "change its permissions, or use another place", error.errno, location=location)
    return StorageError(
        problem, _REMEDIES.get(error.errno or 0, "try again, or use another place"), error.errno, location=location
    )


class NestedChange(SloshError, RuntimeError):
    """A change of an index began within another one, in the same thread. The inner one is not made."""


class WorkerLost(SloshError, RuntimeError):
    """A process that worked on a part of a job ended again and again. What is finished stays.

    location : what it worked on. attempts : how often it was tried.
    """

    location: str = ""
    attempts: int = 0


class WorkCancelled(SloshError, RuntimeError):
    """Somebody cancelled the work on a server before it was done. Nothing was changed."""


class MissingExtra(SloshError, ImportError):
    """An optional package is not installed. `package` is its name, `extra` the extra of slosh that brings it."""

    package: str = ""
    extra: str | None = None


class DeviceError(SloshError, RuntimeError):
    """A GPU was asked for, and cannot be used. Nothing was computed, and nothing runs on the CPU instead.

    device : its name, as "cuda:1". argument : the name of the parameter, or "".
    reason : "torch without CUDA", "no GPU", "driver", "no such number", "too old", "forked" (from a process that uses
        a GPU), "NVRTC" (which compiles the kernels), or "memory".
    """

    device: str = ""
    reason: str = ""
    argument: str = ""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a GPU is full, even for a small batch."""


class DataWarning(UserWarning):
    """Base class of warnings about data: `problem`, `remedy` and `str` as for errors, and the number of a `feature`."""

    def __init__(self, problem: str, remedy: str = "", feature: int | None = None) -> None:
        super().__init__(problem, remedy, feature)
        self.problem, self.remedy, self.feature = problem, remedy, feature

    __str__ = SloshError.__str__


class PrecisionWarning(DataWarning):
    """float32 cannot hold the detail of a feature: its values lie far from zero, next to their spread."""


class ScaleWarning(DataWarning):
    """One feature carries nearly all of the variance, so distances see little else."""


def printable(text: str, keep: str = "") -> str:
    """Return the text with an escape for each character that cannot be seen or was never decoded, but for `keep`.

    >>> print(printable("caf\u00e9 \x1b[31m"))
    caf\u00e9 \\x1b[31m
    """
    if text.isprintable() and "\ufffd" not in text:
        return text
    return "".join(x if (x.isprintable() and x != "\ufffd") or x in keep else ascii(x)[1:-1] for x in text)


def bad_value(argument: str, value: object, remedy: str) -> InputError:
    """Return the error for an argument with a value that it cannot have.

    >>> str(bad_value("mode", 3, "give 'distance' or 'connectivity'"))
    "mode=3: give 'distance' or 'connectivity'"
    """
    return InputError(f"{argument}={value!r:.60}", remedy, argument=argument)


def import_extra(module: str, needed_by: str, extra: str | None = None, package: str = "") -> Any:
    """Return an optional module; raise MissingExtra if it is not installed, with what to install.

    `needed_by` begins the message: "a plot" needs matplotlib. `package` is given where its name is not the module's.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        remedy = f'install it with: pip install "slosh[{extra}]"' if extra else f"install it with: pip install {name}"
        raise MissingExtra(f"{needed_by} needs {name}", remedy, package=name, extra=extra) from error


def user_level() -> int:
    """Return the stacklevel, for a warning of the caller's, of the first frame outside slosh and scikit-learn."""
    frame, level = inspect.currentframe(), 0
    while frame and frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ("slosh", "sklearn"):
        level, frame = level + 1, frame.f_back
    return level
