"""A fitted p-stable hash, its buckets, and the stored vectors: which rows are to be compared with a query.

Queries come in, positions of candidates go out, batch by batch; also how many probes it takes, measured on the stored
vectors, to find a part of their true neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from ..data.checks import Array
from ..hash import probing
from ..hash.pstable import PStableHash
from . import flat
from .base import Float32, Float64
from .buckets import Buckets, distinct
from .calibration import lower_bound
from .rows import Int64, Mask, Rows
from .store import FloatStore

QUERIES = 400
"""Stored vectors that stand in for queries, to tune and to calibrate."""
MOST_PROBES = 1024
"""... besides the buckets of the query itself."""
FARTHER = 8
"""A query far from its neighbours gets so many times the calibrated probes, at most."""
FAR_RATIOS = np.array([0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.85, 1.0, 1.5, 3.0])
"""Distances in widths, for these."""
BATCH_ENTRIES, BATCH_QUERIES = 1 << 18, 512


class Candidates(NamedTuple):
    """Of a batch of queries: which, and the positions of query i, positions[offsets[i]:offsets[i + 1]], each once.

    entries : (n,) how many entries of buckets were read.
    """

    queries: slice
    offsets: Int64
    positions: Int64
    entries: Int64


class Truth(NamedTuple):
    """Stored vectors as queries: their positions (n,), and the positions and distances of their neighbours (n, k)."""

    sample: Int64
    neighbours: Int64
    distances: Float64


@dataclass(frozen=True)
class ProbeCalibration:
    """How many buckets it takes to find a part of the k nearest, as measured on the collection.

    k, recall : what was asked for.
    n_probes : buckets looked into, of all tables together; 0: no number of them is enough, and the search is exact.
    measured : the mean recall over `n_queries` stored vectors, none of them its own neighbour.
    promised : its one-sided 95% lower confidence bound; at least `recall`.
    candidates : vectors compared for a query, on average.
    reach : the distance of the k-th nearest was no larger for 95% of them; queries beyond it get more probes.
    n_rows : size of the collection then.
    """

    k: int
    recall: float
    n_probes: int
    measured: float
    promised: float
    candidates: float
    reach: float
    n_queries: int
    n_rows: int

    @property
    def exact(self) -> bool:
        return self.n_probes == 0

    @property
    def note(self) -> str:
        return f"recall {self.recall:g} of the {self.k} nearest cannot be promised by probes: such searches are exact"


class Tables:
    def __init__(self, hash_: PStableHash, store: FloatStore) -> None:
        """`hash_` is fitted."""
        self.hash, self.store = hash_, store
        self.T, self.k, self.p = int(hash_.n_tables), int(hash_.n_hashes), int(hash_.p)
        self.buckets = Buckets(self.T, self.k)
        self.filed = 0
        """Positions below this one are in the buckets; those from there on are compared with every query."""

    def file(self) -> None:
        """Puts the vectors that are in no bucket yet into theirs."""
        vectors = self.store.array
        step = max(1, (1 << 22) // (self.T * self.k))
        sums = [
            self.buckets.sums(np.floor(self.hash.positions(vectors[first : first + step])))
            for first in range(self.filed, len(vectors), step)
        ]
        if sums:
            self.buckets.add(np.concatenate(sums), self.filed)
        self.filed = len(vectors)

    def keep(self, kept: Int64, n_positions: int) -> None:
        """The row of position kept[i] goes to position i; of n_positions."""
        filed = int(np.searchsorted(kept, self.filed))
        self.buckets.keep(kept[:filed], n_positions)
        self.filed = filed

    def candidates(self, queries: Float32, mask: Mask | None, n_probes: int) -> Iterator[Candidates]:
        """The rows in the probed buckets, and those that are in none yet; batches of bounded memory."""
        tail = np.arange(self.filed, len(self.store.array))
        for start in range(0, len(queries), BATCH_QUERIES):
            places = self.hash.positions(queries[start : start + BATCH_QUERIES])
            probes = probing.probes(places, n_probes, self.p)
            begins, ends = self.buckets.find(self.buckets.probe_keys(np.floor(places), probes))
            entries = (ends - begins).sum(axis=(0, 2))
            upto = np.cumsum(entries + len(tail))
            first = 0
            while first < len(places):
                done = upto[first - 1] if first else 0
                last = max(first + 1, int(np.searchsorted(upto, done + BATCH_ENTRIES, side="right")))
                n = last - first
                positions = self.buckets.entries(begins[:, first:last], ends[:, first:last])
                query = np.repeat(np.arange(n), entries[first:last])
                keep = distinct(query, positions, len(self.store.array))
                if mask is not None:
                    keep &= mask[positions]
                query, positions = query[keep], positions[keep]
                if len(tail):
                    rest = tail if mask is None else tail[mask[tail]]
                    query = np.concatenate([query, np.repeat(np.arange(n), len(rest))])
                    order = np.argsort(query, kind="stable")
                    query, positions = query[order], np.concatenate([positions, np.tile(rest, n)])[order]
                offsets = np.searchsorted(query, np.arange(n + 1)).astype(np.int64)
                yield Candidates(slice(start + first, start + last), offsets, positions, entries[first:last])
                first = last

    def first_found(self, queries: Float32, neighbours: Int64) -> Int64:
        """In which probe of its query each neighbour (n, k) is seen first, from 0 on; a large number if in none."""
        out = np.full(neighbours.shape, 1 << 30, np.int64)
        places = self.hash.positions(queries)
        probes = probing.probes(places, MOST_PROBES + self.T, self.p)
        keys = self.buckets.probe_keys(np.floor(places), probes)
        for i in range(neighbours.shape[1]):
            cells = np.floor(self.hash.positions(self.store.take(neighbours[:, i])))
            theirs = self.buckets.keys(self.buckets.sums(cells), np.arange(self.T))
            same = keys == np.take_along_axis(theirs, probes.tables, axis=1)
            found = same.any(axis=1)
            out[found, i] = same[found].argmax(axis=1)
        out[neighbours >= self.filed] = 0
        return out

    def calibration(self, truth: Truth, k: int, target: float, n_rows: int) -> ProbeCalibration:
        """The least probes for which the lower bound of the recall is `target`."""
        queries = self.store.take(truth.sample)
        exact = ProbeCalibration(k, target, 0, 1.0, 1.0, float(n_rows), 0.0, len(queries), n_rows)
        if target == 1.0 or lower_bound(np.ones(len(queries))) < target:
            return exact
        order = self.first_found(queries, truth.neighbours)
        reach = float(np.quantile(truth.distances[:, -1], 0.95))
        far = truth.distances[:, -1] > reach

        def recalls(n_probes: int) -> Float64:
            probes = np.full(len(queries), n_probes)
            probes[far] = self.farther(truth.distances[far], n_probes, target)
            return np.asarray((order < probes[:, None]).mean(axis=1))

        low, beyond = self.T, self.T + MOST_PROBES + 1
        high = beyond
        while low < high:  # the more probes, the more is found
            middle = (low + high) // 2
            if lower_bound(recalls(middle)) >= target:
                high = middle
            else:
                low = middle + 1
        if low == beyond:
            return exact
        reached, some = recalls(low), queries[:64]
        compared = sum(len(batch.positions) for batch in self.candidates(some, None, low)) / len(some)
        mean, bound = float(reached.mean()), lower_bound(reached)
        return ProbeCalibration(k, target, low, mean, bound, compared, reach, len(queries), n_rows)

    def farther(self, distances: Float64, n_probes: int, target: float) -> Int64:
        """Probes for queries that are farther from their k neighbours than others: `n_probes` up to FARTHER times that.

        As many as find `target` of rows at these distances (n, k), on average. If they are the distances of the k
        nearest found so far, the true ones are no larger, and the recall over the draws of the hash is no less.
        """
        levels = [self.T << i for i in range(12) if self.T << i <= MOST_PROBES] or [self.T]
        ratios = np.clip(self._largest(distances) / float(self.hash.width), 0.0, FAR_RATIOS[-1])
        table = _success_table(self.T, self.k, self.p, tuple(levels))
        found = [np.interp(ratios, FAR_RATIOS, line).mean(axis=1) >= target for line in table]
        first = np.array([*found, np.ones(len(ratios), np.bool_)]).argmax(axis=0)
        most = min(FARTHER * n_probes, max(n_probes, MOST_PROBES))
        probes: Int64 = np.clip(np.array([*levels, most])[first], n_probes, most)
        return probes

    def success(self, radius: float, n_probes: int) -> float:
        """How likely a row at this (Euclidean) distance is found, at least."""
        return success(self.T, self.k, n_probes, self._largest(radius) / float(self.hash.width), self.p)

    def probes_for(self, radius: float, target: float) -> int:
        """Probes with which `success` is `target`, a quarter more than the least at most; 0 if there are none."""
        largest = self._largest(radius) / float(self.hash.width)
        for most in (8 * self.T, MOST_PROBES + self.T):
            levels = [self.T]
            while levels[-1] < most:
                levels.append(min(most, levels[-1] + max(1, levels[-1] // 4)))
            mean, error = probing.success(self.T, self.k, levels, np.array([largest]), self.p)
            for n_probes in np.array(levels)[mean[:, 0] - 2 * error[:, 0] >= target].tolist():
                if self.success(radius, n_probes) >= target:
                    return int(n_probes)
            if mean[-1, 0] * (MOST_PROBES + self.T) / most < target:  # every further probe finds less than those before
                break
        return 0

    def _largest(self, radius: Any) -> Any:
        """The largest distance that the hash can see in a Euclidean one: |x|_1 <= sqrt(D) |x|_2."""
        return radius if self.p == 2 else radius * self.store.array.shape[1] ** 0.5

    def state(self) -> dict[str, Array]:
        return {"directions": self.hash.directions_, "offsets": self.hash.offsets_, **self.buckets.state()}

    @classmethod
    def from_state(cls, params: dict[str, Any], filed: int, arrays: dict[str, Array], store: FloatStore) -> Tables:
        hash_ = PStableHash(**params)
        hash_.set_state(arrays["directions"], arrays["offsets"])
        if hash_.n_features_in_ != store.array.shape[1] or not 0 <= filed <= len(store.array):
            raise ValueError("its hash does not fit its vectors")
        self = cls(hash_, store)
        self.buckets = Buckets.from_state(arrays, self.T, self.k, filed)
        self.filed = filed
        return self


def described(hash_: PStableHash) -> dict[str, Any]:
    """The parameters, for JSON; what was drawn is saved besides."""
    seed = hash_.random_state
    return {
        "width": float(hash_.width),
        "n_hashes": int(hash_.n_hashes),
        "n_tables": int(hash_.n_tables),
        "p": int(hash_.p),
        "random_state": int(seed) if isinstance(seed, Integral) else None,
    }


def true_neighbours(store: FloatStore, rows: Rows, k: int, seed: int, n_jobs: int | None) -> Truth:
    """The k nearest of a sample of the stored vectors; none is its own neighbour. k < number of rows."""
    alive = np.flatnonzero(rows.alive)
    random = np.random.RandomState(np.array([0x15A1, seed], np.uint32))
    sample = alive if len(alive) <= QUERIES else random.choice(alive, QUERIES, replace=False)
    mask = None if len(alive) == rows.n_positions else rows.alive
    squares, found = flat.nearest(store, rows.row, store.take(sample), k + 1, mask, n_jobs)
    itself = found == sample[:, None]
    itself[~itself.any(axis=1), -1] = True  # more than k others are copies of it
    shape = (len(sample), k)
    return Truth(sample, found[~itself].reshape(shape), np.sqrt(squares[~itself].reshape(shape)))


@lru_cache(maxsize=64)
def _success_table(n_tables: int, n_hashes: int, p: int, levels: tuple[int, ...]) -> Float64:
    """(levels, FAR_RATIOS)"""
    mean, _ = probing.success(n_tables, n_hashes, levels, FAR_RATIOS, p, draws=64)
    return mean


@lru_cache(maxsize=1024)
def success(n_tables: int, n_hashes: int, n_probes: int, ratio: float, p: int) -> float:
    """The probability to find a row at the distance ratio * width: exact for plain tables, less two standard errors
    where it is an average over draws.
    """
    plain = float(PStableHash(1.0, n_hashes, n_tables, p).success_probability(ratio))
    if n_probes <= n_tables:
        return plain
    mean, error = probing.success(n_tables, n_hashes, n_probes, np.array([ratio]), p)
    return max(plain, float(mean[0] - 2 * error[0]))
