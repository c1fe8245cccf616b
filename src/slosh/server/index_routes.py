"""Routes about the server and its indexes: list, create, describe, delete; and what the Python client asks first."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.metadata import version
from typing import Any

import numpy as np

from ..data.preprocess import Preprocess
from ..engines.portable import EMBEDDINGS
from ..engines.spec import IndexSpec, make_spec
from ..errors import AccessDenied, InputError
from ..index import SetIndex
from ..readers import FORMATS
from ..wire import BINARY, JSON, pack, unpack
from .answers import binary_reply, json_reply, pack_records
from .bodies import decode_json
from .context import Context
from .routes import Reply, Request, route
from .schemas import (
    Allowed,
    Batch,
    CountAnswer,
    CreateBody,
    Filter,
    IdsAnswer,
    IndexesAnswer,
    IndexLine,
    InfoAnswer,
    ServerAnswer,
    State,
)

CLASSES = {kind.__name__: kind for kind in EMBEDDINGS if kind.__name__ != "PartField"}
MAX_NUMBERS = 1 << 16
"""Numbers of the vector of a set that a request may ask for."""


@route("GET", "/health", "Whether the process runs.", "none", State)
def health(context: Context, request: Request) -> Reply:
    return json_reply(State("ok"))


@route("GET", "/ready", "Whether the server answers requests.", "none", State)
def ready(context: Context, request: Request) -> Reply:
    return json_reply(State("ready"))


@route("GET", "/metrics", "Numbers for Prometheus.", "read", "text/plain; version=0.0.4; charset=utf-8")
def metrics(context: Context, request: Request) -> Reply:
    gauges: dict[str, float] = {"indexes": len(context.catalog.names()), "jobs_running": context.jobs.running()}
    return Reply(context.metrics.text(gauges).encode(), "text/plain; version=0.0.4; charset=utf-8")


@route("GET", "/v1/server", "What the server is, and what the key of this request allows.", "none", ServerAnswer)
def server(context: Context, request: Request) -> Reply:
    settings, grant = context.settings, request.grant
    names = ("body_bytes", "sets", "queries", "points", "k", "nesting", "deadline_seconds")
    limits = {name: value for name, value in dataclasses.asdict(settings.limits).items() if name in names}
    allowed = Allowed(grant.read, grant.write)
    can_create = grant.write and grant.indexes is None and context.catalog.folder is not None
    formats, keys = sorted(FORMATS), bool(context.keys)
    return json_reply(ServerAnswer(version("slosh"), settings.read_only, keys, allowed, can_create, formats, limits))


@route("GET", "/v1/indexes", "The indexes that the key may read.", "read", IndexesAnswer, owner=True)
def indexes(context: Context, request: Request) -> Reply:
    names = [name for name in context.catalog.names() if request.grant.allows("read", name)]
    return json_reply(IndexesAnswer([_line(context, name) for name in names]))


def _line(context: Context, name: str) -> IndexLine:
    index = context.index(name)
    about = index.info()
    return IndexLine(
        name,
        about["sets"],
        about["dim"],
        about["engine"],
        about["distance_kind"],
        about["weighted"],
        about["parts"] is not None,
        index.read_only,
    )


@route(
    "POST",
    "/v1/indexes",
    "Create an index.",
    "write",
    InfoAnswer,
    body=CreateBody,
    bodies=(JSON, BINARY),
    status=201,
    owner=True,
)
def create(context: Context, request: Request) -> Reply:
    if request.kind == BINARY:
        message = unpack(request.body)
        name, weighted = message.arguments.get("name"), message.arguments.get("weighted")
        if not isinstance(name, str) or not (weighted is None or isinstance(weighted, bool)):
            raise InputError("a message that creates an index has its name, and weighted", argument="name")
        content = message.arrays.get("specification", np.empty(0, np.uint8)).tobytes()
        spec = IndexSpec.unpack(content, "the specification of the request")
    else:
        given = decode_json(request.body, CreateBody, context.limits)
        name, weighted, spec = given.name, given.weighted, _spec_of(given)
    if request.grant.indexes is not None and name not in request.grant.indexes:
        raise AccessDenied(f"the key is not for an index {name!r:.60}", "use another key", location=name)
    context.catalog.create(name, spec, weighted)
    return json_reply(_info(context, name), 201)


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
                if isinstance(value, int | float) and not -MAX_NUMBERS <= value <= MAX_NUMBERS:
                    problem = f"the parameter {name!r:.60} is {value}"
                    raise InputError(problem, f"give at most {MAX_NUMBERS:,}", argument="embedding")
            parameters: Any = given.embedding.parameters
            embedding = kind(**parameters)
        if given.preprocess is not None:
            steps = Preprocess.from_dict(given.preprocess)
        if given.dim > MAX_NUMBERS:
            raise InputError(f"dim={given.dim}", f"give at most {MAX_NUMBERS:,}", argument="dim")
        sample = given.sample
        return make_spec(given.dim, embedding, None, steps, given.origin, sample, -1, given.parts)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"no index can be made of this: {str(error)[:300]}", argument="embedding") from None


@route("GET", "/v1/indexes/{name}", "What `SetIndex.info` gives.", "read", InfoAnswer)
def info(context: Context, request: Request) -> Reply:
    return json_reply(_info(context, request.name))


def _info(context: Context, name: str) -> dict[str, Any]:
    index = context.index(name)
    about = index.info()
    del about["path"]
    return {"name": name, "read_only": is_read_only(context, index), **about}


def is_read_only(context: Context, index: SetIndex) -> bool:
    """Return whether nobody can change an index by this server; that a worker only reads is its own affair."""
    return context.settings.read_only


@route("DELETE", "/v1/indexes/{name}", "Delete an index and everything in it.", "write", IdsAnswer, owner=True)
def destroy(context: Context, request: Request) -> Reply:
    context.catalog.destroy(request.name)
    return json_reply(IdsAnswer([request.name]))


@route("GET", "/v1/indexes/{name}/specification", "Embedding, search and preprocessing, as bytes.", "read", BINARY)
def specification(context: Context, request: Request) -> Reply:
    index = context.index(request.name)
    packed = np.frombuffer(index.spec.pack(), np.uint8)
    return binary_reply(
        {"read_only": is_read_only(context, index), "version": index.version}, {"specification": packed}
    )


@route("GET", "/v1/indexes/{name}/count", "How many sets match.", "read", CountAnswer, parameters=Filter)
def count(context: Context, request: Request) -> Reply:
    where = request.parameters(Filter).where
    return json_reply(CountAnswer(context.index(request.name).count(where)))


@route("GET", "/v1/indexes/{name}/records", "All sets of one version, as a stream.", "read", BINARY, parameters=Batch)
def records(context: Context, request: Request) -> Reply:
    batch, index = request.parameters(Batch).batch, context.index(request.name)
    return Reply(b"", BINARY, frames=_frames(index, batch))


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
