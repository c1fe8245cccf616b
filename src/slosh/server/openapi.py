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

from ..wire import BINARY, JSON, PROBLEM
from .answer_types import HitsPart, InfoAnswer, Problem

REF = "#/components/schemas/{name}"
ERRORS = {
    400: "The request is wrong; `detail` says what, and where.",
    401: "An API key is needed.",
    403: "The key does not allow this, or the request comes from another site.",
    404: "There is no such index, set or job.",
    408: "The body did not come in time.",
    409: "It exists already, another process writes to the index, or it is not ready yet.",
    413: "The body is too large.",
    415: "The body is of another type, or compressed.",
    501: "The server lacks an optional package for this.",
    503: "The server has too much to do, or the deadline passed; try again after `Retry-After` seconds.",
}
BYTES = {"type": "string", "format": "binary"}
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
) -> dict[str, Any]:
    """Return what the decorator of a route is told of it.

    `answer` is the type of the JSON answer, or the content type of another one; `bodies` and `answers` are all content
    types that there may be.
    """
    wrong = {PROBLEM: {"schema": {"$ref": REF.format(name="Problem")}}}
    responses: dict[int, Any] = {code: {"description": words, "content": wrong} for code, words in ERRORS.items()}
    if isinstance(answer, str):
        content: dict[str, Any] = {answer: {"schema": BYTES if answer == BINARY else {"type": "string"}}}
    else:
        content = _content(answer, answers)
    extra: dict[str, Any] = {}
    if query is not None:
        extra["parameters"] = _parameters(query)
    if body is not None or JSON not in bodies:
        extra["requestBody"] = {"required": True, "content": _content(body, bodies)}
    return {
        "summary": summary,
        "status_code": status,
        "response_class": Response,
        "response_description": summary,
        "responses": {**responses, status: {"description": summary, "content": content}},
        "openapi_extra": extra,
    }


def _content(kind: Any, types: Sequence[str]) -> dict[str, Any]:
    if kind is not None:
        _types.add(kind)
    return {each: {"schema": schema_of(kind) if each == JSON and kind is not None else BYTES} for each in types}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type, which refers to those of the document."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return schema


def _parameters(query: type[Any]) -> list[dict[str, Any]]:
    _, schemas = msgspec.json.schema_components([query], ref_template=REF)
    schema = schemas[query.__name__]
    needed = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": _without_null(kind)}
        for name, kind in schema["properties"].items()
    ]


def _without_null(kind: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null, which a query string cannot hold."""
    if "anyOf" in kind:
        kept = [each for each in kind["anyOf"] if each != {"type": "null"}]
        rest = {name: value for name, value in kind.items() if name not in ("anyOf", "default")}
        return {**rest, **kept[0]} if len(kept) == 1 else {**rest, "anyOf": kept}
    return {name: value for name, value in kind.items() if name != "default" or value is not None}


def make_document(routes: Sequence[APIRoute]) -> dict[str, Any]:
    """Return the document of routes."""
    about = "Nearest-neighbour search over sets of vectors. docs/server.md explains it with examples."
    document = get_openapi(title="slosh", version=version("slosh"), description=about, routes=routes)
    for route in (each for each in routes if each.include_in_schema):
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            operation["operationId"] = f"{route.endpoint.__module__.rpartition('.')[2]}_{route.endpoint.__name__}"
            operation["responses"].pop("422", None)  # of FastAPI's own checks, which nothing here relies on
            if "security" in operation:
                operation["security"].append({})  # a server may have no keys
    _, schemas = msgspec.json.schema_components(sorted(_types, key=str), ref_template=REF)
    schemas[InfoAnswer.__name__]["additionalProperties"] = True
    document["components"]["schemas"] = schemas
    return document
