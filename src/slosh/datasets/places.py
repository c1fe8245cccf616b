"""Where the files of a data set are: the folder that the user gives, or names in the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Folder: TypeAlias = "str | os.PathLike[str] | None"

VARIABLE = "SLOSH_DATA"


def given_folder(folder: Folder) -> Path:
    """The folder, or that of the environment; an error that says what to give if there is none."""
    if folder is None and not os.environ.get(VARIABLE):
        raise ValueError(
            f"which folder holds the data? Give folder=, or set the environment variable {VARIABLE} to it; nothing is "
            "downloaded, and help(slosh.datasets.mnist), modelnet40 or oxford5k says which files it should hold"
        )
    path = Path(os.environ[VARIABLE] if folder is None else folder).expanduser()
    if not path.is_dir():
        said = f"{path} ({VARIABLE})" if folder is None else str(path)
        raise FileNotFoundError(f"{said}: {'this is a file: give its folder' if path.exists() else 'no such folder'}")
    return path


def first_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first of these files that is there, folder after folder; None if none is."""
    spelled = list(names)
    return next((folder / name for folder in folders for name in spelled if (folder / name).is_file()), None)
