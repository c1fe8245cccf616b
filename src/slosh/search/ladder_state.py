"""What LadderSearch holds: stored vectors, and their prefixes in lists around centres.

Queries come in and climb the ladder: lists, prefixes in eight bits, vectors. A state that is not trained has no lists:
every search compares all vectors.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data.checks import random_stream
from ..native import kernel, scan
from ..native.arrays import Float32, Float64, Int64, Mask
from .basis import ROUNDING
from .calibration import CalibratedState, Calibration
from .comparing import compare_all, compare_within, unfilled
from .cost_model import cost, cost_of_each, cost_of_exact, most_compared_alone
from .filing import Filing, Training, is_of_floats, learn, warn_if_coarse
from .ladder_trial import LadderTrial
from .state import Allowed, Deferred, Found, FoundWithin, Request, Stored, Trained, checking_trained, exact_found
from .store import FloatVectors, Vectors

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
CAREFUL_REACH = 1.15
"""How many times as large the reach is then."""
EXACT_REACH = 0.5
"""With this reach an exact search looks for neighbours first: what it finds bounds the distance of the others."""


KNOWN_ROUTES = 256
"""Questions of which a state remembers how they are answered."""


class Route(NamedTuple):
    """How a state answers a question for k neighbours with a recall, without a filter: see `Ladder.nearest`."""

    ladder: scan.Ladder
    wanted: int  # k, or more
    depth: int
    reach: float
    promise: float


class LadderState(CalibratedState):
    """See the module. `training` and the filing are None before `train`.

    What a cache holds of the filing is read, and rows that it lacks are filed, when the filing is first needed.
    """

    search: LadderSearch
    training: Training | None
    _deferred: Deferred[Filing] | None
    _ladder: scan.Ladder | None  # made by the first search; two that make it at a time make the same
    _ready: dict[tuple[int, float], bool]  # by k and recall, what follows from the state alone
    _routes: dict[tuple[int, float], Route]

    def __init__(self, search: LadderSearch, stored: Stored, store: Vectors) -> None:
        super().__init__(search, stored, store)
        self._precision_checked = threading.Event()
        self.training = self._deferred = None
        self.__dict__.update(self._own())
        if stored.trained is not None:
            self.training = Training.from_trained(stored.trained, self.dim)
            self._deferred = _started(self.training, stored.derived, store, self.alive, search.n_jobs)
            if stored.derived is None:
                self._deferred.value  # noqa: B018  (if it cannot be made, that is said now)
            if is_of_floats(stored.trained):
                self._calibrations = self._outdated()

    def _own(self) -> dict[str, Any]:
        return {"_ladder": None, "_ready": {}, "_routes": {}}

    @property
    def _filing(self) -> Filing | None:
        return None if self._deferred is None else self._deferred.value

    # Changes

    def _grown(self, store: Vectors, **changes: Any) -> LadderState:
        filing = None if self._filing is None else self._filing.extend(store, None, self.search.n_jobs)
        return super()._grown(store, _deferred=_known(filing))

    def _without(self, positions: Int64) -> dict[str, Any]:
        return {"_deferred": _known(None if self._filing is None else self._filing.remove(positions))}

    # Training and calibration

    @property
    def train_due(self) -> bool:
        if self.n_alive < TRAIN_FROM_ROWS or self.training is None or self._filing is None:
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
        return self._with(training=training, _deferred=_known(filing), _calibrations=self._outdated())

    def _check_precision(self) -> None:
        """Warn once, of a collection that is too small to train, if 16 bits are not enough for it."""
        if self.n_alive >= 20 and not self._precision_checked.is_set():
            self._precision_checked.set()
            warn_if_coarse(self._store.errors, self._store.take(np.flatnonzero(self.alive)[:512]))

    def _trial(self, queries: Float32, own: Int64 | None, k: int) -> LadderTrial:
        asked = self._request(queries, k, exclude=own)
        width = self._filed.lists.centres.shape[1]

        def climb(which: Mask | slice, k: int, reach: float, depth: int, exact: bool = False) -> tuple[Int64, float]:
            _, positions, compared, scanned = self._climb(asked.part(which), k, reach, depth, exact)
            return positions, cost(float(scanned.mean()), width, float(compared.mean()), self.dim)

        truth, price = climb(slice(None), k, EXACT_REACH, 4 * k, True)
        return LadderTrial(truth, climb, price)

    @property
    def _filed(self) -> Filing:
        assert self._filing is not None, "only a trained state has lists"
        return self._filing

    # Searches

    def target(self, recall: float | None) -> float:
        return self.search.recall if recall is None else recall

    def is_exact(self, k: int, n_allowed: int, recall: float) -> bool:
        small = self._deferred is None or self.n_alive < TRAIN_FROM_ROWS or 32 * k >= n_allowed
        # What a filter leaves may lie anywhere: what was measured without it says nothing about it.
        return recall == 1.0 or small or n_allowed < LOOSE_FILTER * self.n_alive

    def is_ready(self, k: int, recall: float | None) -> bool:
        question = k, self.target(recall)
        if question in self._ready:
            return True
        if ready := super().is_ready(k, recall):
            _remember(self._ready, question, True)
        return ready

    def nearest(
        self,
        queries: Float32,
        k: int,
        *,
        allowed: Allowed | None = None,
        recall: float | None = None,
        exclude: Int64 | None = None,
        ranks: Int64 | None = None,
    ) -> Found:
        # One query takes so little time that finding out how to answer it would take as much.
        if allowed is not None and len(queries) == 1 and exclude is None and k <= allowed.n <= self._n_compared_alone:
            return self._compare_allowed(queries, k, allowed, ranks)
        route = self._routes.get((k, self.target(recall)))
        if route is None or len(queries) != 1 or allowed is not None or exclude is not None:
            return super().nearest(queries, k, allowed=allowed, recall=recall, exclude=exclude, ranks=ranks)
        ladder, wanted, depth, reach, promise = route
        threads = kernel.threads(self.search.n_jobs, 1)
        distances, positions, scanned, compared = ladder.nearest(
            queries, wanted, depth, reach, False, None, None, ranks, threads
        )
        if wanted > k:
            distances, positions = distances[:, :k], positions[:, :k]
        if positions.item(k - 1) < 0:  # float32 overflowed
            return super().nearest(queries, k, recall=recall, ranks=ranks)
        return Found(np.sqrt(distances, distances), positions, compared, scanned, promise, None)

    @property
    def _n_compared_alone(self) -> int:
        """A filter that leaves no more rows than this is answered by comparing each, for one query; -1: none is."""
        filing = self._filing
        if filing is None:
            return -1
        few = most_compared_alone(self.n, filing.basis.width, self.dim)
        return min(few, math.ceil(LOOSE_FILTER * self.n_alive) - 1)

    def _compare_allowed(self, queries: Float32, k: int, allowed: Allowed, ranks: Int64 | None) -> Found:
        """Compare one query with each of the allowed vectors, of which there are k or more."""
        store, mask = self._store, allowed.mask
        if not store.is_checked:
            store.check(np.flatnonzero(mask))
        distances, positions, tied = scan.flat(queries, store.unchecked, store.scale, mask, k, None, ranks, 1)
        compared = np.array((allowed.n,), np.int64)
        return Found(distances, positions, compared, np.array((0,), np.int64), 1.0, tied)

    def _nearest(self, asked: Request) -> Found:
        k, n_allowed, target = asked.k, asked.n_allowed, self.target(asked.recall)
        if self._deferred is None:
            self._check_precision()
        plan = None if self.is_exact(k, n_allowed, target) else self.plan(k, target)
        if plan is None or plan.exact:
            return self._nearest_exactly(asked)
        distances, positions, compared, scanned = self._climb_by(plan, asked)
        self._note_route(plan, asked)
        short = unfilled(positions, k, asked, self.alive)
        if len(short):  # float32 overflowed
            found = compare_all(self._store, asked.part(short))
            distances[short], positions[short] = found.distances, found.positions
            compared[short] += n_allowed
        # Nothing was measured for a filter, not even for one that leaves nearly all.
        return Found(distances, positions, compared, scanned, plan.promise(k) if asked.allowed is None else None, None)

    def _nearest_exactly(self, asked: Request) -> Found:
        if self._filing is None or (asked.allowed is not None and self._few(asked)):
            return compare_all(self._store, asked)
        wanted = min(asked.k + 1, asked.n_allowed)  # one more shows a tie
        distances, positions, compared, scanned = self._climb(asked, wanted, EXACT_REACH, 4 * asked.k, True)
        short = unfilled(positions, wanted, asked, self.alive)
        if len(short):  # float32 overflowed
            found = compare_all(self._store, asked.part(short, wanted))
            distances[short], positions[short] = found.distances, found.positions
            compared[short] += asked.n_allowed
        return exact_found(distances, positions, asked.k, compared, scanned)

    def _climb_by(self, plan: Calibration, asked: Request) -> tuple[Float64, Int64, Int64, Int64]:
        """Climb as was calibrated; with more care if rows were added since that are unlike those it was measured on.

        Fewer neighbours than the plan is for are the first of as many: which lists are scanned hangs on their number.
        """
        filing, k, depth = self._filed, _wanted(plan, asked), plan.depth
        if not self._is_unlike(plan):
            distances, positions, compared, scanned = self._climb(asked, k, plan.reach, depth, False)
            return distances[:, : asked.k], positions[:, : asked.k], compared, scanned
        assert self.training is not None
        prefixes = filing.basis.prefixes(self._store.as_stored(asked.queries), None, asked.n_jobs)[0]
        blind = filing.leaves_out(prefixes, self.training)
        n = len(asked)
        found = np.empty((n, k)), np.empty((n, k), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        careful = CAREFUL_REACH * plan.reach, depth, False
        for which, how in ((~blind, careful), (blind, (EXACT_REACH, 4 * k, True))):
            if which.any():
                part = self._climb(asked.part(which), k, *how)
                for whole, some in zip(found, part, strict=True):
                    whole[which] = some
        return found[0][:, : asked.k], found[1][:, : asked.k], *found[2:]

    def _note_route(self, plan: Calibration, asked: Request) -> None:
        """Remember how this question was answered, if nothing about its queries decided that."""
        question, filing, ladder = (asked.k, self.target(asked.recall)), self._filed, self._ladder
        if question in self._routes or asked.allowed is not None or ladder is None or self._is_unlike(plan):
            return
        reach = plan.reach * math.sqrt(filing.lists.usual_radius)
        depth, promise = min(plan.depth, self.n), plan.promise(asked.k)
        _remember(self._routes, question, Route(ladder, _wanted(plan, asked), depth, reach, promise))

    def _is_unlike(self, plan: Calibration) -> bool:
        """Return whether rows that were added since a calibration are unlike those that it was measured on."""
        return self._filed.lists.n_founded_since(plan.n_added) > UNLIKE_ROWS * self.n

    def _few(self, asked: Request) -> bool:
        """Return whether comparing each allowed vector costs less than a scan of all prefixes."""
        each = cost_of_each(asked.n_allowed, len(asked), self.dim)
        return each < cost_of_exact(self.n, self._filed.basis.width, len(asked))

    def _climb(
        self, asked: Request, k: int, reach: float, depth: int, exact: bool
    ) -> tuple[Float64, Int64, Int64, Int64]:
        """Return distances and positions (n_queries, k), and how many vectors were compared and prefixes scanned.

        A list is scanned if |query - centre|^2 exceeds that of the nearest list by no more than reach times the root of
        the usual radius of a list times the distance of the k-th row found to the power 1.5.
        """
        ranks, threads = None if asked.in_order else asked.ranks, kernel.threads(self.search.n_jobs)
        reach *= math.sqrt(self._filed.lists.usual_radius)
        mask = None if asked.allowed is None else asked.mask  # the lists know which positions are alive
        squares, positions, scanned, compared = self._kernel_ladder.nearest(
            asked.queries, k, min(depth, self.n), reach, exact, mask, asked.exclude, ranks, threads
        )
        return np.sqrt(squares, out=squares), positions, compared, scanned

    @property
    def _kernel_ladder(self) -> scan.Ladder:
        if self._ladder is None:
            filing, store = self._filed, self._store
            lists = filing.lists
            marks = None if kernel.native is None else store.marks()
            vectors = store.array if marks is None else store.unchecked
            self._ladder = scan.Ladder(
                vectors, store.scale, *filing.basis.filled, ROUNDING, filing.farthest, lists.heads, lists.codes,
                lists.biases, lists.rests, lists.slots, lists.masks, lists.steps, lists.errors, lists.radii,
                lists.start, lists.order, marks,
            )  # fmt: skip
        return self._ladder

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        if self._filing is None:
            self._check_precision()
            return compare_within(self._store, asked, radii)
        mask, threads = None if asked.allowed is None else asked.mask, kernel.threads(self.search.n_jobs)
        found_by_query = self._kernel_ladder.within(asked.queries, radii, mask, threads)
        offsets, squares, positions, scanned, compared = found_by_query
        offsets, squares, positions = scan.within(squares, positions, offsets, asked.ranks, radii)
        return FoundWithin(offsets, np.sqrt(squares), positions, compared, scanned, 1.0)

    # What is stored and learnt

    @property
    def precision(self) -> int:
        """Bits of a stored number."""
        return 32 if isinstance(self._store, FloatVectors) else 16

    def holds(self, positions: Int64, vectors: Float32, apart: Float64 | None = None) -> Mask:
        vectors = np.ascontiguousarray(vectors, np.float32)
        held = super().holds(positions, vectors, apart)
        if self._filing is None:
            return held
        stored = self._store.as_stored(vectors) if apart is None else self._store.take(positions)
        return held & self._filing.holds(positions, stored, self.alive, self.search.n_jobs)

    def n_bytes(self) -> dict[str, int]:
        learnt = {"prefixes": 0, "basis": 0}
        if self._filing is not None:
            basis = self._filing.basis
            learnt = {"prefixes": self._filing.lists.n_bytes, "basis": basis.directions.nbytes + basis.middle.nbytes}
        return {**super().n_bytes(), **learnt, "rows": 9 * self.n}

    def info(self) -> dict[str, Any]:
        training, filing = self.training, self._filing
        if training is None or filing is None:
            return {"trained_on": 0, "n_components": 0, "n_lists": 0, "calibrations": [], "retrain": None}
        return {
            "trained_on": training.n_rows,
            "n_components": len(filing.basis.directions) or self.dim,
            "n_lists": len(filing.lists.radii),
            "calibrations": [each.as_dict() for each in self.calibrations],
            "retrain": filing.reason_to_train(training, self.n_alive),
        }

    def trained(self) -> Trained | None:
        if self.training is None:
            return None
        header = {**self.training.header(), "calibrations": self._as_dicts()}
        return Trained(header, self.training.arrays())

    def trained_among(self, kept: Int64) -> Trained | None:
        trained = super().trained_among(kept)
        if trained is None or self.training is None:
            return None
        n_positions = int(np.searchsorted(kept, self.training.n_positions))
        return trained._replace(header={**trained.header, "positions": n_positions})

    @property
    def trained_version(self) -> object:
        return self.training, self._calibrations

    def derived(self) -> Trained | None:
        return None if self._filing is None else self._filing.as_derived()

    @property
    def derived_from(self) -> object:
        return self.training


def _started(
    training: Training, derived: Trained | None, store: Vectors, alive: Mask, n_jobs: int | None
) -> Deferred[Filing]:
    def start() -> Filing:
        with checking_trained():
            return Filing.start(training, derived, store, alive, n_jobs)

    return Deferred(start)


def _known(filing: Filing | None) -> Deferred[Filing] | None:
    return None if filing is None else Deferred.of(filing)


def _wanted(plan: Calibration, asked: Request) -> int:
    """Return how many neighbours to look for: as many as the plan was measured with, if there are so many."""
    return max(asked.k, min(plan.k, asked.n_allowed))


def _remember(known: dict[Any, Any], question: tuple[int, float], answer: Any) -> None:
    """Keep an answer, for few enough questions."""
    if len(known) >= KNOWN_ROUTES:
        known.clear()
    known[question] = answer
