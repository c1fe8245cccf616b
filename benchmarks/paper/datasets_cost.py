"""Measure the table of docs/datasets.md: the time to load the paper's data sets, prepared and in their original form.

    python benchmarks/paper/datasets_cost.py

Needs ../shared/data. The originals are written from the prepared files into a temporary folder. Times are CPU seconds,
the best of three, with the files in the page cache.
"""

from __future__ import annotations

import gzip
import shutil
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
from protocol import DATA


def seconds(run: Callable[[], Any]) -> float:
    """Return the CPU seconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def write_idx(data: Dataset, folder: Path, compressed: bool) -> None:
    """Write MNIST's four IDX files."""
    folder.mkdir()
    opened: Callable[..., Any] = gzip.open if compressed else open
    end = ".gz" if compressed else ""
    for part, name in ((data.database, "train"), (data.queries, "t10k")):
        images = np.zeros((len(part), 28, 28), np.uint8)
        column, row = part.sets.points.astype(int).T
        images[np.repeat(np.arange(len(part)), part.sets.sizes), row, column] = part.sets.weights
        with opened(folder / f"{name}-images-idx3-ubyte{end}", "wb") as file:
            file.write(struct.pack(">4B3I", 0, 0, 8, 3, *images.shape) + images.tobytes())
        with opened(folder / f"{name}-labels-idx1-ubyte{end}", "wb") as file:
            file.write(struct.pack(">4BI", 0, 0, 8, 1, len(part)) + part.labels.astype(np.uint8).tobytes())


def write_features(data: Dataset, folder: Path) -> None:
    """Write one file for each photo of Oxford, and copy the ground truth."""
    (folder / "features").mkdir(parents=True)
    shutil.copy(DATA / "oxford5k_queries.json", folder)
    for i, name in enumerate(data.names):
        np.save(folder / "features" / f"{name}.npy", data.sets[i])


def main() -> None:
    """Print the times and sizes of the table."""
    for name in datasets.NAMES:
        data = datasets.load(name, DATA)
        load = seconds(lambda name=name: datasets.load(name, DATA))
        prepare = seconds(lambda data=data: datasets.as_in_paper(data))
        arrays = (data.sets.points, data.sets.offsets, data.sets.weights)
        size = sum(array.nbytes for array in arrays if array is not None)
        print(f"{name}, prepared: load {load:.2g} s, as_in_paper {prepare:.2g} s, {size / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory() as temporary:
        for compressed in (False, True):
            folder = Path(temporary) / f"idx{compressed}"
            write_idx(datasets.mnist(DATA), folder, compressed)
            load = seconds(lambda folder=folder: datasets.mnist(folder))
            print(f"mnist, IDX{' as .gz' * compressed}: {load:.2g} s")
        folder = Path(temporary) / "oxford"
        write_features(datasets.oxford5k(DATA), folder)
        print(f"oxford5k, one file per photo: {seconds(lambda: datasets.oxford5k(folder)):.2g} s")
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
