"""Compare the embedded distance with the exact sliced and the exact Wasserstein distance on pairs of real sets.

An embedding is good if its Euclidean distance is close to the sliced distance over its own slices (they differ only by
the M quantiles), if that is close to the sliced distance over all directions, and if that correlates with the
Wasserstein distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from datasets import Dataset
from ledger import Unit
from protocol import Array, Plan, data, paper_swe
from slosh import distance, rank
from slosh.embed import SlicedWasserstein
from slosh.slices import directions

SECONDS = {"mnist": 6.0, "modelnet40": 25.0, "oxford5k": 25.0}


def units(plan: Plan) -> Iterator[Unit]:
    for name, seconds in SECONDS.items():
        yield Unit(f"distances/{name}", seconds, lambda name=name: compare(plan, name))


def compare(plan: Plan, name: str) -> dict[str, Any]:
    """Return all distances of the pairs, their correlations, and the errors of the embedded distances."""
    database, setting = data(plan, name).database, plan.setting(name)
    pairs = draw_pairs(database, plan.choose(300, 30))
    sets = database.sets
    models = {
        "paper": paper_swe(setting.slices[-1], setting, seed=0).fit(sets),
        "default": SlicedWasserstein().fit(sets),
    }
    n_slices = plan.choose(4096, 512)
    many, others = (directions("qmc", n_slices, sets.dim, seed) for seed in (0, 1))

    found = {"wasserstein": of_pairs(lambda i, j: rank.wasserstein(sets[i], sets[j : j + 1], n_jobs=1)[0], pairs)}
    found["sliced"] = sliced(sets, pairs, many)
    exact = found["sliced"]
    summary: dict[str, Any] = {"n_slices": n_slices}
    for model_name, model in models.items():
        x, y = (model.transform(sets.take(rows)).astype(np.float64) for rows in pairs.T)
        found[model_name] = np.linalg.norm(x - y, axis=1)
        same = found[f"{model_name} slices"] = sliced(sets, pairs, model.slices_)
        summary[model_name] = {
            "L": model.n_slices_,
            "M": model.n_quantiles,
            "error": _round(np.mean(np.abs(found[model_name] / same - 1))),
            "largest ratio": _round(np.max(found[model_name] / same)),
            "error of slices": _round(np.mean(np.abs(same / exact - 1))),
        } | {f"with {which}": _correlations(found[model_name], found[which]) for which in ("sliced", "wasserstein")}
    summary["sliced with wasserstein"] = _correlations(exact, found["wasserstein"])
    few = slice(0, plan.choose(50, 5))
    summary["error of exact"] = _round(np.mean(np.abs(sliced(sets, pairs[few], others) / exact[few] - 1)))
    summary["pairs"] = {which: [_round(x) for x in values] for which, values in found.items()}
    summary["same class"] = int(len(pairs) // 2)
    summary["d"] = sets.dim
    return summary


def draw_pairs(database: Dataset, n: int) -> Array:
    """Return rows (n, 2) of the database: the first half are pairs within a class, the rest any two different sets."""
    random = np.random.RandomState(0)
    labelled = np.flatnonzero(database.labels >= 0)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < n:
        i = random.choice(labelled)
        of_class = len(pairs) < n // 2
        j = random.choice(np.flatnonzero(database.labels == database.labels[i]) if of_class else len(database))
        if i != j:
            pairs.append((i, j))
    return np.array(pairs)


def of_pairs(function: Callable[[int, int], float], pairs: Array) -> Array:
    """Apply a function to the two rows of each pair, in two threads."""
    with ThreadPoolExecutor(2) as pool:
        return np.array(list(pool.map(function, *pairs.T.tolist())))


def sliced(sets: Any, pairs: Array, slices: Array) -> Array:
    """Return the exact sliced distance of each pair over these slices."""
    return of_pairs(lambda i, j: distance(sets[i], sets[j], slices=slices, n_jobs=1), pairs)


def _correlations(x: Array, y: Array) -> dict[str, float]:
    return {"pearson": _round(pearsonr(x, y)[0]), "spearman": _round(spearmanr(x, y)[0])}


def _round(x: Any) -> float:
    return float(f"{float(x):.5g}")
