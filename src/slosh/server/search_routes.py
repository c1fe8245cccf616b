"""Routes that search: nearest sets, all within a radius, arrays of neighbours, explanations.

`search` and `range_search` are the hot ones. What arrives while another search is under way is answered together with
others that ask the same of the same index (`answer_together`): the answers are those that each would get alone, to the
last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import rank
from ..data.sets import Sets
from ..errors import InputError, MissingExtra
from ..index import HitLists
from ..wire import ARROW, BINARY, JSON, NPY, pack_sets, unpack, unpack_sets
from .answers import binary_reply, hits_replies, json_reply, without_infinity
from .bodies import Asked, decode_json, decode_question, plain_arguments
from .context import Context
from .drawing import projector
from .routes import Reply, Request, route
from .schemas import (
    ExplainAnswer,
    ExplainBody,
    HitsAnswer,
    NeighborsAnswer,
    NeighborsBody,
    RangeBody,
    SearchBody,
    SideAnswer,
)

BULK = (JSON, BINARY, NPY, ARROW)
MAX_MATCHED = 2_000_000
"""Pairs of elements of two sets that are matched."""
MAX_PAIRS = 1000
METHODS = {"search": SearchBody, "range_search": RangeBody}


def decode(context: Context, request: Request, method: str) -> Asked:
    """Return what a request asks for."""
    index = context.index(request.name)
    return decode_question(request, METHODS[method], context.shape(request.name, index), context.limits)


def answer_together(context: Context, name: str, method: str, asked: Sequence[Asked], accept: str) -> list[Reply]:
    """Return the replies of questions with the same arguments to one index, all of them found by one search."""
    index, first = context.index(name), asked[0]
    if first.sets is None:
        found: Any = getattr(index, method)(id=[x for each in asked for x in each.ids or ()], **first.arguments)
    else:
        sets = first.sets if len(asked) == 1 else Sets.concat([each.sets for each in asked if each.sets is not None])
        found = getattr(index, method)(sets, **first.arguments)
    assert isinstance(found, HitLists)
    sizes = [len(each.ids or ()) if each.sets is None else len(each.sets) for each in asked]
    return hits_replies(found, sizes, [each.single for each in asked], accept, first.metadata)


@route(
    "POST",
    "/v1/indexes/{name}/search",
    "The nearest sets of one query, of many, or of stored sets.",
    "read",
    HitsAnswer,
    body=SearchBody,
    bodies=BULK,
    answers=(JSON, BINARY, ARROW),
    hot=True,
)
def search(context: Context, request: Request) -> Reply:
    asked = decode(context, request, "search")
    return answer_together(context, request.name, "search", [asked], request.accept)[0]


@route(
    "POST",
    "/v1/indexes/{name}/range_search",
    "All sets within a radius.",
    "read",
    HitsAnswer,
    body=RangeBody,
    bodies=BULK,
    answers=(JSON, BINARY, ARROW),
)
def range_search(context: Context, request: Request) -> Reply:
    asked = decode(context, request, "range_search")
    return answer_together(context, request.name, "range_search", [asked], request.accept)[0]


@route(
    "POST",
    "/v1/indexes/{name}/kneighbors",
    "Distances and positions of the nearest sets, as arrays.",
    "read",
    NeighborsAnswer,
    body=NeighborsBody,
    bodies=BULK,
    answers=(JSON, BINARY),
)
def kneighbors(context: Context, request: Request) -> Reply:
    index = context.index(request.name)
    asked = decode_question(request, NeighborsBody, context.shape(request.name, index), context.limits)
    distances, positions = index.kneighbors(asked.sets, id=asked.ids, **asked.arguments)
    return neighbors_reply(distances, positions, request.accept)


def neighbors_reply(distances: NDArray[Any], positions: NDArray[Any], accept: str) -> Reply:
    if BINARY in accept:
        return binary_reply({}, {"distances": distances, "positions": positions})
    return json_reply(NeighborsAnswer(without_infinity(distances), positions.tolist()))


@route(
    "POST",
    "/v1/indexes/{name}/explain",
    "Why two sets are as far apart as they are, and which of their elements match.",
    "read",
    ExplainAnswer,
    body=ExplainBody,
    bodies=(JSON, BINARY),
    answers=(JSON, BINARY),
)
def explain(context: Context, request: Request) -> Reply:
    index = context.index(request.name)
    shape = context.shape(request.name, index)
    if request.kind == BINARY:
        message = unpack(request.body)
        given = plain_arguments(message, {"id": None, "query_id": None, "match": "whole"})
        id, query_id, match, components = given["id"], given["query_id"], given["match"], None
        query = unpack_sets("query", message.arrays, shape.origin)
        query = None if query is None else shape.sets(query, name="query")
    else:
        body = decode_json(request.body, ExplainBody, context.limits)
        id, query_id, match, components = body.id, body.query_id, body.match, body.components
        weights = None if body.weights is None else [body.weights]
        query = None if body.query is None else shape.sets([body.query], weights, "query")
    if (query is None) == (query_id is None):
        raise InputError("give query, or query_id of a stored set, and not both", argument="query")
    if not isinstance(id, str) or not (query_id is None or isinstance(query_id, str)):
        raise InputError("id and query_id are strings", argument="id")
    found = index.explain(query_id if query is None else query, id, match=match)
    if BINARY in request.accept:
        return _binary_explanation(found, match)
    project = projector(context, request.name, components)
    x, y = (SideAnswer(project(side.points).tolist(), _listed(side.weights)) for side in (found.x, found.y))
    projected = components is not None and shape.dim > components
    if isinstance(found, rank.PartExplanation):
        answer = ExplainAnswer(match, found.distance, x, y, projected)
        answer.nearest, answer.distances = found.nearest.tolist(), found.distances.tolist()
        answer.weights = found.weights.tolist()
        return json_reply(answer)
    answer = ExplainAnswer("whole", found.distance, x, y, projected)
    answer.slices, answer.directions = found.slices.tolist(), _listed(found.directions)
    answer.x_elements, answer.y_elements = found.x_elements.tolist(), found.y_elements.tolist()
    answer.pairs = _pairs(found.x, found.y)
    return json_reply(answer)


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


def _binary_explanation(found: rank.Explanation | rank.PartExplanation, match: str) -> Reply:
    arrays = {**pack_sets("x", found.x), **pack_sets("y", found.y)}
    names = ("nearest", "distances", "weights", "slices", "x_elements", "y_elements", "directions")
    arrays |= {name: value for name in names if (value := getattr(found, name, None)) is not None}
    kind = match if isinstance(found, rank.PartExplanation) else "whole"
    return binary_reply({"kind": kind, "distance": found.distance}, arrays)
