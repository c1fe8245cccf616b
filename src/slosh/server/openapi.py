"""The OpenAPI document, made of the table of routes and of the types that decode and encode: it cannot be untrue."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import msgspec

from ..wire import ARROW, BINARY, JSON, NPY, PROBLEM
from .routes import ROUTES, Route
from .schemas import HitsPart, InfoAnswer, Problem
from .set_routes import FILE

REF = "#/components/schemas/{name}"
ERRORS = {
    "400": "The request is wrong; `detail` says what, and where.",
    "401": "An API key is needed.",
    "403": "The key does not allow this, or the request comes from another site.",
    "404": "There is no such index, set or job.",
    "408": "The body did not come in time.",
    "409": "It exists already, another process writes to the index, or it is not ready yet.",
    "413": "The body is too large.",
    "415": "The body is of another type, or compressed.",
    "501": "The server lacks an optional package for this.",
    "503": "The server has too much to do, or the deadline passed; try again after `Retry-After` seconds.",
}
BYTES = {"type": "string", "format": "binary"}


def document() -> bytes:
    """Return the document as JSON."""
    routes = list(ROUTES.values())
    kinds = {kind for each in routes for kind in (each.body, each.answer) if isinstance(kind, type)}
    parameters = {each.parameters for each in routes if each.parameters is not None}
    listed: list[Any] = sorted({*kinds, *parameters, Problem, HitsPart}, key=lambda kind: str(kind.__name__))
    _, schemas = msgspec.json.schema_components(listed, ref_template=REF)
    schemas[InfoAnswer.__name__]["additionalProperties"] = True
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "slosh",
            "version": version("slosh"),
            "description": "Nearest-neighbour search over sets of vectors. docs/server.md explains it with examples.",
        },
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in schemas.items() if name not in _names(parameters)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(made)


def _names(kinds: set[Any]) -> set[str]:
    return {kind.__name__ for kind in kinds}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}_{route.handler.__name__}",
        "responses": {str(route.status): {"description": route.summary, "content": _answers(route)}},
    }
    wrong = {"description": "", "content": {PROBLEM: {"schema": {"$ref": REF.format(name="Problem")}}}}
    for status, words in ERRORS.items():
        found["responses"][status] = {**wrong, "description": words}
    if route.access != "none":
        found["security"] = [{"key": []}, {}]
    listed = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.parameters is not None:
        schema = schemas[route.parameters.__name__]
        for name, kind in schema["properties"].items():
            needed = name in schema.get("required", ())
            listed.append({"name": name, "in": "query", "required": needed, "schema": _plain(kind)})
    if listed:
        found["parameters"] = listed
    if route.body is not None:
        content: dict[str, Any] = {JSON: {"schema": {"$ref": REF.format(name=route.body.__name__)}}}
        content |= {kind: {"schema": BYTES} for kind in (NPY, ARROW, BINARY) if kind in route.bodies}
        found["requestBody"] = {"required": True, "content": content}
    elif route.bodies == (FILE,):
        found["requestBody"] = {"required": True, "content": {FILE: {"schema": BYTES}}}
    return found


def _plain(kind: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null, which a query string cannot hold."""
    if "anyOf" in kind:
        kept = [each for each in kind["anyOf"] if each != {"type": "null"}]
        rest = {name: value for name, value in kind.items() if name not in ("anyOf", "default")}
        return {**rest, **kept[0]} if len(kept) == 1 else {**rest, "anyOf": kept}
    return {name: value for name, value in kind.items() if name != "default" or value is not None}


def _answers(route: Route) -> dict[str, Any]:
    if isinstance(route.answer, str):
        return {route.answer: {"schema": BYTES if route.answer == BINARY else {"type": "string"}}}
    content: dict[str, Any] = {JSON: {"schema": {"$ref": REF.format(name=route.answer.__name__)}}}
    return {**content, **{kind: {"schema": BYTES} for kind in (BINARY, ARROW) if kind in route.answers}}
