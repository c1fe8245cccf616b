"""Routes about stored sets: list, get, add, replace, remove; and files that are uploaded."""

from __future__ import annotations

from typing import Any

from ..data.sets import Sets
from ..errors import InputError
from ..wire import ARROW, BINARY, JSON, NPY, unpack, unpack_sets
from .answers import binary_reply, json_reply, pack_records, stored_sets
from .bodies import Shape, check_sets, decode_json, parse_object, plain_arguments, read_arrow, read_npy
from .context import Context
from .files import read_file
from .routes import Reply, Request, route
from .schemas import (
    AddBody,
    AddFlags,
    GetBody,
    IdsAnswer,
    Page,
    Parse,
    ParseAnswer,
    RecordsAnswer,
    RemoveBody,
    SelectBody,
    SetLine,
    SetsAnswer,
    UpdateBody,
    Upload,
)

BULK = (JSON, BINARY, NPY, ARROW)
FILE = "application/octet-stream"


@route("GET", "/v1/indexes/{name}/sets", "A page of the stored sets.", "read", SetsAnswer, parameters=Page)
def listed(context: Context, request: Request) -> Reply:
    page, index = request.parameters(Page), context.index(request.name)
    total = index.count(page.where)
    ids = index.select(page.where, page.limit, page.offset) if page.offset < total else []
    found: Any = index.get(ids)
    lines = [
        SetLine(name, int(size), about)
        for name, size, about in zip(found.ids, found.sets.sizes, found.metadata, strict=True)
    ]
    following = page.offset + len(lines)
    return json_reply(SetsAnswer(total, following if lines and following < total else None, lines))


@route(
    "POST",
    "/v1/indexes/{name}/select",
    "Ids of the sets that match.",
    "read",
    IdsAnswer,
    body=SelectBody,
    bodies=(JSON, BINARY),
    answers=(JSON, BINARY),
)
def select(context: Context, request: Request) -> Reply:
    if request.kind == BINARY:
        given = plain_arguments(unpack(request.body), {"where": None, "limit": None, "offset": 0})
    else:
        body = decode_json(request.body, SelectBody, context.limits)
        given = {"where": body.where, "limit": body.limit, "offset": body.offset}
    return _ids(request, context.index(request.name).select(**given))


@route(
    "POST",
    "/v1/indexes/{name}/get",
    "Whole sets by their ids.",
    "read",
    RecordsAnswer,
    body=GetBody,
    bodies=(JSON, BINARY),
    answers=(JSON, BINARY),
)
def get(context: Context, request: Request) -> Reply:
    if request.kind == BINARY:
        ids = plain_arguments(unpack(request.body), {"ids": []})["ids"]
    else:
        ids = decode_json(request.body, GetBody, context.limits).ids
    if not isinstance(ids, list) or len(ids) > context.limits.sets:
        problem = f"give a list of at most {context.limits.sets:,} ids"
        raise InputError("ids are not a list, or too many", problem, argument="ids")
    found: Any = context.index(request.name).get(ids)
    if BINARY in request.accept:
        return Reply(pack_records(found), BINARY)
    return json_reply(RecordsAnswer(stored_sets(found)))


@route(
    "POST",
    "/v1/indexes/{name}/sets",
    "Add sets: all of them, or none.",
    "write",
    IdsAnswer,
    body=AddBody,
    parameters=AddFlags,
    bodies=BULK,
    answers=(JSON, BINARY),
    status=201,
    owner=True,
)
def add(context: Context, request: Request) -> Reply:
    index = context.index(request.name)
    shape, limits = context.shape(request.name, index), context.limits
    ids: Any
    metadata: Any
    if request.kind == JSON:
        body = decode_json(request.body, AddBody, limits)
        sets, ids, metadata, update = shape.sets(body.sets, body.weights), body.ids, body.metadata, body.update
    elif request.kind == BINARY:
        message = unpack(request.body)
        given = plain_arguments(message, {"ids": None, "metadata": None, "update": False})
        sets, ids, metadata, update = _sets_of(message.arrays, shape), given["ids"], given["metadata"], given["update"]
        metadata = _parsed(metadata)
    else:
        update = request.parameters(AddFlags).update
        if request.kind == NPY:
            data = read_npy(request.body)
            sets, ids, metadata = shape.sets(data[None] if data.ndim == 2 else data), None, None
        else:
            sets, ids, metadata = read_arrow(request.body, shape)
    check_sets(sets, limits)
    return _ids(request, index.add(sets, ids, metadata, update=update is True), 201)


def _parsed(metadata: Any) -> Any:
    return [parse_object(text, "metadata") for text in metadata] if isinstance(metadata, list) else metadata


def _sets_of(arrays: Any, shape: Shape) -> Sets:
    sets = unpack_sets("sets", arrays, shape.origin)
    if sets is None:
        raise InputError("the message has no sets", argument="sets")
    return shape.sets(sets)


@route(
    "PATCH",
    "/v1/indexes/{name}/sets",
    "Replace points or metadata of sets: all of them, or none.",
    "write",
    IdsAnswer,
    body=UpdateBody,
    bodies=(JSON, BINARY),
    answers=(JSON, BINARY),
    owner=True,
)
def update(context: Context, request: Request) -> Reply:
    index = context.index(request.name)
    shape = context.shape(request.name, index)
    sets: Sets | None
    if request.kind == BINARY:
        message = unpack(request.body)
        given = plain_arguments(message, {"ids": [], "metadata": None, "merge": False})
        sets = unpack_sets("sets", message.arrays, shape.origin)
        ids, metadata, merge = given["ids"], _parsed(given["metadata"]), given["merge"]
        if isinstance(metadata, list) and all(one is None for one in metadata):
            metadata = None
        if not isinstance(ids, list):
            raise InputError("ids are not a list", argument="ids")
    else:
        body = decode_json(request.body, UpdateBody, context.limits)
        ids, metadata, merge = body.ids, body.metadata, body.merge
        sets = None if body.sets is None else shape.sets(body.sets, body.weights)
        if sets is None and body.weights is not None:
            raise InputError("weights without sets", "give the sets, too", argument="weights")
    if sets is not None:
        check_sets(sets, context.limits)
    return _ids(request, index.update(ids, sets, metadata, merge=merge))


@route(
    "POST",
    "/v1/indexes/{name}/remove",
    "Remove sets by their ids or by a filter.",
    "write",
    IdsAnswer,
    body=RemoveBody,
    bodies=(JSON, BINARY),
    answers=(JSON, BINARY),
    owner=True,
)
def remove(context: Context, request: Request) -> Reply:
    if request.kind == BINARY:
        given = plain_arguments(unpack(request.body), {"ids": None, "where": None})
    else:
        body = decode_json(request.body, RemoveBody, context.limits)
        given = {"ids": body.ids, "where": body.where}
    return _ids(request, context.index(request.name).remove(given["ids"], where=given["where"]))


@route(
    "POST",
    "/v1/indexes/{name}/upload",
    "Add the sets of a file: all of them, or none.",
    "write",
    IdsAnswer,
    parameters=Upload,
    bodies=(FILE,),
    status=201,
    owner=True,
)
def upload(context: Context, request: Request) -> Reply:
    index, given = context.index(request.name), request.parameters(Upload)
    found = read_file(request, given, index, context.limits)
    return _ids(request, index.add(found.sets, found.ids, found.metadata, update=given.update), 201)


@route(
    "POST",
    "/v1/indexes/{name}/parse",
    "Read the sets of a file, without storing them.",
    "read",
    ParseAnswer,
    parameters=Parse,
    bodies=(FILE,),
)
def parse(context: Context, request: Request) -> Reply:
    index, given = context.index(request.name), request.parameters(Parse)
    found = read_file(request, given, index, context.limits)
    first = type(found)(found.sets[: given.limit], found.ids[: given.limit], found.metadata[: given.limit])
    return json_reply(ParseAnswer(len(found.ids), stored_sets(first)))


def _ids(request: Request, ids: list[str], status: int = 200) -> Reply:
    if BINARY in request.accept:
        return binary_reply({"ids": ids}, status=status)
    return json_reply(IdsAnswer(ids), status)
