"""Prepare the sets as the paper's experiments did before embedding them.

`as_in_paper` takes a `Dataset` as it was loaded and returns one with other points, float32 and without weights. Labels,
names and queries stay the same.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slosh import Sets

from .dataset import Dataset
from .shapes import SEED_STREAM, checked_seed

Float64 = NDArray[np.float64]

MNIST_SIDE = 28
MEAN_SIZE, SIZE_DEVIATION = 512, 64
OBJECTS_PER_BLOCK = 1000


def as_in_paper(
    dataset: Dataset, random_state: int = 0, rotation: float | tuple[float, float] = (0.0, 45.0)
) -> Dataset:
    """Return the data set as the paper's experiments used it.

    mnist       Coordinates are divided by 28, and the grey values are dropped.
    modelnet40  Object i keeps its first floor(n_i) points, n_i ~ N(512, 64^2), at least 1 and at most all. It is
                rotated about the x axis by a random angle from `rotation`, its minimum is subtracted from each
                coordinate, and it is divided by its largest coordinate, so that it fits the unit cube.
    oxford5k    Features are divided by their largest absolute value.

    Parameters
    ----------
    dataset : a whole data set, as `load` returns it. The draws of an object depend on those before it, and Oxford's
        scale on all photos, so take parts only after the preparation.
    random_state : seed of the sizes and angles, 0 to 2**32 - 1; modelnet40 only.
    rotation : smallest and largest angle in degrees, or one angle for all objects; modelnet40 only.

    >>> square = Sets([[0, 0], [14, 0], [0, 14], [14, 14]], [0, 4], weights=[9, 9, 200, 9])
    >>> data = Dataset("mnist", square, [0], [False], tuple("0123456789"), ("train-00000",), "by hand")
    >>> as_in_paper(data).sets.points.tolist(), as_in_paper(data).sets.weights
    ([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.5, 0.5]], None)
    """
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset is a {type(dataset).__name__}, not a Dataset: pass what datasets.load returns")
    if dataset.prepared:
        raise ValueError(f"this {dataset.name} is already prepared as in the paper: use it as it is")
    if dataset.name in ("modelnet40", "oxford5k") and (dataset.is_query.all() or not dataset.is_query.any()):
        missing = "database" if dataset.is_query.any() else "queries"
        raise ValueError(
            f"this {dataset.name} has no {missing}, and a part would be prepared differently from the whole: prepare "
            "the whole, then take .database and .queries of the result"
        )
    low, high = _angle_range(rotation)
    seed, sets = checked_seed(random_state), dataset.sets
    if dataset.name == "mnist":
        new = Sets(sets.points / np.float32(MNIST_SIDE), sets.offsets)
    elif dataset.name == "modelnet40":
        new = _objects(sets, np.random.RandomState(np.array([SEED_STREAM, seed], np.uint32)), low, high)
    elif dataset.name == "oxford5k":
        largest = max(sets.points.max(), -sets.points.min()) if len(sets) else 0
        new = Sets(sets.points / np.float32(largest or 1), sets.offsets)
    else:
        raise ValueError(f"the paper has no data set {dataset.name!r:.60}; it has mnist, modelnet40 and oxford5k")
    return replace(dataset, sets=new, prepared=True)


def _angle_range(rotation: float | tuple[float, float]) -> tuple[float, float]:
    pair: Any = (rotation, rotation) if isinstance(rotation, Real) else rotation
    valid = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(x, Real) for x in pair)
    if not valid or not -np.inf < pair[0] <= pair[1] < np.inf:
        raise ValueError(f"rotation={rotation!r:.80} must be an angle in degrees, or the smallest and the largest one")
    return float(pair[0]), float(pair[1])


def _objects(sets: Sets, random: np.random.RandomState, low: float, high: float) -> Sets:
    """Keep the first points of each object, rotate it, and scale it into the unit cube."""
    if sets.dim != 3:
        raise ValueError(f"the objects of modelnet40 have 3 coordinates, these have {sets.dim}")
    n = len(sets)
    sizes = np.floor(random.normal(MEAN_SIZE, SIZE_DEVIATION, n)).astype(np.int64).clip(1, sets.sizes)
    angles = np.deg2rad(random.uniform(low, high, n))
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    elements = np.arange(offsets[-1]) + np.repeat(sets.offsets[:-1] - offsets[:-1], sizes)
    kept = sets.points[elements]
    for first in range(0, n, OBJECTS_PER_BLOCK):  # float64 copies of a part at a time
        last = min(first + OBJECTS_PER_BLOCK, n)
        part = slice(offsets[first], offsets[last])
        points = _rotated(kept[part], sizes[first:last], angles[first:last])
        kept[part] = _unit_cube(points, sizes[first:last], offsets[first:last] - offsets[first])
    return Sets(kept, offsets)


def _rotated(points: NDArray[Any], sizes: NDArray[np.int64], angles: Float64) -> Float64:
    """Rotate the points of object i by angles[i] about the x axis, from y to z."""
    rotated = points.astype(np.float64)
    cos, sin = (np.repeat(values, sizes) for values in (np.cos(angles), np.sin(angles)))
    y, z = rotated[:, 1].copy(), rotated[:, 2].copy()
    rotated[:, 1] = cos * y - sin * z
    rotated[:, 2] = sin * y + cos * z
    return rotated


def _unit_cube(points: Float64, sizes: NDArray[np.int64], starts: NDArray[np.int64]) -> Float64:
    """Subtract each object's minimum and divide it by its largest coordinate; a single place stays at zero."""
    points -= np.repeat(np.minimum.reduceat(points, starts, axis=0), sizes, axis=0)
    largest = np.maximum.reduceat(points.max(axis=1), starts)
    points /= np.repeat(np.where(largest > 0, largest, 1.0), sizes)[:, None]
    return points
