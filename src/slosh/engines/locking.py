"""Who may change an index, and when: one thread at a time, one change after another, and Ctrl-C at the right moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..checkpoints import locked
from ..data.interrupts import uninterrupted
from ..errors import NestedChange


class ChangeLock:
    """Lets one thread at a time change an index, and refuses a change that begins within a write of the same thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._write_is_open = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock; the steps of a change may take it again. Ctrl-C waits, but for what is `interruptible`."""
        with locked(self._lock), uninterrupted():
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
