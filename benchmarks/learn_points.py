"""The network "points" on ModelNet40 as the paper prepares it: precision@4 and vote, and what the fit took.

It wants a GPU. The database is what is fitted on, with its labels, and what is searched; the queries are new objects.

    python benchmarks/learn_points.py --seconds 590

ends within these seconds: it fits for some epochs, to see how long they take, and then for as many as there is time. If
they take longer than they did, the fit ends where its time does. `--joined` also fits a head on three views, on the
CPU, and puts the vectors of both side by side; `--load FILE` does so with what an earlier call wrote by `--save FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

import slosh
from machine import DATA, ROOT, cpu
from slosh.data.progress import watched
from slosh.embed import Whitened
from slosh.embed.base import SetTransformer
from slosh.evaluate import precision_at_k, vote_accuracy
from slosh.learn import LearnedEmbedding, fitting, point_module, steps, training
from slosh.learn.checkpoints import Checkpoint
from slosh.learn.parameters import CHANGES, REGIONS
from slosh.native import kernel
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

STARTED = time.perf_counter()
K = 4
TRIAL_EPOCHS = 8
"""Epochs that are timed; the later half of them counts, in which nothing is loaded or recorded any more."""
USUAL = {
    "MIXED": point_module.MIXED,
    "AVERAGED": training.AVERAGED,
    "LAST_RATE": training.LAST_RATE,
}
MARGIN = 0.97
"""The part of the time for a fit that is planned for."""
SMOKE_SETS = 2_000
SMOKE_EPOCHS = 4
VARIANTS: dict[str, dict[str, float]] = {
    "default": {},
    "whole": {},
    "plain": {"AVERAGED": 0.0, "LAST_RATE": 0.0, "MIXED": 0},
}
"""The network as it is in a long fit; without regions of other objects; without the mean of the last weights and the
layer that mixes what the others found, too."""


def become(variant: str) -> None:
    """Let networks be built and trained as this variant says."""
    for name, value in {**USUAL, **VARIANTS[variant]}.items():
        setattr(point_module if name == "MIXED" else training, name, value)


def changes(variant: str) -> tuple[str, ...]:
    """Return how a variant changes sets: also in the few epochs that are timed, as in a long fit."""
    return (*CHANGES, REGIONS) if variant == "default" else CHANGES


def timed_fit(
    sets: slosh.Sets, labels: np.ndarray, epochs: int, given: argparse.Namespace, until: float = math.inf
) -> tuple[LearnedEmbedding, list[float]]:
    """Return a fitted model and the seconds of each epoch. Fit until then at most, on the clock of `perf_counter`."""

    class Bounded(training.Trainer):
        def run(
            self, checkpoint: Checkpoint, is_over: Callable[[], bool] | None = None
        ) -> tuple[list[list[float]], int]:
            return super().run(checkpoint, lambda: time.perf_counter() > until)

    model = LearnedEmbedding(
        "points",
        n_components=256,
        epochs=epochs,
        augment=changes(given.variant),
        batch_size=given.batch_size,
        validation_fraction=0,
        random_state=given.seed,
        n_jobs=given.threads,
    )
    times: dict[int, float] = {}  # when each number of epochs was done; the watcher is called more often

    def watch(stage: str, done: int, total: int) -> None:
        if stage == "learn":
            times.setdefault(done, time.perf_counter())

    with watched(watch), mock.patch.object(fitting, "Trainer", Bounded):
        model.fit(sets, labels)
    return model, np.diff(list(times.values())).tolist()


class Objects(NamedTuple):
    """Sets and their labels."""

    sets: slosh.Sets
    labels: np.ndarray

    def some(self, n: int) -> Objects:
        """Return n of them, or all, evenly spaced."""
        rows = np.linspace(0, len(self.labels) - 1, min(n, len(self.labels))).astype(np.int64)
        return Objects(self.sets.take(rows), self.labels[rows])


def scored(model: SetTransformer, stored: Objects, asked: Objects) -> dict[str, float]:
    """Return what is found among the stored vectors, and how fast vectors are made."""
    start = time.perf_counter()
    vectors, queries = model.transform(stored.sets), model.transform(asked.sets)
    seconds = time.perf_counter() - start
    search = ExactSearch()
    search.add(vectors, np.arange(len(vectors)))
    found = stored.labels[search.search(queries, K).rows]
    classes = np.unique(stored.labels)
    means = np.stack([vectors[stored.labels == one].mean(axis=0) for one in classes])
    nearest = classes[(queries @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(axis=1)]
    return {
        "precision@4": round(float(precision_at_k(found, asked.labels)), 4),
        "vote": round(float(vote_accuracy(found, asked.labels)), 4),
        "nearest_class_mean": round(float((nearest == asked.labels).mean()), 4),
        "sets_per_second_embedded": round((len(vectors) + len(queries)) / seconds),
    }


def joined(model: LearnedEmbedding, stored: Objects, asked: Objects) -> dict[str, float]:
    """Return what is found with a head on three views beside the network, both in 128 numbers."""
    start = time.perf_counter()
    head = LearnedEmbedding(device="cpu").fit(*stored)
    spent = time.perf_counter() - start
    both = Whitened([model, head], 128, power=0).fit(stored.sets)
    return {"head_fit_seconds": round(spent, 1), **scored(both, stored, asked)}


def smoke(stored: Objects, asked: Objects, given: argparse.Namespace) -> None:
    """Fit each variant to some of the sets, with recorded steps and without: the losses must be alike."""
    warnings.simplefilter("error", RuntimeWarning)
    print(f"kernel {kernel.name()}, torch {torch.__version__}", flush=True)
    sets, labels = stored.some(SMOKE_SETS)
    n_steps = -(-len(sets) // (given.batch_size or 64))
    for variant in VARIANTS:
        given.variant = variant
        become(variant)
        for before in (steps.STEPS_BEFORE, 1 << 30):
            usual, steps.STEPS_BEFORE = steps.STEPS_BEFORE, before
            model, times = timed_fit(sets, labels, SMOKE_EPOCHS, given)
            steps.STEPS_BEFORE = usual
            losses = [round(row["loss"], 3) for row in model.history_]
            how = "recorded" if before == usual else "plain"
            print(variant, how, f"{1e3 * times[-1] / n_steps:.2f} ms a step, losses {losses}", flush=True)
        print(variant, scored(model, stored.some(500), asked.some(200)), flush=True)
    if torch.cuda.is_available():
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            timed_fit(sets, labels, 2, given)
        print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=22, max_name_column_width=70))


def keep(result: dict[str, Any], path: Path) -> None:
    """Print and write what was measured."""
    print(json.dumps(result), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=None, help="instead of --seconds")
    parser.add_argument("--seconds", type=float, default=590.0, help="after which all is done, about")
    parser.add_argument("--after", type=float, default=60.0, help="seconds of these for what comes after the fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--variant", choices=VARIANTS, default="default")
    parser.add_argument("--smoke", action="store_true", help="see whether all variants work, in half a minute")
    parser.add_argument("--threads", type=int, default=-1)
    parser.add_argument("--sets", type=int, default=1 << 30, help="of the database, at most")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of modelnet40_3d.npz")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "learn_points.json")
    parser.add_argument("--save", type=Path, default=None, help="a file for what was learnt")
    parser.add_argument("--load", type=Path, default=None, help="a file of --save; nothing is fitted but a head")
    parser.add_argument("--joined", action="store_true", help="also join it with a head on three views")
    given = parser.parse_args()
    data = datasets.as_in_paper(datasets.load("modelnet40", given.data))
    stored, asked = (Objects(each.sets, np.asarray(each.labels)) for each in (data.database, data.queries))
    if given.smoke:
        smoke(stored, asked, given)
        return
    stored = stored.some(given.sets)
    if given.load is not None:
        result = json.loads(given.out.read_text())
        model = slosh.load_embedding(given.load)
        keep({**result, "joined": joined(model, stored, asked)}, given.out)
        return
    become(given.variant)
    until, epochs = STARTED + given.seconds - given.after, given.epochs
    if epochs is None:
        # An epoch ends when its loss is there, so that its time is that of the device.
        times = timed_fit(*stored, TRIAL_EPOCHS, given)[1]
        assert len(times) == TRIAL_EPOCHS
        an_epoch, left = float(np.mean(times[TRIAL_EPOCHS // 2 :])), until - time.perf_counter()
        epochs = max(1, int(MARGIN * left / an_epoch))
        print(f"{given.variant}: {an_epoch:.3f} s an epoch, {left:.0f} s left: {epochs} epochs", flush=True)
    start = time.perf_counter()
    model, times = timed_fit(*stored, epochs, given, until if given.epochs is None else math.inf)
    fitted = time.perf_counter() - start
    print(f"{given.variant}: fitted in {fitted:.0f} s, last loss {model.history_[-1]['loss']:.4f}", flush=True)
    if given.save is not None:
        slosh.save_embedding(model, given.save)
    result = {
        "data": "ModelNet40 as in the paper",
        "variant": given.variant,
        "epochs": model.n_epochs_,
        "planned_epochs": epochs,
        "seed": given.seed,
        **scored(model, stored, asked),
        "fit_seconds": round(fitted, 1),
        "epoch_seconds": round(float(np.median(times)), 3),
        "seconds": round(time.perf_counter() - STARTED, 1),
        "last_loss": round(model.history_[-1]["loss"], 4),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": cpu(),
        "kernel": kernel.name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    keep(result, given.out)
    if given.joined:
        keep({**result, "joined": joined(model, stored, asked)}, given.out)


if __name__ == "__main__":
    main()
