"""The Oxford buildings as sets of image features: one set per photo, 55 photos are queries, with a ground truth.

Features and ground truth come from different files. Labels, queries and relevant rows are derived from the ground
truth, whatever the features are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from slosh import Sets

from .dataset import Dataset, GroundTruth, Int64
from .files import Folder, UnreadableFile, data_folder, first_file, read_prepared, reading, unique_names
from .ground_truth import PHOTO_LISTS, TEXT_FILES, Query, read_json, read_texts

PREPARED_FILE = "oxford5k_vgg16_8d.npz"
FEATURE_FOLDER = "features"
QUERY_FILE = "oxford5k_queries.json"
TRUTH_FOLDER = "gt_files_170407"


def oxford5k(folder: Folder = None) -> Dataset:
    """Load the Oxford buildings: 5,063 photos, 55 of them queries, in 11 classes (landmarks), and the ground truth.

    The label of a photo is the landmark that it is a query of, or else is good for, or else ok for; all others have
    -1. The database holds every photo that is not a query, so `truth` leaves out the photos of other queries.

    Parameters
    ----------
    folder : holds the features and the ground truth. Features: your own in features/, one <photo>.npy of shape (n, d)
        for each photo; or, without that folder, oxford5k_vgg16_8d.npz. Ground truth: oxford5k_queries.json; or the text
        files <landmark>_<number>_query.txt, _good.txt, _ok.txt and _junk.txt, directly or in gt_files_170407. None: the
        folder in the environment variable SLOSH_DATA.
    """
    root = data_folder(folder)
    own = sorted(path for path in (root / FEATURE_FOLDER).glob("*.npy") if not path.name.startswith("."))
    if not own and (root / FEATURE_FOLDER).is_dir():
        raise FileNotFoundError(
            f"{root / FEATURE_FOLDER}: no .npy in this folder: put <photo>.npy there for each photo, or remove the "
            f"folder to use {PREPARED_FILE}"
        )
    features = root / FEATURE_FOLDER if own else first_file(root, [PREPARED_FILE])
    queries, truth_path = _find_queries(root)
    if features is None or truth_path is None:
        present = f"; only {features or truth_path} is there" if features or truth_path else ""
        raise FileNotFoundError(
            f"{root}: no Oxford buildings in this folder: looked for features, {FEATURE_FOLDER}/<photo>.npy or "
            f"{PREPARED_FILE}; and for the ground truth, {QUERY_FILE} or {TEXT_FILES}, here or in "
            f"{TRUTH_FOLDER}{present}"
        )
    sets, names = _own_features(own) if own else _prepared(features)
    _check_queries(queries, truth_path, set(names), features)
    return _join(sets, names, queries, f"{features}, {truth_path}")


def _find_queries(root: Path) -> tuple[list[Query], Path | None]:
    """Return the queries, and the file or folder that they were read from."""
    json_file = first_file(root, [QUERY_FILE])
    if json_file is not None:
        return read_json(json_file), json_file
    for place in (root, root / TRUTH_FOLDER):
        if queries := read_texts(place):
            return queries, place
    return [], None


def _prepared(path: Path) -> tuple[Sets, tuple[str, ...]]:
    sets, arrays = read_prepared(path, ("points", "offsets", "names"))
    return sets, unique_names(path, arrays["names"])


def _own_features(paths: list[Path]) -> tuple[Sets, tuple[str, ...]]:
    photos = []
    for path in tqdm(paths, unit="photo", delay=2, disable=None, leave=False, desc="oxford5k"):
        with reading(path, "NumPy array"):
            photo = np.load(path, allow_pickle=False)
        if getattr(photo, "ndim", 0) != 2 or not photo.size:
            raise UnreadableFile(f"{path}: must hold an array of shape (n, d), the features of one photo")
        if photos and photo.shape[1] != photos[0].shape[1]:
            raise UnreadableFile(
                f"{path}: {photo.shape[1]} features, but {paths[0]} has {photos[0].shape[1]}: compute all photos alike"
            )
        photos.append(photo)
    try:
        return Sets.from_list(photos), tuple(path.stem for path in paths)
    except ValueError as error:
        raise UnreadableFile(f"{paths[0].parent}: {error}") from None


def _check_queries(queries: Sequence[Query], truth_path: Path, photos: set[str], features: Path) -> None:
    """Raise if the ground truth contradicts itself, or lists photos without features."""
    seen: dict[str, str] = {}
    for query in queries:
        if query.name in seen.values():
            raise UnreadableFile(f"{truth_path}: two queries have the name {query.name!r:.100}: rename one")
        if query.image in seen:
            both = f"{seen[query.image]!r} and {query.name!r}"
            raise UnreadableFile(f"{truth_path}: {both} have the same photo, {query.image!r}")
        seen[query.image] = query.name
        for listed_as, listed in (("image", [query.image]), *((name, getattr(query, name)) for name in PHOTO_LISTS)):
            if (missing := next((photo for photo in listed if photo not in photos), None)) is not None:
                raise UnreadableFile(
                    f"{features}: no features of the photo {missing!r:.100}, which {truth_path} lists as {listed_as!r} "
                    f"of the query {query.name!r}: compute them, or correct the ground truth"
                )
        if both_ways := sorted({*query.good, *query.ok} & {*query.junk}):
            raise UnreadableFile(
                f"{truth_path}: {both_ways[0]!r} is junk for {query.name!r}, and also good or ok: correct one list"
            )


def _join(sets: Sets, names: tuple[str, ...], queries: Sequence[Query], source: str) -> Dataset:
    row = {name: i for i, name in enumerate(names)}
    ordered = sorted(queries, key=lambda query: row[query.image])
    is_query = np.zeros(len(sets), np.bool_)
    is_query[[row[query.image] for query in queries]] = True
    database_row = np.where(is_query, -1, np.cumsum(~is_query) - 1)

    def database_rows(photos: Sequence[str]) -> Int64:
        rows: Int64 = database_row[np.unique(np.array([row[photo] for photo in photos], np.int64))]
        return rows[rows >= 0]

    classes = tuple(sorted({query.landmark for query in queries}))
    labels = np.full(len(sets), -1, np.int64)
    for field in ("ok", "good", "image"):  # the later ones take precedence
        for query in queries:
            photos = [query.image] if field == "image" else getattr(query, field)
            labels[[row[photo] for photo in photos]] = classes.index(query.landmark)
    truth = GroundTruth(
        tuple(query.name for query in ordered),
        [database_rows(query.good + query.ok) for query in ordered],
        [database_rows(query.junk) for query in ordered],
    )
    return Dataset("oxford5k", sets, labels, is_query, classes, names, source, truth)
