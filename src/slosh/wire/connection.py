"""Connections of a client to a server: kept alive, one for each request under way, shared by threads.

A request comes in; the body of the answer goes out, or the exception that the server's problem details describe.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ..data.interrupts import interruptible, uninterrupted
from ..engines.addresses import split_name, without_password
from ..errors import (
    AccessDenied,
    IndexClosed,
    ServerBusy,
    ServerLost,
    SloshError,
    StorageError,
    UnknownOutcome,
    bad_value,
)
from .messages import JSON
from .problems import error_of

KEY_VARIABLE = "SLOSH_API_KEY"
"""The variable of the environment that holds the API key, where the address has none."""
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 600.0
"""How long to wait for a connection, and for an answer."""
TRIES, FIRST_PAUSE, LONGEST_PAUSE = 5, 0.2, 5.0
"""How often a request is sent that the server sheds, and seconds between two tries."""
FRAME_BYTES = 8
"""The length in front of each frame of a stream."""


class Answer(NamedTuple):
    """The answer to a request: its status, type, and body."""

    status: int
    kind: str
    body: bytes
    location: str = ""

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise not_slosh(self.location) from None


class Connection:
    """The way to one server. Threads may share it; a process that was forked has to make its own."""

    def __init__(self, address: str) -> None:
        url, self.name = split_name(address)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise bad_value("path", without_password(address), "give the address of a server, as in http://host:8080")
        self.location = without_password(address)
        self._host, self._port, self._base = parts.hostname, parts.port, parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        key = unquote(parts.password or "") or os.environ.get(KEY_VARIABLE, "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._idle: list[http.client.HTTPConnection] = []
        self._lock, self._pid, self.closed = threading.Lock(), os.getpid(), False

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        kind: str = JSON,
        accept: str = JSON,
        *,
        changes: bool = False,
    ) -> Answer:
        """Send a request and return its answer; raise the error that it describes.

        With `changes`, Ctrl-C waits for the answer: whether the change was made is known then. A request that the
        server sheds is sent again after a pause, as the server has not begun with it.
        """
        headers = {**self._headers, "Content-Type": kind, "Accept": accept}
        for left in range(TRIES - 1, -1, -1):
            try:
                if changes:
                    with uninterrupted():
                        return self._exchange(method, path, body, headers, changes)
                return self._exchange(method, path, body, headers, changes)
            except ServerBusy as busy:
                if not left:
                    raise
                pause = FIRST_PAUSE * 2 ** (TRIES - 1 - left) if busy.retry_after is None else busy.retry_after
                with interruptible():  # the server has not begun
                    time.sleep(min(pause, LONGEST_PAUSE))
        raise AssertionError

    def frames(self, path: str) -> Iterator[bytes]:
        """Yield the frames of an answer that is a stream, as they come."""
        connection = self._take()
        try:
            response = self._send(connection, "GET", path, b"", self._headers, False)
            if response.status != 200:
                raise self._error(response.status, response, response.read())
            while True:
                head = response.read(FRAME_BYTES)
                if not head:
                    return
                length = int.from_bytes(head, "little")
                frame = response.read(length)
                if len(head) < FRAME_BYTES or len(frame) < length:
                    raise ServerLost(f"{self.location} went away in the middle of its answer", "try again")
                yield frame
        except (OSError, http.client.HTTPException) as error:
            raise _translated(error, self.location, False) from error
        finally:
            connection.close()

    def check_open(self) -> None:
        """Refuse what is closed, or is another process's."""
        if self.closed:
            raise IndexClosed("the index is closed", "open it again with slosh.open")
        if self._pid != os.getpid():
            raise IndexClosed("this process was forked from the one that opened the index", "open it again, here")

    def close(self) -> None:
        """Close the connections that nobody uses; those in use are closed after their answer."""
        with self._lock:
            self.closed, idle, self._idle = True, self._idle, []
        if self._pid == os.getpid():
            for connection in idle:
                connection.close()

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], changes: bool) -> Answer:
        connection = self._take()
        try:
            response = self._send(connection, method, path, body, headers, changes)
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _translated(error, self.location, changes) from error
        except BaseException:
            connection.close()
            raise
        if response.will_close or self.closed:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        if response.status >= 400:
            raise self._error(response.status, response, content)
        return Answer(response.status, response.getheader("Content-Type", ""), content, self.location)

    def _send(
        self, connection: Any, method: str, path: str, body: bytes, headers: dict[str, str], changes: bool
    ) -> http.client.HTTPResponse:
        """Send a request; where an idle connection turns out to be gone before an answer began, on a new one."""
        was_open = connection.sock is not None
        try:
            _connect(connection, self.location)
            connection.request(method, self._base + path, body, headers)
            return connection.getresponse()  # type: ignore[no-any-return]
        except (ConnectionError, http.client.RemoteDisconnected):
            if not was_open or changes:
                raise
            connection.close()
            _connect(connection, self.location)
            connection.request(method, self._base + path, body, headers)
            return connection.getresponse()  # type: ignore[no-any-return]

    def _take(self) -> http.client.HTTPConnection:
        self.check_open()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
                return kind(self._host, self._port, timeout=CONNECT_SECONDS)
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            connection.close()  # the server has closed it

    def _error(self, status: int, response: http.client.HTTPResponse, content: bytes) -> SloshError:
        try:
            problem = json.loads(content)
        except ValueError:
            problem = {}
        found = error_of(problem if isinstance(problem, dict) else {}, self.location, status)
        if isinstance(found, ServerBusy) and found.retry_after is None:
            after = response.getheader("Retry-After", "")
            found.retry_after = float(after) if after.isdigit() else None
        if status == 401:
            said = found.problem if isinstance(found, AccessDenied) else "the server needs a key"
            remedy = f"set {KEY_VARIABLE}, or give the key in the address, as in http://:KEY@host:8080"
            return AccessDenied(f"{self.location}: {said}", remedy, errno.EACCES, location=self.location)
        return found


def not_slosh(location: str) -> StorageError:
    """Return the error of an answer that slosh serve does not give."""
    return StorageError(f"{location} does not answer as slosh serve does", "check the address", location=location)


def _is_readable(sock: socket.socket) -> bool:
    """Return whether there is something to read where nothing should be: the other side has closed it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _connect(connection: Any, location: str) -> None:
    if connection.sock is not None:
        return
    try:
        connection.connect()
    except OSError as error:
        problem = f"{location}: the server cannot be reached ({error.strerror or error})"
        raise ServerLost(
            problem, "check the address, and whether slosh serve runs", error.errno, location=location
        ) from error
    _set_up(connection.sock)


def _set_up(sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(ANSWER_SECONDS)


def _translated(error: Exception, location: str, changes: bool) -> Exception:
    """Return an error of the connection as one of slosh; one of slosh as it is."""
    if isinstance(error, SloshError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    said = str(error) or type(error).__name__
    if changes:
        problem = f"{location}: the connection failed before the answer came ({said:.200})"
        return UnknownOutcome(problem, "look whether the change was made", number or errno.EIO, location=location)
    return ServerLost(f"{location}: the connection failed ({said:.200})", "try again", number, location=location)
