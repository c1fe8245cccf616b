"""What a worker does not do itself it forwards to the process that writes, over a socket in a folder of their own."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable

from ..errors import ServerBusy, UnknownOutcome
from .routes import Reply

KEPT_HEADERS = (b"content-type", b"accept", b"authorization", b"host")
"""Headers of a request that the other process looks at. The key is checked there once more."""
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

    def forward(
        self, method: str, target: bytes, headers: dict[bytes, bytes], body: bytes, file: str | None
    ) -> Callable[[], Reply]:
        """Return the call that forwards a request and returns its reply."""
        kept = {name.decode(): headers[name].decode("latin-1") for name in KEPT_HEADERS if name in headers}

        def call() -> Reply:
            with self._lock:
                connection = self._idle.pop() if self._idle else _LocalConnection(self._path)
            try:
                if file is None:
                    connection.request(method, target.decode("ascii"), body, kept)
                else:
                    with open(file, "rb") as content:
                        connection.request(method, target.decode("ascii"), content, kept)
                response = connection.getresponse()
                content_ = response.read()
            except ConnectionRefusedError:
                connection.close()
                raise ServerBusy("the process that writes is not there", "try again", retry_after=1.0) from None
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                problem = f"the process that writes did not answer ({error})"
                raise UnknownOutcome(problem, "look whether the change was made") from None
            with self._lock:
                self._idle.append(connection)
            kind, again = response.getheader("content-type", ""), response.getheader("retry-after")
            more = () if again is None else ((b"retry-after", again.encode()),)
            return Reply(content_, kind, response.status, more)

        return call
