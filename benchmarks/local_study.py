"""Measure local shape: what it finds beside the sliced embedding of the sets as they are.

    .venv/bin/python benchmarks/local_study.py

Precision@4 and the accuracy of the vote on the paper's 2-D and 3-D data sets, exact search, no labels; the same sets
and queries as in field_study.py. The second table has the same vectors after whitening: rotated to the 128 principal
directions of the stored ones, each divided by its variance to the power .35, and brought to unit length; "and" puts
vectors of equal mean variance side by side before that. It takes two minutes; docs/embedding.md quotes it.
"""

from __future__ import annotations

import numpy as np
from sklearn.decomposition import PCA

from field_study import TITLES, K, load, score
from machine import cpu
from markdown_tables import markdown_table
from slosh.embed import LocalShape, SlicedWasserstein
from slosh.embed.base import SetTransformer
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.native import kernel
from slosh.search import ExactSearch

DATA_SETS = ("modelnet40", "mnist")
NEIGHBORS = (8, 32, (8, 32), (8, 32, 128))
N_COMPONENTS, POWER = 128, 0.35


def whitened_score(models: list[SetTransformer], name: str) -> str:
    """Return precision@4 and vote of the exact neighbours by whitened vectors."""
    stored, labels, asked, wanted = load(name)
    both = [[], []]
    for model in models:
        vectors = [model.fit(stored).transform(stored), model.transform(asked)]
        mean = vectors[0].mean(axis=0)
        size = np.sqrt(((vectors[0] - mean) ** 2).sum(axis=1).mean())
        for parts, numbers in zip(both, vectors, strict=True):
            parts.append((numbers - mean) / size)
    vectors = [np.concatenate(parts, axis=1) for parts in both]
    axes = PCA(N_COMPONENTS, svd_solver="randomized", random_state=0).fit(vectors[0])
    search, short = ExactSearch(), []
    for numbers in vectors:
        turned = axes.transform(numbers) / axes.explained_variance_**POWER
        short.append((turned / np.linalg.norm(turned, axis=1, keepdims=True)).astype(np.float32))
    search.add(short[0])
    rows = search.search(short[1], K).rows
    return f"{precision_at_k(labels[rows], wanted):.3f} / {vote_accuracy(labels[rows], wanted):.3f}"


def main() -> None:
    """Print both tables."""
    print(f"{cpu()}, kernel {kernel.name()}\n")
    titles = ["precision@4 / vote", *(TITLES[name] for name in DATA_SETS)]
    models = {"`SlicedWasserstein(64, 16)`": SlicedWasserstein(64, 16)}
    models |= {f"`LocalShape(..., neighbors={k})`": LocalShape(SlicedWasserstein(64, 16), k) for k in NEIGHBORS}
    rows = [[name, *(score(model, each) for each in DATA_SETS)] for name, model in models.items()]
    print(markdown_table(titles, rows) + "\n", flush=True)
    sliced, local = SlicedWasserstein(64, 16), LocalShape(SlicedWasserstein(64, 16))
    views = {"sliced": [sliced], "local": [local], "sliced and local": [sliced, local]}
    rows = [[f"{name}, whitened", *(whitened_score(view, each) for each in DATA_SETS)] for name, view in views.items()]
    print(markdown_table(titles, rows))


if __name__ == "__main__":
    main()
