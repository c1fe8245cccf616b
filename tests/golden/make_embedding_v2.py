"""Make the golden files of `slosh.save_embedding`, in the format version 2 of files of arrays.

They are made once, and never again:

    python tests/golden/make_embedding_v2.py tests/golden/embedding-v2

The head of the learned embedding is a small one, put in the place of what was fitted: one of full size takes megabytes.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import make_v1 as first
import numpy as np

import slosh
from slosh import Preprocess, Sets
from slosh.embed import DistanceField, SlicedWasserstein, Whitened
from slosh.learn import LearnedEmbedding


def main(folder):
    sets = Sets.from_list([first.cloud(i) for i in range(60)])
    steps = Preprocess(center=True)
    ready, dim = steps.apply(sets), sets.dim
    learned = LearnedEmbedding(None, SlicedWasserstein(4, 4), n_components=5, epochs=1, augment=None, n_jobs=1)
    learned.fit(ready, ["even", "odd"] * 30)
    rng, widths = np.random.default_rng(0), (learned.layers_[0].shape[1], 12, 12, 5)
    learned.layers_ = [
        rng.normal(size=shape).astype(np.float32) for a, b in pairwise(widths) for shape in ((b, a), (b,))
    ]
    models = {"learned": learned, "whitened": Whitened([SlicedWasserstein(4, 4), DistanceField(6)]).fit(ready)}
    for name, model in models.items():
        slosh.save_embedding(model, folder / f"{name}.slosh-embedding", preprocess=steps)
        told = {"class": type(model).__name__, "dim": dim, "kind": model.distance_kind}
        told |= {"queries": [first.cloud(i).tolist() for i in (100, 101)]}
        asked = steps.apply(Sets.from_list([np.array(each) for each in told["queries"]]))
        told |= {"vectors": model.transform(asked).tolist(), "made_by": f"slosh {slosh.__version__}"}
        (folder / f"{name}.json").write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(exist_ok=True)
    main(Path(sys.argv[1]))
