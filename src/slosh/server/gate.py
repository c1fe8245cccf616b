"""The gate: every request comes in here, as ASGI, and leaves as an answer, whatever happens to it.

Host, origin and key are checked before the body is read, the body against its limits as it comes, and the work has a
deadline. More requests than the server takes at once are shed, with the time after which to try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ..data.progress import watched
from ..errors import InputError, ServerBusy, SloshError, UnknownId
from ..wire import PROBLEM, problem_of
from . import drawing, fields, index_routes, job_routes, maps
from .bodies import unsupported_kind
from .context import Context
from .forward import Forwarder
from .guard import Guard
from .lane import Lane
from .pages import API_HEADERS, Page, Pages
from .routes import ROUTES, Reply, Request, Route, methods_of, split_path
from .schemas import Wait
from .set_routes import FILE
from .streams import send_frames

access_log = logging.getLogger("slosh.access")
logger = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]
CLOSE = (b"connection", b"close")
RETRY_SECONDS = 1
SMALL_BODY = 1 << 16
"""Bytes of the body of a small search; larger ones would keep others waiting while they are decoded."""
ROUTE_MODULES = (drawing, fields, index_routes, job_routes, maps)
"""Imported for the routes that they register."""
_encode = msgspec.json.encode


class Refused(Exception):
    """A request that is answered without being worked on: the error, the status, and whether the connection ends."""

    def __init__(self, error: SloshError, status: int | None = None, close: bool = False) -> None:
        self.error, self.status, self.close = error, status, close


class Gate:
    """The ASGI application of one process. With a `forwarder`, changes go to the process that writes."""

    def __init__(self, context: Context, forwarder: Forwarder | None = None) -> None:
        self.context, self._forwarder = context, forwarder
        self._guard, self._pages = Guard(context.settings, context.keys), Pages()
        self._threads = ThreadPoolExecutor(context.settings.threads, thread_name_prefix="request")
        self._lane = Lane(context, self._threads, self._failed)
        self._in_flight, self._held, self.stopping = 0, 0, False
        self._ids, self._prefix = itertools.count(1), secrets.token_hex(4)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await asyncio.get_running_loop().run_in_executor(None, self.close)
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def close(self) -> None:
        """Finish what was begun, and close the indexes."""
        self._lane.close()
        self._threads.shutdown(wait=True)
        self.context.close()

    async def _http(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        started, route, name = time.perf_counter(), None, ""
        reply: Reply | None = None
        metrics = self.context.metrics
        metrics.begun()
        self._in_flight += 1
        try:
            try:
                headers = dict(scope["headers"])
                parts, name = split_path(scope["raw_path"])
                route = ROUTES.get((scope["method"], parts))
                reply = await self._reply(scope, headers, route, parts, name, receive)
            except Refused as refused:
                reply = self._failed(refused.error, refused.status)
                if refused.close:
                    reply = dataclasses.replace(reply, headers=(*reply.headers, CLOSE))
            except Exception as error:
                reply = self._failed(error)
            await self._send(reply, send)
        finally:
            self._in_flight -= 1
            seconds = time.perf_counter() - started
            status, size = (499, 0) if reply is None else (reply.status, len(reply.body))
            metrics.ended(route, status, seconds, size)
            if self.context.settings.access_log:
                self._log(scope, route, name, status, seconds, size)

    async def _reply(
        self,
        scope: dict[str, Any],
        headers: Headers,
        route: Route | None,
        parts: tuple[str | None, ...],
        name: str,
        receive: Receive,
    ) -> Reply:
        if (refused := self._guard.check_host(headers)) is not None:
            raise Refused(refused, 403, close=True)
        page = self._pages.get(scope["method"], parts, headers)
        if (refused := self._guard.check_origin(headers, page is not None)) is not None:
            raise Refused(refused, 403, close=True)
        if page is not None:
            return page
        if route is None:
            raise _no_route(scope["method"], parts, scope["raw_path"])
        grant = self._guard.grant(headers)
        about = name if parts[:2] == ("v1", "indexes") and name else None
        if (denied := self._guard.check_access(route, about, grant)) is not None:
            raise Refused(*denied, close=True)
        self._check_load(parts)
        deadline = time.monotonic() + self.context.limits.deadline_seconds
        is_file = route.bodies == (FILE,)
        body, file = await self._body(route, headers, receive, is_file)
        try:
            if self._forwarder is not None and route.owner:
                target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
                call = self._forwarder.forward(scope["method"], target, headers, body, file)
                return await self._in_thread(call, deadline, route.access == "write")
            kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
            if route.bodies and (route.body or is_file) and kind not in route.bodies:
                raise Refused(unsupported_kind(kind, route.bodies), 415)
            accept = headers.get(b"accept", b"").decode("latin-1")
            request = Request(name, scope["query_string"], body, kind, accept, grant, file)
            if route.hot and len(body) <= SMALL_BODY:
                return await self._until(self._lane.submit(request, deadline), deadline)
            reply = await self._in_thread(
                lambda: route.handler(self.context, request), deadline, route.access == "write"
            )
            return await self._after_job(request, reply) if reply.headers else reply
        finally:
            self._held -= len(body)
            if file is not None:
                with contextlib.suppress(OSError):
                    os.unlink(file)

    def _check_load(self, parts: tuple[str | None, ...]) -> None:
        if self.stopping:
            raise Refused(ServerBusy("the server is stopping", "try again", retry_after=RETRY_SECONDS), 503, close=True)
        if self._in_flight > self.context.limits.at_once and parts not in (("health",), ("ready",), ("metrics",)):
            self.context.metrics.shed()
            problem = f"more than {self.context.limits.at_once} requests are under way"
            raise Refused(ServerBusy(problem, "try again later", retry_after=RETRY_SECONDS), 503)

    async def _body(self, route: Route, headers: Headers, receive: Receive, is_file: bool) -> tuple[bytes, str | None]:
        """Return the body of a request, or the file that it is in; refuse one that is too large or too slow."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            error = InputError("the body is compressed", "send it as it is", argument="Content-Encoding")
            raise Refused(error, 415, close=True)
        most = self.context.limits.body_bytes
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            raise Refused(_too_large(most), 413, close=True)
        if not is_file and self._held + int(length) > self.context.limits.held_bytes:
            self.context.metrics.shed()
            busy = ServerBusy("the bodies of other requests take the memory", "try again", retry_after=RETRY_SECONDS)
            raise Refused(busy, 503, close=True)
        if length == b"0" and b"transfer-encoding" not in headers:
            return b"", _new_file() if is_file else None
        reading = self._read_file(receive, most) if is_file else self._read(receive, most)
        try:
            return await asyncio.wait_for(reading, self.context.limits.body_seconds)
        except asyncio.TimeoutError:
            late = ServerBusy("the body did not come in time", "send it faster, or in parts")
            raise Refused(late, 408, close=True) from None

    async def _read(self, receive: Receive, most: int) -> tuple[bytes, None]:
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts, size = [body], len(body)
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(InputError("the client went away", argument="body"), 400, close=True)
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise Refused(_too_large(most), 413, close=True)
            body = b"".join(parts)
        elif message["type"] == "http.disconnect":
            raise Refused(InputError("the client went away", argument="body"), 400, close=True)
        if len(body) > most:
            raise Refused(_too_large(most), 413, close=True)
        self._held += len(body)
        return body, None

    async def _read_file(self, receive: Receive, most: int) -> tuple[bytes, str]:
        """Write a body to a file of a name of our own."""
        path, size, more = _new_file(), 0, True
        try:
            with open(path, "wb") as file:
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(InputError("the client went away", argument="body"), 400, close=True)
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if size > most:
                        raise Refused(_too_large(most), 413, close=True)
                    file.write(part)
            return b"", path
        except BaseException:
            os.unlink(path)
            raise

    async def _in_thread(self, call: Callable[[], Reply], deadline: float, is_change: bool) -> Reply:
        """Return what a handler replies. A change that has begun is waited for, however long it takes."""

        def work() -> Reply:
            if time.monotonic() > deadline:
                raise _late()
            if is_change:
                return call()
            with watched(lambda *step: _check(deadline)):
                return call()

        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        return await future if is_change else await self._until(future, deadline)

    async def _until(self, future: asyncio.Future[Reply], deadline: float) -> Reply:
        done, _ = await asyncio.wait((future,), timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            future.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise Refused(_late(), 503)
        reply: Reply = future.result()
        return reply

    async def _after_job(self, request: Request, reply: Reply) -> Reply:
        """Wait for the end of the job that a reply is about, if the request asks for it, and return the newer reply."""
        found = dict(reply.headers).get(job_routes.JOB)
        if found is None:
            return reply
        job, seconds = self.context.jobs.get(found.decode()), request.parameters(Wait).wait
        if job is None or seconds <= 0:
            return dataclasses.replace(reply, headers=())
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(ended.set)

        job.listeners.append(tell)
        if not job.finished.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds)
        job.listeners.remove(tell)
        newer = job_routes.one_job(self.context, dataclasses.replace(request, name=job.id))
        return dataclasses.replace(newer, status=reply.status, headers=())

    def _failed(self, error: BaseException, status: int | None = None) -> Reply:
        """Return the problem details of an error as a reply, without places of this machine."""
        problem = problem_of(error, getattr(error, "status", None) if status is None else status)
        if problem["status"] >= 500 and problem["status"] != 503:
            logger.error("a request failed", exc_info=error)
        catalog = self.context.catalog
        for key in ("detail", "problem", "remedy"):
            problem[key] = catalog.shown(problem[key])
        for key, value in problem["fields"].items():
            if isinstance(value, str):
                problem["fields"][key] = catalog.shown(value)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if problem["status"] == 401:
            headers = ((b"www-authenticate", b'Bearer realm="slosh"'),)
        if problem["status"] == 503:
            after = problem["fields"].get("retry_after") or RETRY_SECONDS
            headers = ((b"retry-after", str(max(1, int(after))).encode()),)
        if problem["status"] == 405 and isinstance(error, _NoMethod):
            headers = ((b"allow", ", ".join(error.methods).encode()),)
        return Reply(_encode(problem, enc_hook=str), PROBLEM, problem["status"], headers)

    async def _send(self, reply: Reply, send: Send) -> None:
        base = () if isinstance(reply, Page) else API_HEADERS
        headers = [(b"content-type", reply.kind.encode()), *base, *reply.headers]
        if reply.frames is not None:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send_frames(reply.frames, send, self.context.limits.deadline_seconds)
            return
        headers.append((b"content-length", str(len(reply.body)).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _log(
        self, scope: dict[str, Any], route: Route | None, name: str, status: int, seconds: float, size: int
    ) -> None:
        client = scope.get("client")
        line = {
            "time": round(time.time(), 3),
            "id": f"{self._prefix}-{next(self._ids)}",
            "client": client[0] if client else "",
            "method": scope["method"],
            "route": "" if route is None else route.path,
            "name": name[:100],
            "status": status,
            "ms": round(seconds * 1000, 3),
            "bytes": size,
        }
        access_log.info("%s", _encode(line).decode())


class _NoMethod(UnknownId):
    """A path that has other methods than that of the request."""

    methods: tuple[str, ...] = ()


def _no_route(method: str, parts: tuple[str | None, ...], raw: bytes) -> Refused:
    shown = raw.decode("latin-1")[:100]
    if methods := methods_of(parts):
        remedy = f"it takes {', '.join(methods)}"
        return Refused(_NoMethod(f"{shown} takes no {method[:20]}", remedy, methods=tuple(methods)), 405)
    return Refused(UnknownId(f"there is no route {shown}", "/openapi.json lists them", id=shown), 404)


def _new_file() -> str:
    """Return the path of a new, empty file."""
    handle, path = tempfile.mkstemp(prefix="slosh-upload-")
    os.close(handle)
    return path


def _too_large(most: int) -> InputError:
    return InputError("the body is too large", f"send at most {most:,} bytes", argument="body")


def _late() -> ServerBusy:
    return ServerBusy("the request was not answered in time", "ask for less at a time", retry_after=RETRY_SECONDS)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise _late()
