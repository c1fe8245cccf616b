"""The files of a source: a path, a folder, a pattern or a list of these comes in, a list of `File`s goes out.

Folders are walked in the order of their names. Hidden files and those of unknown extension are left out; a link that
leads out of the folder is refused, since the folder may come from someone else.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ..data.checks import kind_of
from ..errors import InputError, SourceNotFound
from .files import File, extension, is_labels, reader_error
from .formats import FORMATS

_WILDCARD = re.compile(r"[*?\[]")
READABLE = f"what can be read is {' '.join(FORMATS)}"


def find(source: object, chosen: str | None) -> list[File]:
    """Return all files of a source that can be read, or raise an error that says what was seen instead.

    Each has the name of the folder that its own name counts from, `File.source`.
    """
    is_list = isinstance(source, Iterable) and not isinstance(source, str | os.PathLike | bytes | dict)
    given = list(source) if is_list else [source]  # type: ignore[call-overload]
    if not given:
        raise InputError("the list of sources is empty", "give a file, a folder or a pattern", argument="source")
    found = []
    for one in given:
        if not isinstance(one, str | os.PathLike):
            problem = f"a source is the path of a file, a folder or a pattern, not {kind_of(one)}"
            raise InputError(problem, argument="source")
        found += _one(os.fspath(one), chosen)
    return found


def _one(given: str | bytes, chosen: str | None) -> list[File]:
    name = os.fsdecode(given)
    if not name:
        raise InputError("the source is an empty string", "give a file, a folder or a pattern", argument="source")
    path = Path(name)
    if path.is_dir():
        return _from(path, *_known(_walk(path, path, chosen), name, chosen))
    if path.is_file():
        if chosen is None and extension(path.name) not in FORMATS:
            what = f"files of {_shown(extension(path.name))} are not known"
            remedy = f"{READABLE}; if it is one of these under another name, give format="
            raise reader_error(name, what, remedy)
        return _from(path.parent, File(path, path.name, chosen or extension(path.name)))
    if path.exists():
        raise reader_error(name, "neither a file nor a folder")
    if not _WILDCARD.search(name):
        raise _not_found(name, "there is no such file or folder")
    # Names count from the folder above the first part that has a wildcard.
    root = Path(*itertools.takewhile(lambda part: not _WILDCARD.search(part), path.parts))
    files: list[File] = []
    for match in sorted(glob.glob(name, recursive=True)):
        here = Path(match)
        files += _walk(here, root, chosen) if here.is_dir() else [_inside(here, root, chosen)]
    files = list(dict.fromkeys(files))  # ** matches folders and what is in them
    if not files:
        raise _not_found(name, "nothing matches this pattern")
    return _from(root, *_known(files, name, chosen))


def _from(root: Path, *files: File) -> list[File]:
    """Return files with the name of the folder that their names count from."""
    name = os.path.basename(os.path.abspath(root))
    return [file._replace(source=name) for file in files]


def _not_found(name: str, what: str) -> SourceNotFound:
    return SourceNotFound(f"{name}: {what}", "check the path", errno=errno.ENOENT, location=name)


def _walk(folder: Path, root: Path, chosen: str | None) -> list[File]:
    files = []
    for where, folders, names in os.walk(folder, onerror=_cannot_walk):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for one in folders:
            _inside(Path(where, one), root, chosen)  # links to folders are not followed; one that leads out is an error
        files += [_inside(Path(where, one), root, chosen) for one in sorted(names) if not one.startswith(".")]
    return sorted((file for file in files if file.path.is_file()), key=lambda file: file.name.split("/"))


def _cannot_walk(error: OSError) -> None:
    raise error


def _inside(path: Path, root: Path, chosen: str | None) -> File:
    """Return the file by its name below the root; refuse it if it is a link that leads elsewhere."""
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        what = f"a link that leads out of {root}, to {path.resolve()}"
        raise reader_error(path, what, "put the file itself there, or give it by its own name")
    return File(path, path.relative_to(root).as_posix(), chosen or extension(path.name))


def _known(files: list[File], source: str, chosen: str | None) -> list[File]:
    if kept := [file for file in files if chosen or (file.suffix in FORMATS and not is_labels(file.name))]:
        return kept
    if not files:
        raise reader_error(source, "the folder has no files")
    seen = Counter(_shown(file.suffix) for file in files)
    listed = ", ".join(f"{count} of {what}" for what, count in seen.most_common(8))
    raise reader_error(source, f"none of its files can be read: there are {listed}", READABLE)


def _shown(suffix: str) -> str:
    return suffix or "no extension"
