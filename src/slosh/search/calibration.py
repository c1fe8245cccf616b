"""How much to look at for a recall: measured on the collection itself, to a lower confidence bound.

One rule for all searches. Stored vectors are the queries (`sample_positions`), none of them its own neighbour. A search
brings what fraction of its true neighbours each query finds with a setting; the least setting whose lower confidence
bound reaches the recall is taken (`first_that_holds`), and holds until the collection has doubled or halved.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from ..data.checks import checked_count, random_stream
from ..errors import InputError
from ..native.arrays import Float32, Float64, Int64, Mask
from .state import State

CONFIDENCE = 0.95
CALIBRATION_QUERIES = 500
"""Stored vectors that a calibration asks for, at least."""
FEWEST_QUERIES = 30
"""Of the user's own queries, at least."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, and what it takes.

    k, recall : what was asked for.
    reach : LadderSearch: how many spreads beyond its centroid a list is thought to extend; those that reach the
        neighbours found so far are scanned. LSHSearch: the distance of the k-th nearest was no larger for 95% of the
        queries; those beyond it get more probes.
    depth : what is looked at: vectors compared at most (LadderSearch), codes to re-rank (HammingSearch) or buckets of
        all tables together (LSHSearch, `n_probes`). 0 stands for an exact search: no depth is enough, or none is
        cheaper.
    measured : the mean recall of the sample.
    promised : its one-sided 95% lower confidence bound; at least `recall`.
    n_queries : size of the sample.
    n_rows : size of the collection then.
    smallest : with the same work, cut to fewer neighbours, the bound is at least `recall` for every number of them from
        this on, measured alike; 0 is k.
    candidates : vectors compared for a query, on average; 0 if that was not measured.
    """

    k: int
    recall: float
    reach: float
    depth: int
    measured: float
    promised: float
    n_queries: int
    n_rows: int
    smallest: int = 0
    candidates: float = 0.0

    @classmethod
    def exact_search(cls, k: int, recall: float, n_queries: int, n_rows: int) -> Calibration:
        """Return the calibration that says: search exactly."""
        return cls(k, recall, 0.0, 0, 1.0, 1.0, n_queries, n_rows, 1, float(n_rows))

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> Calibration:
        """Return what `as_dict` returned; raise ValueError or TypeError for anything else."""
        made = cls(**about)
        counts = (made.k, made.depth, made.n_queries, made.n_rows, made.smallest)
        if any(type(x) is not int or x < 0 for x in counts) or not made.k:
            raise ValueError(f"a calibration counts by {counts!r:.100}")
        numbers = (made.recall, made.reach, made.measured, made.promised, made.candidates)
        if any(isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x) for x in numbers):
            raise ValueError(f"a calibration has {numbers!r:.100}")
        return made

    @property
    def exact(self) -> bool:
        """Whether it says to search exactly."""
        return self.depth == 0

    @property
    def n_probes(self) -> int:
        """The depth of an LSHSearch: buckets looked into, of all tables together."""
        return self.depth

    @property
    def note(self) -> str:
        """What to tell the user if the search is exact although less was asked for."""
        return f"recall {self.recall:g} of the {self.k} nearest cannot be promised by probes: such searches are exact"

    def covers(self, k: int, recall: float, n_rows: int) -> bool:
        """Return whether it may stand for this question, in a collection of this size."""
        return (self.smallest or self.k) <= k <= self.k and self.recall == recall and self.holds(n_rows)

    def holds(self, n_rows: int) -> bool:
        """Return whether it still holds: until the collection has doubled or halved."""
        return self.n_rows / 2 <= n_rows <= self.n_rows * 2

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Calibrations:
    """What was measured since training: shared by the states of a history, and measured once for all of them."""

    def __init__(self, known: Iterable[dict[str, Any]] = ()) -> None:
        """`known` is what `as_dicts` returned."""
        made = [Calibration.from_dict(about) for about in known]
        self._known = {(each.k, each.recall): each for each in made}
        self._lock = threading.Lock()
        self.version = 0
        """Counts what was measured."""

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return all of them, for JSON."""
        return [each.as_dict() for each in self.all()]

    def all(self) -> list[Calibration]:
        """Return all of them, by k and recall."""
        return [each for _, each in sorted(self._known.copy().items())]

    def covering(self, k: int, recall: float, n_rows: int, n_allowed: int) -> Calibration | None:
        """Return the one that stands for this question with the least work, if there is one."""
        known = [c for c in self._known.copy().values() if c.covers(k, recall, n_rows) and c.k <= n_allowed]
        return min(known, key=lambda c: c.k, default=None)

    def get(
        self, k: int, recall: float, n_rows: int, measure: Callable[[], Calibration], again: bool = False
    ) -> Calibration:
        """Return the one of this k and recall; `measure` it if there is none that holds, or if `again`."""
        known = self._known.get((k, recall))
        if known is None or again or not known.holds(n_rows):
            with self._lock:
                known = self._known.get((k, recall))
                if known is None or again or not known.holds(n_rows):
                    known = self._known[k, recall] = measure()
                    self.version += 1
        return known


class CalibratedState(State):
    """A state that measures what a recall takes, at the first search that asks for it."""

    _calibrations: Calibrations
    _plans: dict[tuple[int, float], Calibration]

    def _own(self) -> dict[str, Any]:
        return {"_plans": {}}

    def calibrate(self, k: int, recall: float, queries: Float32 | None = None) -> Calibration:
        k = checked_calibration(k, self.n_alive, queries)
        self._plans.pop((k, recall), None)
        return self._calibrations.get(
            k, recall, self.n_alive, lambda: self._measured(k, recall, queries), again=queries is not None
        )

    @abstractmethod
    def _measured(self, k: int, recall: float, queries: Float32 | None) -> Calibration:
        """See `calibrate`."""

    def _plan(self, k: int, recall: float) -> Calibration:
        """Return what was measured, now if not before.

        A state keeps its first choice, so that it gives the same answers whatever is measured later.
        """
        plan = self._plans.get((k, recall))
        return plan or self._plans.setdefault((k, recall), self.calibrate(k, recall))


def checked_calibration(k: Any, n_rows: int, queries: Any = None) -> int:
    """Return k; refuse what a calibration cannot be measured with."""
    if n_rows < 2:
        raise InputError("calibrate needs two rows or more", "add vectors first")
    if queries is not None and len(queries) < FEWEST_QUERIES:
        problem = f"queries: {len(queries)} are too few to measure a recall with"
        raise InputError(problem, f"give {FEWEST_QUERIES} or more", argument="queries")
    return checked_count("k", k)


def sample_positions(alive: Mask, recall: float, random_state: Any) -> Int64:
    """Return the positions that stand in for queries: more of them for a recall near 1, which fewer cannot prove."""
    there = np.flatnonzero(alive)
    wanted = np.clip(4 / max(1 - recall, 1e-3), CALIBRATION_QUERIES, 8 * CALIBRATION_QUERIES)
    return np.sort(random_stream(random_state).choice(there, min(len(there), int(wanted)), replace=False))


def provable(recall: float, n_queries: int) -> bool:
    """Return whether a sample of this size can show a recall at all: it never shows that a search is exact."""
    return recall < 1 and lower_bound(np.ones(n_queries)) >= recall


def lower_bound(recalls: Float64) -> float:
    """Return the one-sided 95% lower confidence bound of a mean recall, by Student's t.

    As if one more query had found nothing: a sample in which every query finds all is no proof of recall 1.

    >>> round(lower_bound(np.ones(999)), 4)
    0.9974
    """
    with_failure = np.append(recalls, 0.0)
    n = len(with_failure)
    spread = with_failure.std(ddof=1) / np.sqrt(n)
    return float(with_failure.mean() - student.ppf(CONFIDENCE, n - 1) * spread)


def first_that_holds(n: int, holds: Callable[[int], bool]) -> int:
    """Return the first i in [0, n) that holds, where all after one that holds do; n if none does."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def measured_depth(
    depths: Sequence[int], recalls: Callable[[int], Float64], recall: float
) -> tuple[int, float, float] | None:
    """Return the least depth whose lower confidence bound reaches `recall`, its mean recall and the bound.

    recalls(depth) is the fraction of its true neighbours that each query finds. None: no depth is enough.
    """
    at = first_that_holds(len(depths), lambda i: lower_bound(recalls(depths[i])) >= recall)
    if at == len(depths):
        return None
    reached = recalls(depths[at])
    return depths[at], float(reached.mean()), lower_bound(reached)


def found_part(found: Int64, truth: Int64) -> Float64:
    """Return which fraction of its true neighbours (n, k) each query has among those found (n, k)."""
    query = np.arange(len(truth))[:, None] * (int(max(found.max(initial=0), truth.max(initial=0))) + 2)
    return np.asarray(np.isin(truth + query, np.where(found >= 0, found + query, -1)).mean(axis=1))
