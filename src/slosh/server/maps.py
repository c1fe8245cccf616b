"""The collection as a map: the first two principal components of the vectors of all sets, given out in tiles.

The axes are learnt from a sample, then all sets are placed, batch by batch, in a thread of its own. Of a million sets
8 MB of coordinates are held, and their ids. A tile gives a part of its sets that is the same each time: every set has a
rank, drawn once, and a tile gives those of the lowest ranks. So what is shown at one level is shown at deeper ones.
"""

from __future__ import annotations

import logging
import threading
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Depends
from numpy.typing import NDArray
from starlette.responses import Response

from ..data.sets import Sets
from ..engines.spec import IndexSpec
from ..errors import InputError
from ..index import SetIndex
from ..wire import JSON
from .answer_types import MapAnswer, PlaceAnswer, TileAnswer
from .answers import json_response
from .bodies import Sent, decode_json, decode_points, decode_weights, is_many
from .dependencies import Asking, ReaderOf, body, query, short
from .drawing import spread_sets
from .openapi import described
from .problems import NotReady
from .request_types import PlaceBody, Tile

logger = logging.getLogger(__name__)
owner = APIRouter()
"""Routes of the process that writes, which keeps the maps."""

LEARNT_SETS, BATCH_SETS = 512, 2048
LEARNT_NUMBERS = 1 << 25
"""Numbers of the vectors that the axes are learnt from."""
FULL_TILE = 1000
"""Sets that a tile of the deepest level has, about."""
GRID = 32
"""Rows and columns of the density of a tile."""
MARGIN = 0.02


class Axes(NamedTuple):
    """What places vectors: their mean, two axes, and the share of the variance of each."""

    centre: NDArray[np.float64]
    axes: NDArray[np.float64]
    explained: list[float]

    def place(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        return (np.asarray(vectors, np.float64) - self.centre) @ self.axes


class Placed(NamedTuple):
    """A map: ids and coordinates in the order of their x, ranks, and the row of each id.

    `spec` made the vectors. `version` is that of the index as the map was begun.
    """

    version: int
    spec: IndexSpec
    axes: Axes
    ids: list[str]
    xy: NDArray[np.float32]
    ranks: NDArray[np.uint32]
    rows: dict[str, int]
    bounds: tuple[float, float, float, float]

    @property
    def max_level(self) -> int:
        level, n = 0, len(self.ids)
        while n > FULL_TILE and level < 12:
            level, n = level + 1, n // 4
        return level

    def place(self, sets: Sets) -> NDArray[np.float64]:
        """Return where sets lie, by the embedding of this map: that of the index may be another by now."""
        return self.axes.place(_vectors(self.spec, sets))


class Map:
    """The map of one index: the newest that is there, and one that is being made."""

    def __init__(self, index: SetIndex) -> None:
        self._index, self._lock = index, threading.Lock()
        self.placed: Placed | None = None
        self.done, self.total, self.failed, self.version = 0, 0, False, -1
        """How far the map is that is being made, and the version of the index that was seen last."""
        self._thread: threading.Thread | None = None

    def refresh(self) -> bool:
        """Begin to make a map if there is none, or the index has changed; return whether one is being made."""
        n, version = len(self._index), self._index.version
        with self._lock:
            self.version = version
            if self._thread is not None and self._thread.is_alive():
                return True
            if n == 0:
                self.placed = None
            if n == 0 or (self.placed is not None and self.placed.version == version):
                return False
            self.done, self.total, self.failed = 0, n, False
            self._thread = threading.Thread(target=self._make, name="map", daemon=True)
            self._thread.start()
            return True

    def wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join()

    def _make(self) -> None:
        try:
            self.placed = self._place_all()
        except Exception:  # of whatever kind: the log says it, and the page goes on without a map
            self.failed = True
            logger.exception("the map of %s could not be made", self._index.location)

    def _place_all(self) -> Placed | None:
        index = self._index
        version, spec = index.version, index.spec  # what changes meanwhile makes the next map
        sample = spread_sets(index, LEARNT_SETS)
        if not len(sample):
            return None
        axes = _learn(_vectors(spec, sample))
        ids: list[str] = []
        parts: list[NDArray[Any]] = []
        for batch in index.records(BATCH_SETS):
            parts.append(axes.place(_vectors(spec, batch.sets)).astype(np.float32))
            ids += batch.ids
            self.done = len(ids)
        if not ids:
            return None
        xy = np.concatenate(parts)
        order = np.argsort(xy[:, 0], kind="stable")
        xy, ids = xy[order], [ids[i] for i in order.tolist()]
        ranks = np.random.default_rng(0).permutation(len(ids)).astype(np.uint32)
        rows = {name: i for i, name in enumerate(ids)}
        return Placed(version, spec, axes, ids, xy, ranks, rows, _bounds(xy))


def _vectors(spec: IndexSpec, sets: Sets) -> NDArray[Any]:
    return spec.vectors(spec.prepare(sets), slack=False).numbers


def _learn(vectors: NDArray[Any]) -> Axes:
    """Return the first two principal axes of vectors."""
    kept = vectors[: max(2, LEARNT_NUMBERS // max(1, vectors.shape[1]))].astype(np.float64)
    centre = kept.mean(axis=0)
    moved = kept - centre
    gram = moved @ moved.T if len(kept) <= moved.shape[1] else moved.T @ moved
    values, inner = np.linalg.eigh(gram)
    top = inner[:, ::-1][:, :2]
    axes = moved.T @ top if len(kept) <= moved.shape[1] else top
    axes = axes / np.maximum(np.linalg.norm(axes, axis=0), 1e-300)
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    padded = np.zeros((moved.shape[1], 2))
    padded[:, : axes.shape[1]] = axes
    total = max(float(np.maximum(values, 0).sum()), 1e-300)
    explained = [float(max(value, 0.0) / total) for value in values[::-1][:2]]
    return Axes(centre, padded, [*explained, 0.0, 0.0][:2])


def _bounds(xy: NDArray[np.float32]) -> tuple[float, float, float, float]:
    low, high = xy.min(axis=0).astype(float), xy.max(axis=0).astype(float)
    margin = np.maximum((high - low) * MARGIN, 1e-6 * np.maximum(1.0, np.abs(high)))
    low, high = low - margin, high + margin
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def _map(asking: Asking) -> Map:
    index = asking.open()
    return asking.context.remembered("map", asking.name, lambda: Map(index))


def _ready(asking: Asking) -> Placed:
    placed = _map(asking).placed
    if placed is None:
        remedy = "ask for the map first, and wait until it is ready"
        raise NotReady("there is no map yet", remedy, location=asking.name)
    return placed


@owner.get("/v1/indexes/{name:quoted}/map", **described("The collection in two dimensions.", MapAnswer))
@short
def map_info(asking: ReaderOf) -> Response:
    found = _map(asking)
    building = found.refresh()
    placed = found.placed
    n = 0 if placed is None else len(placed.ids)
    state: Any = "ready"
    if placed is None:
        state = "building" if building else "failed" if found.failed else "empty"
    answer = MapAnswer(
        state=state,
        done=found.done if building else n,
        total=found.total if building else n,
        sets=n,
        stale=placed is not None and placed.version != found.version,
        bounds=None if placed is None else list(placed.bounds),
        max_level=0 if placed is None else placed.max_level,
        explained=None if placed is None else placed.axes.explained,
    )
    return json_response(answer)


@owner.get(
    "/v1/indexes/{name:quoted}/map/tile",
    **described("A part of the map.", TileAnswer, query=Tile, errors=(401, 404, 409, 504)),
)
def tile(asking: ReaderOf, given: Annotated[Tile, Depends(query(Tile))]) -> Response:
    placed = _ready(asking)
    side = 1 << given.level
    if given.x >= side or given.y >= side:
        raise InputError(f"level {given.level} has {side} columns and rows", "x and y count from 0", argument="x")
    left, low, right, high = placed.bounds
    wide, tall = (right - left) / side, (high - low) / side
    x0, y0 = left + given.x * wide, low + given.y * tall
    first, last = np.searchsorted(placed.xy[:, 0], [x0, x0 + wide]).tolist()
    inside = placed.xy[first:last, 1]
    rows = first + np.flatnonzero((inside >= y0) & (inside < y0 + tall))
    density = np.histogram2d(placed.xy[rows, 1], placed.xy[rows, 0], GRID, [[y0, y0 + tall], [x0, x0 + wide]])[
        0
    ].astype(int)
    if len(rows) > given.limit:
        rows = rows[np.argpartition(placed.ranks[rows], given.limit)[: given.limit]]
    rows = rows[np.argsort(placed.ranks[rows])]
    ids = [placed.ids[i] for i in rows.tolist()]
    values = None
    if given.field is not None:
        ids, rows, values = _with_values(asking.open(), ids, rows, given.field)
    points = placed.xy[rows].astype(float).tolist()
    bounds, n = [x0, y0, x0 + wide, y0 + tall], int(density.sum())
    return json_response(TileAnswer(given.level, given.x, given.y, bounds, n, ids, points, values, density.tolist()))


def _with_values(index: SetIndex, ids: list[str], rows: Any, field: str) -> tuple[list[str], Any, list[Any]]:
    """Return those of the sets that are still stored, with the value of a field of each."""
    if not ids:
        return ids, rows, []
    found = index.describe({"@id": ids})
    about = dict(zip(found.ids, found.metadata, strict=True))
    kept = [i for i, name in enumerate(ids) if name in about]
    ids, rows = [ids[i] for i in kept], rows[kept]
    return ids, rows, [_value(about[name], field) for name in ids]


def _value(about: Any, field: str) -> Any:
    """Return the value of a field: a text, a number or a boolean; the first of a list; None where there is none."""
    if field in about:
        found = about[field]
    else:
        found = about
        for part in field.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, list):
        found = next((each for each in found if isinstance(each, str | int | float)), None)
    return found if isinstance(found, str | int | float | bool) else None


@owner.post(
    "/v1/indexes/{name:quoted}/map/place",
    **described(
        "Where queries and stored sets lie in the map.",
        PlaceAnswer,
        body=PlaceBody,
        errors=(401, 404, 409, 504),
    ),
)
def place(asking: ReaderOf, sent: Annotated[Sent, Depends(body(JSON))]) -> Response:
    given = decode_json(sent.body, PlaceBody, asking.context.limits)
    placed = _ready(asking)
    raw, queries = bytes(given.queries), None
    if raw != b"null":
        many = is_many(raw)
        points, weights = decode_points(raw, many), decode_weights(bytes(given.weights), many)
        queries = placed.place(asking.shape().sets(points, weights, name="queries")).tolist()
    rows = None if given.ids is None else [placed.rows.get(str(name)) for name in given.ids]
    ids = None if rows is None else [None if i is None else placed.xy[i].astype(float).tolist() for i in rows]
    return json_response(PlaceAnswer(queries, ids))
