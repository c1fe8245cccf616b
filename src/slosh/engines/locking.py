"""Who may change an index, and when: one thread at a time, one change after another, and Ctrl-C at the right moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import NestedChange


class ChangeLock:
    """Lets one thread at a time change an index, and refuses a change that begins within a write of the same thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._write_is_open = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock; the steps of a change may take it again."""
        with self._lock:
            if self._write_is_open:
                problem = "another change of this index is under way in the same thread"
                raise NestedChange(problem, "finish it first; what you pass to a change must not change the index")
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock for a write, which user code may run in: an iterable of metadata, an embedding."""
        with self.changing():
            self._write_is_open = True
            try:
                yield
            finally:
                self._write_is_open = False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is None:  # None: Python is a part of another program
        yield
        return
    waiting: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(*waiting[0])
        elif waiting and before == signal.SIG_DFL:
            signal.raise_signal(signal.SIGINT)
