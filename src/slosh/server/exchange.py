"""One request from its arrival to its end: how long it may take, and what the server holds for it.

The middleware makes an `Exchange` for each request and ends it. Handlers that change something tell it when they begin,
since a change that has begun is finished, however long it takes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from ..errors import DeadlineExceeded

RETRY_SECONDS = 1


class Exchange:
    """The deadline of a request, and the bytes or the file that its body takes."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.held_bytes, self.is_reading = 0, False
        self.key = ""
        """What the access log calls the key."""
        self.file: str | None = None
        """Where the body of an upload is, under a name that the server has made."""
        self._lock, self._begun, self._expired = threading.Lock(), False, False

    def begin(self) -> None:
        """Begin what must be finished once it has begun; refuse it if the deadline has passed."""
        with self._lock:
            if self._expired:
                raise late()
            self._begun = True

    def expire(self) -> bool:
        """Note that the deadline has passed; return whether that ends the request."""
        with self._lock:
            self._expired = not self._begun
            return self._expired

    def check(self, *step: object) -> None:
        """End work at a step of a progress bar, if the deadline has passed."""
        if self._expired:
            raise late()

    def release(self) -> None:
        """Delete the file of an upload, if there is one."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.file)


def late() -> DeadlineExceeded:
    return DeadlineExceeded("the request was not answered in time", "ask for less at a time")
