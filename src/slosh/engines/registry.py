"""Which engine an index lives on: chosen by its location when it is created or opened.

A location is None (memory), the path of a folder (SQLite), or a URL whose scheme names the engine, with the name of the
index behind # where there may be several. A module is imported
only when an index of its kind is opened, so that an engine's dependencies are needed by those who use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeAlias

from ..errors import InputError, bad_value, import_extra
from ..gpu.devices import checked_device
from .addresses import with_name, without_password
from .base import Engine
from .spec import IndexSpec

Location: TypeAlias = str | os.PathLike[str] | None

ENGINES = {
    "memory": "slosh.engines.memory:MemoryEngine",
    "sqlite": "slosh.engines.sqlite.engine:SqliteEngine",
    "postgresql": "slosh.engines.postgres.engine:PostgresEngine",
    "postgres": "slosh.engines.postgres.engine:PostgresEngine",
}
"""Scheme of the URL, and the class; each has `create(location, spec, ...)` and, if it lasts, `open(location, ...)`."""
EXTRAS = {"psycopg": "postgres"}
"""Packages that an engine imports, and the extras of slosh that bring them."""


LOCAL_SERVERS = {"postgresql": "slosh.engines.postgres.local_server:LocalServer"}
"""Scheme of the URL, and a server of one's own to try the engine with."""


@contextmanager
def local_server(scheme: str) -> Iterator[str]:
    """Start a server of one's own, which ends with the block and keeps nothing; give its URL."""
    module, _, attribute = LOCAL_SERVERS[scheme].partition(":")
    with getattr(import_module(module), attribute)() as server:
        yield server.url


SERVERS = ("http", "https")
"""Schemes of addresses where a server holds indexes. It has the engines: `slosh.index.remote` is its client."""


def is_remote(location: Location) -> bool:
    """Return whether a location is the address of a server of slosh."""
    return isinstance(location, str) and location.partition("://")[0] in SERVERS and "://" in location


def located(location: Location, name: str | None) -> Location:
    """Return the address of the index of a name, where a place may hold several."""
    if name is None:
        return location
    if not isinstance(location, str):
        raise bad_value("name", name, "leave it out: a folder holds one index, and so does memory")
    return with_name(location, name)


def create_engine(
    location: Location, spec: IndexSpec, weighted: bool | None, n_jobs: int | None, device: str | None = None
) -> Engine:
    """Create an empty index at a location that must be free. Without a device it is that of the specification."""
    kind, place = _engine_of(location)
    spec.run_by(n_jobs, device)  # refuses a device before anything is made
    engine: Engine = kind.create(place, spec, weighted=weighted, n_jobs=n_jobs, device=spec.device)
    return engine


def open_engine(location: Location, read_only: bool, n_jobs: int | None, device: str | None = None) -> Engine:
    """Open the index at a location."""
    kind, place = _engine_of(location)
    if place is None:
        raise InputError("an index in memory cannot be opened", "give the path of an index", argument="path")
    checked_device(device)  # before anything is opened
    engine: Engine = kind.open(place, read_only=read_only, n_jobs=n_jobs, device=device)
    return engine


def names_at(location: str) -> list[str]:
    """Return the names of all indexes at a place that may hold several: a database."""
    kind, place = _engine_of(location)
    find = getattr(kind, "names_at", None)
    if find is None:
        raise bad_value("path", without_password(location), "give the address of a database")
    return list(find(place))


def token_at(location: str) -> str | None:
    """Return what only the index that is at a location now has; None if there is none, or its engine has no such."""
    kind, place = _engine_of(location)
    find = getattr(kind, "token_at", None)
    token: str | None = None if find is None else find(place)
    return token


def _engine_of(location: Location) -> tuple[Any, str | None]:
    if location is None:
        name, place = "memory", None
    else:
        place = os.fspath(location)
        if not isinstance(place, str):
            raise InputError(f"path={place!r:.60} is not text", "give a string or a Path", argument="path")
        name, mark, rest = place.partition("://")
        if not mark or name == "sqlite":
            name, place = "sqlite", rest if mark else place
    if name not in ENGINES or (name == "memory" and place is not None):
        raise InputError(
            f"{without_password(str(place))!r:.80} is not where an index can be: no engine has the address {name}://",
            "give the path of a folder, or None for an index in memory",
            argument="path",
        )
    module, _, attribute = ENGINES[name].partition(":")
    try:
        return getattr(import_module(module), attribute), place
    except ModuleNotFoundError as error:
        if (package := (error.name or "").partition(".")[0]) not in EXTRAS:
            raise
        import_extra(package, f"an index at {name}://", EXTRAS[package])
        raise
