"""The indexes that a server serves, by name: each is opened once, when it is first asked for.

A place is the folder of an index, a folder of such folders, a database, or the address of an index in one. What a
request names is looked up among the names that are there. No path is made of it, but for a new index, whose name is
checked character by character.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engines.addresses import split_name, with_name, without_password
from ..engines.registry import ENGINES, create_engine, names_at
from ..engines.spec import IndexSpec
from ..errors import FormatError, IndexExists, IndexNotFound, InputError, ReadOnlyIndex
from ..index import SetIndex
from ..index import open as open_index

logger = logging.getLogger(__name__)

SUFFIX = ".slosh"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a new index may be called."""
NAME_LOCKS = 64


@dataclass
class Entry:
    """A served index: its name, where it lives, and the open index."""

    name: str
    location: str
    number: tuple[int, int] | None
    """Device and inode of its folder: another folder of the same name is another index."""
    index: SetIndex | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_deleted: bool = False

    @property
    def is_there(self) -> bool:
        """Whether its folder is still the one that was found."""
        return self.number is None or _number_of(self.location) == self.number

    def close(self) -> None:
        with self.lock:
            index, self.index = self.index, None
        if index is not None:
            index.close()


class Generation:
    """A number that all processes of a server share: it changes when an index is created or deleted."""

    def __init__(self, path: Path | None) -> None:
        self._memory: Any = bytearray(8)
        if path is not None:
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 8)

    def read(self) -> bytes:
        return bytes(self._memory[:8])

    def advance(self) -> None:
        number = (int.from_bytes(self.read(), "little") + 1) % (1 << 64)
        self._memory[:8] = number.to_bytes(8, "little")


class Catalog:
    """The served indexes. `read_only` opens them for reading, as the workers do, which forward changes."""

    def __init__(self, places: tuple[str, ...], read_only: bool, generation: Generation, n_jobs: int = -1) -> None:
        self._places = tuple(each if "://" in each else str(Path(each).absolute()) for each in places)
        self.read_only, self._generation, self._n_jobs = read_only, generation, n_jobs
        self._lock, self._entries, self._seen = threading.RLock(), dict[str, Entry](), b""
        self._changing, self._name_locks = set[str](), [threading.Lock() for _ in range(NAME_LOCKS)]
        self._check_places()
        self._home = next((place for place in self._places if _holds_many(place)), None)
        """Where new indexes are created: a folder or a database; None where a server has neither."""
        self._on_close: list[Callable[[str], None]] = []
        self.refresh()

    def _check_places(self) -> None:
        """Refuse places that cannot be served."""
        for place in self._places:
            if "://" in place and place.partition("://")[0] not in ENGINES:
                problem = f"{without_password(place)} is neither a folder nor a database, and slosh serve serves those"
                remedy = "give the path of a folder, or postgresql://user@host/database"
                raise InputError(problem, remedy, argument="path")
            if "://" not in place and Path(place).is_file():
                problem = f"{place} is a file, not the folder of an index"
                raise FormatError(
                    problem, "give a folder that slosh build made, or one that holds such", location=place
                )
        if missing := self.missing_places():
            raise IndexNotFound(f"there is no index {missing[0]}", "make it with slosh build", location=missing[0])

    def refresh(self) -> None:
        """Look which indexes there are. Those that are being created or deleted are not seen."""
        with self._lock:
            seen = self._generation.read()
            listed = [entry for place in reversed(self._places) for entry in _entries(place)]
            found = {entry.name: entry for entry in listed if entry.name not in self._changing}
            self._seen, before = seen, self._entries
            kept = {name: entry for name, entry in before.items() if _same(entry, found.get(name))}
            self._entries = {**found, **kept}
            gone = [entry for name, entry in before.items() if name not in kept]
        for entry in gone:
            entry.close()
            self._closed(entry.name)

    @property
    def can_create(self) -> bool:
        """Whether there is a place for new indexes."""
        return self._home is not None

    def missing_places(self) -> list[str]:
        """Return the folders of the server that are not there."""
        return [place for place in self._places if "://" not in place and not Path(place).is_dir()]

    def names(self) -> list[str]:
        self._follow()
        return sorted(self._entries)

    def get(self, name: str) -> SetIndex:
        """Return an open index; IndexNotFound if there is none of this name."""
        entry = self._entry(name)
        index = entry.index
        if index is not None:
            return index
        with entry.lock:
            if entry.is_deleted:
                raise _not_found(name)
            if entry.index is None:
                entry.index = open_index(entry.location, read_only=self.read_only, n_jobs=self._n_jobs)
                logger.info("opened %s: %d sets", name, len(entry.index))
            return entry.index

    def create(self, name: str, spec: IndexSpec, weighted: bool | None) -> SetIndex:
        """Create an empty index in the folder of the server."""
        if self.read_only:
            raise ReadOnlyIndex("this server only reads", "start it without --read-only")
        if self._home is None:
            remedy = "start it with a folder, or a database"
            raise InputError("this server has no place for new indexes", remedy, argument="name")
        if not NAME.fullmatch(name):
            remedy = "give letters, digits, and . _ - between them, at most 100"
            raise InputError(f"name={name!r:.60}", remedy, argument="name")
        place = with_name(self._home, name) if "://" in self._home else str(Path(self._home) / f"{name}{SUFFIX}")
        with self._name_lock(name):
            if name in self._entries:
                raise IndexExists(f"there is an index {name!r}", "give another name", location=name)
            with self._unseen(name):
                create_engine(place, spec, weighted, self._n_jobs).close()
            return self.get(name)

    def destroy(self, name: str) -> None:
        """Delete an index and everything in it."""
        with self._name_lock(name):
            entry, index = self._entry(name), self.get(name)
            with self._unseen(name), entry.lock:
                entry.is_deleted, entry.index = True, None
                try:
                    index.destroy()
                finally:
                    index.close()
            self._closed(name)

    def _name_lock(self, name: str) -> threading.Lock:
        """Return the lock of those who create or delete an index of this name, one after the other."""
        return self._name_locks[hash(name) % NAME_LOCKS]

    @contextmanager
    def _unseen(self, name: str) -> Iterator[None]:
        """Hide an index from everybody else while it is created or deleted."""
        with self._lock:
            self._changing.add(name)
            self._entries = {key: entry for key, entry in self._entries.items() if key != name}
        try:
            yield
        finally:
            with self._lock:
                self._changing.discard(name)
            self._generation.advance()
            self.refresh()

    def when_closed(self, call: Callable[[str], None]) -> None:
        """Call a function with the name of each index that is closed or deleted."""
        self._on_close.append(call)

    def shown(self, text: str) -> str:
        """Return a text without the places of this machine: a client sees names."""
        for name, entry in self._entries.items():
            text = text.replace(without_password(entry.location), name)
        if self._home is not None and "://" not in self._home:
            text = text.replace(f"{self._home}{os.sep}", "")
        return text

    def close(self) -> None:
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            entry.close()

    def _follow(self) -> None:
        if self._generation.read() != self._seen:
            self.refresh()

    def _entry(self, name: str) -> Entry:
        self._follow()
        entry = self._entries.get(name)
        can_appear = self.can_create and not self.read_only
        if can_appear if entry is None else not entry.is_there:
            self.refresh()  # another program may have put it there, or removed it
            entry = self._entries.get(name)
        if entry is None:
            raise _not_found(name)
        return entry

    def _closed(self, name: str) -> None:
        for call in self._on_close:
            call(name)


def _not_found(name: str) -> IndexNotFound:
    remedy = "check the name; the page of the server lists all that it has, and so does GET /v1/indexes"
    return IndexNotFound(f"there is no index {name!r:.60}", remedy, location=name[:100])


def _is_index(folder: Path) -> bool:
    return (folder / "index.db").is_file()


def _holds_many(place: str) -> bool:
    return split_name(place)[1] is None if "://" in place else not _is_index(Path(place))


def _entries(place: str) -> list[Entry]:
    if "://" in place:
        name = split_name(place)[1]
        if name is not None:
            return [Entry(name, place, None)]
        return [Entry(each, with_name(place, each), None) for each in names_at(place)]
    folder = Path(place)
    try:
        folders = [folder] if _is_index(folder) else [each for each in sorted(folder.iterdir()) if _is_index(each)]
    except FileNotFoundError:
        return []
    found = [Entry(each.name.removesuffix(SUFFIX), str(each), _number_of(each)) for each in folders]
    return [entry for entry in found if entry.number is not None]


def _number_of(folder: str | Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _same(entry: Entry, found: Entry | None) -> bool:
    return found is not None and (entry.location, entry.number) == (found.location, found.number)
