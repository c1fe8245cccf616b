"""Compare the speed of two source trees of slosh: is anything slower than before?

    python benchmarks/compare_versions.py OLD_SRC NEW_SRC [--rounds 5] [--only embed "index: ..."] [--sets 60000]

OLD_SRC and NEW_SRC are folders that hold the package `slosh` with its compiled kernel. Every round runs all
measurements once with each tree, in a fresh process whose PYTHONPATH is that tree; the two trees take turns to go
first. The table has the median over the rounds for each tree and their ratio, and marks what became slower by more than
5%. Times are CPU time of one thread unless --wall asks for wall-clock time, which other work on the machine disturbs.

The measurements use names that both versions have; where an old version needs another call, `certified_search` shows
how to adapt it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from machine import fastest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


TOLERANCE = 1.05
"""A larger ratio of the new to the old time is marked."""
N_SLICES, N_QUANTILES = 64, 16
N_QUERIES, N_SINGLE, N_SLOW = 1000, 300, 100
"""Queries of a batch, single queries, and single queries that take longer."""
REPEATS, MEASURED_SECONDS = 3, 0.5
"""A process takes the best of at least so many repetitions, for at least so long unless --seconds says otherwise."""
FILTERS = {"few": {"part": 7}, "a tenth": {"label": 3}, "four fifths": {"label": [0, 1, 2, 3, 4, 5, 6, 7]}}


class Bench:
    """The data of all measurements, and what several of them share; made when it is first needed."""

    def __init__(self, folder: Path, n_sets: int, wall: bool, seconds: float) -> None:
        self.folder, self.n_sets, self.seconds = folder, n_sets, seconds
        self.clock = time.perf_counter if wall else time.process_time

    def time(self, work: Callable[[], Any], calls: int, seconds: float | None = None) -> float:
        """Return the microseconds per call of the best repetition; `work` makes `calls` calls."""
        return 1e6 * fastest(work, REPEATS, self.seconds if seconds is None else seconds, self.clock)[0] / calls

    @cached_property
    def sets(self) -> tuple[Any, Any]:
        """Stored sets and query sets."""
        import search_data

        return search_data.read(self.n_sets, N_QUERIES)[1:]

    @cached_property
    def model(self) -> Any:
        """The fitted embedding."""
        from slosh.embed import SlicedWasserstein

        return SlicedWasserstein(N_SLICES, N_QUANTILES, n_jobs=1).fit(self.sets[0][:1])

    @cached_property
    def queries(self) -> Any:
        """Query vectors."""
        return self.model.transform(self.sets[1])

    @cached_property
    def ladder(self) -> Any:
        """A calibrated LadderSearch over the vectors of the stored sets."""
        from slosh.search import LadderSearch

        search = LadderSearch(n_jobs=1)
        search.add(self.model.transform(self.sets[0]))
        search.train()
        search.search(self.queries[:100], 10)
        return search

    def new_index(self, path: Path | None) -> Any:
        """Return an empty index."""
        import slosh
        from slosh.embed import SlicedWasserstein

        return slosh.SetIndex.create(path, 2, embedding=SlicedWasserstein(N_SLICES, N_QUANTILES, n_jobs=1), n_jobs=1)

    def records(self) -> Iterator[tuple[Any, list[str], list[dict[str, Any]]]]:
        """Yield the stored sets with ids and metadata."""
        import search_data

        return search_data.records(self.sets[0], 0)

    @cached_property
    def index_path(self) -> Path:
        """The folder of a durable index of the stored sets, which was searched once."""
        path = self.folder / "stored.slosh"
        with self.new_index(path) as index:
            index.add(self.records())
            index.search(self.sets[1][:100])
        return path

    @cached_property
    def index(self) -> Any:
        """That index, open for reading."""
        import slosh

        return slosh.open(self.index_path, read_only=True, n_jobs=1)

    @cached_property
    def certified(self) -> Callable[[Any], Any]:
        """A function that answers a certified search over the stored sets in memory."""
        return certified_search(self)

    def single(self, search: Callable[[Any], Any], n: int = N_SINGLE) -> float:
        """Time single queries; the first ones, which may calibrate, do not count."""
        sets = [self.sets[1][i] for i in range(n)]
        for each in sets[:20]:
            search(each)
        return self.time(lambda: [search(each) for each in sets], n)


def certified_search(bench: Bench) -> Callable[[Any], Any]:
    """Return certified search in memory, by SetSearch in versions that have it and by SetIndex in later ones."""
    import slosh

    if hasattr(slosh.search, "SetSearch"):
        old = slosh.search.SetSearch(bench.model, n_jobs=1)
        old.add(bench.sets[0])
        return lambda query: old.search([query], 10, certify=True)
    index = bench.new_index(None)
    index.add(bench.sets[0])
    return lambda query: index.search(query, 10, certify=True)


# -- measurements: each returns microseconds ---------------------------------------------------------------------------


def embed(bench: Bench) -> float:
    """Embed sets, per set."""
    sets = bench.sets[0][:5000]
    return bench.time(lambda: bench.model.transform(sets), len(sets))


def ladder_single(bench: Bench, **options: Any) -> float:
    """Search for single vectors."""
    search, queries = bench.ladder, bench.queries[:N_SINGLE]
    search.search(queries[:20], 10, **options)
    return bench.time(lambda: [search.search(query[None], 10, **options) for query in queries], len(queries))


def ladder_batch(bench: Bench) -> float:
    """Search for a batch of vectors, per vector."""
    return bench.time(lambda: bench.ladder.search(bench.queries, 10), len(bench.queries))


def ladder_add(bench: Bench) -> float:
    """Add single vectors to a large search."""
    import copy

    search, vectors = copy.deepcopy(bench.ladder), bench.queries[:100]
    return bench.time(lambda: [search.add(vector[None]) for vector in vectors], len(vectors))


def index_add(bench: Bench) -> float:
    """Add all sets in one call to a durable index, per set."""
    numbers = iter(range(REPEATS))

    def build() -> None:
        with bench.new_index(bench.folder / f"new{next(numbers)}.slosh") as index:
            index.add(bench.records())

    return bench.time(build, bench.n_sets, seconds=0)


def index_add_one(bench: Bench) -> float:
    """Add sets one by one to a durable index."""
    sets = bench.sets[1]
    with bench.new_index(bench.folder / "single.slosh") as index:
        index.add(sets[:500])
        rows = iter(range(500, N_QUERIES))
        return bench.time(lambda: [index.add([sets[next(rows)]]) for _ in range(50)], 50, seconds=0)


def index_open(bench: Bench) -> float:
    """Open a durable index."""
    import slosh

    path = bench.index_path
    return bench.time(lambda: slosh.open(path, n_jobs=1).close(), 1)


def index_batch(bench: Bench, **options: Any) -> float:
    """Search for a batch of sets, per set."""
    sets = bench.sets[1]
    return bench.time(lambda: bench.index.search(sets, **options), len(sets))


MEASUREMENTS: dict[str, Callable[[Bench], float]] = {
    "embed": embed,
    "ladder: single query": ladder_single,
    "ladder: single query, exact": lambda bench: ladder_single(bench, recall=1.0),
    "ladder: batch": ladder_batch,
    "ladder: add one vector": ladder_add,
    "index: add": index_add,
    "index: add one set": index_add_one,
    "index: open": index_open,
    "index: single query": lambda bench: bench.single(lambda query: bench.index.search(query)),
    "index: batch": index_batch,
    "index: certified query": lambda bench: bench.single(lambda query: bench.index.search(query, certify=True), N_SLOW),
    "index: re-ranked query": lambda bench: bench.single(
        lambda query: bench.index.search(query, rerank="sliced"), N_SLOW
    ),
    "in memory: certified query": lambda bench: bench.single(bench.certified, N_SLOW),
    **{
        f"index: filter, {name}": lambda bench, where=where: bench.single(
            lambda query: bench.index.search(query, where=where), N_SLOW
        )
        for name, where in FILTERS.items()
    },
    "index: batch, filter": lambda bench: index_batch(bench, where=FILTERS["a tenth"]),
}


# -- running and reporting ---------------------------------------------------------------------------------------------


def measure_here(source: str, names: list[str], n_sets: int, wall: bool, seconds: float) -> dict[str, float]:
    """Run the measurements in this process, if the slosh that it imports is that of the source tree."""
    import slosh

    if Path(slosh.__file__).resolve().parent != Path(source) / "slosh":
        raise SystemExit("another slosh was imported: pass the folder that holds the package")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), n_sets, wall, seconds)
        return {name: MEASUREMENTS[name](bench) for name in names}


def measure_tree(source: Path, *about: Any) -> dict[str, float]:
    """Run the measurements in a fresh process with this source tree."""
    command = [sys.executable, __file__, "--measure", json.dumps([str(source), *about])]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{source}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def print_table(old: list[dict[str, float]], new: list[dict[str, float]]) -> bool:
    """Print medians and ratios, and return whether everything is within the tolerance."""
    print(f"\n{'':28}{'old':>12}{'new':>12}{'new / old':>12}    range of new / old over the rounds")
    good = True
    for name in old[0]:
        before, after = ([result[name] for result in results] for results in (old, new))
        ratio = statistics.median(after) / statistics.median(before)
        each = [b / a for a, b in zip(before, after, strict=True)]
        mark = "  SLOWER" if ratio > TOLERANCE else ""
        good &= ratio <= TOLERANCE
        cells = "".join(f"{statistics.median(values):9,.1f} us" for values in (before, after))
        print(f"{name:28}{cells}{ratio:12.3f}    {min(each):.3f} to {max(each):.3f}{mark}")
    return good


def main() -> None:
    """Compare the two trees, or measure one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="the source tree to compare with")
    parser.add_argument("new", type=Path, nargs="?", help="the source tree to judge")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sets", type=int, default=60_000, help="stored sets")
    parser.add_argument("--seconds", type=float, default=MEASURED_SECONDS, help="the least time of a measurement")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=MEASUREMENTS, help=", ".join(MEASUREMENTS))
    parser.add_argument("--wall", action="store_true", help="wall-clock time instead of CPU time")
    parser.add_argument("--out", type=Path, help="write the times of all rounds to this JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_here(*json.loads(options.measure))))
        return
    if options.old is None or options.new is None:
        parser.error("pass the old and the new source tree")
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    results: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for number in range(options.rounds):
        for tree in ("old", "new") if number % 2 == 0 else ("new", "old"):
            started = time.perf_counter()
            names = options.only or list(MEASUREMENTS)
            results[tree].append(measure_tree(trees[tree], names, options.sets, options.wall, options.seconds))
            print(f"round {number + 1}, {tree}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    if options.out:
        options.out.write_text(json.dumps({"sets": options.sets, "wall": options.wall, **results}, indent=1) + "\n")
    clock = "wall-clock" if options.wall else "CPU"
    print(f"{options.sets:,} sets, D = {N_SLICES * N_QUANTILES}, one thread, {clock} time, median of {options.rounds}")
    print(f"old: {trees['old']}\nnew: {trees['new']}")
    sys.exit(0 if print_table(results["old"], results["new"]) else 1)


if __name__ == "__main__":
    main()
