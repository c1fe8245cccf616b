"""What the page draws of sets: a sample of their points, in at most three dimensions.

Sets with more features are shown by the first principal components of the points of the collection, the same for all
sets, so that they can be compared by eye.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Depends
from numpy.typing import NDArray
from starlette.responses import Response

from ..data.batching import batches_by_points
from ..data.sets import Sets
from ..data.text import utf8_bytes
from ..errors import InputError, UnknownId
from ..index import SetIndex
from ..wire import JSON
from .answer_types import DrawnSet, PointsAnswer, ProjectAnswer, ProjectedSet
from .answers import json_response
from .bodies import Sent, check_bytes, check_sets, decode_json
from .dependencies import Asking, ReaderOf, body
from .openapi import described
from .request_types import PointsBody, ProjectBody

owner = APIRouter()
"""Routes of the process that writes: what several answers draw is seen from the same side."""
LEARNT_SETS = 256
"""Stored sets that the components are those of."""
LEARNT_POINTS = 1 << 16
"""Points of them, at most."""
BLOCKS = 16
"""Blocks of stored sets, where some of many are looked at."""
FETCHED_NUMBERS = 1 << 24
"""Coordinates of stored sets that are read together, unless a single one has more."""
DRAWN_POINTS = 1_000_000
"""Points of one answer."""
FAR = 0.5
"""How far the middle of the collection may move, in units of its spread, until the components are learnt again."""
KEPT_SHARE = 0.9
"""How much of the share of the variance that the components showed when they were learnt they must still show."""
Project = Callable[[NDArray[Any]], NDArray[Any]]


def projector(asking: Asking, components: int | None) -> Project:
    """Return what shows points of an index in at most so many dimensions; None leaves them as they are."""
    if components is None or asking.shape().dim <= components:
        return lambda points: np.asarray(points)
    index = asking.open()
    axes = asking.context.remembered("axes", asking.name, PrincipalAxes)
    centre, directions = axes.of(index)
    return lambda points: (np.asarray(points, np.float64) - centre) @ directions[:, :components]


class _Points(NamedTuple):
    """Points of stored sets around their mean, scaled so that each set counts the same."""

    mean: NDArray[np.float64]
    moved: NDArray[np.float64]

    @classmethod
    def of(cls, sets: Sets) -> _Points:
        rows = sample_rows(len(sets.points), LEARNT_POINTS)
        weights = np.repeat(1 / sets.sizes, sets.sizes)[rows]
        weights /= weights.sum()
        points = sets.points[rows].astype(np.float64)
        mean = weights @ points
        return cls(mean, (points - mean) * np.sqrt(weights)[:, None])

    @property
    def variance(self) -> float:
        return float(np.sum(self.moved**2))

    def share(self, directions: NDArray[np.float64]) -> float:
        """Return the share of the variance that these directions show."""
        return float(np.sum((self.moved @ directions) ** 2)) / max(self.variance, 1e-300)


class PrincipalAxes:
    """The mean and the first three principal axes of the points of a collection.

    They stay while they show the collection well, so that a picture does not turn while a person looks at it. When the
    index has changed, a sample of it says whether they do.
    """

    def __init__(self) -> None:
        self._lock, self._version = threading.Lock(), -1
        self._learnt: tuple[NDArray[np.float64], NDArray[np.float64], float] | None = None

    def of(self, index: SetIndex) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean (d,) and axes (d, 3) for an index. Of an empty one nothing is kept."""
        with self._lock:
            version = index.version
            if version != self._version:
                sets = spread_sets(index, LEARNT_SETS)
                if not len(sets):
                    self._learnt = None
                    return np.zeros(index.dim), np.eye(index.dim, 3)
                points = _Points.of(sets)
                if not self._fits(points):
                    axes = _principal_axes(points.moved)
                    self._learnt = points.mean, axes, points.share(axes)
                self._version = version
            assert self._learnt is not None
            return self._learnt[:2]

    def _fits(self, points: _Points) -> bool:
        if self._learnt is None:
            return False
        mean, axes, share = self._learnt
        is_near = float(np.sum((points.mean - mean) ** 2)) <= FAR**2 * points.variance
        return is_near and points.share(axes) >= KEPT_SHARE * share


def _principal_axes(moved: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first three principal axes of points around their mean."""
    dim = moved.shape[1]
    _, _, axes = np.linalg.svd(moved, full_matrices=False) if dim <= 4096 else (0, 0, np.eye(3, dim))
    axes = axes[:3] * np.sign(axes[:3].sum(axis=1, keepdims=True) + 1e-300)
    padded = np.zeros((dim, 3))
    padded[:, : len(axes)] = axes.T
    return padded


def spread(n: int, most: int) -> list[tuple[int, int]]:
    """Return blocks (limit, offset) that hold at most so many of n stored sets, spread over the collection."""
    if n <= most:
        return [(most, 0)] if n else []
    each, step = max(1, most // BLOCKS), n // BLOCKS
    return [(each, block * step) for block in range(BLOCKS)]


def spread_sets(index: SetIndex, most: int) -> Sets:
    """Return at most so many stored sets, spread over the collection."""
    while True:
        with contextlib.suppress(UnknownId):  # one of them was removed meanwhile
            names: list[str] = []
            for limit, offset in spread(len(index), most):
                lines = index.describe(limit=limit, offset=offset)
                within = FETCHED_NUMBERS // index.dim // BLOCKS
                few = max(1, int(np.searchsorted(np.cumsum(lines.sizes), within, side="right")))
                names += lines.ids[:few]
            found: Any = index.get(names)
            return found.sets  # type: ignore[no-any-return]


def sample_rows(n: int, limit: int) -> NDArray[np.int64]:
    """Return which of n points are drawn: all, or a sample that is the same each time, in their order."""
    if n <= limit:
        return np.arange(n)
    return np.sort(np.random.default_rng(n).choice(n, limit, replace=False))


@owner.post(
    "/v1/indexes/{name:quoted}/points",
    **described("Points of stored sets to draw: a sample, in at most 3 dimensions.", PointsAnswer, body=PointsBody),
)
def points(asking: ReaderOf, sent: Annotated[Sent, Depends(body(JSON))]) -> Response:
    given = decode_json(sent.body, PointsBody, asking.context.limits)
    index, ids, drawn = asking.open(), [str(name) for name in given.ids], list[DrawnSet]()
    if not ids:
        return json_response(PointsAnswer(asking.shape().dim > given.components, []))
    lines = index.describe({"@id": list(dict.fromkeys(ids))})
    known = dict(zip(lines.ids, lines.sizes.tolist(), strict=True))
    sizes = np.array([known.get(name, 1) for name in ids], np.int64)
    texts = dict(zip(lines.ids, map(utf8_bytes, lines.metadata_json), strict=True))
    check_bytes(sum(texts.get(name, 0) for name in ids), asking.context.limits, "ids")
    if (n := int(np.minimum(sizes, given.limit).sum())) > DRAWN_POINTS:
        problem, remedy = f"these are {n:,} points", f"ask for fewer sets, or a limit that makes {DRAWN_POINTS:,}"
        raise InputError(problem, remedy, argument="limit")
    project, origin = projector(asking, given.components), index.origin
    projected = asking.shape().dim > given.components
    for part in batches_by_points(sizes, max(1, FETCHED_NUMBERS // index.dim)):
        found: Any = index.get(ids[part])
        for i, (name, about) in enumerate(zip(found.ids, found.metadata, strict=True)):
            own, weights = np.asarray(found.sets[i]), found.sets.weights_of(i)
            rows = sample_rows(len(own), given.limit)
            shown = project(own[rows])
            if origin is not None and not projected:
                shown = shown.astype(np.float64) + origin
            kept = None if weights is None else weights[rows].tolist()
            drawn.append(DrawnSet(name, len(own), shown.tolist(), kept, about))
    return json_response(PointsAnswer(projected, drawn))


@owner.post(
    "/v1/indexes/{name:quoted}/project",
    **described(
        "Points of sets that are not stored to draw, as `points` gives those of stored ones.",
        ProjectAnswer,
        body=ProjectBody,
    ),
)
def project(asking: ReaderOf, sent: Annotated[Sent, Depends(body(JSON))]) -> Response:
    given = decode_json(sent.body, ProjectBody, asking.context.limits)
    shape = asking.shape()
    sets = shape.sets(given.sets)
    check_sets(sets, asking.context.limits)
    make, projected, drawn = projector(asking, given.components), shape.dim > given.components, []
    for i in range(len(sets)):
        own = np.asarray(sets[i])
        shown = make(own[sample_rows(len(own), given.limit)])
        if shape.origin is not None and not projected:
            shown = shown.astype(np.float64) + shape.origin
        drawn.append(ProjectedSet(len(own), shown.tolist()))
    return json_response(ProjectAnswer(projected, drawn))
