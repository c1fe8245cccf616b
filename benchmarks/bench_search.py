"""Is LadderSearch ahead of the best of its peers? Measured on one thread, in one run, on the same vectors.

    make bench-search

A cell is a kind of vectors and a number of sets: sliced vectors (s256, s1024) and whitened ones (w64, w128) of MNIST's
60,000 sets (60k), and of 1,020,000 made from them by affine maps (1m). Each cell takes these steps:

  peers      every peer is built in several ways (search_peers.py), and its settings are swept
  duels      LadderSearch takes turns with those settings of the peers that are best at the recall that it reaches:
             queries per second, single queries, memory, time to build
  filters    a filtered LadderSearch takes turns with FAISS's scan of just the rows that are left
  certified  certified search beside FAISS's scan of the vectors (s1024 only)

Results are written at once to --out; `--missing` goes on where an earlier run was stopped, and leaves out what is
there. `--simd avx2` holds FAISS and slosh to AVX2; those results have a section of their own in the same file.
"""

from __future__ import annotations

import os
import sys

# Before NumPy, FAISS and slosh are imported.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
os.environ.update(
    # FAISS reads the first up to 1.13, the second from then on; the last holds the matrix products of FAISS and NumPy.
    {"FAISS_OPT_LEVEL": "avx2", "FAISS_SIMD_LEVEL": "AVX2", "SLOSH_KERNEL": "avx2", "OPENBLAS_CORETYPE": "Haswell"}
    if "avx2" in sys.argv or "--simd=avx2" in sys.argv
    else {}
)

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import platform
import resource
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import faiss
import numpy as np

import search_data
import slosh
from machine import ROOT, cpu
from search_data import Collection
from search_methods import RECALLS, Array, Bench, K, Level, Skipped, certified
from search_peers import peers
from search_report import FLAT, print_cell
from search_timing import batch_seconds, check_hopeful, contenders, fastest, recall, sweep, time_in_turns
from slosh.native import kernel

AVX2 = os.environ.get("SLOSH_KERNEL") == "avx2"
CELLS = [f"{name}-{size}" for size in ("60k", "1m") for name in search_data.MODELS]
STEPS = ("peers", "duels", "filters", "certified")
KEPT_PARTS = (0.5, 0.1, 0.01, 0.001)
FILTER_RECALL = 0.99


def version(package: str) -> str:
    """Return the installed version of a package, or an empty text."""
    return importlib.metadata.version(package) if importlib.util.find_spec(package) else ""


def environment() -> dict[str, Any]:
    """Return the machine and the versions of the libraries."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return {
        "cpu": cpu(), "cores": os.cpu_count(), "threads": 1, "kernel": kernel.name(),
        "vnni": "avx512_vnni" in flags and not AVX2, "python": platform.python_version(), "numpy": np.__version__,
        "faiss": faiss.__version__, "faiss_simd": faiss.SIMDConfig.get_level_name(), "slosh": slosh.__version__,
        **{package: version(package) for package in ("hnswlib", "usearch", "scann")},
    }  # fmt: skip


class Report:
    """The JSON file of results. It is read again before each change, so that two runs can fill one file."""

    def __init__(self, path: Path, keep: bool, quick: bool) -> None:
        self.path, self.simd = path, "avx2" if AVX2 else "native"
        results = self.read() if path.exists() else {}
        if not keep or "simd" not in results:
            results = {"simd": {}}
        if results.get("quick", quick) != quick:
            raise SystemExit(f"{path} has the results of a {'full' if quick else 'quick'} run: give another --out")
        part = results["simd"].setdefault(self.simd, {"cells": {}})
        if part.get("machine", environment()) != environment() and part["cells"]:
            raise SystemExit(f"{path} is from another machine or other versions: give another --out, or remove it")
        part["machine"] = environment()
        results["quick"] = quick
        results["command"] = shlex.join(["python", "benchmarks/bench_search.py", *sys.argv[1:]])
        self.write(results)

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text()))

    def write(self, results: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        unfinished.replace(self.path)

    def cell(self, name: str) -> dict[str, Any]:
        """Return what was measured of a cell."""
        return dict(self.read()["simd"][self.simd]["cells"].get(name, {}))

    def forget(self, cell: str, step: str) -> None:
        """Remove the results of a step of a cell."""
        results = self.read()
        results["simd"][self.simd]["cells"].get(cell, {}).pop(step, None)
        self.write(results)

    def add(self, bench: Bench, step: str, name: str, result: dict[str, Any]) -> None:
        """Add a result to a step of a cell."""
        results = self.read()
        cell = results["simd"][self.simd]["cells"].setdefault(bench.name, {})
        cell |= {"data": bench.data.data, "rows": len(bench.data), "dim": bench.dim, "queries": len(bench.queries)}
        peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)  # so far
        cell.setdefault(step, {})[name] = {**result, "date": f"{datetime.now():%Y-%m-%d %H:%M}", "peak_gb": peak}
        self.write(results)


def collection(cell: str, options: argparse.Namespace) -> Collection:
    """Return the vectors and queries of a cell."""
    model_name, size = cell.split("-")
    n_train, n_maps, n_queries = search_data.N_TRAIN, search_data.N_MAPS, search_data.N_QUERIES
    if options.quick:
        n_train, n_maps, n_queries = 1500, 2, 50
    if size == "60k":
        return search_data.mnist(n_train, n_queries, model_name)
    return search_data.million(n_maps, 0, options.cache, n_train, n_queries, model_name)


# -- steps -------------------------------------------------------------------------------------------------------------


def measure_peers(bench: Bench, report: Report, options: argparse.Namespace) -> None:
    """Build every peer and sweep its settings; of a kind of index that is far behind, only the first build."""
    for name, make in peers(len(bench.data), bench.dim, AVX2).items():
        swept = report.cell(bench.name).get("peers", {})
        wanted = not options.only or any(part.lower() in name.lower() for part in options.only)
        if not wanted or (options.missing and name in swept):
            continue
        others = {other: result["levels"] for other, result in swept.items() if other != name and "levels" in result}
        try:
            check_hopeful(name, others)
            plain = name.endswith(" flat")  # its time to build is compared, so it is swept whatever others can do
            result = sweep(make, bench, [] if plain else [row for rows in others.values() for row in rows])
        except Skipped as reason:
            result = {"skipped": str(reason)}
        report.add(bench, "peers", name, result)
        gc.collect()
        if "skipped" in result:
            print(f"  {name}: {result['skipped']}", flush=True)
            continue
        best = {f"{least:g}": fastest(result["levels"], least) for least in RECALLS[:-1]}
        speeds = ", ".join(f"{least} {row['qps']:,.0f}/s ({row['level']})" for least, row in best.items() if row)
        print(f"  {name}: built in {result['build_s']:,.1f} s; {speeds}", flush=True)


def ladder_recalls(bench: Bench, report: Report) -> dict[str, float]:
    """Return the recall that LadderSearch reaches where it is asked for each of the recalls, and write it down."""
    levels = {asked: bench.ladder_level(asked) for asked in RECALLS}
    search, seconds = bench.ladder
    reached = {f"{asked:g}": recall(level.search(bench.queries), bench.truth) for asked, level in levels.items()}
    size = round(sum(search.info()["bytes"].values()) / len(bench.data), 1)
    about = {"build_s": round(seconds, 2), "recall": reached, "bytes_per_set": size}
    report.add(bench, "ladder", "LadderSearch", about)
    return reached


def measure_duels(bench: Bench, report: Report, options: argparse.Namespace) -> None:
    """Time LadderSearch with the best of the peers, one build after another."""
    builds = peers(len(bench.data), bench.dim, AVX2)
    if not options.missing:
        report.forget(bench.name, "duels")
        report.forget(bench.name, "ladder")
    cell = report.cell(bench.name)
    texts = cell["ladder"]["LadderSearch"]["recall"] if "ladder" in cell else ladder_recalls(bench, report)
    reached = {float(asked): found for asked, found in texts.items()}
    swept = {name: result for name, result in cell.get("peers", {}).items() if name in builds}
    for name, settings in contenders(swept, reached).items():
        done = {row["level"] for row in cell.get("duels", {}).get(name, {}).get("levels", [])}
        if settings <= done:
            continue
        levels = [bench.ladder_level(asked) for asked in RECALLS]
        start = time.process_time()
        built = builds[name](bench)
        build_s = round(time.process_time() - start + built.kept_seconds, 2)
        theirs = [level for chain in built.chains for level in chain if level.name in settings]
        found = [recall(batch_seconds(level, bench.queries, 0.0)[2], bench.truth) for level in theirs]
        figures = time_in_turns([*levels, *theirs], bench.queries, bench.rounds)
        own = [{"asked": asked, "recall": reached[asked], **figures.pop(0)} for asked in RECALLS]
        rows = [
            {"level": level.name, "recall": part, "bytes_per_set": round(level.size / len(bench.data), 1), **figure}
            for level, part, figure in zip(theirs, found, figures, strict=True)
        ]
        report.add(bench, "duels", name, {"build_s": build_s, "ladder": own, "levels": rows})
        print(f"  duel with {name}", flush=True)
        del built, theirs
        gc.collect()


def measure_filters(bench: Bench, report: Report, options: argparse.Namespace) -> None:
    """Time a filtered LadderSearch with a scan of the rows that the filter keeps."""
    done = report.cell(bench.name).get("filters", {}) if options.missing else {}
    for part in KEPT_PARTS:
        if f"{part:g}" in done:
            continue
        mask = np.random.RandomState(0).uniform(size=len(bench.data)) < part
        rows = np.flatnonzero(mask)
        if len(rows) < K:
            continue
        index = faiss.IndexFlatL2(bench.dim)
        for first in range(0, len(rows), 50_000):
            index.add(np.array(bench.vectors[rows[first : first + 50_000]]))
        flat = Level("scan", lambda queries, index=index, rows=rows: rows[index.search(queries, K)[1]], 0)

        def pick_and_scan(queries: Array, mask: Array = mask) -> Array:
            rows = np.flatnonzero(mask)
            return rows[faiss.knn(queries, np.ascontiguousarray(bench.vectors[rows]), K)[1]]

        ladder = bench.ladder_level(FILTER_RECALL, mask)
        found = recall(ladder.search(bench.queries), flat.search(bench.queries))
        levels = [ladder, flat, Level("picked", pick_and_scan, 0)]
        own, scan, picked = time_in_turns(levels, bench.queries, bench.rounds)
        result = {"rows": len(rows), "recall": found, "ladder": own, "scan": scan, "picked": picked}
        report.add(bench, "filters", f"{part:g}", result)
        print(f"  {len(rows):,} rows kept: {own['qps']:,.0f}/s, a scan of them {picked['qps']:,.0f}/s", flush=True)
        del index, flat
        gc.collect()


def measure_certified(bench: Bench, report: Report, options: argparse.Namespace) -> None:
    """Time certified search, which takes sets and embeds them, and FAISS's scan of their vectors."""
    if not bench.name.startswith("s1024") or (options.missing and "certified" in report.cell(bench.name)):
        return
    level, truth = certified(bench)
    queries = bench.data.query_sets[: len(bench.queries)]
    found = recall(level.search(queries[: len(truth)]), truth)
    flat = peers(len(bench.data), bench.dim, AVX2)[FLAT](bench).chains[0][0]
    own: dict[str, float] = {}
    scan: dict[str, float] = {}
    for _ in range(bench.rounds):
        for best, contender, batch in ((own, level, queries), (scan, flat, bench.queries)):
            figure = time_in_turns([contender], batch, 1, singles=False)[0]
            best.update(max(best or figure, figure, key=lambda figures: figures["qps"]))
    result = {"recall": found, "bytes_per_set": round(level.size / len(bench.data), 1), "own": own, "scan": scan}
    report.add(bench, "certified", "certify=True", result)


MEASURES: dict[str, Callable[[Bench, Report, argparse.Namespace], None]] = {
    "peers": measure_peers, "duels": measure_duels, "filters": measure_filters, "certified": measure_certified,
}  # fmt: skip


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--only", nargs="+", metavar="PART", help="sweep only the peers whose names contain a part")
    parser.add_argument("--simd", choices=("native", "avx2"), default="native", help="avx2: FAISS and slosh held to it")
    parser.add_argument("--missing", action="store_true", help="only what --out does not contain yet")
    parser.add_argument("--fresh", action="store_true", help="forget what --out contains")
    parser.add_argument("--quick", action="store_true", help="a few thousand sets: only to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build-limit", type=float, default=600, help="seconds that building a graph may take")
    parser.add_argument("--cache", type=Path, default=search_data.CACHE, help="for vectors, centroids and graphs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "search.json")
    return parser.parse_args()


def main() -> None:
    """Measure the chosen steps of the chosen cells."""
    options = parse_options()
    faiss.omp_set_num_threads(1)
    # Matrix products for batches from 10,000 numbers on: with the default, 128,000, it takes twice as long to find the
    # lists of 1,000 short queries. One query stays below it; a matrix product would take longer.
    faiss.cvar.distance_compute_blas_threshold = 10_000
    options.rounds = 1 if options.quick else options.rounds
    report = Report(options.out, not options.fresh, options.quick)
    print(", ".join(f"{key} {value}" for key, value in environment().items()))
    for cell in options.cells:
        bench = Bench(cell, collection(cell, options), options.cache, options.rounds, options.build_limit)
        print(f"\n{cell}: {len(bench.data):,} sets ({bench.data.data}), D = {bench.dim}", flush=True)
        for step in STEPS:
            if step in options.steps:
                MEASURES[step](bench, report, options)
        print_cell(report.read(), report.simd, cell)
        del bench
        gc.collect()
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
