"""The one way in which slosh replaces a file: write a draft beside it, flush it to disk, then rename it.

Whoever opens the path sees the old content or the new content, never a part of either.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..errors import FolderNotFound, FormatError, NotAFile, system_error


@contextmanager
def replacing(path: str | os.PathLike[str], *, sync: bool = True, hidden: bool = False) -> Iterator[IO[bytes]]:
    """Yield a binary stream; when the block ends without an error, its content becomes the file at `path`.

    The stream is a new file in the same folder, and `stream.name` is its path. It is created exclusively, so that it
    is never a link or a file of somebody else. An error in the block removes it and leaves `path` untouched.

    Without `sync` nothing is flushed: for files that are checked when they are read, and can be made again. With
    `hidden` the name of the new file begins with a dot, so that programs which read all files of a folder pass it over.

    Raises FolderNotFound if the folder does not exist, NotAFile if `path` is a folder, and AccessDenied or another
    StorageError if the file cannot be created.
    """
    target = Path(path)
    check_folder(target.parent)
    if target.is_dir():
        raise not_a_file(target)
    draft = target.with_name(f"{'.' * hidden}{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        stream = open(draft, "xb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise system_error(error, str(target)) from None
    with stream:
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


def check_folder(folder: Path) -> None:
    """Refuse to create anything in a folder that is not there."""
    if not folder.is_dir():
        problem = f"{folder} is not a folder"
        raise FolderNotFound(problem, "create it first", errno=errno.ENOENT, location=str(folder))


def not_a_file(path: str | os.PathLike[str]) -> NotAFile:
    """Return the error for a folder where a file should be."""
    name = os.fspath(path)
    return NotAFile(f"{name} is a folder", "give the name of a file", errno=errno.EISDIR, location=name)


def check_plain_file(path: Path, *, link: bool = False) -> None:
    """Refuse anything but a plain file before it is opened: a pipe would never answer, a link leads elsewhere.

    Nothing at all is accepted. With `link` a link to a plain file is accepted, too.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG((path.stat() if link else path.lstat()).st_mode):
            raise FormatError(
                f"{path} is not a plain file", "remove what is there, or put the file itself there", location=str(path)
            )


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
