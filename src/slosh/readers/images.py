"""IDX images, the format of MNIST: each image is the set of its non-zero pixels, (column, row).

Plain or compressed by gzip. The size that the header claims is compared with the file, and no more than a batch is held
at a time. Labels come from the file that lies beside the images.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..data.batching import MAX_BATCH_SETS
from ..data.text import format_bytes
from ..native.arrays import Array
from .files import File, Options, Piece, is_labels, metadata_rows, reading

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(file: File, options: Options) -> Iterator[Piece]:
    """Read each image as a set; `weights="grey"` gives each pixel its grey value as weight."""
    if options.weights not in (None, False, "grey"):
        what = f"weights={options.weights!r:.60} is not known for images"
        raise file.error(what, 'give "grey", or None', argument="weights")
    with _open(file.path) as stream:
        shape, _ = _header(file, stream)
    if len(shape) != 3:
        remedy = "labels are read with the images they lie beside" if len(shape) == 1 else ""
        raise file.error(f"an IDX array of shape {shape}, not images (n, height, width)", remedy)
    return _pieces(file, options, *shape)


def _pieces(file: File, options: Options, n: int, height: int, width: int) -> Iterator[Piece]:
    labels = _labels(file)
    if labels is not None and len(labels) != n:
        raise file.error(f"{n} images, but the file of labels beside it has {len(labels)}")
    kind = np.uint16 if max(height, width) <= 1 << 16 else np.int64
    file.check_memory("an image", 8 * height * width)  # as points
    at_once = max(1, min(MAX_BATCH_SETS, options.limit(2) // max(1, height * width)))
    with _open(file.path) as stream:
        _, dtype = _header(file, stream)
        for first in range(0, n, at_once):
            images = _take(file, stream, (min(at_once, n - first), height, width), dtype)
            number, row, column = np.nonzero(images)
            points = np.stack([column, row], axis=1, dtype=kind, casting="unsafe")
            sizes = np.bincount(number, minlength=len(images))
            weights = images[number, row, column] if options.weights == "grey" else None
            columns = {} if labels is None else {"label": labels[first : first + len(images)].tolist()}
            metadata = metadata_rows(file, columns, len(images))
            yield Piece(file, points, sizes, weights, file.numbered(first, len(images)), metadata)
        _check_end(file, stream, f"{n} images")


def _check_end(file: File, stream: Any, what: str) -> None:
    if stream.read(1):
        raise file.error(f"goes on after the {what} of its header: it is damaged")


def _open(path: Path) -> Any:
    """Open the file, unpacked if it is a gzip, whatever it is called."""
    with open(path, "rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else open(path, "rb")


def _header(file: File, stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of the array, after its size was compared with the file."""
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES or not start[3]:
        raise file.error(f"not an IDX file: it starts with {start!r}, and should with two zeros, type and rank")
    sizes = stream.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise file.error("ends in its header: it is cut short")
    shape = struct.unpack(f">{start[3]}I", sizes)
    dtype = np.dtype(_TYPES[start[2]])
    size, head = math.prod(shape) * dtype.itemsize, 4 + len(sizes)
    if not isinstance(stream, gzip.GzipFile) and size != (there := file.size - head):
        raise file.error(f"claims {format_bytes(size)} of values, the file has {format_bytes(there)}: refused")
    file.check_expansion("the header", size)
    return shape, dtype


def _take(file: File, stream: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    data = stream.read(size)
    if len(data) < size:
        raise file.error("ends early: it is cut short")
    return np.frombuffer(data, dtype).reshape(shape)


def _labels(file: File) -> Array | None:
    """Return the labels that lie beside images, under the name that the data sets of this format have."""
    name = file.path.name
    if "images" not in name:
        return None
    bare = name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    for other in (bare, f"{bare}.gz"):
        path = file.path.with_name(other)
        if os.path.lexists(path) and is_labels(other):
            beside = file._replace(path=path, name=other)
            if path.is_symlink() and path.resolve().parent != file.path.resolve().parent:
                raise beside.error("a link that leads out of the folder", "put the file itself there")
            with reading(beside, "an IDX file"), _open(path) as stream:
                shape, dtype = _header(beside, stream)
                if len(shape) != 1:
                    raise beside.error(f"an array of shape {shape}, not labels (n,)")
                labels = _take(beside, stream, shape, dtype)
                _check_end(beside, stream, f"{len(labels)} labels")
            return labels
    return None
