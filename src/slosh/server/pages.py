"""The page and what belongs to it: files of the package, read when the server starts, so that no path of a request is
ever opened.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .openapi import document
from .routes import Reply

SECURITY: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    b"connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'"
)
API_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    *SECURITY,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}


class Pages:
    """The static files by their path."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, ...], tuple[bytes, str, bytes]] = {}
        root = resources.files("slosh.server") / "static"
        if root.is_dir():
            self._read(root, ("static",))
        if ("static", "index.html") in self._files:
            self._files[("",)] = self._files[("static", "index.html")]
        content = document()
        self._files[("openapi.json",)] = (content, "application/json", _tag(content))

    def _read(self, folder: Any, path: tuple[str, ...]) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                self._read(each, (*path, each.name))
            else:
                suffix = "." + each.name.rpartition(".")[2].lower()
                kind = TYPES.get(suffix) or mimetypes.guess_type(each.name)[0] or "application/octet-stream"
                content = each.read_bytes()
                self._files[path + (each.name,)] = (content, kind, _tag(content))  # noqa: RUF005

    def get(self, method: str, parts: tuple[str | None, ...], headers: Mapping[bytes, bytes]) -> Reply | None:
        """Return the file at a path; None where there is none."""
        found = self._files.get(parts) if method == "GET" else None  # type: ignore[arg-type]
        if found is None:
            return None
        content, kind, tag = found
        own: list[tuple[bytes, bytes]] = [(b"etag", tag), (b"cache-control", b"no-cache")]
        own += [*SECURITY, (b"content-security-policy", PAGE_POLICY)]
        shown = f"{kind}; charset=utf-8" if kind.startswith("text/") or kind.endswith("json") else kind
        if headers.get(b"if-none-match") == tag:
            return Page(b"", shown, 304, tuple(own))
        return Page(content, shown, 200, tuple(own))


class Page(Reply):
    """A file of the page: it brings its own headers."""


def _tag(content: bytes) -> bytes:
    return b'"' + hashlib.sha256(content).hexdigest()[:24].encode() + b'"'
