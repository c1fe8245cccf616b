"""The application: FastAPI with the routes of the server, in the middleware that lets requests in and observes them.

A worker has the same addresses as the process that writes: what that process has to do it forwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import SloshError, StorageError
from . import drawing, fields, index_routes, job_routes, maps, pages, search_routes, set_routes
from .context import Context
from .forward import Forwarder, forward
from .lane import Lane
from .middleware import Admitted, Observed
from .openapi import make_document
from .problems import Refused, problem_response

READING = (search_routes, set_routes, index_routes, fields, pages)
ROUTERS = (search_routes.hot, *(module.router for module in READING))
"""Routes that every process answers, the hot one first."""
OWNER_ROUTERS = (set_routes.owner, index_routes.owner, job_routes.owner, maps.owner, drawing.owner)
"""Routes of the process that writes."""
ROUTES = [route for each in (*ROUTERS, *OWNER_ROUTERS) for route in each.routes if isinstance(route, APIRoute)]


def route_names() -> list[str]:
    """Return the routes by the names that they have in the metrics."""
    return sorted(
        f"{method} {route.path_format}" for route in ROUTES if route.include_in_schema for method in route.methods or ()
    )


def make_app(context: Context, forwarder: Forwarder | None = None) -> FastAPI:
    """Return the application of one process. With a `forwarder` it is that of a worker."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = context.settings.threads
        app.state.lane = Lane(context)
        yield
        await run_in_threadpool(app.state.lane.close)
        await run_in_threadpool(context.close)

    # No pages of documentation: those of FastAPI load scripts from elsewhere, which the security policy forbids.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.context, app.state.forwarder = context, forwarder
    app.add_middleware(Admitted, context=context)
    app.add_middleware(Observed, context=context)
    for kind in (SloshError, Refused, HTTPException):
        app.add_exception_handler(kind, answer_error)
    for router in ROUTERS:
        app.include_router(router)
    for router in OWNER_ROUTERS:
        if forwarder is None:
            app.include_router(router)
            continue
        for route in router.routes:
            assert isinstance(route, APIRoute)
            app.add_api_route(route.path, forward, methods=list(route.methods or ()), response_class=Response)
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(make_document(ROUTES))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the problem details of an error."""
    if isinstance(error, HTTPException):
        methods = _methods_at(request.scope["path"])
        if methods and request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": ", ".join(methods)})
        error = _no_route(request, methods)
    context: Context = request.app.state.context
    return problem_response(error, context.catalog)


def _methods_at(path: str) -> list[str]:
    """Return the methods that a path takes."""
    found = {each for route in ROUTES if route.path_regex.match(path) for each in route.methods or ()}
    more = {"OPTIONS", *(["HEAD"] if "GET" in found else [])} if found else set()
    return sorted(found | more)


def _no_route(request: Request, methods: list[str]) -> Refused:
    """Return what is wrong with a path or a method that no route has."""
    path, method = request.scope["path"], request.method
    if methods and method not in methods:
        listed, problem = ", ".join(methods), f"{path[:100]} takes no {method[:20]}"
        return Refused(StorageError(problem, f"it takes {listed}"), 405, allow=listed)
    return Refused(StorageError(f"there is no route {path[:100]}", "check the address; /openapi.json lists them"), 404)
