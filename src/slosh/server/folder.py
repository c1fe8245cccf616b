"""The folder of a running server, for what it is sent and what its processes share.

It is locked while its server runs. A server that was killed leaves its folder, and the next server removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX, NEW_PREFIX = "slosh-server-", "slosh-new-server-"
NEW_SECONDS = 3600.0
"""How old a folder is that its server was killed before it could lock it."""


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Remove the folders that killed servers left, then make one; it is removed at the end."""
    _remove_left(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=NEW_PREFIX))
    folder = made.with_name(made.name.replace(NEW_PREFIX, PREFIX, 1))
    try:
        with _locked(made):  # where there are no locks, nobody can lock it to remove it either
            made.rename(folder)  # under this name another server may look at it, and finds it locked
            yield folder
    finally:
        for each in (made, folder):
            shutil.rmtree(each, ignore_errors=True)


def _remove_left(temporary: Path) -> None:
    for prefix, seconds in ((PREFIX, 0.0), (NEW_PREFIX, NEW_SECONDS)):
        for each in temporary.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                about = os.lstat(each)
                is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
                if is_own and time.time() - about.st_mtime >= seconds:
                    with _locked(each) as is_locked:
                        if is_locked:
                            shutil.rmtree(each, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder; a process that ends lets it go, however it ends. It is False where that cannot be done."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(handle)
