"""The one way in which slosh replaces a file: write a draft beside it, flush it to disk, then rename it.

Whoever opens the path sees the old content or the new content, never a part of either.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | os.PathLike[str], *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a binary stream; when the block ends without an error, its content becomes the file at `path`.

    The stream is a new file in the same folder, and `stream.name` is its path. It is created exclusively, so that it
    is never a link or a file of somebody else. An error in the block removes it and leaves `path` untouched.

    Without `sync` nothing is flushed: for files that are checked when they are read, and can be made again.

    Raises FileNotFoundError if the folder does not exist, and IsADirectoryError if `path` is a folder.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not a folder: create it first")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give the name of a file")
    draft = target.with_name(f"{target.name}.{secrets.token_hex(6)}.tmp")
    with open(draft, "xb") as stream:
        try:
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
            os.replace(draft, target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
    if sync:
        sync_folder(target.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush the names of a folder to disk, where the system can: a rename is durable only then."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with suppress(OSError):  # a folder that may not be read, or a file system that cannot flush one
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
