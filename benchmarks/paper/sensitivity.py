"""Measure the sensitivity to the number of slices and to the reference. (Code lengths are studied on Table 1's codes.)

As in the authors' scripts, a tenth of the training set serves as queries, and the reference has 336 points.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger import Unit
from protocol import LENGTHS, SETTINGS, Plan, codes, paper_swe, scores_by_length, validation

REFERENCE_SIZE = 336
STUDIED_LENGTHS = tuple(n_bits for n_bits in LENGTHS if n_bits <= 1024)
SLICES = tuple(2**i for i in range(10))
REFERENCES = ("kmeans", "sample", "uniform", "normal", "barycenter")
SECONDS = {"mnist": 60.0, "modelnet40": 10.0, "oxford5k": 6.0}
"""Estimated seconds with 512 slices."""


def units(plan: Plan) -> Iterator[Unit]:
    for name, setting in SETTINGS.items():
        for seed in plan.seeds:
            for n_slices in plan.choose(SLICES, (1, 4, 16)):
                seconds = SECONDS[name] * (0.05 + n_slices / 512)
                args = (plan, name, n_slices, "uniform", seed)
                yield Unit(f"slices/{name}/{n_slices}/{seed}", seconds, lambda a=args: study(*a))
            for reference in REFERENCES:
                args = (plan, name, plan.choose(setting.slices[-1], 4), reference, seed)
                yield Unit(f"references/{name}/{reference}/{seed}", SECONDS[name] / 4, lambda a=args: study(*a))


def study(plan: Plan, name: str, n_slices: int, reference: str, seed: int) -> dict[str, Any]:
    """Return the scores of the paper's embedding by code length, on the validation split."""
    sets = validation(plan, name, seed)
    setting = SETTINGS[name]._replace(reference=plan.choose(REFERENCE_SIZE, 24))
    model = paper_swe(n_slices, setting, seed, reference=reference)
    return scores_by_length(*codes(model, sets, max(STUDIED_LENGTHS), seed), sets, STUDIED_LENGTHS)
