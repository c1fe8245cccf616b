"""Connections, before there is a request: how many there are, and how large and how slow the head of a request may be.

httptools takes heads of any size and uvicorn waits for them for ever. So the protocol of uvicorn is extended: what a
client sends passes through it, and what is too much is answered as problem details, and ends the connection.
"""

from __future__ import annotations

import asyncio
import http
import logging
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import InputError, ServerBusy, SloshError
from ..wire import PROBLEM, problem_of
from .access_log import write_line
from .exchange import RETRY_SECONDS
from .settings import Limits
from .streams import IS_STREAM

SLACK_BYTES, FRAMING = 1 << 16, 8
"""Bytes of a body that are not content: this many, and so many times its content (chunks of one byte take 6)."""

ANSWER_BYTES = 1 << 18
"""What a client has to take of an answer in `Limits.answer_seconds`."""
LINGER_SECONDS = 1.0
_quiet = logging.getLogger("uvicorn.error.connections")
_quiet.setLevel(logging.ERROR)
"""In the place of the logger of uvicorn, which warns of each request that is no HTTP."""


def limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return the class of the connections of a server."""

    class Limited(LimitedProtocol):
        pass

    Limited.limits = limits
    return Limited


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    limits = Limits()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head, self._head_bytes, self._framing_bytes = True, 0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._waiting_bytes, self._has_progress = 0, False
        self._refused = False
        self.logger = _quiet  # what is wrong is a line of the access log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            problem = f"there are more than {self.limits.connections} connections"
            self._refuse(ServerBusy(problem, "try again later", retry_after=RETRY_SECONDS), 503)
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._in_head and self._head_bytes:
            if self._head_bytes > self.limits.header_bytes:
                self._refuse(headers_too_large(self.limits), 431)
            elif self._timer is None:
                self._start_timer()
        elif not self._in_head and self._framing_bytes > SLACK_BYTES:
            self._refuse(InputError("the body has more framing than content", argument="body"), 400)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = max(self._head_bytes, 1)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        too_large = size > self.limits.header_bytes or len(self.headers) > self.limits.headers
        if too_large:
            self.url = b"/"  # of a longer one httptools makes no path
            self.scope["state"]["headers_too_large"] = True  # the application answers it
        self._in_head, self._head_bytes, self._framing_bytes = False, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= FRAMING * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timer()
        self._in_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head and self._timer is None:
            self._start_timer()  # the rest of a body that nobody reads any more
        self._has_progress = True  # what was written before it has been taken
        self._watch_answer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_progress = True

    def _watch_answer(self) -> None:
        """See to it that the client takes what is written: until then it keeps the memory and the connection."""
        if self._answer_timer is None and (waiting := self.transport.get_write_buffer_size()):
            self._waiting_bytes, self._has_progress = waiting, False
            is_stream = self.cycle is not None and self.cycle.scope["state"].get(IS_STREAM)
            seconds = self.limits.stream_seconds if is_stream else self.limits.answer_seconds
            self._answer_timer = self.loop.call_later(seconds, self._check_answer)

    def _check_answer(self) -> None:
        """End the connection if the client took too little of an answer, or of what is left of it."""
        self._answer_timer = None
        is_over = self.cycle is None or self.cycle.response_complete
        taken = self._waiting_bytes - self.transport.get_write_buffer_size()
        is_little = taken < min(self._waiting_bytes, ANSWER_BYTES)
        if is_little and not self._has_progress and (is_over or self.flow.write_paused):
            self.transport.abort()
        else:
            self._watch_answer()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InputError("this is not HTTP", "send a request of HTTP/1.1", argument="request"), 400)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self._in_head and self._head_bytes:
            self._refuse(InputError("the head of the request did not come in time", argument="headers"), 408)
        else:
            self.transport.close()

    def _refuse(self, error: SloshError, status: int) -> None:
        """Answer what is no request of the application, and end the connection.

        What the client goes on sending is dropped for a moment: a connection that is closed on unread bytes is reset,
        and the client may not see the answer.
        """
        self._refused = True
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()  # its request is in the access log
        answer = _answer(error, status)
        if self.cycle is None or self.cycle.response_complete:
            about = {"id": "", "method": "", "route": "", "path": ""}
            write_line(about, client=self.client, status=status, seconds=0.0, size=len(answer))
        self.transport.write(answer)
        if len(self.connections) > self.limits.connections or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def headers_too_large(limits: Limits) -> InputError:
    problem, most = "the headers are too large", f"{limits.header_bytes:,} bytes and {limits.headers} headers"
    return InputError(problem, f"send at most {most}", argument="headers")


def _answer(error: SloshError, status: int) -> bytes:
    content = msgspec.json.encode(problem_of(error, status))
    lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", f"Content-Type: {PROBLEM}", "Connection: close"]
    lines += [f"Content-Length: {len(content)}", *([f"Retry-After: {RETRY_SECONDS}"] if status == 503 else [])]
    return "\r\n".join([*lines, "", ""]).encode() + content
