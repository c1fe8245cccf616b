"""The ground truth of the Oxford buildings: for each query its photo, its landmark, and lists of other photos.

From the text files as they were published, or from the JSON file made of them; both give the same `Query`s. Photos are
known by their names, without the "oxc1_" that the text files put before some.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..readers.files import Unreadable

LISTS = ("good", "ok", "junk")
TEXTS = "<landmark>_<number>_query.txt, _good.txt, _ok.txt and _junk.txt"


class Query(NamedTuple):
    """A query, all by names: its own, its photo and landmark, and the photos of its three lists."""

    name: str
    image: str
    landmark: str
    good: list[str]
    ok: list[str]
    junk: list[str]


def read_json(path: Path) -> list[Query]:
    """The queries of a JSON file: a list of objects with name, image, landmark, good, ok and junk."""
    try:
        given = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: not a readable JSON file: {error!s:.200}") from None
    if not isinstance(given, list) or not given:
        raise Unreadable(f"{path}: must be a list of queries, not {given!r:.60}")
    queries = [_checked(path, number, one) for number, one in enumerate(given)]
    return sorted(queries, key=lambda query: query.landmark)  # as the texts are


def _checked(path: Path, number: int, given: Any) -> Query:
    words: dict[str, Any] = {field: given.get(field) if isinstance(given, dict) else None for field in Query._fields}
    for field, value in words.items():
        if field in LISTS:
            good, kind = isinstance(value, list) and all(isinstance(x, str) for x in value), "a list of names"
        else:
            good, kind = isinstance(value, str), "a name"
        if not good:
            raise Unreadable(f"{path}: {field!r} of query {number} is {value!r:.60}, not {kind}")
    return Query(**words)


def read_texts(folder: Path) -> list[Query]:
    """The queries of the text files in a folder, in the order of landmarks and numbers; none if there are none."""
    found = []
    for path in folder.glob("*_query.txt"):
        if match := re.fullmatch(r"([^.].*)_(\d+)_query\.txt", path.name):
            found.append((match[1], int(match[2]), path))
    return [_from_texts(landmark, path) for landmark, _, path in sorted(found)]


def _from_texts(landmark: str, path: Path) -> Query:
    name = path.name.removesuffix("_query.txt")
    words = _read(path).strip().rsplit(None, 4)  # there may be spaces in the name of a photo
    if len(words) < 5:
        raise Unreadable(f"{path}: must hold the name of the photo and the four numbers of a box")
    lists = [_photos(path.with_name(f"{name}_{which}.txt")) for which in LISTS]
    return Query(name, words[0].removeprefix("oxc1_"), landmark, *lists)


def _photos(path: Path) -> list[str]:
    return [line.strip().removeprefix("oxc1_") for line in _read(path).splitlines() if line.strip()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: this part of the ground truth is not there; a query has {TEXTS}") from None
    except UnicodeDecodeError:
        raise Unreadable(f"{path}: not a text file") from None
