"""Which requests are let in: hosts, origins and keys.

A page of another site must not reach a server that listens on this machine only. So a request must name the server by a
host that it is known by (a name that an attacker controls may resolve to 127.0.0.1), and one that a browser sends from
another site carries an `Origin`, or says so in `Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from ..errors import AccessDenied, ReadOnlyIndex, SloshError
from .keys import Grant, Keys
from .routes import Route
from .settings import Settings

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Guard:
    """The checks of one server."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._keys, self._read_only = keys, settings.read_only
        self._names = {name.lower() for name in (*LOCAL_NAMES, settings.host, *settings.allowed_hosts)}
        if not settings.is_local:
            self._names.add(socket.gethostname().lower())
        self._any_host = bool(keys) and not settings.is_local
        self._any_address = not settings.is_local
        self._known: dict[bytes, bool] = {}

    def check_host(self, headers: Mapping[bytes, bytes]) -> SloshError | None:
        """Return why the host of a request is refused; None if it is not."""
        host = headers.get(b"host", b"")
        good = self._known.get(host)
        if good is None:
            good = self._any_host or self._is_known(host)
            if len(self._known) < 1000:
                self._known[host] = good
        if good:
            return None
        shown = host.decode("latin-1")[:60]
        return AccessDenied(f"this server is not called {shown!r}", "start it with --allow-host, or use its address")

    def _is_known(self, host: bytes) -> bool:
        name = host.decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address

    def check_origin(self, headers: Mapping[bytes, bytes], is_page: bool) -> SloshError | None:
        """Return why a request from another site is refused; None if it is not from one."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None:
            host = headers.get(b"host", b"")
            if origin.partition(b"://")[2] != host or not host:
                shown = origin.decode("latin-1")[:60]
                return AccessDenied(f"a page of {shown!r} may not use this server", "open the server's own page")
        if site in (b"cross-site", b"same-site") and not is_page:
            return AccessDenied("a page of another site may not use this server", "open the server's own page")
        return None

    def grant(self, headers: Mapping[bytes, bytes]) -> Grant:
        found = headers.get(b"authorization")
        return self._keys.grant(None if found is None else found.decode("latin-1"))

    def check_access(self, route: Route, name: str | None, grant: Grant) -> tuple[SloshError, int] | None:
        """Return why a key does not allow a route, and the status of the answer; None if it does."""
        if grant.allows(route.access, name):
            return None
        if not grant.read:
            return AccessDenied("this server needs an API key", "send it as Authorization: Bearer KEY"), 401
        if self._read_only and route.access == "write" and grant.allows("read", name):
            return ReadOnlyIndex("this server is for reading only", "start it without --read-only"), 403
        what = "write" if grant.allows("read", name) else "use this index"
        return AccessDenied(f"the key does not allow to {what}", "use another key"), 403
