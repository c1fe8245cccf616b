"""What KNeighborsClassifier gets right on Point Cloud MNIST: 60,000 sets to learn from, 10,000 to label.

    .venv/bin/python benchmarks/neighbors_mnist.py [pointcloud_mnist_2d.npz]

A row for each embedding, with and without the grey values as weights of the elements; a column for each k. Each search
is exact (recall=1.0), so that the numbers are those of the embedding; the last row is the default search. Then how well
OutlierScore tells one digit from the others. Seconds are CPU time. A few minutes; docs/neighbors.md quotes it.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from slosh import Sets
from slosh.embed import Covariance, GeM, SlicedWasserstein
from slosh.neighbors import KNeighborsClassifier, OutlierScore
from slosh.neighbors.outliers import METHODS

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "pointcloud_mnist_2d.npz"
NEIGHBOURS = (1, 3, 5, 10)


def read(path: Path) -> tuple[dict[str, Sets], np.ndarray, np.ndarray]:
    """The sets without and with weights, their labels, and which of them are to be labelled."""
    with np.load(path) as file:
        points, offsets = file["points"].astype(np.float32) / 28, file["offsets"].astype(np.int64)
        sets = {"plain": Sets(points, offsets), "grey": Sets(points, offsets, file["weights"])}
        return sets, file["labels"].astype(int), file["split"] == 1


class Pixels(TransformerMixin, BaseEstimator):
    """No embedding of sets: the grey image, as a vector of 784 numbers."""

    def fit(self, X: Sets, y: object = None) -> Pixels:
        self.fitted_ = True
        return self

    def transform(self, X: Sets) -> np.ndarray:
        images = np.zeros((len(X), 28, 28), np.float32)
        column, row = np.rint(X.points * 28).astype(int).T
        images[np.repeat(np.arange(len(X)), X.sizes), row, column] = X.weights
        return images.reshape(len(X), -1)


def classify(name: str, model: KNeighborsClassifier, sets: Sets, labels: np.ndarray, asked: np.ndarray) -> None:
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
    # The first search for a k learns what it takes; the last k was asked for before.
    times = [f"{t:.1f}" for t in (fitted, seconds[0], seconds[-1])]
    cells = [name, str(model.embedding_.index_length), *(f"{100 * a:.2f}" for a in accuracies), *times]
    print("| " + " | ".join(cells) + " |", flush=True)


def outliers(sets: Sets, labels: np.ndarray, asked: np.ndarray) -> None:
    """One digit is usual, all others are odd: the area under the ROC curve, mean over the ten digits."""
    for method in METHODS:
        areas = []
        for digit in range(10):
            usual = np.flatnonzero((labels == digit) & ~asked)[:2000]
            rest = np.flatnonzero(asked)[:2000]
            model = OutlierScore(method=method, recall=1.0, embedding=SlicedWasserstein(n_jobs=1))
            scores = model.fit(sets.take(usual)).score_samples(sets.take(rest))
            areas.append(roc_auc_score(labels[rest] == digit, scores))
        print(f"| {method} | {np.mean(areas):.4f} | {np.min(areas):.4f} (digit {int(np.argmin(areas))}) |", flush=True)


def main() -> None:
    sets, labels, asked = read(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}; {np.sum(~asked)} fitted, {np.sum(asked)} asked\n")
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
    print("\n| method | mean area | least area |\n|---|---|---|")
    outliers(sets["grey"], labels, asked)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
