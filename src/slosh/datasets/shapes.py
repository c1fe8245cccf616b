"""ModelNet40 as point sets: points sampled evenly over the surface of each object."""

from __future__ import annotations

from pathlib import Path

from .dataset import Dataset
from .places import Folder, first_file, given_folder
from .prepared import check_labels, read_prepared, unique_names

PREPARED = "modelnet40_3d.npz"


def modelnet40(folder: Folder = None, n_points: int = 768, random_state: int = 0) -> Dataset:
    """ModelNet40: 9,843 objects and 2,468 queries, d = 3, in 40 classes; centred, the largest radius is 1."""
    where = given_folder(folder)
    prepared = first_file([where], [PREPARED])
    if prepared is not None:
        return _prepared(prepared)
    raise FileNotFoundError(f"{where}: no ModelNet40 in this folder: looked for {PREPARED}")


def _prepared(path: Path) -> Dataset:
    sets, arrays = read_prepared(path, ("points", "offsets", "labels", "split", "names", "classes"), dim=3)
    classes, names = tuple(arrays["classes"].tolist()), unique_names(path, arrays["names"])
    labels = check_labels(path, arrays["labels"], len(classes))
    return Dataset("modelnet40", sets, labels, arrays["split"] == 1, classes, names, str(path))
