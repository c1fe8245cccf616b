"""Compare the scan of Hamming distances with FAISS's IndexBinaryFlat, and measure HammingSearch as a whole.

    python benchmarks/bench_hamming.py [n_rows]

Both scan the same 1024-bit codes of MNIST's embedded sets with one thread, and must find the same distances. Their runs
alternate; the best of each is printed in CPU time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from machine import cpu
from search_data import Collection, mnist
from slosh.evaluate import recall_at_k
from slosh.hash.codes import as_words
from slosh.native import kernel, scan
from slosh.search import ExactSearch, HammingSearch

ROUNDS, SINGLE_QUERIES = 15, 100


def fastest_each(actions: dict[str, tuple[Callable[[], Any], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the best CPU microseconds per query of each (action, number of queries); the actions alternate."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, (action, n) in actions.items():
            started = time.thread_time()
            action()
            best[name] = min(best[name], (time.thread_time() - started) / n * 1e6)
    return best


def one_by_one(action: Callable[[slice], Any]) -> Callable[[], None]:
    """Return a function that runs the action on single queries."""

    def run() -> None:
        for i in range(SINGLE_QUERIES):
            action(slice(i, i + 1))

    return run


def grouped(words: Any) -> Any:
    """Return codes as the scan reads them: groups of 32, (n_groups, n_words, 32), aligned to cache lines."""
    n_groups = -(-len(words) // scan.GROUP)
    shape = (n_groups, words.shape[1], scan.GROUP)
    memory = np.zeros(math.prod(shape) + 8, np.uint64)
    first = -(memory.ctypes.data // 8) % 8
    groups = memory[first : first + math.prod(shape)].reshape(shape)
    padded = np.zeros((n_groups * scan.GROUP, words.shape[1]), np.uint64)
    padded[: len(words)] = words
    groups[:] = padded.reshape(n_groups, scan.GROUP, -1).transpose(0, 2, 1)
    return groups


def compare_scans(codes: Any, queries: Any) -> None:
    """Print the times of both scans for every kernel of this machine."""
    words, groups, n = as_words(queries), grouped(as_words(codes)), len(codes)
    index = faiss.IndexBinaryFlat(codes.shape[1] * 8)
    index.add(codes)

    def scan_codes(part: slice, k: int) -> Any:
        return scan.nearest_codes(words[part], groups, n, None, None, k, 1)

    everything, n_queries, best_kernel = slice(None), len(queries), kernel.name()
    titles = {"10": "all at once, k = 10", "100": "all at once, k = 100", "single": "one by one, k = 10"}
    for name in [best_kernel, *(other for other in kernel.native.names() if other != best_kernel)]:
        kernel.native.use(name)
        assert np.array_equal(scan_codes(everything, 10)[0], index.search(queries, 10)[0])
        actions = {
            "faiss 10": (lambda: index.search(queries, 10), n_queries),
            "slosh 10": (lambda: scan_codes(everything, 10), n_queries),
            "faiss 100": (lambda: index.search(queries, 100), n_queries),
            "slosh 100": (lambda: scan_codes(everything, 100), n_queries),
            "faiss single": (one_by_one(lambda part: index.search(queries[part], 10)), SINGLE_QUERIES),
            "slosh single": (one_by_one(lambda part: scan_codes(part, 10)), SINGLE_QUERIES),
        }
        best = fastest_each(actions, ROUNDS if name == best_kernel else 5)
        for key, title in titles.items():
            a, b = best[f"faiss {key}"], best[f"slosh {key}"]
            print(f"{name:8}{title:22}FAISS {a:6.1f} us, slosh {b:6.1f} us: {a / b:.2f} times as fast")
    kernel.native.use(best_kernel)


def measure_search(collection: Collection, codes_only: HammingSearch) -> None:
    """Print recall and time of HammingSearch with several depths of re-ranking."""
    vectors = collection.queries
    exact, reranked = ExactSearch(n_jobs=1), HammingSearch(rerank=100, n_jobs=1)
    for search in (exact, reranked):
        search.add(collection.vectors)
    truth = exact.search(vectors, 10).rows
    settings: dict[str, Callable[[Any], Any]] = {
        "no re-rank": lambda q: codes_only.search(q, 10),
        "rerank=100": lambda q: reranked.search(q, 10),
        "recall=0.95": lambda q: reranked.search(q, 10, recall=0.95),
        "recall=0.99": lambda q: reranked.search(q, 10, recall=0.99),
    }
    for name, run in settings.items():
        result = run(vectors)
        actions = {
            "all": (lambda run=run: run(vectors), len(vectors)),
            "single": (one_by_one(lambda part, run=run: run(vectors[part])), SINGLE_QUERIES),
        }
        best = fastest_each(actions, 5)
        depth, promise = int(result.stats.candidates[0]), result.stats.recall
        print(
            f"{name:12} recall@10 {recall_at_k(result.rows, truth):.3f} (promised: {promise and round(promise, 3)}), "
            f"depth {depth}, {best['all']:.0f} us per query, one by one {best['single']:.0f} us"
        )


def main(n_rows: int) -> None:
    """Print all comparisons."""
    faiss.omp_set_num_threads(1)
    collection = mnist(n_rows)
    search = HammingSearch(n_jobs=1)
    started = time.thread_time()
    search.add(collection.vectors)
    seconds, n = time.thread_time() - started, len(collection)
    codes, queries = (search.hash_.transform(vectors) for vectors in (collection.vectors, collection.queries))
    print(f"{collection.data}: {n:,} rows, {codes.shape[1] * 8} bits, {len(queries)} queries; {cpu()}, one thread")
    print(f"FAISS {faiss.__version__}, NumPy {np.__version__}; the best of {ROUNDS} rounds, CPU time")
    print(f"add: {seconds / n * 1e6:.1f} us per row; {search.info()['bytes_per_row']} bytes per row")
    compare_scans(codes, queries)
    measure_search(collection, search)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000)
