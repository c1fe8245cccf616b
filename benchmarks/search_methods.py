"""What `make bench-search` measures: slosh's LadderSearch, and the parts that it shares with its peers.

A method is built over the vectors of a `Bench` and offers chains of settings (`Level`), each chain from little effort
to much. search_peers.py builds the methods of other libraries. Import these modules only after the environment limits
the libraries to one thread (bench_search.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import search_data
import slosh
from search_data import Collection
from slosh.rank import sliced_wasserstein
from slosh.search import ExactSearch, LadderSearch

Array = NDArray[Any]
K = 10
RECALLS = (0.9, 0.95, 0.99, 1.0)
"""The recalls that LadderSearch is asked for; 1.0 is exact."""
VECTORS_PER_CHUNK = 50_000
LARGE = 200_000
"""More sets than this are a large collection, whose graphs are kept in the cache."""
TRUTH_QUERIES, TRUTH_QUERIES_IF_LARGE = 20, 2
"""Queries of certified search that are compared with all sets, in a small and in a large collection."""


class Skipped(Exception):
    """A method cannot be measured; the message says why."""


def no_choice() -> None:
    """Choose a setting that needs nothing to be set."""


@dataclass
class Level:
    """One setting of a method.

    `choose` applies it and is not timed; `search` returns the rows of the K nearest neighbours of queries. `size` is
    the bytes of what it searches in.
    """

    name: str
    search: Callable[[Any], Array]
    size: int
    choose: Callable[[], None] = no_choice


@dataclass
class Built:
    """A method that was built: chains of settings, and the seconds of an earlier build of what was kept."""

    chains: list[list[Level]]
    note: str = ""
    kept_seconds: float = 0.0


@dataclass
class Bench:
    """A cell of the benchmark: vectors, queries, their true neighbours, and what several methods share."""

    name: str
    data: Collection
    cache: Path
    rounds: int
    build_limit: float

    @property
    def vectors(self) -> Array:
        return self.data.vectors

    @cached_property
    def queries(self) -> Array:
        return np.ascontiguousarray(self.data.queries[: self.data.n_queries])

    @property
    def dim(self) -> int:
        return int(self.data.queries.shape[1])

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """Yield the vectors in chunks, as arrays in memory, with the number of the first one."""
        for first in range(0, len(self.data), VECTORS_PER_CHUNK):
            yield first, np.array(self.vectors[first : first + VECTORS_PER_CHUNK])

    def sample(self, n: int) -> Array:
        """Return n random vectors, to train on."""
        rows = np.random.RandomState(0).permutation(len(self.data))[:n]
        return np.array(self.vectors[np.sort(rows)])

    @cached_property
    def truth(self) -> Array:
        """The K nearest rows of each query by ExactSearch, kept in the cache."""
        path = self.cache / f"truth-{self.data.key}-{search_data.digest(self.queries)}-{K}.npy"
        if not path.exists():
            search = ExactSearch(n_jobs=1)
            search.add(self.vectors)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, search.search(self.queries, K).rows)
        return np.asarray(np.load(path))

    @cached_property
    def ladder(self) -> tuple[LadderSearch, float]:
        """LadderSearch over the vectors, and the CPU seconds of adding, training and calibrating for .99."""
        search = LadderSearch(n_jobs=1)
        start = time.process_time()
        search.add(self.vectors)
        search.train()
        search.calibrate(K, 0.99)
        return search, time.process_time() - start

    def ladder_level(self, recall: float, allowed: Array | None = None) -> Level:
        """Return LadderSearch asked for a recall, among all rows or those that a mask allows."""
        search, _ = self.ladder

        def find(queries: Array) -> Array:
            return search.search(queries, K, recall=recall, allowed=allowed).rows

        return Level(f"recall={recall:g}", find, sum(search.info()["bytes"].values()))


def certified(bench: Bench) -> tuple[Level, Array]:
    """Build an index in memory for certified search, which takes sets and finds the nearest by the sliced distance.

    Return it with its true neighbours, for a few queries that are compared with all sets, from the points.
    """
    model, sets = bench.data.model, bench.data.query_sets
    index = slosh.SetIndex.create(None, sets.dim, embedding=model, search=LadderSearch(n_jobs=1), n_jobs=1)
    first = 0
    for batch in bench.data.batches():
        index.add(batch, ids=[str(row) for row in range(first, first + len(batch))])
        first += len(batch)

    def find(queries: Any) -> Array:
        found = index.search(queries, K, certify=True)
        return np.array([[int(name) for name in ids] for ids in found.ids], np.int64)  # ids are the rows as text

    few = sets[: TRUTH_QUERIES if len(bench.data) <= LARGE else TRUTH_QUERIES_IF_LARGE]
    distances = [[sliced_wasserstein(x, batch, slices=model.slices_) for x in few] for batch in bench.data.batches()]
    truth = np.argsort(np.concatenate(distances, axis=1), axis=1, kind="stable")[:, :K]
    return Level("certify=True", find, sum(index.info()["memory_bytes"].values())), truth
