"""Make the golden files of `Search.save`, format version 2, with the answers that they gave.

They are made once, when version 2 is final, and never again:

    PYTHONPATH=src python tests/golden/make_search_v2.py tests/golden/search-v2
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import numpy as np

import slosh
from slosh.hash import PStableHash, SignHash
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch

ASKED = [("search", {"k": 5}), ("search", {"k": 4, "allowed": list(range(3, 70, 6))})]
EXACT = [*ASKED, ("search", {"k": 7, "recall": 1.0}), ("range_search", {"radius": 1.75, "recall": 1.0})]

SEARCHES = {
    "exact": (ExactSearch(n_jobs=1), EXACT),
    "codes": (HammingSearch(SignHash(64), n_jobs=1), [*ASKED, ("range_search", {"radius": 20})]),
    "reranked": (HammingSearch(SignHash(64), rerank=20, n_jobs=1), EXACT),
    "lsh": (LSHSearch(PStableHash(4.0, 2, 4), n_jobs=1), EXACT),
    "ladder": (LadderSearch(n_components=2, n_lists=4, n_jobs=1), EXACT),
    "ladder32": (LadderSearch(n_components=2, n_lists=4, precision=32, n_jobs=1), EXACT),
}


def vectors_of(seed, n):
    """Vectors of four numbers that float32 holds exactly."""
    numbers = np.random.default_rng([3, seed]).normal(size=(n, 4)) * [2, 1.5, 1, 0.5]
    return (np.round(64 * numbers) / 64).astype(np.float32)


def make(path, search, calls):
    """Save a search of 27 rows: 24 that it was trained on, less 3 that were removed, and 6 that came later."""
    rows = search.add(vectors_of(0, 24), np.arange(24) * 3 % 70)
    if isinstance(search, LadderSearch):
        search.train()
    if path.stem in ("reranked", "lsh"):
        search.calibrate(k=3, recall=0.9)
    search.remove(rows[::10])
    search.add(vectors_of(1, 6))
    queries = vectors_of(2, 3)
    answers = []
    for method, options in calls:
        found = getattr(search, method)(queries, **options)
        offsets = found.offsets.tolist() if method == "range_search" else None
        near = {"offsets": offsets, "rows": found.rows.tolist(), "distances": found.distances.tolist()}
        answers.append({"method": method, "options": options, "kind": found.distance_kind, **near})
    search.save(path)
    kept = None if path.stem == "codes" else zlib.crc32(search.vectors(search.rows).astype("<f4").tobytes())
    return {
        "class": type(search).__name__,
        "rows": search.rows.tolist(),
        "vectors": kept,
        "queries": queries.tolist(),
        "answers": answers,
    }


def main(folder):
    folder.mkdir(parents=True)
    for name, (search, calls) in SEARCHES.items():
        told = {"made_by": f"slosh {slosh.__version__}", **make(folder / f"{name}.search", search, calls)}
        (folder / f"{name}.json").write_text(json.dumps(told, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
