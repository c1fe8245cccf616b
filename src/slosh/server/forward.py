"""What a worker does not do itself it forwards to the process that writes, over a socket in a folder of their own.

A request that is forwarded holds a connection, and no thread: it may wait long, for the end of a job.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import os
from collections.abc import Iterator
from typing import NamedTuple

from anyio import fail_after
from fastapi import Request
from starlette.responses import Response

from ..errors import ServerBusy, UnknownOutcome
from .dependencies import FILE, Reader, read_body, read_file

KEPT_HEADERS = ("content-type", "accept", "authorization", "host")
"""Headers of a request that the other process looks at: it checks what the key allows."""
SECONDS = 600.0
PART_BYTES = 1 << 20


class _Connection(NamedTuple):
    """A connection to the other process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()


class Forwarder:
    """The way to the process that writes; connections are kept alive, one for each request under way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[_Connection] = []

    async def _take(self) -> _Connection:
        """Return a connection: an idle one, unless the other process has closed it meanwhile, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.writer.close()
        try:
            return _Connection(*await asyncio.open_unix_connection(self._path))
        except OSError:
            raise ServerBusy("the process that writes is not there", "try again", retry_after=1.0) from None

    async def forward(self, head: bytes, parts: Iterator[bytes]) -> Response:
        """Send a request to the other process, and return its answer."""
        connection, is_kept = await self._take(), False
        try:
            with fail_after(SECONDS):
                connection.writer.write(head)
                for part in parts:
                    connection.writer.write(part)
                    await connection.writer.drain()
                status, headers, answer = await _read_answer(connection.reader)
            is_kept = headers.get("connection", "").lower() != "close"
        except (OSError, EOFError, ValueError) as error:
            problem = f"the process that writes did not answer ({error})"
            raise UnknownOutcome(problem, "look whether the change was made") from None
        finally:
            if is_kept:
                self._idle.append(connection)
            else:
                connection.writer.close()
        again = headers.get("retry-after")
        return Response(answer, status, {} if again is None else {"retry-after": again}, headers.get("content-type"))


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return status, headers and body of an answer; those of our own server all say their length."""
    first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    headers = http.client.parse_headers(io.BytesIO(rest))
    return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def _parts_of(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(PART_BYTES):
            yield part


async def forward(request: Request, asking: Reader) -> Response:
    """Answer a request as the process that writes does: the endpoint of all its routes in a worker."""
    if request.headers.get("content-type") == FILE:
        file = await read_file(request)
        size, parts = os.path.getsize(file), _parts_of(file)
    else:
        body = await read_body(request)
        size, parts = len(body), iter([body])
    asking.exchange.begin()  # nothing queues here, and the other process has its own deadline
    answer: Response = await request.app.state.forwarder.forward(_head_of(request, size), parts)
    return answer


def _head_of(request: Request, size: int) -> bytes:
    """Return the head of a request as it is sent on, with a body of so many bytes."""
    path, query = request.scope["raw_path"], request.scope["query_string"]
    kept = {name: request.headers[name] for name in KEPT_HEADERS if name in request.headers}
    headers = [f"{name}: {value}".encode("latin-1") for name, value in {**kept, "content-length": size}.items()]
    first = b"%s %s HTTP/1.1" % (request.method.encode(), path + (b"?" + query if query else b""))
    return b"\r\n".join([first, *headers, b"", b""])
