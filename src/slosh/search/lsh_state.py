"""What LSHSearch holds: vectors, and the tables that say which of them to compare with a query.

How likely a vector at a given distance is found is known in closed form; what fraction of the nearest is found is
measured on the collection. A state whose tables are still to be chosen compares all vectors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sklearn.base import clone

from ..hash import tuning
from ..hash.pstable import CellError, PStableHash
from ..hash.tuning import Tuning
from ..native.arrays import Float32, Float64, Int64, Mask
from .calibration import CalibratedState, Calibration, Setting, Trial, first_that_holds, sample_positions
from .exact import scan_nearest, scan_within
from .saving import json_params
from .state import Allowed, Found, FoundWithin, Request, Stored, Trained, leave_out
from .store import Batch, FloatVectors
from .tables import EXTRA_PROBES, Tables

if TYPE_CHECKING:
    from .lsh import LSHSearch

SCAN_BELOW_ROWS = 2048
"""So many allowed rows, or fewer, are compared one by one; tables are not tuned for so few."""
SCAN_BELOW_SHARE = 16
"""So are allowed rows that are not even one of this many."""
TAIL_ROWS = 256
"""So many of the rows last added may be left out of the tables; they are compared with every query."""
TUNE_AGAIN_GROWTH = 4
"""Tables that were tuned are tuned anew when the collection has grown or shrunk by this factor."""


F = TypeVar("F")


class LSHState(CalibratedState):
    """See the module.

    tuning : the chosen parameters, None if they were given or are still to be chosen.
    tuned_on : rows when they were chosen, 0 if they were not.
    """

    search: LSHSearch
    tuning: Tuning | None
    tuned_on: int
    _store: FloatVectors
    _lock: threading.Lock  # of whoever files what is in no bucket yet

    def __init__(self, search: LSHSearch, stored: Stored) -> None:
        super().__init__(search, stored, FloatVectors.start(stored))
        hash_, self.tuning, self.tuned_on = None, None, 0
        if stored.trained is not None:
            header, arrays = stored.trained
            hash_ = PStableHash(**header["hash"])
            hash_.set_state(arrays["directions"], arrays["offsets"])
            if hash_.n_features_in_ != self.dim:
                raise ValueError("its hash does not fit its vectors")
            self.tuning = None if header["tuning"] is None else Tuning(**header["tuning"])
            self.tuned_on = int(header["tuned"])
        elif search.hash is not None:
            hash_ = self._drawn(clone(search.hash))
        self._tables = None if hash_ is None else Tables(hash_)
        if self._tables is not None and stored.derived is not None:
            self._tables = self._tables.with_derived(stored.derived, self.n)
        self.__dict__.update(self._own())

    def _drawn(self, hash_: PStableHash) -> PStableHash:
        """Return the hash with its directions drawn."""
        return hash_.fit(np.zeros((1, self.dim), np.float32))

    def _own(self) -> dict[str, Any]:
        return {"_lock": threading.Lock()}

    @property
    def hash(self) -> PStableHash | None:
        """The fitted hash; None until it is chosen."""
        return None if self._tables is None else self._tables.hash

    def tables(self) -> Tables | None:
        """Return tables with all vectors but a short tail in them, None if they are not chosen yet."""
        if self._lacks_rows(self._tables):
            with self._lock:
                if self._tables is not None and self._lacks_rows(self._tables):
                    self._tables = self._tables.file(self._store.array)
        return self._tables

    def _lacks_rows(self, tables: Tables | None) -> bool:
        return tables is not None and self.n - tables.filed > (TAIL_ROWS if tables.filed else 0)

    # Training and calibration

    @property
    def train_due(self) -> bool:
        if self.search.hash is not None or self.n_alive <= SCAN_BELOW_ROWS:
            return False
        growth = TUNE_AGAIN_GROWTH
        return not self.tuned_on or not self.tuned_on / growth < self.n_alive < self.tuned_on * growth

    def train(self, k: int = 10, radius: float | None = None) -> LSHState:
        """Choose the tables for the k nearest, or for rows at the distance `radius`; a hash that was given is kept."""
        if self.search.hash is not None:
            return self
        # By the distances of true neighbours, or the radius, and by those of random pairs.
        sample = sample_positions(self.alive, self.search.recall, self.search.random_state)
        queries = self._store.take(sample)
        truth = self._truth(queries, sample, max(1, min(k, self.n_alive - 1, 100)))
        random = np.random.RandomState(np.array([0x15A0, self.search.random_state], np.uint32))
        alive = np.flatnonzero(self.alive)
        others = np.sort(random.choice(alive, min(len(alive), tuning.PAIR_OTHERS), replace=False))
        pairs = tuning.distances(queries[: tuning.PAIR_QUERIES], self._store.take(others))
        pairs = pairs[sample[: len(pairs), None] != others]
        near = truth.distances if radius is None else np.full((1, 1), radius)
        largest = float(np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64).max(initial=0.0)))
        chosen = tuning.choose(near, pairs, len(alive), self.dim, min(self.search.recall, 0.999), None, largest)
        return self._with(
            tuning=chosen,
            tuned_on=len(alive),
            _tables=Tables(self._drawn(chosen.hash(self.search.random_state))),
            _calibrations=self._outdated(),
        )

    def _truth(self, queries: Float32, own: Int64 | None, k: int) -> Found:
        return scan_nearest(self._store, self._request(queries, k, exclude=own))

    def _trial(self, queries: Float32, own: Int64 | None, k: int) -> LSHTrial:
        tables = self.tables()
        assert tables is not None
        truth = self._truth(queries, own, k)
        return LSHTrial(tables, queries, truth, tables.first_found(queries, truth.positions, self._store.array), self.n)

    # Searches

    def target(self, recall: float | None) -> float | None:
        params = self.search
        return params.recall if recall is None and params.n_probes is None and params.hash is None else recall

    def _few(self, n_allowed: int) -> bool:
        """Return whether a scan of the allowed rows is the thing to do, whatever was asked for."""
        if n_allowed == self.n_alive:
            return self.search.hash is None and n_allowed <= SCAN_BELOW_ROWS
        return n_allowed <= max(SCAN_BELOW_ROWS, self.n_alive // SCAN_BELOW_SHARE)

    def is_exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        small = self._few(n_allowed) or 4 * k >= n_allowed or self.n_alive < 2
        return recall == 1.0 or small or self._tables is None

    def _or_scan(self, by_tables: Callable[[], F | None], by_scan: Callable[[], F]) -> F:
        """Return what the tables find; scan if they cannot, or if a query or a row is one that no table can hold."""
        try:
            found = by_tables()
        except CellError:
            if self.search.hash is not None:
                raise
            found = None
        return by_scan() if found is None else found

    def _nearest(self, asked: Request) -> Found:
        if self.is_exact(asked.k, asked.n_allowed, self.target(asked.recall)):
            return scan_nearest(self._store, asked)
        return self._or_scan(lambda: self._by_tables(asked), lambda: scan_nearest(self._store, asked))

    def _by_tables(self, asked: Request) -> Found | None:
        """Return the nearest of what is in the probed buckets; None: a scan is the thing to do."""
        tables, k, promise, target = self.tables(), asked.k, None, self.target(asked.recall)
        assert tables is not None
        plan = None if target is None else self.plan(k, target)
        k_there = k if plan is None else min(plan.k, asked.n_allowed)  # as measured, and then cut
        extra = 0 if asked.exclude is None else 1
        more = replace(asked, exclude=None, k=min(k_there + extra, asked.n_allowed))
        if target is None:
            found = self._looked_up(tables, more, self.search.n_probes or tables.T)
        elif plan is None or plan.exact or (asked.allowed is not None and plan.candidates >= asked.n_allowed):
            return None
        else:
            found = self._looked_up(tables, more, plan.n_probes)
            self._look_farther(tables, plan, more, found)
            promise = plan.promise(k) if asked.allowed is None else None
        distances, positions = found.distances, found.positions
        if asked.exclude is not None:
            distances, positions = leave_out(distances, positions, asked.exclude)
        return found._replace(distances=distances[:, :k], positions=positions[:, :k], promise=promise)

    def _look_farther(self, tables: Tables, plan: Calibration, asked: Request, found: Found) -> None:
        """Take more probes, as the formula says, for queries farther from the rows than the stored vectors are.

        Those for which no number of them is enough, or that find too few rows even then, are scanned. The arrays of
        `found` are changed.
        """
        far = np.flatnonzero(found.distances[:, -1] > plan.reach)  # infinite where fewer than k were found
        probes = tables.farther(found.distances[far], plan.n_probes, plan.recall)
        for n_probes in [*np.unique(probes[probes > plan.n_probes]).tolist(), 0]:
            part = far[probes == n_probes]
            if not n_probes:
                part = np.union1d(part, np.flatnonzero(np.isinf(found.distances[:, -1])))
            if len(part):
                few = asked.part(part)
                more = self._looked_up(tables, few, n_probes) if n_probes else scan_nearest(self._store, few)
                found.distances[part], found.positions[part] = more.distances, more.positions
                found.compared[part] += more.compared
                found.scanned[part] += more.scanned

    def _looked_up(self, tables: Tables, asked: Request, n_probes: int, promise: float | None = None) -> Found:
        """Return the k nearest of the vectors in the probed buckets."""
        compared, scanned = asked.counts(0), asked.counts(0)
        batches = self._candidates(tables, asked, n_probes, compared, scanned)
        return Found(*self._store.nearest(asked, asked.k, batches), compared, scanned, promise, None)

    def _candidates(
        self, tables: Tables, asked: Request, n_probes: int, compared: Int64, scanned: Int64
    ) -> Iterator[Batch]:
        """Yield the vectors in the probed buckets, and count them."""
        for batch, entries in tables.candidates(asked.queries, self.n, asked.mask, n_probes):
            compared[batch.queries], scanned[batch.queries] = np.diff(batch.offsets), entries
            yield batch

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        def by_tables() -> FoundWithin | None:
            tables, n_probes, reached = self._for_radius(float(radii.max()), asked)
            if tables is None:
                return None
            compared, scanned = asked.counts(0), asked.counts(0)
            batches = self._candidates(tables, asked, n_probes, compared, scanned)
            return FoundWithin(*self._store.within(asked, radii, batches), compared, scanned, reached)

        return self._or_scan(by_tables, lambda: scan_within(self._store, asked, radii))

    def near(
        self,
        queries: Float32,
        radius: float,
        factor: float,
        *,
        allowed: Allowed | None = None,
        success: float | None = None,
        ranks: Int64 | None = None,
    ) -> Found:
        """Return for each query a position within factor * radius, (n_queries, 1), -1 where none was found.

        If there is one within `radius`, then with the probability `Found.promise` at least one is found; `success` is
        the probability to reach, None what `recall` or the probes give.
        """
        asked = self._request(queries, 1, allowed, success, None, ranks)
        if not asked.k or not len(asked):
            none = asked.counts(0)
            return Found(np.full((len(none), 1), np.inf), none[:, None] - 1, none, none, 1.0, None)

        def by_tables() -> Found | None:
            tables, n_probes, reached = self._for_radius(radius, asked)
            return None if tables is None else self._looked_up(tables, asked, n_probes, reached)

        found = self._or_scan(by_tables, lambda: scan_nearest(self._store, asked))
        there = (found.distances <= factor * radius) & (found.positions >= 0)
        distances, positions = np.where(there, found.distances, np.inf), np.where(there, found.positions, -1)
        return found._replace(distances=distances, positions=positions, tied=None)

    def _for_radius(self, radius: float, asked: Request) -> tuple[Tables | None, int, float]:
        """Return tables and probes that find a row at this distance with the probability to reach, and the probability.

        No tables: a scan. Without one to reach, the probes are those of a search without one.
        """
        target = self.target(asked.recall)
        tables = None if target == 1.0 or self._few(asked.n_allowed) else self.tables()
        if tables is None:
            return None, 0, 1.0
        n_probes = self.search.n_probes or (tables.T if self.tuning is None else self.tuning.n_probes)
        reached = tables.success(radius, n_probes)
        if target is not None and reached < target:
            n_probes = tables.probes_for(radius, target)
            if not n_probes:
                return None, 0, 1.0
            reached = tables.success(radius, n_probes)
        return tables, n_probes, reached

    # What is stored and learnt

    def holds(self, positions: Int64, vectors: Float32, apart: Float64 | None = None) -> Mask:
        same = super().holds(positions, vectors, apart)
        stored = vectors if apart is None else self._store.take(positions)
        return same if self._tables is None else same & self._tables.holds(positions, stored)

    def n_bytes(self) -> dict[str, int]:
        return {**super().n_bytes(), "tables": 0 if self._tables is None else self._tables.buckets.n_bytes}

    def info(self) -> dict[str, Any]:
        about: dict[str, Any] = {}
        if self._tables is not None:
            about = {"hash": json_params(self._tables.hash), "not_in_tables": self.n - self._tables.filed}
        known = self.calibrations
        notes = [each.note for each in known if each.exact and each.recall < 1]
        if self.search.hash is None and self.n_alive <= SCAN_BELOW_ROWS:
            notes.append(f"{SCAN_BELOW_ROWS} rows or fewer: every search is exact")
        calibrations = [{**each.as_dict(), "n_probes": each.n_probes, "exact": each.exact} for each in known]
        chosen = None if self.tuning is None else str(self.tuning)
        return {**about, "tuning": chosen, "calibrations": calibrations, "notes": notes}

    def trained(self) -> Trained | None:
        if self._tables is None:
            return None
        hash_ = self._tables.hash
        header = {
            "hash": json_params(hash_),
            "tuning": None if self.tuning is None else asdict(self.tuning),
            "tuned": self.tuned_on,
            "calibrations": self._as_dicts(),
        }
        return Trained(header, {"directions": hash_.directions_, "offsets": hash_.offsets_})

    @property
    def trained_version(self) -> object:
        return self.hash, self._calibrations

    def derived(self) -> Trained | None:
        return None if self._tables is None else self._tables.as_derived()


class LSHTrial(Trial):
    """`seen_in` (n, K) is the probe that sees each neighbour of a query first."""

    def __init__(self, tables: Tables, queries: Float32, truth: Found, seen_in: Int64, n: int) -> None:
        super().__init__(len(queries))
        self._tables, self._queries, self._n = tables, queries, n
        self._distances, self._seen_in = truth.distances, seen_in

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        first = max(self._tables.T, tried.depth + tried.depth // 4)
        last, reach = self._tables.T + EXTRA_PROBES, float(np.quantile(self._distances[self.choosing, k - 1], 0.95))

        def setting(i: int) -> Setting:
            return Setting(reach, first + i, 0.0)

        n = max(0, last - first + 1)
        at = first_that_holds(n, lambda i: enough(self._found(setting(i), k, recall, self.choosing)))
        if at == n:
            return None
        some = self._queries[self.choosing][:64]
        compared = sum(len(each.positions) for each, _ in self._tables.candidates(some, self._n, None, first + at))
        return setting(at)._replace(candidates=compared / len(some))

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        return self._found(setting, k, recall, self.measuring)

    def _found(self, setting: Setting, k: int, recall: float, part: Mask) -> Mask:
        distances = self._distances[part, :k]
        probes = np.full(len(distances), setting.depth)
        far = distances[:, -1] > setting.reach
        probes[far] = self._tables.farther(distances[far], setting.depth, recall)
        return np.asarray((self._seen_in[part, :k] < probes[:, None]) | (probes[:, None] == 0))
