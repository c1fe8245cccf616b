"""The page and what belongs to it: files of the package, all read when one is first asked for, so that no path of a
request is ever opened.
"""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

router = APIRouter(include_in_schema=False)
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}


class File(NamedTuple):
    """What is sent of a file."""

    content: bytes
    kind: str
    tag: str


@cache
def files() -> dict[str, File]:
    """Return the static files by their paths below /static/."""
    found: dict[str, File] = {}
    _read(resources.files("slosh.server") / "static", "", found)
    return found


def _read(folder: Any, path: str, found: dict[str, File]) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            _read(each, f"{path}{each.name}/", found)
            continue
        suffix, content = "." + each.name.rpartition(".")[2].lower(), each.read_bytes()
        kind = TYPES.get(suffix) or mimetypes.guess_type(each.name)[0] or "application/octet-stream"
        kind = f"{kind}; charset=utf-8" if kind.startswith("text/") or kind.endswith("json") else kind
        found[path + each.name] = File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:24]}"')


@router.get("/")
async def page(request: Request) -> Response:
    return await static("index.html", request)


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    file = files().get(path)
    if file is None:
        raise HTTPException(404)
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Content-Security-Policy": PAGE_POLICY}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers, media_type=file.kind)
    return Response(file.content, headers=headers, media_type=file.kind)
