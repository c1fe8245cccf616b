"""Errors as answers: problem details (RFC 9457), without the places of this machine and without a stack trace."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
from starlette.responses import Response

from ..errors import DamagedError, FormatError, IndexLocked, SloshError, StorageError
from ..wire import PROBLEM, problem_of
from .catalog import Catalog
from .exchange import RETRY_SECONDS

logger = logging.getLogger(__name__)

PATH = re.compile(r"""(?<![\w/:.])(?!/v1/)(?:/[^\s/'"`,;:()]+){2,}/?""")
"""A path of this machine, as messages of the operating system and of databases have them."""


class Refused(Exception):
    """A request that is answered without being worked on: the error, the status, and whether the connection ends."""

    def __init__(self, error: SloshError, status: int, *, close: bool = False, allow: str = "") -> None:
        self.error, self.status, self.close, self.allow = error, status, close, allow


class NotReady(StorageError):
    """What is asked for is being made."""

    status = 409


def public_text(text: str, catalog: Catalog) -> str:
    """Return a text about stored data without paths of this machine: a client sees the names of indexes."""
    return PATH.sub("(a path of the server)", catalog.shown(text))


def public_problem(error: BaseException, catalog: Catalog, status: int | None = None) -> dict[str, Any]:
    """Return problem details that may be sent to a client."""
    if isinstance(error, IndexLocked):
        error = _locked_for_clients(error)
    problem = problem_of(error, getattr(error, "status", None) if status is None else status)
    if status is None and isinstance(error, OSError | FormatError | DamagedError):  # others quote what the client sent
        for part in (problem, problem["fields"]):
            part.update({key: public_text(value, catalog) for key, value in part.items() if isinstance(value, str)})
    return problem


def _locked_for_clients(error: IndexLocked) -> IndexLocked:
    """Return the error without the process that has the lock, which a client can neither close nor see."""
    problem = f"the index {error.location} is open for writing in another process than the server"
    remedy = "try again when it is closed there; a server that is started with --read-only can read it meanwhile"
    return IndexLocked(problem, remedy, location=error.location)


def problem_response(error: BaseException, catalog: Catalog) -> Response:
    """Return the answer that an error is."""
    refused = error if isinstance(error, Refused) else None
    if refused is not None:
        error = refused.error
    problem = public_problem(error, catalog, None if refused is None else refused.status)
    status = problem["status"]
    if (status >= 500 and status not in (503, 504)) or isinstance(error, MemoryError):
        logger.error("a request failed", exc_info=error)
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
