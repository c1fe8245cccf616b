"""Read the ground truth of the Oxford buildings: for each query its photo, its landmark, and lists of other photos.

The published text files and the JSON file made from them give the same `Query` objects. Photos are identified by their
names, without the prefix "oxc1_" that some text files have.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from .files import UnreadableFile

PHOTO_LISTS = ("good", "ok", "junk")
TEXT_FILES = "<landmark>_<number>_query.txt, _good.txt, _ok.txt and _junk.txt"
PHOTO_PREFIX = "oxc1_"


class Query(NamedTuple):
    """A query: its name, its photo and landmark, and the photos of its three lists."""

    name: str
    image: str
    landmark: str
    good: list[str]
    ok: list[str]
    junk: list[str]


def read_json(path: Path) -> list[Query]:
    """Return the queries of a JSON file: a list of objects with name, image, landmark, good, ok and junk."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path}: not a readable JSON file: {error!s:.200}") from None
    if not isinstance(entries, list) or not entries:
        raise UnreadableFile(f"{path}: must be a list of queries, not {entries!r:.60}")
    queries = [_parse_query(path, number, entry) for number, entry in enumerate(entries)]
    return sorted(queries, key=lambda query: query.landmark)  # the order of the text files


def _parse_query(path: Path, number: int, entry: Any) -> Query:
    values: dict[str, Any] = {field: entry.get(field) if isinstance(entry, dict) else None for field in Query._fields}
    for field, value in values.items():
        if field in PHOTO_LISTS:
            valid, kind = isinstance(value, list) and all(isinstance(x, str) for x in value), "a list of names"
        else:
            valid, kind = isinstance(value, str), "a name"
        if not valid:
            raise UnreadableFile(f"{path}: {field!r} of query {number} is {value!r:.60}, not {kind}")
    return Query(**values)


def read_texts(folder: Path) -> list[Query]:
    """Return the queries of the text files in a folder, ordered by landmark and number; an empty list without any."""
    found = []
    for path in folder.glob("*_query.txt"):
        if match := re.fullmatch(r"([^.].*)_(\d+)_query\.txt", path.name):
            found.append((match[1], int(match[2]), path))
    return [_from_texts(landmark, path) for landmark, _, path in sorted(found)]


def _from_texts(landmark: str, path: Path) -> Query:
    name = path.name.removesuffix("_query.txt")
    words = _read_text(path).strip().rsplit(None, 4)  # the name of a photo may contain spaces
    if len(words) < 5:
        raise UnreadableFile(f"{path}: must hold the name of the photo and the four numbers of a box")
    lists = [_photo_names(path.with_name(f"{name}_{field}.txt")) for field in PHOTO_LISTS]
    return Query(name, words[0].removeprefix(PHOTO_PREFIX), landmark, *lists)


def _photo_names(path: Path) -> list[str]:
    return [line.strip().removeprefix(PHOTO_PREFIX) for line in _read_text(path).splitlines() if line.strip()]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: this part of the ground truth is missing; a query has {TEXT_FILES}") from None
    except UnicodeDecodeError:
        raise UnreadableFile(f"{path}: not a text file") from None
