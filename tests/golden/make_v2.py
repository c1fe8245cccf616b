"""Make the golden indexes of format version 2, with the answers that they gave.

They are made once, when version 2 is final, and never again:

    PYTHONPATH=src python tests/golden/make_v2.py tests/golden/index-v2
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import make_v1 as first

import slosh


def make_weighted(path):
    """Make an index with weights, metadata, preprocessing and an origin."""
    preprocess = slosh.Preprocess(center=True, scale="rms")
    with first.filled(path, True, preprocess=preprocess, origin=[0.5, -0.25]) as index:
        queries = [(first.cloud(200 + i), first.weights_of(first.cloud(200 + i), 200 + i)) for i in range(3)]
        return first.describe(index, queries, first.EXACT, preprocess={"center": True, "scale": "rms"})


def main(folder):
    folder.mkdir(parents=True)
    made = {"weighted": make_weighted, "hamming": first.make_hamming, "trained": first.make_trained}
    for name, make in made.items():
        told = {"made_by": f"slosh {slosh.__version__}", **make(folder / f"{name}.slosh")}
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
