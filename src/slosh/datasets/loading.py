"""`load`: a data set by its name."""

from __future__ import annotations

from collections.abc import Callable

from .buildings import oxford5k
from .dataset import Dataset
from .digits import mnist
from .places import Folder
from .shapes import modelnet40

_LOADERS: dict[str, Callable[[Folder], Dataset]] = {"mnist": mnist, "modelnet40": modelnet40, "oxford5k": oxford5k}

NAMES = tuple(_LOADERS)
"""The data sets that `load` knows."""


def load(name: str, folder: Folder = None) -> Dataset:
    """The data set of this name, "mnist", "modelnet40" or "oxford5k", from the files in a folder.

    folder  None: that of the environment variable SLOSH_DATA. The functions of the same names say what files they take,
            prepared ones or the originals. Nothing is downloaded.
    """
    if not isinstance(name, str) or name not in _LOADERS:
        raise ValueError(f"there is no data set {name!r:.60}: there are {', '.join(NAMES)}")
    return _LOADERS[name](folder)
