"""Routes about stored sets: list, get, add, replace, remove; and files that are uploaded."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from ..data.sets import Sets
from ..data.text import format_bytes, utf8_bytes
from ..engines.base import Lines
from ..errors import InputError
from ..index import SetIndex
from ..index.records import checked_ids
from ..wire import ARROW, BINARY, JSON, NPY, unpack_sets
from .answer_types import DescribeAnswer, IdsAnswer, ParseAnswer, RecordsAnswer, SetLine, SetsAnswer
from .answers import binary_response, json_response, pack_records, stored_sets
from .bodies import (
    Sent,
    Shape,
    check_sets,
    convert,
    decode_json,
    parse_objects,
    plain_arguments,
    read_arrow,
    read_message,
    read_npy,
)
from .dependencies import FILE, Accept, ReaderOf, WriterOf, body, query, short, upload_file
from .files import read_sets
from .openapi import described
from .request_types import (
    AddBody,
    AddFlags,
    Body,
    DescribeBody,
    GetBody,
    Page,
    Parse,
    RemoveBody,
    SelectBody,
    UpdateBody,
    Upload,
)
from .settings import Limits

router, owner = APIRouter(), APIRouter()
"""Routes that every process answers, and those of the process that writes."""
BULK, PLAIN = (JSON, BINARY, NPY, ARROW), (JSON, BINARY)
SIZES_TOGETHER = 1024
"""Sets whose sizes are asked for together."""
File = Annotated[str, Depends(upload_file)]


@router.get("/v1/indexes/{name:quoted}/sets", **described("A page of the stored sets.", SetsAnswer, query=Page))
@short
def listed(asking: ReaderOf, page: Annotated[Page, Depends(query(Page))]) -> Response:
    index = asking.open()
    total = index.count(page.where)
    lines = []
    if page.offset < total:
        n_bytes = asking.context.limits.answer_bytes
        lines = _lines(index.describe(page.where, page.limit, page.offset, max_bytes=n_bytes))
    following = page.offset + len(lines)
    return json_response(SetsAnswer(total, following if lines and following < total else None, lines))


@router.post(
    "/v1/indexes/{name:quoted}/select",
    **described("Ids of the sets that match.", IdsAnswer, body=SelectBody, bodies=PLAIN, answers=PLAIN),
)
def select(asking: ReaderOf, sent: Annotated[Sent, Depends(body(*PLAIN))]) -> Response:
    limits = asking.context.limits
    if sent.kind == BINARY:
        given = plain_arguments(read_message(sent.body, limits), {"where": None, "limit": None, "offset": 0})
    else:
        asked = decode_json(sent.body, SelectBody, limits)
        given = {"where": asked.where, "limit": asked.limit, "offset": asked.offset}
    return _ids(asking.open().select(**given), sent.accept)


@router.post(
    "/v1/indexes/{name:quoted}/describe",
    **described(
        "Ids, sizes and metadata of the sets that match.",
        DescribeAnswer,
        body=DescribeBody,
        bodies=PLAIN,
        answers=PLAIN,
    ),
)
def describe(asking: ReaderOf, sent: Annotated[Sent, Depends(body(*PLAIN))]) -> Response:
    limits = asking.context.limits
    if sent.kind == BINARY:
        message = read_message(sent.body, limits)
        given = convert(plain_arguments(message, {"where": None, "limit": 1000, "offset": 0}), DescribeBody)
    else:
        given = decode_json(sent.body, DescribeBody, limits)
    index = asking.open()
    found = index.describe(given.where, given.limit, given.offset, max_bytes=limits.answer_bytes)
    following = given.offset + len(found.ids)
    is_last = len(found.ids) < given.limit and not index.select(given.where, 1, following)
    if BINARY in sent.accept:
        about = {"ids": found.ids, "metadata": found.metadata_json, "next": None if is_last else following}
        return binary_response(about, {"sizes": found.sizes})
    return json_response(DescribeAnswer(None if is_last else following, _lines(found)))


def _lines(found: Lines) -> list[SetLine]:
    return [SetLine(*each) for each in zip(found.ids, found.sizes.tolist(), found.metadata, strict=True)]


@router.post(
    "/v1/indexes/{name:quoted}/get",
    **described("Whole sets by their ids.", RecordsAnswer, body=GetBody, bodies=PLAIN, answers=PLAIN),
)
def get(asking: ReaderOf, sent: Annotated[Sent, Depends(body(*PLAIN))]) -> Response:
    limits, part = asking.context.limits, False
    if sent.kind == BINARY:
        plain = plain_arguments(read_message(sent.body, limits), {"ids": [], "part": False})
        ids, part = plain["ids"], plain["part"] is True
    else:
        given = decode_json(sent.body, GetBody, limits)
        ids, part = given.ids, given.part
    if not isinstance(ids, list) or len(ids) > limits.sets:
        remedy = f"give a list of at most {limits.sets:,} ids"
        raise InputError("ids are not a list, or too many", remedy, argument="ids")
    index, is_binary, names = asking.open(), BINARY in sent.accept, checked_ids(ids, repeats=True)
    if not is_binary or len(names) > 1:  # one set can always be read
        n = _n_fitting(index, names, limits.numbers if is_binary else limits.json_numbers, limits.answer_bytes)
        n = max(1, n) if is_binary else n
        names = names[:n] if part and n else names
        if n < len(names):
            _refuse_to_get(part or len(names) == 1, is_binary, limits)
    found: Any = index.get(names)
    if is_binary:
        return Response(pack_records(found), media_type=BINARY)
    return json_response(RecordsAnswer(stored_sets(found)))


def _n_fitting(index: SetIndex, names: list[str], numbers: int, n_bytes: int) -> int:
    """Return how many sets, from the first on, have no more coordinates and bytes of ids and metadata than these."""
    dim = index.dim
    for first in range(0, len(names), SIZES_TOGETHER):
        some = names[first : first + SIZES_TOGETHER]
        found = index.describe({"@id": list(dict.fromkeys(some))})
        texts = map(utf8_bytes, found.metadata_json)
        known = dict(zip(found.ids, zip(found.sizes.tolist(), texts, strict=True), strict=True))
        for i, name in enumerate(some, first):
            size, length = known.get(name, (0, 0))  # of those that are not stored `get` says so
            numbers, n_bytes = numbers - size * dim, n_bytes - length - utf8_bytes(name)
            if numbers < 0 or n_bytes < 0:
                return i
    return len(names)


def _refuse_to_get(is_one: bool, is_binary: bool, limits: Limits) -> None:
    numbers = f"{limits.numbers if is_binary else limits.json_numbers:,}"
    most = f"{numbers} coordinates and {format_bytes(limits.answer_bytes)} of ids and metadata"
    if is_one:
        raise InputError(f"this set has more than {most}", "ask for it in the binary type", argument="ids")
    remedy = "ask for fewer sets at a time (describe has their sizes), or for one by one"
    raise InputError(f"these sets have more than {most}", remedy, argument="ids")


@owner.post(
    "/v1/indexes/{name:quoted}/sets",
    **described(
        "Add sets: all of them, or none.",
        IdsAnswer,
        body=AddBody,
        query=AddFlags,
        bodies=BULK,
        answers=PLAIN,
        status=201,
        changes=True,
    ),
)
def add(asking: WriterOf, sent: Annotated[Sent, Depends(body(*BULK))]) -> Response:
    shape, limits = asking.shape(), asking.context.limits
    ids: Any
    metadata: Any
    if sent.kind in PLAIN:
        sent.parameters(Body)
    if sent.kind == JSON:
        given = decode_json(sent.body, AddBody, limits)
        sets, ids, metadata, update = shape.sets(given.sets, given.weights), given.ids, given.metadata, given.update
    elif sent.kind == BINARY:
        message = read_message(sent.body, limits)
        plain = plain_arguments(message, {"ids": None, "metadata": None, "update": False})
        sets, ids, update = _sets_of(message.arrays, shape), plain["ids"], plain["update"]
        metadata = _parsed(plain["metadata"], limits)
    else:
        update = sent.parameters(AddFlags).update
        if sent.kind == NPY:
            data = read_npy(sent.body)
            sets, ids, metadata = shape.sets(data[None] if data.ndim == 2 else data), None, None
        else:
            sets, ids, metadata = read_arrow(sent.body, shape, limits)
    check_sets(sets, limits)
    return _ids(asking.open_to_change().add(sets, ids, metadata, update=update is True), sent.accept, 201)


def _parsed(metadata: Any, limits: Limits) -> Any:
    return parse_objects(metadata, "metadata", limits) if isinstance(metadata, list) else metadata


def _sets_of(arrays: Any, shape: Shape) -> Sets:
    sets = unpack_sets("sets", arrays, shape.origin)
    if sets is None:
        raise InputError("the message has no sets", argument="sets")
    return shape.sets(sets)


@owner.patch(
    "/v1/indexes/{name:quoted}/sets",
    **described(
        "Replace points or metadata of sets: all of them, or none.",
        IdsAnswer,
        body=UpdateBody,
        bodies=PLAIN,
        answers=PLAIN,
        changes=True,
    ),
)
def update(asking: WriterOf, sent: Annotated[Sent, Depends(body(*PLAIN))]) -> Response:
    shape, limits = asking.shape(), asking.context.limits
    sets: Sets | None
    if sent.kind == BINARY:
        message = read_message(sent.body, limits)
        plain = plain_arguments(message, {"ids": [], "metadata": None, "merge": False})
        sets = unpack_sets("sets", message.arrays, shape.origin)
        ids, metadata, merge = plain["ids"], _parsed(plain["metadata"], limits), plain["merge"]
        if isinstance(metadata, list) and all(one is None for one in metadata):
            metadata = None
        if not isinstance(ids, list):
            raise InputError("ids are not a list", argument="ids")
    else:
        given = decode_json(sent.body, UpdateBody, limits)
        ids, metadata, merge = given.ids, given.metadata, given.merge
        sets = None if given.sets is None else shape.sets(given.sets, given.weights)
        if sets is None and given.weights is not None:
            raise InputError("weights without sets", "give the sets, too", argument="weights")
    if sets is not None:
        check_sets(sets, limits)
    return _ids(asking.open_to_change().update(ids, sets, metadata, merge=merge), sent.accept)


@owner.post(
    "/v1/indexes/{name:quoted}/remove",
    **described(
        "Remove sets by their ids or by a filter.",
        IdsAnswer,
        body=RemoveBody,
        bodies=PLAIN,
        answers=PLAIN,
        changes=True,
    ),
)
def remove(asking: WriterOf, sent: Annotated[Sent, Depends(body(*PLAIN))]) -> Response:
    if sent.kind == BINARY:
        plain = plain_arguments(read_message(sent.body, asking.context.limits), {"ids": None, "where": None})
        ids, where = plain["ids"], plain["where"]
    else:
        given = decode_json(sent.body, RemoveBody, asking.context.limits)
        ids, where = given.ids, given.where
    return _ids(asking.open_to_change().remove(ids, where=where), sent.accept)


@owner.post(
    "/v1/indexes/{name:quoted}/upload",
    **described(
        "Add the sets of a file: all of them, or none.",
        IdsAnswer,
        query=Upload,
        bodies=(FILE,),
        answers=PLAIN,
        status=201,
        changes=True,
    ),
)
def upload(asking: WriterOf, given: Annotated[Upload, Depends(query(Upload))], file: File, accept: Accept) -> Response:
    found = read_sets(file, given, asking.open(), asking.context.limits)
    ids = asking.open_to_change().add(found.sets, found.ids, found.metadata, update=given.update)
    return _ids(ids, accept, 201)


@router.post(
    "/v1/indexes/{name:quoted}/parse",
    **described("Read the sets of a file, without storing them.", ParseAnswer, query=Parse, bodies=(FILE,)),
)
def parse(asking: ReaderOf, given: Annotated[Parse, Depends(query(Parse))], file: File) -> Response:
    found = read_sets(file, given, asking.open(), asking.context.limits)
    first = type(found)(found.sets[: given.limit], found.ids[: given.limit], found.metadata[: given.limit])
    return json_response(ParseAnswer(len(found.ids), stored_sets(first)))


def _ids(ids: list[str], accept: str, status: int = 200) -> Response:
    if BINARY in accept:
        return binary_response({"ids": ids}, status=status)
    return json_response(IdsAnswer(ids), status)
