"""The folder of a collection in shards, and what may be in it.

    shards.json           what the folder is: {"format": "slosh-shards", "version": 1, ...}; it may be missing
    shards/NAME.slosh     the shards, each an ordinary index in a folder; one is complete when it has this name
    removed.jsonl         sets that are marked as removed (`removals.py`)
    checked.json          shards of which it is known that no two have an id in common (`unique_ids.py`)

A plain folder with indexes in it is such a folder, too.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from ...errors import FormatError, IndexNotFound, InputError, system_error

FORMAT, VERSION = "slosh-shards", 1
ABOUT, SHARDS, SUFFIX = "shards.json", "shards", ".slosh"


class ShardFolder:
    """A folder of shards that exists. `path` is the folder, `root` the one that the shards are in."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path) if isinstance(path, str | os.PathLike) else path
        if not isinstance(given, str):
            raise InputError(f"folder={given!r:.60} is not text", "give a string or a Path", argument="folder")
        self.path = Path(given).absolute()
        if not self.path.exists():
            problem = f"there is no folder {self.path}"
            raise IndexNotFound(problem, "give the folder of shards", errno=errno.ENOENT, location=str(self.path))
        if not self.path.is_dir() or (self.path / "index.db").exists():
            what, remedy = "a file", "give the folder that the shards are in"
            if self.path.is_dir():
                what, remedy = "one index, and no folder of shards", f"open it with slosh.open({str(self.path)!r})"
            raise FormatError(f"{self.path} is {what}", remedy, location=str(self.path))
        self._check_about()
        inner = self.path / SHARDS
        self.root = inner if inner.is_dir() else self.path

    def _check_about(self) -> None:
        about = self.read_json(ABOUT)
        if about is None:
            return
        place = self.path / ABOUT
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise FormatError(f"{place} is not what slosh writes", "restore or remove it", location=str(place))
        if about.get("version") != VERSION:
            found = about.get("version")
            raise FormatError(
                f"{place} has the format version {found!r:.20}; this slosh reads {VERSION}",
                "use a newer slosh",
                location=str(place),
                found=found if isinstance(found, int) else None,
                supported=VERSION,
            )

    def read_json(self, name: str) -> Any:
        """Return the content of a file of the folder, None if it is not there; FormatError if it is no JSON."""
        place = self.path / name
        try:
            return json.loads(place.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            problem = f"{place} is not what slosh writes ({error!s:.80})"
            raise FormatError(problem, "restore or remove it", location=str(place)) from None
        except OSError as error:
            raise system_error(error, str(place)) from None

    def names(self) -> list[str]:
        """Return the names of the shards that are complete, in order."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if self._is_shard(entry))
        except OSError as error:
            raise system_error(error, str(self.root)) from None

    def _is_shard(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or not entry.is_dir():
            return False
        if entry.name.endswith(SUFFIX):
            return True
        drafts = self.root != self.path or entry.name.endswith(".tmp")
        return not drafts and os.path.exists(os.path.join(entry.path, "index.db"))

    def stamp_of(self, name: str) -> tuple[int, ...]:
        """Return numbers that change when another shard takes the place of this one; none if it is not there."""
        try:
            found = os.stat(self.root / name / "index.db")
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def place_of(self, name: str) -> str:
        """Return the path of a shard."""
        return str(self.root / name)
