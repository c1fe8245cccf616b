"""Checkpoints: where long work can be stopped, and says how far it is.

Whoever wants to stop work, or to show its progress, runs it under `watched`. Loops call `checkpoint` every fraction of
a second or more often, which calls the watcher, and the work ends by what that raises. What must not be stopped
half-way is `held`: the commit of a change. Threads that the work starts see its watcher, too (`in_threads`, `aside`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Watcher = Callable[[str, int, int | None], object]
"""Called as watcher(stage, done, total); total is None where it is unknown."""

LOCK_SECONDS = 0.1
"""How often one who waits for a lock comes to a checkpoint."""
LEFT_BEHIND = 2
"""Calls of libraries that go on though nobody waits for them any more: while there are so many, others have to wait."""
NATIVE_STEPS = 1 << 29
"""Multiplications, or numbers read, of one native call: a fraction of a second on one core."""


class Step(NamedTuple):
    """How far work is."""

    stage: str
    done: int
    total: int | None


class Watch:
    """A watcher, and the step that it was told last. Of bars within bars the outermost tells how far the work is."""

    def __init__(self, watcher: Watcher, outer: Watch | None) -> None:
        self._watcher, self._outer = watcher, outer
        self._step, self._lock = Step("", 0, None), threading.Lock()
        self._teller: object | None = None
        self._raised: list[Exception] = []  # by several threads, perhaps

    def tell(self, teller: object, step: Step) -> None:
        """Note a step, unless somebody else tells how far the work is, and knows its end; and come to a checkpoint."""
        self.note(teller, step)
        self.check()

    def note(self, teller: object, step: Step) -> None:
        """Note a step, here and for those who watch around this one."""
        with self._lock:
            if self._teller is None or self._step.total is None:
                self._teller = teller
            if self._teller is teller:
                self._step = step
        if self._outer is not None:
            self._outer.note(teller, step)

    def leave(self, teller: object) -> None:
        """Let others tell how far the work is."""
        with self._lock:
            if self._teller is teller:
                self._teller = None
        if self._outer is not None:
            self._outer.leave(teller)

    def check(self) -> None:
        """Call the watcher. What it raises is heard at a later checkpoint if the work is held now."""
        if self._outer is not None:
            self._outer.check()
        try:
            self._watcher(*self._step)
        except Exception as error:
            block = _held.get()
            if block is None or not block.is_held:
                self._raised.append(error)
                raise

    def has_raised(self, error: Exception) -> bool:
        """Return whether work was ended by this error, here or by a watcher around this one."""
        here = any(each is error for each in self._raised)
        return here or (self._outer is not None and self._outer.has_raised(error))


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_held: ContextVar[held | None] = ContextVar("held", default=None)


@contextmanager
def watched(by: Watcher) -> Iterator[None]:
    """Call `by` at every checkpoint of this thread, and of the threads that its work starts.

    What it raises ends the work, as an error would: a change is then not made.

    >>> def enough(stage, done, total):
    ...     raise TimeoutError
    >>> with watched(enough):
    ...     checkpoint()
    Traceback (most recent call last):
        ...
    TimeoutError
    """
    token = _watch.set(Watch(by, _watch.get()))
    try:
        yield
    finally:
        _watch.reset(token)


def watch_of_thread() -> Watch | None:
    """Return who watches this thread."""
    return _watch.get()


def checkpoint() -> None:
    """Stop here if the work is watched by somebody who wants it to end. It takes far less than a microsecond if not."""
    watch = _watch.get()
    if watch is not None:
        watch.check()


class held:
    """Pass by checkpoints within the block without stopping; `held(False)` lets a part of it be stopped again.

    A block that Ctrl-C has left open may be left much later, when its generator is collected. So a block that is left
    ends those within it, and one that was ended by another does nothing when it is left.
    """

    def __init__(self, is_held: bool = True) -> None:
        self.is_held = is_held
        self.around: held | None = None

    def __enter__(self) -> None:
        self.around = _held.get()
        _held.set(self)

    def __exit__(self, *error: object) -> None:
        current = _held.get()
        while current is not None and current is not self:
            current = current.around
        if current is self:
            _held.set(self.around)


@contextmanager
def optional() -> Iterator[None]:
    """Leave the block without an error where the work is stopped in it: for what comes after a change that is made.

    One who was told that the work was stopped could not know that the change is there.
    """
    try:
        yield
    except Exception as error:
        watch = _watch.get()
        if watch is None or not watch.has_raised(error):
            raise


def pieces(n: int, steps_each: float, least: int = 1, most_steps: int = NATIVE_STEPS) -> Iterator[slice]:
    """Cut n tasks into runs that take a fraction of a second each, and come to a checkpoint before each of them.

    steps_each : multiplications, or numbers read, of one task, at most.
    least : tasks of a run, at least, for instance one for each thread.

    >>> list(pieces(5, 10.0, most_steps=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    at_once = max(least, int(most_steps // max(steps_each, 1.0)), 1)
    for first in range(0, n, at_once):
        checkpoint()
        yield slice(first, min(first + at_once, n))


def locked(lock: Any) -> AbstractContextManager[Any]:
    """Return a context that holds a lock; waiting for it comes to checkpoints."""
    # An unwatched thread may get Ctrl-C, which a plain lock is safe from.
    return _waiting(lock) if _watch.get() is not None else lock  # type: ignore[no-any-return]


@contextmanager
def _waiting(lock: Any) -> Iterator[None]:
    while not lock.acquire(timeout=LOCK_SECONDS):
        checkpoint()
    try:
        yield
    finally:
        lock.release()


class _LeftBehind:
    """The calls of `aside` that nobody waits for any more."""

    def __init__(self) -> None:
        self._changed, self._calls = threading.Condition(), set[threading.Event]()

    def has_room(self, seconds: float) -> bool:
        """Return whether another call may begin, after waiting so long for it at most."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._calls) < LEFT_BEHIND, seconds)

    def leave(self, ended: threading.Event) -> None:
        """Note that nobody waits for a call any more, which is known by the event of its end."""
        with self._changed:
            if not ended.is_set():
                self._calls.add(ended)

    def end(self, ended: threading.Event) -> None:
        with self._changed:
            ended.set()
            self._calls.discard(ended)
            self._changed.notify_all()


_left_behind = _LeftBehind()


def aside(function: Callable[[], R]) -> R:
    """Return function(), a call of a library that takes long and comes to no checkpoint: k-means, a decomposition.

    Where the work is watched, a thread of its own makes the call, and this one comes to checkpoints. A call that is not
    waited for any more ends by itself, and what it returns is dropped: it must change nothing. While LEFT_BEHIND of
    them run no other begins, so that work that is given up again and again does not fill the memory; those that had
    begun before may all be given up.
    """
    if _watch.get() is None:
        return function()
    ended, found, wrong = threading.Event(), list[R](), list[BaseException]()
    while not _left_behind.has_room(LOCK_SECONDS):
        checkpoint()

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:
            wrong.append(error)
        _left_behind.end(ended)

    threading.Thread(target=copy_context().run, args=(work,), name="aside", daemon=True).start()
    try:
        while not ended.wait(LOCK_SECONDS):
            checkpoint()
    except BaseException:
        _left_behind.leave(ended)
        raise
    if wrong:
        raise wrong[0]
    return found[0]


def result_of(future: Future[R]) -> R:
    """Return what a thread returns; waiting for it comes to checkpoints, and ends by Ctrl-C.

    A signal that comes just before a wait is seen after it: so no wait is long.
    """
    while not wait([future], LOCK_SECONDS).done:
        checkpoint()
    return future.result()


def in_threads(function: Callable[[T], R], tasks: Sequence[T], threads: int) -> list[R]:
    """Return function(task) of each task, in their order, by so many threads, with a checkpoint before each of them.

    The threads have the context of this one, its watcher among it. After an error, also Ctrl-C, no further task begins.
    """
    threads = min(threads, len(tasks))
    results: list[Any] = [None] * len(tasks)
    remaining, ended, lock = iter(range(len(tasks))), threading.Event(), threading.Lock()

    def work() -> None:
        try:
            while not ended.is_set():
                with lock:
                    i = next(remaining, None)
                if i is None:
                    return
                checkpoint()
                results[i] = function(tasks[i])
        except BaseException:
            ended.set()
            raise

    if threads <= 1:
        work()
        return results
    with ThreadPoolExecutor(threads) as pool:
        try:  # Ctrl-C may come while the threads are started
            for each in [pool.submit(copy_context().run, work) for _ in range(threads)]:
                result_of(each)
        finally:
            ended.set()
    return results
