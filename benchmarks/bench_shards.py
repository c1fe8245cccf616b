"""Measure a collection in two shards that actors of Ray serve beside the same shards in one process, in one run.

The sets are MNIST's: 60,000 are stored, embedded as vectors of 256 numbers, and 10,000 others are the queries. Ray, its
actors and the caller share the machine.

    python benchmarks/bench_shards.py            minutes; writes docs/results/shards.json
    python benchmarks/bench_shards.py --quick    3,000 sets, only to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import ray

import search_data
import slosh
import slosh.ray
from machine import ROOT, cpu
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.engines.sharded.engine import ShardedEngine
from slosh.engines.sharded.local import LocalShards
from slosh.index.sharded_index import ShardedIndex
from slosh.ray.actors import ShardActor

SHARDS, K, RECALL, UNDER_WAY = 2, 10, 0.95, 4
"""Shards, neighbours, the recall that is asked for, and batches that are asked for at the same time."""


def build(folder: Path, sets: Sets, rows_of: list[np.ndarray]) -> float:
    """Write a collection with these rows in each shard; return the seconds that took."""
    (folder / "shards").mkdir(parents=True)
    embedding, started = SlicedWasserstein(16, 16).fit(sets[:1000]), time.perf_counter()
    for number, rows in enumerate(rows_of):
        with slosh.SetIndex.create(folder / "shards" / f"{number:04}.slosh", sets.dim, embedding=embedding) as shard:
            shard.add(sets[rows], [str(row) for row in rows.tolist()], [{"row": int(row)} for row in rows.tolist()])
    return time.perf_counter() - started


@contextmanager
def in_process(folder: Path, together: bool = True) -> Iterator[ShardedIndex]:
    """Serve the shards within this process: together, with one thread for each, or one after the other with all."""
    transport = LocalShards(1, SHARDS) if together else LocalShards(SHARDS)
    index = ShardedIndex(ShardedEngine(folder, transport, n_jobs=-1))
    yield index
    index.close()


def milliseconds(ask: Callable[[int], Any], n: int) -> dict[str, float]:
    """Return percentiles of the time of single questions."""
    taken = []
    for i in range(n + 20):
        started = time.perf_counter()
        ask(i)
        taken.append(1000 * (time.perf_counter() - started))
    p50, p95, p99 = np.percentile(taken[20:], [50, 95, 99])
    return {"p50": round(p50, 3), "p95": round(p95, 3), "p99": round(p99, 3)}


def batch_rate(index: Any, queries: Sets, ask: str, under_way: int) -> float:
    """Return the queries a second of some batches, of which so many are under way."""
    with ThreadPoolExecutor(under_way) as pool:
        started = time.perf_counter()
        list(pool.map(lambda _: getattr(index, ask)(queries, k=K, recall=RECALL), range(UNDER_WAY)))
        return UNDER_WAY * len(queries) / (time.perf_counter() - started)


def batches(served: Any, here: Any, in_turn: Any, queries: Sets, ask: str, rounds: int = 6) -> dict[str, Any]:
    """Compare in alternating rounds, after one that is not counted, with the fastest way of doing it in one process."""
    asked = {"ray": (served, UNDER_WAY)}
    for n in (1, 2, UNDER_WAY):
        asked |= {f"together, {n} under way": (here, n), f"in turn, {n} under way": (in_turn, n)}
    rates: dict[str, list[float]] = {name: [] for name in asked}
    for number in range(rounds + 1):
        for name, (index, under_way) in asked.items():
            rate = batch_rate(index, queries, ask, under_way)
            if number:
                rates[name].append(rate)
    made = {name: round(float(np.median(each))) for name, each in rates.items()}
    fastest = max((name for name in made if name != "ray"), key=made.__getitem__)
    ratio = round(float(np.median(np.divide(rates["ray"], rates[fastest]))), 3)
    return {"ray": made["ray"], "in_process": made[fastest], "fastest": fastest, "ratio": ratio}


def kept(found: Any, exact: Any) -> float:
    """Return the recall of an answer, by distance."""
    pairs = zip(found.distances, exact.distances, strict=True)
    return float(np.mean([np.mean(near <= true[K - 1]) for near, true in pairs]))


def recalls(index: Any, whole: Any, queries: Sets) -> list[dict[str, float]]:
    """Compare what is promised of the whole collection with the exact answers of one index."""
    exact, told = whole.search(queries, K, recall=1.0), []
    for recall in (0.8, 0.9, 0.95, 0.99):
        found = index.search(queries, K, recall=recall)
        told.append(
            {"asked": recall, "promised": round(found.stats.recall, 4), "measured": round(kept(found, exact), 4)}
        )
    return told


def killed(index: Any, whole: Any, queries: Sets) -> dict[str, Any]:
    """Kill an actor in the middle of a stream of queries, and count what becomes of these."""
    expected = [whole.search(queries[i], K, recall=1.0) for i in range(50)]
    name = sorted(index.shards)[-1]
    pid = index.info()["shards"][name]["pid"]
    threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()
    wrong, lost, longest, n, end = 0, 0, 0.0, 0, time.perf_counter() + 8.0
    while time.perf_counter() < end:
        started = time.perf_counter()
        try:
            hits = index.search(queries[n % 50], K, recall=1.0)
        except slosh.errors.SloshError:
            lost += 1
            continue
        longest = max(longest, time.perf_counter() - started)
        true = expected[n % 50]
        wrong += hits.ids != true.ids or not np.array_equal(hits.distances, true.distances) or hits.stats.covered < 1
        n += 1
    return {
        "queries": n, "wrong": int(wrong), "lost": lost, "longest_seconds": round(longest, 2),
        "process_is_another": index.info()["shards"][name]["pid"] != pid,
    }  # fmt: skip


def fan_out() -> dict[str, float]:
    """Return the milliseconds (p50) of a call to so many actors at once, which do nothing: what Ray alone takes."""
    actors = [ray.remote(num_cpus=0)(ShardActor).remote("", "", "", 1) for _ in range(16)]
    ray.get([actor.ping.remote() for actor in actors])
    told = {}
    for n in (1, 2, 4, 8, 16):
        told[str(n)] = milliseconds(lambda _, n=n: ray.get([actor.ping.remote() for actor in actors[:n]]), 200)["p50"]
    for actor in actors:
        ray.kill(actor)
    return told


def measure(n: int, n_queries: int, work: Path) -> dict[str, Any]:
    source, train, queries = search_data.read(n, n_queries)
    rows = np.arange(len(train))
    seconds = build(work / "collection", train, [rows[i::SHARDS] for i in range(SHARDS)])
    build(work / "one", train, [rows])
    whole = slosh.open(work / "one" / "shards" / "0000.slosh", read_only=True)
    order = np.argsort([float(points[:, 0].std()) for points in train])  # the wide ones apart from the narrow ones
    build(work / "sorted", train, np.array_split(order, SHARDS))
    singles = [queries[i] for i in range(min(500, len(queries)))]
    started = time.perf_counter()
    served = slosh.ray.serve(work / "collection")
    opened = time.perf_counter() - started

    def single(index: Any, **options: Any) -> dict[str, float]:
        return milliseconds(lambda i: index.search(singles[i % len(singles)], K, **options), 400)

    with (
        in_process(work / "collection") as here,
        in_process(work / "collection", together=False) as in_turn,
        in_process(work / "sorted") as apart,
    ):
        report = {
            "data": source, "sets": len(train), "queries": len(queries), "vector_length": 256, "shards": SHARDS,
            "k": K, "recall": RECALL, "under_way": UNDER_WAY, "build_seconds": round(seconds, 1),
            "serve_seconds": round(opened, 2),
            "single_ms": {
                "ray": single(served, recall=RECALL), "in_process": single(here, recall=RECALL),
                "one_index": single(whole, recall=RECALL), "ray_exact": single(served, recall=1.0),
                "ray_certified": single(served, certify=True),
                "ray_filtered": single(served, recall=RECALL, where={"row": {"<": len(train) // 10}}),
            },
            "batches": {ask: batches(served, here, in_turn, queries, ask) for ask in ("search", "kneighbors")},
            "recalls": {"alike": recalls(here, whole, queries), "sorted": recalls(apart, whole, queries)},
            "killed": killed(served, whole, queries), "empty_call_ms": fan_out(),
        }  # fmt: skip
    served.close()
    whole.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3,000 sets, and no file is written")
    quick = parser.parse_args().quick
    ray.init(num_cpus=os.cpu_count(), object_store_memory=500_000_000, include_dashboard=False, logging_level="error",
             log_to_driver=False)  # fmt: skip
    work = Path(tempfile.mkdtemp(prefix="bench-shards-"))
    try:
        report = measure(*((3000, 500) if quick else (60_000, 10_000)), work)
    finally:
        ray.shutdown()
        shutil.rmtree(work)
    report = {"date": date.today().isoformat(), "cpu": cpu(), "cores": os.cpu_count(), "ray": ray.__version__, **report}
    print(json.dumps(report, indent=1))
    if not quick:
        (ROOT / "docs" / "results" / "shards.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
