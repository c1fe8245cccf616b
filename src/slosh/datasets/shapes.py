"""ModelNet40 as point sets: points sampled evenly over the surface of each object, centred, the largest radius 1.

From the prepared file, or from the meshes. The points of a mesh depend on the seed, on its name and on its triangles,
and on nothing else: the order and number of the other files do not matter.
"""

from __future__ import annotations

import os
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ..data.checks import Array, checked_count, checked_seed
from ..data.sets import Sets
from ..errors import user_level
from ..readers.files import File, Unreadable
from ..readers.meshes import load_mesh, sample_surface
from .dataset import Dataset
from .places import Folder, first_file, given_folder
from .prepared import check_labels, read_prepared, unique_names

PREPARED = "modelnet40_3d.npz"
BELOW = "ModelNet40"
SPLITS = ("train", "test")
N_POINTS = 768


class Mesh(NamedTuple):
    """A file <kind>/<split>/<name>.off."""

    split: str
    kind: str
    name: str
    path: Path


def modelnet40(folder: Folder = None, n_points: int | None = None, random_state: int = 0) -> Dataset:
    """ModelNet40: 9,843 objects and 2,468 queries of 768 points, d = 3, in 40 classes.

    The points lie evenly over the surface, in random order: to have n of them take the first n. Each object is centred
    at the mean of its points and divided by its largest radius; in the prepared file it is so only about. A mesh
    without area, or without faces, gives points drawn from its vertices, and a warning.

    Parameters
    ----------
    folder : where modelnet40_3d.npz is; or the meshes, <class>/train/*.off and <class>/test/*.off, there or in
        ModelNet40. None: the folder of the environment variable SLOSH_DATA.
    n_points : of each object; of the prepared file the first are taken. None: all that the prepared file has, which
        are 768; 768 of a mesh.
    random_state : the seed of the sampling, 0 to 2**32 - 1; the prepared file was sampled before.
    """
    count = None if n_points is None else checked_count("n_points", n_points)
    seed = checked_seed(random_state)
    where = given_folder(folder)
    prepared = first_file([where], [PREPARED])
    if prepared is not None:
        return _prepared(prepared, count)
    for root in (where, where / BELOW):
        if meshes := _meshes(root):
            return _sampled(root, meshes, count or N_POINTS, seed)
    raise FileNotFoundError(
        f"{where}: no ModelNet40 in this folder: looked for {PREPARED}; or for <class>/train/*.off and "
        f"<class>/test/*.off, here and in {BELOW}"
    )


def _prepared(path: Path, n_points: int | None) -> Dataset:
    sets, arrays = read_prepared(path, ("points", "offsets", "labels", "split", "names", "classes"), dim=3)
    classes, names = tuple(arrays["classes"].tolist()), unique_names(path, arrays["names"])
    labels = check_labels(path, arrays["labels"], len(classes))
    if n_points is not None:
        if (few := np.flatnonzero(sets.sizes < n_points)).size:
            i, has = int(few[0]), f"{sets.sizes[few[0]]} points"
            raise ValueError(f"{path}: {names[i]} has {has}, fewer than n_points={n_points}: ask for less")
        kept = sets.offsets[:-1, None] + np.arange(n_points)
        sets = Sets(sets.points[kept.ravel()], np.arange(len(sets) + 1) * n_points)
    elif sets.weights is not None:  # objects have none
        sets = Sets(sets.points, sets.offsets)
    return Dataset("modelnet40", sets, labels, arrays["split"] == 1, classes, names, str(path))


def _meshes(root: Path) -> list[Mesh]:
    """All meshes below a folder: those to train first, classes and names in order."""
    found = []
    for split in SPLITS:
        for folder in sorted(path for path in root.glob(f"*/{split}") if path.is_dir()):
            files = sorted(
                path for path in folder.iterdir() if path.suffix.lower() == ".off" and not path.name.startswith(".")
            )
            found += [Mesh(split, folder.parent.name, path.stem, path) for path in files]
    return found


def _sampled(root: Path, meshes: list[Mesh], n_points: int, random_state: int) -> Dataset:
    paths: dict[str, Path] = {}
    for mesh in meshes:
        if mesh.name in paths:
            raise Unreadable(f"{paths[mesh.name]} and {mesh.path} have the same name: rename one, names are ids")
        paths[mesh.name] = mesh.path
    points = np.empty((len(meshes), n_points, 3), np.float32)
    progress = tqdm(meshes, unit="mesh", delay=2, disable=None, leave=False, desc="modelnet40")
    for out, mesh in zip(points, progress, strict=True):
        out[:] = _in_ball(_points(mesh, n_points, random_state))
    classes = sorted({mesh.kind for mesh in meshes})
    number = {kind: i for i, kind in enumerate(classes)}
    labels = np.array([number[mesh.kind] for mesh in meshes])
    is_query = np.array([mesh.split == "test" for mesh in meshes])
    source = f"{len(meshes)} meshes in {root}"
    return Dataset("modelnet40", Sets.from_padded(points), labels, is_query, tuple(classes), tuple(paths), source)


def _points(mesh: Mesh, n_points: int, random_state: int) -> Array:
    """(n_points, 3) of the surface of a mesh, drawn for its name."""
    file = File(mesh.path, mesh.path.name, ".off")
    vertices, faces = load_mesh(file)
    vertices = np.ldexp(vertices, -np.frexp(np.abs(vertices).max())[1])  # about 1, so that no area is rounded to zero
    random = np.random.RandomState(np.array([0x510514, random_state, zlib.crc32(os.fsencode(mesh.name))], np.uint32))
    points = sample_surface(vertices[faces], n_points, random) if len(faces) else None
    if points is not None:
        return points
    said = f"{file}: the mesh has no area, so its points are drawn from its vertices"
    warnings.warn(said, UserWarning, stacklevel=user_level())
    chosen: Array = vertices[random.randint(len(vertices), size=n_points)]
    return chosen


def _in_ball(points: Array) -> Array:
    """Less their mean, and divided by the largest distance from it; what is one point stays at zero."""
    centred: Array = points - points.mean(axis=0)
    radius = np.linalg.norm(centred, axis=1).max()
    return centred / radius if radius > 0 else centred
