"""The paper's data sets, loaded from files that you have: point-cloud MNIST, ModelNet40 and the Oxford buildings.

`load` takes the name of a data set and a folder, and returns a `Dataset`: sets, labels, names, and which sets are
queries. `as_in_paper` then prepares the sets as the paper's experiments did. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable

from .buildings import oxford5k
from .dataset import Dataset, GroundTruth
from .digits import mnist
from .files import Folder, UnreadableFile
from .preparation import as_in_paper
from .shapes import modelnet40

__all__ = [
    "NAMES",
    "Dataset",
    "GroundTruth",
    "UnreadableFile",
    "as_in_paper",
    "load",
    "mnist",
    "modelnet40",
    "oxford5k",
]

_LOADERS: dict[str, Callable[[Folder], Dataset]] = {"mnist": mnist, "modelnet40": modelnet40, "oxford5k": oxford5k}

NAMES = tuple(_LOADERS)
"""The names that `load` accepts."""


def load(name: str, folder: Folder = None) -> Dataset:
    """Load "mnist", "modelnet40" or "oxford5k" from the files in a folder.

    The functions of the same names list the files that they accept: a prepared file, or the originals. With
    `folder=None` the environment variable SLOSH_DATA names the folder.
    """
    if not isinstance(name, str) or name not in _LOADERS:
        raise ValueError(f"unknown data set {name!r:.60}: choose one of {', '.join(NAMES)}")
    return _LOADERS[name](folder)
