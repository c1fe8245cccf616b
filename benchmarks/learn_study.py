"""Measure learned embeddings: what labels bring, what they cost, and what is lost for classes without any.

    .venv/bin/python benchmarks/learn_study.py [modelnet40] [mnist] [held-out] [small] [--seeds 2] [--device auto]

writes docs/results/learn.json, case by case. ModelNet40 and MNIST are prepared as in the paper: the database is learnt
from and searched, the queries are never seen. Precision@4 and the vote of the four exact neighbours; seconds are those
of `fit`, on the wall and of the CPU. "held-out": fits on 30 of ModelNet40's 40 classes, and searches the sets of the
other ten among each other, beside whitening without labels. "small": 5,000 sets. docs/learn.md quotes what this prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait take no seconds of the CPU; before torch

import numpy as np

from machine import DATA, ROOT, cpu
from slosh import Sets
from slosh.embed import DistanceField, LocalShape, SlicedWasserstein, Whitened
from slosh.embed.base import SetTransformer
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.learn import LearnedEmbedding
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

K, N_HELD_OUT, N_SMALL = 4, 10, 5_000
OUT = ROOT / "docs" / "results" / "learn.json"


class Data(NamedTuple):
    """Stored sets and queries, with their labels."""

    stored: Sets
    labels: np.ndarray
    asked: Sets
    wanted: np.ndarray


def load(name: str) -> Data:
    data = datasets.as_in_paper(datasets.load(name, DATA))
    stored, asked = data.database, data.queries
    return Data(stored.sets, stored.labels, asked.sets, asked.labels)


def views() -> list[SetTransformer]:
    return [SlicedWasserstein(64, 16), DistanceField(256), LocalShape(SlicedWasserstein(64, 16))]


def score(model: SetTransformer, data: Data) -> dict[str, float]:
    """Return precision@4 and vote of the exact neighbours, and the microseconds to embed a query."""
    search = ExactSearch()
    search.add(model.transform(data.stored))
    started = time.perf_counter()
    asked = model.transform(data.asked)
    seconds = time.perf_counter() - started
    found = data.labels[search.search(asked, K).rows]
    return {
        "precision": round(float(precision_at_k(found, data.wanted)), 4),
        "vote": round(float(vote_accuracy(found, data.wanted)), 4),
        "embed_microseconds": round(1e6 * seconds / len(data.asked), 1),
    }


def fitted(make: Callable[[], Any], *given: Any) -> tuple[Any, dict[str, float]]:
    """Return a fitted model, and the seconds that it took."""
    wall, used = time.perf_counter(), time.process_time()
    model = make().fit(*given)
    spent = {
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }
    return model, spent


def row(title: str, make: Callable[[], Any], data: Data, *labels: Any) -> dict[str, Any]:
    model, spent = fitted(make, data.stored, *labels)
    more = {}
    if isinstance(model, LearnedEmbedding):
        more = {
            "epochs": model.n_epochs_,
            "held_accuracy": round(model.history_[model.best_epoch_]["held_accuracy"], 4),
        }
    return {"method": title, **score(model, data), **spent, **more, "numbers": model.vector_length}


def whole(name: str, seeds: int, device: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one data set."""
    data = load(name)
    yield row("three views whitened, no labels", lambda: Whitened(views()), data)
    yield row("three views whitened, with labels", lambda: Whitened(views()), data, data.labels)
    for seed in range(seeds):
        given = {"random_state": seed, "device": device}
        yield row(f"head on three views, seed {seed}", lambda given=given: LearnedEmbedding(**given), data, data.labels)
    given = {"embedding": SlicedWasserstein(64, 16), "device": device}
    yield row("head on slices", lambda: LearnedEmbedding(**given, learn_slices=False), data, data.labels)
    yield row("head and slices", lambda: LearnedEmbedding(**given, learn_slices=True), data, data.labels)
    both = {"learn_slices": True, "device": device}
    yield row("head on three views, and slices", lambda: LearnedEmbedding(**both), data, data.labels)
    if device != "cpu":
        yield row("network", lambda: LearnedEmbedding("points", device=device), data, data.labels)


def held_out(seeds: int, device: str) -> Iterator[dict[str, Any]]:
    """Yield what is found among sets of classes that had no label in the fit, each a query of the test split."""
    data = load("modelnet40")
    for seed in range(seeds):
        classes = np.random.RandomState(seed).permutation(np.unique(data.labels))
        unseen = classes[:N_HELD_OUT]
        seen, stored, asked = (np.isin(x, unseen) for x in (data.labels, data.labels, data.wanted))
        known = Data(data.stored.take(~seen), data.labels[~seen], data.asked, data.wanted)
        among = Data(data.stored.take(stored), data.labels[stored], data.asked.take(asked), data.wanted[asked])
        for title, make, labels in (
            ("whitened, no labels", lambda: Whitened(views()), ()),
            ("whitened, with labels", lambda: Whitened(views()), (known.labels,)),
            ("head on three views", lambda: LearnedEmbedding(device=device), (known.labels,)),
            ("head, contrastive", lambda: LearnedEmbedding(loss="contrastive", device=device), (known.labels,)),
        ):
            model, spent = fitted(make, known.stored, *labels)
            yield {"method": title, "classes": seed, **score(model, among), **spent}


def small(seeds: int, device: str) -> Iterator[dict[str, Any]]:
    """Yield the seconds of a fit on 5,000 sets."""
    for name in ("modelnet40", "mnist"):
        data = load(name)
        some = np.sort(np.random.RandomState(0).permutation(len(data.stored))[:N_SMALL])
        part = Data(data.stored.take(some), data.labels[some], data.asked, data.wanted)
        yield row(name, lambda: LearnedEmbedding(device=device), part, part.labels)


def main() -> None:
    """Measure the cases, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    cases: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "modelnet40": lambda: whole("modelnet40", options.seeds, options.device),
        "mnist": lambda: whole("mnist", options.seeds, options.device),
        "held-out": lambda: held_out(options.seeds, options.device),
        "small": lambda: small(options.seeds, options.device),
    }
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    results |= {"machine": cpu(), "processors": os.cpu_count(), "device": options.device}
    print(results["machine"], flush=True)
    for name in options.case or cases:
        results[name] = []
        for found in cases[name]():
            print(name, found, flush=True)
            results[name].append(found)
            OUT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
