"""Measure the durable index: adding sets, its size, opening it, queries, and searches during an add.

The collections are MNIST's 60,000 sets and 1,020,000 sets made from them by affine maps (`search_data.py`). Every
figure has a floor from the same run: a bare search over vectors, a plain SQLite table with the same settings. Each step
runs in a process of its own with two threads; `concurrent_search.py` measures the searches during an add.

    python benchmarks/bench_index.py                  everything: about 30 minutes, 10 GB of disk
    python benchmarks/bench_index.py --only mnist     minutes
    python benchmarks/bench_index.py --quick          a few hundred sets, only to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import concurrent_search
import search_data
import slosh
from machine import ROOT, cpu
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.native import kernel
from slosh.search import LadderSearch

THREADS = 2
COLLECTIONS = {  # sets of MNIST, maps, slices
    "mnist": (60_000, 0, 64),
    "mnist, default embedding": (60_000, 0, None),
    "million": (60_000, 17, 64),
}
DURING_AN_ADD = concurrent_search.NAME
FILTERS = {"few (0.1%)": {"part": 7}, "a tenth": {"label": 3}, "four fifths": {"label": [0, 1, 2, 3, 4, 5, 6, 7]}}


class PeakMemory:
    """The peak memory of this process: anonymous, and resident, which includes mapped files."""

    def __init__(self) -> None:
        self.anonymous = self.resident = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            anonymous, resident = memory_now()
            self.anonymous, self.resident = max(self.anonymous, anonymous), max(self.resident, resident)

    def stop(self) -> dict[str, float]:
        """Stop watching, and return the peaks in gigabytes."""
        self._stop.set()
        self._thread.join()
        return {"anonymous_gb": self.anonymous / 1e9, "resident_gb": self.resident / 1e9}


def memory_now() -> tuple[int, int]:
    """Return the anonymous and the resident bytes of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024, int(lines["VmRSS"].split()[0]) * 1024


class TimedIterator:
    """An iterator that measures how long its items take to be made."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self.seconds = items, 0.0

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        started = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - started


def make_embedding(n_slices: int | None) -> SlicedWasserstein:
    """Return the embedding of an index; None is the default number of slices."""
    return SlicedWasserstein(n_slices, n_jobs=THREADS)


def percentiles(work: Callable[[int], Any], n: int) -> dict[str, float]:
    """Time n calls one by one, after one that is not counted because it fills caches."""
    times = []
    work(0)
    for i in range(n):
        started = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - started)
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50_us": 1e6 * p50, "p99_us": 1e6 * p99, "queries_per_s": 1 / float(np.mean(times))}


# -- steps, each in a process of its own -------------------------------------------------------------------------------


def build(folder: Path, n_train: int, n_maps: int, n_slices: int | None) -> dict[str, Any]:
    """Add all sets to a new index in one call; the floor is a bare SQLite table."""
    _, train, _ = search_data.read(n_train)
    stream = TimedIterator(search_data.records(train, n_maps))
    memory = PeakMemory()
    index = slosh.SetIndex.create(folder, 2, embedding=make_embedding(n_slices), n_jobs=THREADS)
    started = time.perf_counter()
    index.add(stream)
    added = time.perf_counter() - started - stream.seconds
    started = time.perf_counter()
    index.search(id="0/00000", k=10)
    first = time.perf_counter() - started
    index.close()
    n = n_train * max(1, n_maps)
    peak = memory.stop()
    sizes = {path.name: path.stat().st_size for path in (folder / "index.db", *(folder / "cache").iterdir())}
    cache = sum(size for name, size in sizes.items() if name != "index.db")
    floor = sqlite_floor(folder.parent / "floor.db", train)
    return {
        "sets": n,
        "sets_per_s": n / added,
        "first_search_s": first,
        "sets_per_s_until_first_answer": n / (added + first),
        "sqlite_table_sets_per_s": floor,
        "of_sqlite_table": n / added / floor,
        "bytes_per_set": {"database": sizes["index.db"] / n, "cache": cache / n},
        "points_bytes_per_set": float(train.sizes.mean() * 8),
        "memory": peak,
    }


def sqlite_floor(path: Path, sets: Sets) -> float:
    """Return the sets per second into a table of ids and blobs, with the same settings, in one transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t(row INTEGER PRIMARY KEY, id TEXT UNIQUE, points BLOB)")
    started = time.perf_counter()
    connection.execute("BEGIN")
    rows = ((i, f"0/{i:05d}", points.data) for i, points in enumerate(sets))
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return len(sets) / seconds


def small_adds(folder: Path, n_train: int, n_slices: int | None) -> dict[str, float]:
    """Add one set per call, and a thousand per call; each call returns when its sets are on disk."""
    _, train, _ = search_data.read(min(n_train, 20_000))
    rates = {}
    for size, n in ((1, min(300, len(train) // 20)), (1000, len(train))):
        target = folder.parent / f"small{size}.slosh"
        with slosh.SetIndex.create(target, 2, embedding=make_embedding(n_slices), n_jobs=THREADS) as index:
            started = time.perf_counter()
            for first in range(0, n, size):
                index.add(train[first : first + size])
            rates[f"{size} a call"] = n / (time.perf_counter() - started)
        shutil.rmtree(target)
    return rates


def open_index(folder: Path) -> dict[str, Any]:
    """Open the index in a process that has already imported everything."""
    before = memory_now()[0]
    started = time.perf_counter()
    index = slosh.open(folder, n_jobs=THREADS)
    seconds = time.perf_counter() - started
    memory = memory_now()[0] - before
    embedded = index.info()["embedded_on_open"]
    index.close()
    return {"seconds": seconds, "embedded": embedded, "anonymous_bytes": memory}


def bare_search(model: SlicedWasserstein, batches: Iterator[Sets], path: Path) -> LadderSearch:
    """Return a search over the vectors of the sets without ids, metadata or points: the floor of a query."""
    search = LadderSearch(path=path, n_jobs=THREADS)
    for sets in batches:
        search.add(model.index_vectors(sets)[0])
    search.train()
    return search


def query_index(folder: Path, n_train: int, n_queries: int, n_maps: int, n_slices: int | None) -> dict[str, Any]:
    """Search one query at a time and in batches, with and without filters; the floor is a bare search over vectors."""
    _, train, test = search_data.read(n_train, n_queries)
    if n_maps:
        random = np.random.RandomState(search_data.QUERY_SEED)
        maps = [search_data.affine_map(random) for _ in range(len(test))]
        test = search_data.transformed_each(test, maps, random)
    model, one = make_embedding(n_slices).fit(train[:1]), [test[i] for i in range(len(test))]
    vectors, path = model.index_vectors(test)[0], folder.parent / "bare.vectors"
    bare = bare_search(model, (sets for sets, _, _ in search_data.records(train, n_maps)), path)
    index = slosh.open(folder, read_only=True, n_jobs=THREADS)
    index.search(test[:1])
    truth, found = index.search(test, recall=1.0), index.search(test)
    recall = np.mean([len(set(a) & set(b)) / max(1, len(b)) for a, b in zip(found.ids, truth.ids, strict=True)])
    result: dict[str, Any] = {"recall": float(recall), "recall_promised": found.stats.recall}
    many, few = min(n_queries, 500), min(n_queries, 200)
    result["bare search"] = percentiles(lambda i: bare.search(vectors[i : i + 1], 10), many)
    result["one at a time"] = percentiles(lambda i: index.search(one[i]), many)
    result["x_bare"] = result["one at a time"]["p50_us"] / result["bare search"]["p50_us"]
    result["certified"] = percentiles(lambda i: index.search(one[i], certify=True), few)
    result["re-ranked, sliced"] = percentiles(lambda i: index.search(one[i], rerank="sliced"), few)
    for name, where in FILTERS.items():
        started = time.perf_counter()
        hits = index.search(one[0], where=where)
        first = time.perf_counter() - started
        times = percentiles(lambda i, where=where: index.search(one[i], where=where), few)
        result[f"filter: {name}"] = {"first_ms": 1e3 * first, "hits": len(hits), **times}
    batches: dict[str, Callable[[], Any]] = {
        "batch": lambda: index.search(test),
        "batch, filter: a tenth": lambda: index.search(test, where=FILTERS["a tenth"]),
        "batch, bare search": lambda: bare.search(vectors, 10),
    }
    for name, search in batches.items():
        started = time.perf_counter()
        search()
        result[name] = {"queries_per_s": len(test) / (time.perf_counter() - started)}
    index.close()
    path.unlink()
    return result


STEPS: dict[str, Callable[..., Any]] = {
    step.__name__: step for step in (build, small_adds, open_index, query_index, *concurrent_search.STEPS)
}


def run_step(name: str, *arguments: Any, **environment: str) -> Any:
    """Run a step in a new process and return its result."""
    command = [sys.executable, __file__, "--step", name, "--arguments", json.dumps(arguments, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        raise RuntimeError(f"{name}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -- the report --------------------------------------------------------------------------------------------------------


def measure_collection(name: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Run all steps of one collection."""
    n_train, n_maps, n_slices = COLLECTIONS[name]
    n_queries = search_data.N_QUERIES
    if quick:
        n_train, n_maps, n_queries = 600, 2 * (n_maps > 0), 20
    index = folder / "index.slosh"
    result = {"build": run_step("build", index, n_train, n_maps, n_slices)}
    if name == "mnist":
        result["small adds, sets/s"] = run_step("small_adds", index, n_train, n_slices)
    result["open"] = run_step("open_index", index)
    result["queries"] = run_step("query_index", index, n_train, n_queries, n_maps, n_slices)
    shutil.rmtree(index / "cache")
    result["open without caches"] = run_step("open_index", index)
    shutil.rmtree(index)
    return result


def goals(report: dict[str, Any]) -> list[tuple[bool, str, str]]:
    """Return for each goal whether it was reached, the goal, and the measured value."""
    found = []
    small, large, during = (report.get(name) for name in ("mnist", "million", DURING_AN_ADD))
    if small:
        rate = small["build"]["sets_per_s"]
        found.append((rate >= 10_000, "at least 10,000 MNIST sets added per second", f"{rate:,.0f}"))
        seconds = small["open"]["seconds"]
        found.append((seconds < 1, "60,000 sets opened in under a second", f"{seconds:.2f} s"))
        times = small["queries"]["x_bare"]
        found.append((times <= 3, "a single query at most 3 x the bare search", f"{times:.2f} x"))
    if large:
        memory = large["build"]["memory"]
        figure = f"{memory['anonymous_gb']:.2f} GB ({memory['resident_gb']:.2f} GB with mapped files)"
        found.append((memory["anonymous_gb"] <= 6, "a million sets built within 6 GB", figure))
    if during:
        found.append(concurrent_search.goal(during))
    return found


def print_collection(name: str, result: dict[str, Any]) -> None:
    """Print the figures of one collection."""
    b, q = result["build"], result["queries"]
    print(f"\n{name}: {b['sets']:,} sets")
    print(f"  add: {b['sets_per_s']:,.0f} sets/s ({b['of_sqlite_table']:.2f} of a bare SQLite table)")
    size = b["bytes_per_set"]
    print(f"  on disk: {size['database']:,.0f} + {size['cache']:,.0f} (caches) bytes per set")
    print(f"  memory: {b['memory']['anonymous_gb']:.2f} GB, {b['memory']['resident_gb']:.2f} GB with mapped files")
    print(f"  open: {result['open']['seconds']:.2f} s; without caches {result['open without caches']['seconds']:.2f} s")
    for what, row in q.items():
        if isinstance(row, dict):
            print(f"  {what:26}" + "  ".join(f"{key} {value:,.0f}" for key, value in row.items()))
    print(f"  one query is {q['x_bare']:.2f} x the bare search; recall {q['recall']:.4f}", flush=True)


def main() -> None:
    """Run the chosen collections, or one step of them, and write the report."""
    names = [*COLLECTIONS, DURING_AN_ADD]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names)
    parser.add_argument("--quick", action="store_true", help="a few hundred sets: only to see that it runs")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the indexes are made (default: a temporary one)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "index.json")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        folder, *rest = json.loads(options.arguments)
        print(json.dumps(STEPS[options.step](Path(folder), *rest)))
        return
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() and options.only else {}
    report["machine"] = {
        "cpu": cpu(),
        "threads": THREADS,
        "slosh": slosh.__version__,
        "kernel": kernel.name(),
        "sqlite": sqlite3.sqlite_version,
        "date": date.today().isoformat(),
        "data": "Point Cloud MNIST" if search_data.DATA.exists() else "generated",
    }
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.only or names:
            if name == DURING_AN_ADD:
                report[name] = concurrent_search.measure(Path(folder), options.quick, run_step)
                concurrent_search.print_result(report[name])
            else:
                report[name] = measure_collection(name, Path(folder), options.quick)
                print_collection(name, report[name])
            options.out.write_text(json.dumps(report, indent=1))
    print("\nGoals:" + (" (meaningless at this size)" if options.quick else ""))
    for reached, goal, figure in goals(report):
        print(("  pass  " if reached else "  FAIL  ") + f"{goal}: {figure}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
