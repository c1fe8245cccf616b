"""The Oxford buildings as sets of image features: one set for each photo, 55 photos are queries, with a ground truth.

The features come from one file, the ground truth from another. Labels, queries and the rows that should be found are
computed from the ground truth here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..readers.files import Unreadable
from ..sets import Sets
from .dataset import Dataset, GroundTruth, Int64
from .places import Folder, first_file, given_folder
from .prepared import read_prepared, unique_names

PREPARED = "oxford5k_vgg16_8d.npz"
QUERIES = "oxford5k_queries.json"
LISTS = ("good", "ok", "junk")


class Query(NamedTuple):
    """A query of the ground truth, by names: its own, its photo and landmark, and the photos of its three lists."""

    name: str
    image: str
    landmark: str
    good: list[str]
    ok: list[str]
    junk: list[str]


def oxford5k(folder: Folder = None) -> Dataset:
    """The Oxford buildings: 5,063 photos, 55 of them queries, in 11 classes (landmarks).

    The label of a photo is the landmark it is a query of, or else good for, or else ok for; -1 for all others.
    """
    where = given_folder(folder)
    features = first_file([where], [PREPARED])
    truth = first_file([where], [QUERIES])
    if features is None or truth is None:
        raise FileNotFoundError(f"{where}: no Oxford buildings in this folder: looked for {PREPARED} and {QUERIES}")
    sets, arrays = read_prepared(features, ("points", "offsets", "names"))
    names = unique_names(features, arrays["names"])
    return _joined(sets, names, features, read_json(truth), truth)


def read_json(path: Path) -> list[Query]:
    """The queries of the prepared ground truth: a list of objects with name, image, landmark, good, ok and junk."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: not a readable JSON file: {error!s:.200}") from None
    if not isinstance(given, list) or not given:
        raise Unreadable(f"{path}: must be a list of queries, not {given!r:.60}")
    return [_query(path, number, one) for number, one in enumerate(given)]


def _query(path: Path, number: int, given: Any) -> Query:
    words: dict[str, Any] = {field: given.get(field) if isinstance(given, dict) else None for field in Query._fields}
    for field, value in words.items():
        if field in LISTS:
            good, kind = isinstance(value, list) and all(isinstance(x, str) for x in value), "a list of names"
        else:
            good, kind = isinstance(value, str), "a name"
        if not good:
            raise Unreadable(f"{path}: {field!r} of query {number} is {value!r:.60}, not {kind}")
    return Query(**words)


def _joined(sets: Sets, names: tuple[str, ...], features: Path, queries: Sequence[Query], truth: Path) -> Dataset:
    """Features and ground truth as one: photos are found by their names."""
    row = {name: i for i, name in enumerate(names)}
    for query in queries:
        for what, photos in {"the photo": [query.image], **{name: getattr(query, name) for name in LISTS}}.items():
            for photo in photos:
                if photo not in row:
                    raise Unreadable(
                        f"{features}: the photo {photo!r:.100} has no features there, and is {what} of the query "
                        f"{query.name!r:.100} in {truth}"
                    )
    ordered = sorted(queries, key=lambda query: row[query.image])
    images = np.array([row[query.image] for query in ordered])
    if (twice := np.flatnonzero(np.diff(images) == 0)).size:
        one, other = ordered[twice[0]], ordered[twice[0] + 1]
        raise Unreadable(f"{truth}: {one.name!r:.100} and {other.name!r:.100} have the same photo, {one.image!r:.100}")
    classes = tuple(sorted({query.landmark for query in queries}))
    is_query = np.zeros(len(sets), np.bool_)
    is_query[images] = True
    labels = np.full(len(sets), -1, np.int64)
    for listed in (lambda q: q.ok, lambda q: q.good, lambda q: [q.image]):  # the last one stands
        for query in queries:
            labels[[row[photo] for photo in listed(query)]] = classes.index(query.landmark)
    place = np.where(is_query, -1, np.cumsum(~is_query) - 1)  # the row in the database

    def rows(photos: Sequence[str]) -> Int64:
        found: Int64 = place[np.unique(np.array([row[photo] for photo in photos], np.int64))]
        return found[found >= 0]

    relevant = [rows(query.good + query.ok) for query in ordered]
    junk = [np.setdiff1d(rows(query.junk), found) for query, found in zip(ordered, relevant, strict=True)]
    found = GroundTruth(tuple(query.name for query in ordered), relevant, junk)
    return Dataset("oxford5k", sets, labels, is_query, classes, names, f"{features}, {truth}", found)
