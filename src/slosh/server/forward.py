"""What a worker does not do itself it forwards to the process that writes, over a socket in a folder of their own."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from functools import partial

from anyio import to_thread
from fastapi import Request
from starlette.responses import Response

from ..errors import ServerBusy, UnknownOutcome
from .dependencies import FILE, Reader, read_body, read_file

KEPT_HEADERS = ("content-type", "accept", "authorization", "host")
"""Headers of a request that the other process looks at: it checks what the key allows."""
SECONDS = 600.0


class _LocalConnection(http.client.HTTPConnection):
    """An HTTP connection over a socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


class Forwarder:
    """The way to the process that writes; connections are kept alive, one for each request under way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[_LocalConnection] = []
        self._lock = threading.Lock()

    def _take(self) -> _LocalConnection:
        """Return a connection: an idle one, unless the other process has closed it meanwhile, or a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    return _LocalConnection(self._path)
                connection = self._idle.pop()
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def forward(self, method: str, target: str, headers: dict[str, str], body: bytes, file: str | None) -> Response:
        """Send a request to the other process, and return its answer."""
        connection = self._take()
        try:
            if file is None:
                connection.request(method, target, body, headers)
            else:
                with open(file, "rb") as content:
                    connection.request(method, target, content, headers)
            response = connection.getresponse()
            answer = response.read()
        except ConnectionRefusedError:
            connection.close()
            raise ServerBusy("the process that writes is not there", "try again", retry_after=1.0) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            problem = f"the process that writes did not answer ({error})"
            raise UnknownOutcome(problem, "look whether the change was made") from None
        with self._lock:
            self._idle.append(connection)
        again = response.getheader("retry-after")
        more = {} if again is None else {"retry-after": again}
        return Response(answer, response.status, more, response.getheader("content-type"))


async def forward(request: Request, asking: Reader) -> Response:
    """Answer a request as the process that writes does: the endpoint of all its routes in a worker."""
    headers = {name: request.headers[name] for name in KEPT_HEADERS if name in request.headers}
    is_file = headers.get("content-type") == FILE
    file = await read_file(request) if is_file else None
    body = b"" if is_file else await read_body(request)
    target = request.scope["raw_path"].decode("ascii") + (f"?{request.url.query}" if request.url.query else "")
    asking.exchange.begin()  # the other process has its own deadline
    send = partial(request.app.state.forwarder.forward, request.method, target, headers, body, file)
    limiter = asking.context.short_work if request.method == "GET" else None
    answer: Response = await to_thread.run_sync(send, limiter=limiter)
    return answer
