"""What surrounds every request, as ASGI middleware: counts, log and headers; and which requests are let in, how many at
a time, and for how long.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time

from anyio import CancelScope
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..data.progress import watched
from ..errors import ServerBusy
from .access_log import write_line
from .connections import headers_too_large
from .context import Context
from .exchange import RETRY_SECONDS, Exchange, late
from .guard import Guard
from .problems import Refused, problem_response

SECURITY: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
POLICY = b"content-security-policy"
NO_PAGE: tuple[tuple[bytes, bytes], ...] = (
    (POLICY, b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
ALWAYS_ANSWERED = ("/health", "/ready", "/metrics")
"""Paths that are answered however many requests are under way."""


class Observed:
    """Counts and logs requests, adds the security headers, and answers what nobody else has caught.

    Behind workers it neither counts nor logs: they do.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        self._ids, self._prefix = itertools.count(1), secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, size = time.perf_counter(), 0, 0
        metrics, id = self._context.metrics, f"{self._prefix}-{next(self._ids)}"
        request_id = (b"x-request-id", id.encode())

        async def send_on(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
                own = () if any(name == POLICY for name, _ in headers) else NO_PAGE
                message["headers"] = [*headers, *SECURITY, *own, request_id]
            else:
                size += len(message.get("body", b""))
            await send(message)

        counts = not self._context.behind_workers
        if counts:
            metrics.begun()
        path = scope["raw_path"].decode("latin-1")  # quoted, as a name may hold a slash
        # HEAD is answered as GET; uvicorn, which has the method, leaves out the body.
        method = scope["method"]
        scope = {**scope, "path": path, "method": "GET" if method == "HEAD" else method}
        try:
            await self._app(scope, receive, send_on)
        except Exception as error:
            if status:
                raise  # the connection ends, so that the client sees that the answer is not whole
            await problem_response(error, self._context.catalog)(scope, receive, send_on)
        except asyncio.CancelledError:
            if not self._context.stopping:
                raise
            if not status:  # uvicorn waits no longer for what was begun
                ended = ServerBusy("the server stopped before this was done", "try again", retry_after=RETRY_SECONDS)
                await problem_response(Refused(ended, 503, close=True), self._context.catalog)(scope, receive, send_on)
        finally:
            if counts:
                route = getattr(scope.get("route"), "path_format", "")
                seconds = time.perf_counter() - started
                metrics.ended(f"{scope['method']} {route}", status or 499, seconds, size)
                if self._context.settings.access_log:
                    self._log(scope, {"id": id, "method": method, "route": route}, status or 499, seconds, size)

    def _log(self, scope: Scope, about: dict[str, str], status: int, seconds: float, size: int) -> None:
        client, place = scope.get("client"), scope.get("path_params") or {}
        exchange: Exchange | None = scope.get("state", {}).get("exchange")
        about = about if about["route"] else {**about, "path": scope["path"][:200]}
        key, name = "" if exchange is None else exchange.key, str(place.get("name") or place.get("id") or "")
        write_line(about, client=client, status=status, seconds=seconds, size=size, key=key, name=name)


def is_page(scope: Scope) -> bool:
    """Return whether a request is for the page or the document, to which other sites may link."""
    return scope["method"] == "GET" and (
        scope["path"] in ("/", "/openapi.json") or scope["path"].startswith("/static/")
    )


class Admitted:
    """Lets in requests of known hosts and of no other site, a number at a time, and answers for those that are late."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        self._guard, self._in_flight = Guard(context.settings, bool(context.keys)), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context, page = self._context, is_page(scope)
        if scope.get("state", {}).get("headers_too_large"):
            raise Refused(headers_too_large(context.limits), 431, close=True)
        self._guard.check(scope["headers"], page)
        if not page:
            self._check_load(scope["path"])
        exchange = Exchange(context.limits.deadline_seconds)
        scope.setdefault("state", {})["exchange"] = exchange
        started, apology, work = False, None, CancelScope()

        async def send_on(message: Message) -> None:
            nonlocal started
            if apology is None:
                started = True
                await send(message)

        def apologize(error: Exception) -> None:
            nonlocal apology
            apology = loop.create_task(problem_response(error, context.catalog)(scope, receive, send))
            work.cancel()  # what waits for a thread or a body ends now, what has a thread at its next step

        def end_reading() -> None:
            if exchange.is_reading and not started and apology is None:
                slow = ServerBusy("the body did not come in time", "send it faster, or in parts")
                apologize(Refused(slow, 408, close=True))

        def expire() -> None:
            if not started and apology is None and exchange.expire():
                apologize(late())

        loop = asyncio.get_running_loop()
        limits = context.limits
        timers = (loop.call_later(limits.body_seconds, end_reading), loop.call_later(limits.deadline_seconds, expire))
        self._in_flight += 1
        try:
            with work, watched(exchange.check):
                await self._app(scope, receive, send_on)
        finally:
            self._in_flight -= 1
            context.held_bytes -= exchange.held_bytes
            for timer in timers:
                timer.cancel()
            exchange.release()
            if apology is not None:
                await apology

    def _check_load(self, path: str) -> None:
        if self._context.stopping:
            busy = ServerBusy("the server is stopping", "try again", retry_after=RETRY_SECONDS)
            raise Refused(busy, 503, close=True)
        if self._in_flight >= self._context.limits.at_once and path not in ALWAYS_ANSWERED:
            self._context.metrics.shed()
            problem = f"more than {self._context.limits.at_once} requests are under way"
            raise Refused(ServerBusy(problem, "try again later", retry_after=RETRY_SECONDS), 503)
