"""Make the golden indexes of format version 2, with the answers that they gave.

    PYTHONPATH=src:tests/golden python tests/golden/make_v2.py tests/golden/index-v2

They are made once for a format version, and never again: every later version must open them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import make_v1
import slosh
from make_v1 import EXACT, cloud, describe, filled, weights_of

STEPS = {"center": True, "scale": "rms"}


def make_weighted(path):
    """With weights, metadata, preprocessing and an origin."""
    with filled(path, True, preprocess=slosh.Preprocess(**STEPS), origin=[0.5, -0.25]) as index:
        queries = [(cloud(200 + i), weights_of(cloud(200 + i), 200 + i)) for i in range(3)]
        return describe(index, queries, EXACT, preprocess=STEPS)


if __name__ == "__main__":
    make_v1.make_weighted = make_weighted
    make_v1.main(Path(sys.argv[1]))
