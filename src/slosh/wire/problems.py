"""Errors as problem details (RFC 9457): an exception of slosh becomes a dict for JSON, and the same exception again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import errors
from ..errors import SloshError, StorageError

PROBLEM = "application/problem+json"

STATUS: dict[type[BaseException], int] = {
    errors.DuplicateId: 409,
    errors.MissingExtra: 501,
    errors.UnsupportedError: 400,
    errors.InputError: 400,
    errors.UnknownId: 404,
    errors.IndexNotFound: 404,
    errors.SourceNotFound: 404,
    errors.IndexExists: 409,
    errors.IndexLocked: 409,
    errors.WriteConflict: 409,
    errors.NestedChange: 409,
    errors.WorkCancelled: 409,
    errors.ReadOnlyIndex: 403,
    errors.AccessDenied: 403,
    errors.IndexClosed: 404,
    errors.DeadlineExceeded: 504,
    errors.ServerBusy: 503,
    errors.ServerLost: 503,
}
"""The status of an answer by the class of the error, subclasses before their bases; 500 for all others."""
_NO_SPACE = 28
_KINDS: dict[str, type[SloshError]] = {
    name: kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), SloshError)
}


def status_of(error: BaseException) -> int:
    """Return the status of the answer that an error is."""
    if isinstance(error, StorageError) and error.errno == _NO_SPACE:
        return 507
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def problem_of(error: BaseException, status: int | None = None) -> dict[str, Any]:
    """Return the problem details of an error. Of one that is not of slosh it says nothing: it may quote anything."""
    if not isinstance(error, SloshError):
        if isinstance(error, MemoryError):
            error, status = StorageError("not enough memory", "try with less at a time"), status or 503
        else:
            error = StorageError("the server failed; its log says why")
    kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in _KINDS)
    fields = {name: value for name, value in vars(error).items() if name not in ("problem", "remedy")}
    if isinstance(error, OSError) and error.errno is not None:
        fields["errno"] = error.errno
    for name in ("strerror", "filename", "__notes__"):
        fields.pop(name, None)
    return {
        "type": f"urn:slosh:{kind}",
        "title": kind,
        "status": status_of(error) if status is None else status,
        "detail": errors.printable(SloshError.__str__(error), keep="\n"),
        "class": kind,
        "problem": error.problem,
        "remedy": error.remedy,
        "fields": {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()},
    }


def error_of(problem: Mapping[str, Any], location: str, status: int = 500) -> SloshError:
    """Return the exception that problem details describe; a StorageError where they are of something else."""
    kind = _KINDS.get(str(problem.get("class")))
    words, remedy = problem.get("problem"), problem.get("remedy", "")
    if kind is None or not isinstance(words, str) or not isinstance(remedy, str):
        said = str(problem.get("detail") or problem.get("title") or "")[:500]
        words = f"{location} answered with status {status}, not as slosh serve does" + (f": {said}" if said else "")
        return StorageError(words, "check the address", location=location)
    given = problem.get("fields")
    fields = given if isinstance(given, dict) else {}
    known = {name: value for name, value in fields.items() if hasattr(kind, name) and not name.startswith("_")}
    if "ids" in known:
        known["ids"] = tuple(known["ids"])
    number = known.pop("errno", None)
    if issubclass(kind, OSError):
        known["errno"] = number
    return kind(words, remedy, **known)
