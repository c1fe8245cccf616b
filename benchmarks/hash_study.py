"""Measure the tables of docs/hashing.md: the benefit and cost of `SignHash`'s centre, rotation and number of bits.

    python benchmarks/hash_study.py

It prints recall@10 of the nearest embedded vectors by Hamming distance, and precision@4 of the labels, on 6,000 sets of
Point Cloud MNIST (or generated rings and bars), 1,000 of them queries, over three seeds; and the CPU time per vector.
"""

from __future__ import annotations

import numpy as np

from machine import fastest
from search_data import DATA, rings_and_bars
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.evaluate import precision_at_k, recall_at_k
from slosh.hash import PStableHash, SignHash, hamming
from slosh.search import ExactSearch

N, N_QUERIES, SEEDS = 6000, 1000, 3


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return embedded vectors and labels."""
    if DATA.exists():
        with np.load(DATA) as file:
            sets = Sets(file["points"].astype(np.float32) / 28, file["offsets"].astype(np.int64))[:N]
            labels = file["labels"][:N].astype(int)
    else:
        sets, labels = rings_and_bars(N, 0), np.arange(N) % 2
    return SlicedWasserstein(16, 16).fit_transform(sets), labels


def scores(vectors: np.ndarray, labels: np.ndarray, truth: np.ndarray, **params: object) -> tuple[float, float]:
    """Return recall@10 and precision@4 of the codes, averaged over the seeds."""
    found = []
    for seed in range(SEEDS):
        codes = SignHash(random_state=seed, **params).fit(vectors[N_QUERIES:]).transform(vectors)
        rows = np.argsort(hamming(codes[:N_QUERIES], codes[N_QUERIES:]), axis=1, kind="stable")[:, :10]
        near = labels[N_QUERIES:][rows[:, :4]]
        found.append((recall_at_k(rows, truth), precision_at_k(near, labels[:N_QUERIES])))
    recall, precision = np.mean(found, axis=0)
    return float(recall), float(precision)


def microseconds(model: object, vectors: np.ndarray) -> float:
    """Return the CPU microseconds per vector, the best of five."""
    model.fit(vectors)  # type: ignore[attr-defined]
    seconds, _ = fastest(lambda: model.transform(vectors), rounds=5)  # type: ignore[attr-defined]
    return 1e6 * seconds / len(vectors)


def main() -> None:
    """Print the figures of the tables."""
    vectors, labels = data()
    exact = ExactSearch()
    exact.add(vectors[N_QUERIES:])
    truth = exact.search(vectors[:N_QUERIES], 10).rows
    precision = precision_at_k(labels[N_QUERIES:][truth[:, :4]], labels[:N_QUERIES])
    print(f"the vectors themselves: precision@4 {precision:.3f}")
    for name, params in [
        *((f"center={center!r}", {"center": center}) for center in ("mean", "median", None)),
        *((f"rotation={rotation!r}", {"rotation": rotation}) for rotation in ("hadamard", "orthogonal", "gaussian")),
    ]:
        short, _ = scores(vectors, labels, truth, n_bits=256, **params)
        recall, precision = scores(vectors, labels, truth, n_bits=1024, **params)
        print(f"{name}: recall@10 {short:.3f} with 256 bits, {recall:.3f} with 1024; precision@4 {precision:.3f}")
    wide = np.random.default_rng(0).normal(size=(2000, 1024)).astype(np.float32)
    for rotation in ("hadamard", "orthogonal", "gaussian"):
        print(f"1024 bits, D = 1024, {rotation}: {microseconds(SignHash(1024, rotation=rotation), wide):.1f} us")
    print(f"PStableHash, k T = 80, D = 1024: {microseconds(PStableHash(4.0, 8, 10), wide):.1f} us")


if __name__ == "__main__":
    main()
