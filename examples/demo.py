"""The main job from end to end: sets in, vectors out, nearest sets, how sure that is. Run with `make demo`.

Uses Point Cloud MNIST if it lies in ../shared/data, and shapes that it makes itself if not. Writes demo/neighbours.png.
"""

from __future__ import annotations

import time
from pathlib import Path

import matplotlib as mpl
import numpy as np

from slosh import Sets, kernel
from slosh.embed import Covariance, FSPool, GeM, SlicedWasserstein
from slosh.evaluate import precision_at_k, recall_at_k
from slosh.search import ExactSearch, SetSearch

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
MNIST = ROOT.parent / "shared" / "data" / "pointcloud_mnist_2d.npz"


def digits(n_stored: int, n_queries: int) -> tuple[Sets, np.ndarray, Sets, np.ndarray]:
    """Digits as the set of their inked pixels, 34 to 351 points each."""
    with np.load(MNIST) as file:
        sets = Sets(file["points"].astype(np.float32) / 28, file["offsets"])
        labels, split = file["labels"].astype(int), file["split"]
    stored, queries = np.flatnonzero(split == 0)[:n_stored], np.flatnonzero(split == 1)[:n_queries]
    return sets.take(stored), labels[stored], sets.take(queries), labels[queries]


def shapes(n_stored: int, n_queries: int) -> tuple[Sets, np.ndarray, Sets, np.ndarray]:
    """Ten kinds of curves, turned, stretched and sampled at random, 30 to 350 points each."""
    rng = np.random.default_rng(0)
    sets, labels = [], rng.integers(0, 10, n_stored + n_queries)
    for kind in labels:
        t = rng.uniform(0, 2 * np.pi, rng.integers(30, 350))
        petals, depth = 1 + kind // 2, 0.25 + 0.45 * (kind % 2)
        radius = 1 + depth * np.cos(petals * t)
        curve = np.stack([radius * np.cos(t), radius * np.sin(t)], axis=1) * rng.uniform(0.8, 1.2, 2)
        angle = rng.uniform(-0.3, 0.3)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        sets.append(0.25 * curve @ turn + 0.5 + rng.normal(scale=0.01, size=curve.shape))
    collection = Sets.from_list(sets)
    return collection[:n_stored], labels[:n_stored], collection[n_stored:], labels[n_stored:]


def main() -> None:
    real = MNIST.exists()
    stored, labels, queries, truth = (digits if real else shapes)(10_000, 1_000)
    print(f"{'Point Cloud MNIST' if real else 'generated shapes'}, kernel {kernel.name()}")
    print(f"stored:  {stored}\nqueries: {queries}\n")

    print("the label of the nearest set, by the distance of the embedded sets:")
    for model in (GeM(p=1), GeM(p=4), Covariance(), FSPool(), SlicedWasserstein()):
        start = time.perf_counter()
        vectors = model.fit_transform(stored)
        took = time.perf_counter() - start
        search = ExactSearch()
        search.add(vectors)
        rows = search.search(model.transform(queries), k=1).rows
        size = f"{vectors.shape[1]:5} numbers a set {1e6 * took / len(stored):7.1f} us a set"
        print(f"  {model!s:22} {size}   accuracy {np.mean(labels[rows[:, 0]] == truth):.3f}")

    print("\nthe ten nearest sets of each query (SetSearch):")
    index = SetSearch()
    index.add(stored)
    index.vector_search.calibrate(k=10, recall=0.95)
    every = index.search(queries, k=10, recall=1.0)
    for name, result in (
        ("recall 0.95", index.search(queries, k=10, recall=0.95)),
        ("exact", every),
        ("certified", index.search(queries, k=10, certify=True)),
    ):
        line = f"  {name:12} {1e6 * result.stats.seconds / len(queries):6.0f} us a query, "
        line += f"{result.stats.candidates.mean():4.0f} of {len(index)} vectors compared"
        if name == "recall 0.95":
            line += f"; promised {result.stats.recall:.3f}, found {recall_at_k(result.rows, every.rows):.3f}"
        if result.stats.full_distances is not None:
            line += f", {result.stats.full_distances.mean():.1f} sliced distances from the points"
        print(line)
    print(f"  precision@10 of the certified neighbours: {precision_at_k(labels[result.rows], truth):.3f}")

    print("\nfive queries and their nearest set: a lower bound from the vectors, the sliced distance, an upper bound")
    model, rows = index.embedding, result.rows
    for i in range(5):
        lower, upper = (bound.item() for bound in model.bounds(queries[i : i + 1], stored.take(rows[i, :1])))
        print(f"  query {i}: {lower:.4f} <= {result.distances[i, 0]:.4f} <= {upper:.4f}")

    picture = ROOT / "demo" / "neighbours.png"
    picture.parent.mkdir(exist_ok=True)
    draw(picture, queries, truth, stored, labels, rows)
    print(f"\nqueries and their nearest sets are drawn in {picture.relative_to(ROOT)}")


def draw(path: Path, queries: Sets, truth: np.ndarray, stored: Sets, labels: np.ndarray, rows: np.ndarray) -> None:
    figure, axes = plt.subplots(5, 7, figsize=(9, 6.6), layout="constrained")
    for i, line in enumerate(axes):
        for j, axis in enumerate(line):
            axis.set_axis_off()
            axis.set(aspect="equal", xlim=(-0.02, 1.02), ylim=(1.02, -0.02))
            points, label = (queries[i], truth[i]) if j == 0 else (stored[rows[i, j - 1]], labels[rows[i, j - 1]])
            colour = "black" if j == 0 else "tab:blue" if label == truth[i] else "tab:red"
            axis.scatter(*points.T, s=3, color=colour, linewidths=0)
            axis.set_title(f"query: {label}" if j == 0 else str(label), fontsize=9, color=colour)
    figure.suptitle("Five queries and their six nearest sets (red: another label)", fontsize=11)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
