"""What the page draws of sets: a sample of their points, in at most three dimensions.

Sets with more features are shown by the first principal components of the points of the collection, the same for all
sets, so that they can be compared by eye.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends
from numpy.typing import NDArray
from starlette.responses import Response

from ..data.sets import Sets
from ..index import SetIndex
from ..wire import JSON
from .answer_types import DrawnSet, PointsAnswer, ProjectAnswer, ProjectedSet
from .answers import json_response
from .bodies import Sent, check_sets, decode_json
from .dependencies import Asking, ReaderOf, body
from .openapi import described
from .request_types import PointsBody, ProjectBody

router = APIRouter()
LEARNT_SETS = 256
"""Stored sets that the components are those of."""
Project = Callable[[NDArray[Any]], NDArray[Any]]


def projector(asking: Asking, components: int | None) -> Project:
    """Return what shows points of an index in at most so many dimensions; None leaves them as they are."""
    if components is None or asking.shape().dim <= components:
        return lambda points: np.asarray(points)
    index = asking.open()
    centre, axes = asking.context.remembered("axes", asking.name, lambda: _principal_axes(index))
    return lambda points: (np.asarray(points, np.float64) - centre) @ axes[:, :components]


def _principal_axes(index: SetIndex) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the mean and the first three principal axes of the points of stored sets, each set counting the same."""
    n = len(index)
    ids = spread_ids(index, n, LEARNT_SETS)
    dim = index.dim
    if not ids:
        return np.zeros(dim), np.eye(dim, 3)
    found: Any = index.get(ids)
    sets: Sets = found.sets
    weights = np.repeat(1 / sets.sizes, sets.sizes)
    points = sets.points.astype(np.float64)
    centre = weights @ points / weights.sum()
    moved = (points - centre) * np.sqrt(weights)[:, None]
    _, _, axes = np.linalg.svd(moved, full_matrices=False) if dim <= 4096 else (0, 0, np.eye(3, dim))
    axes = axes[:3] * np.sign(axes[:3].sum(axis=1, keepdims=True) + 1e-300)
    padded = np.zeros((dim, 3))
    padded[:, : len(axes)] = axes.T
    return centre, padded


def spread_ids(index: SetIndex, n: int, most: int) -> list[str]:
    """Return the ids of at most so many stored sets, in blocks that are spread over the collection."""
    if n <= most:
        return index.select(limit=most) if n else []
    blocks = 16
    each, step = max(1, most // blocks), n // blocks
    return [name for block in range(blocks) for name in index.select(limit=each, offset=block * step)]


def sample_rows(n: int, limit: int) -> NDArray[np.int64]:
    """Return which of n points are drawn: all, or a sample that is the same each time, in their order."""
    if n <= limit:
        return np.arange(n)
    return np.sort(np.random.default_rng(n).choice(n, limit, replace=False))


@router.post(
    "/v1/indexes/{name:quoted}/points",
    **described("Points of stored sets to draw: a sample, in at most 3 dimensions.", PointsAnswer, body=PointsBody),
)
def points(asking: ReaderOf, sent: Annotated[Sent, Depends(body(JSON))]) -> Response:
    given = decode_json(sent.body, PointsBody, asking.context.limits)
    found: Any = asking.open().get(given.ids)
    project, origin = projector(asking, given.components), found.sets.origin
    projected, drawn = asking.shape().dim > given.components, []
    for i, (name, about) in enumerate(zip(found.ids, found.metadata, strict=True)):
        own, weights = np.asarray(found.sets[i]), found.sets.weights_of(i)
        rows = sample_rows(len(own), given.limit)
        shown = project(own[rows])
        if origin is not None and not projected:
            shown = shown.astype(np.float64) + origin
        kept = None if weights is None else weights[rows].tolist()
        drawn.append(DrawnSet(name, len(own), shown.tolist(), kept, about))
    return json_response(PointsAnswer(projected, drawn))


@router.post(
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
