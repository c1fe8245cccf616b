"""Beyond Table 1: the same sets, whitened. A linear map learnt from the stored sets without labels; k = 4, 8, 16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger import Unit
from protocol import BITS, SETTINGS, Plan, Setting, data, embedding, scores_by_length
from slosh.embed import DistanceField, LocalShape, SlicedWasserstein, Whitened
from slosh.hash import SignHash
from table1 import searched

ROWS = ("SLOSH", "FSPool", "WE", "three views")
FLAT = ("mnist", "modelnet40")
"""Data sets of points in a plane or in space, which have all three views."""
BYTES = {"three views": 256}
"""Memory that the default search may use, a set; 128 for the others, as much as a code of 1024 bits."""
SEEDS_OF_WE = 1
"""One seed of WE takes seven minutes, all others together take ten."""
SECONDS = {"mnist": 20.0, "modelnet40": 15.0, "oxford5k": 8.0}
SECONDS_WE = {"mnist": 115.0, "modelnet40": 200.0, "oxford5k": 80.0}


def units(plan: Plan) -> Iterator[Unit]:
    """Yield all rows but WE."""
    for name in SETTINGS:
        for seed in plan.seeds:
            for row in ROWS:
                if row != "WE" and (row != "three views" or name in FLAT):
                    yield _unit(plan, name, row, seed, SECONDS[name])


def units_of_we(plan: Plan) -> Iterator[Unit]:
    """Yield the rows of WE, which take longer than all others together."""
    for name in SETTINGS:
        for seed in plan.seeds[:SEEDS_OF_WE]:
            yield _unit(plan, name, "WE", seed, SECONDS_WE[name])


def _unit(plan: Plan, name: str, row: str, seed: int, seconds: float) -> Unit:
    return Unit(f"whitened/{name}/{row}/{seed}", seconds, lambda: measure(plan, name, row, seed))


def views(row: str, setting: Setting, seed: int) -> Any:
    """Return the embedding that is whitened, or the list of them."""
    if row in ("FSPool", "WE"):
        return embedding(row, setting, seed, slosh_defaults=True)
    sliced = SlicedWasserstein(64, random_state=seed)
    if row == "SLOSH":
        return sliced
    return [sliced, DistanceField(random_state=seed), LocalShape(SlicedWasserstein(64, random_state=seed))]


def measure(plan: Plan, name: str, row: str, seed: int) -> dict[str, Any]:
    """Return the scores of codes and of the default search, for one seed."""
    sets = data(plan, name, seed)
    model = Whitened(views(row, plan.setting(name), seed), random_state=seed)
    stored, asked = model.fit_transform(sets.database.sets), model.transform(sets.queries.sets)
    hash = SignHash(BITS[-1], random_state=seed).fit(stored)
    return {
        "codes": scores_by_length(hash.transform(stored), hash.transform(asked), sets),
        "search": searched(stored, asked, sets, seed, BYTES.get(row, 128)),
        "length": stored.shape[1],
    }
