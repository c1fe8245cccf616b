"""Measure how long each method of Table 1 takes to embed a set: CPU time of one thread, the fastest of five runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from complexity import seconds_per_set
from ledger import Unit
from protocol import METHODS, SETTINGS, Plan, data, embedding


def units(plan: Plan) -> Iterator[Unit]:
    for name in SETTINGS:
        for method in METHODS:
            seconds = 5.0 if method == "WE" else 0.7
            yield Unit(f"times/{name}/{method}", seconds, lambda a=(plan, name, method): embed(*a))


def embed(plan: Plan, name: str, method: str) -> dict[str, Any]:
    """Return the CPU seconds per set over random sets of the database."""
    database = data(plan, name).database.sets
    n_sets = plan.choose(30, 5) if method == "WE" else plan.choose(1000, 100)
    sets = database.take(np.random.RandomState(0).permutation(len(database))[:n_sets])
    model = embedding(method, plan.setting(name), seed=0)
    return {"seconds": seconds_per_set([(model, sets)], plan.choose(0.1, 0.01))[0], "sets": n_sets}
