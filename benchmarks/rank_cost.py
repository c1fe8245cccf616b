"""Measure the cost and the benefit of slosh.rank: the time per pair, and the precision after re-ranking a search.

    .venv/bin/python benchmarks/rank_cost.py [cost] [parts] [quality]

The first table has CPU times of one thread for generated sets of N elements in 3 dimensions, one query and 4 to 50
candidates. The second has those of `part` for 100 candidates of 150 elements, beside a matrix product of NumPy, which
compares no distances, and their largest relative error. The third has precision@10 on Point Cloud MNIST and ModelNet40,
by the vectors alone and after re-ranking the 50 nearest. It takes a few minutes; docs/rank.md quotes it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from machine import DATA
from markdown_tables import markdown_table
from slosh import Sets, rank
from slosh.embed import SlicedWasserstein
from slosh.evaluate import precision_at_k
from slosh.search import ExactSearch

COSTS = ("sliced_wasserstein", "part", "chamfer", "hausdorff", "wasserstein")
NAMES = ("sliced_wasserstein", "chamfer", "hausdorff", "wasserstein")
SIZES = (50, 150, 500, 2000)
CANDIDATES, K = 50, 10


def distances(name: str, query: np.ndarray, candidates: Sets, slices: np.ndarray) -> np.ndarray:
    """Return the distances of a query, computed by one thread; the slices are not drawn again for each query."""
    options = {"slices": slices} if name == "sliced_wasserstein" else {}
    return getattr(rank, name)(query, candidates, n_jobs=1, **options)


def seconds(name: str, query: np.ndarray, candidates: Sets) -> float:
    """Return the CPU seconds per pair, the best of up to three runs."""
    slices = SlicedWasserstein().fit(candidates).slices_
    runs = []
    for _ in range(3):
        start = time.process_time()
        distances(name, query, candidates, slices)
        runs.append(time.process_time() - start)
        if runs[-1] > 2:
            break
    return min(runs) / len(candidates)


def print_cost() -> None:
    """Print the table of microseconds per pair."""
    rng = np.random.default_rng(0)
    rows = []
    for name in COSTS:
        cells = [f"`{name}`"]
        for n in SIZES:
            n_candidates = 50 if n < 500 else 20 if n < 2000 else 4
            sets = Sets.from_list([rng.normal(size=(n, 3)) + rng.normal(size=3) for _ in range(n_candidates + 1)])
            cells.append(f"{1e6 * seconds(name, sets[0], sets[1:]):,.0f}")
        rows.append(cells)
    print(markdown_table(["us per pair", *(f"N = {n}" for n in SIZES)], rows))


def best_ms(work: Callable[[], object], rounds: int = 15) -> float:
    """Return the least CPU time of several runs, in milliseconds."""
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return 1e3 * min(spent)


def print_parts() -> None:
    """Print what the one-sided distances from a set of 150 elements to 100 others take, and how exact they are."""
    rows = []
    for dim in (2, 3, 8, 64, 384):
        rng = np.random.default_rng(0)
        sets = Sets.from_list([(rng.normal(size=(150, dim)) + 1000).astype(np.float32) for _ in range(101)])
        query, others = sets[:1], sets[1:]
        spent = best_ms(lambda query=query, others=others: rank.part(query, others, n_jobs=1))
        product = best_ms(lambda query=query, others=others: query.points @ others.points.T)
        found = rank.part(query, others, n_jobs=1)
        exact = [cdist(query.points.astype(float), y.astype(float)).min(axis=1).mean() for y in others]
        rows.append([str(dim), f"{spent:.1f}", f"{product:.1f}", f"{np.abs(found / exact - 1).max():.0e}"])
    print("\n" + markdown_table(["d", "`part`, ms", "the product alone, ms", "relative error"], rows))


def mnist() -> tuple[Sets, np.ndarray, Sets, np.ndarray]:
    """Return stored sets, their labels, queries and their labels."""
    with np.load(DATA / "pointcloud_mnist_2d.npz") as file:
        sets = Sets(file["points"].astype(np.float32) / 28, file["offsets"])
        labels, split = file["labels"].astype(int), file["split"]
    stored, asked = np.flatnonzero(split == 0)[:20_000], np.flatnonzero(split == 1)[:300]
    return sets.take(stored), labels[stored], sets.take(asked), labels[asked]


def modelnet() -> tuple[Sets, np.ndarray, Sets, np.ndarray]:
    """Return stored sets, their labels, queries and their labels."""
    with np.load(DATA / "modelnet40_3d.npz") as file:
        points = file["points"].reshape(-1, 768, 3)[:, :256].astype(np.float32)
        labels, split = file["labels"].astype(int), file["split"]
    asked = np.random.RandomState(0).permutation(np.flatnonzero(split == 1))[:300]
    stored = np.flatnonzero(split == 0)
    return Sets.from_padded(points[stored]), labels[stored], Sets.from_padded(points[asked]), labels[asked]


def print_quality() -> None:
    """Print the table of precisions."""
    columns = []
    for stored, labels, asked, truth in (mnist(), modelnet()):
        embedding, search = SlicedWasserstein().fit(stored), ExactSearch()
        search.add(embedding.transform(stored))
        _, near = search.search(embedding.transform(asked), CANDIDATES)
        column = [precision_at_k(labels[near[:, :K]], truth)]
        for name in NAMES:
            found = np.empty((len(asked), K), np.int64)
            for i in range(len(asked)):
                order = np.argsort(distances(name, asked[i], stored.take(near[i]), embedding.slices_), kind="stable")
                found[i] = near[i][order[:K]]
            column.append(precision_at_k(labels[found], truth))
        columns.append(column)
    names = ["the vectors alone", *(f"`{name}`" for name in NAMES)]
    rows = [[name, *(f"{p:.3f}" for p in precisions)] for name, *precisions in zip(names, *columns, strict=True)]
    print("\n" + markdown_table([f"precision@{K}", "MNIST, 20,000 sets", "ModelNet40, 9,843 sets of 256 points"], rows))


if __name__ == "__main__":
    with threadpool_limits(1):
        for name, step in (("cost", print_cost), ("parts", print_parts), ("quality", print_quality)):
            if name in sys.argv[1:] or not sys.argv[1:]:
                step()
