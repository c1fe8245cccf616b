"""The recall of part search, measured on the collection itself by those who write it.

Queries are stored sets cut in half by a random plane, none of which may find the set it was cut from. Their true
nearest come from a proof. As for whole sets one part of the queries chooses how many candidates are enough, and the
others say what recall that has (`search/calibration.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from ..data.interrupts import interruptible
from ..data.sets import Sets
from ..engines.base import Engine, Int64, Mask, View
from ..engines.spec import PARTS, Vectors
from ..search import Calibration
from ..search.calibration import MEASURED_AGAIN_GROWTH, Setting, Trial, settle
from . import part_recall, parts

logger = logging.getLogger(__name__)

MEASURED_K = 10
MEASURED_RECALLS = (0.9, 0.95)
MEASURED_QUERIES = 240
"""Enough to show the recalls; each of them takes a proof."""
QUERIES_AT_ONCE = 16
KEPT_MASS = 0.5
"""The share of a set's mass that a query keeps of it."""
MORE = 1.25
"""If a number of candidates was not enough, the next that is tried is so many times as large, or more."""
MIN_LOOKED_AT, LOOKED_AT_SHARE = 1024, 8
"""Candidates among which true neighbours are looked for: at least so many, and one set in so many."""


class PartTrial(Trial):
    """Queries, and at which place among the candidates each of their true neighbours is."""

    def __init__(self, places: Int64, most: int) -> None:
        super().__init__(len(places))
        self._places, self._most = places, most

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        places = self._places[self.choosing, :k]
        depths = np.unique(places[places < self._most]) + 1
        for depth in depths[depths > MORE * tried.depth].tolist():
            if enough(places < depth):
                return Setting(0.0, max(int(depth), k), float(depth))
        return None

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        return np.asarray(self._places[self.measuring, :k] < setting.depth)


def measure(engine: Engine) -> bool:
    """Measure what recalls of part search take, if that is due, and store it; return whether it was."""
    started = time.perf_counter()
    with engine.view() as view:
        if view.spec.parts is None or len(view) < parts.EXACT_BELOW_SETS or not _is_due(view):
            return False
        with interruptible():
            measured = measured_of(view)
        text = part_recall.pack(measured, view.spec.parts_fingerprint)
    with engine.write() as write:
        write.set_settings(**{part_recall.SETTING: text})
    place = engine.location or "index in memory"
    logger.info("%s: measured the recall of part search in %.3f s", place, time.perf_counter() - started)
    return True


def _is_due(view: View) -> bool:
    fresh = {(each.k, each.recall) for each in part_recall.holding(view, MEASURED_AGAIN_GROWTH)}
    return not fresh >= {(MEASURED_K, recall) for recall in MEASURED_RECALLS}


def measured_of(view: View, n_queries: int = MEASURED_QUERIES) -> list[Calibration]:
    """Return what recalls take; the queries are seeded."""
    random = np.random.RandomState(0)
    keys = view.select()
    keys = np.sort(random.choice(keys, min(n_queries, len(keys)), replace=False))
    most = min(len(view) - 1, max(MIN_LOOKED_AT, len(view) // LOOKED_AT_SHARE))
    places = [
        _places(view, keys[first : first + QUERIES_AT_ONCE], most, random)
        for first in range(0, len(keys), QUERIES_AT_ONCE)
    ]
    trial = PartTrial(np.concatenate(places), most)
    found = []
    for recall in MEASURED_RECALLS:
        each = settle(trial, MEASURED_K, recall, len(view))
        found.append(Calibration.from_dict({**each.as_dict(), "n_added": view.next_id}))
    return found


def _places(view: View, keys: Int64, most: int, random: np.random.RandomState) -> Int64:
    """Return how many others are compared before each of the true nearest of halves of these sets, or `most`.

    A set is compared if it is in the pool, by its vector, and has one of the smallest bounds there. Its place among the
    bounds of all sets is no smaller than in the pool.
    """
    field, how = view.spec.parts, parts.Matching(parts.PART)
    assert field is not None
    queries = halves(view.prepared(keys), random)
    truth = parts.nearest(view, queries, MEASURED_K, how, where=None, exclude=keys, recall=1.0, depth=None, prove=True)
    vectors = Vectors(field.queries(queries).vectors, None)
    pool = min(len(view) - 1, parts.POOL_FACTOR * most)
    near = view.nearest(PARTS, vectors, pool, recall=1.0, exclude=keys)
    bounds, everyone = parts.Bounds(view, queries, field.queries(queries), how), np.sort(view.select())
    low = bounds.of(everyone)
    low[everyone[None, :] == keys[:, None]] = np.inf
    places = np.full((len(keys), MEASURED_K), most, np.int64)
    for i in range(len(keys)):
        true = truth.keys[truth.offsets[i] : truth.offsets[i + 1]][:MEASURED_K]
        found = near.keys[near.offsets[i] : near.offsets[i + 1]]
        order = np.argsort(found)
        at = np.minimum(np.searchsorted(found, true, sorter=order), len(found) - 1)
        there = found[order[at]] == true
        by_bound = np.searchsorted(np.sort(low[i]), low[i, np.searchsorted(everyone, true)], side="right") - 1
        places[i, : len(true)] = np.where(there, np.maximum(order[at] // parts.POOL_FACTOR, by_bound), most)
    return np.minimum(places, most)


def halves(sets: Sets, random: np.random.RandomState) -> Sets:
    """Return of each set the elements on one side of a random plane through the median of its mass."""
    points, weights = [], []
    for i in range(len(sets)):
        own, mass = np.asarray(sets[i]), sets.weights_of(i)
        order = np.argsort(own @ random.standard_normal(sets.dim), kind="stable")
        share = np.ones(len(own)) if mass is None else mass.astype(np.float64)
        ends = np.cumsum(share[order])
        kept = np.sort(order[: int(np.searchsorted(ends, KEPT_MASS * ends[-1])) + 1])
        points.append(own[kept])
        weights.append(None if mass is None else mass[kept])
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in points])])
    all_weights = None if sets.weights is None else np.concatenate([each for each in weights if each is not None])
    return Sets.from_checked(np.concatenate(points), offsets, all_weights, sets.origin)
