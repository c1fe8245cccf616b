"""What LadderSearch holds: stored vectors, and their prefixes in lists around centroids.

Queries come in and climb the ladder: lists, prefixes, vectors. A state that is not trained has no basis: a prefix is
then the vector's norm, all positions are in one list, and every search is exact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.checks import random_stream
from ..native import kernel, scan
from ..native.arrays import Float32, Float64, Int64, Mask
from .basis import ROUNDING
from .calibration import CalibratedState, Calibration
from .cost_model import cost
from .filing import Filing, Training, learn, warn_if_coarse
from .ladder_trial import LadderTrial
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
UNLIKE_ROWS = 0.02
"""If more of the rows founded lists of their own since a calibration, it is applied with care: see `_climb_by`."""
CAREFUL_REACH, ENOUGH_REACH = 0.3, 0.6
"""By how much the reach is larger then, and where that ends. With 300,000 digits and 120,000 distorted ones that were
added, searches at recall .99 found .967 of the neighbours of the distorted ones without this, and .992 with it."""
COMPARED_PAIRS = 1 << 20
"""Pairs of a query and a vector that are compared in one go."""


class LadderState(CalibratedState):
    """See the module. `training` is None before `train`."""

    search: LadderSearch
    training: Training | None
    _filing: Filing
    _lock: threading.Lock  # of whoever files what is not filed yet

    def __init__(self, search: LadderSearch, stored: Stored, store: Vectors) -> None:
        super().__init__(search, stored, store)
        self._precision_checked = threading.Event()
        self.__dict__.update(self._own())
        if stored.trained is None:
            self.training, self._filing = None, Filing.empty(self.dim)
        else:
            self.training = Training.from_trained(stored.trained, self.dim)
            self._filing = Filing.start(self.training, stored.derived, store, self.alive, search.n_jobs)

    def _own(self) -> dict[str, Any]:
        return {"_lock": threading.Lock()}

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

        Lists that hold a part, as they may before training, must not be shared: both states would file the rest.
        """
        filing = self._filing
        return filing if filing.lists.n == self.n else Filing.empty(self.dim)

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
        if self.n_alive < TRAIN_FROM_ROWS or self.training is None:
            return self.n_alive >= TRAIN_FROM_ROWS
        if self.n_alive >= TRAIN_AGAIN_GROWTH * self.training.n_rows:
            return True
        return self._filing.is_outdated(self.training)

    @property
    def outgrown(self) -> bool:
        return self.training is not None and self.n_alive >= 2 * self.training.n_rows

    def train(self) -> LadderState:
        training, filing, sample = learn(self._store, self.alive, self.search, random_stream(self.search.random_state))
        warn_if_coarse(self._store.errors, sample)
        return self._with(training=training, _filing=filing, _calibrations=self._outdated())

    def _check_precision(self) -> None:
        """Warn once, of a collection that is too small to train, if 16 bits are not enough for it."""
        if self.training is None and self.n_alive >= 20 and not self._precision_checked.is_set():
            self._precision_checked.set()
            warn_if_coarse(self._store.errors, self._store.take(np.flatnonzero(self.alive)[:512]))

    def _trial(self, queries: Float32, own: Int64 | None, k: int) -> LadderTrial:
        asked = self._request(self._store.as_stored(queries), k, exclude=own)
        prefixes = self._filing.basis.prefixes(asked.queries, None, self.search.n_jobs)

        def climb(which: Mask | slice, k: int, reach: float, depth: int, exact: bool = False) -> Pairs:
            own_prefixes = prefixes[0][which], prefixes[1][which]
            return self._climb(asked.part(which), k, reach, depth, exact, own_prefixes)[0]

        truth = climb(slice(None), k, 0.0, 4 * k, True)
        lists = self.filed().lists
        return LadderTrial(lists, self.alive, prefixes[0], own, truth, self.dim, lambda *how: climb(*how)[1])

    # Searches

    def target(self, recall: float | None) -> float:
        return self.search.recall if recall is None else recall

    def is_exact(self, k: int, n_allowed: int, recall: float) -> bool:
        small = self.training is None or self.n_alive < TRAIN_FROM_ROWS or 32 * k >= n_allowed
        # What a filter leaves may lie anywhere: what was measured without it says nothing about it.
        return recall == 1.0 or small or n_allowed < LOOSE_FILTER * self.n_alive

    def _nearest(self, asked: Request) -> Found:
        self._check_precision()
        asked.queries = self._store.as_stored(asked.queries)
        k, n_allowed, target = asked.k, asked.n_allowed, self.target(asked.recall)
        plan = None if self.is_exact(k, n_allowed, target) else self.plan(k, target)
        exact = plan is None or plan.exact
        if exact and asked.allowed is not None and self._few(n_allowed, k):
            return self._compare_all(asked)
        if plan is None or plan.exact:
            wanted = min(k + 1, n_allowed)  # one more shows a tie
            (distances, positions), compared, scanned = self._climb(asked, wanted, 0.0, 4 * k, True)
        else:
            wanted = k
            (distances, positions), compared, scanned = self._climb_by(plan, asked)
        short = self._short(positions, wanted, asked)
        if len(short):  # too few lists were looked at, or float32 overflowed
            found = self._compare_all(asked.part(short, wanted))
            distances[short], positions[short] = found.distances, found.positions
            compared[short] += n_allowed
        if plan is None or plan.exact:
            return exact_found(distances, positions, k, compared, scanned)
        # Nothing was measured for a filter, not even for one that leaves nearly all.
        return Found(distances, positions, compared, scanned, plan.promise(k) if asked.allowed is None else None, None)

    def _climb_by(self, plan: Calibration, asked: Request) -> tuple[Pairs, Int64, Int64]:
        """Climb as was calibrated; with more care if rows were added since that are unlike those it was measured on."""
        filing, k, reach = self._filing, asked.k, plan.reach
        depth, (prefixes, norms) = min(plan.depth, self.n), filing.basis.prefixes(asked.queries, None, asked.n_jobs)
        if filing.lists.n_founded_since(plan.n_added) <= UNLIKE_ROWS * self.n:
            return self._climb(asked, k, reach, depth, False, (prefixes, norms))
        assert self.training is not None
        blind = filing.leaves_out(prefixes, self.training)
        found = np.empty((len(asked), k)), np.empty((len(asked), k), np.int64)
        compared, scanned = np.empty(len(asked), np.int64), np.empty(len(asked), np.int64)
        reach = max(reach, min(reach + CAREFUL_REACH, ENOUGH_REACH))
        for which, how in ((~blind, (reach, depth, False)), (blind, (0.0, 4 * k, True))):
            if which.any():
                part = self._climb(asked.part(which), k, *how, (prefixes[which], norms[which]))
                (found[0][which], found[1][which]), compared[which], scanned[which] = part
        return found, compared, scanned

    def _few(self, n_allowed: int, k: int) -> bool:
        """Return whether comparing each allowed vector costs less than a scan of all prefixes, which say little if
        there is no basis.
        """
        if self.training is None:
            return n_allowed <= TRAIN_FROM_ROWS
        scan_all = cost(2 * self.n, self._filing.basis.width, 0, 4 * k, self.dim)
        return cost(0, 0, n_allowed, 0, self.dim) < scan_all

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
            "calibrations": [each.as_dict() for each in self.calibrations],
            "retrain": None if training is None else filing.reason_to_train(training, self.n_alive),
        }

    def trained(self) -> Trained | None:
        if self.training is None:
            return None
        header = {**self.training.header(), "calibrations": self._as_dicts()}
        return Trained(header, self.training.arrays())

    @property
    def trained_version(self) -> object:
        return self.training, self._calibrations

    def derived(self) -> Trained | None:
        return None if self.training is None else self.filed().as_derived()

    @property
    def derived_from(self) -> object:
        return self.training
