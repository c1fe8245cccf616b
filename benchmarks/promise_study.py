"""Whether the stated recall is kept: searches are calibrated, and then asked for the neighbours of many other queries.

A run draws a collection of one kind by a seed, builds a search, calibrates it at each recall for ten neighbours, and
compares `stats.recall` of each answer with the recall of its population: of all stored rows that the calibration did
not use (each left out of its own answer), and of fresh rows from the same source. The true distances come from NumPy in
double precision. A returned row counts if it is no farther than the true k-th neighbour.

    python benchmarks/promise_study.py [--seeds 20] [--rows 5000] [--searches LadderSearch ...] [--kinds ...]

It prints tables for docs/promises.md and writes benchmarks/results/promise.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import machine
import search_data
from markdown_tables import markdown_table
from slosh import Sets
from slosh.embed import SlicedWasserstein, Whitened
from slosh.search import HammingSearch, LadderSearch, LSHSearch, Search
from slosh.search.calibration import sample_positions

Array = NDArray[Any]
RESULTS = machine.ROOT / "benchmarks" / "results" / "promise.json"
K, FEWER = 10, (1, 3)
RECALLS = (0.9, 0.95, 0.99)
FILTERS = (0.95, 0.5, 0.1)
FILTER_RECALL = 0.95
FILTER_QUERIES = 1000
GROWTH = 0.9
"""So many rows are added, as a part of those that were calibrated with: a calibration still holds then."""
FRESH_ROWS = 3000
NEAR_TIE = 1e-5
"""A row counts as no farther than the k-th if its distance is larger by this part only: vectors are rounded."""


# -- Collections: kind -> vectors, of which a run takes the first rows


def clusters(random: np.random.RandomState, n: int) -> Array:
    """Return clusters of very different sizes and widths in 48 dimensions."""
    centres, widths = random.normal(size=(60, 48)), random.uniform(0.05, 0.8, 60)
    of = random.choice(60, n, p=random.dirichlet(np.full(60, 0.5)))
    return centres[of] + widths[of, None] * random.normal(size=(n, 48))


def heavy_tails(random: np.random.RandomState, n: int) -> Array:
    """Return vectors of 24 numbers with Student's t of 3 degrees: some are far from everything."""
    return random.standard_t(3, size=(n, 24)) * 0.9 ** np.arange(24)


def duplicates(random: np.random.RandomState, n: int) -> Array:
    """Return vectors of which many are stored several times, as copies or nearly so."""
    some = random.normal(size=(max(1, n // 4), 32)) * 0.93 ** np.arange(32)
    made = some[random.randint(len(some), size=n)]
    return made + np.where(random.rand(n, 1) < 0.5, 0.0, 0.05) * random.normal(size=made.shape)


def low_rank(random: np.random.RandomState, n: int) -> Array:
    """Return vectors of 128 numbers near a plane of 6 dimensions, curved a little."""
    inside = random.normal(size=(n, 6))
    curved = np.column_stack([inside, 0.3 * inside**2])
    return curved @ random.normal(size=(12, 128)) + 0.02 * random.normal(size=(n, 128))


def few_far(random: np.random.RandomState, n: int) -> Array:
    """Return one dense cluster, and 3% of rows spread widely around it: queries of two kinds, one of them rare."""
    wide = random.rand(n, 1) < 0.03
    return random.normal(size=(n, 32)) * np.where(wide, 6.0, 0.5) * 0.95 ** np.arange(32)


def noise(random: np.random.RandomState, n: int) -> Array:
    """Return independent normal numbers in 32 dimensions, which no list tells apart."""
    return random.normal(size=(n, 32))


GENERATED: dict[str, Callable[[np.random.RandomState, int], Array]] = {
    "clusters": clusters,
    "heavy tails": heavy_tails,
    "duplicates": duplicates,
    "low rank": low_rank,
    "few far": few_far,
    "noise": noise,
}


@cache
def mnist(model: str) -> Array:
    """Return the vectors of MNIST's training sets."""
    return search_data.mnist(model_name=model).vectors


@cache
def modelnet(whitened: bool) -> Array:
    """Return the vectors of the objects of ModelNet40."""
    with np.load(machine.DATA / "modelnet40_3d.npz") as file:
        points, offsets = file["points"].astype(np.float32), file["offsets"].astype(np.int64)
    sets = Sets(points / np.abs(points).max(), offsets)
    model = Whitened(SlicedWasserstein(), n_components=64) if whitened else SlicedWasserstein(16, 16)
    return model.fit_transform(sets)


POOLS: dict[str, Callable[[], Array]] = {
    "MNIST, whitened, 64": lambda: mnist("w64"),
    "MNIST, sliced, 256": lambda: mnist("s256"),
    "ModelNet40, whitened, 64": lambda: modelnet(True),
    "ModelNet40, sliced, 256": lambda: modelnet(False),
}
KINDS = (*POOLS, *GENERATED)
SEARCHES: dict[str, Callable[[int], Search]] = {
    "LadderSearch": lambda seed: LadderSearch(random_state=seed, n_jobs=1),
    "HammingSearch": lambda seed: HammingSearch(rerank=100, n_jobs=1),
    "LSHSearch": lambda seed: LSHSearch(random_state=seed, n_jobs=1),
}


def drawn(kind: str, seed: int, n: int) -> Array:
    """Return n vectors of a kind, in random order."""
    random = np.random.RandomState([seed, KINDS.index(kind)])
    if kind in GENERATED:
        return GENERATED[kind](random, n).astype(np.float32)
    pool = POOLS[kind]()
    return pool[random.permutation(len(pool))[:n]]


def available() -> list[str]:
    """Return the kinds whose data are there."""
    there = {"MNIST": search_data.DATA.exists(), "ModelNet40": (machine.DATA / "modelnet40_3d.npz").exists()}
    return [kind for kind in KINDS if there.get(kind.partition(",")[0], True)]


# -- What is true, and what was stated


class Truth:
    """The distances of true neighbours, by comparing everything; `own` is the row of each query to leave out, or -1."""

    def __init__(self, queries: Array, stored: Array, own: Array) -> None:
        self.queries, self.stored, self.own = queries.astype(np.float64), stored.astype(np.float64), own
        middle = self.stored.mean(axis=0)
        a, b = (self.queries - middle).astype(np.float32), (self.stored - middle).astype(np.float32)
        self._squares = np.einsum("ij,ij->i", b, b) - 2 * (a @ b.T)  # up to a constant of the query
        mine = np.flatnonzero(own >= 0)
        self._squares[mine, own[mine]] = np.inf

    def kth(self, ks: tuple[int, ...], allowed: Array | None = None) -> dict[int, Array]:
        """Return the distance of the k-th nearest of each query, for each k, among those allowed."""
        squares = self._squares if allowed is None else np.where(allowed, self._squares, np.inf)
        n = min(max(ks) + 20, squares.shape[1] - 1)  # more than needed: the order of the first look is rough
        near = squares <= np.partition(squares, n - 1, axis=1)[:, n - 1 :][:, :1]
        several = np.count_nonzero(near, axis=1) != n  # rows at the same distance
        near[several] = False
        best = np.empty((len(squares), n), np.int64)
        best[~several] = np.nonzero(near)[1].reshape(-1, n)
        best[several] = np.argpartition(squares[several], n - 1, axis=1)[:, :n]
        distances = np.sort(self.distances(best, slice(None)), axis=1)
        return {k: distances[:, k - 1] for k in ks}

    def distances(self, rows: Array, which: Any) -> Array:
        """Return the distance of rows (n, m) to these n queries; inf for -1 and for the query's own row."""
        queries, own, found = self.queries[which], self.own[which], np.empty(rows.shape)
        for first in range(0, len(rows), 256):
            part = slice(first, first + 256)
            difference = self.stored[rows[part]] - queries[part, None]
            found[part] = np.sqrt(np.einsum("ijk,ijk->ij", difference, difference))
        return np.where((rows < 0) | (rows == own[:, None]), np.inf, found)

    def recall(self, rows: Array, kth: Array, which: Any, allowed: Array | None = None) -> float:
        """Return the part of the rows found by these queries that are allowed and no farther than the true k-th."""
        near = self.distances(rows, which) <= kth[:, None] * (1 + NEAR_TIE) + 1e-12
        if allowed is not None:
            near &= allowed[rows]
        return float(near.mean())


def as_stored(vectors: Array, name: str) -> Array:
    """Return vectors as a search stores and compares them: LadderSearch in 16 bits, whole numbers times a scale."""
    if name != "LadderSearch":
        return vectors
    scale = np.maximum(np.abs(vectors).max(axis=1, keepdims=True) / np.float32(32767), np.float32(1e-37))
    return np.rint(vectors / scale).astype(np.float32) * scale


@dataclass
class Statement:
    """What a search stated about its answers, and what is true of them.

    condition : "stored" (stored rows that did not calibrate), "fresh", "k=1", ..., "grown", "95% left", ...
    stated : `stats.recall`; None: nothing was stated.
    measured : the recall of the population.
    """

    kind: str
    search: str
    seed: int
    condition: str
    asked: float
    stated: float | None
    measured: float

    @property
    def kept(self) -> bool:
        """Whether the recall is what was stated, or more; up to the rounding of vectors, if that was all of it."""
        return self.stated is None or self.measured >= min(self.stated, 1 - 1e-4)


def statements(kind: str, name: str, seed: int, n: int, n_fresh: int = FRESH_ROWS) -> Iterator[Statement]:
    """Build one search, calibrate it, and yield what it states of the queries of each condition."""
    n_more = int(GROWTH * n)
    rows = drawn(kind, seed, n + n_more + n_fresh)
    n_more = min(n_more, max(0, len(rows) - n - n_fresh // 2))
    stored, more, fresh = np.split(rows, [n, n + n_more])
    fresh = as_stored(fresh, name)
    search = SEARCHES[name](seed)
    search.add(stored)
    for recall in RECALLS:
        search.calibrate(K, recall)  # type: ignore[attr-defined]
    seed_of_sample = getattr(search, "random_state", 0)
    used = {recall: sample_positions(np.ones(n, np.bool_), recall, seed_of_sample) for recall in RECALLS}
    kept = search.vectors(np.arange(n))

    def asked(condition: str, recall: float, truth: Truth, kth: Array, k: int, which: Any, allowed: Any) -> Statement:
        own, queries = truth.own[which], truth.queries[which].astype(np.float32)
        found = search.search(queries, k, recall=recall, exclude=own, allowed=allowed)
        measured = truth.recall(found.rows, kth[which], which, allowed)
        return Statement(kind, name, seed, condition, recall, found.stats.recall, measured)

    every = slice(None)
    inside, outside = Truth(kept, kept, np.arange(n)), Truth(fresh, kept, np.full(len(fresh), -1))
    for condition, truth in (("stored", inside), ("fresh", outside)):
        kth = truth.kth((K, *FEWER))
        for recall in RECALLS:
            which = np.setdiff1d(np.arange(n), used[recall]) if condition == "stored" else every
            yield asked(condition, recall, truth, kth[K], K, which, None)
            if condition == "stored":
                for k in FEWER:
                    yield asked(f"k={k}", recall, truth, kth[k], k, which, None)
    random = np.random.RandomState([seed, 7])
    some = Truth(kept[:FILTER_QUERIES], kept, np.arange(min(n, FILTER_QUERIES)))
    for share in FILTERS:
        along = kept @ random.normal(size=kept.shape[1])
        for how, order in (("random", random.rand(n)), ("one side", along)):
            allowed = order <= np.quantile(order, share)
            kth = some.kth((K,), allowed)[K]
            yield asked(f"{share:.0%} left, {how}", FILTER_RECALL, some, kth, K, every, allowed)
    if len(more) >= n // 2:
        search.add(more)
        whole = search.vectors(np.arange(n + len(more)))
        grown = Truth(fresh, whole, np.full(len(fresh), -1))
        kth = grown.kth((K,))[K]
        for recall in RECALLS:
            yield asked("grown", recall, grown, kth, K, every, None)


# -- The report


def summary(found: list[Statement]) -> list[object]:
    """Return how many statements there are, how many of them were exact, kept, and by how much the worst was missed."""
    stated = [each for each in found if each.stated is not None]
    exact = sum(each.stated == 1.0 for each in stated)
    measured = [each for each in stated if each.stated != 1.0]
    kept = sum(each.kept for each in measured)
    share = f"{100 * kept / len(measured):.1f}%" if measured else "-"
    worst = max([each.stated - each.measured for each in measured if not each.kept], default=0.0)  # type: ignore[operator]
    broken = sum(not each.kept for each in stated if each.stated == 1.0)
    return [exact, broken, f"{kept} of {len(measured)}", share, f"{worst:.4f}" if worst else "-"]


def report(found: list[Statement]) -> str:
    """Return the tables."""
    head = ["exact", "of them wrong", "kept", "share", "missed by at most"]
    parts = []
    names = list(dict.fromkeys(each.search for each in found))
    conditions = list(dict.fromkeys(each.condition for each in found))
    plain = [each for each in conditions if "left" not in each]
    rows: list[list[object]] = []
    for name in names:
        for condition in plain:
            here = [each for each in found if each.search == name and each.condition == condition]
            if here:
                rows.append([name, condition, *summary(here)])
    parts.append(markdown_table(["search", "queries", *head], rows))
    rows = []
    for kind in dict.fromkeys(each.kind for each in found):
        for name in names:
            here = [
                each
                for each in found
                if each.search == name and each.kind == kind and each.condition in ("stored", "fresh")
            ]
            if here:
                rows.append([kind, name, *summary(here)])
    parts.append(markdown_table(["vectors", "search", *head], rows))
    rows = []
    for name in names:
        for condition in (each for each in conditions if "left" in each):
            here = [each for each in found if each.search == name and each.condition == condition]
            none = [each.measured for each in here if each.stated is None]
            exact = [each for each in here if each.stated == 1.0]
            other = len(here) - len(none) - len(exact)
            least = f"{np.mean(none):.3f} ({min(none):.3f})" if none else "-"
            wrong = sum(not each.kept for each in exact)
            if here:
                rows.append([name, condition, len(exact), wrong, other, len(none), least])
    head = ["search", "filter", "exact", "of them wrong", "a number stated", "nothing stated", "their recall (least)"]
    parts.append(markdown_table(head, rows))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=5000, help="stored rows")
    parser.add_argument("--searches", nargs="+", choices=list(SEARCHES), default=list(SEARCHES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    kinds, found, started = args.kinds or available(), [], time.perf_counter()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for kind in kinds:
            for name in args.searches:
                found += statements(kind, name, seed, args.rows)
        spent = time.perf_counter() - started
        print(f"seed {seed}: {len(found)} statements, {spent:.0f} s", file=sys.stderr, flush=True)
        args.out.write_text(json.dumps([asdict(each) for each in found]))
    print(f"{machine.cpu()}; {args.seeds} seeds, {args.rows} rows\n\n{report(found)}")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
