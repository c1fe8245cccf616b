"""Two choices of LadderSearch, measured: when a query stops visiting lists, and how long a prefix is.

Prints recall and rows scanned for several values of `scan_numpy.STRETCH`, for queries like the stored sets and unlike
them; and for each data set the directions that were chosen and the full distances that prove ten neighbours.

    python benchmarks/ladder_study.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from search_data import million
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.native import scan_numpy
from slosh.search import LadderSearch, SetSearch
from slosh.search.calibration import found_part

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def stops(recall: float = 0.95, k: int = 10) -> None:
    """Recall of stored vectors and of other queries, for each factor."""
    data = million()
    index = LadderSearch(n_lists=1024)
    index.add(np.asarray(data.vectors[::4]))
    stored = np.random.default_rng(0).choice(len(index), 1000, replace=False)
    new, known = np.split(index._store.like(data.queries)[0], 2)
    asked = {"stored": (index.vectors(stored), stored), "known maps": (known, None), "other maps": (new, None)}
    index.train()
    truth = {name: index._climb(q, k, None, 0.0, 4 * k, True, skip)[1] for name, (q, skip) in asked.items()}
    print(f"{len(index)} sets, recall@{k} calibrated to {recall}; rows scanned")
    for stretch in (1.0, 1.5, 2.0, 3.0):
        scan_numpy.STRETCH = stretch
        index._calibrations.clear()
        plan = index.calibrate(k, recall)
        line = f"factor {stretch}: reach {plan.reach:4.1f}, depth {plan.depth:3d}"
        for name, (queries, skip) in asked.items():
            _, found, work = index._climb(queries, k, None, plan.reach, plan.depth, False, skip)
            line += f"; {name} {found_part(found, truth[name]).mean():.3f}, {work.scanned.mean():.0f}"
        print(line)
    scan_numpy.STRETCH = 1.5


def lengths(n: int = 4000, n_queries: int = 50) -> None:
    """Directions of the basis, and the distances that a certified search takes, on n sets of each kind."""
    for name, sets in collections(n + n_queries):
        search = SetSearch(SlicedWasserstein())
        search.add(sets[n_queries:])
        stats = search.search(sets[:n_queries], 10, certify=True).stats
        about = search.vector_search.info()
        full = stats.full_distances.mean() if stats.full_distances is not None else 0
        print(f"{name}: {about['dim']} numbers, {about['n_components']} directions, {full:.1f} full distances of {n}")


def collections(n: int) -> list[tuple[str, Sets]]:
    random = np.random.RandomState(0)
    found = []
    for name in ("pointcloud_mnist_2d", "modelnet40_3d", "oxford5k_vgg16_8d"):
        if (path := DATA / f"{name}.npz").exists():
            with np.load(path) as file:
                offsets, points = file["offsets"].astype(np.int64), file["points"]
            sets = Sets(points.astype(np.float32), offsets)
            found.append((name, sets.take(random.permutation(len(sets))[:n])))
    return [*found, ("mixtures in d = 64", mixtures(n, random))]


def mixtures(n: int, random: np.random.RandomState, dim: int = 64) -> Sets:
    """Sets of 20 to 60 elements around three of forty centres, each centre with a spread of its own."""
    centres, spreads = random.normal(size=(40, dim)), random.normal(size=(40, dim, dim)) * 0.15
    sets = []
    for _ in range(n):
        kind = random.randint(40, size=3)[random.randint(3, size=random.randint(20, 61))]
        noise = np.einsum("nij,nj->ni", spreads[kind], random.normal(size=(len(kind), dim)))
        sets.append(centres[kind] + noise)
    return Sets.from_list(sets)


if __name__ == "__main__":
    lengths()
    stops()
