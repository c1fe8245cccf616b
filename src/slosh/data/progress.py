"""Progress bars: on a terminal, and only for what takes longer than two seconds.

A program that shows progress in its own way, or ends work that takes too long, watches the bars of a thread
(`watched`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm.auto import tqdm

from .interrupts import uninterrupted

Watcher = Callable[[str, int, int | None], object]
"""Called as watcher(stage, done, total); total is None where it is unknown."""
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(by: Watcher) -> Iterator[None]:
    """Call `by` whenever a bar goes on in this thread, shown or not. What it raises ends the work, as an error would:
    a change is then not made.
    """
    token = _watcher.set(by)
    try:
        yield
    finally:
        _watcher.reset(token)


class ProgressBar(tqdm):  # type: ignore[misc]
    """A bar of tqdm that Ctrl-C leaves in order.

    tqdm draws under a lock that the bars of all threads share. An exception while it does leaves the lock taken, and
    the next bar of another thread waits for ever. So Ctrl-C waits until the bar is drawn.
    """

    def __new__(cls, *given: Any, **options: Any) -> ProgressBar:
        with uninterrupted():
            made: ProgressBar = super().__new__(cls, *given, **options)
            return made

    def __init__(self, *given: Any, **options: Any) -> None:
        self._watcher, self._done = _watcher.get(), 0
        self._stage, self._whole = str(options.get("desc") or ""), options.get("total")
        with uninterrupted():
            super().__init__(*given, **{"delay": 2, "disable": None, "leave": False, **options})

    def update(self, n: float | None = 1) -> Any:
        shown = super().update(n)
        if self._watcher is not None:
            self._done += int(n or 0)
            self._watcher(self._stage, self._done, self._whole)
        return shown

    def __iter__(self) -> Iterator[Any]:
        if self._watcher is None:
            yield from super().__iter__()
            return
        for item in super().__iter__():
            yield item
            self._done += 1
            self._watcher(self._stage, self._done, self._whole)

    def refresh(self, *given: Any, **options: Any) -> Any:
        with uninterrupted():
            return super().refresh(*given, **options)

    def close(self) -> None:
        with uninterrupted():
            super().close()
