"""What the paper's experiments did to the sets before they embedded them: one function, one recipe for each data set.

A `Dataset` as it was loaded comes in, one with other points goes out, float32; labels, names and queries stay.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.checks import random_stream
from ..data.segments import blocks
from ..data.sets import Sets
from .dataset import Dataset

Float64 = NDArray[np.float64]

MEAN_SIZE, SPREAD = 512, 64


def as_in_paper(
    dataset: Dataset,
    random_state: int | np.random.RandomState | None = 0,
    rotation: float | tuple[float, float] = (0.0, 45.0),
) -> Dataset:
    """The data set as the paper's experiments used it.

    mnist       coordinates / 28; the grey values are dropped
    modelnet40  object i keeps its first floor(n_i) points, n_i ~ N(512, 64^2), at least 1 and at most all it has. It
                is turned about the x axis by an angle drawn evenly from `rotation`, loses its minimum in each
                coordinate, and is divided by its largest coordinate, so that it lies in the unit cube
    oxford5k    divided by the largest absolute value of all elements

    Parameters
    ----------
    dataset : what `load` gave, database and queries. Draws go from object to object, and Oxford's scale is that of all
        photos: prepare the whole, then take parts of it.
    random_state : the seed of the sizes and angles; modelnet40 only.
    rotation : degrees, the smallest and the largest angle; one number: that angle for all. modelnet40 only.

    >>> square = Sets([[0, 0], [14, 0], [0, 14], [14, 14]], [0, 4], weights=[9, 9, 200, 9])
    >>> data = Dataset("mnist", square, [0], [False], tuple("0123456789"), ("train-00000",), "by hand")
    >>> as_in_paper(data).sets.points.tolist(), as_in_paper(data).sets.weights
    ([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.5, 0.5]], None)
    """
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset is a {type(dataset).__name__}, not a Dataset: give what slosh.datasets.load returns")
    if dataset.prepared:
        raise ValueError(f"this {dataset.name} was prepared as in the paper already: use it as it is")
    if dataset.name in ("modelnet40", "oxford5k") and (dataset.is_query.all() or not dataset.is_query.any()):
        lost = "database" if dataset.is_query.any() else "queries"
        raise ValueError(
            f"this {dataset.name} has no {lost}, and a part would be prepared otherwise than the whole: prepare the "
            "whole, then take .database and .queries of what comes out"
        )
    low, high = _checked_rotation(rotation)
    sets = dataset.sets
    if dataset.name == "mnist":
        new = Sets(sets.points / np.float32(28), sets.offsets)
    elif dataset.name == "modelnet40":
        new = _objects(sets, random_stream(random_state), low, high)
    elif dataset.name == "oxford5k":
        largest = max(sets.points.max(), -sets.points.min()) if len(sets) else 0
        new = Sets(sets.points / np.float32(largest or 1), sets.offsets)
    else:
        raise ValueError(f"the paper has no data set {dataset.name!r:.60}; it has mnist, modelnet40 and oxford5k")
    return replace(dataset, sets=new, prepared=True)


def _checked_rotation(rotation: float | tuple[float, float]) -> tuple[float, float]:
    pair: Any = (rotation, rotation) if isinstance(rotation, Real) else rotation
    good = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(x, Real) for x in pair)
    if not good or not -np.inf < pair[0] <= pair[1] < np.inf:
        raise ValueError(f"rotation={rotation!r:.80} must be an angle in degrees, or two, the smallest and the largest")
    return float(pair[0]), float(pair[1])


def _objects(sets: Sets, random: np.random.RandomState, low: float, high: float) -> Sets:
    """Fewer points of each object, turned, in the unit cube."""
    if sets.dim != 3:
        raise ValueError(f"the objects of modelnet40 have 3 coordinates, these have {sets.dim}")
    n = len(sets)
    sizes = np.floor(random.normal(MEAN_SIZE, SPREAD, n)).astype(np.int64).clip(1, sets.sizes)
    angles = np.deg2rad(random.uniform(low, high, n))
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    elements = np.arange(offsets[-1]) + np.repeat(sets.offsets[:-1] - offsets[:-1], sizes)
    kept = Sets(sets.points[elements], offsets)
    for rows, part in blocks(kept):
        part.points[:] = _in_cube(_turned(part, angles[rows]), part)  # a copy of our own, so it may be written
    return kept


def _turned(sets: Sets, angles: Float64) -> Float64:
    """The points of set i, turned by angles[i] about the x axis, from y to z."""
    points = sets.points.astype(np.float64)
    cos, sin = (np.repeat(values, sets.sizes) for values in (np.cos(angles), np.sin(angles)))
    y, z = points[:, 1].copy(), points[:, 2].copy()
    points[:, 1] = cos * y - sin * z
    points[:, 2] = sin * y + cos * z
    return points


def _in_cube(points: Float64, sets: Sets) -> Float64:
    """Each set less its minimum in each coordinate, divided by its largest coordinate; a single point stays at zero."""
    starts = sets.offsets[:-1]
    points -= np.repeat(np.minimum.reduceat(points, starts, axis=0), sets.sizes, axis=0)
    largest = np.maximum.reduceat(points.max(axis=1), starts)
    points /= np.repeat(np.where(largest > 0, largest, 1.0), sets.sizes)[:, None]
    return points
