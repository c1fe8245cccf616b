"""How the parts of a job are run: one after the other here, or by whoever runs them elsewhere, such as `slosh.ray`.

A *runner* takes a function and tasks and yields (task, result) as they are done, in any order. The function and the
tasks can be pickled. What a task writes, it writes under a name of its own, so that it may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ..data.progress import ProgressBar
from ..errors import bad_value

Progress = Callable[[int, int], object]
"""Called as progress(done, total)."""
Task = TypeVar("Task")
Result = TypeVar("Result")


class Runner(Protocol):
    """Runs work(task) for each task."""

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (task, result) as they are done."""


def in_turn(work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Run the tasks one after the other, in this process."""
    for task in tasks:
        yield task, work(task)


class Report(NamedTuple):
    """What a job has done.

    sets : how many sets it did. skipped : how many were done by an earlier call. parts : files or shards written.
    seconds : how long this call took.
    """

    sets: int
    skipped: int
    parts: int
    seconds: float


class Meter:
    """Counts the sets of a job, and shows how far it is: by a bar, or by calling progress(done, total)."""

    def __init__(self, what: str, total: int, progress: Any) -> None:
        if progress is not None and not callable(progress):
            raise bad_value("progress", progress, "give a function that is called as progress(done, total), or None")
        self.sets, self._done, self._total, self._progress = 0, 0, total, progress
        hidden = None if progress is None else True
        self._bar = ProgressBar(total=total, unit="set", unit_scale=True, desc=what, disable=hidden)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def add(self, sets: int, expected: int) -> None:
        """Count the sets of a task, of which so many were expected."""
        self.sets, self._done = self.sets + sets, self._done + expected
        self._bar.update(expected)
        if self._progress is not None:
            self._progress(self._done, self._total)
