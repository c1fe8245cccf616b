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

from ..checkpoints import checkpoint
from ..data.interrupts import interruptible
from ..data.progress import ProgressBar
from ..data.sets import Sets
from ..engines.base import Engine, Int64, Mask, View
from ..engines.spec import PARTS, Vectors
from ..search import Calibration
from ..search.calibration import MEASURED_AGAIN_GROWTH, Setting, Trial, settle, which_found
from . import part_recall, parts

logger = logging.getLogger(__name__)

MEASURED_K = 10
MEASURED_RECALLS = (0.9, 0.95)
MEASURED_QUERIES = 240
"""Enough to show the recalls; each of them takes a proof."""
MEASURED_STEPS = 1 << 40
"""Pairs of elements, times their features, that the proofs may compare: some minutes. Where it takes more, as in many
dimensions, there are fewer queries, which may be too few to show a recall."""
QUERIES_AT_ONCE = 16
KEPT_MASS = 0.5
"""The share of a set's mass that a query keeps of it."""
MORE = 1.25
"""If a number of candidates was not enough, the next that is tried is so many times as large, or more."""
MIN_LOOKED_AT, LOOKED_AT_SHARE, MOST_LOOKED_AT = 1024, 8, 4096
"""Candidates among which true neighbours are looked for: at least so many, one set in so many, and at most so many."""


class PartTrial(Trial):
    """Queries, their true neighbours, and at which place among the candidates each of these is.

    Settings are chosen by these places, as if the search of the short vectors were exact; what a setting finds is then
    measured by doing what a search does.
    """

    def __init__(self, engine: Engine, asked: Sets, own: Int64, truth: Int64, places: Int64, most: int) -> None:
        super().__init__(len(places))
        self._engine, self._asked, self._own, self._truth = engine, asked, own, truth
        self._places, self._most = places, most
        self._pools: dict[int, bool] = {}

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        places = self._places[self.choosing, :k]
        depths = np.unique(places[places < self._most]) + 1
        for depth in depths[depths > MORE * tried.depth].tolist():
            if enough(places < depth):
                return Setting(0.0, max(int(depth), k), float(depth))
        return None

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        self._measure_pool(parts.pool_size(setting.depth))
        rows, how, near = np.flatnonzero(self.measuring), parts.Matching(parts.PART), []
        with self._engine.view() as view, interruptible():
            for first in range(0, len(rows), QUERIES_AT_ONCE):
                some = rows[first : first + QUERIES_AT_ONCE]
                found = parts.candidates(view, self._asked.take(some), setting.depth, how, None, self._own[some])
                near.append(found.keys.reshape(len(some), -1))
        return which_found(np.concatenate(near), self._truth[rows, :k])

    @property
    def pools(self) -> list[int]:
        """The pools for which the search of the short vectors need not be exact."""
        return sorted(size for size, is_quick in self._pools.items() if is_quick)

    def _measure_pool(self, size: int) -> None:
        """Measure what the search of the short vectors takes for a pool, by halves of other sets than the queries."""
        if size in self._pools:
            return
        with self._engine.view() as view:
            assert view.spec.parts is not None
            random = np.random.RandomState(1)
            others = np.setdiff1d(view.select(), self._own)
            others = np.sort(random.choice(others, min(MEASURED_QUERIES, len(others)), replace=False))
            vectors = view.spec.parts.queries(halves(view.prepared(others), random)).vectors
        known = self._engine.calibrate(PARTS, size, parts.POOL_RECALL, Vectors(vectors, None))
        self._pools[size] = known is not None and not known.exact


def measure(engine: Engine) -> bool:
    """Measure what recalls of part search take, if that is due, and store it; return whether it was."""
    started = time.perf_counter()
    with engine.view() as view:
        if view.spec.parts is None or len(view) < parts.EXACT_BELOW_SETS or not _is_due(view):
            return False
        fingerprint, n_sets, n_added = view.spec.parts_fingerprint, len(view), view.next_id
        with interruptible():
            trial = measured_trial(engine, view)
    measured = []
    for recall in MEASURED_RECALLS:
        each = settle(trial, MEASURED_K, recall, n_sets)
        measured.append(Calibration.from_dict({**each.as_dict(), "n_added": n_added}))
    with engine.write() as write:
        write.set_settings(**{part_recall.SETTING: part_recall.pack(measured, fingerprint, trial.pools)})
    place = engine.location or "index in memory"
    logger.info("%s: measured the recall of part search in %.3f s", place, time.perf_counter() - started)
    return True


def _is_due(view: View) -> bool:
    fresh = {(each.k, each.recall) for each in part_recall.holding(view, MEASURED_AGAIN_GROWTH)}
    return not fresh >= {(MEASURED_K, recall) for recall in MEASURED_RECALLS} or _is_pool_lost(view)


def _is_pool_lost(view: View) -> bool:
    """Return whether a search of the short vectors is exact that was measured: it was trained again since."""
    assert view.spec.parts is not None
    anything = Vectors(np.zeros((1, view.spec.parts.vector_length), np.float32), None)
    return any(
        view.nearest(PARTS, anything, size, recall=parts.POOL_RECALL).promise == 1.0
        for size in part_recall.measured_pools(view)
    )


def measured_trial(engine: Engine, view: View, most_steps: float = MEASURED_STEPS) -> PartTrial:
    """Return queries, which are seeded, and what is true of them."""
    random = np.random.RandomState(0)
    keys = view.select()
    keys = random.choice(keys, min(MEASURED_QUERIES, len(keys)), replace=False)
    most = min(len(view) - 1, max(MIN_LOOKED_AT, min(len(view) // LOOKED_AT_SHARE, MOST_LOOKED_AT)))
    asked, truth, places, steps = [], [], [], 0.0
    with ProgressBar(total=len(keys), unit="query", desc="measure parts") as bar:
        for first in range(0, len(keys), QUERIES_AT_ONCE):
            some = np.sort(keys[first : first + QUERIES_AT_ONCE])
            asked.append(halves(view.prepared(some), random))
            true, place, compared = _places(view, asked[-1], some, most)
            truth.append(true)
            places.append(place)
            keys[first : first + QUERIES_AT_ONCE] = some
            steps += compared
            bar.update(len(some))
            if steps >= most_steps:
                break
    own = keys[: sum(map(len, asked))]
    return PartTrial(engine, Sets.concat(asked), own, np.concatenate(truth), np.concatenate(places), most)


def _places(view: View, queries: Sets, own: Int64, most: int) -> tuple[Int64, Int64, float]:
    """Return the true nearest of each query, how many others are compared before each of them, or `most`, and how many
    steps the proof took.

    A set is compared if it is in the pool, by its vector, and has one of the smallest estimates there. Its place among
    the estimates of all sets is no smaller than in the pool.
    """
    field, how = view.spec.parts, parts.Matching(parts.PART)
    assert field is not None
    proof = parts.nearest(view, queries, MEASURED_K, how, where=None, exclude=own, recall=1.0, depth=None, prove=True)
    asked = field.queries(queries)
    pool = min(len(view) - 1, parts.pool_size(most))
    near = view.nearest(PARTS, Vectors(asked.vectors, None), pool, recall=1.0, exclude=own)
    everyone = np.sort(view.select())
    estimates = parts.Bounds(view, queries, asked, how, estimate=True).of(everyone)
    estimates[everyone[None, :] == own[:, None]] = np.inf
    truth, places = np.empty((len(own), MEASURED_K), np.int64), np.empty((len(own), MEASURED_K), np.int64)
    for i in range(len(own)):
        checkpoint()
        truth[i] = proof.keys[proof.offsets[i] : proof.offsets[i + 1]][:MEASURED_K]
        found = near.keys[near.offsets[i] : near.offsets[i + 1]]
        order = np.argsort(found)
        at = np.minimum(np.searchsorted(found, truth[i], sorter=order), len(found) - 1)
        there = found[order[at]] == truth[i]
        true_estimates = estimates[i, np.searchsorted(everyone, truth[i])]
        by_estimate = np.searchsorted(np.sort(estimates[i]), true_estimates, side="right") - 1
        places[i] = np.where(there, np.maximum(order[at] // parts.POOL_FACTOR, by_estimate), most)
    assert proof.full_distances is not None
    compared = float(proof.full_distances @ queries.sizes) * float(view.prepared_sizes(own).mean()) * queries.dim
    return truth, np.minimum(places, most), compared


def halves(sets: Sets, random: np.random.RandomState) -> Sets:
    """Return of each set the elements on one side of a random plane through the median of its mass."""
    points, weights = [], []
    for i in range(len(sets)):
        checkpoint()
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
