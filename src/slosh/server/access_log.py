"""The access log: a JSON object a line, for each request and for each connection that is refused before it has one."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import msgspec

NAME = "slosh.access"
_log = logging.getLogger(NAME)


def write_line(
    about: dict[str, str], *, client: Any, status: int, seconds: float, size: int, key: str = "", name: str = ""
) -> None:
    """Write a line; `about` has the id, the method, the route, and the path where there is no route."""
    line: dict[str, Any] = {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        **about,
        "client": client[0] if client else "",
        "key": key,
        "name": name[:100],
        "status": status,
        "ms": round(seconds * 1000, 3),
        "bytes": size,
    }
    _log.info("%s", msgspec.json.encode(line).decode())
