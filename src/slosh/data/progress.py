"""Progress bars: on a terminal, and only for what takes longer than two seconds.

A program that shows progress in its own way, or ends work that takes too long, watches it (`watched` of
`slosh.checkpoints`): every step of a bar, shown or not, is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tqdm.auto import tqdm

from ..checkpoints import Step, watch_of_thread
from ..checkpoints import watched as watched
from .interrupts import uninterrupted


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
        self._watch, self._done = watch_of_thread(), 0
        self._stage, self._whole = str(options.get("desc") or ""), options.get("total")
        with uninterrupted():
            super().__init__(*given, **{"delay": 2, "disable": None, "leave": False, **options})

    def __enter__(self) -> ProgressBar:
        try:
            self._tell(0)
        except BaseException:
            self.close()
            raise
        return self

    def _tell(self, n: int) -> None:
        if self._watch is not None:
            self._done += n
            self._watch.tell(self, Step(self._stage, self._done, self._whole))

    def update(self, n: float | None = 1) -> Any:
        shown = super().update(n)
        self._tell(int(n or 0))
        return shown

    def __iter__(self) -> Iterator[Any]:
        if self._watch is None:
            yield from super().__iter__()
            return
        self._tell(0)
        try:
            for item in super().__iter__():
                yield item
                self._tell(1)
        finally:
            self._watch.leave(self)

    def refresh(self, *given: Any, **options: Any) -> Any:
        with uninterrupted():
            return super().refresh(*given, **options)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.leave(self)
        with uninterrupted():
            super().close()
