"""How many candidates a part search compares for a recall: what was measured, as it is stored with the index.

`part_trial.py` measures it, and only writers do. What was measured belongs to one part field and holds until the
collection has doubled or halved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..engines.base import View
from ..search import Calibration
from ..search.calibration import HOLDS_FOR_GROWTH

SETTING = "part_recalls"
"""The setting of the index that holds what was measured."""
DEFAULT_RECALL = 0.95
"""What a part search is to reach that does not say."""


class Plan(NamedTuple):
    """How many candidates are compared, and the recall that is promised; None if nothing is."""

    depth: int
    promise: float | None


def plan(view: View, k: int, recall: float | None) -> Plan | None:
    """Return what it takes to find this fraction of the k nearest, None if it was not measured or takes a proof."""
    goal = DEFAULT_RECALL if recall is None else recall
    fitting = [each for each in holding(view) if each.covers(k, goal) and not each.exact]
    if not fitting:
        return None
    best = min(fitting, key=lambda each: each.depth)
    # With more sets than it was measured with, as many more of them may be nearer by their bounds.
    grown = max(1.0, len(view) / best.n_rows)
    return Plan(math.ceil(best.depth * grown), best.promise(k))


def holding(view: View, growth: float = HOLDS_FOR_GROWTH) -> list[Calibration]:
    """Return what was measured for this collection, as long as it has not changed by more than this factor."""
    text, fingerprint = view.settings.get(SETTING), view.spec.parts_fingerprint
    if text is None or fingerprint is None:
        return []
    return [each for each in _parsed(text, fingerprint) if each.holds(len(view), view.next_id, growth)]


def described(view: View) -> dict[str, Any]:
    """Return what was measured and holds, for people to read."""
    return {"measured": [each.as_dict() for each in holding(view)], "pools": measured_pools(view)}


def pack(measured: list[Calibration], fingerprint: int | None, pools: Sequence[int] = ()) -> str:
    """Return what was measured, to be stored; `pools` are numbers of candidates for which the search of the short
    vectors was measured and found to be quicker than an exact one.
    """
    told = [each.as_dict() for each in measured]
    return json.dumps({"field": fingerprint, "measured": told, "pools": list(pools)})


def measured_pools(view: View) -> list[int]:
    """Return the pools that `pack` was given, none if they are not known."""
    try:
        pools = json.loads(view.settings.get(SETTING) or "{}").get("pools", [])
        return [each for each in pools if type(each) is int and each > 0]
    except (ValueError, TypeError, AttributeError):
        return []


@lru_cache(maxsize=64)
def _parsed(text: str, fingerprint: int) -> tuple[Calibration, ...]:
    """Return what is stored, nothing if it is of another field or damaged: it is measured again."""
    try:
        content = json.loads(text)
        if content["field"] != fingerprint:
            return ()
        return tuple(Calibration.from_dict(each) for each in content["measured"])
    except (ValueError, TypeError, KeyError):
        return ()
