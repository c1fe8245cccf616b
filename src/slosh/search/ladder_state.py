"""What LadderSearch holds: stored vectors, and their prefixes in lists around centroids.

Queries come in and climb the ladder: lists, prefixes, vectors. A state that is not trained has no basis: a prefix is
then the vector's norm, all positions are in one list, and every search is exact.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.checks import random_stream
from ..native import kernel, scan
from ..native.arrays import Float32, Float64, Int64, Mask
from .basis import ROUNDING
from .calibration import (
    CalibratedState,
    Calibration,
    Calibrations,
    first_that_holds,
    found_part,
    lower_bound,
    provable,
    sample_positions,
)
from .cost_model import candidate_depths, cheapest_plan, cost
from .filing import Filing, Training, learn, warn_if_coarse
from .state import Found, FoundWithin, Pairs, Request, Stored, Trained, exact_answer, exact_found
from .store import Batch, FloatVectors, Vectors

if TYPE_CHECKING:
    from .ladder import LadderSearch

TRAIN_FROM_ROWS = 1024
"""With fewer rows there is nothing to learn a basis from, and no need of one: every search is exact."""
TRAIN_AGAIN_GROWTH = 8
"""Basis and lists are to be learnt anew when the collection has grown by this factor."""
LOOSE_FILTER = 0.9
"""A filter that leaves a smaller part of the rows is answered exactly."""
COMPARE_ALL_ROWS = 2048
"""So many rows that a filter allows, or fewer, are compared one by one."""
COMPARED_PAIRS = 1 << 20
"""Pairs of a query and a vector that are compared in one go."""
LARGEST_COVERED_K = 64
"""Up to this k, fewer neighbours are measured along."""
REACHES = tuple(round(0.1 * i, 1) for i in range(-20, 31))
"""Of these a calibration takes one: spreads that a list is thought to extend beyond its centroid."""

_trainings = itertools.count(1)


class LadderState(CalibratedState):
    """See the module. `training` is None before `train`."""

    search: LadderSearch
    training: Training | None
    _training_number: int
    _filing: Filing
    _lock: threading.Lock  # of whoever files what is not filed yet

    def __init__(self, search: LadderSearch, stored: Stored, store: Vectors) -> None:
        super().__init__(search, stored, store)
        self._precision_checked = threading.Event()
        self.__dict__.update(self._own())
        if stored.trained is None:
            self.__dict__.update(self._learnt(None, Filing.empty(self.dim)))
        else:
            training = Training.from_trained(stored.trained, self.dim)
            filing = Filing.start(training, stored.derived, store, self.alive, search.n_jobs)
            known = Calibrations(stored.trained.header["calibrations"])
            self.__dict__.update(self._learnt(training, filing, known))

    def _learnt(
        self, training: Training | None, filing: Filing, calibrations: Calibrations | None = None
    ) -> dict[str, Any]:
        """Return the attributes that a training decides about."""
        number = next(_trainings) if training else 0
        known = calibrations or Calibrations()
        return {"training": training, "_training_number": number, "_calibrations": known, "_filing": filing}

    def _own(self) -> dict[str, Any]:
        return {"_lock": threading.Lock(), "_plans": {}}

    # Changes

    def _grown(self, store: Vectors, **changes: Any) -> LadderState:
        filing = self._filing_to_share()
        if self.training is not None:  # before that, only a search needs it
            filing = filing.extend(store, None, self.search.n_jobs)
        return super()._grown(store, _filing=filing)

    def _without(self, positions: Int64) -> dict[str, Any]:
        return {"_filing": self._filing_to_share().remove(positions)}

    def _filing_to_share(self) -> Filing:
        """Return lists that the next state may go on with: those of this one, if they hold all of it, or new ones.

        Lists that hold a part must not be shared: both states would file the rest.
        """
        filing = self._filing
        return filing if filing.lists.n == self.n else Filing.empty(self.dim, self.training)

    def filed(self) -> Filing:
        """Return lists that hold all vectors."""
        if self._filing.lists.n < self.n:
            with self._lock:
                if self._filing.lists.n < self.n:
                    self._filing = self._filing.extend(self._store, self.alive, self.search.n_jobs)
        return self._filing

    # Training and calibration

    @property
    def train_due(self) -> bool:
        trained = 0 if self.training is None else self.training.n_rows
        return self.n_alive >= TRAIN_FROM_ROWS and self.n_alive >= TRAIN_AGAIN_GROWTH * trained

    def train(self) -> LadderState:
        training, filing, sample = learn(self._store, self.alive, self.search, random_stream(self.search.random_state))
        warn_if_coarse(self._store.errors, sample)
        return self._with(**self._learnt(training, filing))

    def _check_precision(self) -> None:
        """Warn once, of a collection that is too small to train, if 16 bits are not enough for it."""
        if self.training is None and self.n_alive >= 20 and not self._precision_checked.is_set():
            self._precision_checked.set()
            warn_if_coarse(self._store.errors, self._store.take(np.flatnonzero(self.alive)[:512]))

    def _plan_for(self, k: int, recall: float, n_allowed: int) -> Calibration:
        """Return `_plan`, or what was measured for more neighbours, with fewer of them covered."""
        plan = self._plans.get((k, recall))
        if plan is None or plan.k > n_allowed:
            plan = self._calibrations.covering(k, recall, self.n_alive, n_allowed) or self.calibrate(k, recall)
            plan = self._plans.setdefault((k, recall), plan) if plan.k <= n_allowed else plan
        return plan

    def _measured(self, k: int, recall: float, queries: Float32 | None) -> Calibration:
        own = None
        if queries is None:
            own = sample_positions(self.alive, recall, self.search.random_state)
            queries = self._store.take(own)
        else:
            queries = self._store.as_stored(queries)
        n, n_queries, k_there = self.n_alive, len(queries), min(k, self.n_alive - 1)
        prefixes = self._filing.basis.prefixes(queries, None, self.search.n_jobs)
        lists = self.filed().lists

        asked = self._request(queries, k_there, exclude=own)

        def run(reach: float, depth: int, exact: bool = False) -> tuple[Int64, float]:
            answer, compared, scanned = self._climb(asked, k_there, reach, depth, exact, prefixes)
            seen = float(scanned.mean()) + len(lists.radii)
            return answer[1], cost(seen, self._filing.basis.width, float(compared.mean()), depth, self.dim)

        truth, price_of_exact = run(0.0, 4 * k_there, exact=True)
        exact = Calibration.exact_search(k, recall, n_queries, n)
        if not provable(recall, n_queries):
            return exact

        def reached(reach: float, depth: int) -> tuple[float, float, float]:
            found, price = run(reach, depth)
            recalls = found_part(found, truth)
            return lower_bound(recalls), float(recalls.mean()), price

        deep = max(64, 16 * k_there)
        depths = candidate_depths(k_there, deep)
        first = first_that_holds(len(REACHES), lambda i: reached(REACHES[i], deep)[0] >= recall)

        def plans() -> Iterator[tuple[Calibration, float]]:
            for reach in REACHES[first : first + 10 : 2]:  # more lists, fewer vectors
                j = first_that_holds(len(depths), lambda i, r=reach: reached(r, depths[i])[0] >= recall)  # type: ignore[misc]
                if j < len(depths):
                    bound, mean, price = reached(reach, depths[j])
                    yield Calibration(k, recall, reach, depths[j], mean, bound, n_queries, n), price

        best = cheapest_plan(plans(), (exact, price_of_exact))
        if best.exact or k_there > LARGEST_COVERED_K:
            return best
        found, smallest = run(best.reach, best.depth)[0], k_there
        while smallest > 1 and lower_bound(found_part(found[:, : smallest - 1], truth[:, : smallest - 1])) >= recall:
            smallest -= 1
        return replace(best, smallest=min(k, smallest))

    # Searches

    def is_exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        """Return whether a search for k of so many allowed positions is exact by itself, whatever was measured."""
        small = self.training is None or self.n_alive < TRAIN_FROM_ROWS or 32 * k >= n_allowed
        # What a filter leaves may lie anywhere: what was measured without it says nothing about it.
        filtered = n_allowed < LOOSE_FILTER * self.n_alive
        return (self.search.recall if recall is None else recall) == 1.0 or small or filtered

    def _nearest(self, asked: Request) -> Found:
        self._check_precision()
        asked.queries = self._store.as_stored(asked.queries)
        k, n_allowed = asked.k, asked.n_allowed
        if asked.allowed is not None and n_allowed <= COMPARE_ALL_ROWS:
            return self._compare_all(asked)
        target = self.search.recall if asked.recall is None else asked.recall
        plan = None if self.is_exact(k, n_allowed, target) else self._plan_for(k, target, n_allowed)
        if plan is None or plan.exact:
            wanted = min(k + 1, n_allowed)  # one more shows a tie
            (distances, positions), compared, scanned = self._climb(asked, wanted, 0.0, 4 * k, True)
        else:
            wanted = k
            depth = min(plan.depth, self.n)
            (distances, positions), compared, scanned = self._climb(asked, plan.k, plan.reach, depth, False)
            distances, positions = distances[:, :k], positions[:, :k]
        short = self._short(positions, wanted, asked)
        if len(short):  # too few lists were looked at, or float32 overflowed
            found = self._compare_all(asked.part(short, wanted))
            distances[short], positions[short] = found.distances, found.positions
            compared[short] += n_allowed
        if plan is None or plan.exact:
            return exact_found(distances, positions, k, compared, scanned)
        return Found(distances, positions, compared, scanned, plan.promised if plan.k == k else plan.recall, None)

    def _short(self, positions: Int64, k: int, asked: Request) -> Int64:
        """Return the queries that have found fewer positions than there are."""
        if asked.exclude is None:
            return np.flatnonzero(positions[:, -1] < 0)
        there = self.alive if asked.mask is None else asked.mask
        left_out = (asked.exclude >= 0) & there[asked.exclude]
        return np.flatnonzero((positions >= 0).sum(axis=1) < np.minimum(k, asked.n_allowed - left_out))

    def _compare_all(self, asked: Request) -> Found:
        """Compare every allowed vector with every query, in turns of bounded memory."""
        allowed = np.flatnonzero(self.alive if asked.mask is None else asked.mask)
        step = max(1, COMPARED_PAIRS // len(allowed))

        def batches() -> Iterator[Batch]:
            for first in range(0, len(asked), step):
                part = slice(first, min(first + step, len(asked)))
                n = part.stop - first
                yield Batch(part, np.arange(n + 1) * len(allowed), np.tile(allowed, n))

        return exact_answer(lambda k: self._store.nearest(asked, k, batches()), asked)

    def _climb(
        self,
        asked: Request,
        k: int,
        reach: float,
        depth: int,
        exact: bool,
        prefixes: tuple[Float32, Float64] | None = None,
    ) -> tuple[Pairs, Int64, Int64]:
        """Return distances and positions (n_queries, k), and how many vectors were compared and prefixes scanned."""
        job, threads = self._ladder(asked, reach, prefixes), kernel.threads(self.search.n_jobs)
        squares, positions, scanned, compared = scan.ladder(job, k, depth, exact, threads)
        return (np.sqrt(squares, out=squares), positions), compared, scanned

    def _ladder(self, asked: Request, reach: float, prefixes: tuple[Float32, Float64] | None = None) -> scan.Ladder:
        filing, allowed = self.filed(), asked.allowed
        lists = filing.lists
        prefix, norms = prefixes or filing.basis.prefixes(asked.queries, None, asked.n_jobs)
        return scan.Ladder(
            queries=asked.queries,
            prefixes=prefix,
            slack=ROUNDING * (norms + filing.farthest),
            skip=asked.exclude,
            vectors=self._store.array,
            scale=self._store.scale,
            rows=asked.ranks,
            blocks=lists.blocks,
            slots=lists.slots,
            masks=lists.masks if allowed is None else allowed.derived(lists, lambda: lists.allowed(allowed.mask)),
            centroids=lists.centroids,
            radii=lists.radii,
            margins=lists.margins(reach),
            list_start=lists.start,
            list_blocks=lists.order,
        )

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        self._check_precision()
        asked.queries = self._store.as_stored(asked.queries)
        job = self._ladder(asked, 0.0)
        offsets, squares, positions, scanned, compared = scan.ladder_within(
            job, radii, kernel.threads(self.search.n_jobs)
        )
        offsets, squares, positions = scan.within(squares, positions, offsets, asked.ranks, radii)
        return FoundWithin(offsets, np.sqrt(squares), positions, compared, scanned, 1.0)

    # What is stored and learnt

    @property
    def precision(self) -> int:
        """Bits of a stored number."""
        return 32 if isinstance(self._store, FloatVectors) else 16

    def holds(self, positions: Int64, vectors: Float32) -> Mask:
        vectors = np.ascontiguousarray(vectors, np.float32)
        filed = self.filed().holds(positions, self._store.as_stored(vectors), self.alive, self.search.n_jobs)
        return super().holds(positions, vectors) & filed

    def n_bytes(self) -> dict[str, int]:
        prefixes, basis = self._filing.lists.n_bytes, self._filing.basis.directions.nbytes * 4
        return {**super().n_bytes(), "prefixes": prefixes, "rows": 9 * self.n, "basis": basis}

    def info(self) -> dict[str, Any]:
        training, filing = self.training, self._filing
        return {
            "trained_on": 0 if training is None else training.n_rows,
            "n_components": len(filing.basis.directions),
            "n_lists": len(filing.lists.radii),
            "calibrations": self._calibrations.as_dicts(),
            "retrain": None if training is None else filing.reason_to_train(training, self.n_alive),
        }

    def trained(self) -> Trained | None:
        if self.training is None:
            return None
        header = {**self.training.header(), "calibrations": self._calibrations.as_dicts()}
        return Trained(header, self.training.arrays())

    @property
    def trained_version(self) -> object:
        return self._training_number, self._calibrations.version

    def derived(self) -> Trained | None:
        return None if self.training is None else self.filed().as_derived()
