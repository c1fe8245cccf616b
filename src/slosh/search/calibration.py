"""How much to look at for a recall: measured on the collection itself, to a lower confidence bound.

One rule for all searches. Stored vectors are the queries (`sample_positions`), none of them its own neighbour. Two
parts are made of them. One part chooses the cheapest setting that promises to be enough; the other one, which had no
part in the choice, says what recall that setting has, and whether a little less work is enough, too (`settle`). What
was measured holds until the collection has doubled or halved. A state never measures while it searches: writers, `tune`
and the plain searches do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from ..checkpoints import checkpoint
from ..data.checks import checked_count, random_stream
from ..data.progress import ProgressBar
from ..errors import InputError
from ..native.arrays import Float32, Float64, Int64, Mask
from .state import Found, State, Stored, Trained

C = TypeVar("C", bound="CalibratedState")

CONFIDENCE = 0.95
MEASURING_QUERIES = 500
"""Stored vectors that a recall is measured with, at least."""
CHOOSING_SHARE = 4
"""One query in so many chooses the setting, and the others measure it."""
CHANCE, TRIES = 0.8, 3
"""How likely the setting that is chosen is to pass the measurement, and how many are measured if it does not."""
DOUBT = float(norm.ppf(CHANCE))
HOLDS_FOR_GROWTH = 2.0
"""What was measured holds until the collection has grown, or shrunk, by this factor."""
MEASURED_AGAIN_GROWTH = 1.5
"""A writer measures it again from this factor on, so that it still holds for those who search meanwhile."""
USUAL_SHARE = 0.99
"""A query is unlike the collection if its nearest is farther than that of this part of the queries."""
EACH_WITH_EACH = 1024
"""Up to so many pairs of true and found neighbours of a query are compared one by one."""
GRID_K, GRID_RECALLS = 10, (0.9, 0.95, 0.99)
"""What a writer measures, and the default recall of the search."""
MANY_K, MANY_FROM_ROWS = 100, 1 << 17
"""And for many neighbours the default recall alone, as that takes several times as long; from so many rows on, as with
fewer an exact search is as good."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, and what it takes.

    k, recall : what was asked for.
    reach : LadderSearch: how much farther than the nearest list others may be that are scanned (docs/search.md).
        LSHSearch: the distance of the k-th nearest was no larger for 95% of the queries; those beyond it get more
        probes. FaissSearch: lists probed (nprobe), or candidates that a graph keeps (efSearch).
    depth : what is looked at: vectors compared at most (LadderSearch), codes to re-rank (HammingSearch), buckets of all
        tables together (LSHSearch, `n_probes`), or candidates of FAISS whose vectors are compared (FaissSearch). 0
        stands for an exact search: no depth is enough, or none is cheaper.
    measured : the mean recall of queries that the setting was not chosen by.
    promised : its one-sided 95% lower confidence bound, at least `recall`; and `recall` if the queries that measured it
        also chose it (see `settle`).
    n_queries : how many queries these are.
    n_rows : size of the collection then.
    n_added : rows that had ever been added then, those that were removed since included.
    smallest : with the same work, cut to fewer neighbours, the bound is at least `recall` for every number of them from
        this on, measured alike; 0 is k.
    candidates : vectors compared for a query, on average, as predicted or measured; 0 if that is not known.
    nearest_within : of 99% of the queries the nearest row was no farther than this; None if that is not known.
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
    n_added: int = 0
    nearest_within: float | None = None

    @classmethod
    def exact_search(cls, k: int, recall: float, n_queries: int, n_rows: int) -> Calibration:
        """Return the calibration that says: search exactly."""
        return cls(k, recall, 0.0, 0, 1.0, 1.0, n_queries, n_rows, 1, float(n_rows))

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> Calibration:
        """Return what `as_dict` returned; raise ValueError or TypeError for anything else."""
        made = cls(**about)
        counts = (made.k, made.depth, made.n_queries, made.n_rows, made.smallest, made.n_added)
        if any(type(x) is not int or x < 0 for x in counts) or not made.k:
            raise ValueError(f"a calibration counts by {counts!r:.100}")
        numbers = [made.recall, made.reach, made.measured, made.promised, made.candidates]
        numbers += [] if made.nearest_within is None else [made.nearest_within]
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

    def covers(self, k: int, recall: float) -> bool:
        """Return whether it may stand for this question."""
        return (self.smallest or self.k) <= k <= self.k and recall <= self.recall

    def promise(self, k: int) -> float:
        """Return what is promised for k neighbours, which it covers."""
        return self.promised if k == self.k else self.recall

    def holds(self, n_rows: int, n_added: int, growth: float = HOLDS_FOR_GROWTH) -> bool:
        """Return whether it still holds: until the collection has shrunk by this factor, or would have grown by it if
        nothing had been removed. So rows that are replaced count as new ones.
        """
        if not self.n_rows:  # measured before the last training
            return False
        return self.n_rows / growth <= n_rows and n_added - self.n_added <= self.n_rows * (growth - 1)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Setting(NamedTuple):
    """How much to look at: `reach`, `depth` and `candidates` as in `Calibration`."""

    reach: float
    depth: int
    candidates: float


class Trial(ABC):
    """Queries whose true neighbours are known, in two parts; each search has its own.

    Whether neighbours are found is a matrix of bool (n_queries, k): entry (i, j) is the j-th nearest of query i. So the
    recall of fewer neighbours is that of its first columns.
    """

    def __init__(self, n_queries: int) -> None:
        self.choosing = np.arange(n_queries) % CHOOSING_SHARE == 0
        self.measuring = ~self.choosing
        self.n_measuring = int(np.count_nonzero(self.measuring))

    @abstractmethod
    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        """Return the cheapest setting that finds enough for the first part, and looks at more than one that was tried.

        None: an exact search is cheaper.
        """

    @abstractmethod
    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        """Return what the queries of the second part find."""

    def cheaper(self, setting: Setting) -> Iterator[Setting]:
        """Yield settings that look at less and less, in an order that the second part has no say in."""
        return iter(())


def settle(trial: Trial, k: int, recall: float, n_rows: int) -> Calibration:
    """Choose a setting by one part of the queries, and state its recall from the other part.

    If it has enough, cheaper ones are measured in turn until one has not. That asks the same queries several times, and
    yet is no more likely to end with a setting of less than `recall` than one measurement would be: to pass the last
    one that has enough, the first one that has not would have to seem enough. So no more than `recall` is stated then,
    and only of numbers of neighbours for which every setting on the way seemed enough.
    """
    n, k_there, tried = trial.n_measuring, min(k, n_rows - 1), Setting(-np.inf, 0, 0.0)

    def enough(hits: Mask) -> bool:
        return expected_bound(hits.mean(axis=1), n) >= recall

    def measure(setting: Setting) -> Calibration | None:
        checkpoint()
        means = np.cumsum(trial.found(setting, k_there, recall), axis=1) / np.arange(1, k_there + 1)
        bounds = lower_bounds(means)
        if bounds[-1] < recall:
            return None
        too_few = np.flatnonzero(bounds < recall)
        smallest = int(too_few[-1]) + 2 if len(too_few) else 1
        measured, promised = float(means[:, -1].mean()), float(bounds[-1])
        reach, depth, candidates = setting
        return Calibration(k, recall, reach, depth, measured, promised, n, n_rows, smallest, candidates)

    for _ in range(TRIES if provable(recall, n) else 0):
        setting = trial.choose(k_there, recall, enough, tried)
        if setting is None:
            break
        if found := measure(setting):
            for less in trial.cheaper(setting):
                if (next_found := measure(less)) is None:
                    break
                smallest = max(found.smallest, next_found.smallest)
                found = replace(next_found, promised=recall, smallest=smallest)
            return found
        tried = setting
    return Calibration.exact_search(k, recall, n, n_rows)


class CalibratedState(State):
    """A state that knows what a recall takes, as far as it was measured. A question that nothing covers is exact."""

    _calibrations: tuple[Calibration, ...] = ()
    _nearest_within: float | None = None

    @property
    def _seed(self) -> Any:
        return getattr(self.search, "random_state", 0)

    def __init__(self, search: Any, stored: Stored, store: Any) -> None:
        super().__init__(search, stored, store)
        if stored.trained is not None:
            self._calibrations = tuple(Calibration.from_dict(each) for each in stored.trained.header["calibrations"])
            self._nearest_within = largest_known(each.nearest_within for each in self._calibrations)

    @abstractmethod
    def target(self, recall: float | None) -> float | None:
        """Return the recall to reach if a search is asked for this one; None: nothing is promised."""

    @abstractmethod
    def is_exact(self, k: int, n_allowed: int, recall: float) -> bool:
        """Return whether a search for k of so many allowed positions is exact by itself, whatever was measured."""

    @abstractmethod
    def _trial(self, queries: Float32, own: Int64 | None, k: int) -> Trial:
        """Return what settings for up to k neighbours are measured with; `own` are the positions of the queries."""

    def plan(self, k: int, recall: float) -> Calibration | None:
        """Return what was measured for this question or, with the least surplus, for one that includes it."""
        known = (each for each in self._holding() if each.covers(k, recall))
        return min(known, key=lambda each: (each.k, each.recall), default=None)

    @property
    def calibrations(self) -> list[Calibration]:
        """What was measured and still holds, by k and recall."""
        return sorted(self._holding(), key=lambda each: (each.k, each.recall))

    def _holding(self, growth: float = HOLDS_FOR_GROWTH) -> Iterator[Calibration]:
        return (each for each in self._calibrations if each.holds(self.n_alive, self.n, growth))

    def _as_dicts(self) -> list[dict[str, Any]]:
        """Return all that was measured, for JSON."""
        return [each.as_dict() for each in self._calibrations]

    def trained_among(self, kept: Int64) -> Trained | None:
        trained = self.trained()
        if trained is None:
            return None
        measured = [replace(each, n_added=int(np.searchsorted(kept, each.n_added))) for each in self._calibrations]
        return trained._replace(header={**trained.header, "calibrations": [each.as_dict() for each in measured]})

    def _outdated(self) -> tuple[Calibration, ...]:
        """Return what was measured as something to be measured again, after a training."""
        return tuple(replace(each, n_rows=0) for each in self._calibrations)

    # Measuring

    def calibration(self, k: int, recall: float) -> Calibration | None:
        """Return what was measured for exactly this, if it still holds; an exact search needs no measuring."""
        if self.is_exact(k, self.n_alive, recall):
            return Calibration.exact_search(k, recall, 0, self.n_alive)
        return next((each for each in self.calibrations if (each.k, each.recall) == (k, recall)), None)

    def lacks(self, k: int, recall: float | None) -> bool:
        target = self.target(recall)
        if target is None or self.is_exact(k, self.n_alive, target):
            return False
        return not any(each.recall == target and each.covers(k, target) for each in self._holding())

    def calibrate(self: C, k: int, recall: float | None = None, queries: Float32 | None = None) -> C:
        target = self.target(recall)
        assert target is not None
        k = checked_calibration(k, self.n_alive)
        if self.is_exact(k, self.n_alive, target):
            return self
        if queries is not None:
            check_enough(queries, target)
        return self._measure([(k, target)], queries)

    def calibrated(self: C, again: Iterable[tuple[int, float]] = (), eager: bool = True) -> C:
        due = self._due(again, eager)
        return self._measure(due) if due else self

    def _due(self, again: Iterable[tuple[int, float]], eager: bool) -> list[tuple[int, float]]:
        """Return what a writer is to measure: the grid, and what was asked for before, as far as it does not hold."""
        usual = self.target(None) or GRID_RECALLS[0]
        pairs = {(GRID_K, recall) for recall in (*GRID_RECALLS, usual)}
        pairs |= {(MANY_K, usual)} if eager and self.n_alive >= MANY_FROM_ROWS else set()
        pairs |= {(each.k, each.recall) for each in self._calibrations} | set(again)
        fresh = {(each.k, each.recall) for each in self._holding(MEASURED_AGAIN_GROWTH)}
        return sorted(pair for pair in pairs - fresh if not self.is_exact(pair[0], self.n_alive, pair[1]))

    def _measure(self: C, pairs: Sequence[tuple[int, float]], queries: Float32 | None = None) -> C:
        """Return the state with these pairs of k and recall measured, all of them with the same queries."""
        own = None
        if queries is None:
            own = sample_positions(self.alive, max(recall for _, recall in pairs), self._seed)
            queries = self._store.take(own)
        known, new = {(each.k, each.recall): each for each in self._calibrations}, {}
        with ProgressBar(total=len(pairs), unit="recall", desc="calibrate") as bar:
            trial = self._trial(queries, own, min(max(k for k, _ in pairs), self.n_alive - 1))
            for k, recall in pairs:
                new[k, recall] = replace(settle(trial, k, recall, self.n_alive), n_added=self.n)
                bar.update()
        # What a search with the least of these finds is near enough, and costs little.
        least, lowest = min(new)
        made = self._with(_calibrations=tuple(new.values()))
        distances = made.nearest(queries, min(least, self.n_alive - 1), recall=lowest, exclude=own).distances[:, 0]
        usual = float(np.quantile(distances[np.isfinite(distances)], USUAL_SHARE))
        known |= {pair: replace(each, nearest_within=usual) for pair, each in new.items()}
        largest = largest_known(each.nearest_within for each in known.values())
        return self._with(_calibrations=tuple(known.values()), _nearest_within=largest)

    def unlike(self, found: Found) -> Mask | None:
        if self._nearest_within is None or not found.distances.shape[1]:
            return None
        return np.asarray(found.distances[:, 0] > self._nearest_within)


def largest_known(numbers: Iterable[float | None]) -> float | None:
    """Return the largest of the numbers that are not None; None if there is none."""
    return max((each for each in numbers if each is not None), default=None)


def checked_calibration(k: Any, n_rows: int) -> int:
    """Return k; refuse a collection that nothing can be measured with."""
    if n_rows < 2:
        raise InputError("calibrate needs two rows or more", "add vectors first")
    return checked_count("k", k)


def check_enough(queries: Float32, recall: float) -> None:
    """Refuse queries that are too few to show a recall."""
    if len(queries) < (needed := queries_needed(recall)):
        problem = f"queries: {len(queries)} are too few to show a recall of {recall:g}"
        raise InputError(problem, f"give {needed} or more, or ask for a lower recall", argument="queries")


@lru_cache(maxsize=64)
def queries_needed(recall: float) -> int:
    """Return how many queries can show a recall if all of them find everything.

    >>> queries_needed(0.9), queries_needed(0.99)
    (36, 354)
    """
    return first_that_holds(1 << 40, lambda n: n > 2 and provable(recall, n - -(-n // CHOOSING_SHARE)))


def sample_positions(alive: Mask, recall: float, random_state: Any) -> Int64:
    """Return the positions that stand in for queries: more of them for a recall near 1, which fewer cannot prove."""
    there = np.flatnonzero(alive)
    measuring = np.clip(4 / max(1 - recall, 1e-3), MEASURING_QUERIES, 8 * MEASURING_QUERIES)
    wanted = round(measuring * CHOOSING_SHARE / (CHOOSING_SHARE - 1))
    return np.sort(random_stream(random_state).choice(there, min(len(there), wanted), replace=False))


def provable(recall: float, n_queries: int) -> bool:
    """Return whether a sample of this size can show a recall at all: it never shows that a search is exact."""
    return recall < 1 and bool(_bound(1.0, 0.0, n_queries) >= recall)


def lower_bound(recalls: Float64) -> float:
    """Return the one-sided 95% lower confidence bound of a mean recall, by Student's t.

    As if one more query had found nothing: a sample in which every query finds all is no proof of recall 1.

    >>> round(lower_bound(np.ones(999)), 4)
    0.9974
    """
    return float(lower_bounds(recalls[:, None])[0])


def lower_bounds(recalls: Float64) -> Float64:
    """Return `lower_bound` of each column."""
    return np.asarray(_bound(recalls.mean(axis=0), recalls.var(axis=0, ddof=1), len(recalls)))


def expected_bound(recalls: Float64, n: int) -> float:
    """Return what the lower bound of n other queries is at least, with the probability CHANCE, if they are alike."""
    mean, variance = recalls.mean(), recalls.var(ddof=1)
    doubt = DOUBT * np.sqrt(variance * (1 / len(recalls) + 1 / n))
    return float(_bound(mean, variance, n) - doubt)


def _bound(mean: Any, variance: Any, n: int) -> Any:
    """Return the bound of n queries with this mean and variance, and one more that finds nothing."""
    with_failure = ((n - 1) * variance + mean**2 * n / (n + 1)) / n
    return mean * n / (n + 1) - _quantile(n) * np.sqrt(with_failure / (n + 1))


@lru_cache(maxsize=256)
def _quantile(degrees: int) -> float:
    return float(student.ppf(CONFIDENCE, degrees))


def first_that_holds(n: int, holds: Callable[[int], bool], guess: int | None = None) -> int:
    """Return the first i in [0, n) that holds, where all after one that holds do; n if none does.

    It is looked for around the guess first, in steps that double.
    """
    low, high = 0, n
    if guess is not None and 0 <= guess < n:
        step = 1
        if holds(guess):
            high = guess
            while high > 0 and holds(at := max(0, high - step)):
                high, step = at, 2 * step
            low = max(0, high - step + 1) if high else 0
        else:
            low = guess + 1
            while low < n and not holds(at := min(n - 1, low + step - 1)):
                low, step = at + 1, 2 * step
            high = min(n, low + step - 1)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def which_found(found: Int64, truth: Int64) -> Mask:
    """Return which true neighbours (n, k) of each query are among those found (n, m)."""
    if truth.shape[1] * found.shape[1] <= EACH_WITH_EACH:
        return np.asarray((truth[:, :, None] == found[:, None, :]).any(axis=2))
    query = np.arange(len(truth))[:, None] * (int(max(found.max(initial=0), truth.max(initial=0))) + 2)
    return np.isin(truth + query, np.where(found >= 0, found + query, -1))
