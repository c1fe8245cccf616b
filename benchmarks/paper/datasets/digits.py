"""MNIST as point sets: the (column, row) of each non-zero pixel, weighted by its grey value.

The prepared file and the four IDX files of MNIST give the same sets.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from slosh import Sets

from .dataset import Dataset, Int64
from .files import Array, Folder, UnreadableFile, check_labels, data_folder, first_file, read_prepared, reading

PREPARED_FILE = "pointcloud_mnist_2d.npz"
CLASSES = tuple("0123456789")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGE_SIDE = 28
IDX_FOLDER = "MNIST/raw"
"""Where torchvision keeps the IDX files."""
IDX_UNSIGNED_BYTE = 8


def mnist(folder: Folder = None) -> Dataset:
    """Load point-cloud MNIST: 60,000 sets and 10,000 queries of 34 to 351 points, d = 2, in 10 classes.

    Points are (column, row) from 0 to 27, in row order; the weights are the grey values, 1 to 255. The names are
    train-00000, train-00001, ..., test-00000, ...

    Parameters
    ----------
    folder : holds pointcloud_mnist_2d.npz; or the four files train-images-idx3-ubyte, train-labels-idx1-ubyte,
        t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, directly or in MNIST/raw, each plain or as .gz, also spelled
        train-images.idx3-ubyte. None: the folder in the environment variable SLOSH_DATA.
    """
    root = data_folder(folder)
    prepared = first_file(root, [PREPARED_FILE])
    if prepared is not None:
        sets, arrays = read_prepared(prepared, ("points", "offsets", "weights", "labels", "split"), dim=2)
        labels = check_labels(prepared, arrays["labels"], len(CLASSES))
        return _dataset(sets, labels, arrays["split"] == 1, str(prepared))
    missing = ""
    for place in (root, root / IDX_FOLDER):
        found = {name: first_file(place, _spellings(name)) for name in IDX_FILES}
        paths = [path for path in found.values() if path is not None]
        if len(paths) == len(IDX_FILES):
            return _from_idx(paths)
        if paths:
            missing += f"; {place} lacks {', '.join(name for name in IDX_FILES if found[name] is None)}"
    raise FileNotFoundError(
        f"{root}: no MNIST in this folder: looked for {PREPARED_FILE}; or for {', '.join(IDX_FILES)}, all four here or "
        f"in {IDX_FOLDER}, plain or as .gz, with -idx or .idx in the name{missing}"
    )


def _spellings(name: str) -> list[str]:
    return [f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]


def _from_idx(paths: list[Path]) -> Dataset:
    """Join the database and the queries, each from a file of images and a file of labels."""
    (train, train_labels), (test, test_labels) = (_images(*pair) for pair in (paths[:2], paths[2:]))
    is_query = np.repeat([False, True], [len(train), len(test)])
    labels = np.concatenate([train_labels, test_labels])
    return _dataset(Sets.concat([train, test]), labels, is_query, ", ".join(map(str, paths)))


def _images(images_path: Path, labels_path: Path) -> tuple[Sets, Int64]:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if not len(images) or images.shape[1:] != (IMAGE_SIDE, IMAGE_SIDE):
        raise UnreadableFile(f"{images_path}: {images.shape} images, not (n, {IMAGE_SIDE}, {IMAGE_SIDE})")
    if len(labels) != len(images):
        raise UnreadableFile(f"{labels_path}: {len(labels)} labels for the {len(images)} images of {images_path}")
    number, row, column = np.nonzero(images)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(number, minlength=len(images)))))
    try:
        sets = Sets(np.stack([column, row], axis=1), offsets, images[number, row, column])
    except ValueError as error:
        raise UnreadableFile(f"{images_path}: {error}") from None
    return sets, check_labels(labels_path, labels, len(CLASSES))


def read_idx(path: Path, ndim: int) -> Array:
    """Return the array of an IDX file of unsigned bytes, plain or compressed by gzip."""
    with reading(path, "IDX file"):
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    header = 4 + 4 * ndim
    if len(content) < header or content[:4] != bytes([0, 0, IDX_UNSIGNED_BYTE, ndim]):
        raise UnreadableFile(f"{path}: not an IDX file of bytes with {ndim} dimensions: it begins {content[:4]!r}")
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if math.prod(shape) != len(content) - header:
        raise UnreadableFile(f"{path}: the header claims shape {shape}, but {len(content) - header} bytes follow")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _dataset(sets: Sets, labels: Int64, is_query: Array, source: str) -> Dataset:
    number = np.where(is_query, np.cumsum(is_query), np.cumsum(~is_query)) - 1
    names = tuple(
        f"{'test' if query else 'train'}-{i:05d}" for query, i in zip(is_query.tolist(), number.tolist(), strict=True)
    )
    return Dataset("mnist", sets, labels, is_query, CLASSES, names, source)
