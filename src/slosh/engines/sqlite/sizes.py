"""How many bytes files take, while other threads and processes may delete them."""

from __future__ import annotations

from pathlib import Path


def file_bytes(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def folder_bytes(folder: Path) -> int:
    """Return the size of the files in a folder, without those of folders in it; 0 if there is no such folder."""
    try:
        paths = [path for path in folder.iterdir() if path.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return sum(map(file_bytes, paths))
