"""Measure principal axes: what is found of ModelNet40 when its objects are turned, with and without `align="pca"`.

    .venv/bin/python benchmarks/turned_study.py

Every object, stored or query, is turned by an angle of its own: about the upright axis, or by any rotation of space
(uniformly). Precision@4 and the accuracy of the vote, exact search, no labels; the means over three seeds of the turns.
It takes some minutes; docs/when-not-to-use.md quotes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from machine import DATA, cpu
from markdown_tables import markdown_table
from slosh import Preprocess, Sets
from slosh.embed import LocalShape, SlicedWasserstein
from slosh.embed.base import SetTransformer
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.native import kernel
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

K, N_POINTS, SEEDS, UPRIGHT = 4, 512, (0, 1, 2), 2
Turns = Callable[[int, np.random.Generator], Rotation]


def none(n: int, random: np.random.Generator) -> Rotation:
    """Leave n objects as they are: the data set has them upright, and most of one class face the same way."""
    return Rotation.from_rotvec(np.zeros((n, 3)))


def about_one(n: int, random: np.random.Generator) -> Rotation:
    """Turn n objects about the upright axis."""
    return Rotation.from_rotvec(random.uniform(0, 2 * np.pi, n)[:, None] * np.eye(3)[UPRIGHT])


def about_all(n: int, random: np.random.Generator) -> Rotation:
    """Turn n objects in any way."""
    return Rotation.random(n, random_state=random)


def turned(sets: Sets, turns: Rotation) -> Sets:
    """Return the sets, set i turned by turn i."""
    matrices = np.repeat(turns.as_matrix(), sets.sizes, axis=0)
    return Sets(np.einsum("pij,pj->pi", matrices, sets.points), sets.offsets)


def score(model: SetTransformer, steps: Preprocess, turns: Turns, seed: int) -> tuple[float, float]:
    """Return precision@4 and vote of the exact neighbours."""
    data, random = datasets.load("modelnet40", DATA), np.random.default_rng(seed)
    prepared = []
    for part in (data.database, data.queries):
        first = Sets(
            np.concatenate([part.sets[i][:N_POINTS] for i in range(len(part.sets))]),
            N_POINTS * np.arange(len(part.sets) + 1),
        )
        prepared.append(steps.apply(turned(first, turns(len(first), random))))
    search = ExactSearch()
    search.add(model.fit(prepared[0]).index_vectors(prepared[0])[0])
    labels = data.database.labels[search.search(model.index_vectors(prepared[1])[0], K).rows]
    return precision_at_k(labels, data.queries.labels), vote_accuracy(labels, data.queries.labels)


def main() -> None:
    """Print the table."""
    print(f"{cpu()}, kernel {kernel.name()}\n")
    poses = {"as they are": none, "turned about the upright axis": about_one, "turned in any way": about_all}
    sliced, local = SlicedWasserstein(64, 16), LocalShape(SlicedWasserstein(64, 16))
    rows = []
    for name, model in (("`SlicedWasserstein`", sliced), ("`LocalShape`", local)):
        for align in (None, "pca"):
            steps = Preprocess(center=True, align=align, scale="unit")
            row = [name + (', `align="pca"`' if align else "")]
            for turns in poses.values():
                found = [score(model, steps, turns, seed) for seed in (SEEDS if turns is not none else SEEDS[:1])]
                row.append(" / ".join(f"{mean:.3f}" for mean in np.mean(found, axis=0)))
            rows.append(row)
            print(*row, flush=True)
    print("\n" + markdown_table(["precision@4 / vote", *poses], rows))


if __name__ == "__main__":
    main()
