"""Study two choices of LadderSearch: which lists a query visits, and how long a prefix is.

    python benchmarks/ladder_study.py

It prints recall and scanned rows for queries like the stored sets and unlike them; and for each data set the chosen
number of directions and the full distances that prove ten neighbours.
"""

from __future__ import annotations

import numpy as np

import slosh
from machine import DATA
from search_data import million
from slosh import Sets
from slosh.evaluate import recall_at_k
from slosh.search import LadderSearch


def study_stops(recalls: tuple[float, ...] = (0.9, 0.95, 0.99), k: int = 10) -> None:
    """Print the recall of stored vectors and of other queries for each recall that is asked for."""
    data = million()
    search = LadderSearch()
    search.add(np.asarray(data.vectors[::4]))
    search.train()
    stored = np.random.default_rng(0).choice(len(search), 1000, replace=False)
    new, known = np.split(data.queries, 2)
    queries = {"stored": (search.vectors(stored), stored), "known maps": (known, None), "new maps": (new, None)}
    truth = {name: search.search(q, k, recall=1.0, exclude=own).rows for name, (q, own) in queries.items()}
    print(f"{len(search)} sets in {search.info()['n_lists']} lists, recall@{k}; rows scanned")
    for recall in recalls:
        plan = search.calibrate(k, recall)
        line = f"asked for {recall}: reach {plan.reach:4.2f}, depth {plan.depth:3d}"
        for name, (q, own) in queries.items():
            found = search.search(q, k, recall=recall, exclude=own)
            line += f"; {name} {recall_at_k(found.rows, truth[name]):.3f}, {found.stats.scanned.mean():.0f}"
        print(line)


def study_lengths(n: int = 4000, n_queries: int = 50) -> None:
    """Print the directions of the basis, and the distances of a certified search, on n sets of each kind."""
    for name, sets in collections(n + n_queries):
        index = slosh.SetIndex.create(None, sets.dim)
        index.add(sets[n_queries:])
        stats = index.search(sets[:n_queries], 10, certify=True).stats
        about = index.info()
        full = stats.full_distances.mean() if stats.full_distances is not None else 0
        directions = about["search_info"]["n_components"]
        print(f"{name}: {about['vector_length']} numbers, {directions} directions, {full:.1f} full distances of {n}")


def collections(n: int) -> list[tuple[str, Sets]]:
    """Return n random sets of each data set that is there, and generated ones."""
    random = np.random.RandomState(0)
    found = []
    for name in ("pointcloud_mnist_2d", "modelnet40_3d", "oxford5k_vgg16_8d"):
        if (path := DATA / f"{name}.npz").exists():
            with np.load(path) as file:
                sets = Sets(file["points"].astype(np.float32), file["offsets"].astype(np.int64))
            found.append((name, sets.take(random.permutation(len(sets))[:n])))
    return [*found, ("mixtures in d = 64", mixtures(n, random))]


def mixtures(n: int, random: np.random.RandomState, dim: int = 64) -> Sets:
    """Return sets of 20 to 60 elements around three of forty centres, each centre with a covariance of its own."""
    centres, spreads = random.normal(size=(40, dim)), random.normal(size=(40, dim, dim)) * 0.15
    sets = []
    for _ in range(n):
        kind = random.randint(40, size=3)[random.randint(3, size=random.randint(20, 61))]
        noise = np.einsum("nij,nj->ni", spreads[kind], random.normal(size=(len(kind), dim)))
        sets.append(centres[kind] + noise)
    return Sets.from_list(sets)


if __name__ == "__main__":
    study_lengths()
    study_stops()
