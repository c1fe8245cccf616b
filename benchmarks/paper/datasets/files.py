"""Find and read the files of a data set: the folder, prepared archives, labels and names.

A prepared file is an archive of NumPy arrays that holds all sets of a data set. `points` (P, d) are the elements of all
sets, `offsets` (n + 1) say where each set begins. `labels`, `split` (0 database, 1 query) and `names` have one value
for each set, `weights` one for each point, `classes` one for each label. Nothing is unpickled, and every error names
the file.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slosh import Sets

Array: TypeAlias = NDArray[Any]
Folder: TypeAlias = "str | os.PathLike[str] | None"

FOLDER_VARIABLE = "SLOSH_DATA"
PREPARED_ARRAYS = ("points", "offsets", "labels", "split", "names", "weights", "classes")


class UnreadableFile(ValueError):
    """A file is damaged, incomplete, or not what its name says."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a library raises over a bad file into one error that names it."""
    try:
        yield
    except (UnreadableFile, FileNotFoundError, PermissionError):
        raise
    except (ValueError, KeyError, IndexError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise UnreadableFile(f"{path}: not a readable {what}: {error!s:.300}") from error


def data_folder(folder: Folder) -> Path:
    """Return the given folder, or the one that the environment names, and check that it exists."""
    if folder is None and not os.environ.get(FOLDER_VARIABLE):
        raise ValueError(
            f"no data folder: pass folder=, or set the environment variable {FOLDER_VARIABLE}. Nothing is downloaded; "
            "help(datasets.mnist), modelnet40 and oxford5k list the files that belong there"
        )
    path = Path(os.environ[FOLDER_VARIABLE] if folder is None else folder).expanduser()
    if not path.is_dir():
        place = f"{path} ({FOLDER_VARIABLE})" if folder is None else str(path)
        reason = "this is a file: pass the folder that holds it" if path.exists() else "no such folder"
        raise FileNotFoundError(f"{place}: {reason}")
    return path


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first of these files that exists in the folder, or None."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_prepared(path: Path, required: Sequence[str], dim: int | None = None) -> tuple[Sets, dict[str, Array]]:
    """Return the sets of a prepared file and its other arrays; `dim` is the number of features, None allows any."""
    with reading(path, "archive of NumPy arrays"), np.load(path, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UnreadableFile(f"{path}: a single array, not an archive of arrays")
        if missing := [name for name in required if name not in archive]:
            present = ", ".join(sorted(archive)) or "none"
            raise UnreadableFile(f"{path}: array {missing[0]!r} is missing; the file has {present}"[:500])
        arrays: dict[str, Array] = {}
        for name in PREPARED_ARRAYS:
            if name in archive:
                with reading(path, f"archive of NumPy arrays, {name!r}"):
                    arrays[name] = archive[name]
    try:
        sets = Sets(arrays.pop("points"), arrays.pop("offsets"), arrays.pop("weights", None))
    except ValueError as error:
        raise UnreadableFile(f"{path}: {error}") from None
    if dim is not None and sets.dim != dim:
        raise UnreadableFile(f"{path}: 'points' has {sets.dim} features instead of {dim}")
    _check_arrays(path, len(sets), arrays)
    return sets, arrays


def _check_arrays(path: Path, n: int, arrays: dict[str, Array]) -> None:
    """Raise if the arrays do not fit the n sets, or each other."""
    kinds = {"labels": ("iu", "integers"), "split": ("iub", "0 and 1"), "names": ("U", "strings")}
    for name, (kind, words) in kinds.items():
        array = arrays.get(name)
        if array is None:
            continue
        if array.shape != (n,):
            raise UnreadableFile(f"{path}: {name!r} has shape {array.shape}, but 'offsets' describes {n} sets")
        if array.dtype.kind not in kind:
            raise UnreadableFile(f"{path}: {name!r} holds {array.dtype} instead of {words}")
    if "classes" in arrays and (arrays["classes"].ndim != 1 or arrays["classes"].dtype.kind != "U"):
        raise UnreadableFile(f"{path}: 'classes' must be a list of names, one for each label")
    if "split" in arrays and (wrong := np.flatnonzero((arrays["split"] != 0) & (arrays["split"] != 1))).size:
        i = int(wrong[0])
        raise UnreadableFile(f"{path}: 'split' is {arrays['split'][i]} for set {i}: 0 is the database, 1 a query")


def check_labels(path: Path, labels: Array, n_classes: int) -> NDArray[np.int64]:
    """Return the labels as int64; raise unless they are integers from -1 to `n_classes` - 1."""
    if labels.dtype.kind not in "iu":
        raise UnreadableFile(f"{path}: labels are {labels.dtype}, not integers")
    if (wrong := np.flatnonzero((labels < -1) | (labels >= n_classes))).size:
        i = int(wrong[0])
        raise UnreadableFile(f"{path}: the label of set {i} is {labels[i]}, but there are {n_classes} classes, from 0")
    return labels.astype(np.int64)


def unique_names(path: Path, names: Array) -> tuple[str, ...]:
    """Return the names as strings; raise if one occurs twice."""
    values, counts = np.unique(names, return_counts=True)
    if (repeated := values[counts > 1]).size:
        raise UnreadableFile(f"{path}: 'names' has {str(repeated[0])!r:.100} twice: every set needs its own name")
    return tuple(names.tolist())
