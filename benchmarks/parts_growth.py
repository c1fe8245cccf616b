"""Measure how part search grows with the number of stored sets: time, memory, and what it finds, up to a million.

    .venv/bin/python benchmarks/parts_growth.py [--sizes 10000 100000 1000000] [--folder FOLDER]

Sets are digits of Point Cloud MNIST, 64 points of each, stretched, sheared and moved a little at random, so that there
are as many different ones as are asked for. The index is a folder: points, and the fields that proofs need, are mapped
from disk. A query is half of a stored set, cut by a random line; times are CPU times of one thread, for queries one by
one. The results go into docs/results/parts_growth.json after each size.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench_parts import cut
from machine import DATA, ROOT, cpu
from slosh import SetIndex, Sets
from slosh.embed import SlicedWasserstein
from slosh.native import kernel

POINTS, CHUNK = 64, 20_000


def digits() -> list[np.ndarray]:
    """Return the training digits of 64 points or more, in units of the image."""
    with np.load(DATA / "pointcloud_mnist_2d.npz") as file:
        points, offsets, split = file["points"].astype(np.float32) / 28, file["offsets"], file["split"]
    sets = [points[a:b] for a, b, s in zip(offsets[:-1], offsets[1:], split, strict=True) if s == 0]
    return [each for each in sets if len(each) >= POINTS]


def varied(given: list[np.ndarray], first: int, last: int) -> Iterator[Sets]:
    """Yield sets number `first` to `last` of a sequence without end, seeded chunk by chunk."""
    for start in range(first, last, CHUNK):
        random, n = np.random.default_rng(start), min(CHUNK, last - start)
        chosen = [given[i] for i in random.integers(len(given), size=n)]
        some = np.stack([each[random.permutation(len(each))[:POINTS]] for each in chosen]) - 0.5
        maps = np.eye(2) + 0.15 * random.standard_normal((n, 2, 2))
        moved = np.einsum("nij,nkj->nki", maps, some) + 0.5 + 0.03 * random.standard_normal((n, 1, 2))
        yield Sets.from_padded(moved.astype(np.float32))


def memory() -> float:
    """Return the memory of this process that is its own, without files that are mapped, in bytes."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024.0 * int(told["RssAnon"].split()[0])


def measured(index: SetIndex, n: int, seconds: float) -> dict[str, Any]:
    """Return what queries take and find."""
    random = np.random.RandomState(n)
    rows = random.choice(n, 100, replace=False)
    pieces = [cut(index.get(str(row)).points, 0.5, random) for row in rows]
    for piece in pieces:
        index.search(piece, 10, match="part")
    started = time.process_time()
    hits = [index.search(piece, 10, match="part") for piece in pieces]
    each = (time.process_time() - started) / len(pieces)
    started = time.process_time()
    proofs = [index.search(piece, 10, match="part", certify=True) for piece in pieces[:10]]
    proof = (time.process_time() - started) / len(proofs)
    true = sum(len(set(a.ids) & set(b.ids)) for a, b in zip(hits[:10], proofs, strict=True))
    about = index.info()
    return {
        "sets": n,
        "add_cpu_s": seconds,
        "cpu_ms_a_query": 1e3 * each,
        "distances_a_query": float(hits[0].stats.full_distances[0]),
        "rows_scanned": float(np.mean([each.stats.scanned[0] for each in hits])),
        "promised_recall": hits[0].stats.recall,
        "own_set_is_first": float(np.mean([h.ids[0] == str(row) for h, row in zip(hits, rows, strict=True)])),
        "recall_of_the_true_ten": true / sum(min(10, len(p)) for p in proofs),
        "proof_cpu_ms": 1e3 * proof,
        "proved_share_of_distances": float(np.mean([p.stats.full_distances[0] for p in proofs])) / n,
        "short_vector_bytes_a_set": about["memory_bytes"]["parts"] / n,
        "process_bytes": memory(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/parts_growth.slosh"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "parts_growth.json")
    given = parser.parse_args()
    sets, found = digits(), {"cpu": cpu(), "kernel": kernel.name(), "threads": 1, "sizes": list[dict[str, Any]]()}
    sample = next(varied(sets, 0, 5000))
    index = SetIndex.create(
        given.folder, 2, parts=True, sample=sample, embedding=SlicedWasserstein(8, 8, n_jobs=1), n_jobs=1
    )
    before = 0
    try:
        for n in sorted(given.sizes):
            started = time.process_time()
            index.add(varied(sets, before, n))
            found["sizes"].append(measured(index, n, time.process_time() - started))
            before = n
            print(json.dumps(found["sizes"][-1]), flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        index.close()
        shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()
