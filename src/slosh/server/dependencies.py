"""What handlers depend on, for FastAPI to provide: the key, the index, the query string and the body of a request.

The key is checked before the body is read: so the parameter for the index comes first in the signature of a handler.
Nothing here blocks: an index is opened by the handler, in its thread.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import quote, unquote

from anyio import fail_after
from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect

from ..errors import AccessDenied, InputError, ReadOnlyIndex, ServerBusy, UnsupportedError
from ..index import SetIndex
from .bodies import Sent, Shape, read_query
from .context import Context
from .exchange import RETRY_SECONDS, Exchange
from .keys import Grant
from .problems import Refused

T = TypeVar("T")
FILE = "application/octet-stream"


class _Quoted(Convertor[str]):
    """A part of a path, unquoted after the path is split: a name may hold a slash. `Observed` leaves paths quoted."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("quoted", _Quoted())


# Keys and indexes

bearer = HTTPBearer(scheme_name="key", description="Needed where the server was started with keys.", auto_error=False)


async def get_context(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


Server = Annotated[Context, Depends(get_context)]


async def get_grant(context: Server, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> Grant:
    return context.keys.grant(None if sent is None else sent.credentials)


Key = Annotated[Grant, Depends(get_grant)]


def check_access(context: Context, grant: Grant, access: str, index: str | None) -> None:
    """Refuse what a key does not allow; `index` is None for what is about no index."""
    if grant.allows(access, index):
        return
    if not grant.read:
        error = AccessDenied("this server needs an API key", "send it as Authorization: Bearer KEY")
        raise Refused(error, 401, close=True)
    if context.settings.read_only and access == "write" and grant.allows("read", index):
        raise Refused(ReadOnlyIndex("this server is for reading only", "start it without --read-only"), 403, close=True)
    what = "write" if grant.allows("read", index) else "use this index"
    raise Refused(AccessDenied(f"the key does not allow to {what}", "use another key"), 403, close=True)


async def get_reader(context: Server, grant: Key) -> Grant:
    check_access(context, grant, "read", None)
    return grant


async def get_writer(context: Server, grant: Key) -> Grant:
    check_access(context, grant, "write", None)
    return grant


Reader = Annotated[Grant, Depends(get_reader)]
"""A key that may read."""
Writer = Annotated[Grant, Depends(get_writer)]
"""A key that may write."""


@dataclass(frozen=True)
class Served:
    """The index that a request is about, which its key allows to use."""

    name: str
    context: Context
    grant: Grant
    exchange: Exchange

    def open(self) -> SetIndex:
        """Return the index, which may have to be opened first: to be called in a thread."""
        return self.context.index(self.name)

    def open_to_change(self) -> SetIndex:
        """Return the index for a change, which is then finished, however long it takes."""
        self.exchange.begin()
        return self.open()

    def shape(self) -> Shape:
        """Return the dimension and the origin of its sets."""
        return self.context.shape(self.name, self.open())


Name = Annotated[str, Path(min_length=1)]


async def get_exchange(request: Request) -> Exchange:
    found: Exchange = request.state.exchange
    return found


Ongoing = Annotated[Exchange, Depends(get_exchange)]


async def get_readable(name: Name, context: Server, grant: Key, exchange: Ongoing) -> Served:
    check_access(context, grant, "read", name)
    return Served(name, context, grant, exchange)


async def get_writable(name: Name, context: Server, grant: Key, exchange: Ongoing) -> Served:
    check_access(context, grant, "write", name)
    return Served(name, context, grant, exchange)


Readable = Annotated[Served, Depends(get_readable)]
Writable = Annotated[Served, Depends(get_writable)]


# The query string


def query(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return the dependency on a query string of a type."""

    async def read(request: Request) -> T:
        return read_query(request.url.query, kind)

    return read


# The body


def body(*kinds: str) -> Callable[[Request], Awaitable[Sent]]:
    """Return the dependency on a body of one of these types."""

    async def read(request: Request) -> Sent:
        headers = request.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in kinds:
            raise Refused(_unsupported(kind, kinds), 415)
        return Sent(await read_body(request), kind, headers.get("accept", ""), request.url.query)

    return read


async def upload_file(request: Request) -> str:
    """Return the path of the file that holds the body: the dependency of handlers that read files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FILE:
        raise Refused(_unsupported(kind, (FILE,)), 415)
    return await read_file(request)


async def accept(request: Request) -> str:
    """Return the type that the client would like to get."""
    return request.headers.get("accept", "")


Accept = Annotated[str, Depends(accept)]


async def read_body(request: Request) -> bytes:
    """Return the body of a request; refuse one that is too large or too slow, as it comes."""
    context: Context = request.app.state.context
    length = _checked_length(request, context)
    if context.held_bytes + length > context.limits.held_bytes:
        context.metrics.shed()
        busy = ServerBusy("the bodies of other requests take the memory", "try again", retry_after=RETRY_SECONDS)
        raise Refused(busy, 503, close=True)
    parts: list[bytes] = []
    with _in_time(context):
        async for part in _parts(request, context):
            parts.append(part)
    found = parts[0] if len(parts) == 1 else b"".join(parts)
    exchange: Exchange = request.state.exchange
    exchange.held_bytes = len(found)
    context.held_bytes += len(found)
    return found


async def read_file(request: Request) -> str:
    """Write the body of a request to a file of a name of our own, which the end of the exchange deletes."""
    context: Context = request.app.state.context
    _checked_length(request, context)
    handle, path = tempfile.mkstemp(prefix="slosh-upload-")
    request.state.exchange.file = path
    with os.fdopen(handle, "wb") as file, _in_time(context):
        async for part in _parts(request, context):
            file.write(part)
    return path


def _checked_length(request: Request, context: Context) -> int:
    if request.headers.get("content-encoding", "identity") != "identity":
        error = InputError("the body is compressed", "send it as it is", argument="Content-Encoding")
        raise Refused(error, 415, close=True)
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > context.limits.body_bytes:
        raise _too_large(context)
    return int(length)


async def _parts(request: Request, context: Context) -> AsyncIterator[bytes]:
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > context.limits.body_bytes:
                raise _too_large(context)
            yield part
    except ClientDisconnect:
        raise Refused(InputError("the client went away", argument="body"), 400, close=True) from None


@contextlib.contextmanager
def _in_time(context: Context) -> Iterator[None]:
    try:
        with fail_after(context.limits.body_seconds):
            yield
    except TimeoutError:
        late = ServerBusy("the body did not come in time", "send it faster, or in parts")
        raise Refused(late, 408, close=True) from None


def _too_large(context: Context) -> Refused:
    remedy = f"send at most {context.limits.body_bytes:,} bytes"
    return Refused(InputError("the body is too large", remedy, argument="body"), 413, close=True)


def _unsupported(kind: str, kinds: tuple[str, ...]) -> UnsupportedError:
    problem = f"a body of the type {kind!r:.60}" if kind else "a body without Content-Type"
    return UnsupportedError(problem, f"send {' or '.join(kinds)}", argument="body", feature_name="Content-Type")
