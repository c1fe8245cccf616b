"""Routes about the server and its indexes: list, create, describe, delete; and what the Python client asks first."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ..data.preprocess import Preprocess
from ..engines.portable import EMBEDDINGS
from ..engines.spec import IndexSpec, make_spec
from ..errors import AccessDenied, IndexClosed, IndexNotFound, InputError, SloshError, StorageError
from ..index import SetIndex
from ..readers import FORMATS
from ..wire import BINARY, JSON, pack
from .answer_types import (
    Allowed,
    CountAnswer,
    IdsAnswer,
    IndexesAnswer,
    IndexLine,
    InfoAnswer,
    ServerAnswer,
    State,
)
from .answers import binary_response, json_response, pack_records
from .bodies import Sent, decode_json, read_message
from .context import Context
from .dependencies import Anyone, Asking, Reader, ReaderOf, Writer, WriterOf, body, query, short
from .openapi import described
from .problems import Refused, public_problem
from .request_types import Batch, CreateBody, Filter
from .streams import FramesResponse

router, owner = APIRouter(), APIRouter()
"""Routes that every process answers, and those of the process that writes."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
CLASSES = {kind.__name__: kind for kind in EMBEDDINGS if kind.__name__ != "PartField"}
MAX_PARAMETER, MAX_NUMBERS = 1 << 16, 1 << 27
"""The largest number of an embedding that a request may ask for, and the most that it may give with the features."""
TOLD_LIMITS = frozenset(
    {"body_bytes", "sets", "queries", "points", "dim", "k", "hits", "numbers", "json_numbers", "transported"}
    | {"nesting", "deadline_seconds"}
)
"""The limits of one request that a client is told."""


@router.get("/health", **described("Whether the process runs.", State, errors=()))
async def health() -> Response:
    return json_response(State("ok"))


@router.get("/ready", **described("Whether the server answers requests.", State, errors=()))
async def ready(request: Request) -> Response:
    context: Context = request.app.state.context
    if context.catalog.missing_places():
        raise Refused(StorageError("a folder that is served is not there", "put it back, or restart the server"), 503)
    return json_response(State("ready"))


@owner.get("/metrics", **described("Numbers for Prometheus.", PROMETHEUS, errors=(401, 504)))
@short
def metrics(asking: Reader) -> Response:
    context = asking.context
    gauges: dict[str, float] = {"indexes": len(context.catalog.names()), "jobs_running": context.jobs.running()}
    return Response(context.metrics.text(gauges), media_type=PROMETHEUS)


@router.get(
    "/v1/server", **described("What the server is, and what the key of this request allows.", ServerAnswer, errors=())
)
async def server(asking: Anyone) -> Response:
    context, grant, settings = asking.context, asking.grant, asking.context.settings
    limits = {name: value for name, value in dataclasses.asdict(settings.limits).items() if name in TOLD_LIMITS}
    allowed = Allowed(grant.read, grant.write, None if grant.indexes is None else sorted(grant.indexes))
    can_create = grant.write and context.catalog.can_create
    formats, keys = sorted(FORMATS), bool(context.keys)
    return json_response(ServerAnswer(version("slosh"), settings.read_only, keys, allowed, can_create, formats, limits))


@owner.get("/v1/indexes", **described("The indexes that the key may read.", IndexesAnswer, errors=(401, 504)))
@short
def indexes(asking: Reader) -> Response:
    context = asking.context
    context.catalog.refresh()
    names = [name for name in context.catalog.names() if asking.grant.allows("read", name)]
    return json_response(IndexesAnswer([line for name in names if (line := _line(asking, name)) is not None]))


def _line(asking: Asking, name: str) -> IndexLine | None:
    """Return what is listed of an index, None if it is not there any more: the server closes those that are deleted.

    One that cannot be opened does not keep the others from being listed.
    """
    try:
        index = asking.context.index(name)
        about: dict[str, Any] = {**index.info(), "read_only": _is_read_only(asking, name, index), "problem": None}
        about["parts"] = about["parts"] is not None
    except (IndexNotFound, IndexClosed):
        return None
    except SloshError as error:
        about = {"problem": public_problem(error, asking.context.catalog)["detail"]}
    return IndexLine(name, *(about.get(field) for field in IndexLine.__struct_fields__[1:]))


@owner.post(
    "/v1/indexes",
    **described(
        "Create an index.",
        InfoAnswer,
        body=CreateBody,
        bodies=(JSON, BINARY),
        status=201,
        errors=(401, 504),
        changes=True,
    ),
)
def create(asking: Writer, sent: Annotated[Sent, Depends(body(JSON, BINARY))]) -> Response:
    context, grant = asking.context, asking.grant
    if sent.kind == BINARY:
        message = read_message(sent.body, context.limits)
        name, weighted = message.arguments.get("name"), message.arguments.get("weighted")
        if not isinstance(name, str) or not (weighted is None or isinstance(weighted, bool)):
            raise InputError("a message that creates an index has its name, and weighted", argument="name")
        content = message.arrays.get("specification", np.empty(0, np.uint8)).tobytes()
        spec = IndexSpec.unpack(content, "the specification of the request")
        if spec.dim > context.limits.dim:
            raise InputError(f"dim={spec.dim}", f"give at most {context.limits.dim:,}", argument="dim")
    else:
        given = decode_json(sent.body, CreateBody, context.limits)
        name, weighted, spec = given.name, given.weighted, _spec_of(given)
    if grant.indexes is not None and name not in grant.indexes:
        raise AccessDenied(f"the key is not for an index {name!r:.60}", "use another key", location=name)
    asking.exchange.begin()
    context.catalog.create(name, spec, weighted)
    return json_response(_info(asking, name), 201)


def _spec_of(given: CreateBody) -> IndexSpec:
    """Return the specification that JSON describes."""
    embedding, steps = None, None
    try:
        if given.embedding is not None:
            kind = CLASSES.get(given.embedding.class_)
            if kind is None:
                names = ", ".join(CLASSES)
                raise InputError(f"class={given.embedding.class_!r:.60}", f"give one of {names}", argument="embedding")
            known = inspect.signature(kind.__init__).parameters
            if unknown := sorted(set(given.embedding.parameters) - set(known)):
                raise InputError(f"{kind.__name__} has no parameter {unknown[0]!r:.60}", argument="embedding")
            for name, value in given.embedding.parameters.items():
                most = min(MAX_PARAMETER, MAX_NUMBERS // given.dim)
                if isinstance(value, int | float) and name != "random_state" and not -most <= value <= most:
                    problem = f"the parameter {name!r:.60} is {value}"
                    raise InputError(problem, f"give at most {most:,}", argument="embedding")
            parameters: Any = given.embedding.parameters
            embedding = kind(**parameters)
        if given.preprocess is not None:
            steps = Preprocess.from_dict(given.preprocess)
        sample = given.sample
        return make_spec(given.dim, embedding, None, steps, given.origin, sample, -1, given.parts)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"no index can be made of this: {str(error)[:300]}", argument="embedding") from None


@router.get("/v1/indexes/{name:quoted}", **described("What `SetIndex.info` gives.", InfoAnswer))
@short
def info(asking: ReaderOf) -> Response:
    return json_response(_info(asking, asking.name))


def _info(asking: Asking, name: str) -> dict[str, Any]:
    index = asking.context.index(name)
    about = index.info()
    del about["path"]
    return {"name": name, "read_only": _is_read_only(asking, name, index), **about}


def _is_read_only(asking: Asking, name: str, index: SetIndex) -> bool:
    """Return whether an index takes no changes, or this key allows none; that a worker only reads is its own affair."""
    return not asking.grant.allows("write", name) or (index.read_only and not asking.context.catalog.read_only)


@owner.delete(
    "/v1/indexes/{name:quoted}", **described("Delete an index and everything in it.", IdsAnswer, changes=True)
)
def destroy(asking: WriterOf) -> Response:
    asking.exchange.begin()
    asking.context.catalog.destroy(asking.name)
    return json_response(IdsAnswer([asking.name]))


@router.get(
    "/v1/indexes/{name:quoted}/specification", **described("Embedding, search and preprocessing, as bytes.", BINARY)
)
@short
def specification(asking: ReaderOf) -> Response:
    index = asking.open()
    packed = np.frombuffer(index.spec.pack(), np.uint8)
    about = {"read_only": _is_read_only(asking, asking.name, index), "version": index.version}
    return binary_response(about, {"specification": packed})


@router.get("/v1/indexes/{name:quoted}/count", **described("How many sets match.", CountAnswer, query=Filter))
@short
def count(asking: ReaderOf, given: Annotated[Filter, Depends(query(Filter))]) -> Response:
    return json_response(CountAnswer(asking.open().count(given.where)))


@router.get(
    "/v1/indexes/{name:quoted}/records", **described("All sets of one version, as a stream.", BINARY, query=Batch)
)
def records(asking: ReaderOf, given: Annotated[Batch, Depends(query(Batch))]) -> Response:
    return FramesResponse(_frames(asking.open(), given.batch), asking.context, media_type=BINARY)


def _frames(index: SetIndex, batch: int) -> Any:
    with index.original(batch) as original:
        about = {
            "weighted": original.weighted,
            "recall": original.recall,
            "next_id": int(original.next_id),
            "calibrated": [[int(k), float(recall)] for k, recall in original.calibrated],
            "sets": original.n_sets,
        }
        frames = [pack(about, {"specification": np.frombuffer(original.spec.pack(), np.uint8)})]
        while frames:
            frame = frames.pop()
            yield len(frame).to_bytes(8, "little") + frame
            for found in original.batches:
                frames.append(pack_records(found))
                break
