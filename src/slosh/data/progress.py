"""Progress bars: on a terminal, and only for what takes longer than two seconds."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm

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
        with uninterrupted():
            super().__init__(*given, **{"delay": 2, "disable": None, "leave": False, **options})

    def refresh(self, *given: Any, **options: Any) -> Any:
        with uninterrupted():
            return super().refresh(*given, **options)

    def close(self) -> None:
        with uninterrupted():
            super().close()
