"""Sets that are marked as removed: an append-only file in the folder of shards, which every reader follows.

A shard is never changed. A removal appends a line, which names the shard, its newest commit, and the ids that are
removed from it: so a later shard may bring an id again, and another shard of the same name is noticed. A line is a
checksum and JSON; the first line says what the file is. A *mark* is a number of bytes: what stands before it is what a
view of the collection leaves out. A line that a crash has torn is the last one: readers stop before it, and the next
removal writes over it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ...data.atomic import check_plain_file, sync_folder
from ...errors import DamagedError, FormatError, IndexLocked, system_error

NAME, LOCK = "removed.jsonl", "removed.lock"
HEADER = {"format": "slosh-removed", "version": 1}
LOCK_SECONDS = 60
"""How long a removal waits for another one, which takes thousandths of a second."""


class Removed(NamedTuple):
    """Ids that are removed, by shard, the mark up to which they were read, and the commits that shards had then."""

    ids: dict[str, list[str]]
    mark: int
    commits: dict[str, set[str]]


class Removals:
    """The file of removals of a folder; it may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._lock = FileLock(folder / LOCK, thread_local=False)

    def read(self, first: int = 0, upto: int | None = None) -> Removed:
        """Return what was removed between two marks; without `upto`, up to the last line that is whole."""
        content, ids, commits = self._content(first, upto), dict[str, list[str]](), dict[str, set[str]]()
        at = 0
        while at < len(content):
            end = content.find(b"\n", at) + 1
            line = _parsed(content[at:end]) if end else None
            if line is None:
                if upto is not None or content.find(b"\n", end or len(content)) >= 0:
                    raise self._damaged(first + at)
                break  # torn, or being written
            if first + at == 0:
                self._check_header(line)
            else:
                try:
                    ids.setdefault(line["shard"], []).extend(line["ids"])
                    if line.get("commit"):  # older lines have none
                        commits.setdefault(line["shard"], set()).add(line["commit"])
                except (KeyError, TypeError):
                    raise self._damaged(first + at) from None
            at = end
        if upto is not None and first + at != upto:
            raise self._damaged(first + at)
        return Removed(ids, first + at, commits)

    def _content(self, first: int, upto: int | None) -> bytes:
        check_plain_file(self.path)
        try:
            with open(self.path, "rb") as stream:
                stream.seek(first)
                return stream.read(-1 if upto is None else upto - first)
        except FileNotFoundError:
            if first or upto:
                raise self._damaged(0) from None
            return b""
        except OSError as error:
            raise system_error(error, str(self.path)) from None

    def append(self, removed: Mapping[str, Sequence[str]], commits: Mapping[str, str] | None = None) -> None:
        """Mark sets as removed, by shard, whose newest commits are given; when it returns that is on disk."""
        try:
            with self._lock.acquire(timeout=LOCK_SECONDS):
                end = self.read().mark
                lines = [] if end else [HEADER]
                lines += [
                    {"shard": shard, "commit": (commits or {}).get(shard, ""), "ids": list(ids)}
                    for shard, ids in removed.items()
                    if len(ids)
                ]
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
                with os.fdopen(handle, "r+b") as stream:
                    stream.truncate(end)
                    stream.seek(end)
                    stream.write(b"".join(map(_line, lines)))
                    stream.flush()
                    os.fsync(stream.fileno())
                sync_folder(self.path.parent)
        except Timeout:
            problem = f"another process has been marking removals in {self.path.parent} for {LOCK_SECONDS} s"
            raise IndexLocked(problem, "try again", location=str(self.path)) from None
        except OSError as error:
            if isinstance(error, IndexLocked):
                raise
            raise system_error(error, str(self.path)) from None

    def _check_header(self, line: Any) -> None:
        if not isinstance(line, dict) or line.get("format") != HEADER["format"]:
            raise FormatError(f"{self.path} is not what slosh writes", "restore it", location=str(self.path))
        if line.get("version") != HEADER["version"]:
            problem = f"{self.path} has the format version {line.get('version')!r:.20}"
            raise FormatError(problem, "use a newer slosh", location=str(self.path))

    def _damaged(self, at: int) -> DamagedError:
        problem = f"{self.path}: the line at byte {at} is not what was written"
        return DamagedError(problem, "restore it from a copy", location=str(self.path))


def _line(content: Any) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> Any:
    """Return the content of a line, None if it is not what `_line` made."""
    sum_, _, text = line.rstrip(b"\n").partition(b" ")
    if b"%08x" % zlib.crc32(text) != sum_:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
