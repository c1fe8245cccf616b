"""Answers that are streams: frames are made in a thread of their own, and sent as the client takes them.

The thread holds a view of the index, which belongs to one thread. It ends when all is sent, the client goes away, or
does not take a frame in time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

AHEAD = 2
"""Frames that are made before they are taken."""


async def send_frames(
    frames: Iterator[bytes], send: Callable[[dict[str, Any]], Awaitable[None]], seconds: float
) -> None:
    """Send frames as the parts of a body. What goes wrong on the way ends the connection, so that the client knows."""
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

    thread = threading.Thread(target=make, name="stream", daemon=True)
    thread.start()
    try:
        while True:
            item = await asyncio.wait_for(queue.get(), seconds)
            if isinstance(item, BaseException):
                raise item
            if item is None:
                break
            await asyncio.wait_for(send({"type": "http.response.body", "body": item, "more_body": True}), seconds)
        await send({"type": "http.response.body", "body": b""})
    finally:
        stopped.set()
        while not queue.empty():
            queue.get_nowait()
