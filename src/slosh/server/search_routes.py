"""Routes that search: nearest sets, all within a radius, arrays of neighbours, explanations.

`search` and `range_search` are the hot ones. What arrives while another search is under way is answered together with
others that ask the same of the same index (`answer_together`): the answers are those that each would get alone, to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from starlette.responses import Response

from .. import rank
from ..data.sets import Sets
from ..data.text import CHARACTER_BYTES, utf8_bytes
from ..errors import InputError, MissingExtra
from ..index import HitLists, SetIndex
from ..wire import ARROW, BINARY, JSON, NPY, pack_sets, unpack_sets
from .answer_types import ExplainAnswer, HitsAnswer, NeighborsAnswer, SideAnswer
from .answers import binary_response, hits_responses, json_response, without_infinity
from .bodies import (
    Asked,
    Sent,
    check_bytes,
    decode_json,
    decode_question,
    decode_questions,
    plain_arguments,
    read_message,
)
from .dependencies import Asking, ReaderOf, admit, bearer, body, read_sent, reader_of
from .drawing import projector
from .openapi import described
from .request_types import ExplainBody, NeighborsBody, RangeBody, SearchBody
from .settings import Limits


class PlainRoute(APIRoute):
    """A route whose function takes the request itself: FastAPI documents it, but resolves no dependencies for it, which
    takes longer than a search.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


router, hot = APIRouter(), APIRouter(route_class=PlainRoute)
BULK = (JSON, BINARY, NPY, ARROW)
SMALL_BODY = 1 << 16
"""Bytes of the body of a small search; larger ones would keep others waiting while they are decoded."""
MAX_MATCHED = 2_000_000
"""Pairs of elements of two sets that are matched."""
MAX_PAIRS = 1000
TRANSPORT = ("wasserstein", "partial_wasserstein")
_largest = WeakKeyDictionary[SetIndex, tuple[int, int]]()
METHODS = {"search": SearchBody, "range_search": RangeBody}
Question = Annotated[Sent, Depends(body(*BULK))]


def decode(asking: Asking, sent: Sent, method: str) -> Asked:
    """Return what a request asks for."""
    return decode_question(sent, METHODS[method], asking.shape(), asking.context.limits)


def decode_together(asking: Asking, sent: Sequence[Sent], method: str) -> list[Asked | Exception]:
    """Return what requests to one index ask for; where one is wrong, its error."""
    return decode_questions(sent, METHODS[method], asking.shape(), asking.context.limits)


def check_hits(asked: Sequence[Asked], index: SetIndex, limits: Limits) -> None:
    """Refuse questions that name more sets than one answer may."""
    for each in asked:
        if each.n_hits > limits.hits:
            most = min(each.n_hits // each.n_queries, len(index))
            if each.n_queries * most > limits.hits:
                problem = f"{each.n_queries:,} queries for {most:,} sets each"
                remedy = f"ask for at most {limits.hits:,} sets in all, by fewer queries or a smaller k"
                raise InputError(problem, remedy, argument="k")


def check_transport(asked: Sequence[Asked], index: SetIndex, limits: Limits) -> None:
    """Refuse exact transport between sets that are too large for it: it cannot be interrupted half-way."""
    if asked[0].arguments.get("rerank") not in TRANSPORT:
        return
    largest, most = largest_size(index), index.preprocess.max_points
    named = [name for each in asked for name in each.ids or ()]
    sizes = [index.describe({"@id": list(dict.fromkeys(named))}).sizes] if named else []
    sizes += [each.sets.sizes for each in asked if each.sets is not None]
    others = max(int(each.max(initial=0)) for each in sizes)
    n, m = (size if most is None else min(size, most) for size in (others, largest))
    if n * m > limits.transported:
        problem = f"exact transport between sets of {n:,} and {m:,} elements"
        remedy = f"at most {limits.transported:,} pairs of elements are compared here: give another distance for rerank"
        raise InputError(problem, remedy, argument="rerank")


def largest_size(index: SetIndex) -> int:
    """Return how many elements the largest stored set has; it is looked for once in each version of an index."""
    version, known = index.version, _largest.get(index)
    if known is None or known[0] != version:
        sizes = index.info()["sizes"]
        known = _largest[index] = version, 0 if sizes is None else sizes["largest"]
    return known[1]


def answer_together(asking: Asking, method: str, asked: Sequence[Asked], accept: str) -> list[Response]:
    """Return the answers to questions with the same arguments to one index, all of them found by one search."""
    index, first, limits = asking.open(), asked[0], asking.context.limits
    arguments = first.arguments
    if method == "range_search":
        wanted = arguments.get("max_hits")
        is_fewer = wanted is not None and not (isinstance(wanted, int) and wanted > limits.hits)
        arguments = {**arguments, "max_hits": wanted if is_fewer else limits.hits}
    else:
        check_hits(asked, index, limits)
        check_transport(asked, index, limits)
    if first.sets is None:
        found: Any = getattr(index, method)(id=[x for each in asked for x in each.ids or ()], **arguments)
    else:
        sets = first.sets if len(asked) == 1 else Sets.concat([each.sets for each in asked if each.sets is not None])
        found = getattr(index, method)(sets, **arguments)
    assert isinstance(found, HitLists)
    shown = [found.joined.ids]
    if first.metadata or BINARY in accept or ARROW in accept:
        shown.append(found.joined.metadata_json)
    if CHARACTER_BYTES * sum(sum(map(len, texts)) for texts in shown) > limits.answer_bytes:
        check_bytes(sum(sum(map(utf8_bytes, texts)) for texts in shown), limits, "k")
    sizes = [each.n_queries for each in asked]
    return hits_responses(found, sizes, [each.single for each in asked], accept, first.metadata)


def _answer(asking: Asking, sent: Sent, method: str) -> Response:
    return answer_together(asking, method, [decode(asking, sent, method)], sent.accept)[0]


@hot.post(
    "/v1/indexes/{name:quoted}/search",
    dependencies=[Depends(reader_of)],  # only for the document
    **described(
        "The nearest sets of one query, of many, or of stored sets.",
        HitsAnswer,
        body=SearchBody,
        bodies=BULK,
        answers=(JSON, BINARY, ARROW),
    ),
)
async def search(request: Request) -> Response:
    asking = admit(request, await bearer(request), "read", request.path_params["name"])
    sent = await read_sent(request, BULK)
    if len(sent.body) > SMALL_BODY:
        return await run_in_threadpool(_answer, asking, sent, "search")
    found: Response | Asked = await request.app.state.lane.submit(asking, sent)
    if isinstance(found, Response):
        return found
    return (await run_in_threadpool(answer_together, asking, "search", [found], sent.accept))[0]


@router.post(
    "/v1/indexes/{name:quoted}/range_search",
    **described("All sets within a radius.", HitsAnswer, body=RangeBody, bodies=BULK, answers=(JSON, BINARY, ARROW)),
)
def range_search(asking: ReaderOf, sent: Question) -> Response:
    return _answer(asking, sent, "range_search")


@router.post(
    "/v1/indexes/{name:quoted}/kneighbors",
    **described(
        "Distances and positions of the nearest sets, as arrays.",
        NeighborsAnswer,
        body=NeighborsBody,
        bodies=BULK,
        answers=(JSON, BINARY),
    ),
)
def kneighbors(asking: ReaderOf, sent: Question) -> Response:
    asked = decode_question(sent, NeighborsBody, asking.shape(), asking.context.limits)
    index = asking.open()
    check_hits([asked], index, asking.context.limits)
    distances, positions = index.kneighbors(asked.sets, id=asked.ids, **asked.arguments)
    if BINARY in sent.accept:
        return binary_response({}, {"distances": distances, "positions": positions})
    return json_response(NeighborsAnswer(without_infinity(distances), positions.tolist()))


@router.post(
    "/v1/indexes/{name:quoted}/explain",
    **described(
        "Why two sets are as far apart as they are, and which of their elements match.",
        ExplainAnswer,
        body=ExplainBody,
        bodies=(JSON, BINARY),
        answers=(JSON, BINARY),
    ),
)
def explain(asking: ReaderOf, sent: Annotated[Sent, Depends(body(JSON, BINARY))]) -> Response:
    shape = asking.shape()
    if sent.kind == BINARY:
        message = read_message(sent.body, asking.context.limits)
        plain = plain_arguments(message, {"id": None, "query_id": None, "match": "whole"})
        id, query_id, match, components = plain["id"], plain["query_id"], plain["match"], None
        query = unpack_sets("query", message.arrays, shape.origin)
        query = None if query is None else shape.sets(query, name="query")
    else:
        given = decode_json(sent.body, ExplainBody, asking.context.limits)
        id, query_id = str(given.id), None if given.query_id is None else str(given.query_id)
        match, components = given.match, given.components
        weights = None if given.weights is None else [given.weights]
        query = None if given.query is None else shape.sets([given.query], weights, "query")
    if (query is None) == (query_id is None):
        raise InputError("give query, or query_id of a stored set, and not both", argument="query")
    if not isinstance(id, str) or not (query_id is None or isinstance(query_id, str)):
        raise InputError("id and query_id are strings", argument="id")
    found = asking.open().explain(query_id if query is None else query, id, match=match)
    if BINARY in sent.accept:
        return _binary_explanation(found, match)
    project = projector(asking, components)
    x, y = (SideAnswer(project(side.points).tolist(), _listed(side.weights)) for side in (found.x, found.y))
    projected = components is not None and shape.dim > components
    if isinstance(found, rank.PartExplanation):
        answer = ExplainAnswer(match, found.distance, x, y, projected)
        answer.nearest, answer.distances = found.nearest.tolist(), found.distances.tolist()
        answer.weights = found.weights.tolist()
        return json_response(answer)
    answer = ExplainAnswer("whole", found.distance, x, y, projected)
    answer.slices, answer.directions = found.slices.tolist(), _listed(found.directions)
    answer.x_elements, answer.y_elements = found.x_elements.tolist(), found.y_elements.tolist()
    answer.pairs = _pairs(found.x, found.y)
    return json_response(answer)


def _listed(array: NDArray[Any] | None) -> Any:
    return None if array is None else array.tolist()


def _pairs(x: Sets, y: Sets) -> list[tuple[int, int, float]] | None:
    """Return the heaviest pairs of the optimal matching; None where it would take too long, or POT is missing."""
    if len(x.points) * len(y.points) > MAX_MATCHED:
        return None
    try:
        found = rank.match(x, y)
    except MissingExtra:
        return None
    heaviest = np.argsort(-found.mass, kind="stable")[:MAX_PAIRS]
    return [(int(found.rows[i]), int(found.columns[i]), float(found.mass[i])) for i in heaviest]


def _binary_explanation(found: rank.Explanation | rank.PartExplanation, match: str) -> Response:
    arrays = {**pack_sets("x", found.x), **pack_sets("y", found.y)}
    names = ("nearest", "distances", "weights", "slices", "x_elements", "y_elements", "directions")
    arrays |= {name: value for name in names if (value := getattr(found, name, None)) is not None}
    kind = match if isinstance(found, rank.PartExplanation) else "whole"
    return binary_response({"kind": kind, "distance": found.distance}, arrays)
