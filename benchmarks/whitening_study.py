"""Measure what whitening finds, with how many sets to learn from, and what labels add.

    .venv/bin/python benchmarks/whitening_study.py [plain] [few] [labels]

On the paper's data sets, by exact search: precision@4 and the accuracy of the vote. The first table has embeddings
before and after whitening. The second has the precision of maps that were learnt from few sets, the worst of three
draws, beside the plain embedding. The third has labels: for all sets, for some, and for half of the classes, measured
on the other half, which the map was not told about. Queries are never learnt from. It takes some minutes;
docs/whitening.md quotes it.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from machine import DATA, cpu
from markdown_tables import markdown_table
from slosh import Sets, embed
from slosh.embed import DistanceField, FSPool, MeanPool, SlicedWasserstein, Whitened
from slosh.embed.base import SetTransformer
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.native import kernel
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

TITLES = {"modelnet40": "ModelNet40", "mnist": "MNIST, 20,000 sets", "oxford5k": "Oxford 5k, 55 queries"}
K, N_DATABASE, N_QUERIES = 4, 20_000, 2_500
LEARNT_FROM, DRAWS = (10, 20, 50, 100, 200, 500, 1000, 8192), 3
LABELLED = (50, 200, 1000, None)


class Data(NamedTuple):
    """Stored sets, their labels (-1: none), the queries and their labels, as the paper prepares them."""

    stored: Sets
    labels: np.ndarray
    asked: Sets
    wanted: np.ndarray

    def only(self, classes: np.ndarray) -> Data:
        """Return the sets of these classes."""
        stored, asked = (np.flatnonzero(np.isin(x, classes)) for x in (self.labels, self.wanted))
        return Data(self.stored.take(stored), self.labels[stored], self.asked.take(asked), self.wanted[asked])


@cache
def load(name: str) -> Data:
    data = datasets.as_in_paper(datasets.load(name, DATA))
    stored, asked = data.database, data.queries
    rows = np.linspace(0, len(asked.labels), min(N_QUERIES, len(asked.labels)), endpoint=False).astype(int)
    return Data(stored.sets[:N_DATABASE], stored.labels[:N_DATABASE], asked.sets.take(rows), asked.labels[rows])


def score(model: SetTransformer, data: Data) -> tuple[float, float]:
    """Return precision@4 and vote of the exact neighbours by a fitted embedding."""
    search = ExactSearch()
    search.add(model.transform(data.stored))
    found = data.labels[search.search(model.transform(data.asked), K).rows]
    return float(precision_at_k(found, data.wanted)), float(vote_accuracy(found, data.wanted))


def both(scores: Any) -> str:
    return " / ".join(f"{x:.3f}" for x in scores)


def sliced() -> SlicedWasserstein:
    return SlicedWasserstein(64, 16)


def views(dim: int) -> list[SetTransformer]:
    """Return the views that sets of this dimension have: LocalShape is for points in the plane and in space."""
    local = [embed.LocalShape(sliced())] if dim in (2, 3) and hasattr(embed, "LocalShape") else []
    return [sliced(), DistanceField(256), *local]


def before_and_after() -> str:
    """Return the table of embeddings, plain and whitened."""
    rows = []
    for title, made in {
        "sliced, 64 x 16": sliced,
        "`DistanceField(256)`": lambda: DistanceField(256),
        "`FSPool()`": FSPool,
        "`MeanPool()`": MeanPool,
    }.items():
        plain, after = [title], [f"{title}, whitened"]
        for name in TITLES:
            data = load(name)
            model = made().fit(data.stored)
            plain.append(both(score(model, data)))
            after.append(both(score(Whitened(model).fit(data.stored), data)))
        rows += [plain, after]
        print(*rows[-2:], sep="\n", flush=True)
    for count in (2, 3):
        row = [f"{'sliced + field' if count == 2 else 'sliced + field + local'}, whitened, 128 numbers"]
        for name in TITLES:
            data = load(name)
            some = views(data.stored.dim)[:count]
            row.append(both(score(Whitened(some).fit(data.stored), data)) if len(some) == count else "")
        rows.append(row)
        print(row, flush=True)
    return markdown_table(["precision@4 / vote", *TITLES.values()], rows)


def from_few_sets() -> str:
    """Return the table of maps that were learnt from n sets: precision, the worst of three draws."""
    rows = [["plain"]] + [[f"{n:,}"] for n in LEARNT_FROM]
    for name in TITLES:
        data = load(name)
        model = sliced().fit(data.stored)
        rows[0].append(f"{score(model, data)[0]:.3f}")
        for row, n in zip(rows[1:], LEARNT_FROM, strict=True):
            draws = [np.random.RandomState(seed).permutation(len(data.stored))[:n] for seed in range(DRAWS)]
            if len(draws[0]) < n:
                row.append("")
                continue
            found = [score(Whitened(model).fit(data.stored.take(np.sort(draw))), data)[0] for draw in draws]
            row.append(f"{min(found):.3f}")
        print(name, *rows, sep="\n", flush=True)
    return markdown_table(["sets to learn from", *TITLES.values()], rows)


def with_labels() -> str:
    """Return the table of maps that were learnt with labels."""
    rows = []
    for name in TITLES:
        data = load(name)
        several = {"sliced": [sliced()]} | ({"all views": views(data.stored.dim)} if name != "oxford5k" else {})
        for title, wrapped in several.items():
            fitted = [view.fit(data.stored) for view in wrapped]
            row = [f"{TITLES[name]}, {title}", both(score(Whitened(fitted).fit(data.stored), data))]
            for n in LABELLED:
                known = np.random.RandomState(0).permutation(np.flatnonzero(data.labels >= 0))[:n]
                labels = np.full(len(data.labels), -1)
                labels[known] = data.labels[known]
                started = time.process_time()
                model = Whitened(fitted).fit(data.stored, labels)
                seconds = time.process_time() - started
                row.append(both(score(model, data)))
            classes = np.random.RandomState(1).permutation(np.unique(data.labels[data.labels >= 0]))
            seen, unseen = classes[: len(classes) // 2], data.only(classes[len(classes) // 2 :])
            labels = np.where(np.isin(data.labels, seen), data.labels, -1)
            for given in (None, labels):
                row.append(both(score(Whitened(fitted).fit(data.stored, given), unseen)))
            rows.append([*row, f"{seconds:.1f} s"])
            print(rows[-1], flush=True)
    head = ["precision@4 / vote", "no labels", *(f"{n:,} labels" if n else "all labels" for n in LABELLED)]
    head += ["other half of the classes, without labels", "with labels of one half", "CPU time of `fit`"]
    return markdown_table(head, rows)


def main() -> None:
    """Print the tables."""
    print(f"{cpu()}, kernel {kernel.name()}\n")
    wanted = sys.argv[1:] or ["plain", "few", "labels"]
    for name, table in {"plain": before_and_after, "few": from_few_sets, "labels": with_labels}.items():
        if name in wanted:
            print("\n" + table() + "\n", flush=True)


if __name__ == "__main__":
    main()
