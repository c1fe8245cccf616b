"""Files that clients send, read by the readers of the library: data, never code.

The server names the file itself, after its extension; the name that a client gives is used for ids, metadata and
messages only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .. import readers
from ..data.sets import Sets
from ..engines.base import Records
from ..errors import InputError, ReaderError
from ..index import SetIndex
from ..readers.files import extension
from .bodies import check_sets
from .request_types import Reading
from .settings import Limits

REMEDIES = {
    "max_points": "send at most {0.points:,} in a set",
    "max_expansion": "send a file that takes at most {0.expansion:g} times its size, or split it",
}
"""What a client can do where a caller of the readers would pass a larger limit."""


def checked_suffix(given: Reading) -> str:
    """Return the extension that says what a file is; refuse one that no reader knows."""
    suffix = f".{given.format.lstrip('.').lower()}" if given.format else extension(given.filename)
    if suffix not in readers.FORMATS:
        known = ", ".join(sorted(readers.FORMATS))
        raise InputError(f"{given.filename!r:.100} is of no known format", f"give one of {known}", argument="filename")
    return suffix


def read_sets(file: str, given: Reading, index: SetIndex, limits: Limits) -> Records:
    """Return all sets of an uploaded file, which is moved."""
    suffix, shown = checked_suffix(given), given.filename.replace("\\", "/").rpartition("/")[2] or "file"
    folder = Path(tempfile.mkdtemp(prefix="upload-", dir=os.path.dirname(file)))
    gzipped = ".gz" if suffix == ".idx" and given.filename.lower().endswith(".gz") else ""
    place = folder / f"upload{suffix}{gzipped}"
    try:
        os.rename(file, place)
        found = _read(place, given, index, limits)
    except ReaderError as error:
        error.problem = error.problem.replace(str(place), shown)
        error.location = shown
        if remedy := REMEDIES.get(error.argument or ""):
            error.remedy, error.argument = remedy.format(limits), "body"
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    stem = place.name.removesuffix(suffix)
    ids = [_renamed(name, place.name, stem, shown) for name in found.ids]
    metadata = [{**about, "file": shown} if "file" in about else about for about in found.metadata]
    return Records(found.sets, ids, metadata)


def _read(place: Path, given: Reading, index: SetIndex, limits: Limits) -> Records:
    options: dict[str, Any] = {
        name: value
        for name in ("id_column", "by", "obsm", "n_points", "random_state")
        if (value := getattr(given, name)) is not None
    }
    options["weights"] = False if given.weights == "none" else given.weights
    if given.columns is not None:
        options["columns"] = [name.strip() for name in given.columns.split(",") if name.strip()] or None
    batches = readers.read(
        place,
        format=checked_suffix(given),
        origin=index.origin,
        max_expansion=limits.expansion,
        max_points=limits.points,
        progress=False,
        **options,
    )
    parts: list[Any] = []
    n = 0
    for batch in batches:
        n += len(batch.ids)
        if n > limits.sets:
            raise InputError(f"the file has more than {limits.sets:,} sets", "split it", argument="body")
        parts.append(batch)
    if not parts:
        raise InputError("the file has no sets", argument="body")
    sets = Sets.concat([part.sets for part in parts]) if len(parts) > 1 else parts[0].sets
    if sets.dim != index.dim:
        problem = f"its sets have {sets.dim} features, those of the index have {index.dim}"
        raise InputError(problem, "choose features with columns, or another index", argument="body")
    check_sets(sets, limits, "body")
    return Records(sets, [x for part in parts for x in part.ids], [x for part in parts for x in part.metadata])


def _renamed(name: str, ours: str, stem: str, shown: str) -> str:
    """Return the id of a set that was made of our name for the file, with the name that the client gave it."""
    if name == ours:
        return shown
    return f"{shown}{name[len(stem) :]}" if name.startswith(f"{stem}/") else name
