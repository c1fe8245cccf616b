"""The Oxford buildings as sets of image features: one set for each photo, 55 photos are queries, with a ground truth.

The features come from one place, the ground truth from another. Labels, queries and the rows that should be found are
computed from the ground truth, whatever the features are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from ..data.sets import Sets
from ..readers.arrays import read_npy
from ..readers.batches import join
from ..readers.files import File, Options, Piece, Unreadable
from .dataset import Dataset, GroundTruth, Int64
from .places import Folder, first_file, given_folder
from .prepared import read_prepared, unique_names
from .truth import LISTS, TEXTS, Query, read_json, read_texts

PREPARED = "oxford5k_vgg16_8d.npz"
OWN = "features"
QUERIES = "oxford5k_queries.json"
BELOW = "gt_files_170407"


def oxford5k(folder: Folder = None) -> Dataset:
    """The Oxford buildings: 5,063 photos, 55 of them queries, in 11 classes (landmarks), and the ground truth.

    The label of a photo is the landmark that it is a query of, or else is good for, or else ok for; -1 for all others.
    The database is every photo that is no query, so `truth` leaves out photos of other queries.

    Parameters
    ----------
    folder : where the features are, and the ground truth. None: the folder of the environment variable SLOSH_DATA.
        Features: a folder features/ with your own, <photo>.npy of shape (n, d) for each photo; or, if there is none,
        oxford5k_vgg16_8d.npz. Ground truth: oxford5k_queries.json; or the text files <landmark>_<number>_query.txt,
        _good.txt, _ok.txt and _junk.txt, there or in gt_files_170407.
    """
    where = given_folder(folder)
    own = sorted(path for path in (where / OWN).glob("*.npy") if not path.name.startswith("."))
    if not own and (where / OWN).is_dir():
        raise FileNotFoundError(
            f"{where / OWN}: no .npy in this folder: put <photo>.npy there for each photo, or remove the folder if you "
            f"have {PREPARED}"
        )
    features = where / OWN if own else first_file([where], [PREPARED])
    queries, truth = _queries(where)
    if features is None or truth is None:
        there = f"{features} is there, the other is not" if features else f"{truth} is there, the other is not"
        raise FileNotFoundError(
            f"{where}: no Oxford buildings in this folder: looked for features, {OWN}/<photo>.npy or {PREPARED}; and "
            f"for the ground truth, {QUERIES} or {TEXTS}, here or in {BELOW}"
            + (f"; {there}" if features or truth else "")
        )
    sets, names = _own(own) if own else _prepared(features)
    _check(queries, truth, set(names), features)
    return _joined(sets, names, queries, f"{features}, {truth}")


def _queries(where: Path) -> tuple[list[Query], Path | None]:
    """The queries, and where they were found."""
    prepared = first_file([where], [QUERIES])
    if prepared is not None:
        return read_json(prepared), prepared
    for place in (where, where / BELOW):
        if queries := read_texts(place):
            return queries, place
    return [], None


def _prepared(path: Path) -> tuple[Sets, tuple[str, ...]]:
    sets, arrays = read_prepared(path, ("points", "offsets", "names"))
    return sets, unique_names(path, arrays["names"])


def _own(paths: list[Path]) -> tuple[Sets, tuple[str, ...]]:
    """One file a photo."""
    options = Options()
    sets = Sets.concat([batch.sets for batch in join(_photos(paths, options), options, None)])
    return sets, tuple(path.stem for path in paths)


def _photos(paths: list[Path], options: Options) -> Iterator[Piece]:
    dim = None
    for path in tqdm(paths, unit="photo", delay=2, disable=None, leave=False, desc="oxford5k"):
        pieces = list(read_npy(File(path, path.name, ".npy"), options))
        if [piece.ids for piece in pieces] != [[path.name]]:
            raise Unreadable(f"{path}: must be of shape (n, d), the features of one photo")
        d = pieces[0].points.shape[1]
        dim = dim or d
        if d != dim:
            raise Unreadable(f"{path}: {d} features, and {paths[0]} has {dim}: compute those of all photos in one way")
        yield pieces[0]


def _check(queries: Sequence[Query], truth: Path, photos: set[str], features: Path) -> None:
    """Refuse a ground truth that contradicts itself, or is about photos that have no features."""
    seen: dict[str, str] = {}
    for query in queries:
        if query.name in seen.values():
            raise Unreadable(f"{truth}: two queries have the name {query.name!r:.100}: rename one")
        if query.image in seen:
            raise Unreadable(f"{truth}: {seen[query.image]!r} and {query.name!r} have the same photo, {query.image!r}")
        seen[query.image] = query.name
        for which, listed in (("the photo", [query.image]), *((name, getattr(query, name)) for name in LISTS)):
            if (lost := next((photo for photo in listed if photo not in photos), None)) is not None:
                raise Unreadable(
                    f"{features}: no features of the photo {lost!r:.100}, which is {which} of the query {query.name!r} "
                    f"in {truth}: compute them, or correct the ground truth"
                )
        if both := sorted({*query.good, *query.ok} & {*query.junk}):
            raise Unreadable(f"{truth}: {both[0]!r} is junk for {query.name!r}, and good or ok too: correct one list")


def _joined(sets: Sets, names: tuple[str, ...], queries: Sequence[Query], source: str) -> Dataset:
    row = {name: i for i, name in enumerate(names)}
    ordered = sorted(queries, key=lambda query: row[query.image])
    is_query = np.zeros(len(sets), np.bool_)
    is_query[[row[query.image] for query in queries]] = True
    place = np.where(is_query, -1, np.cumsum(~is_query) - 1)  # the row in the database

    def rows(photos: Sequence[str]) -> Int64:
        found: Int64 = place[np.unique(np.array([row[photo] for photo in photos], np.int64))]
        return found[found >= 0]

    classes = tuple(sorted({query.landmark for query in queries}))
    labels = np.full(len(sets), -1, np.int64)
    for which in ("ok", "good", "image"):  # one landmark for each photo: what is said last stands
        for query in queries:
            photos = [query.image] if which == "image" else getattr(query, which)
            labels[[row[photo] for photo in photos]] = classes.index(query.landmark)
    relevant, junk = [rows(query.good + query.ok) for query in ordered], [rows(query.junk) for query in ordered]
    truth = GroundTruth(tuple(query.name for query in ordered), relevant, junk)
    return Dataset("oxford5k", sets, labels, is_query, classes, names, source, truth)
