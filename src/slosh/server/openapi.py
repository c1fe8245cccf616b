"""The OpenAPI document: FastAPI makes it of the routes, and the types of msgspec that decode and encode describe the
bodies. So it cannot be untrue.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import Response

from ..wire import BINARY, JSON, NPY, PROBLEM
from .answer_types import HitsPart, Problem
from .request_types import query_type

REF = "#/components/schemas/{name}"
ERRORS = {
    400: "The request is wrong; `detail` says what, and where.",
    401: "An API key is needed; `WWW-Authenticate` says how it is sent.",
    403: "The key does not allow this, or the request comes from another site.",
    404: "There is no such index, set or job.",
    408: "The body did not come in time.",
    409: "It exists already, another process writes to the index, or it is not ready yet.",
    413: "The body is too large.",
    415: "The body is of another type, or compressed.",
    431: "The headers are too large.",
    500: "The server failed, or the stored data are damaged.",
    501: "The server lacks an optional package for this.",
    503: "The server has too much to do, or is stopping; try again after `Retry-After` seconds.",
    504: "The request was not answered in time; it would not be if it were sent again.",
    507: "There is no room on the disk.",
}
ALWAYS, WITH_BODY, WITH_CHANGE = (400, 403, 431, 500, 503), (408, 413, 415), (409, 507)
"""Errors of every route, of those that take a body, and of those that change something."""
OF_AN_INDEX = 409
"""The error of every route about one index, which another process may have open for writing."""
TEXT = {"schema": {"type": "string"}}
HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "How a key is sent.", **TEXT}},
    503: {"Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}},
}
REQUEST_ID = {"X-Request-Id": {"description": "The id of the request in the access log.", **TEXT}}
BYTES = {"type": "string", "format": "binary"}
EITHER = {
    "SearchBody": ("queries", "id"),
    "RangeBody": ("queries", "id"),
    "NeighborsBody": ("queries", "id"),
    "ExplainBody": ("query", "query_id"),
    "RemoveBody": ("ids", "where"),
}
"""Bodies with one of two fields, and not both."""
_types: set[Any] = {Problem, HitsPart}
"""The types that the document refers to."""


def described(
    summary: str,
    answer: Any,
    *,
    body: Any = None,
    query: type[Any] | None = None,
    bodies: Sequence[str] = (JSON,),
    answers: Sequence[str] = (JSON,),
    status: int = 200,
    errors: Sequence[int] = (401, 404, 504),
    changes: bool = False,
) -> dict[str, Any]:
    """Return what the decorator of a route is told of it.

    `answer` is the type of the JSON answer, or the content type of another one; `bodies` and `answers` are all content
    types that there may be. `errors` are statuses beside those of every route, of bodies, and of `changes`.
    """
    takes_body = body is not None or JSON not in bodies
    codes = {*ALWAYS, *errors, *(WITH_BODY if takes_body else ()), *(WITH_CHANGE if changes else ())}
    if takes_body and bodies != (JSON,):
        codes.add(501)
    responses: dict[int, Any] = {code: _error(code) for code in sorted(codes)}
    if isinstance(answer, str):
        content: dict[str, Any] = {answer: {"schema": BYTES if answer == BINARY else {"type": "string"}}}
    else:
        content = _content(answer, answers)
    extra: dict[str, Any] = {}
    if query is not None:
        extra["parameters"] = _parameters(query)
    if NPY in bodies and query is None:
        extra["parameters"] = _parameters(query_type(body), "For .npy and Arrow bodies; other bodies hold it.")
    if takes_body:
        extra["requestBody"] = {"required": True, "content": _content(body, bodies)}
    return {
        "summary": summary,
        "status_code": status,
        "response_class": Response,
        "response_description": summary,
        "responses": {**responses, status: {"description": summary, "content": content, "headers": REQUEST_ID}},
        "openapi_extra": extra,
    }


def _error(code: int) -> dict[str, Any]:
    wrong = {PROBLEM: {"schema": {"$ref": REF.format(name="Problem")}}}
    return {"description": ERRORS[code], "content": wrong, "headers": {**HEADERS.get(code, {}), **REQUEST_ID}}


def _content(kind: Any, types: Sequence[str]) -> dict[str, Any]:
    if kind is not None:
        _types.add(kind)
    return {each: {"schema": schema_of(kind) if each == JSON and kind is not None else BYTES} for each in types}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type, which refers to those of the document."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return schema


def _parameters(query: type[Any], description: str = "") -> list[dict[str, Any]]:
    """Return the fields of a type as parameters."""
    about = {"description": description} if description else {}
    _, schemas = msgspec.json.schema_components([query], ref_template=REF)
    schema = schemas[query.__name__]
    needed = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": _without_null(kind), **about}
        for name, kind in schema["properties"].items()
    ]


def _without_null(kind: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null, which a query string cannot hold."""
    if "anyOf" in kind:
        kept = [each for each in kind["anyOf"] if each != {"type": "null"}]
        rest = {name: value for name, value in kind.items() if name not in ("anyOf", "default")}
        return {**rest, **kept[0]} if len(kept) == 1 else {**rest, "anyOf": kept}
    return {name: value for name, value in kind.items() if name != "default" or value is not None}


def _has(field: str, without: str | None = None) -> dict[str, Any]:
    """Return the schema of an object with one field, and without another."""
    properties: dict[str, Any] = {field: {"not": {"type": "null"}}}
    if without is not None:
        properties[without] = {"type": "null"}
    return {"required": [field], "properties": properties}


def make_document(routes: Sequence[APIRoute]) -> dict[str, Any]:
    """Return the document of routes."""
    about = (
        "Nearest-neighbour search over sets of vectors. docs/server.md explains it with examples. "
        "HEAD is answered as GET, without a body. Another method is answered 405, with `Allow`."
    )
    document = get_openapi(title="slosh", version=version("slosh"), description=about, routes=routes)
    for route in (each for each in routes if each.include_in_schema):
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            operation["operationId"] = f"{route.endpoint.__module__.rpartition('.')[2]}_{route.endpoint.__name__}"
            operation["responses"].pop("422", None)  # of FastAPI's own checks, which nothing here relies on
            if "{name}" in route.path_format:
                operation["responses"].setdefault(str(OF_AN_INDEX), _error(OF_AN_INDEX))
            if "security" in operation:
                operation["security"].append({})  # a server may have no keys
    _, schemas = msgspec.json.schema_components(sorted(_types, key=str), ref_template=REF)
    for name, (first, second) in EITHER.items():
        schemas[name]["oneOf"] = [_has(first, second), _has(second, first)]
    schemas["UpdateBody"]["anyOf"] = [_has("sets"), _has("metadata")]
    document["components"]["schemas"] = schemas
    return document
