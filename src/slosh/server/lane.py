"""The lane of the hot route: small searches that arrive while others are under way are answered together.

A thread takes what waits, decodes it, and searches once, on one core, for all requests that ask the same of the same
index. Large searches, and those that compare points, go to other threads, and use all cores. An idle server answers a
request at once: nothing waits for company. The answers are those that each request would get alone, to the last bit,
since a search gives the same for any batching.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..data.progress import watched
from ..errors import ServerBusy
from ..native.kernel import limited_threads
from .bodies import Asked
from .context import Context
from .routes import Reply, Request
from .search_routes import answer_together, decode

MOST_TOGETHER = 64
"""Requests that a thread takes at a time."""
FEW_QUERIES = 8
"""A request with more queries is answered alone."""
SMALL = frozenset({"k", "where", "recall", "offset"})
"""Arguments of searches that compare vectors only. Others may take long, and are answered alone."""
THREADS_PER_LANE = 4
"""One thread in so many answers small searches: more would take turns at Python instead of gathering requests."""


@dataclass(eq=False)
class Waiting:
    """A request in the lane, and where its reply goes."""

    request: Request
    future: asyncio.Future[Reply]
    deadline: float
    asked: Asked | None = field(default=None)


class Lane:
    """The threads that answer small searches; others are handed to the pool of threads for all requests."""

    def __init__(self, context: Context, pool: ThreadPoolExecutor, fail: Callable[[BaseException], Reply]) -> None:
        self._context, self._pool, self._fail = context, pool, fail
        self._waiting: deque[Waiting] = deque()
        self._ready, self._closed = threading.Condition(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        n = max(1, context.settings.threads // THREADS_PER_LANE)
        self._threads = [threading.Thread(target=self._work, name=f"search-{i}", daemon=True) for i in range(n)]
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
        for key, group in groups.items():
            if key is None:
                for each in group:
                    self._pool.submit(self._search, [each], True)
            else:
                self._search(group, False)

    def _search(self, group: list[Waiting], all_cores: bool) -> None:
        with nullcontext() if all_cores else limited_threads(1):
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
    """Return what small searches have in common that are answered together; None for one that may take long."""
    asked, request = each.asked, each.request
    assert asked is not None
    n = len(asked.ids or ()) if asked.sets is None else len(asked.sets)
    if n > FEW_QUERIES or (asked.sets is not None and asked.sets.weights is not None):
        return None
    if asked.arguments and not SMALL.issuperset(asked.arguments):
        return None
    arguments = repr(sorted(asked.arguments.items())) if asked.arguments else ""
    return request.name, arguments, request.accept, asked.metadata, asked.sets is None
