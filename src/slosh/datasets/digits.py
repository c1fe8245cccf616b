"""MNIST as point sets: the (column, row) of each pixel that is not zero, with its grey value as weight.

From the prepared file, or from the four IDX files that MNIST has been shared as since 1998; both give the same sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..data.checks import Array
from ..data.sets import Sets
from ..readers.files import File, Unreadable
from ..readers.images import image_shape, read_labels, read_pixels
from .dataset import Dataset, Int64
from .places import Folder, first_file, given_folder
from .prepared import check_labels, read_prepared

PREPARED = "pointcloud_mnist_2d.npz"
CLASSES = tuple("0123456789")
ORIGINALS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SIDE = 28
BELOW = "MNIST/raw"
"""The folder in which torchvision keeps the originals."""


def mnist(folder: Folder = None) -> Dataset:
    """Point-cloud MNIST: 60,000 sets and 10,000 queries of 34 to 351 points, d = 2, in 10 classes.

    Points are (column, row) from 0 to 27, row after row; the weights are the grey values, 1 to 255. The names are
    train-00000, train-00001, ..., test-00000, ...

    Parameters
    ----------
    folder : where pointcloud_mnist_2d.npz is; or the four files train-images-idx3-ubyte, train-labels-idx1-ubyte,
        t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, there or in MNIST/raw, each plain or as .gz, also spelled
        train-images.idx3-ubyte. None: the folder of the environment variable SLOSH_DATA.
    """
    where = given_folder(folder)
    prepared = first_file([where], [PREPARED])
    if prepared is not None:
        return _prepared(prepared)
    lost = ""
    for place in (where, where / BELOW):
        found = {name: first_file([place], _spellings(name)) for name in ORIGINALS}
        paths = [path for path in found.values() if path is not None]
        if len(paths) == len(ORIGINALS):
            return _originals(paths)
        if paths:
            lost += f"; in {place} these are missing: {', '.join(name for name in ORIGINALS if found[name] is None)}"
    raise FileNotFoundError(
        f"{where}: no MNIST in this folder: looked for {PREPARED}; or for {', '.join(ORIGINALS)}, all four here or in "
        f"{BELOW}, plain or as .gz, with -idx or .idx in the name{lost}"
    )


def _prepared(path: Path) -> Dataset:
    sets, arrays = read_prepared(path, ("points", "offsets", "weights", "labels", "split"), dim=2)
    labels = check_labels(path, arrays["labels"], len(CLASSES))
    return _dataset(sets, labels, arrays["split"] == 1, str(path))


def _spellings(name: str) -> list[str]:
    both = (name, name.replace("-idx", ".idx"))
    return [f"{one}{end}" for one in both for end in ("", ".gz")]


def _originals(paths: list[Path]) -> Dataset:
    """From the files of images and labels of the database, then those of the queries."""
    train, test = (_images(*pair) for pair in (paths[:2], paths[2:]))
    is_query = np.repeat([False, True], [len(train[0]), len(test[0])])
    sets, labels = Sets.concat([train[0], test[0]]), np.concatenate([train[1], test[1]])
    return _dataset(sets, labels, is_query, ", ".join(map(str, paths)))


def _images(images: Path, labels: Path) -> tuple[Sets, Int64]:
    file = File(images, images.name, ".idx")
    n, height, width = image_shape(file)
    if (height, width) != (SIDE, SIDE):
        raise Unreadable(f"{images}: images of {height} x {width} pixels, and those of MNIST are {SIDE} x {SIDE}")
    if not n:
        raise Unreadable(f"{images}: there are no images in it: get it again")
    points, sizes, grey = map(np.concatenate, zip(*read_pixels(file, 1 << 22), strict=True))
    try:
        sets = Sets(points, np.concatenate(([0], np.cumsum(sizes))), grey)
    except ValueError as error:
        raise Unreadable(f"{images}: {error}") from None
    values = read_labels(File(labels, labels.name, ".idx"))
    if len(values) != len(sets):
        raise Unreadable(f"{labels}: {len(values)} labels, and {images} has {len(sets)} images: get both again")
    if values.dtype.kind not in "iu":
        raise Unreadable(f"{labels}: labels of {values.dtype}, not whole numbers")
    return sets, check_labels(labels, values, len(CLASSES))


def _dataset(sets: Sets, labels: Int64, is_query: Array, source: str) -> Dataset:
    number = np.where(is_query, np.cumsum(is_query), np.cumsum(~is_query)) - 1
    names = tuple(
        f"{'test' if query else 'train'}-{i:05d}" for query, i in zip(is_query.tolist(), number.tolist(), strict=True)
    )
    return Dataset("mnist", sets, labels, is_query, CLASSES, names, source)
