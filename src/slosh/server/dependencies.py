"""What handlers depend on, for FastAPI to provide: the key, the index, the query string and the body of a request.

The key is checked before the body is read: so the parameter for the index comes first in the signature of a handler.
Nothing here blocks: an index is opened by the handler, in its thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

from anyio import to_thread
from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..errors import AccessDenied, InputError, ReadOnlyIndex, ServerBusy, UnsupportedError
from ..index import SetIndex
from .bodies import Sent, Shape, read_query
from .context import Context
from .exchange import RETRY_SECONDS, Exchange
from .keys import Grant
from .problems import Refused
from .request_types import Body

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


@dataclass(frozen=True)
class Asking:
    """Who asks: what the key allows, the exchange, and the name of the index that it is about, if it is about one."""

    context: Context
    grant: Grant
    exchange: Exchange
    name: str = ""

    def open(self) -> SetIndex:
        """Return the index, which may have to be opened first: to be called in a thread."""
        self.exchange.check()
        return self.context.index(self.name)

    def open_to_change(self) -> SetIndex:
        """Return the index for a change, which is then finished, however long it takes."""
        self.exchange.begin()
        return self.open()

    def shape(self) -> Shape:
        """Return the dimension and the origin of the sets of the index."""
        return self.context.shape(self.name, self.open())


bearer = HTTPBearer(scheme_name="key", description="Needed where the server was started with keys.", auto_error=False)
SentKey = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
Name = Annotated[str, Path(min_length=1)]


def admit(request: Request, key: HTTPAuthorizationCredentials | None, access: str, name: str = "") -> Asking:
    """Return who asks; refuse what the key does not allow."""
    context: Context = request.app.state.context
    grant, index = context.keys.grant(None if key is None else key.credentials), name or None
    request.state.exchange.key = grant.key
    if grant.allows(access, index):
        _check_query(request)
        return Asking(context, grant, request.state.exchange, name)
    if not grant.read:
        problem = "this server needs an API key" if key is None else "the server does not know this API key"
        error = AccessDenied(problem, "send one of its keys as Authorization: Bearer KEY")
        raise Refused(error, 401, close=True)
    if context.settings.read_only and access == "write" and grant.allows("read", index):
        raise Refused(ReadOnlyIndex("this server is for reading only", "start it without --read-only"), 403, close=True)
    what = "write" if grant.allows("read", index) else "use this index"
    raise Refused(AccessDenied(f"the key does not allow to {what}", "use another key"), 403, close=True)


async def anyone(request: Request, key: SentKey) -> Asking:
    return admit(request, key, "none")


async def reader(request: Request, key: SentKey) -> Asking:
    return admit(request, key, "read")


async def writer(request: Request, key: SentKey) -> Asking:
    return admit(request, key, "write")


async def reader_of(request: Request, name: Name, key: SentKey) -> Asking:
    return admit(request, key, "read", name)


async def writer_of(request: Request, name: Name, key: SentKey) -> Asking:
    return admit(request, key, "write", name)


Anyone = Annotated[Asking, Depends(anyone)]
Reader = Annotated[Asking, Depends(reader)]
Writer = Annotated[Asking, Depends(writer)]
ReaderOf = Annotated[Asking, Depends(reader_of)]
"""Who may read the index that the path names."""
WriterOf = Annotated[Asking, Depends(writer_of)]
"""Who may change the index that the path names."""


def short(handler: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """Return a handler of short work: it runs in threads of its own, so that long work cannot keep it waiting."""

    @wraps(handler)
    async def run(asking: Asking, **given: Any) -> Response:
        return await to_thread.run_sync(partial(handler, asking, **given), limiter=asking.context.short_work)

    return run


# The query string


def _check_query(request: Request) -> None:
    """Refuse a query string where the route takes none, as the OpenAPI document says. Others are read by `query`.

    Routes that a worker forwards say nothing of theirs: the process that writes checks it.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    takes_none = route.openapi_extra is not None and "parameters" not in route.openapi_extra
    if takes_none and route.path_format.startswith("/v1/"):
        read_query(_query_of(request), Body)


def query(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return the dependency on a query string of a type."""

    async def read(request: Request) -> T:
        return read_query(_query_of(request), kind)

    return read


# The body


async def read_sent(request: Request, kinds: tuple[str, ...]) -> Sent:
    """Return a body of one of these types."""
    kind = _checked_kind(request, kinds)
    return Sent(await read_body(request), kind, request.headers.get("accept", ""), _query_of(request))


def body(*kinds: str) -> Callable[[Request], Awaitable[Sent]]:
    """Return the dependency on a body of one of these types."""

    async def read(request: Request) -> Sent:
        return await read_sent(request, kinds)

    return read


async def upload_file(request: Request) -> str:
    """Return the path of the file that holds the body: the dependency of handlers that read files."""
    _checked_kind(request, (FILE,))
    return await read_file(request)


async def accept(request: Request) -> str:
    """Return the type that the client would like to get."""
    return request.headers.get("accept", "")


Accept = Annotated[str, Depends(accept)]


async def read_body(request: Request) -> bytes:
    """Return the body of a request; refuse one that is too large, as it comes."""
    parts = [part async for part in _parts(request, request.app.state.context)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_file(request: Request) -> str:
    """Write the body of a request to a file of a name of our own, which the end of the exchange deletes."""
    context: Context = request.app.state.context
    context.folder.mkdir(0o700, exist_ok=True)  # one who tidies up the temporary directory may have removed it
    handle, path = tempfile.mkstemp(prefix="upload-", dir=context.folder)
    request.state.exchange.file = path
    with os.fdopen(handle, "wb") as file:
        async for part in _parts(request, context):
            file.write(part)
    return path


async def _parts(request: Request, context: Context) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they come. The middleware ends it when they come too slowly.

    A body that says its length takes that much of what the server holds from its beginning; another one takes what has
    come.
    """
    exchange: Exchange = request.state.exchange
    _hold(_checked_length(request, context), exchange, context)
    size, exchange.is_reading = 0, True
    try:
        async for part in request.stream():
            size += len(part)
            if size > context.limits.body_bytes:
                raise _too_large(context)
            _hold(size, exchange, context)
            if part:
                yield part
    except ClientDisconnect:
        raise Refused(InputError("the client went away", argument="body"), 400, close=True) from None
    exchange.is_reading = False


def _hold(size: int, exchange: Exchange, context: Context) -> None:
    """Count the bytes of a body among those of all bodies; refuse it if they are too many."""
    more = size - exchange.held_bytes
    if more <= 0:
        return
    if context.held_bytes + more > context.limits.held_bytes:
        context.metrics.shed()
        busy = ServerBusy("the bodies of other requests take the memory", "try again", retry_after=RETRY_SECONDS)
        raise Refused(busy, 503, close=True)
    exchange.held_bytes += more
    context.held_bytes += more


def _checked_kind(request: Request, kinds: tuple[str, ...]) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in kinds:
        return kind
    problem = f"a body of the type {kind!r:.60}" if kind else "a body without Content-Type"
    remedy = f"send {' or '.join(kinds)}"
    raise Refused(UnsupportedError(problem, remedy, argument="body", feature_name="Content-Type"), 415)


def _checked_length(request: Request, context: Context) -> int:
    if request.headers.get("content-encoding", "identity") != "identity":
        error = InputError("the body is compressed", "send it as it is", argument="Content-Encoding")
        raise Refused(error, 415, close=True)
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > context.limits.body_bytes:
        raise _too_large(context)
    return int(length)


def _too_large(context: Context) -> Refused:
    remedy = f"send at most {context.limits.body_bytes:,} bytes"
    return Refused(InputError("the body is too large", remedy, argument="body"), 413, close=True)


def _query_of(request: Request) -> str:
    text: bytes = request.scope["query_string"]
    return text.decode("latin-1")
