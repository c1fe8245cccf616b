"""A fitted p-stable hash and its buckets: which positions are to be compared with a query.

Queries come in, positions of candidates go out, batch by batch; also how likely a vector at a distance is found.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from ..hash import probing
from ..hash.pstable import PStableHash
from ..native.arrays import Float32, Float64, Int64, Mask
from .buckets import Buckets, UInt64, distinct
from .state import Trained
from .store import Batch

EXTRA_PROBES = 1024
"""Buckets that are looked into besides those of the query itself, at most."""
FAR_RATIOS = np.array([0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.85, 1.0, 1.5, 3.0])
"""Distances in widths, for these."""
BATCH_ENTRIES, BATCH_QUERIES = 1 << 18, 512


class Tables:
    """A fitted hash, and the vectors at the positions below `filed` in its buckets. Immutable, like states.

    Vectors from `filed` on are in no bucket yet, and are compared with every query.
    """

    def __init__(self, hash_: PStableHash, buckets: Buckets | None = None, filed: int = 0) -> None:
        self.hash, self.filed = hash_, filed
        self.T, self.k, self.p = int(hash_.n_tables), int(hash_.n_hashes), int(hash_.p)
        self.buckets = buckets or Buckets(self.T, self.k)

    def file(self, vectors: Float32) -> Tables:
        """Return the tables with all of these vectors, the first of which are filed already."""
        step = max(1, (1 << 22) // (self.T * self.k))
        sums = [
            self.buckets.sums(np.floor(self.hash.positions(vectors[first : first + step])))
            for first in range(self.filed, len(vectors), step)
        ]
        buckets = self.buckets.extend(np.concatenate(sums), self.filed) if sums else self.buckets
        return Tables(self.hash, buckets, len(vectors))

    def holds(self, positions: Int64, vectors: Float32) -> Mask:
        """Return which positions are in the buckets of these vectors, or in none yet."""
        keys = self._keys(vectors)
        right = np.ones(len(positions), np.bool_)
        for table in range(self.T):
            starts, ends = self.buckets.find(keys[:, table : table + 1])
            entries = self.buckets.entries(starts, ends)
            owner = np.repeat(np.arange(len(positions)), (ends - starts).sum(axis=(0, 2)))
            found = np.zeros(len(positions), np.bool_)
            found[owner[entries == positions[owner]]] = True
            right &= found
        return np.asarray(right | (positions >= self.filed))

    def _keys(self, vectors: Float32) -> UInt64:
        """Return the keys of the buckets of vectors, (n, T)."""
        return self.buckets.keys(self.buckets.sums(np.floor(self.hash.positions(vectors))), np.arange(self.T))

    def candidates(self, queries: Float32, n: int, mask: Mask | None, n_probes: int) -> Iterator[tuple[Batch, Int64]]:
        """Yield the positions (of n) in the probed buckets, and those in none yet, each once, in bounded batches.

        With each batch comes how many entries of buckets were read for each of its queries.
        """
        tail = np.arange(self.filed, n)
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
                n_queries = last - first
                positions = self.buckets.entries(begins[:, first:last], ends[:, first:last])
                query = np.repeat(np.arange(n_queries), entries[first:last])
                keep = distinct(query, positions, n)
                if mask is not None:
                    keep &= mask[positions]
                query, positions = query[keep], positions[keep]
                if len(tail):
                    rest = tail if mask is None else tail[mask[tail]]
                    query = np.concatenate([query, np.repeat(np.arange(n_queries), len(rest))])
                    order = np.argsort(query, kind="stable")
                    query, positions = query[order], np.concatenate([positions, np.tile(rest, n_queries)])[order]
                offsets = np.searchsorted(query, np.arange(n_queries + 1)).astype(np.int64)
                yield Batch(slice(start + first, start + last), offsets, positions), entries[first:last]
                first = last

    def first_found(self, queries: Float32, neighbours: Int64, vectors: Float32) -> Int64:
        """Return in which probe of its query each neighbour (n, k) is seen first, from 0 on; a large number if in none.

        `vectors` are those of all positions.
        """
        out = np.full(neighbours.shape, 1 << 30, np.int64)
        places = self.hash.positions(queries)
        probes = probing.probes(places, EXTRA_PROBES + self.T, self.p)
        keys = self.buckets.probe_keys(np.floor(places), probes)
        for i in range(neighbours.shape[1]):
            same = keys == np.take_along_axis(self._keys(vectors[neighbours[:, i]]), probes.tables, axis=1)
            found = same.any(axis=1)
            out[found, i] = same[found].argmax(axis=1)
        out[neighbours >= self.filed] = 0
        return out

    def farther(self, distances: Float64, n_probes: int, target: float) -> Int64:
        """Return probes for queries that are farther from their k neighbours than others: `n_probes` or more.

        As many as find `target` of rows at these distances (n, k), on average; 0 stands for a scan, where no such
        number does. If they are the distances of the k nearest found so far, the true ones are no larger, and the
        recall over the draws of the hash is no less.
        """
        levels = [*(self.T << i for i in range(12) if self.T << i < EXTRA_PROBES), max(self.T, EXTRA_PROBES)]
        ratios = np.clip(self._largest(distances) / float(self.hash.width), 0.0, FAR_RATIOS[-1])
        table = _success_table(self.T, self.k, self.p, tuple(levels))
        found = [np.interp(ratios, FAR_RATIOS, line).mean(axis=1) >= target for line in table]
        enough = np.array(found)
        return np.where(enough.any(axis=0), np.maximum(np.array(levels)[enough.argmax(axis=0)], n_probes), 0)

    def success(self, radius: float, n_probes: int) -> float:
        """Return how likely a row at this (Euclidean) distance is found, at least."""
        return success(self.T, self.k, n_probes, self._largest(radius) / float(self.hash.width), self.p)

    def probes_for(self, radius: float, target: float) -> int:
        """Return probes with which `success` is `target`, at most a quarter too many; 0 if there are none."""
        largest = self._largest(radius) / float(self.hash.width)
        for most in (8 * self.T, EXTRA_PROBES + self.T):
            levels = [self.T]
            while levels[-1] < most:
                levels.append(min(most, levels[-1] + max(1, levels[-1] // 4)))
            mean, error = probing.success(self.T, self.k, levels, np.array([largest]), self.p)
            for n_probes in np.array(levels)[mean[:, 0] - 2 * error[:, 0] >= target].tolist():
                if self.success(radius, n_probes) >= target:
                    return int(n_probes)
            if mean[-1, 0] * (EXTRA_PROBES + self.T) / most < target:
                break  # every further probe finds less than those before
        return 0

    def _largest(self, radius: Any) -> Any:
        """Return the largest distance that the hash can see in a Euclidean one: |x|_1 <= sqrt(D) |x|_2."""
        return radius if self.p == 2 else radius * self.hash.n_features_in_**0.5

    def as_derived(self) -> Trained:
        """Return the buckets for a cache."""
        return Trained({"filed": self.filed, "hash": self._fingerprint()}, self.buckets.arrays())

    def with_derived(self, derived: Trained, n: int) -> Tables:
        """Return the tables with the buckets that `as_derived` returned; without, if they are not those of the hash."""
        header, arrays = derived
        try:
            filed = header["filed"]
            if type(filed) is not int or not 0 <= filed <= n or header["hash"] != self._fingerprint():
                return self
            return Tables(self.hash, Buckets.from_arrays(arrays, self.T, self.k, filed), filed)
        except (KeyError, TypeError, ValueError, AttributeError):
            return self

    def _fingerprint(self) -> int:
        """Return a checksum of what the hash has drawn."""
        return zlib.crc32(self.hash.offsets_.tobytes(), zlib.crc32(self.hash.directions_.tobytes()))


@lru_cache(maxsize=64)
def _success_table(n_tables: int, n_hashes: int, p: int, levels: tuple[int, ...]) -> Float64:
    """Return how likely a row is found, (levels, FAR_RATIOS)."""
    mean, _ = probing.success(n_tables, n_hashes, levels, FAR_RATIOS, p, draws=64)
    return mean


@lru_cache(maxsize=1024)
def success(n_tables: int, n_hashes: int, n_probes: int, ratio: float, p: int) -> float:
    """Return the probability to find a row at the distance ratio * width.

    Exact for plain tables, less two standard errors where it is an average over draws.
    """
    plain = float(PStableHash(1.0, n_hashes, n_tables, p).success_probability(ratio))
    if n_probes <= n_tables:
        return plain
    mean, error = probing.success(n_tables, n_hashes, n_probes, np.array([ratio]), p)
    return max(plain, float(mean[0] - 2 * error[0]))
