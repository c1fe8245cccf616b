"""The paper's search: T tables of k p-stable hashes, and the vectors in a query's buckets compared in full.

Vectors with rows come in, the nearest rows go out; how likely a row at a given distance is found is known in closed
form, and what fraction of the nearest is found is measured on the collection.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ..data.checks import checked_count
from ..errors import InputError
from ..hash.pstable import PStableHash
from ..hash.tuning import Tuning
from ..native.arrays import Float64, Int64
from .base import Search, checked_recall, needed_recall, stats_of
from .calibration import Calibration
from .columns import Specs
from .lsh_state import LSHState
from .result import Stats
from .saving import Version
from .state import Stored
from .store import FloatVectors


@dataclass(frozen=True)
class NearResult:
    """For each query a row within c R, if one was found.

    rows : (n_queries,) int64, -1 where none was found.
    distances : (n_queries,) float64, inf where none was found.
    success_probability : if there is a row within R, then with at least this probability one within c R was found.
    stats : see `Stats`; its `recall` is the success probability.
    """

    rows: Int64
    distances: Float64
    success_probability: float
    stats: Stats

    def __len__(self) -> int:
        return len(self.rows)


class LSHSearch(Search):
    """Finds nearest vectors by locality-sensitive hashing: p-stable hash tables with query-directed multi-probe.

    A row is looked at if it shares one of the probed buckets with the query; all of these are compared in full. Rows in
    a bucket of the query itself are found with the probability 1 - (1 - P(r)^k)^T at the distance r, and more with
    more probes. Without `hash`, width, k, T and probes are chosen on the collection at the first search, and again when
    it has grown or shrunk by a factor of 4. Then, or whenever ``recall=`` is given, probes are calibrated to a lower
    confidence bound of the recall; if no number of them is enough the search is exact, and `info()` says so.

    A calibration is made of stored vectors, and holds for queries like them. A query whose k-th neighbour is farther
    than theirs gets more probes, as many as the formula says; where no number of them is enough, or fewer than k rows
    are found, it is scanned. With a filter (`allowed`) many queries are of this kind, and `stats.recall` is None, since
    nothing was measured for the filter. Allowed rows that are 2048 or fewer, or not one of 16, are compared one by one.

    Parameters
    ----------
    hash : a `PStableHash`, whose parameters are kept; None chooses them by the data. Distances are Euclidean in any
        case; for p = 1 the probabilities are those at the largest possible l1 distance, sqrt(D) r.
    n_probes : buckets to look into if a search names no recall, all tables together; the T of the query itself come
        first. None: T of a given `hash` (plain tables); what `recall` takes if there is none.
    recall : without `hash`, what tables are tuned for, and what is promised if a search does not say.
    random_state : seed of the hashes and of the samples, a whole number.
    n_jobs : threads that compare vectors.

    Attributes
    ----------
    hash_ : the fitted hash.
    tuning_ : the chosen parameters and what was predicted of them; None if `hash` was given.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.hash import PStableHash
    >>> from slosh.search import LSHSearch
    >>> vectors = np.random.default_rng(0).normal(size=(5000, 16))
    >>> search = LSHSearch(PStableHash(width=6.0, n_hashes=8, n_tables=10))
    >>> rows = search.add(vectors)
    >>> found = search.search(vectors[:100] + 0.01, k=1)
    >>> float((found.rows[:, 0] == rows[:100]).mean()), bool(found.stats.candidates.mean() < 1500)
    (1.0, True)
    """

    hash_class = PStableHash

    def __init__(
        self,
        hash: PStableHash | None = None,
        *,
        n_probes: int | None = None,
        recall: float = 0.9,
        random_state: int = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.hash = hash
        self.n_probes = n_probes
        self.recall = recall
        self.random_state = random_state
        self.n_jobs = n_jobs

    def check_params(self) -> None:
        super().check_params()
        needed_recall(self.recall)
        if self.n_probes is not None:
            checked_count("n_probes", self.n_probes)
        seed = self.random_state
        if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 1 << 32:
            problem = f"random_state={seed!r} must be a whole number, 0 or more"
            raise InputError(problem, "the same answers every time", argument="random_state")

    def column_names(self, dim: int) -> Specs:
        return FloatVectors.column_names(dim)

    def first_state(self, stored: Stored) -> LSHState:
        return LSHState(self, stored)

    @property
    def hash_(self) -> PStableHash | None:
        """The fitted hash; None until it is chosen."""
        return self.state.hash if isinstance(self.state, LSHState) else None

    @property
    def tuning_(self) -> Tuning | None:
        """The chosen parameters and what was predicted of them; None if `hash` was given, or until they are chosen."""
        return self.state.tuning if isinstance(self.state, LSHState) else None

    def near(
        self, queries: Any, R: float, c: float = 2.0, *, allowed: Any = None, success: float | None = None
    ) -> NearResult:
        """Return the (R, c)-near neighbour: if a row is within R, one within c R, with a known probability.

        The paper's section 3.2: a row within R shares a bucket of the query in at least one of T tables with the
        probability 1 - (1 - P1^k)^T, P1 = P(R), at least; so a row no farther than that is among those compared, and
        the nearest of them is given if it is within c R. Between R and c R a row may be given or not.

        Parameters
        ----------
        queries : vectors (n_queries, D).
        R : the radius.
        c : the factor, 1 or more.
        allowed : as in `search`.
        success : the probability to reach, by more probes or, if these are not enough, by a scan. None: `recall` where
            tables are tuned, what the tables and `n_probes` give where a hash was given.
        """
        started = time.perf_counter()
        for name, value, least in (("R", R, 0.0), ("c", c, 1.0)):
            if not isinstance(value, Real) or isinstance(value, bool) or not least <= float(value) < math.inf:
                raise InputError(f"{name}={value!r} must be a number, {least:g} or more", argument=name)
        if success is not None and (not isinstance(success, Real) or not 0 < float(success) <= 1):
            problem = f"success={success!r} must be a probability, more than 0 and at most 1"
            raise InputError(problem, argument="success")
        array, promise = self._checked_queries(queries), checked_recall(success)
        version = self._ready(10, promise, measure=False, radius=float(R))
        state, rows = version.state, version.rows
        assert isinstance(state, LSHState)
        permitted = rows.allowed(allowed)
        found = state.near(array, float(R), float(c), allowed=permitted, success=promise, ranks=rows.ranks)
        assert found.promise is not None
        stats = stats_of(found, started)
        return NearResult(rows.at(found.positions[:, 0]), found.distances[:, 0], found.promise, stats)

    def calibrate(self, k: int = 10, recall: float | None = None) -> Calibration:
        """Measure how many probes it takes to find this fraction of the k nearest, and keep it.

        A search does this by itself when it is first asked for a recall, and again when the number of rows has doubled
        or halved.
        """
        return self._calibrate(k, checked_recall(recall) or self.recall)

    def tune(self, k: int = 10, R: float | None = None) -> Tuning:
        """Choose the tables anew: for the k nearest, or for rows at the distance R.

        The first search does it by itself, for what it is asked; do it again if other questions follow.
        """
        checked_count("k", k)
        if self.hash is not None:
            raise InputError("tune: the hash was given", "leave hash out, and it is chosen", argument="hash")
        if len(self) < 2:
            raise InputError("tune needs two rows or more", "add vectors first")
        with self._lock:
            self._train_if(lambda state: True, lambda state: state.train(k, R))
            tuning = self.tuning_
        assert tuning is not None
        return tuning

    def _ready(self, k: int, recall: float | None, *, measure: bool = True, radius: float | None = None) -> Version:
        """As before, and tuned for the k nearest or for a radius, if that is due."""

        def due(state: LSHState) -> bool:
            exact = state.target(recall) == 1.0 or (radius is None and 4 * k >= state.n_alive)
            return state.train_due and not exact

        version = self._train_if(due, lambda state: state.train(k, radius))
        return self._calibrated(k, recall) if measure else version
