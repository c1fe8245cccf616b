"""The durable index, two threads: how fast sets go in, how large it is, how long it takes to open, and queries.

MNIST's 60,000 sets, and 1,020,000 made of them by affine maps (`search_data.py`). Every figure stands beside a floor of
the same run: the bare search over vectors, a plain SQLite table with the same settings, a file. Each collection runs in
a process of its own, whose memory is watched; the index is opened in further ones.

    python benchmarks/bench_index.py                  all of it, about 20 minutes, 8 GB of disk
    python benchmarks/bench_index.py --only mnist     minutes
    python benchmarks/bench_index.py --quick          only to see that it runs
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

import search_data
import slosh
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.native import kernel
from this_machine import cpu

ROOT = Path(__file__).resolve().parents[1]
THREADS = 2
COLLECTIONS = {  # what, sets of MNIST, maps, slices
    "mnist": (60_000, 0, 64),
    "mnist, default embedding": (60_000, 0, None),
    "million": (60_000, 17, 64),
}
WHERE = {"few (0.1%)": {"part": 7}, "a tenth": {"label": 3}, "four fifths": {"label": [0, 1, 2, 3, 4, 5, 6, 7]}}


class Memory:
    """The most memory that this process has held, by itself (anonymous) and with the files it has mapped (resident)."""

    def __init__(self) -> None:
        self.anonymous = self.resident = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            anonymous, resident = now_held()
            self.anonymous, self.resident = max(self.anonymous, anonymous), max(self.resident, resident)

    def stop(self) -> dict[str, float]:
        self._stop.set()
        self._thread.join()
        return {"anonymous_gb": self.anonymous / 1e9, "resident_gb": self.resident / 1e9}


def now_held() -> tuple[int, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024, int(lines["VmRSS"].split()[0]) * 1024


class Timed:
    """An iterator that says how long its items took to be made."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self.seconds = items, 0.0

    def __iter__(self) -> Timed:
        return self

    def __next__(self) -> Any:
        started = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - started


def embedding(n_slices: int | None) -> SlicedWasserstein:
    return SlicedWasserstein(n_slices, n_jobs=THREADS)


def batches(train: Sets, labels: Any, n_maps: int) -> Iterator[tuple[Sets, list[str], list[dict[str, Any]]]]:
    """Sets with ids and metadata: the digit, and a number from 0 to 999."""
    random = np.random.RandomState(0)
    maps = [search_data.affine_map(random) for _ in range(n_maps)]
    for number, sets in enumerate(search_data.mapped(train, maps, 0) if n_maps else [train]):
        ids = [f"{number}/{i:05d}" for i in range(len(sets))]
        yield sets, ids, [{"label": int(label), "part": i % 1000} for i, label in enumerate(labels)]


def labels_of(n: int) -> Any:
    if not search_data.DATA.exists():
        return np.arange(n) % 10
    with np.load(search_data.DATA) as file:
        return file["labels"][file["split"] == 0][:n]


def percentiles(work: Callable[[int], Any], n: int) -> dict[str, float]:
    times = []
    work(0)  # what is learnt at the first time is not of every query
    for i in range(n):
        started = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - started)
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50_us": 1e6 * p50, "p99_us": 1e6 * p99, "queries_per_s": 1 / float(np.mean(times))}


def build(folder: Path, n_train: int, n_maps: int, n_slices: int | None) -> dict[str, Any]:
    """All sets into a new index, batch by batch, and what that took; the floor is a bare SQLite table."""
    _, train, _ = search_data.read(n_train)
    stream = Timed(batches(train, labels_of(n_train), n_maps))
    memory = Memory()
    index = slosh.SetIndex.create(folder, 2, embedding=embedding(n_slices), n_jobs=THREADS)
    started = time.perf_counter()
    index.add(stream)
    added = time.perf_counter() - started - stream.seconds
    started = time.perf_counter()
    index.search(id="0/00000", k=10)  # calibrates
    first = time.perf_counter() - started
    index.close()
    n = n_train * max(1, n_maps)
    held = memory.stop()
    sizes = {p.name: p.stat().st_size for p in (folder / "index.db", *sorted((folder / "cache").iterdir()))}
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
        "memory": held,
    }


def sqlite_floor(path: Path, sets: Sets) -> float:
    """Sets a second into a table of ids and blobs, with the same settings, one transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t(row INTEGER PRIMARY KEY, id TEXT UNIQUE, points BLOB)")
    started = time.perf_counter()
    connection.execute("BEGIN")
    lines = ((i, f"0/{i:05d}", points.data) for i, points in enumerate(sets))
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", lines)
    connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return len(sets) / seconds


def small_adds(folder: Path, n_train: int, n_slices: int | None) -> dict[str, float]:
    """One set a call, and a thousand a call, each on disk before the next."""
    _, train, _ = search_data.read(min(n_train, 20_000))
    found = {}
    for size, n in ((1, 300), (1000, min(20_000, len(train)))):
        target = folder.parent / f"small{size}.slosh"
        with slosh.SetIndex.create(target, 2, embedding=embedding(n_slices), n_jobs=THREADS) as index:
            started = time.perf_counter()
            for first in range(0, n, size):
                index.add(train[first : first + size])
            found[f"{size} a call"] = n / (time.perf_counter() - started)
        shutil.rmtree(target)
    return found


def opening(folder: Path) -> dict[str, Any]:
    """In a process that has imported everything: with its caches, then without."""
    before = now_held()[0]
    started = time.perf_counter()
    index = slosh.open(folder, n_jobs=THREADS)
    seconds = time.perf_counter() - started
    held = now_held()[0] - before
    index.close()
    return {"seconds": seconds, "embedded": index._engine.embedded, "anonymous_bytes": held}


def asking(folder: Path, n_train: int, n_queries: int, n_maps: int) -> dict[str, Any]:
    """Queries, one at a time and in batches, with and without filters; the floor is the bare search over vectors."""
    _, _, test = search_data.read(n_train, n_queries)
    if n_maps:
        random = np.random.RandomState(search_data.QUERY_SEED)
        test = search_data.each_moved(test, [search_data.affine_map(random) for _ in range(len(test))], random)
    index = slosh.open(folder, read_only=True, n_jobs=THREADS)
    ready: Any = index._engine._sets
    vectors, one = ready._vectors(test)[0], [test[i] for i in range(len(test))]
    index.search(test[:1])
    truth = index.search(test, recall=1.0)
    found = index.search(test)
    recall = np.mean([len(set(a) & set(b)) / max(1, len(b)) for a, b in zip(found.ids, truth.ids, strict=True)])
    result: dict[str, Any] = {"recall": float(recall), "recall_promised": found.stats.recall}
    few = min(n_queries, 500)
    result["bare search"] = percentiles(lambda i: ready.vector_search.search(vectors[i : i + 1], 10), few)
    result["one at a time"] = percentiles(lambda i: index.search(one[i]), few)
    result["x_bare"] = result["one at a time"]["p50_us"] / result["bare search"]["p50_us"]
    result["certified"] = percentiles(lambda i: index.search(one[i], certify=True), min(n_queries, 200))
    result["re-ranked, sliced"] = percentiles(lambda i: index.search(one[i], rerank="sliced"), min(n_queries, 200))
    for name, where in WHERE.items():
        started = time.perf_counter()
        index.search(one[0], where=where)
        first = time.perf_counter() - started
        result[f"filter: {name}"] = {
            "first_ms": 1e3 * first,
            "hits": len(index.search(one[0], where=where)),
            **percentiles(lambda i, where=where: index.search(one[i], where=where), min(n_queries, 200)),
        }
    for name, options in {"batch": {}, "batch, filter: a tenth": {"where": WHERE["a tenth"]}}.items():
        started = time.perf_counter()
        index.search(test, **options)
        result[name] = {"queries_per_s": len(test) / (time.perf_counter() - started)}
    started = time.perf_counter()
    ready.vector_search.search(vectors, 10)
    result["batch, bare search"] = {"queries_per_s": len(test) / (time.perf_counter() - started)}
    index.close()
    return result


def collection(name: str, folder: Path, quick: bool) -> dict[str, Any]:
    """One collection, each step in a process of its own."""
    n_train, n_maps, n_slices = COLLECTIONS[name]
    n_queries = search_data.N_QUERIES
    if quick:
        n_train, n_maps, n_queries = 600, 2 * (n_maps > 0), 20
    index = folder / "index.slosh"

    def step(what: str, *arguments: Any) -> Any:
        command = [sys.executable, __file__, "--step", what, "--arguments", json.dumps([str(index), *arguments])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}, {what}:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    result = {"build": step("build", n_train, n_maps, n_slices)}
    if name == "mnist":
        result["small adds, sets/s"] = step("small_adds", n_train, n_slices)
    result["open"] = step("opening")
    result["queries"] = step("asking", n_train, n_queries, n_maps)
    shutil.rmtree(index / "cache")
    result["open without caches"] = step("opening")
    shutil.rmtree(index)
    return result


def goals(report: dict[str, Any]) -> list[tuple[bool | None, str, str]]:
    """What was to be reached, and what was."""
    found = []
    small, large = report.get("mnist"), report.get("million")
    if small:
        rate = small["build"]["sets_per_s"]
        found.append((rate >= 10_000, "at least 10,000 MNIST sets a second into the index", f"{rate:,.0f}"))
        seconds = small["open"]["seconds"]
        found.append((seconds < 1, "60,000 sets opened in under a second", f"{seconds:.2f} s"))
        times = small["queries"]["x_bare"]
        found.append((times <= 3, "a single query at most 3 x the bare search", f"{times:.2f} x"))
    if large:
        held = large["build"]["memory"]["anonymous_gb"]
        resident = large["build"]["memory"]["resident_gb"]
        found.append(
            (held <= 6, "a million sets built within 6 GB", f"{held:.2f} GB ({resident:.2f} GB with mapped files)")
        )
    return found


def show(name: str, result: dict[str, Any]) -> None:
    b, q = result["build"], result["queries"]
    print(f"\n{name}: {b['sets']:,} sets")
    print(f"  in: {b['sets_per_s']:,.0f} sets/s ({b['of_sqlite_table']:.2f} of a bare SQLite table)")
    size = b["bytes_per_set"]
    print(f"  on disk: {size['database']:,.0f} + {size['cache']:,.0f} (caches) bytes a set")
    print(f"  memory: {b['memory']['anonymous_gb']:.2f} GB, {b['memory']['resident_gb']:.2f} with mapped files")
    print(f"  open: {result['open']['seconds']:.2f} s; without caches {result['open without caches']['seconds']:.2f} s")
    for what, row in q.items():
        if isinstance(row, dict):
            print(f"  {what:26}" + "  ".join(f"{key} {value:,.0f}" for key, value in row.items()))
    print(f"  one query is {q['x_bare']:.2f} x the bare search; recall {q['recall']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(COLLECTIONS))
    parser.add_argument("--quick", action="store_true", help="a few thousand sets: only to see that it runs")
    parser.add_argument("--folder", type=Path, default=None, help="where the indexes are made; None is a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "index.json")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        folder, *rest = json.loads(options.arguments)
        print(json.dumps(globals()[options.step](Path(folder), *rest)))
        return
    old = json.loads(options.out.read_text()) if options.out.exists() and options.only else {}
    machine = {
        "cpu": cpu(),
        "threads": THREADS,
        "slosh": slosh.__version__,
        "kernel": kernel.name(),
        "sqlite": sqlite3.sqlite_version,
        "date": date.today().isoformat(),
        "data": "Point Cloud MNIST" if search_data.DATA.exists() else "generated",
    }
    report: dict[str, Any] = {**old, "machine": machine}
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.only or COLLECTIONS:
            report[name] = collection(name, Path(folder), options.quick)
            show(name, report[name])
            options.out.write_text(json.dumps(report, indent=1))
    print("\nTo reach:" + (" (at this size it means nothing)" if options.quick else ""))
    for reached, goal, figure in goals(report):
        print(("  pass  " if reached else "  FAIL  ") + f"{goal}: {figure}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
