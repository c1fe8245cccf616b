"""The scan of Hamming distances beside FAISS's IndexBinaryFlat, and what HammingSearch costs besides: one thread.

    python benchmarks/bench_hamming.py [n_rows]

Both get the same 1024-bit codes of MNIST's embedded sets, and must find the same distances. Runs take turns, and the
best of each is printed in CPU time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from search_data import mnist
from slosh.evaluate import recall_at_k
from slosh.hash.codes import as_words
from slosh.native import kernel, scan
from slosh.search import ExactSearch, HammingSearch

ROUNDS, ONE_BY_ONE = 15, 100


def fastest(actions: dict[str, tuple[Callable[[], Any], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """Microseconds a query of each action, (function, queries it answers); the actions take turns."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, (action, n) in actions.items():
            started = time.thread_time()
            action()
            best[name] = min(best[name], (time.thread_time() - started) / n * 1e6)
    return best


def cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(n_rows: int) -> None:
    faiss.omp_set_num_threads(1)
    collection = mnist(n_rows)
    search = HammingSearch(n_jobs=1)
    started = time.thread_time()
    search.add(collection.vectors)
    seconds = time.thread_time() - started
    codes, groups = search._codes.take(np.arange(len(collection))), search._codes.groups
    queries = search.hash_.transform(collection.queries)
    words = as_words(queries)
    index = faiss.IndexBinaryFlat(codes.shape[1] * 8)
    index.add(codes)
    n, n_queries = len(codes), len(queries)

    def ours(part: slice, k: int) -> Any:
        return scan.nearest_codes(words[part], groups, n, None, None, k, 1)

    def one_by_one(action: Callable[[slice], Any]) -> Callable[[], None]:
        return lambda: [action(slice(i, i + 1)) for i in range(ONE_BY_ONE)]  # type: ignore[func-returns-value]

    everything = slice(None)
    print(f"{collection.data}: {n:,} rows, {codes.shape[1] * 8} bits, {n_queries} queries; {cpu()}, one thread")
    print(f"FAISS {faiss.__version__}, numpy {np.__version__}; the best of {ROUNDS} rounds, CPU time")
    print(f"add: {seconds / n * 1e6:.1f} us a row; {search.info()['bytes_per_row']} bytes a row")
    best_kernel = kernel.name()
    for name in [best_kernel, *(other for other in kernel.native.names() if other != best_kernel)]:
        kernel.native.use(name)
        assert np.array_equal(ours(everything, 10)[0], index.search(queries, 10)[0])
        best = fastest(
            {
                "faiss 10": (lambda: index.search(queries, 10), n_queries),
                "ours 10": (lambda: ours(everything, 10), n_queries),
                "faiss 100": (lambda: index.search(queries, 100), n_queries),
                "ours 100": (lambda: ours(everything, 100), n_queries),
                "faiss one": (one_by_one(lambda part: index.search(queries[part], 10)), ONE_BY_ONE),
                "ours one": (one_by_one(lambda part: ours(part, 10)), ONE_BY_ONE),
            },
            ROUNDS if name == best_kernel else 5,
        )
        for what, key in (
            ("all at once, k = 10", "10"),
            ("all at once, k = 100", "100"),
            ("one by one, k = 10", "one"),
        ):
            a, b = best[f"faiss {key}"], best[f"ours {key}"]
            print(f"{name:8}{what:22}FAISS {a:6.1f} us, ours {b:6.1f} us: {a / b:.2f} times as fast")
    kernel.native.use(best_kernel)

    vectors = collection.queries
    exact, deep = ExactSearch(n_jobs=1), HammingSearch(rerank=100, n_jobs=1)
    for each in (exact, deep):
        each.add(collection.vectors)
    truth = exact.search(vectors, 10).rows
    for name, run in (
        ("no re-rank", lambda q: search.search(q, 10)),
        ("rerank=100", lambda q: deep.search(q, 10)),
        ("recall=0.95", lambda q: deep.search(q, 10, recall=0.95)),
        ("recall=0.99", lambda q: deep.search(q, 10, recall=0.99)),
    ):
        result = run(vectors)
        best = fastest(
            {
                "all": (lambda run=run: run(vectors), n_queries),
                "one": (one_by_one(lambda part, run=run: run(vectors[part])), ONE_BY_ONE),
            },
            5,
        )
        depth, promise = int(result.stats.candidates[0]), result.stats.recall
        print(
            f"{name:12} recall@10 {recall_at_k(result.rows, truth):.3f} (promised: {promise and round(promise, 3)}), "
            f"depth {depth}, {best['all']:.0f} us a query, one by one {best['one']:.0f} us"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000)
