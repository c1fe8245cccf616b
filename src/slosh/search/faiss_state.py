"""What FaissSearch holds: vectors in 16 bits, and a FAISS index of most of them that names candidates.

Queries come in, FAISS names candidates, and their vectors are compared; the distances are those of the vectors. Rows
that were added since the FAISS index was made are compared with every query, until they are many enough to make another
one (`Filled` in faiss_index.py). A state that is not trained has no such index: every search compares all vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.checks import random_stream
from ..native import scan
from ..native.arrays import Float32, Float64, Int64, Mask
from .calibration import CalibratedState, Calibration, sample_positions
from .comparing import compare_all, compare_within, unfilled
from .faiss_factory import TRAIN_FROM_ROWS, Factory, default_factory, parse_factory
from .faiss_index import Filled, Training
from .faiss_trial import FaissTrial, efforts_of, price, price_of_exact
from .filing import warn_if_coarse
from .state import Deferred, Found, FoundWithin, Pairs, Request, Stored, Trained, checking_trained
from .store import Vectors

if TYPE_CHECKING:
    from .faiss_search import FaissSearch

TRAIN_AGAIN_GROWTH = 4
"""What was learnt is learnt anew when the collection has grown by this factor."""
TAIL_ROWS, TAIL_SHARE = 1024, 16
"""So many rows, or one of so many, are compared one by one before another FAISS index is made with them."""
SCAN_BELOW_ROWS, SCAN_BELOW_SHARE = 2048, 16
"""So few allowed rows, or not even one of so many, are compared one by one: a filter starves lists and graphs."""
RERANKED_PAIRS = 1 << 20
"""Vectors compared in one go, for all queries together."""
PRECISION_SAMPLE = 512
DRAWN_NEIGHBOURS = 8
"""A vector like a stored one is moved by the difference of two of so many neighbours."""


class FaissState(CalibratedState):
    """See the module. `training` and the FAISS index are None before `train`."""

    search: FaissSearch
    training: Training | None
    _deferred: Deferred[Filled] | None

    def __init__(self, search: FaissSearch, stored: Stored, store: Vectors) -> None:
        super().__init__(search, stored, store)
        self.training = self._deferred = None
        if stored.trained is not None:
            self.training = Training.from_trained(stored.trained, self.dim)
            self._deferred = _started(self.training, stored.derived, store, search.n_jobs)

    @property
    def filled(self) -> Filled:
        """The FAISS index; only a trained state has one."""
        assert self._deferred is not None
        return self._deferred.value

    def _grown(self, store: Vectors, **changes: Any) -> FaissState:
        deferred = self._deferred
        if deferred is not None:
            filled = deferred.value
            if store.n - filled.n > max(TAIL_ROWS, filled.n // TAIL_SHARE):
                deferred = Deferred.of(filled.extend(store, self.search.n_jobs))
        return super()._grown(store, _deferred=deferred)

    # Training and calibration

    def _factory(self) -> Factory:
        return parse_factory(self.search.factory or default_factory(self.n_alive, self.dim))

    @property
    def train_due(self) -> bool:
        # Asked by every search: the factory is parsed only where it decides.
        if self.training is not None and self.n_alive < TRAIN_AGAIN_GROWTH * self.training.n_rows:
            return False
        return self.n_alive >= TRAIN_FROM_ROWS and self.n_alive >= self._factory().rows_needed

    @property
    def outgrown(self) -> bool:
        return self.training is not None and self.n_alive >= 2 * self.training.n_rows

    def train(self) -> FaissState:
        if self.n_alive < self._factory().rows_needed:
            return self
        params = self.search
        warn_if_coarse(self._store.errors, self._store.take(np.flatnonzero(self.alive)[:PRECISION_SAMPLE]))
        random = random_stream(params.random_state)
        training = Training.learn(self._factory(), self._store, self.alive, random, params.n_jobs)
        filled = Filled.start(training, None, self._store, params.n_jobs)
        return self._with(training=training, _deferred=Deferred.of(filled), _calibrations=self._outdated())

    def target(self, recall: float | None) -> float:
        return self.search.recall if recall is None else recall

    def is_exact(self, k: int, n_allowed: int, recall: float) -> bool:
        if recall == 1.0 or self._deferred is None or self.n_alive < TRAIN_FROM_ROWS or 32 * k >= n_allowed:
            return True
        few = max(SCAN_BELOW_ROWS, self.n_alive // SCAN_BELOW_SHARE)
        return n_allowed < self.n_alive and n_allowed < few

    def _measure(self, pairs: Sequence[tuple[int, float]], queries: Float32 | None = None) -> FaissState:
        """A graph is measured with vectors like the stored ones: the links of a stored one lead to its neighbours."""
        if queries is None and self.filled.training.factory.n_links:
            queries = self._like_stored(sample_positions(self.alive, max(recall for _, recall in pairs), self._seed))
        return super()._measure(pairs, queries)

    def _like_stored(self, positions: Int64) -> Float32:
        """Return stored vectors, each moved by the difference of two of its neighbours.

        So they lie about as far from the stored ones as these from each other, or a little farther, and in the same
        directions.
        """
        vectors = self._store.take(positions)
        asked = self._request(vectors, DRAWN_NEIGHBOURS, exclude=positions)
        near = compare_all(self._store, asked).positions
        random = np.random.RandomState(len(positions))
        one = random.randint(near.shape[1], size=len(near))
        other = (one + random.randint(1, near.shape[1], size=len(near))) % near.shape[1]
        line = np.arange(len(near))
        moved = self._store.take(near[line, one]) - self._store.take(near[line, other])
        return np.asarray(vectors + moved, np.float32)

    def _trial(self, queries: Float32, own: Int64 | None, k: int) -> FaissTrial:
        asked, filled, training = self._request(queries, k, exclude=own), self.filled, self.training
        assert training is not None
        factory, n_lists = training.factory, len(training.centres)

        def candidates(which: Mask, depth: int, effort: int) -> Int64:
            part = asked.part(which)
            return self._candidates(part, self._store.as_stored(part.queries), effort, depth)

        def search(which: Mask, k: int, effort: int, depth: int) -> Int64:
            return self._by_faiss(asked.part(which, k), effort, depth)[1]

        def cost(effort: int, depth: int) -> float:
            return price(factory, n_lists, filled.n, training.width, self.dim, effort, depth)

        efforts, most = efforts_of(factory, n_lists), price_of_exact(self.n_alive, self.dim)
        truth = compare_all(self._store, asked).positions
        return FaissTrial(truth, filled.n, efforts, bool(factory.n_links), candidates, search, cost, most)

    # Searches

    def _nearest(self, asked: Request) -> Found:
        k, n_allowed, target = asked.k, asked.n_allowed, self.target(asked.recall)
        plan = None if self.is_exact(k, n_allowed, target) else self.plan(k, target)
        if plan is None or plan.exact:
            return compare_all(self._store, asked)
        effort, depth = self._work_now(plan, asked)
        (distances, positions), compared = self._by_faiss(asked, effort, depth), asked.counts(depth + self._n_tail)
        short = unfilled(positions, k, asked, self.alive)
        if len(short):  # lists or links that hold too few of what is allowed
            found = compare_all(self._store, asked.part(short))
            distances[short], positions[short] = found.distances, found.positions
            compared[short] += n_allowed
        promise = plan.promise(k) if asked.allowed is None else None  # nothing was measured for a filter
        return Found(distances, positions, compared, asked.counts(self._n_scanned(effort)), promise, None)

    def _work_now(self, plan: Calibration, asked: Request) -> tuple[int, int]:
        """Return effort and depth of a plan for the rows of now, and for a filter, which leaves fewer in each list."""
        growth = max(1.0, self.n_alive / plan.n_rows)
        factory = self.filled.training.factory
        effort = plan.reach * (growth if factory.n_links else 1.0) * self.n_alive / asked.n_allowed
        return math.ceil(effort), math.ceil(plan.depth * growth)

    @property
    def _n_tail(self) -> int:
        return self.n - self.filled.n

    def _n_scanned(self, effort: int) -> int:
        """Return about how many rows FAISS looks at."""
        training, n = self.filled.training, self.filled.n
        if training.factory.n_links:
            return min(n, effort * training.factory.n_links)
        return round(n * min(1.0, effort / len(training.centres))) if training.factory.n_lists else n

    def _by_faiss(self, asked: Request, effort: int, depth: int) -> Pairs:
        """Return the k nearest of FAISS's candidates and the rows that FAISS does not know."""
        n, k = len(asked), asked.k
        distances, positions = np.empty((n, k)), np.empty((n, k), np.int64)
        step = max(1, RERANKED_PAIRS // (depth + 1))
        for first in range(0, n, step):
            part = slice(first, first + step)
            distances[part], positions[part] = self._ranked(asked.part(part), effort, max(depth, k))
        return distances, positions

    def _ranked(self, asked: Request, effort: int, depth: int) -> Pairs:
        store, k, n = self._store, asked.k, len(asked)
        queries = store.as_stored(asked.queries)
        near = self._candidates(asked, queries, effort, depth)
        offsets = np.arange(0, near.size + 1, near.shape[1])
        at = np.maximum(near, 0).ravel()
        store.check(at)
        squares = scan.squares(queries, store.unchecked, store.scale, offsets, at, asked.n_jobs).reshape(near.shape)
        away = np.sqrt(squares, out=squares)
        away[near < 0] = np.inf
        if self._n_tail:
            more, others = self._tail(asked)
            away, near = np.concatenate([away, more], axis=1), np.concatenate([near, others], axis=1)
        order = np.lexsort((near if asked.in_order else asked.ranks[near], away))[:, :k]
        distances, positions = np.full((n, k), np.inf), np.full((n, k), -1, np.int64)
        width = order.shape[1]
        distances[:, :width] = np.take_along_axis(away, order, axis=1)
        positions[:, :width] = np.take_along_axis(near, order, axis=1)
        return distances, positions

    def _candidates(self, asked: Request, queries: Float32, effort: int, depth: int) -> Int64:
        """Return FAISS's candidates of queries, which are as stored; -1 where there is none, or one to be left out."""
        filled, own = self.filled, asked.exclude
        mapped = filled.training.mapped(queries, None, asked.n_jobs)
        selector = None if asked.mask is None else filled.selector(asked.mask)
        if own is None:
            return filled.candidates(mapped, depth, effort, selector, asked.n_jobs)
        near = filled.candidates(mapped, depth + 1, effort, selector, asked.n_jobs)
        is_own = (near == own[:, None]) & (near >= 0)  # -1 is no row, and there may be several
        is_own[:, -1] |= ~is_own.any(axis=1)  # of each query one is left out
        left: Int64 = near[~is_own].reshape(len(near), -1)
        return left

    def _tail(self, asked: Request) -> Pairs:
        """Return distances and positions of the nearest rows that FAISS does not know."""
        store, first = self._store, self.filled.n
        mask = np.zeros(self.n, np.bool_)
        mask[first:] = True if asked.mask is None else asked.mask[first:]
        store.check(slice(first, self.n))
        ranks, wanted = None if asked.in_order else asked.ranks, min(asked.k, int(np.count_nonzero(mask)))
        if not wanted:
            return np.empty((len(asked), 0)), np.empty((len(asked), 0), np.int64)
        found = scan.flat(asked.queries, store.unchecked, store.scale, mask, wanted, asked.exclude, ranks, asked.n_jobs)
        return found[:2]

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        return compare_within(self._store, asked, radii)

    # What is stored and learnt

    def n_bytes(self) -> dict[str, int]:
        return {**super().n_bytes(), "faiss": 0 if self._deferred is None else self.filled.n_bytes}

    def info(self) -> dict[str, Any]:
        training, factory = self.training, self._factory()
        if training is None:
            return {"factory": factory.text, "trained_on": 0, "needs_rows": factory.rows_needed, "calibrations": []}
        return {
            "factory": training.factory.text,
            "trained_on": training.n_rows,
            "not_in_faiss": self._n_tail,
            "calibrations": [each.as_dict() for each in self.calibrations],
        }

    def trained(self) -> Trained | None:
        if self.training is None:
            return None
        return Trained({**self.training.header(), "calibrations": self._as_dicts()}, self.training.arrays())

    @property
    def trained_version(self) -> object:
        return self.training, self._calibrations

    def derived(self) -> Trained | None:
        return None if self._deferred is None else self.filled.as_derived()

    @property
    def derived_from(self) -> object:
        return self.training


def _started(training: Training, derived: Trained | None, store: Vectors, n_jobs: int | None) -> Deferred[Filled]:
    def start() -> Filled:
        with checking_trained():
            return Filled.start(training, derived, store, n_jobs)

    return Deferred(start)
