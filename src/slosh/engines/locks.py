"""Who may change an index: one process at a time, and within it one thread, while others read.

The lock of a process is the operating system's, on a file: it goes when the process goes, however it ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


class IndexLocked(OSError):
    """Another process, or another object of this one, has the index open for writing."""


class WriterLock:
    """The right to change an index, held until `release`."""

    def __init__(self, path: Path, index: Path) -> None:
        # Never what a link leads to: it is written to.
        number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        stream = os.fdopen(number, "r+b")
        try:
            _lock(stream)
        except OSError:
            stream.seek(0)
            owner = stream.read(64).decode("ascii", "replace").strip()
            stream.close()
            raise IndexLocked(
                f"{index} is open for writing{f' in process {owner}' if owner.isdigit() else ''}: close it there, or "
                "open it with read_only=True"
            ) from None
        with suppress(OSError):  # on a full disk nobody is told who it is
            stream.seek(0)
            stream.truncate()
            stream.write(str(os.getpid()).encode())
            stream.flush()
        self._stream: IO[bytes] | None = stream

    def release(self) -> None:
        if self._stream is not None:
            _unlock(self._stream)  # a process that was forked may still have the file open
            self._stream.close()
            self._stream = None


def _lock(stream: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        stream.seek(1 << 20)  # beyond the number of the process, so that others can read that
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(stream: IO[bytes]) -> None:
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_UN)


class SharedLock:
    """Many readers, or one writer; a writer that waits goes before readers that come later.

    Each who holds it, or waits, is a token in a set, so that an interrupt at any place leaves nothing behind.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers: set[object] = set()
        self._writers: set[object] = set()
        self._waiting: set[object] = set()

    @contextmanager
    def shared(self) -> Iterator[None]:
        me = object()
        try:
            with self._condition:
                while self._writers or self._waiting:
                    self._condition.wait()
                self._readers.add(me)
            yield
        finally:
            self._leave(me)

    @contextmanager
    def alone(self) -> Iterator[None]:
        me = object()
        try:
            with self._condition:
                self._waiting.add(me)
                while self._writers or self._readers:
                    self._condition.wait()
                self._writers.add(me)
                self._waiting.discard(me)
            yield
        finally:
            self._leave(me)

    def _leave(self, me: object) -> None:
        with self._condition:
            for part in (self._readers, self._writers, self._waiting):
                part.discard(me)
            self._condition.notify_all()
