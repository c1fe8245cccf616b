"""Errors as answers: problem details (RFC 9457), without the places of this machine and without a stack trace."""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from ..errors import SloshError, StorageError
from ..wire import PROBLEM, problem_of
from .catalog import Catalog
from .exchange import RETRY_SECONDS

logger = logging.getLogger(__name__)


class Refused(Exception):
    """A request that is answered without being worked on: the error, the status, and whether the connection ends."""

    def __init__(self, error: SloshError, status: int, *, close: bool = False, allow: str = "") -> None:
        self.error, self.status, self.close, self.allow = error, status, close, allow


class NotReady(StorageError):
    """What is asked for is being made."""

    status = 409


def problem_response(error: BaseException, catalog: Catalog) -> Response:
    """Return the answer that an error is."""
    refused = error if isinstance(error, Refused) else None
    if refused is not None:
        error = refused.error
    problem = problem_of(error, getattr(error, "status", None) if refused is None else refused.status)
    status = problem["status"]
    if status >= 500 and status != 503:
        logger.error("a request failed", exc_info=error)
    for key in ("detail", "problem", "remedy"):
        problem[key] = catalog.shown(problem[key])
    for key, value in problem["fields"].items():
        if isinstance(value, str):
            problem["fields"][key] = catalog.shown(value)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="slosh"'
    if status == 503:
        headers["Retry-After"] = str(max(1, int(problem["fields"].get("retry_after") or RETRY_SECONDS)))
    if refused is not None and refused.allow:
        headers["Allow"] = refused.allow
    if refused is not None and refused.close:
        headers["Connection"] = "close"
    return Response(msgspec.json.encode(problem, enc_hook=str), status, headers, PROBLEM)
