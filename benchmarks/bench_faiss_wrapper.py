"""What FaissSearch costs over bare FAISS: the same factory, the same lists probed, as many candidates compared.

    python benchmarks/bench_faiss_wrapper.py [--sets 60000] [--model w64] [--rounds 7]

FaissSearch calibrates itself for a recall. Bare FAISS gets what that found: nprobe or efSearch, and a refinement that
compares as many candidates in float16. Both take turns in one process on one thread; CPU time, the best of the rounds.
"""

from __future__ import annotations

import os

# Before NumPy, FAISS and slosh are imported.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_WAIT_POLICY="passive")

import argparse
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import faiss
import numpy as np

import search_data
from machine import cpu
from slosh.native import kernel
from slosh.search import FaissSearch

FACTORIES = ("IVF256,PQ32x4fs", "IVF512,SQ8", "HNSW16,SQ8")
RECALLS = (0.9, 0.95, 0.99)
K, SINGLE_QUERIES = 10, 200


def bare(factory: str, vectors: Any, effort: int, depth: int) -> Callable[[Any], Any]:
    """Return a search by FAISS alone."""
    index = faiss.index_factory(vectors.shape[1], f"{factory},Refine(SQfp16)")
    index.train(vectors)
    index.add(vectors)
    inner = (
        faiss.SearchParametersHNSW(efSearch=effort) if "HNSW" in factory else faiss.SearchParametersIVF(nprobe=effort)
    )
    params = faiss.IndexRefineSearchParameters(k_factor=max(1.0, depth / K), base_index_params=inner)
    return lambda queries: index.search(queries, K, params=params)[1]


def fastest(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the least CPU time of each call; they take turns."""
    best = dict.fromkeys(calls, np.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            started = process_time()
            call()
            best[name] = min(best[name], process_time() - started)
    return best


def rows_of(search: FaissSearch, recall: float, queries: Any) -> Any:
    """Return what FaissSearch finds."""
    return search.search(queries, K, recall=recall).rows


def one_by_one(call: Callable[[Any], Any], queries: Any) -> None:
    """Ask for one query at a time."""
    for i in range(SINGLE_QUERIES):
        call(queries[i : i + 1])


def share(rows: Any, truth: Any) -> float:
    """Return which part of the true rows was found."""
    return float((rows[:, :, None] == truth[:, None]).any(axis=2).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=60_000)
    parser.add_argument("--model", default="w64", choices=list(search_data.MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    data = search_data.mnist(options.sets, 1000, options.model)
    vectors, queries = (np.ascontiguousarray(part, np.float32) for part in (data.vectors, data.queries))
    truth = faiss.knn(queries, vectors, K)[1]
    print(f"{cpu()}, one thread; kernel {kernel.name()}, FAISS {faiss.__version__}; {data.data}")
    print(f"{len(vectors):,} vectors of {vectors.shape[1]}, {len(queries):,} queries, k = {K}; best CPU time of "
          f"{options.rounds} rounds\n")  # fmt: skip
    print("| factory | asked for | nprobe or efSearch, candidates | recall: FaissSearch | bare | "
          "queries/s: FaissSearch | bare | ratio | one query, us: FaissSearch | bare |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for factory in FACTORIES:
        search = FaissSearch(factory, n_jobs=1)
        search.add(vectors)
        search.train()
        for recall in RECALLS:
            plan = search.calibrate(K, recall)
            if plan.exact:
                print(f"| {factory} | {recall} | exact |")
                continue
            alone = bare(factory, vectors, int(plan.reach), plan.depth)

            ours = partial(rows_of, search, recall)
            found = share(ours(queries), truth), share(alone(queries), truth)
            whole = fastest({"ours": partial(ours, queries), "bare": partial(alone, queries)}, options.rounds)
            single = fastest(
                {"ours": partial(one_by_one, ours, queries), "bare": partial(one_by_one, alone, queries)},
                options.rounds,
            )
            rate = {name: len(queries) / seconds for name, seconds in whole.items()}
            each = {name: 1e6 * seconds / SINGLE_QUERIES for name, seconds in single.items()}
            print(
                f"| {factory} | {recall} | {plan.reach:g}, {plan.depth} | {found[0]:.4f} | {found[1]:.4f} | "
                f"{rate['ours']:,.0f} | {rate['bare']:,.0f} | {rate['ours'] / rate['bare']:.2f} x | "
                f"{each['ours']:.0f} | {each['bare']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
