"""MNIST as point sets: the (column, row) of each pixel that is not zero, with its grey value as weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..checks import Array
from .dataset import Dataset
from .places import Folder, first_file, given_folder
from .prepared import check_labels, read_prepared

PREPARED = "pointcloud_mnist_2d.npz"
CLASSES = tuple("0123456789")


def mnist(folder: Folder = None) -> Dataset:
    """Point-cloud MNIST: 60,000 sets and 10,000 queries of 34 to 351 points, d = 2, in 10 classes.

    Points are (column, row) from 0 to 27, row after row; the weights are the grey values, 1 to 255.
    """
    where = given_folder(folder)
    prepared = first_file([where], [PREPARED])
    if prepared is not None:
        return _prepared(prepared)
    raise FileNotFoundError(f"{where}: no MNIST in this folder: looked for {PREPARED}")


def _prepared(path: Path) -> Dataset:
    sets, arrays = read_prepared(path, ("points", "offsets", "weights", "labels", "split"), dim=2)
    is_query = arrays["split"] == 1
    labels = check_labels(path, arrays["labels"], len(CLASSES))
    return Dataset("mnist", sets, labels, is_query, CLASSES, _names(is_query), str(path))


def _names(is_query: Array) -> tuple[str, ...]:
    """train-00000, train-00001, ... for the database, test-00000, ... for the queries."""
    number = np.where(is_query, np.cumsum(is_query), np.cumsum(~is_query)) - 1
    return tuple(
        f"{'test' if query else 'train'}-{i:05d}" for query, i in zip(is_query.tolist(), number.tolist(), strict=True)
    )
