"""Ctrl-C at the right moment: work that it must not interrupt, and parts of it that it may.

Who stops work at its checkpoints (`slosh.checkpoints`) stops it where Ctrl-C would, and nowhere else.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..checkpoints import checkpoint, held


class _Waiting:
    """A handler of SIGINT that keeps the signal for later, unless what is being done now may be interrupted."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self.before, self.may_interrupt = before, False
        self._came = False

    def __call__(self, number: int, frame: Any) -> None:
        self._came = True  # not the frame: it would keep open what its variables hold, a cursor for one
        if self.may_interrupt:
            self.deliver()

    def deliver(self) -> None:
        """Do what the signal that came would have done; nothing interrupts what that entails."""
        if self._came:
            self._came = False
            may_interrupt, self.may_interrupt = self.may_interrupt, False
            self.before(signal.SIGINT, None)
            self.may_interrupt = may_interrupt

    @contextmanager
    def allowing(self, may_interrupt: bool) -> Iterator[None]:
        before, self.may_interrupt = self.may_interrupt, may_interrupt
        try:
            if may_interrupt:
                self.deliver()
            yield
        finally:
            self.may_interrupt = before
        if before:
            self.deliver()


def _handler() -> Any:
    """Return what handles Ctrl-C in this thread; None outside of the main thread, where it never arrives."""
    return signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, or until it comes to a part that is `interruptible`.

    An exception that is raised as a context manager is left, before its code has begun to run, would leave it open.
    """
    before = _handler()
    if isinstance(before, _Waiting):
        with before.allowing(False), held():
            yield
    elif callable(before):
        waiting = _Waiting(before)
        signal.signal(signal.SIGINT, waiting)
        try:
            with held():
                yield
        finally:
            if signal.getsignal(signal.SIGINT) is waiting:
                signal.signal(signal.SIGINT, before)
            waiting.deliver()
    else:
        with held():
            yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt long work within a block that is `uninterrupted`, where it leaves nothing open."""
    waiting = _handler()
    with waiting.allowing(True) if isinstance(waiting, _Waiting) else nullcontext(), held(False):
        checkpoint()
        yield
