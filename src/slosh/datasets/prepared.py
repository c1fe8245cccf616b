"""The prepared files: archives of NumPy arrays, all sets of a data set in one.

`points` (P, d) holds the elements of all sets, `offsets` (n + 1) says where each begins. `labels`, `split` (0 database,
1 query) and `names` have one value for each set, `weights` one for each point, `classes` one for each label. Nothing
is unpickled, and what belongs together is compared; an error names the file and the array.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..data.checks import Array
from ..data.sets import Sets
from ..readers.arrays import Member
from ..readers.files import File, Unreadable, reading

ARRAYS = ("points", "offsets", "labels", "split", "names", "weights", "classes")


def read_prepared(path: Path, needed: Sequence[str], dim: int | None = None) -> tuple[Sets, dict[str, Array]]:
    """The sets of a prepared file, with `dim` features, and its other arrays; those in `needed` must be there."""
    file = File(path, path.name, ".npz")
    with reading(file, "archive of NumPy arrays"), zipfile.ZipFile(path) as archive:
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if lost := [name for name in needed if name not in infos]:
            raise Unreadable(
                f"{path}: there is no array {lost[0]!r} in it; it needs {', '.join(needed)}, and has "
                f"{', '.join(sorted(infos)) or 'none'}"[:500]
            )
        arrays = {}
        for name in ARRAYS:
            if name in infos:
                with closing(Member(file, archive, infos[name])) as member:
                    arrays[name] = member.read()
                    member.finish()
    try:
        sets = Sets(arrays.pop("points"), arrays.pop("offsets"), arrays.pop("weights", None))
    except ValueError as error:
        raise Unreadable(f"{path}: {error}") from None
    if dim is not None and sets.dim != dim:
        raise Unreadable(f"{path}: 'points' has {sets.dim} features, and should have {dim}")
    _check(path, len(sets), arrays)
    return sets, arrays


def _check(path: Path, n: int, arrays: dict[str, Array]) -> None:
    """Refuse arrays that do not fit the n sets, or each other."""
    kinds = {"labels": ("iu", "whole numbers"), "split": ("iub", "0 and 1"), "names": ("U", "strings")}
    for name, (kind, words) in kinds.items():
        array = arrays.get(name)
        if array is None:
            continue
        if array.shape != (n,):
            raise Unreadable(
                f"{path}: {name!r} has the shape {array.shape}, and 'offsets' is about {n} sets: not ({n},)"
            )
        if array.dtype.kind not in kind:
            raise Unreadable(f"{path}: {name!r} holds {array.dtype}, not {words}")
    if "classes" in arrays and (arrays["classes"].ndim != 1 or arrays["classes"].dtype.kind != "U"):
        raise Unreadable(f"{path}: 'classes' must be a list of names, one for each label")
    if "split" in arrays and (wrong := np.flatnonzero((arrays["split"] != 0) & (arrays["split"] != 1))).size:
        i = int(wrong[0])
        raise Unreadable(f"{path}: 'split' is {arrays['split'][i]} for set {i}: 0 is the database, 1 a query")


def check_labels(path: Path, labels: Array, n_classes: int) -> NDArray[np.int64]:
    """The labels as int64, from -1 to the number of classes less one."""
    if (wrong := np.flatnonzero((labels < -1) | (labels >= n_classes))).size:
        i = int(wrong[0])
        raise Unreadable(f"{path}: 'labels' is {labels[i]} for set {i}, and there are {n_classes} classes, from 0 on")
    return labels.astype(np.int64)


def unique_names(path: Path, names: Array) -> tuple[str, ...]:
    """The names as strings; refused if two are equal."""
    values, counts = np.unique(names, return_counts=True)
    if (twice := values[counts > 1]).size:
        raise Unreadable(f"{path}: 'names' has {str(twice[0])!r:.100} twice: every set needs a name of its own")
    return tuple(names.tolist())
