"""Answers that are streams: frames are made in a thread of their own, and sent as the client takes them.

The thread holds a view of the index, which belongs to one thread. It ends when all is sent, the client goes away, or
does not take a frame in time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import TimeoutError as FutureTimeout

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ..errors import ServerBusy
from .context import Context
from .exchange import RETRY_SECONDS
from .problems import Refused

IS_STREAM = "is_stream"
"""What the state of a request says whose answer is a stream."""
AHEAD = 2
"""Frames that are made before they are taken."""


class FramesResponse(StreamingResponse):
    """An answer of frames. What goes wrong on the way ends the connection, so that the client knows."""

    def __init__(self, frames: Iterator[bytes], context: Context, media_type: str) -> None:
        if context.streams >= context.limits.streams:
            busy = ServerBusy(f"{context.streams} streams are under way", "try again later", retry_after=RETRY_SECONDS)
            raise Refused(busy, 503)
        self._seconds, self._context = context.limits.stream_seconds, context
        super().__init__(_from_thread(frames, self._seconds), media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][IS_STREAM] = True  # the connection has patience with it
        self._context.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.streams -= 1

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._seconds)

        await super().stream_response(send_in_time)


async def _from_thread(frames: Iterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        future = asyncio.run_coroutine_threadsafe(queue.put(item), loop)
        try:
            future.result(seconds)
        except (FutureTimeout, RuntimeError):
            future.cancel()
            return False
        return not stopped.is_set()

    def make() -> None:
        try:
            for frame in frames:
                if not put(frame):
                    return
            put(None)
        except BaseException as error:
            put(error)
        finally:
            close = getattr(frames, "close", None)
            if close is not None:
                close()

    threading.Thread(target=make, name="stream", daemon=True).start()
    try:
        while (item := await asyncio.wait_for(queue.get(), seconds)) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        while not queue.empty():
            queue.get_nowait()
