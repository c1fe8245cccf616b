"""Which requests are let in: hosts and origins. What a key allows is checked by `dependencies.py`.

A page of another site must not reach a server that listens on this machine only. So a request must name the server by a
host that it is known by (a name that an attacker controls may resolve to 127.0.0.1), and one that a browser sends from
another site carries an `Origin`, or says so in `Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import NoReturn

from ..errors import AccessDenied
from .problems import Refused
from .settings import Settings

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
KEPT_HOSTS = 1000
"""Hosts that are remembered, so that each is looked at once."""


class Guard:
    """The checks of one server."""

    def __init__(self, settings: Settings, has_keys: bool) -> None:
        self._names = {name.lower() for name in (*LOCAL_NAMES, settings.host, *settings.allowed_hosts)}
        if not settings.is_local:
            self._names.add(socket.gethostname().lower())
        self._any_host = has_keys and not settings.is_local
        self._any_address = not settings.is_local
        self._known: dict[bytes, bool] = {}

    def check(self, headers: Iterable[tuple[bytes, bytes]], is_page: bool) -> None:
        """Refuse a request under a foreign host, or from another site; a link to a page may be anywhere."""
        given = dict(headers)
        host, origin, site = given.get(b"host", b""), given.get(b"origin"), given.get(b"sec-fetch-site")
        if not self._is_known(host):
            shown = host.decode("latin-1")[:60]
            _refuse(f"this server is not called {shown!r}", "start it with --allow-host, or use its address")
        if origin is not None and (origin.partition(b"://")[2] != host or not host):
            shown = origin.decode("latin-1")[:60]
            _refuse(f"a page of {shown!r} may not use this server", "open the server's own page")
        if site in (b"cross-site", b"same-site") and not is_page:
            _refuse("a page of another site may not use this server", "open the server's own page")

    def _is_known(self, host: bytes) -> bool:
        known = self._known.get(host)
        if known is None:
            known = self._any_host or self._is_ours(host)
            if len(self._known) < KEPT_HOSTS:
                self._known[host] = known
        return known

    def _is_ours(self, host: bytes) -> bool:
        name = host.decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address


def _refuse(problem: str, remedy: str) -> NoReturn:
    raise Refused(AccessDenied(problem, remedy), 403, close=True)
