"""Bodies and query strings of requests as types: they decode them, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta, Raw, Struct

from .settings import Limits

_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_POINTS = {"type": "array", "items": _NUMBERS, "minItems": 1}
_FILTER = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}, {"type": "null"}],
    "description": "see slosh.where",
}

Points = Annotated[list[list[float]], Meta(extra_json_schema={"minItems": 1})]
Name = Annotated[str, Meta(min_length=1)]
OneOrMany = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [_POINTS, {"type": "array", "items": _POINTS}, {"type": "null"}],
            "description": "one set, a list of points; or a list of sets",
        }
    ),
]
WeightsOfThem = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [_NUMBERS, {"type": "array", "items": _NUMBERS}, {"type": "null"}],
            "description": "a weight for each point, as the sets",
        }
    ),
]
Where = Annotated[Any, Meta(extra_json_schema=_FILTER)]
Count = Annotated[int, Meta(ge=1)]
Offset = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Radius = Annotated[float, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=4294967295)]
Id = Name | int
NONE = Raw(b"null")


def _none() -> Raw:
    return NONE


NAME_RULE = "1 to 100 letters, digits, and . _ - between them"
Match = Literal["whole", "part", "contained", "both"]
Rerank = Literal["sliced", "sliced_wasserstein", "wasserstein", "chamfer", "hausdorff", "maxsim", "partial_wasserstein"]


class Body(Struct, forbid_unknown_fields=True):
    """What a request holds: another field than these is an error."""


# What is asked


class SearchBody(Body):
    queries: OneOrMany = msgspec.field(default_factory=_none)
    weights: WeightsOfThem = msgspec.field(default_factory=_none)
    id: Id | list[Id] | None = None
    k: Count = 10
    where: Where = None
    recall: Share | None = None
    rerank: Rerank | None = None
    depth: Count | None = None
    certify: bool = False
    offset: Offset = 0
    match: Match = "whole"
    coverage: Share | None = None
    metadata: bool = True


class RangeBody(Body):
    queries: OneOrMany = msgspec.field(default_factory=_none)
    weights: WeightsOfThem = msgspec.field(default_factory=_none)
    id: Id | list[Id] | None = None
    radius: Radius | list[Radius] = 0.0
    where: Where = None
    recall: Share | None = None
    rerank: Rerank | None = None
    certify: bool = False
    match: Match = "whole"
    coverage: Share | None = None
    max_hits: Count | None = None
    metadata: bool = True


class NeighborsBody(Body):
    queries: OneOrMany = msgspec.field(default_factory=_none)
    weights: WeightsOfThem = msgspec.field(default_factory=_none)
    id: Id | list[Id] | None = None
    k: Count = 10
    where: Where = None
    recall: Share | None = None


class ExplainBody(Body):
    id: Id
    query: Points | None = None
    weights: list[float] | None = None
    query_id: Id | None = None
    match: Literal["whole", "part", "contained"] = "whole"
    components: Literal[2, 3] | None = 3


class CreateBody(Body):
    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description=NAME_RULE)]
    dim: Annotated[int, Meta(ge=1, le=Limits.dim)]
    weighted: bool | None = None
    embedding: EmbeddingBody | None = None
    preprocess: dict[str, Any] | None = None
    origin: list[float] | None = None
    parts: bool = False
    sample: list[Points] | None = None


class EmbeddingBody(Body):
    class_: str = msgspec.field(name="class")
    parameters: dict[str, bool | int | float | str | None] = {}


class AddBody(Body):
    sets: list[Points]
    ids: list[Id] | None = None
    metadata: list[dict[str, Any] | None] | dict[str, Any] | None = None
    weights: list[list[float]] | None = None
    update: bool = False


class UpdateBody(Body):
    ids: list[Id]
    sets: list[Points] | None = None
    metadata: list[dict[str, Any] | None] | dict[str, Any] | None = None
    weights: list[list[float]] | None = None
    merge: bool = False


class RemoveBody(Body):
    ids: list[Id] | None = None
    where: Where = None


class SelectBody(Body):
    where: Where = None
    limit: Count | None = None
    offset: Offset = 0


class DescribeBody(Body):
    where: Where = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    offset: Offset = 0


class GetBody(Body):
    ids: list[Id]
    part: bool = False


class PointsBody(Body):
    ids: Annotated[list[Id], Meta(max_length=1000)]
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 500
    components: Literal[2, 3] = 3


class ProjectBody(Body):
    sets: Annotated[list[Points], Meta(max_length=1000)]
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 500
    components: Literal[2, 3] = 3


class PlaceBody(Body):
    queries: OneOrMany = msgspec.field(default_factory=_none)
    weights: WeightsOfThem = msgspec.field(default_factory=_none)
    ids: Annotated[list[Id], Meta(max_length=10_000)] | None = None


# Jobs: the arguments of each kind


class CompactArguments(Body):
    pass


class TuneArguments(Body):
    recall: Share = 0.99
    k: Count = 10


class VerifyArguments(Body):
    sample: Count | None = None


class RetrainArguments(Body):
    label: str | None = None
    random_state: Seed = 0


class EnableArguments(Body):
    feature: Literal["parts"] = "parts"
    parts: bool | None = True
    random_state: Seed = 0


class FinishCopyArguments(Body):
    recall: Share | None = None
    next_id: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    calibrated: list[tuple[Count, float]] = []


class DuplicatesArguments(Body):
    radius: Radius = 0.0
    id: Id | list[Id] | None = None
    where: Where = None
    certify: bool = False
    limit: Count | None = None


class NeighborGraphArguments(Body):
    k: Count = 15
    mode: Literal["distance", "connectivity"] = "distance"
    recall: Share | None = None
    certify: bool = False


class KneighborsArguments(Body):
    k: Count = 10
    where: Where = None
    recall: Share | None = None


JobKind = Literal[
    "compact", "tune", "verify", "retrain", "enable", "finish_copy", "duplicates", "neighbor_graph", "kneighbors"
]
ARGUMENTS: dict[str, type[Body]] = {
    "compact": CompactArguments,
    "tune": TuneArguments,
    "verify": VerifyArguments,
    "retrain": RetrainArguments,
    "enable": EnableArguments,
    "finish_copy": FinishCopyArguments,
    "duplicates": DuplicatesArguments,
    "neighbor_graph": NeighborGraphArguments,
    "kneighbors": KneighborsArguments,
}
"""The arguments of each kind of job that JSON can hold."""


def _job_body(kind: str, arguments: type[Body]) -> Any:
    fields: Any = [("arguments", arguments, msgspec.field(default_factory=arguments))]
    name = arguments.__name__.replace("Arguments", "Job")
    return msgspec.defstruct(name, fields, bases=(Body,), tag_field="kind", tag=kind)


class JobHead(Body):
    """What kind of job it is; the arguments are decoded when that is known."""

    kind: JobKind
    arguments: Raw = msgspec.field(default_factory=lambda: Raw(b"{}"))


JobBody: Any = Union[tuple(_job_body(*each) for each in ARGUMENTS.items())]  # noqa: UP007, of a tuple


# What stands in the query string


class Page(Body):
    where: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Offset = 0


class Filter(Body):
    where: str | None = None


class FieldValues(Body):
    values: Annotated[int, Meta(ge=1, le=1000)] = 50


class Batch(Body):
    batch: Annotated[int, Meta(ge=1, le=100_000)] = 4096


class Wait(Body):
    wait: Annotated[float, Meta(ge=0, le=30)] = 0.0


class Tile(Body):
    level: Annotated[int, Meta(ge=0, le=30)]
    x: Offset
    y: Offset
    field: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class Reading(Body):
    filename: Annotated[str, Meta(min_length=1, max_length=255)]
    format: str | None = None
    id_column: str | None = None
    columns: str | None = None
    weights: str | None = None
    by: str | None = None
    obsm: str | None = None
    n_points: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    random_state: Seed = 0


NOT_IN_A_QUERY = ("queries", "weights", "id")
"""Fields of bodies that say which sets are asked about: beside a body that holds nothing but sets, there are none."""


_QUERY_TYPES: dict[Any, Any] = {}


def query_type(kind: Any) -> Any:
    """Return the type of the query string beside a body that holds nothing but sets, of which `kind` is the JSON."""
    if kind in _QUERY_TYPES:
        return _QUERY_TYPES[kind]
    kept = [each for each in msgspec.structs.fields(kind) if each.name not in NOT_IN_A_QUERY]
    fields: list[Any] = [(each.name, each.type, each.default) for each in kept]
    made = _QUERY_TYPES[kind] = msgspec.defstruct(kind.__name__, fields, bases=(Body,))
    return made


class AddFlags(Body):
    """For bodies that hold nothing but sets; JSON has it in the body."""

    update: bool = False


class Upload(Reading):
    update: bool = False


class Parse(Reading):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
