"""Make the golden indexes of format version 1, with the answers that they gave.

They are made once, by slosh 0.1 (the commit "Reflow", 53f6d6e), and never again: every later version must open them.
To see how, check that commit out, build its kernel, and run

    PYTHONPATH=CHECKOUT/src python tests/golden/make_v1.py FOLDER

which writes NAME.slosh and NAME.json for each index into FOLDER, here tests/golden/index-v1. A script for a later
version may import `describe` and the builders from this one, as long as the calls exist.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np

import slosh
from slosh.embed import SlicedWasserstein
from slosh.search import HammingSearch

DIM = 2
SLICES = np.array([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96]])


def cloud(seed, n=None):
    """A small cloud of a place and a spread of its own, in float32."""
    rng = np.random.default_rng([1, seed])
    n = int(rng.integers(2, 9)) if n is None else n
    return (rng.normal(size=(n, DIM)) * rng.uniform(0.3, 2) + rng.normal(size=DIM)).astype(np.float32)


def weights_of(points, seed):
    """Weights that float32 holds exactly."""
    return np.random.default_rng([2, seed]).integers(1, 9, len(points)).astype(np.float32) / 4


def embedding(n_quantiles=4):
    return SlicedWasserstein(None, n_quantiles, slices=SLICES, n_jobs=1)


def crc(array):
    return None if array is None else zlib.crc32(np.ascontiguousarray(array, "<f4").tobytes())


def describe(index, queries, calls, **more):
    """Return what an index holds and answers, as something that JSON holds."""
    records = [index.get(name) for name in index.ids]
    stored = [[r.id, len(r.points), crc(r.points), crc(r.weights), r.metadata] for r in records]
    given = [{"points": p.tolist(), "weights": None if w is None else w.tolist()} for p, w in queries]
    asked = as_sets(given, index.origin)
    answers = []
    for method, options in calls:
        found = getattr(index, method)(**({} if "id" in options else {"queries": asked}), **options)
        lists = [found] if isinstance(options.get("id"), str) else list(found)
        answers.append(
            {
                "method": method,
                "options": options,
                "kind": found.distance_kind,
                "ids": [hits.ids for hits in lists],
                "distances": [hits.distances.tolist() for hits in lists],
                "metadata": [hits.metadata for hits in lists],
            }
        )
    origin = None if index.origin is None else index.origin.tolist()
    return {"dim": index.dim, "origin": origin, **more, "sets": stored, "queries": given, "answers": answers}


def as_sets(given, origin):
    points = [np.array(each["points"]) for each in given]
    weights = None if given[0]["weights"] is None else [np.array(each["weights"]) for each in given]
    return slosh.Sets.from_list(points, weights, origin=origin)


EXACT = [
    ("search", {"k": 7, "recall": 1.0}),
    ("search", {"k": 5, "certify": True}),
    ("search", {"k": 4, "recall": 1.0, "where": {"kind": "ring"}}),
    ("search", {"k": 30, "where": "year >= 2010 and not tags = old"}),
    ("search", {"k": 3, "id": "s07", "recall": 1.0}),
    ("range_search", {"radius": 1.0, "certify": True}),
    ("range_search", {"radius": 0.8, "where": {"camera.iso": {"<": 400}}}),
]


def metadata_of(i):
    about = {"kind": ["ring", "bar", "blob"][i % 3], "year": 2000 + i, "tags": ["old"] * (i % 2) + ["seen"]}
    if i % 4 == 0:
        about["camera"] = {"iso": 100 * (1 + i % 7), "lens": "50 mm"}
    return about if i % 10 != 9 else {"kind": "blob", "name": "Zürich \U0001f600", "score": 0.1 + i}


def filled(path, weighted, **options):
    """Thirty sets; two are removed, two replaced, one described anew, three are equal."""
    index = slosh.SetIndex.create(path, DIM, embedding=embedding(), n_jobs=1, **options)
    sets = [cloud(i) for i in range(30)]
    sets[20] = sets[21] = sets[7]
    ids = [f"s{i:02}" for i in range(30)]
    own = [weights_of(points, i) for i, points in enumerate(sets)]
    own[20] = own[21] = own[7]
    for part in (slice(0, 18), slice(18, 30)):
        more = {"weights": own[part]} if weighted else {}
        index.add(sets[part], ids[part], [metadata_of(i) for i in range(30)][part], **more)
    index.remove(["s03", "s19"])
    changed = [cloud(100), cloud(101)]
    more = {"weights": [weights_of(points, 100) for points in changed]} if weighted else {}
    index.update(["s05", "s25"], changed, [{"kind": "ring", "year": 1999}, {"kind": "bar", "year": 2031}], **more)
    index.update("s11", metadata={"kind": "bar", "year": 2011, "tags": ["seen", "new"]})
    return index


def make_weighted(path):
    """With weights, metadata, preprocessing and an origin."""
    options = {"center": True, "scale": "rms", "origin": [0.5, -0.25]}
    with filled(path, True, **options) as index:
        queries = [(cloud(200 + i), weights_of(cloud(200 + i), 200 + i)) for i in range(3)]
        return describe(index, queries, EXACT, preprocess={"center": True, "scale": "rms"})


def make_hamming(path):
    """With codes of bits."""
    sample = [cloud(300 + i) for i in range(20)]
    with filled(path, False, search=HammingSearch(rerank=20, n_jobs=1), sample=sample) as index:
        calls = [("search", {"k": 5, "certify": True}), ("search", {"k": 5}), ("search", {"k": 3, "id": "s07"})]
        return describe(index, [(cloud(200 + i), None) for i in range(3)], calls)


def make_trained(path):
    """So many that the default search is trained and calibrated, of one or two points each."""
    index = slosh.SetIndex.create(path, DIM, embedding=embedding(2), n_jobs=1)
    with index:
        sets = [cloud(1000 + i, 1 + i % 2) for i in range(1100)]
        index.add(sets)
        index.remove([str(i) for i in range(0, 1100, 50)])
        index.tune(recall=0.9, k=5)
        calls = [("search", {"k": 5, "recall": 1.0}), ("search", {"k": 5, "certify": True}),
                 ("range_search", {"radius": 0.2, "certify": True})]  # fmt: skip
        told = describe(index, [(cloud(200 + i), None) for i in range(3)], calls, tuned={"k": 5, "recall": 0.9})
    shutil.rmtree(path / "cache")  # half of its size, and the others have one
    return told


def main(folder):
    folder.mkdir(parents=True)
    for name, make in (("weighted", make_weighted), ("hamming", make_hamming), ("trained", make_trained)):
        told = {"made_by": f"slosh {slosh.__version__}", **make(folder / f"{name}.slosh")}
        text = json.dumps(told, ensure_ascii=False, indent=None, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
