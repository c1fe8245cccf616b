"""The network "points" on ModelNet40 as the paper prepares it: precision@4 and vote, and what the fit took.

It wants a GPU. The database is what is fitted on, with its labels, and what is searched; the queries are new objects.

    python benchmarks/learn_points.py --seconds 480
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from machine import DATA, ROOT, cpu
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.learn import LearnedEmbedding
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=None, help="instead of --seconds")
    parser.add_argument("--seconds", type=float, default=480.0, help="how long the fit may take, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of modelnet40_3d.npz")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "learn_points.json")
    given = parser.parse_args()
    data = datasets.as_in_paper(datasets.load("modelnet40", given.data))
    stored, asked = data.database, data.queries

    def timed_fit(epochs: int) -> tuple[float, LearnedEmbedding]:
        model = LearnedEmbedding(
            "points",
            n_components=256,
            epochs=epochs,
            batch_size=given.batch_size,
            validation_fraction=0,
            random_state=given.seed,
        )
        start = time.perf_counter()
        model.fit(stored.sets, stored.labels)
        return time.perf_counter() - start, model

    epochs = given.epochs
    if epochs is None:
        timed_fit(1)  # the first one loads the libraries of the GPU
        short, longer = timed_fit(1)[0], timed_fit(5)[0]
        epochs = max(1, int((given.seconds - short) / ((longer - short) / 4)))
        print(f"{(longer - short) / 4:.2f} s an epoch: {epochs} epochs", flush=True)
    fitted, model = timed_fit(epochs)
    print(f"fitted in {fitted:.0f} s, last loss {model.history_[-1]['loss']:.4f}", flush=True)
    start = time.perf_counter()
    vectors, queries = model.transform(stored.sets), model.transform(asked.sets)
    embedded = time.perf_counter() - start
    search = ExactSearch()
    search.add(vectors, np.arange(len(vectors)))
    _, rows = search.search(queries, 4)
    found = np.asarray(stored.labels)[rows]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result = {
        "data": "ModelNet40 as in the paper",
        "epochs": epochs,
        "seed": given.seed,
        "precision@4": round(float(precision_at_k(found, asked.labels)), 4),
        "vote": round(float(vote_accuracy(found, asked.labels)), 4),
        "fit_seconds": round(fitted, 1),
        "sets_per_second_embedded": round((len(vectors) + len(queries)) / embedded),
        "last_loss": round(model.history_[-1]["loss"], 4),
        "gpu": gpu,
        "cpu": cpu(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(result, indent=2), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
