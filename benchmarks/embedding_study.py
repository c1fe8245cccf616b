"""Measure which embedding finds the right neighbours, on ten kinds of labelled sets: what docs/defaults.md recommends.

    .venv/bin/python benchmarks/embedding_study.py FOLDER [--only digits ...] [--redraw]

FOLDER holds the unpacked packages that study_data.py names; data sets whose files are missing are left out, with a
reason. The neighbours are exact. The queries are split into two halves: the best embedding is chosen on one, and every
figure that is shown is of the other. No embedding sees labels. The run writes docs/results/embeddings.json and the
tables of docs/defaults.md between the markers; with `--only` it measures those data sets again, and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import ROOT, cpu
from markdown_tables import markdown_table
from slosh.embed import DistanceField, FSPool, GeM, LocalShape, MeanPool, SlicedWasserstein, Whitened
from slosh.embed.base import SetTransformer
from slosh.evaluate import vote_accuracy
from slosh.native import kernel
from slosh.search import ExactSearch
from study_data import LOADERS, Absent, Case

K = 4
RESULTS, PAGE = ROOT / "docs" / "results" / "embeddings.json", ROOT / "docs" / "defaults.md"


def local() -> SetTransformer:
    """Return the sliced embedding of elements that know their neighbourhood."""
    return LocalShape(SlicedWasserstein())


METHODS: dict[str, Callable[[], SetTransformer]] = {
    "sliced": SlicedWasserstein,
    "sliced, whitened": Whitened,
    "field": DistanceField,
    "field, whitened": lambda: Whitened(DistanceField()),
    "sliced + field, whitened": lambda: Whitened([SlicedWasserstein(), DistanceField()]),
    "mean": MeanPool,
    "mean, whitened": lambda: Whitened(MeanPool()),
    "GeM(p=2)": lambda: GeM(p=2),
    "FSPool": FSPool,
    "FSPool, whitened": lambda: Whitened(FSPool()),
}
SHAPES: dict[str, Callable[[], SetTransformer]] = {
    "local": local,
    "local, whitened": lambda: Whitened(local()),
    "sliced + local, whitened": lambda: Whitened([SlicedWasserstein(), local()]),
    "sliced + field + local, whitened": lambda: Whitened([SlicedWasserstein(), DistanceField(), local()]),
}
"""For sets of two or three dimensions."""


def neighbours(case: Case, model: SetTransformer) -> NDArray[Any]:
    """Return the labels of the K nearest stored sets of each query, the query itself left out."""
    search = ExactSearch()
    search.add(model.fit(case.stored).index_vectors(case.stored)[0])
    rows = search.search(model.index_vectors(case.asked)[0], K + 1).rows
    if case.own is not None:
        # The query may be behind equals of it, or even behind all that were found.
        self_last = np.argsort(rows == case.own[:, None], axis=1, kind="stable")
        rows = np.take_along_axis(rows, self_last, axis=1)
    return case.labels[rows[:, :K]]


def score(case: Case, model: SetTransformer) -> dict[str, Any]:
    """Return precision, its standard error and vote of each half of the queries."""
    start = time.perf_counter()
    found = neighbours(case, model)
    right = (found == case.wanted[:, None]).mean(axis=1)
    result: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 1)}
    for name, half in (("chosen_on", slice(0, None, 2)), ("reported", slice(1, None, 2))):
        part = right[half]
        result[name] = {
            "precision": round(float(part.mean()), 4),
            "error": round(float(part.std(ddof=1) / np.sqrt(len(part))), 4),
            "vote": round(vote_accuracy(found[half], case.wanted[half]), 4),
        }
    return result


def measure(case: Case) -> dict[str, Any]:
    """Return the facts of a case, and the scores of all methods that it suits."""
    sizes = case.stored.sizes
    facts = {
        "data": case.title,
        "dim": case.stored.dim,
        "sets": len(case.stored),
        "elements": int(np.median(sizes)),
        "queries": len(case.asked),
        "labels": len(np.unique(case.wanted)),
    }
    scores = {}
    for name, make in {**METHODS, **(SHAPES if case.stored.dim in (2, 3) else {})}.items():
        scores[name] = score(case, make())
        print(f"  {name}: {scores[name]['reported']}, {scores[name]['seconds']} s", flush=True)
    return {**facts, "scores": scores}


def main() -> None:
    """Measure, or read the earlier results, and write the tables of the page."""
    parser = argparse.ArgumentParser(description="Measure which embedding finds the right neighbours.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "packages", help="the unpacked packages")
    parser.add_argument("--only", nargs="+", choices=LOADERS, help="measure these, keep the others as they were")
    parser.add_argument("--redraw", action="store_true", help="only rewrite the tables from the JSON")
    options = parser.parse_args()
    earlier = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    result = {"machine": f"{cpu()}, kernel {kernel.name()}", "k": K, "cases": earlier.get("cases", {})}
    for name in () if options.redraw else options.only or LOADERS:
        print(name, flush=True)
        try:
            result["cases"][name] = measure(LOADERS[name](options.folder))
        except Absent as reason:
            print(f"  left out: {reason}")
            continue
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({}))


if __name__ == "__main__":
    main()
