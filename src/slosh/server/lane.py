"""The lane of the hot route: small searches that arrive while others are under way are answered together.

A thread takes what waits, decodes it, and searches once, on one core, for all requests that ask the same of the same
index. Large searches, and those that compare points, are handed back, for other threads and all cores. An idle server
answers a request at once: nothing waits for company. The answers are those that each request would get alone, to the
last bit, since a search gives the same for any batching.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from ..data.progress import watched
from ..native.kernel import limited_threads
from .bodies import Asked, Sent
from .context import Context
from .dependencies import Asking
from .exchange import late
from .problems import problem_response
from .search_routes import answer_together, decode_together

MOST_TOGETHER = 64
"""Requests that a thread takes at a time."""
FEW_QUERIES = 8
"""A request with more queries is answered alone."""
FEW_HITS = 10_000
"""So does one that names more sets."""
SMALL = frozenset({"k", "where", "recall", "offset"})
"""Arguments of searches that compare vectors only. Others may take long, and are answered alone."""
THREADS_PER_LANE = 4
"""One thread in so many answers small searches: more would take turns at Python instead of gathering requests."""


@dataclass(eq=False)
class Waiting:
    """A search in the lane, and where its answer goes."""

    asking: Asking
    sent: Sent
    future: asyncio.Future[Response | Asked]
    asked: Asked | None = field(default=None)


class Lane:
    """The threads that answer small searches."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[Waiting] = deque()
        self._ready, self._closed = threading.Condition(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        n = max(1, context.settings.threads // THREADS_PER_LANE)
        self._threads = [threading.Thread(target=self._work, name=f"search-{i}", daemon=True) for i in range(n)]
        for thread in self._threads:
            thread.start()

    def submit(self, asking: Asking, sent: Sent) -> asyncio.Future[Response | Asked]:
        """Return the answer to come, or the question, decoded, if it is not small. To be called in the loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiting = Waiting(asking, sent, self._loop.create_future())
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
        done: list[tuple[Waiting, Response | Asked]] = []
        groups: dict[Any, list[Waiting]] = {}
        of_index: dict[str, list[Waiting]] = {}
        for each in taken:
            if not each.future.cancelled():
                of_index.setdefault(each.asking.name, []).append(each)
        for requests in of_index.values():
            for each, asked in zip(requests, _decoded(requests), strict=True):
                if isinstance(asked, Exception):
                    done.append((each, self._failed(asked)))
                elif _is_small(asked):
                    each.asked = asked
                    groups.setdefault(_group(each), []).append(each)
                else:
                    done.append((each, asked))
        if done:
            self._deliver(done)
        for group in groups.values():
            with limited_threads(1):
                self._deliver(list(zip(group, self._responses(group), strict=True)))

    def _responses(self, group: Sequence[Waiting]) -> list[Response]:
        first = group[0]
        asked = [each.asked for each in group if each.asked is not None]
        deadline = min(each.asking.exchange.deadline for each in group)
        try:
            with watched(lambda *step: _check(deadline)):
                return answer_together(first.asking, "search", asked, first.sent.accept)
        except Exception as error:
            if len(group) == 1:
                return [self._failed(error)]
        return [self._responses([each])[0] for each in group]  # the error is of one of them

    def _failed(self, error: Exception) -> Response:
        return problem_response(error, self._context.catalog)

    def _deliver(self, answers: Sequence[tuple[Waiting, Response | Asked]]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_set, answers)


def _decoded(requests: Sequence[Waiting]) -> list[Asked | Exception]:
    """Return what requests to one index ask for, or what is wrong with it."""
    try:
        return decode_together(requests[0].asking, [each.sent for each in requests], "search")
    except Exception as error:
        if len(requests) == 1:
            return [error]
    return [_decoded([each])[0] for each in requests]  # the error may be of the first one only: it is late


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise late()


def _set(answers: Sequence[tuple[Waiting, Response | Asked]]) -> None:
    for waiting, answer in answers:
        if not waiting.future.done():
            waiting.future.set_result(answer)


def _is_small(asked: Asked) -> bool:
    """Return whether a search compares few vectors only."""
    weighted = asked.sets is not None and asked.sets.weights is not None
    if asked.n_queries > FEW_QUERIES or weighted or not SMALL.issuperset(asked.arguments):
        return False
    return 0 < asked.n_hits <= FEW_HITS


def _group(each: Waiting) -> Any:
    """Return what small searches have in common that are answered together."""
    asked = each.asked
    assert asked is not None
    arguments = repr(sorted(asked.arguments.items())) if asked.arguments else ""
    return each.asking.name, arguments, each.sent.accept, asked.metadata, asked.sets is None
