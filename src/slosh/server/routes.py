"""The table of routes: each is a function with what it takes, gives and needs.

The gate dispatches by it, and the OpenAPI document is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from ..errors import InputError, StorageError
from ..wire import JSON
from .keys import Grant

if TYPE_CHECKING:
    from .context import Context

Access = Literal["none", "read", "write"]
T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """An answer: a body, or frames that are sent as they come."""

    body: bytes
    kind: str = JSON
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    frames: Iterator[bytes] | None = None


@dataclass
class Request:
    """What a handler sees of a request."""

    name: str
    """What stands in the place of {name} or {id} in the path."""
    query: bytes
    body: bytes
    kind: str
    """The type of the body."""
    accept: str
    grant: Grant
    file: str | None = None
    """Where the body of an upload is, in a file that the server has named."""

    def parameters(self, kind: type[T]) -> T:
        """Return what stands in the query string."""
        given: dict[str, str] = {}
        try:
            for name, value in parse_qsl(self.query.decode("ascii"), True, errors="strict", max_num_fields=100):
                if name in given:
                    raise InputError(f"the parameter {name!r:.60} comes twice", argument=name)
                given[name] = value
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InputError(f"in the query string: {error}", argument="query string") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the query string cannot be read: {error}", argument="query string") from None


class NotReady(StorageError):
    """What is asked for is being made."""

    status = 409


Handler = Callable[["Context", Request], Reply]


@dataclass(frozen=True)
class Route:
    """One route. `path` has at most one part in braces."""

    method: str
    path: str
    summary: str
    access: Access
    handler: Handler
    answer: Any
    """The type of the JSON answer, or the content type of another one."""
    body: type[Any] | None = None
    parameters: type[Any] | None = None
    bodies: tuple[str, ...] = (JSON,)
    """The types that the body may have."""
    answers: tuple[str, ...] = (JSON,)
    status: int = 200
    owner: bool = False
    """Whether the process that writes answers it, and others forward it."""
    hot: bool = False
    """Whether several requests at once may be answered together (`lane.py`)."""
    tag: str = field(default="")


ROUTES: dict[tuple[str, tuple[str | None, ...]], Route] = {}
"""The routes by method and parts of the path; None stands for the part in braces."""


def route(
    method: str, path: str, summary: str, access: Access, answer: Any, **more: Any
) -> Callable[[Handler], Handler]:
    """Register the function that is decorated as the handler of a route."""

    def register(handler: Handler) -> Handler:
        made = Route(method, path, summary, access, handler, answer, **more)
        ROUTES[method, tuple(None if part.startswith("{") else part for part in path.split("/")[1:])] = made
        return handler

    return register


_NAMED = (("v1", "indexes"), ("v1", "jobs"))


def split_path(raw: bytes) -> tuple[tuple[str | None, ...], str]:
    """Return the parts of a path as they are keys of ROUTES, and what stands for the part in braces."""
    try:
        parts = raw.decode("ascii").split("/")[1:]
    except UnicodeDecodeError:
        return ("",), ""
    if len(parts) > 2 and (parts[0], parts[1]) in _NAMED:
        return (parts[0], parts[1], None, *parts[3:]), unquote(parts[2])
    return tuple(parts), ""


def methods_of(parts: tuple[str | None, ...]) -> list[str]:
    """Return the methods that a path has."""
    return sorted(method for method, path in ROUTES if path == parts)
