"""The lane of the hot route: searches that arrive while others are under way are answered together.

Each thread takes what waits, decodes it, and searches once for all requests that ask the same of the same index. An
idle server answers a request at once: nothing waits for company. The answers are those that each request would get
alone, to the last bit, since a search gives the same for any batching.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.progress import watched
from ..errors import ServerBusy
from .bodies import Asked
from .context import Context
from .routes import Reply, Request
from .search_routes import answer_together, decode

MOST_TOGETHER = 64
"""Requests that a thread takes at a time."""
FEW_QUERIES = 8
"""A request with more queries is answered alone."""


@dataclass(eq=False)
class Waiting:
    """A request in the lane, and where its reply goes."""

    request: Request
    future: asyncio.Future[Reply]
    deadline: float
    asked: Asked | None = field(default=None)


class Lane:
    """The threads that search."""

    def __init__(self, context: Context, threads: int, fail: Callable[[BaseException], Reply]) -> None:
        self._context, self._fail = context, fail
        self._waiting: deque[Waiting] = deque()
        self._ready, self._closed = threading.Condition(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [threading.Thread(target=self._work, name=f"search-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request, deadline: float) -> asyncio.Future[Reply]:
        """Return the reply to come. To be called in the loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiting = Waiting(request, self._loop.create_future(), deadline)
        with self._ready:
            self._waiting.append(waiting)
            self._ready.notify()
        return waiting.future

    def close(self) -> None:
        """Let the threads end when nothing waits any more."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._waiting and not self._closed:
                    self._ready.wait()
                if not self._waiting:
                    return
                # Shared evenly among the threads, so that none is idle while another has much to do.
                most = min(MOST_TOGETHER, -(-len(self._waiting) // len(self._threads)))
                taken = [self._waiting.popleft() for _ in range(most)]
            self._answer(taken)

    def _answer(self, taken: list[Waiting]) -> None:
        done: list[tuple[Waiting, Reply]] = []
        groups: dict[Any, list[Waiting]] = {}
        for each in taken:
            if each.future.cancelled():
                continue
            try:
                each.asked = decode(self._context, each.request, "search")
                groups.setdefault(_group(each), []).append(each)
            except Exception as error:
                done.append((each, self._fail(error)))
        if done:
            self._deliver(done)
        for group in groups.values():
            self._deliver(list(zip(group, self._replies(group), strict=True)))

    def _replies(self, group: Sequence[Waiting]) -> list[Reply]:
        first = group[0].request
        asked = [each.asked for each in group if each.asked is not None]
        deadline = min(each.deadline for each in group)
        try:
            with watched(lambda *step: _check(deadline)):
                return answer_together(self._context, first.name, "search", asked, first.accept)
        except Exception as error:
            if len(group) == 1:
                return [self._fail(error)]
        return [self._replies([each])[0] for each in group]  # the error is of one of them

    def _deliver(self, replies: list[tuple[Waiting, Reply]]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_set, replies)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise ServerBusy("the search took longer than the server allows", "ask for less at a time", retry_after=1.0)


def _set(replies: list[tuple[Waiting, Reply]]) -> None:
    for waiting, reply in replies:
        if not waiting.future.done():
            waiting.future.set_result(reply)


def _group(each: Waiting) -> Any:
    """Return what requests have in common that are answered together; itself for one that is answered alone."""
    asked, request = each.asked, each.request
    assert asked is not None
    n = len(asked.ids or ()) if asked.sets is None else len(asked.sets)
    if n > FEW_QUERIES or (asked.sets is not None and asked.sets.weights is not None):
        return id(each)
    arguments = repr(sorted(asked.arguments.items())) if asked.arguments else ""
    return request.name, arguments, request.accept, asked.metadata, asked.sets is None
