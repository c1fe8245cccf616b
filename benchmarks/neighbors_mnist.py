"""Measure the accuracy of KNeighborsClassifier on Point Cloud MNIST: 60,000 sets to learn from, 10,000 to label.

    .venv/bin/python benchmarks/neighbors_mnist.py [pointcloud_mnist_2d.npz]

The first table has a row for each embedding, with and without the grey values as weights of the elements, and a column
for each k. All searches are exact (recall=1.0), so that the accuracies are those of the embedding, except for the last
row, which is the default search. The second table shows how well OutlierScore separates one digit from the others.
Seconds are CPU time. It takes a few minutes; docs/neighbors.md quotes it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from machine import DATA, cpu
from slosh import Sets
from slosh.embed import Covariance, GeM, SlicedWasserstein
from slosh.neighbors import KNeighborsClassifier, OutlierScore

NEIGHBOURS = (1, 3, 5, 10)
OUTLIER_METHODS = ("lof", "distance", "density")


def read(path: Path) -> tuple[dict[str, Sets], np.ndarray, np.ndarray]:
    """Return the sets without and with weights, their labels, and a mask of the queries."""
    with np.load(path) as file:
        points, offsets = file["points"].astype(np.float32) / 28, file["offsets"].astype(np.int64)
        sets = {"plain": Sets(points, offsets), "grey": Sets(points, offsets, file["weights"])}
        return sets, file["labels"].astype(int), file["split"] == 1


class Pixels(TransformerMixin, BaseEstimator):
    """The grey image as a vector of 784 numbers, instead of an embedding of sets."""

    def fit(self, X: Sets, y: object = None) -> Pixels:
        """Do nothing, as there is nothing to learn."""
        self.fitted_ = True
        return self

    def transform(self, X: Sets) -> np.ndarray:
        """Return the images, (n, 784)."""
        images = np.zeros((len(X), 28, 28), np.float32)
        column, row = np.rint(X.points * 28).astype(int).T
        images[np.repeat(np.arange(len(X)), X.sizes), row, column] = X.weights
        return images.reshape(len(X), -1)


def classify(name: str, model: KNeighborsClassifier, sets: Sets, labels: np.ndarray, asked: np.ndarray) -> None:
    """Print the row of one embedding."""
    train, test = sets.take(~asked), sets.take(asked)
    start = time.process_time()
    model.fit(train, labels[~asked])
    fitted = time.process_time() - start
    accuracies, seconds = [], []
    for weights in ("uniform", "distance"):
        for k in NEIGHBOURS:
            start = time.process_time()
            found = model.set_params(n_neighbors=k, weights=weights).predict(test)
            seconds.append(time.process_time() - start)
            accuracies.append(float(np.mean(found == labels[asked])))
    # The first search for a k may calibrate; the last k was asked for before.
    times = [f"{t:.1f}" for t in (fitted, seconds[0], seconds[-1])]
    cells = [name, str(model.embedding_.index_length), *(f"{100 * a:.2f}" for a in accuracies), *times]
    print("| " + " | ".join(cells) + " |", flush=True)


def outliers(sets: Sets, labels: np.ndarray, asked: np.ndarray) -> None:
    """Print the area under the ROC curve where one digit is normal and all others are outliers, over the ten digits."""
    for method in OUTLIER_METHODS:
        areas = []
        for digit in range(10):
            normal = np.flatnonzero((labels == digit) & ~asked)[:2000]
            rest = np.flatnonzero(asked)[:2000]
            model = OutlierScore(method=method, recall=1.0, embedding=SlicedWasserstein(n_jobs=1))
            scores = model.fit(sets.take(normal)).score_samples(sets.take(rest))
            areas.append(roc_auc_score(labels[rest] == digit, scores))
        print(f"| {method} | {np.mean(areas):.4f} | {np.min(areas):.4f} (digit {int(np.argmin(areas))}) |", flush=True)


def main() -> None:
    """Print both tables."""
    sets, labels, asked = read(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "pointcloud_mnist_2d.npz")
    print(f"{cpu()}, {os.cpu_count()} cores; {np.sum(~asked)} stored sets, {np.sum(asked)} queries\n")
    heads = [f"k={k}" for k in NEIGHBOURS] + [f"k={k}, 1/d" for k in NEIGHBOURS]
    print("| embedding | numbers | " + " | ".join(heads) + " | fit, s | first predict, s | last, s |")
    print("|" + "---|" * (len(heads) + 5))
    for name, embedding, which in (
        ("SlicedWasserstein()", SlicedWasserstein(), "plain"),
        ("SlicedWasserstein(), grey", SlicedWasserstein(), "grey"),
        ("SlicedWasserstein(64, 32), grey", SlicedWasserstein(64, 32), "grey"),
        ("GeM(4), grey", GeM(4), "grey"),
        ("Covariance(), grey", Covariance(), "grey"),
        ("the grey pixels, no sets", Pixels(), "grey"),
    ):
        classify(name, KNeighborsClassifier(embedding=embedding, recall=1.0), sets[which], labels, asked)
    classify("all defaults, grey (recall 0.99)", KNeighborsClassifier(), sets["grey"], labels, asked)
    print("\n| method | mean area | smallest area |\n|---|---|---|")
    outliers(sets["grey"], labels, asked)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
