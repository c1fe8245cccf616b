"""Bodies of answers as types: they encode them, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ..index.set_index import Tuned
from ..search import Calibration
from .request_types import Points

Json = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class State(Struct):
    status: Literal["ok", "ready"]


class Allowed(Struct):
    """What a key allows, and the names of the indexes that it is for; null is all of them."""

    read: bool
    write: bool
    indexes: list[str] | None


class ServerAnswer(Struct):
    version: str
    read_only: bool
    keys: bool
    allowed: Allowed
    can_create: bool
    formats: list[str]
    limits: dict[str, float]


class IndexLine(Struct):
    """An index; of one that cannot be opened there is `problem`, which says why, and nothing but the name."""

    name: str
    sets: int | None
    dim: int | None
    engine: str | None
    distance_kind: str | None
    weighted: bool | None
    parts: bool | None
    read_only: bool | None
    problem: str | None


class IndexesAnswer(Struct):
    indexes: list[IndexLine]


class CountAnswer(Struct):
    count: int


class IdsAnswer(Struct):
    ids: list[str]


class SetLine(Struct):
    id: str
    size: int
    metadata: dict[str, Any]


class DescribeAnswer(Struct):
    next: int | None
    sets: list[SetLine]


class SetsAnswer(Struct):
    total: int
    next: int | None
    sets: list[SetLine]


class StoredSet(Struct):
    id: str
    points: Points
    weights: list[float] | None
    metadata: dict[str, Any]


class RecordsAnswer(Struct):
    sets: list[StoredSet]


class ParseAnswer(Struct):
    total: int
    sets: list[StoredSet]


class DrawnSet(Struct):
    id: str
    size: int
    points: Points
    weights: list[float] | None
    metadata: dict[str, Any]


class PointsAnswer(Struct):
    projected: bool
    sets: list[DrawnSet]


class ProjectedSet(Struct):
    size: int
    points: Points


class ProjectAnswer(Struct):
    projected: bool
    sets: list[ProjectedSet]


class HitsPart(Struct, omit_defaults=True):
    ids: list[str]
    distances: list[float]
    metadata: list[Json] | None = None


class StatsPart(Struct):
    recall: float | None
    seconds: float
    candidates: list[int]
    scanned: list[int]
    full_distances: list[int] | None
    unlike: list[bool] | None


class HitsAnswer(Struct):
    distance_kind: str
    hits: Annotated[
        Any,
        Meta(
            extra_json_schema={
                "anyOf": [
                    {"$ref": "#/components/schemas/HitsPart"},
                    {"type": "array", "items": {"$ref": "#/components/schemas/HitsPart"}},
                ]
            }
        ),
    ]
    stats: StatsPart


class NeighborsAnswer(Struct):
    distances: list[list[float | None]]
    positions: list[list[int]]


class SideAnswer(Struct):
    points: Points
    weights: list[float] | None


class ExplainAnswer(Struct, omit_defaults=True):
    kind: Literal["whole", "part", "contained"]
    distance: float
    x: SideAnswer
    y: SideAnswer
    projected: bool
    slices: list[float] | None = None
    x_elements: list[float] | None = None
    y_elements: list[float] | None = None
    directions: Points | None = None
    pairs: list[tuple[int, int, float]] | None = None
    nearest: list[int] | None = None
    distances: list[float] | None = None
    weights: list[float] | None = None


class FieldValue(Struct):
    value: str | float | bool
    count: int


class FieldLine(Struct):
    name: str
    kind: Literal["text", "number", "boolean", "mixed"]
    sets: int
    distinct: int
    least: float | None
    greatest: float | None
    values: list[FieldValue]


class FieldsAnswer(Struct):
    sampled: int
    total: int
    fields: list[FieldLine]


class MapAnswer(Struct):
    state: Literal["building", "ready", "empty", "failed"]
    done: int
    total: int
    sets: int
    stale: bool
    bounds: list[float] | None
    max_level: int
    explained: list[float] | None


class TileAnswer(Struct):
    level: int
    x: int
    y: int
    bounds: list[float]
    count: int
    ids: list[str]
    points: Points
    values: list[Any] | None
    density: list[list[int]]


class PlaceAnswer(Struct):
    queries: Points | None
    ids: list[list[float] | None] | None


class Problem(Struct):
    type: str
    title: str
    status: int
    detail: str
    class_: str = msgspec.field(name="class")
    problem: str
    remedy: str
    fields: dict[str, Any]


TuneResult: Any = msgspec.defstruct("TuneResult", list(get_type_hints(Tuned).items()))


class VerifyResult(Struct):
    ok: bool
    problems: list[str]
    checked: dict[str, str]


class DuplicatesResult(Struct):
    distance_kind: str
    pairs: list[tuple[str, str, float]]


class NeighborGraphResult(Struct):
    ids: list[str]
    indptr: list[int]
    indices: list[int]
    data: list[float]


class JobState(Struct):
    """What all jobs have: how far it is, and the problem of one that failed."""

    id: str
    index: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    stage: str
    done: int
    total: int | None
    seconds: float
    error: Problem | None


RESULTS: dict[str, Any] = {
    "compact": None,
    "tune": TuneResult | None,
    "verify": VerifyResult | None,
    "retrain": None,
    "enable": None,
    "finish_copy": None,
    "duplicates": DuplicatesResult | None,
    "neighbor_graph": NeighborGraphResult | None,
    "kneighbors": NeighborsAnswer | None,
}
"""What a job of each kind gives; null until it is done."""


def _job_answer(kind: str, result: Any) -> Any:
    name = "".join(word.capitalize() for word in kind.split("_"))
    return msgspec.defstruct(f"{name}JobAnswer", [("result", result)], bases=(JobState,), tag_field="kind", tag=kind)


JOB_ANSWERS = {kind: _job_answer(kind, result) for kind, result in RESULTS.items()}
JobAnswer: Any = Union[tuple(JOB_ANSWERS.values())]  # noqa: UP007, of a tuple
JobsAnswer: Any = msgspec.defstruct("JobsAnswer", [("jobs", list[JobAnswer])])


class Sizes(Struct):
    smallest: int
    largest: int


class PartsPart(Struct):
    """What an index has for part search."""

    field: str
    n_anchors: int
    measured: list[Calibration]
    pools: list[int]


class InfoAnswer(Struct):
    """What `SetIndex.info` gives. What stands after `sizes` is there for some engines, or once there are sets."""

    name: str
    read_only: bool
    sets: int
    dim: int
    weighted: bool | None
    recall: float | None
    made_on: list[str]
    embedding: str
    vector_length: int
    distance_kind: str
    learnt_from: dict[str, int] | None
    search: str
    preprocess: str
    origin: list[float] | None
    parts: PartsPart | None
    retrain: str | None
    engine: str
    points: int
    sizes: Sizes | None
    format: int | UnsetType = UNSET
    compacted: int | UnsetType = UNSET
    removed_since_compact: int | UnsetType = UNSET
    trained_version: int | UnsetType = UNSET
    embedded_on_open: int | UnsetType = UNSET
    cache_rebuilt: str | UnsetType | None = UNSET
    disk_bytes: dict[str, int] | UnsetType = UNSET
    memory_bytes: dict[str, int] | UnsetType = UNSET
    search_info: dict[str, Any] | UnsetType = UNSET
    server: str | UnsetType = UNSET
    standby: bool | UnsetType = UNSET
    lag_seconds: float | UnsetType | None = UNSET
