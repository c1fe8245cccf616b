"""ModelNet40 as point sets: points sampled uniformly over the surface of each object, centred, with largest radius 1.

They come from the prepared file, or from the meshes. The points of a mesh depend only on the seed, on its name and on
its triangles, not on the order or number of the other files.
"""

from __future__ import annotations

import io
import os
import re
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from slosh import Sets

from .dataset import Dataset
from .files import (
    Array,
    Folder,
    UnreadableFile,
    check_labels,
    data_folder,
    first_file,
    read_prepared,
    reading,
    unique_names,
)

PREPARED_FILE = "modelnet40_3d.npz"
MESH_FOLDER = "ModelNet40"
SPLITS = ("train", "test")
DEFAULT_N_POINTS = 768
SEED_STREAM = 0x510514
"""The first word of every seed, so that these draws differ from others with the same seed."""


class Mesh(NamedTuple):
    """A file <kind>/<split>/<name>.off."""

    split: str
    kind: str
    name: str
    path: Path


def modelnet40(folder: Folder = None, n_points: int | None = None, random_state: int = 0) -> Dataset:
    """Load ModelNet40: 9,843 objects and 2,468 queries of 768 points, d = 3, in 40 classes.

    The points of an object are in random order, so the first n of them are a sample of n. Each object is centred at
    the mean of its points and divided by its largest radius; in the prepared file this holds only approximately. A mesh
    without faces or without area gives points drawn from its vertices, and a warning.

    Parameters
    ----------
    folder : holds modelnet40_3d.npz; or the meshes, <class>/train/*.off and <class>/test/*.off, directly or in
        ModelNet40. None: the folder in the environment variable SLOSH_DATA.
    n_points : points of each object: the first ones of a prepared object, or that many samples of a mesh. None: all
        points of the prepared file, or 768 of a mesh.
    random_state : seed of the sampling, 0 to 2**32 - 1. The prepared file does not depend on it.
    """
    if n_points is not None and (isinstance(n_points, bool) or not isinstance(n_points, int) or n_points < 1):
        raise ValueError(f"n_points={n_points!r} must be an integer, 1 or more")
    seed = checked_seed(random_state)
    root = data_folder(folder)
    prepared = first_file(root, [PREPARED_FILE])
    if prepared is not None:
        return _prepared(prepared, n_points)
    for place in (root, root / MESH_FOLDER):
        if meshes := _meshes(place):
            return _sampled(place, meshes, n_points or DEFAULT_N_POINTS, seed)
    raise FileNotFoundError(
        f"{root}: no ModelNet40 in this folder: looked for {PREPARED_FILE}; or for <class>/train/*.off and "
        f"<class>/test/*.off, here and in {MESH_FOLDER}"
    )


def checked_seed(random_state: object) -> int:
    """Return the seed; raise unless it is an integer from 0 to 2**32 - 1."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer) or random_state >> 32:
        raise ValueError(f"random_state={random_state!r:.80} must be an integer from 0 to 2**32 - 1")
    return int(random_state)


def _prepared(path: Path, n_points: int | None) -> Dataset:
    sets, arrays = read_prepared(path, ("points", "offsets", "labels", "split", "names", "classes"), dim=3)
    classes, names = tuple(arrays["classes"].tolist()), unique_names(path, arrays["names"])
    labels = check_labels(path, arrays["labels"], len(classes))
    if n_points is None:
        sets = Sets(sets.points, sets.offsets)  # objects have no weights
    else:
        if (small := np.flatnonzero(sets.sizes < n_points)).size:
            i = int(small[0])
            raise ValueError(f"{path}: {names[i]} has {sets.sizes[i]} points, fewer than n_points={n_points}")
        kept = sets.offsets[:-1, None] + np.arange(n_points)
        sets = Sets(sets.points[kept.ravel()], np.arange(len(sets) + 1) * n_points)
    return Dataset("modelnet40", sets, labels, arrays["split"] == 1, classes, names, str(path))


def _meshes(root: Path) -> list[Mesh]:
    """Return all meshes below a folder: the training split first, then by class and name."""
    return [
        Mesh(split, folder.parent.name, path.stem, path)
        for split in SPLITS
        for folder in sorted(root.glob(f"*/{split}"))
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix.lower() == ".off" and not path.name.startswith(".")
    ]


def _sampled(root: Path, meshes: list[Mesh], n_points: int, seed: int) -> Dataset:
    paths: dict[str, Path] = {}
    for mesh in meshes:
        if mesh.name in paths:
            raise UnreadableFile(f"{paths[mesh.name]} and {mesh.path} have the same name: rename one, names are ids")
        paths[mesh.name] = mesh.path
    points = np.empty((len(meshes), n_points, 3), np.float32)
    progress = tqdm(meshes, unit="mesh", delay=2, disable=None, leave=False, desc="modelnet40")
    for out, mesh in zip(points, progress, strict=True):
        out[:] = _unit_ball(_points(mesh, n_points, seed))
    classes = sorted({mesh.kind for mesh in meshes})
    labels = np.array([classes.index(mesh.kind) for mesh in meshes])
    is_query = np.array([mesh.split == "test" for mesh in meshes])
    source = f"{len(meshes)} meshes in {root}"
    return Dataset("modelnet40", Sets.from_padded(points), labels, is_query, tuple(classes), tuple(paths), source)


def _points(mesh: Mesh, n_points: int, seed: int) -> Array:
    """Return (n_points, 3) points of the surface of a mesh; the draw depends on its name."""
    vertices, faces = read_off(mesh.path)
    vertices = np.ldexp(vertices, -np.frexp(np.abs(vertices).max())[1])  # about 1, so that no area underflows
    stream = np.array([SEED_STREAM, seed, zlib.crc32(os.fsencode(mesh.name))], np.uint32)
    random = np.random.RandomState(stream)
    points = _sample_surface(vertices[faces], n_points, random) if len(faces) else None
    if points is not None:
        return points
    warnings.warn(
        f"{mesh.path}: the mesh has no area, so its points are drawn from its vertices", UserWarning, stacklevel=4
    )
    chosen: Array = vertices[random.randint(len(vertices), size=n_points)]
    return chosen


def read_off(path: Path) -> tuple[Array, Array]:
    """Return the vertices (n, 3) and triangles (m, 3) of an OFF file; raise if it holds fewer than its header says."""
    import trimesh  # the prepared file needs none

    with reading(path, "OFF mesh"):
        content = path.read_bytes()
        lines = [words for line in content.splitlines() if (words := line.partition(b"#")[0].strip())]
        counts = re.match(rb"[A-Z]*OFF\s*(\d+)\s+(\d+)", b" ".join(lines[:2]))
        if counts is None:
            raise ValueError("it has no OFF header with the numbers of vertices and faces")
        n_vertices, n_faces = map(int, counts.groups())
        n_lines = len(lines) - (1 if re.match(rb"[A-Z]*OFF\s*\d", lines[0]) else 2)
        if n_lines != n_vertices + n_faces:
            raise ValueError(f"claims {n_vertices} vertices and {n_faces} faces, and has {n_lines} lines")
        loaded = trimesh.load(io.BytesIO(content), file_type="off", process=False)
        vertices = np.asarray(loaded.vertices, np.float64).reshape(-1, 3)
        faces = np.asarray(getattr(loaded, "faces", ()), np.int64).reshape(-1, 3)
        if not len(vertices):
            raise ValueError("it has no vertices")
    if (wrong := np.flatnonzero(~np.isfinite(vertices.astype(np.float32)).all(axis=1))).size:
        raise UnreadableFile(f"{path}: vertex {wrong[0]} is {vertices[wrong[0]].tolist()}: coordinates must be finite")
    return vertices, faces


def _sample_surface(triangles: Array, count: int, random: np.random.RandomState) -> Array | None:
    """Return (count, 3) points uniformly distributed over (m, 3, 3) triangles, or None if they have no area."""
    first, second = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    areas = np.cumsum(np.linalg.norm(np.cross(first, second), axis=1))
    if not (np.isfinite(areas[-1]) and areas[-1] > 0):
        return None
    number, u, v = random.random_sample((3, count))
    chosen = np.searchsorted(areas, number * areas[-1], side="right").clip(max=len(areas) - 1)
    outside = u + v > 1  # fold the other half of the parallelogram back
    u[outside], v[outside] = 1 - u[outside], 1 - v[outside]
    return np.asarray(triangles[chosen, 0] + u[:, None] * first[chosen] + v[:, None] * second[chosen])


def _unit_ball(points: Array) -> Array:
    """Centre the points at their mean and divide by the largest radius; a single place stays at zero."""
    centred: Array = points - points.mean(axis=0)
    radius = np.linalg.norm(centred, axis=1).max()
    return centred / radius if radius > 0 else centred
