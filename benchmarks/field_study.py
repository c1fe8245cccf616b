"""Measure the distance field: what it finds beside the sliced embedding, and what proofs of Hausdorff neighbours cost.

    .venv/bin/python benchmarks/field_study.py

The first table has precision@4 and the accuracy of the vote on the paper's data sets, exact search, no labels. The
second has, for a query of a certified search by the Hausdorff distance, how many distances between sets it took, and
the CPU time of one thread; beside it the time of all distances, as far as 20 queries say. It takes some minutes;
docs/embedding.md and docs/search.md quote it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from machine import DATA, cpu
from markdown_tables import markdown_table
from slosh import SetIndex, Sets, rank
from slosh.embed import DistanceField, SlicedWasserstein
from slosh.embed.base import SetTransformer
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.native import kernel
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

TITLES = {"modelnet40": "ModelNet40", "mnist": "MNIST, 20,000 sets", "oxford5k": "Oxford 5k, 55 queries"}
K, N_DATABASE, N_QUERIES = 4, 20_000, 2_000
ANCHORS, NEIGHBOURS, PROOFS, COMPARED = (64, 256, 1024), (1, 10), 50, 20


def load(name: str) -> tuple[Sets, np.ndarray, Sets, np.ndarray]:
    """Return the stored sets, their labels, the queries and their labels, as the paper prepares them."""
    data = datasets.as_in_paper(datasets.load(name, DATA))
    stored, asked = data.database, data.queries
    return stored.sets[:N_DATABASE], stored.labels[:N_DATABASE], asked.sets[:N_QUERIES], asked.labels[:N_QUERIES]


def score(model: SetTransformer, name: str) -> str:
    """Return precision@4 and vote of the exact neighbours by an embedding."""
    stored, labels, asked, wanted = load(name)
    search = ExactSearch()
    search.add(model.fit(stored).index_vectors(stored)[0])
    rows = search.search(model.index_vectors(asked)[0], K).rows
    return f"{precision_at_k(labels[rows], wanted):.3f} / {vote_accuracy(labels[rows], wanted):.3f}"


def prove(name: str, n_anchors: int, k: int) -> list[str]:
    """Return how many distances a certified search took for a query, and its milliseconds."""
    stored, _, asked, _ = load(name)
    index = SetIndex.create(None, stored.dim, embedding=DistanceField(n_anchors), sample=stored[:2000], n_jobs=1)
    index.add(stored)
    queries = asked[:PROOFS]
    index.search(queries[:1], k, rerank="hausdorff", certify=True)
    start = time.process_time()
    full = index.search(queries, k, rerank="hausdorff", certify=True).stats.full_distances
    spent = 1e3 * (time.process_time() - start) / len(queries)
    return [f"{full.mean():,.0f}", f"{np.median(full):,.0f}", f"{full.max():,.0f}", f"{spent:.1f}"]


def compare_all(name: str) -> str:
    """Return the milliseconds of the distances from a query to all sets."""
    stored, _, asked, _ = load(name)
    start = time.process_time()
    for i in range(COMPARED):
        rank.hausdorff(asked[i : i + 1], stored, n_jobs=1)
    return f"{1e3 * (time.process_time() - start) / COMPARED:,.0f}"


def main() -> None:
    """Print both tables."""
    print(f"{cpu()}, kernel {kernel.name()}\n")
    models = {"`SlicedWasserstein(64, 16)`": SlicedWasserstein(64, 16)}
    models |= {f"`DistanceField({n})`": DistanceField(n) for n in (64, 256, 512)}
    rows = [[name, *(score(model, each) for each in TITLES)] for name, model in models.items()]
    print(markdown_table(["precision@4 / vote", *TITLES.values()], rows) + "\n", flush=True)
    rows = []
    for name in ("modelnet40", "mnist"):
        everything = compare_all(name)
        for n_anchors in (
            ANCHORS if name == "modelnet40" else ANCHORS[:2]
        ):  # MNIST has fewer than 784 different elements
            for k in NEIGHBOURS:
                rows.append([TITLES[name], str(n_anchors), str(k), *prove(name, n_anchors, k), everything])
                print(*rows[-1], flush=True)
    titles = ["sets", "anchors", "k", "distances: mean", "median", "most", "ms of a query", "ms of all distances"]
    print("\n" + markdown_table(titles, rows))


if __name__ == "__main__":
    main()
