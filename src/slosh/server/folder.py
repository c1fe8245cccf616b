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
from collections.abc import Iterator
from pathlib import Path

PREFIX, NEW_PREFIX = "slosh-server-", "slosh-new-server-"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Remove the folders that killed servers left, then make one; it is removed at the end."""
    _remove_left(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=NEW_PREFIX))
    folder = made.with_name(made.name.replace(NEW_PREFIX, PREFIX, 1))
    with _locked(made) as lock:
        assert lock is not None  # nobody else knows the new folder
        made.rename(folder)  # under this name another server may look at it, and finds it locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left(temporary: Path) -> None:
    for each in temporary.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = os.lstat(each)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                with _locked(each) as lock:
                    if lock is not None:
                        shutil.rmtree(each, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int | None]:
    """Lock a folder, which a process that ends lets go, however it ends; None if another process has locked it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None
    else:
        yield handle
    finally:
        os.close(handle)
