"""The paper's search: T tables of k p-stable hashes, and the vectors in a query's buckets compared in full.

Vectors with rows come in, the nearest rows go out; how likely a row at a given distance is found is known in closed
form, and what part of the nearest is found is measured on the collection.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import clone

from ..data.checks import Array, checked_count
from ..hash import tuning
from ..hash.pstable import CellError, PStableHash
from ..hash.tuning import Tuning
from ..native import scan
from . import flat
from .base import Float32, Float64, Learnt, Search, Work, checked_recall
from .buckets import shortlist
from .result import Stats
from .rows import Int64, Mask
from .store import FloatStore
from .tables import ProbeCalibration, Tables, Truth, described, true_neighbours

FEW = 2048
"""So many allowed rows, or fewer, are compared one by one; tables are not tuned for so few."""
FILTERED = 16
"""So are allowed rows that are not even one of this many."""
TAIL = 256
"""So many of the rows last added may be left out of the tables; they are compared with every query."""
RETUNE = 4
"""Tables that were tuned are tuned anew when the collection has grown or shrunk by this factor."""


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
    r"""Nearest vectors by locality-sensitive hashing: p-stable hash tables with query-directed multi-probe.

    A row is looked at if it shares one of the probed buckets with the query; all of these are compared in full. Rows in
    a bucket of the query itself are found with the probability 1 - (1 - P(r)^k)^T at the distance r, and more with
    more probes. Without `hash`, width, k, T and probes are chosen on the collection at the first search, and again when
    it has grown or shrunk by a factor of 4. Then, or whenever ``recall=`` is given, probes are calibrated to a lower
    confidence bound of the recall; if no number of them is enough the search is exact, and `info()` says so.

    A calibration is made of stored vectors, and holds for queries like them. A query whose k-th neighbour is farther
    than theirs gets more probes, as many as the formula says, up to eight times the number; one that finds fewer than k
    rows is scanned. With a filter (`allowed`) many queries are of this kind, and `stats.recall` is None, since nothing
    was measured for the filter. Allowed rows that are 2048 or fewer, or not one of 16, are compared one by one.

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

    tuning_: Tuning | None
    _store: FloatStore
    _tables: Tables | None
    _tuned: int
    _calibrations: dict[tuple[int, float], ProbeCalibration]
    _truth: tuple[tuple[int, ...], Truth] | None

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

    # What users call besides the protocol

    def near(
        self, queries: Any, R: float, c: float = 2.0, *, allowed: Any = None, success: float | None = None
    ) -> NearResult:
        """The (R, c)-near neighbour: if a row is within R of the query, a row within c R, with a known probability.

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
                raise ValueError(f"{name}={value!r} must be a number, {least:g} or more")
        if success is not None and (not isinstance(success, Real) or not 0 < float(success) <= 1):
            raise ValueError(f"success={success!r} must be a probability, more than 0 and at most 1")
        array, promise = self._queries(queries), checked_recall(success)
        mask, n_allowed = self._rows.allowed(allowed)
        rows, distances = np.full(len(array), -1, np.int64), np.full(len(array), np.inf)
        if not len(array) or not n_allowed:
            none = np.zeros(len(array), np.int64)
            return NearResult(rows, distances, 1.0, Stats(none, none, 1.0, time.perf_counter() - started))
        if promise is None and self.hash is None and self.n_probes is None:
            promise = self.recall
        try:
            tables, n_probes, reached = self._for_radius(float(R), n_allowed, promise, float(R))
            found = None if tables is None else self._look_up(tables, array, 1, mask, n_probes)
        except CellError:
            if self.hash is not None:
                raise
            found, reached = None, 1.0
        squares, positions, work = self._scan(array, 1, mask, n_allowed) if found is None else found
        distance, position = np.sqrt(squares[:, 0]), positions[:, 0]
        there = (distance <= float(c) * float(R)) & (position >= 0)
        rows[there], distances[there] = self._rows.row[position[there]], distance[there]
        work.recall = reached
        return NearResult(rows, distances, reached, work.stats(time.perf_counter() - started))

    def calibrate(self, k: int = 10, recall: float | None = None) -> ProbeCalibration:
        """Measures how many probes it takes to find this part of the k nearest, and keeps it.

        A search does this by itself when it is first asked for a recall, and again when the number of rows has doubled
        or halved.
        """
        checked_count("k", k)
        target = self.recall if recall is None else float(checked_recall(recall) or 1.0)
        if len(self) < 2:
            raise ValueError("calibrate needs two rows or more: add vectors first")
        with self._lock:
            tables = self._prepare(k)
            known = self._calibrations.get((k, target))
            if known is None or not known.n_rows / 2 < len(self) < known.n_rows * 2:
                truth = self._true_neighbours(min(k, len(self) - 1))
                known = self._calibrations[k, target] = tables.calibration(truth, k, target, len(self))
        return known

    def tune(self, k: int = 10, R: float | None = None) -> Tuning:
        """Chooses the tables anew: for the k nearest, or for rows at the distance R.

        The first search does it by itself, for what it is asked; do it again if other questions follow.
        """
        checked_count("k", k)
        if self.hash is not None:
            raise ValueError("tune: the hash was given; leave hash out, and it is chosen")
        if len(self) < 2:
            raise ValueError("tune needs two rows or more: add vectors first")
        with self._lock:
            self._tune(k, R)
            self._prepare(k)
        assert self.tuning_ is not None
        return self.tuning_

    @property
    def hash_(self) -> PStableHash | None:
        """The fitted hash; None until it is chosen."""
        return None if not self._started or self._tables is None else self._tables.hash

    def info(self) -> dict[str, Any]:
        about = super().info()
        if not self._started:
            return about
        if self._tables is not None:
            about["hash"] = described(self._tables.hash)
            about["not_in_tables"] = self._rows.n_positions - self._tables.filed
        about["tuning"] = None if self.tuning_ is None else str(self.tuning_)
        known = [c for _, c in sorted(dict(self._calibrations).items())]
        about["calibrations"] = [{**asdict(c), "exact": c.exact} for c in known]
        about["notes"] = [c.note for c in known if c.exact and c.recall < 1]
        if self.hash is None and len(self) <= FEW:
            about["notes"].append(f"{FEW} rows or fewer: every search is exact")
        return about

    # The protocol

    def _check_params(self) -> None:
        super()._check_params()
        if self.recall is None:
            raise ValueError("recall=None: give a number up to 1.0")
        checked_recall(self.recall)
        if self.hash is not None:
            if not isinstance(self.hash, PStableHash):
                raise ValueError(f"hash must be a PStableHash or None, not a {type(self.hash).__name__}")
            self.hash.check_params()
        if self.n_probes is not None:
            checked_count("n_probes", self.n_probes)
        seed = self.random_state
        if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 1 << 32:
            raise ValueError(f"random_state={seed!r} must be a whole number, 0 or more: the same answers every time")

    def _start(self, vectors: Array) -> None:
        self._store = FloatStore(self._dim, room=self._room)
        self.tuning_, self._tables, self._tuned, self._truth, self._calibrations = None, None, 0, None, {}
        if self.hash is not None:
            self._take(clone(self.hash))

    def _take(self, hash_: PStableHash) -> None:
        """Draws the hash, and starts with empty tables."""
        self._tables = Tables(hash_.fit(np.zeros((1, self._dim), np.float32)), self._store)
        self._calibrations = {}

    def _add(self, vectors: Array) -> None:
        self._store.append(vectors)

    def _cut(self, n: int) -> None:
        self._store.cut(n)

    def _close_up(self, kept: Int64) -> None:
        n_positions = len(self._store.array)
        self._store.keep(kept)
        self._truth = None
        if self._tables is not None:
            self._tables.keep(kept, n_positions)

    def _vectors(self, positions: Int64) -> Float32:
        return self._store.take(positions)

    def _bytes(self) -> dict[str, int]:
        return {"vectors": self._store.n_bytes, "tables": 0 if self._tables is None else self._tables.buckets.n_bytes}

    def _search(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Float64, Int64, Work]:
        target = self._target(recall)
        if self._exact(k, n_allowed, recall):
            return self._scan(queries, k, mask, n_allowed)
        try:
            return self._find(queries, k, mask, n_allowed, target)
        except CellError:  # a query or a row that no table can hold
            if self.hash is not None:
                raise
            return self._scan(queries, k, mask, n_allowed)

    def _target(self, recall: float | None) -> float | None:
        """The recall to reach; None: what the probes give."""
        return self.recall if recall is None and self.n_probes is None and self.hash is None else recall

    def _exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        return self._target(recall) == 1.0 or self._few(n_allowed) or 4 * k >= n_allowed or len(self) < 2

    def _find(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, target: float | None
    ) -> tuple[Float64, Int64, Work]:
        tables = self._prepare(k)
        if target is None:
            return self._look_up(tables, queries, k, mask, self.n_probes or tables.T)
        plan = self.calibrate(k, target)
        filtered = n_allowed < len(self)
        if plan.exact or (filtered and plan.candidates >= n_allowed):
            return self._scan(queries, k, mask, n_allowed)
        squares, positions, work = self._look_up(tables, queries, k, mask, plan.n_probes)
        self._look_farther(tables, plan, queries, k, mask, n_allowed, (squares, positions, work))
        work.recall = None if filtered else plan.promised
        return squares, positions, work

    def _look_farther(
        self,
        tables: Tables,
        plan: ProbeCalibration,
        queries: Float32,
        k: int,
        mask: Mask | None,
        n_allowed: int,
        found: tuple[Float64, Int64, Work],
    ) -> None:
        """More probes, as the formula says, for queries farther from the rows than the stored vectors are.

        Those that find fewer than k rows even then are scanned.
        """
        squares, positions, work = found
        far = np.flatnonzero(np.sqrt(squares[:, -1]) > plan.reach)  # infinite where fewer than k were found
        probes = tables.farther(np.sqrt(squares[far]), plan.n_probes, plan.recall)
        for n_probes in [*np.unique(probes[probes > plan.n_probes]).tolist(), 0]:
            part = far[probes == n_probes] if n_probes else np.flatnonzero(np.isinf(squares[:, -1]))
            if len(part):
                more = (
                    self._look_up(tables, queries[part], k, mask, n_probes)
                    if n_probes
                    else self._scan(queries[part], k, mask, n_allowed)
                )
                squares[part], positions[part] = more[:2]
                work.candidates[part] += more[2].candidates
                work.scanned[part] += more[2].scanned

    def _range_search(
        self, queries: Float32, radii: Float64, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Int64, Float64, Int64, Work]:
        try:
            tables, n_probes, reached = self._for_radius(float(radii.max()), n_allowed, self._target(recall))
            if tables is not None:
                return self._look_within(tables, queries, radii, mask, n_probes, reached)
        except CellError:
            if self.hash is not None:
                raise
        found = flat.within(self._store, self._rows.row, queries, radii, mask, self.n_jobs)
        return *found, self._work(len(queries), n_allowed)

    def _look_within(
        self, tables: Tables, queries: Float32, radii: Float64, mask: Mask | None, n_probes: int, reached: float
    ) -> tuple[Int64, Float64, Int64, Work]:
        """All within the radii of the rows in the probed buckets."""
        parts, compared, scanned = [], np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
        for part, offsets, positions, entries in tables.candidates(queries, mask, n_probes):
            exact = scan.squares(queries[part], self._store.array, None, offsets, positions, self.n_jobs)
            parts.append(scan.within(exact, positions, offsets, self._rows.row, radii[part]))
            compared[part], scanned[part] = np.diff(offsets), entries
        counts = np.concatenate([np.diff(offsets) for offsets, _, _ in parts])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        squares, positions = np.concatenate([a for _, a, _ in parts]), np.concatenate([b for _, _, b in parts])
        return offsets, squares, positions, Work(compared, scanned, reached)

    def _few(self, n_allowed: int) -> bool:
        """Whether a scan of the allowed rows is the thing to do, whatever was asked for."""
        if n_allowed == len(self):
            return self.hash is None and n_allowed <= FEW
        return n_allowed <= max(FEW, len(self) // FILTERED)

    def _scan(self, queries: Float32, k: int, mask: Mask | None, n_allowed: int) -> tuple[Float64, Int64, Work]:
        found = flat.nearest(self._store, self._rows.row, queries, k, mask, self.n_jobs)
        return *found, self._work(len(queries), n_allowed)

    def _work(self, n_queries: int, n_allowed: int) -> Work:
        """Of a scan."""
        return Work(np.full(n_queries, n_allowed), np.zeros(n_queries, np.int64), 1.0)

    def _look_up(
        self, tables: Tables, queries: Float32, k: int, mask: Mask | None, n_probes: int
    ) -> tuple[Float64, Int64, Work]:
        """The k nearest of the rows in the probed buckets."""
        squares, found = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
        compared, scanned = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
        for part, offsets, positions, entries in tables.candidates(queries, mask, n_probes):
            exact = scan.squares(queries[part], self._store.array, None, offsets, positions, self.n_jobs)
            compared[part], scanned[part] = np.diff(offsets), entries
            near = shortlist(exact, offsets, k)
            upto = np.concatenate([[0], np.cumsum(near)])[offsets]
            squares[part], found[part] = scan.best(exact[near], positions[near], upto, self._rows.row, k)
        return squares, found, Work(compared, scanned, None)

    # What is learnt from the collection

    def _prepare(self, k: int, radius: float | None = None) -> Tables:
        """Tables that fit the collection, with all rows but a short tail in them."""
        n = len(self)
        with self._lock:
            if self.hash is None and (not self._tuned or not self._tuned / RETUNE < n < self._tuned * RETUNE):
                self._tune(k, radius)
            assert self._tables is not None
            if self._rows.n_positions - self._tables.filed > (TAIL if self._tables.filed else 0):
                self._tables.file()
            return self._tables

    def _tune(self, k: int, radius: float | None) -> None:
        """Chooses the hash by the distances of true neighbours, or by a radius, and by those of random pairs."""
        truth = self._true_neighbours(max(1, min(k, len(self) - 1, 100)))  # for more, a scan would be chosen
        queries = self._store.take(truth.sample)
        random = np.random.RandomState(np.array([0x15A0, self.random_state], np.uint32))
        alive = np.flatnonzero(self._rows.alive)
        others = np.sort(random.choice(alive, min(len(alive), tuning.OTHERS), replace=False))
        pairs = tuning.distances(queries[: tuning.QUERIES], self._store.take(others))
        pairs = pairs[truth.sample[: len(pairs), None] != others]
        near = truth.distances if radius is None else np.full((1, 1), radius)
        largest = float(np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64).max(initial=0.0)))
        target = min(self.recall, 0.999)
        self.tuning_ = tuning.choose(near, pairs, len(alive), self._dim, target, None, largest)
        self._tuned = len(alive)
        self._take(self.tuning_.hash(self.random_state))

    def _true_neighbours(self, k: int) -> Truth:
        key = k, len(self), self._rows.n_positions
        if self._truth is None or self._truth[0] != key:
            self._truth = key, true_neighbours(self._store, self._rows, k, int(self.random_state), self.n_jobs)
        return self._truth[1]

    def _for_radius(
        self, radius: float, n_allowed: int, target: float | None, tune_for: float | None = None
    ) -> tuple[Tables | None, int, float]:
        """Tables and probes that find a row at this distance with the probability `target`, and the probability.

        No tables: a scan. Without a target, the probes are those of a search without one.
        """
        if target == 1.0 or self._few(n_allowed):
            return None, 0, 1.0
        tables = self._prepare(10, tune_for)
        n_probes = self.n_probes or (tables.T if self.tuning_ is None else self.tuning_.n_probes)
        reached = tables.success(radius, n_probes)
        if target is not None and reached < target:
            n_probes = tables.probes_for(radius, target)
            if not n_probes:
                return None, 0, 1.0
            reached = tables.success(radius, n_probes)
        return tables, n_probes, reached

    # Files

    def _learnt(self) -> Learnt:
        with self._lock:
            tables = self._tables
            header = {
                "hash": None if tables is None else described(tables.hash),
                "tuning": None if self.tuning_ is None else asdict(self.tuning_),
                "tuned": self._tuned,
                "calibrations": [asdict(c) for c in list(self._calibrations.values())],
            }
            drawn = {} if tables is None else tables.state()
            return header, {name: drawn[name] for name in ("directions", "offsets") if name in drawn}

    def _relearn(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        if not header:
            return
        if header["hash"] is not None:
            hash_ = PStableHash(**header["hash"])
            hash_.set_state(arrays["directions"], arrays["offsets"])
            if hash_.n_features_in_ != self._dim:
                raise ValueError("its hash does not fit its vectors")
            self._tables = Tables(hash_, self._store)
        self.tuning_ = None if header["tuning"] is None else Tuning(**header["tuning"])
        self._tuned = int(header["tuned"])
        self._know(header["calibrations"])

    def _know(self, calibrations: list[dict[str, Any]]) -> None:
        known = [ProbeCalibration(**c) for c in calibrations]
        self._calibrations = {(c.k, c.recall): c for c in known}

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        with self._lock:
            tables = self._tables
            header: dict[str, Any] = {
                "params": {"n_probes": self.n_probes, "recall": self.recall, "random_state": int(self.random_state)},
                "given": None if self.hash is None else described(self.hash),
                "hash": None if tables is None else described(tables.hash),
                "filed": 0 if tables is None else tables.filed,
                "tuning": None if self.tuning_ is None else asdict(self.tuning_),
                "tuned": self._tuned,
                "calibrations": [asdict(c) for c in list(self._calibrations.values())],
            }
            return header, {"vectors": self._store.array, **({} if tables is None else tables.state())}

    @classmethod
    def _from_header(cls, header: dict[str, Any]) -> LSHSearch:
        given = header["given"]
        return cls(None if given is None else PStableHash(**given), **header["params"])

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._start(np.empty((0, self._dim)))
        self._store = FloatStore.from_array(arrays["vectors"], self._rows.n_positions, self._dim)
        self._tables = None
        if header["hash"] is not None:
            self._tables = Tables.from_state(header["hash"], int(header["filed"]), arrays, self._store)
        elif self.hash is not None or header["tuned"]:
            raise ValueError("its tables are missing")
        self.tuning_ = None if header["tuning"] is None else Tuning(**header["tuning"])
        self._tuned = int(header["tuned"])
        self._know(header["calibrations"])
