"""Sample retrievals: for some queries the nearest sets, by the paper's SLOSH and by slosh's defaults.

The rule for the queries: with the seed 0, one random query of each class; of ModelNet40's 40 classes, of eight random
ones. Nobody has chosen them, so there are bad ones too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from datasets import Dataset
from ledger import Unit
from protocol import SETTINGS, SLOSH, Array, Plan, codes, data, embedding
from slosh.search import LadderSearch, nearest_codes

METHOD = SLOSH[-1]
N_BITS, SEED, K = 1024, 0, 4
MOST_CLASSES, FEWER = 11, 8
WAYS = {
    "paper": f"the paper: SLOSH L > d, {N_BITS} bits, Hamming distance",
    "defaults": "slosh's defaults, by its default search",
}
SECONDS = {"mnist": 15.0, "modelnet40": 6.0, "oxford5k": 6.0}


def units(plan: Plan) -> Iterator[Unit]:
    for name in SETTINGS:
        yield Unit(f"retrievals/{name}", SECONDS[name], lambda a=(plan, name): retrieve(*a))


def retrieve(plan: Plan, name: str) -> list[dict[str, Any]]:
    """For each chosen query: itself, and what either way finds; nearest first."""
    whole, setting = data(plan, name, SEED), plan.setting(name)
    asked = chosen(whole.queries)
    sets = whole.take(np.concatenate([np.flatnonzero(~whole.is_query), np.flatnonzero(whole.is_query)[asked]]))
    found = {"paper": _by_codes(sets, setting), "defaults": _by_defaults(sets, setting)}
    return [
        {"query": _known(whole.queries, row)} | {way: [_known(sets.database, r) for r in found[way][i]] for way in WAYS}
        for i, row in enumerate(asked)
    ]


def chosen(queries: Dataset) -> Array:
    """The rows of one random query of each class, or of some random classes."""
    random = np.random.RandomState(SEED)
    classes = np.unique(queries.labels)
    if len(classes) > MOST_CLASSES:
        classes = np.sort(random.choice(classes, FEWER, replace=False))
    return np.array([random.choice(np.flatnonzero(queries.labels == label)) for label in classes])


def precision(lines: list[dict[str, Any]], way: str) -> float:
    """How much of what was found for these queries has their class."""
    return float(np.mean([known["class"] == line["query"]["class"] for line in lines for known in line[way]]))


def about(results: dict[str, Any], name: str) -> str:
    """How good these queries are beside all queries, in a sentence; Table 1 must be there."""
    lines, all_of = results[f"retrievals/{name}"], results[f"table1/{name}/{METHOD}/{SEED}"]
    whole = {"paper": all_of["paper"][str(N_BITS)], "defaults": all_of["search"]["scores"]}
    these = [precision(lines, way) for way in WAYS]
    those = [whole[way][str(K)][0] for way in WAYS]
    return (
        f"{SETTINGS[name].title}: of what was found for these {len(lines)} queries {these[0]:.0%} is right with the "
        f"paper's SLOSH and {these[1]:.0%} with slosh's defaults; for all queries it is {those[0]:.0%} and "
        f"{those[1]:.0%}."
    )


def _by_codes(sets: Dataset, setting: Any) -> Array:
    stored, asked = codes(embedding(METHOD, setting, SEED), sets, N_BITS, SEED)
    return nearest_codes(asked, stored, K)[1]


def _by_defaults(sets: Dataset, setting: Any) -> Array:
    model = embedding(METHOD, setting, SEED, slosh_defaults=True)
    search = LadderSearch(random_state=SEED)
    search.add(model.fit_transform(sets.database.sets))
    return search.search(model.transform(sets.queries.sets), K).rows


def _known(sets: Dataset, row: int) -> dict[str, Any]:
    """What is known about a set: its row in the database or among the queries, its name, and its class or None."""
    label = int(sets.labels[row])
    return {"row": int(row), "name": sets.names[row], "class": sets.classes[label] if label >= 0 else None}
