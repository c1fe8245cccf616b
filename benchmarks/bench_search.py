"""Compare slosh's searches with FAISS and usearch, with one thread and in one run: `make bench-search`.

On MNIST's 60,000 sets and on about a million made from them (search_data.py), D = 1024, it measures queries per second,
recall@10 against `ExactSearch`, the latency of a single query, bytes per set and the time to build. Every method is a
function of search_methods.py that builds it and names its settings. The settings of a method are timed in turn, in
several rounds, together with the yardstick, a flat scan of 1024-bit codes (FAISS `IndexBinaryFlat`), so that each ratio
compares times of the same minute.

Times are CPU seconds of this process, the best of the rounds; a hidden second thread would count twice. They do not
include embedding a query, except for certified search, which takes sets. The query codes of FAISS's binary flat index
are not timed. Results are written at once; `--missing` continues where an earlier run stopped.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and FAISS are imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import gc
import json
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import usearch

import search_data
import slosh
import slosh.search
from machine import ROOT, cpu
from search_data import Collection
from search_methods import GROWTH_METHODS, METHODS, Array, Bench, Built, K, Level, Skipped, to_json
from search_report import goals
from slosh.evaluate import recall_at_k
from slosh.native import kernel

MIN_TIMED_QUERIES = 400


def found_rows(found: Any) -> Array:
    """Return the rows that any of the searches found, (n_queries, K); -1 where there are fewer."""
    if isinstance(found, slosh.HitLists):  # ids are the rows as text
        padded = [[*map(int, ids), *[-1] * (K - len(ids))] for ids in found.ids]
        return np.array(padded, np.int64).reshape(-1, K)
    return np.asarray(found.rows if isinstance(found, slosh.search.Result) else found)


def recall(found: Any, truth: Array) -> float:
    """Return recall@K over the queries whose true neighbours are known."""
    return round(float(np.mean(recall_at_k(found_rows(found)[: len(truth)], truth))), 5)


def once(search: Callable[[slice], Any], part: slice) -> tuple[float, float]:
    """Return the CPU and wall-clock seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    search(part)
    return time.process_time() - cpu, time.perf_counter() - wall


def warm_up(level: Level, n: int) -> tuple[dict[str, Any], Any, slice]:
    """Search once for all n queries: return what is known about the setting, what it found, and a batch to time."""
    start = time.process_time()
    level.search(slice(0, min(100, n)))  # trains and calibrates
    first = time.process_time() - start
    start = time.process_time()
    found = level.search(slice(0, n))
    spent = time.process_time() - start
    # Batches of half a second, but never small ones: from 125 queries on (128,000 numbers) FAISS's float scan becomes a
    # matrix product, and 7 times as fast.
    batch = slice(0, int(np.clip(n * 0.5 / max(spent, 1e-6), min(MIN_TIMED_QUERIES, n), n)))
    row: dict[str, Any] = {"level": level.name, "first_s": round(first, 4)}
    if stats := getattr(found, "stats", None):
        row["promised"] = stats.recall
        row["scanned"] = round(float(np.mean(stats.scanned)), 1)
        row["candidates"] = round(float(np.mean(stats.candidates)), 1)
        if stats.full_distances is not None:
            row["full_distances"] = round(float(np.mean(stats.full_distances)), 1)
    return row, found, batch


def single_query_us(level: Level, n: int) -> float:
    """Return the median CPU microseconds of up to n single queries, for about a second."""
    times: list[float] = []
    for i in range(n):
        times.append(once(level.search, slice(i, i + 1))[0])
        if sum(times) > 1 and i >= 4:
            break
    return round(1e6 * float(np.median(times)), 1)


def measure(method: Callable[[Bench], Built], bench: Bench) -> dict[str, Any]:
    """Build a method and measure its settings in turn."""
    n = bench.data.n_queries
    start = time.process_time()
    built = method(bench)
    seconds = time.process_time() - start
    beside = built.beside()
    truth = bench.truth if built.truth is None else built.truth()
    timed = [*built.levels, bench.yardstick, *beside]
    rows: list[dict[str, Any]] = []
    batches: list[slice] = []
    for level in timed:
        row, found, batch = warm_up(level, n)
        if level in built.levels:
            row["recall"] = recall(found, truth[:n])
            if built.truth is None and n < len(bench.queries):
                row["recall_known_maps"] = recall(level.search(slice(n, None)), truth[n:])
        rows.append(row)
        batches.append(batch)
    rounds = range(bench.rounds)
    times = [[once(level.search, part) for level, part in zip(timed, batches, strict=True)] for _ in rounds]
    for number, (row, part) in enumerate(zip(rows, batches, strict=True)):
        row["batch"] = part.stop
        row["qps"] = round(part.stop / min(turn[number][0] for turn in times), 2)
        row["wall_qps"] = round(part.stop / min(turn[number][1] for turn in times), 2)
    own, yardstick, others = rows[: len(built.levels)], rows[len(built.levels)], rows[len(built.levels) + 1 :]
    for row, level in zip(own, built.levels, strict=True):
        row["p50_us"] = single_query_us(level, min(n, 20 * bench.rounds))
        row["x_yardstick"] = round(row["qps"] / yardstick["qps"], 3)
    result: dict[str, Any] = {
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "build_s": round(seconds if built.build_seconds is None else built.build_seconds, 2),
        "bytes_per_set": round(built.size() / len(bench.data), 1),
        "note": built.note,
        "yardstick_qps": yardstick["qps"],
        "levels": own,
        **built.facts(),
    }
    if beside:
        result["beside_qps"] = {level.name: row["qps"] for level, row in zip(beside, others, strict=True)}
    return result


def environment() -> dict[str, Any]:
    """Return the machine and the versions of the libraries."""
    return {
        "cpu": cpu(), "cores": os.cpu_count(), "threads": 1, "kernel": kernel.name(),
        "python": platform.python_version(), "numpy": np.__version__, "faiss": faiss.__version__,
        "faiss_simd": faiss.SIMDConfig.get_level_name() if hasattr(faiss, "SIMDConfig") else "",
        "usearch": usearch.__version__, "slosh": slosh.__version__,
    }  # fmt: skip


class Report:
    """The JSON file of results. It is read again before each change, so that two runs can fill one file."""

    def __init__(self, path: Path, keep: bool, quick: bool) -> None:
        self.path, self.started = path, f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        results: dict[str, Any] = {"sizes": {}, "growth": {}}
        if keep and path.exists():
            results = self.read()
            if results["machine"] != to_json(environment()):
                raise SystemExit(f"{path} is from another machine or other versions: measure everything again")
        command = shlex.join(["python", "benchmarks/bench_search.py", *sys.argv[1:]])
        results.update(machine=environment(), date=f"{datetime.now():%Y-%m-%d}", command=command, quick=quick)
        self.write(results)

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text()))

    def write(self, results: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        unfinished.replace(self.path)

    def measured(self, kind: str, size: int) -> set[str]:
        """Return the methods that have results for a collection."""
        methods = self.read()[kind].get(str(size), {}).get("methods", {})
        return {name for name, result in methods.items() if "levels" in result}

    def add(self, kind: str, size: int, bench: Bench, name: str, result: dict[str, Any]) -> None:
        """Add the result of a method to the file."""
        results = self.read()
        section = results[kind].setdefault(str(size), {"methods": {}})
        section.update(data=bench.data.data, rows=len(bench.data), queries=bench.data.n_queries, dim=bench.dim)
        methods = {**section["methods"], name: {"run": self.started, **result}}
        section["methods"] = {name: methods[name] for name in METHODS if name in methods}
        self.write(results)


def run(bench: Bench, names: list[str], write: Callable[[str, dict[str, Any]], None]) -> None:
    """Measure and write methods one by one, and free the memory of each before the next."""
    print(f"\n{len(bench.data):,} sets: {bench.data.data}; {bench.data.n_queries} queries, D = {bench.dim}", flush=True)
    for name in names:
        try:
            result = measure(METHODS[name], bench)
        except Skipped as reason:
            result = {"date": f"{datetime.now():%Y-%m-%d %H:%M}", "skipped": str(reason)}
            print(f"{name}: {reason}", flush=True)
        result["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)  # so far
        write(name, result)
        gc.collect()
        if "skipped" not in result:
            print_result(name, result)


def print_result(name: str, result: dict[str, Any]) -> None:
    """Print the figures of one method."""
    about = f"built in {result['build_s']:.1f} s, {result['bytes_per_set']:,.0f} bytes per set"
    print(f"{name}: {about}" + (f"; {result['note']}" if result["note"] else ""))
    for row in result["levels"]:
        extra = f", {row['full_distances']:.1f} full distances" if "full_distances" in row else ""
        if "recall_known_maps" in row:
            extra += f"; known maps {row['recall_known_maps']:.4f}"
        print(
            f"  {row['level']:34} recall {row['recall']:.4f} {row['qps']:10,.0f} queries/s "
            f"({row['x_yardstick']:7.2f} x binary flat)  single query {row['p50_us']:9,.0f} us{extra}",
            flush=True,
        )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[60_000, 1_000_000],
                        help="up to 60000: sets of MNIST; more: mapped sets, 1000000 being all 1,020,000")  # fmt: skip
    parser.add_argument("--growth", type=int, nargs="*", default=[10_000, 100_000],
                        help="random parts of the mapped sets, to see how times grow")  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(METHODS), help=", ".join(METHODS))
    parser.add_argument("--missing", action="store_true", help="only what --out does not contain yet")
    parser.add_argument("--quick", action="store_true", help="a few thousand sets: only to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build-limit", type=float, default=600, help="seconds that building a graph may take")
    parser.add_argument("--cache", type=Path, default=search_data.CACHE, help="for 4.2 GB of vectors, and for graphs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "search.json")
    return parser.parse_args()


def main() -> None:
    """Measure the chosen methods on the chosen collections."""
    options = parse_options()
    faiss.omp_set_num_threads(1)
    report = Report(options.out, bool(options.only or options.missing), options.quick)
    print(", ".join(f"{key} {value}" for key, value in environment().items()))

    n_train, n_maps, n_queries = search_data.N_TRAIN, search_data.N_MAPS, search_data.N_QUERIES
    if options.quick:
        n_train, n_maps, n_queries = 1200, 2, 50
        options.sizes, options.growth, options.rounds = [n_train, n_train * n_maps], [], 1

    def collection(size: int, growth: bool) -> Collection:
        if size <= n_train and not growth:
            return search_data.mnist(size, n_queries)
        everything = search_data.million(n_maps, cache=options.cache, n_train=n_train, n_queries=n_queries)
        return everything if size >= min(1_000_000, n_train * n_maps) else everything.subset(size)

    for kind, sizes, among in (("sizes", options.sizes, METHODS), ("growth", options.growth, GROWTH_METHODS)):
        for size in sizes:
            names = [name for name in METHODS if name in among and name in (options.only or METHODS)]
            if options.missing:
                names = [name for name in names if name not in report.measured(kind, size)]
            if names:
                bench = Bench(collection(size, kind == "growth"), options.cache, options.rounds, options.build_limit)
                run(bench, names, partial(report.add, kind, size, bench))
                del bench
                gc.collect()

    print("\nGoals:" + (" (meaningless at this size)" if options.quick else ""))
    for reached, goal, found in goals(report.read()):
        print({True: "  pass  ", False: "  FAIL  ", None: "  -     "}[reached] + f"{goal}: {found}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
