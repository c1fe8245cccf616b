"""The vectors of `make bench-search`: MNIST's 60,000 sets, and about a million made of them by affine maps.

`mnist()` and `million()` give a `Collection`: vectors (n, 1024) to search in and query vectors, embedded with 64 slices
of 16 quantiles, and the sets they were made of. The embedded million is kept as a memory map (4.2 GB) in a cache
directory. Where ../shared/data is not there, generated rings and bars stand in, and `Collection.data` says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slosh import Sets
from slosh.embed import SlicedWasserstein

Array = NDArray[Any]
Maps = list[tuple[Array, Array]]
ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "pointcloud_mnist_2d.npz"
CACHE = ROOT / "benchmarks" / "cache"

N_SLICES, N_QUANTILES = 64, 16
N_TRAIN, N_MAPS, N_QUERIES = 60_000, 17, 1000
# A map turns by at most so many radians, scales each axis within a range, shears and shifts; a point is moved by this
# standard deviation. The unit is the image, [0, 1]^2.
ROTATION, SCALE, SHEAR, SHIFT, JITTER = 0.3, (0.8, 1.2), 0.2, 0.1, 0.01
QUERY_SEED = 1_000_003


@dataclass
class Collection:
    """Vectors to search in, and queries; `batches` gives the sets of the vectors.

    The first `n_queries` queries are those that are timed. In the mapped collections more follow: test sets under the
    same maps as the stored sets, while the first ones are under maps that no stored set has gone through.
    """

    data: str
    vectors: Array
    queries: Array
    query_sets: Sets
    n_queries: int
    model: SlicedWasserstein
    train: Sets
    maps: Maps | None = None
    seed: int = 0
    rows: Array | None = None  # of all the mapped sets only these, in increasing order

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def key(self) -> str:
        """Names what is cached about these vectors: another embedding or other data have another key."""
        return f"{len(self)}-{digest(self.vectors[:: max(1, len(self) // 64)])}"

    def batches(self) -> Iterator[Sets]:
        """The sets of the vectors, in their order, so many at a time that their points take little memory."""
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
        """n of the vectors, drawn at random, with the same queries."""
        if n >= len(self):
            return self
        rows = np.sort(np.random.RandomState(0).choice(len(self), n, replace=False))
        if self.maps is None:
            return replace(self, vectors=self.vectors[rows], train=self.train.take(rows))
        return replace(self, vectors=self.vectors[rows], rows=rows)


def digest(*arrays: Array) -> str:
    together = hashlib.sha1()
    for array in arrays:
        together.update(np.ascontiguousarray(array).tobytes())
    return together.hexdigest()[:12]


def read(n_train: int = N_TRAIN, n_queries: int = N_QUERIES) -> tuple[str, Sets, Sets]:
    """What the data is, the sets of the database, and those of the queries. Coordinates are divided by 28."""
    if not DATA.exists():
        name = "generated rings and bars (the data sets are not there)"
        return name, rings_and_bars(n_train, 0), rings_and_bars(n_queries, QUERY_SEED)
    with np.load(DATA) as file:
        points, split = file["points"].astype(np.float32) / 28, file["split"]
        sets = Sets(points, file["offsets"].astype(np.int64))
    train, test = (np.flatnonzero(split == side)[:n] for side, n in ((0, n_train), (1, n_queries)))
    return "Point Cloud MNIST", sets.take(train), sets.take(test)


def rings_and_bars(n: int, seed: int) -> Sets:
    """Sets of 34 to 350 points with noise, every other one a ring, the rest bars: the sizes are MNIST's."""
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
    """A matrix (2, 2) and a shift (2,): scale along the axes, shear, turn, all about the middle of the image."""
    angle, shear = random.uniform(-ROTATION, ROTATION), random.uniform(-SHEAR, SHEAR)
    scale, shift = random.uniform(*SCALE, size=2), random.uniform(-SHIFT, SHIFT, size=2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return turn @ np.array([[1, shear], [0, 1]]) @ np.diag(scale), 0.5 + shift


def moved(sets: Sets, matrix: Array, shift: Array, random: np.random.RandomState) -> Sets:
    """The sets under one map, or under one for each point; every point is jittered."""
    centred = sets.points - np.float32(0.5)
    turned = centred @ matrix.T if matrix.ndim == 2 else np.einsum("nij,nj->ni", matrix, centred)
    return Sets((turned + shift + random.normal(scale=JITTER, size=turned.shape)).astype(np.float32), sets.offsets)


def each_moved(sets: Sets, maps: Maps, random: np.random.RandomState) -> Sets:
    """Each set under a map of its own."""
    matrices, shifts = (np.repeat(np.array(part), sets.sizes, axis=0) for part in zip(*maps, strict=True))
    return moved(sets, matrices, shifts, random)


def mapped(train: Sets, maps: Maps, seed: int) -> Iterator[Sets]:
    """All sets under each of the maps, one map at a time."""
    for number, (matrix, shift) in enumerate(maps):
        yield moved(train, matrix, shift, np.random.RandomState([seed, number]))


def mnist(n_train: int = N_TRAIN, n_queries: int = N_QUERIES) -> Collection:
    """The first n_train of MNIST's 60,000 training sets; the queries are the first test sets."""
    data, train, query_sets = read(n_train, n_queries)
    model = SlicedWasserstein(N_SLICES, N_QUANTILES).fit(train)
    vectors, queries = model.transform(train), model.transform(query_sets)
    return Collection(data, vectors, queries, query_sets, len(queries), model, train)


def million(
    n_maps: int = N_MAPS, seed: int = 0, cache: Path = CACHE, n_train: int = N_TRAIN, n_queries: int = N_QUERIES
) -> Collection:
    """MNIST's training sets under n_maps affine maps.

    The queries are n_queries test sets, each under a new map of its own, and then again as many, each under one of the
    maps of the stored sets.
    """
    data, train, test = read(n_train, n_queries)
    random = np.random.RandomState(seed)
    maps = [affine_map(random) for _ in range(n_maps)]
    random = np.random.RandomState(QUERY_SEED + seed)
    new_maps = each_moved(test, [affine_map(random) for _ in range(len(test))], random)
    known_maps = each_moved(test, [maps[i] for i in random.randint(n_maps, size=len(test))], random)
    query_sets = Sets.concat([new_maps, known_maps])

    model = SlicedWasserstein(N_SLICES, N_QUANTILES).fit(next(mapped(train, maps, seed)))
    queries = model.transform(query_sets)
    path = cache / f"vectors-{n_maps}x{len(train)}-seed{seed}-{digest(queries[:n_queries])}.npy"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        shape = (n_maps * len(train), queries.shape[1])
        vectors = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape)
        for number, batch in enumerate(mapped(train, maps, seed)):
            vectors[number * len(train) : (number + 1) * len(train)] = model.transform(batch)
        vectors.flush()
        del vectors
        unfinished.rename(path)
    name = f"{data} under {n_maps} affine maps"
    vectors = np.load(path, mmap_mode="r")
    return Collection(name, vectors, queries, query_sets, len(test), model, train, maps, seed)
