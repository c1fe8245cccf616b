"""The ledger of a job: what is finished, one line of JSON for each part, so that nothing is done twice.

A job writes its results into a folder, each under a name of its own by renaming a draft, and then a line into the
ledger, `_slosh.jsonl`. A process that is killed between the two does that part again, with the same result. The first
line says what job it is and how it was asked for: the same call goes on where it stopped, and another one is refused.
A line that was torn by a crash is dropped. One process at a time writes; a lock beside it keeps others out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from ..data.atomic import replacing, sync_folder
from ..engines.spec import IndexSpec
from ..errors import DamagedError, FormatError, IndexLocked, InputError, SloshError, StorageError, system_error

LEDGER = "_slosh.jsonl"
SPEC = "_slosh.spec"
"""The specification that a job has learnt or was given. Readers of Parquet folders pass over names that begin so."""
LOCK = "_slosh.lock"
FORMAT, VERSION = "slosh-job", 1


class Ledger:
    """Lines of a job, read when it is opened and appended to as parts are finished.

    entries : the lines but the first, in order.
    """

    def __init__(self, path: Path, header: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        self.path, self.header, self.entries = path, header, entries

    def append(self, entry: dict[str, Any]) -> None:
        """Write a line, durably."""
        try:
            with open(self.path, "ab") as stream:
                stream.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise system_error(error, str(self.path)) from None
        self.entries.append(entry)

    def begin_anew(self) -> None:
        """Drop all lines but the first: nothing of what they say is there any more."""
        with replacing(self.path) as stream:
            stream.write(json.dumps(self.header, ensure_ascii=False).encode() + b"\n")
        self.entries.clear()


@contextmanager
def open_ledger(path: Path, job: str, settings: Mapping[str, Any]) -> Iterator[Ledger]:
    """Open the ledger of a job, or begin one; no other process may do so until the block ends.

    `settings` are what decides about the results. If it was begun with others, it is refused (InputError).
    """
    lock = FileLock(path.with_name(LOCK if path.name == LEDGER else f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        problem, remedy = f"another process runs the job of {path}", "wait until it is done, or stop it"
        raise IndexLocked(problem, remedy, location=str(path)) from None
    except OSError as error:
        raise system_error(error, str(path.parent)) from None
    try:
        yield _read(
            path, {"format": FORMAT, "version": VERSION, "job": job, "settings": json.loads(json.dumps(settings))}
        )
    finally:
        lock.release()


def _read(path: Path, header: dict[str, Any]) -> Ledger:
    if not path.exists():
        with replacing(path) as stream:
            stream.write(json.dumps(header, ensure_ascii=False).encode() + b"\n")
        return Ledger(path, header, [])
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        first, *entries = [json.loads(line) for line in whole.splitlines()]
        good = isinstance(first, dict) and all(isinstance(entry, dict) for entry in entries)
    except ValueError:
        good = False
    if not good:
        remedy = "begin again in another folder, or remove the ledger and all that the job has written"
        raise DamagedError(f"{path} is damaged, or was not written by slosh", remedy, location=str(path))
    if first.get("format") != FORMAT or first.get("version") != VERSION:
        problem = f"{path} is the ledger of another version of slosh"
        raise FormatError(
            problem,
            "use that version, or begin in another folder",
            location=str(path),
            found=first.get("version"),
            supported=VERSION,
        )
    _check_settings(path, first, header)
    if len(whole) < len(content):
        with open(path, "rb+") as stream:
            stream.truncate(len(whole))
            os.fsync(stream.fileno())
    return Ledger(path, first, entries)


def _check_settings(path: Path, first: dict[str, Any], header: dict[str, Any]) -> None:
    before, now = first.get("settings", {}), header["settings"]
    if first.get("job") != header["job"]:
        problem = f"{path.parent} holds what the job {first.get('job')!r} has written, not {header['job']!r}"
        raise InputError(problem, "give another folder", argument="target")
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            problem = (
                f"the job in {path.parent} was begun with {name}={before.get(name)!r:.80}, not {now.get(name)!r:.80}"
            )
            raise InputError(problem, "ask for the same, or give another folder", argument=name)


def finished_entries(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Return the lines of what is done, by the name of the part, without those that were dropped later."""
    found: dict[str, dict[str, Any]] = {}
    for entry in ledger.entries:
        if "done" in entry:
            found[entry["done"]] = entry
        elif "dropped" in entry:
            found.pop(entry["dropped"], None)
    return found


def check_target(target: object) -> None:
    """Refuse what is not the path of a folder."""
    if not isinstance(target, str | os.PathLike) or "://" in str(os.fspath(target)):
        raise InputError(f"target={target!r:.80}", "give the path of a folder", argument="target")


def job_folder(target: str | os.PathLike[str]) -> Path:
    """Return the folder that a job writes to, which is made; one that holds other things is refused."""
    check_target(target)
    folder = Path(target).absolute()
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{folder} is a file", "give the path of a folder", location=str(folder))
    if folder.is_dir() and not (folder / LEDGER).exists():
        others = [name for name in os.listdir(folder) if name != LOCK and not name.endswith(".tmp")]
        if others:
            problem = f"{folder} holds other things ({others[0]!r:.60}), and no ledger of a job"
            raise InputError(problem, "give a new folder, or an empty one", argument="target")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise system_error(error, str(folder)) from None
    return folder


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream whose content becomes the file at `path`, as `replacing` does; an error of the system names it."""
    try:
        with replacing(path, hidden=True) as stream:
            yield stream
    except OSError as error:
        if isinstance(error, SloshError):
            raise
        raise system_error(error, str(error.filename or path)) from None


def remove_drafts(folder: Path) -> None:
    """Remove what processes that were killed have left behind; the lock of the job must be held."""
    for name in os.listdir(folder):
        if name.endswith(".tmp"):
            with suppress(OSError):
                (folder / name).unlink()


def keep_spec(folder: Path, spec: IndexSpec) -> IndexSpec:
    """Store a specification beside the ledger."""
    with replacing(folder / SPEC) as stream:
        stream.write(spec.pack())
    sync_folder(folder)
    return spec


def kept_spec(folder: Path) -> IndexSpec | None:
    """Return the specification that a job began with; None if it has none yet."""
    path = folder / SPEC
    return IndexSpec.unpack(path.read_bytes(), str(path)) if path.exists() else None
