"""Measure how the cost of `LSHSearch` grows with the collection, compared with flat scans of the vectors; one thread.

The collection is MNIST's sets under seeded affine maps with jitter (search_data.py), embedded with 16 slices of 16
quantiles, D = 256, so that a million vectors take 1 GB. The queries are test sets under maps of the collection and, as
a second kind, each under a new map: those are farther from the stored vectors than these are from each other. For every
size a random part is searched for the ten nearest with recall 0.9 and 0.95. Peers are `ExactSearch`, FAISS's
`IndexFlatL2` where it is installed, and `LadderSearch`. Times are CPU seconds of one thread for 1,000 queries in one
batch, the best of several. The script prints a table, says from which size on LSHSearch wins, and writes a JSON file.

    python benchmarks/lsh_growth.py                       # all sizes: some minutes, 4 GB of memory
    python benchmarks/lsh_growth.py --sizes 10000 30000
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import platform
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import search_data
from machine import ROOT, cpu, fastest
from slosh.embed import SlicedWasserstein
from slosh.evaluate import recall_at_k
from slosh.hash import PStableHash, probing
from slosh.native import kernel
from slosh.search import ExactSearch, LadderSearch, LSHSearch

try:
    import faiss
except ImportError:
    faiss = None

Array = NDArray[Any]
N_SLICES = N_QUANTILES = 16
K, RECALLS = 10, (0.9, 0.95)
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)


def collection(cache: Path, seed: int = 0) -> tuple[Array, dict[str, Array]]:
    """Return a memory map of 1,020,000 vectors, and 1,000 queries of either kind."""
    data, train, test = search_data.read()
    print(f"data: {data}", flush=True)
    random = np.random.RandomState(seed)
    maps = [search_data.affine_map(random) for _ in range(search_data.N_MAPS)]
    model = SlicedWasserstein(N_SLICES, N_QUANTILES).fit(next(search_data.mapped(train, maps, seed)))
    random = np.random.RandomState(search_data.QUERY_SEED + seed)
    kinds = {
        "like the rows": [maps[i] for i in random.randint(len(maps), size=len(test))],
        "new maps": [search_data.affine_map(random) for _ in range(len(test))],
    }
    queries = {kind: model.transform(search_data.transformed_each(test, own, random)) for kind, own in kinds.items()}
    path = cache / f"lsh-{len(maps)}x{len(train)}-{search_data.digest(queries['new maps'])}.npy"
    return search_data.cached_vectors(path, model, train, maps, seed), queries


def measure(vectors: Array, queries: dict[str, Array], rounds: int) -> dict[str, Any]:
    """Return the times, recalls and compared rows of all searches over these vectors."""
    out: dict[str, Any] = {"n": len(vectors)}
    asked, rounds = queries, rounds if len(vectors) < 200_000 else min(rounds, 2)
    exact = ExactSearch(n_jobs=1)
    exact.add(vectors)
    scan = asked["like the rows"]
    seconds, _ = fastest(lambda exact=exact: exact.search(scan, K), rounds)
    out["ExactSearch"] = seconds / len(scan) * 1e6
    truth = {kind: exact.search(lines, K).rows for kind, lines in asked.items()}
    del exact
    if faiss is not None:
        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatL2(vectors.shape[1])
        index.add(vectors)
        seconds, _ = fastest(lambda index=index: index.search(scan, K), rounds)
        out["FAISS IndexFlatL2"] = seconds / len(scan) * 1e6
        del index
    search = LSHSearch(n_jobs=1)
    search.add(vectors)
    start = time.process_time()
    search.calibrate(K)
    out["first search, s"] = time.process_time() - start
    out["tuning"] = str(search.tuning_)
    out["bytes of tables a row"] = search.info()["bytes"]["tables"] / len(vectors)
    for recall in RECALLS:
        search.calibrate(K, recall)
        for kind, lines in asked.items():
            search.search(lines[:10], K, recall=recall)
            seconds, found = fastest(lambda lines=lines, recall=recall: search.search(lines, K, recall=recall), rounds)
            out[f"LSHSearch {recall}, {kind}"] = {
                "us": seconds / len(lines) * 1e6,
                "recall": recall_at_k(found.rows, truth[kind]),
                "compared": float(found.stats.candidates.mean()) / len(vectors),
                "probes": search.calibrate(K, recall).n_probes,
            }
    ladder = LadderSearch(n_jobs=1)
    ladder.add(vectors)
    for kind, lines in asked.items():
        ladder.search(lines[:10], K, recall=0.9)
        seconds, found = fastest(lambda lines=lines: ladder.search(lines, K, recall=0.9), rounds)
        recall = recall_at_k(found.rows, truth[kind])
        out[f"LadderSearch 0.9, {kind}"] = {"us": seconds / len(lines) * 1e6, "recall": recall}
    single = scan[:100]
    seconds, _ = fastest(lambda: [search.search(line[None], K, recall=0.9) for line in single], rounds)
    out["LSHSearch 0.9, one query at a time"] = seconds / len(single) * 1e6
    return out


def fastest_scan(result: dict[str, Any]) -> float:
    """Return the time of the faster of the two flat scans."""
    return min(result[name] for name in ("ExactSearch", "FAISS IndexFlatL2") if name in result)


def wins_from(results: list[dict[str, Any]], name: str) -> str:
    """Say from which size on a search beats the flat scans, where their logarithmic lines cross."""
    gains = [np.log(fastest_scan(result) / result[name]["us"]) for result in results]
    logs = [np.log(result["n"]) for result in results]
    if gains[0] > 0:
        return f"already at {results[0]['n']:,} vectors"
    for i in range(1, len(gains)):
        if gains[i] > 0:
            n = np.exp(logs[i - 1] + (logs[i] - logs[i - 1]) * -gains[i - 1] / (gains[i] - gains[i - 1]))
            return f"from about {float(f'{n:.2g}'):,.0f} vectors on"
    return f"nowhere up to {results[-1]['n']:,} vectors"


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the results of all sizes, and where LSHSearch wins."""
    names = [name for name in results[0] if name.startswith("LSH") and isinstance(results[0][name], dict)]
    ladders = [name for name in results[0] if name.startswith("Ladder")]
    for result in results:
        print(f"\n{result['n']:,} vectors; {result['tuning']}")
        print(
            f"  tables {result['bytes of tables a row']:.0f} bytes per row, built in {result['first search, s']:.1f} s"
        )
        for name in ("ExactSearch", "FAISS IndexFlatL2"):
            if name in result:
                print(f"  {name:38} {result[name]:9.0f} us per query")
        for name in names:
            line = result[name]
            print(
                f"  {name:38} {line['us']:9.0f} us per query, {fastest_scan(result) / line['us']:5.2f} x the best "
                f"flat scan; recall {line['recall']:.3f}, {line['compared']:.2%} compared, {line['probes']} probes"
            )
        for name in ladders:
            print(f"  {name:38} {result[name]['us']:9.0f} us per query; recall {result[name]['recall']:.3f}")
        name = "LSHSearch 0.9, one query at a time"
        print(f"  {name:38} {result[name]:9.0f} us per query")
    print()
    for name in names:
        print(f"{name}: wins {wins_from(results, name)}")


def paper_figure(rounds: int) -> list[dict[str, Any]]:
    """Measure plain tables (w = 4 R, k = 12, T = 40), multi-probe and the tuned search on 20,000 vectors, D = 1024."""
    data = search_data.mnist(20_000, 1000)
    exact = ExactSearch(n_jobs=1)
    exact.add(data.vectors)
    seconds, truth = fastest(lambda: exact.search(data.queries, K), rounds)
    R = float(np.median(truth.distances[:, -1]))
    lines = [{"name": "ExactSearch", "us": seconds * 1e6 / len(data.queries), "recall": 1.0, "compared": 1.0}]
    settings: list[tuple[str, LSHSearch, float | None]] = [
        ("plain: w = 4 R, k = 12, T = 40", LSHSearch(PStableHash(4 * R, 12, 40), n_jobs=1), None),
        ("the same with T = 13, 39 probes", LSHSearch(PStableHash(4 * R, 12, 13), n_probes=39, n_jobs=1), None),
        ("tuned, recall=0.8", LSHSearch(recall=0.8, n_jobs=1), None),
        ("tuned, recall=0.9", LSHSearch(recall=0.9, n_jobs=1), None),
        ("tuned, recall=0.95", LSHSearch(recall=0.95, n_jobs=1), None),
    ]
    for name, search, recall in settings:
        search.add(data.vectors)
        search.search(data.queries[:10], K, recall=recall)
        seconds, found = fastest(
            lambda search=search, recall=recall: search.search(data.queries, K, recall=recall), rounds
        )
        lines.append({
            "name": name,
            "us": seconds * 1e6 / len(data.queries),
            "recall": recall_at_k(found.rows, truth.rows),
            "compared": float(found.stats.candidates.mean()) / len(data.vectors),
            "tables": search.info()["hash"]["n_tables"],
            "promised": found.stats.recall,
        })  # fmt: skip
    print("\n20,000 MNIST vectors, 64 slices of 16 quantiles, D = 1024; 1,000 test sets")
    for line in lines:
        print(f"  {line['name']:34} {line['us']:7.0f} us, recall {line['recall']:.3f}, {line['compared']:.2%} compared")
    return lines


def compare_orders() -> list[dict[str, Any]]:
    """Compare probing in the order of squared distances to the borders (Lv et al., 2007) and of probabilities."""
    data = search_data.mnist(20_000, 1000)
    exact = ExactSearch(n_jobs=1)
    exact.add(data.vectors)
    truth = exact.search(data.queries, K)
    search = LSHSearch(PStableHash(4 * float(np.median(truth.distances[:, -1])), 16, 13), n_jobs=1)
    search.add(data.vectors)
    place = (np.arange(probing.STEPS) + 0.5) / probing.STEPS
    squares = np.zeros(probing.STEPS, np.float32), np.rint(place**2 * 4096).astype(np.float32)
    by_probability, lines = probing.score_tables, []
    print("\nrecall (and share compared) by the number of probes, k = 16, T = 13, w = 4 R")
    for name, scores in (("squared distances", lambda p: squares), ("probabilities", by_probability)):
        probing.score_tables = scores
        for n_probes in (26, 52, 100, 200, 400):
            search.n_probes = n_probes
            found = search.search(data.queries, K)
            compared = float(found.stats.candidates.mean()) / len(data.vectors)
            recall = recall_at_k(found.rows, truth.rows)
            lines.append({"order": name, "probes": n_probes, "recall": recall, "compared": compared})
        print(f"  {name:18}", ", ".join(f"{x['recall']:.3f} ({x['compared']:.1%})" for x in lines[-5:]))
    probing.score_tables = by_probability
    return lines


def main() -> None:
    """Run all measurements and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="no sizes: only MNIST's 20,000 vectors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=search_data.CACHE, help="for 1 GB of vectors")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "lsh.json")
    options = parser.parse_args()
    machine = {
        "date": date.today().isoformat(),
        "cpu": cpu(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "faiss": None if faiss is None else faiss.__version__,
        "kernel": kernel.name(),
        "threads": 1,
        "command": " ".join(["python benchmarks/lsh_growth.py", *sys.argv[1:]]),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    report = {"machine": machine, "mnist": paper_figure(options.rounds), "orders": compare_orders(), "growth": []}
    if not options.sizes and options.out.exists():  # keep earlier results
        report["growth"] = json.loads(options.out.read_text())["growth"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    vectors, queries = collection(options.cache) if options.sizes else (np.empty(0), {})
    for n in sorted(options.sizes):
        rows = np.sort(np.random.RandomState(0).permutation(len(vectors))[:n])
        report["growth"].append(measure(np.asarray(vectors[rows]), queries, options.rounds))
        print(f"{n:,} vectors measured", flush=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    if options.sizes:
        print_table(report["growth"])


if __name__ == "__main__":
    main()
