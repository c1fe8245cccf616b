"""The table of docs/datasets.md: what it costs to load the paper's data sets, prepared and from their original formats.

    python benchmarks/datasets_cost.py

Needs ../shared/data. The originals are written from the prepared files into a temporary folder. Wall time, median of
three, files in the cache of the system.
"""

from __future__ import annotations

import gzip
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import trimesh

import datasets
from datasets import Dataset

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


def seconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def write_idx(data: Dataset, folder: Path, packed: bool) -> None:
    """MNIST's four files."""
    folder.mkdir()
    opened: Callable[..., Any] = gzip.open if packed else open
    end = ".gz" if packed else ""
    for part, name in ((data.database, "train"), (data.queries, "t10k")):
        images = np.zeros((len(part), 28, 28), np.uint8)
        column, row = part.sets.points.astype(int).T
        images[np.repeat(np.arange(len(part)), part.sets.sizes), row, column] = part.sets.weights
        with opened(folder / f"{name}-images-idx3-ubyte{end}", "wb") as file:
            file.write(struct.pack(">4B3I", 0, 0, 8, 3, *images.shape) + images.tobytes())
        with opened(folder / f"{name}-labels-idx1-ubyte{end}", "wb") as file:
            file.write(struct.pack(">4BI", 0, 0, 8, 1, len(part)) + part.labels.astype(np.uint8).tobytes())


def write_features(data: Dataset, folder: Path) -> None:
    """Oxford's photos, a file each."""
    (folder / "features").mkdir(parents=True)
    shutil.copy(FOLDER / "oxford5k_queries.json", folder)
    for i, name in enumerate(data.names):
        np.save(folder / "features" / f"{name}.npy", data.sets[i])


def main() -> None:
    for name in datasets.NAMES:
        data = datasets.load(name, FOLDER)
        load = seconds(lambda name=name: datasets.load(name, FOLDER))
        prepare = seconds(lambda data=data: datasets.as_in_paper(data))
        arrays = (data.sets.points, data.sets.offsets, data.sets.weights)
        size = sum(array.nbytes for array in arrays if array is not None)
        print(f"{name}, prepared: load {load:.2g} s, as_in_paper {prepare:.2g} s, {size / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory() as temporary:
        for packed in (False, True):
            folder = Path(temporary) / f"idx{packed}"
            write_idx(datasets.mnist(FOLDER), folder, packed)
            print(f"mnist, IDX{' as .gz' * packed}: {seconds(lambda folder=folder: datasets.mnist(folder)):.2g} s")
        folder = Path(temporary) / "oxford"
        write_features(datasets.oxford5k(FOLDER), folder)
        print(f"oxford5k, files of features: {seconds(lambda: datasets.oxford5k(folder)):.2g} s")
        for splits in (3, 5):
            mesh = trimesh.creation.icosphere(splits)
            place = Path(temporary) / f"meshes{splits}"
            for split in ("train", "test"):
                (place / "ball" / split).mkdir(parents=True)
                mesh.export(place / "ball" / split / f"{split}.off")
            spent = seconds(lambda place=place: datasets.modelnet40(place)) / 2
            print(f"modelnet40, a mesh of {len(mesh.faces)} triangles: {1000 * spent:.2g} ms")


if __name__ == "__main__":
    main()
