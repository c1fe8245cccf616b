"""The vectors of `make bench-search`: MNIST's 60,000 sets, and about a million made from them by affine maps.

`mnist()` and `million()` return a `Collection`: vectors to search in and query vectors, made by one of the MODELS, and
the sets that they come from. The embedded million is kept as a memory map (up to 4.2 GB) in a cache directory. Without
../shared/data generated rings and bars stand in, and `Collection.data` says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import machine
from slosh import Sets
from slosh.embed import SlicedWasserstein, Whitened

Array = NDArray[Any]
Maps = list[tuple[Array, Array]]
DATA = machine.DATA / "pointcloud_mnist_2d.npz"
CACHE = machine.ROOT / "benchmarks" / "cache"

MODELS: dict[str, Callable[[], Any]] = {
    "s256": lambda: SlicedWasserstein(16, 16),
    "s1024": lambda: SlicedWasserstein(64, 16),
    "w64": lambda: Whitened(SlicedWasserstein(), n_components=64),
    "w128": lambda: Whitened(SlicedWasserstein(), n_components=128),
}
"""Sliced vectors and whitened vectors; the number is their length."""
N_TRAIN, N_MAPS, N_QUERIES = 60_000, 17, 1000
# A map rotates by at most so many radians, scales each axis within a range, shears and shifts; each point is jittered
# with this standard deviation. The unit is the image, [0, 1]^2.
ROTATION, SCALE, SHEAR, SHIFT, JITTER = 0.3, (0.8, 1.2), 0.2, 0.1, 0.01
QUERY_SEED = 1_000_003


@dataclass
class Collection:
    """Vectors to search in, and queries; `batches` yields the sets of the vectors.

    The first `n_queries` queries are timed. In the mapped collections as many follow: the first ones are test sets
    under new maps, the others are test sets under maps of the stored sets.
    """

    data: str
    vectors: Array
    queries: Array
    query_sets: Sets
    n_queries: int
    model: Any
    train: Sets
    maps: Maps | None = None
    seed: int = 0
    rows: Array | None = None  # the rows of a subset of the mapped sets, in increasing order

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def key(self) -> str:
        """A key for what is cached about these vectors; it changes with the embedding and with the data."""
        return f"{len(self)}-{digest(self.vectors[:: max(1, len(self) // 64)])}"

    def batches(self) -> Iterator[Sets]:
        """Yield the sets of the vectors in order, in batches whose points fit into memory."""
        if self.maps is None:
            yield self.train
            return
        n = len(self.train)
        for number, batch in enumerate(mapped(self.train, self.maps, self.seed)):
            if self.rows is None:
                yield batch
            else:
                yield batch.take(self.rows[self.rows // n == number] - number * n)

    def subset(self, n: int) -> Collection:
        """Return n random vectors with the same queries."""
        if n >= len(self):
            return self
        rows = np.sort(np.random.RandomState(0).choice(len(self), n, replace=False))
        if self.maps is None:
            return replace(self, vectors=self.vectors[rows], train=self.train.take(rows))
        return replace(self, vectors=self.vectors[rows], rows=rows)


def digest(array: Array) -> str:
    """Return a short hash of the content of an array."""
    return hashlib.sha1(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def read(n_train: int = N_TRAIN, n_queries: int = N_QUERIES) -> tuple[str, Sets, Sets]:
    """Return the name of the data, the database sets and the query sets, with coordinates divided by 28."""
    if not DATA.exists():
        name = "generated rings and bars (the data sets are missing)"
        return name, rings_and_bars(n_train, 0), rings_and_bars(n_queries, QUERY_SEED)
    with np.load(DATA) as file:
        points, split = file["points"].astype(np.float32) / 28, file["split"]
        sets = Sets(points, file["offsets"].astype(np.int64))
    train, test = (np.flatnonzero(split == side)[:n] for side, n in ((0, n_train), (1, n_queries)))
    return "Point Cloud MNIST", sets.take(train), sets.take(test)


def labels(n_train: int = N_TRAIN) -> NDArray[np.int64]:
    """Return what each of the database sets is: a digit, or (generated) whether it is a bar."""
    if not DATA.exists():
        return np.arange(n_train) % 2
    with np.load(DATA) as file:
        return file["labels"][file["split"] == 0][:n_train].astype(np.int64)


def rings_and_bars(n: int, seed: int) -> Sets:
    """Return alternating rings and bars of 34 to 350 noisy points, which are the sizes of MNIST."""
    random = np.random.RandomState(seed)
    sizes = random.randint(34, 351, n)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    t = random.uniform(0, 1, offsets[-1])
    radius, turn = (np.repeat(random.uniform(*limits, n), sizes) for limits in ((0.2, 0.5), (0, 2 * np.pi)))
    ring = np.stack([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)], axis=1) * radius[:, None]
    bar = (t[:, None] - 0.5) * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    is_ring = np.repeat(np.arange(n) % 2 == 1, sizes)
    points = np.where(is_ring[:, None], ring, bar) + 0.5 + random.normal(scale=0.02, size=(len(t), 2))
    return Sets(points.astype(np.float32), offsets)


def affine_map(random: np.random.RandomState) -> tuple[Array, Array]:
    """Return a random matrix (2, 2) and shift (2,) that scale, shear and rotate about the middle of the image."""
    angle, shear = random.uniform(-ROTATION, ROTATION), random.uniform(-SHEAR, SHEAR)
    scale, shift = random.uniform(*SCALE, size=2), random.uniform(-SHIFT, SHIFT, size=2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return turn @ np.array([[1, shear], [0, 1]]) @ np.diag(scale), 0.5 + shift


def transformed(sets: Sets, matrix: Array, shift: Array, random: np.random.RandomState) -> Sets:
    """Return the sets under one map, or under one map for each point, with jitter."""
    centred = sets.points - np.float32(0.5)
    turned = centred @ matrix.T if matrix.ndim == 2 else np.einsum("nij,nj->ni", matrix, centred)
    return Sets((turned + shift + random.normal(scale=JITTER, size=turned.shape)).astype(np.float32), sets.offsets)


def transformed_each(sets: Sets, maps: Maps, random: np.random.RandomState) -> Sets:
    """Return each set under its own map, with jitter."""
    matrices, shifts = (np.repeat(np.array(part), sets.sizes, axis=0) for part in zip(*maps, strict=True))
    return transformed(sets, matrices, shifts, random)


def mapped(train: Sets, maps: Maps, seed: int) -> Iterator[Sets]:
    """Yield all sets under each of the maps, one map at a time."""
    for number, (matrix, shift) in enumerate(maps):
        yield transformed(train, matrix, shift, np.random.RandomState([seed, number]))


def records(train: Sets, n_maps: int) -> Iterator[tuple[Sets, list[str], list[dict[str, Any]]]]:
    """Yield the training sets under each of n_maps maps (0: as they are) with ids and metadata for an index.

    The metadata are the digit as "label", and a number from 0 to 999 as "part".
    """
    labels = np.arange(len(train)) % 10
    if DATA.exists():
        with np.load(DATA) as file:
            labels = file["labels"][file["split"] == 0][: len(train)]
    random = np.random.RandomState(0)
    maps = [affine_map(random) for _ in range(n_maps)]
    for number, sets in enumerate(mapped(train, maps, 0) if n_maps else [train]):
        ids = [f"{number}/{i:05d}" for i in range(len(sets))]
        yield sets, ids, [{"label": int(label), "part": i % 1000} for i, label in enumerate(labels)]


def mnist(n_train: int = N_TRAIN, n_queries: int = N_QUERIES, model_name: str = "s1024") -> Collection:
    """Return the first n_train of MNIST's 60,000 training sets; the queries are the first test sets."""
    data, train, query_sets = read(n_train, n_queries)
    model = MODELS[model_name]().fit(train)
    vectors, queries = model.transform(train), model.transform(query_sets)
    return Collection(data, vectors, queries, query_sets, len(queries), model, train)


def million(
    n_maps: int = N_MAPS,
    seed: int = 0,
    cache: Path = CACHE,
    n_train: int = N_TRAIN,
    n_queries: int = N_QUERIES,
    model_name: str = "s1024",
) -> Collection:
    """Return MNIST's training sets under n_maps affine maps.

    The queries are n_queries test sets, each under a new map of its own, followed by as many under maps of the stored
    sets.
    """
    data, train, test = read(n_train, n_queries)
    random = np.random.RandomState(seed)
    maps = [affine_map(random) for _ in range(n_maps)]
    random = np.random.RandomState(QUERY_SEED + seed)
    new_maps = transformed_each(test, [affine_map(random) for _ in range(len(test))], random)
    known_maps = transformed_each(test, [maps[i] for i in random.randint(n_maps, size=len(test))], random)
    query_sets = Sets.concat([new_maps, known_maps])

    model = MODELS[model_name]().fit(next(mapped(train, maps, seed)))
    queries = model.transform(query_sets)
    path = cache / f"vectors-{n_maps}x{len(train)}-seed{seed}-{digest(queries[:n_queries])}.npy"
    vectors = cached_vectors(path, model, train, maps, seed)
    name = f"{data} under {n_maps} affine maps"
    return Collection(name, vectors, queries, query_sets, len(test), model, train, maps, seed)


def cached_vectors(path: Path, model: Any, train: Sets, maps: Maps, seed: int) -> Array:
    """Return a memory map of the vectors of all mapped sets; embed them first if the file does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        shape = (len(maps) * len(train), model.vector_length)
        vectors = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape)
        for number, batch in enumerate(mapped(train, maps, seed)):
            vectors[number * len(train) : (number + 1) * len(train)] = model.transform(batch)
        vectors.flush()
        del vectors
        unfinished.rename(path)
    return np.load(path, mmap_mode="r")
