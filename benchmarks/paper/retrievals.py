"""Sample retrievals: the nearest sets of some queries, by the paper's SLOSH and by slosh's defaults.

The queries are one random query of each class, with seed 0; for ModelNet40, of eight random classes out of 40. They are
not selected, so bad ones are among them.
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
MAX_CLASSES, N_SAMPLED_CLASSES = 11, 8
"""A data set with more classes than the first is represented by as many random ones as the second."""
WAYS = {
    "paper": f"the paper: SLOSH L > d, {N_BITS} bits, Hamming distance",
    "defaults": "slosh's defaults with its default search",
}
SECONDS = {"mnist": 15.0, "modelnet40": 6.0, "oxford5k": 6.0}


def units(plan: Plan) -> Iterator[Unit]:
    for name in SETTINGS:
        yield Unit(f"retrievals/{name}", SECONDS[name], lambda a=(plan, name): retrieve(*a))


def retrieve(plan: Plan, name: str) -> list[dict[str, Any]]:
    """Return each chosen query with the sets that either way finds, nearest first."""
    whole, setting = data(plan, name, SEED), plan.setting(name)
    asked = sample_queries(whole.queries)
    sets = whole.take(np.concatenate([np.flatnonzero(~whole.is_query), np.flatnonzero(whole.is_query)[asked]]))
    found = {"paper": _by_codes(sets, setting), "defaults": _by_defaults(sets, setting)}
    return [
        {"query": _describe(whole.queries, row)}
        | {way: [_describe(sets.database, r) for r in found[way][i]] for way in WAYS}
        for i, row in enumerate(asked)
    ]


def sample_queries(queries: Dataset) -> Array:
    """Return the rows of one random query of each class, or of some random classes if there are many."""
    random = np.random.RandomState(SEED)
    classes = np.unique(queries.labels)
    if len(classes) > MAX_CLASSES:
        classes = np.sort(random.choice(classes, N_SAMPLED_CLASSES, replace=False))
    return np.array([random.choice(np.flatnonzero(queries.labels == label)) for label in classes])


def precision(lines: list[dict[str, Any]], way: str) -> float:
    """Return the share of the neighbours of these queries that have the right class."""
    return float(np.mean([known["class"] == line["query"]["class"] for line in lines for known in line[way]]))


def about(results: dict[str, Any], name: str) -> str:
    """Compare the precision of these queries with that of all queries, in a sentence; needs the results of Table 1."""
    lines, all_of = results[f"retrievals/{name}"], results[f"table1/{name}/{METHOD}/{SEED}"]
    whole = {"paper": all_of["paper"][str(N_BITS)], "defaults": all_of["search"]["scores"]}
    these = [precision(lines, way) for way in WAYS]
    those = [whole[way][str(K)][0] for way in WAYS]
    return (
        f"{SETTINGS[name].title}: for these {len(lines)} queries {these[0]:.0%} of the neighbours are right with the "
        f"paper's SLOSH and {these[1]:.0%} with slosh's defaults; over all queries {those[0]:.0%} and {those[1]:.0%}."
    )


def _by_codes(sets: Dataset, setting: Any) -> Array:
    stored, asked = codes(embedding(METHOD, setting, SEED), sets, N_BITS, SEED)
    return nearest_codes(asked, stored, K)[1]


def _by_defaults(sets: Dataset, setting: Any) -> Array:
    model = embedding(METHOD, setting, SEED, slosh_defaults=True)
    search = LadderSearch(random_state=SEED)
    search.add(model.fit_transform(sets.database.sets))
    return search.search(model.transform(sets.queries.sets), K).rows


def _describe(sets: Dataset, row: int) -> dict[str, Any]:
    """Return the row of a set in the database or among the queries, its name, and its class or None."""
    label = int(sets.labels[row])
    return {"row": int(row), "name": sets.names[row], "class": sets.classes[label] if label >= 0 else None}
