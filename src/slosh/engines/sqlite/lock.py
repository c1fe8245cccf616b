"""The right to change an index: one process at a time, and within it one object.

The lock is the operating system's, on the file `lock`: it goes when the process goes, however it ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ...data.atomic import check_plain_file
from ...errors import IndexLocked, system_error

MAX_PID_BYTES = 64


class WriterLock:
    """Held from its construction until `release`."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        check_plain_file(path)
        self._lock = FileLock(path, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            pid = _read_pid(path)
            where = f" in process {pid}" if pid is not None else ""
            raise IndexLocked(
                f"{folder} is open for writing{where}",
                "close it there, or open it with read_only=True",
                location=str(folder),
                pid=pid,
            ) from None
        except OSError as error:
            raise system_error(error, str(path)) from None
        with suppress(OSError):  # on a full disk nobody is told who it is
            number = os.open(path, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(number, "wb") as stream:
                stream.write(str(os.getpid()).encode())

    def release(self) -> None:
        self._lock.release(force=True)


def _read_pid(path: Path) -> int | None:
    with suppress(OSError), open(path, "rb") as stream:
        owner = stream.read(MAX_PID_BYTES)
        return int(owner) if owner.isdigit() else None
    return None
