"""How the time of a query and the memory grow with the collection, beside FAISS.

    make bench-growth

Whitened vectors of 64 numbers: those of MNIST's sets under 17 affine maps with jitter (search_data.py), 1,020,000 of
them, and beyond that copies of these vectors with jitter of their own. 10,000 to 10,000,000 in all.
One thread. For each size: LadderSearch asked for .95 and 1.0, FAISS's inverted lists with as many lists, at the
number of probes that is the first to reach the recall of LadderSearch, and FAISS's scan. Each size is written to --out
as soon as it is measured; sizes that are there are left out, so that a run can go on. Then the exponents are fitted and
docs/search_growth.png is drawn. Ten million take 8 GB of memory.
"""

from __future__ import annotations

import os

# Before NumPy, FAISS and slosh are imported.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_WAIT_POLICY="passive")

import argparse
import gc
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

import search_data
from machine import ROOT, cpu, fastest
from markdown_tables import markdown_table
from slosh.evaluate import recall_at_k
from slosh.native import kernel
from slosh.search import LadderSearch

Array = NDArray[Any]
SIZES = (10_000, 31_600, 100_000, 316_000, 1_000_000, 3_160_000, 10_000_000)
K, RECALL, CHUNK = 10, 0.95, 500_000
ROUNDS = 3
JITTER = 0.2
"""Of the standard deviation of each number, added to copies: they lie about as far from each other as neighbours do."""
LISTS_FROM_ROWS, MOST_LISTS = 20_000, 4096
"""FAISS gets as many lists as LadderSearch from so many rows on, below that the root of the rows times four; at most so
many, as learning them takes it longest."""


def collection(base: Array, n: int) -> Array:
    """Return n vectors: every so many of those given or, if these are too few, copies of them with jitter."""
    if n <= len(base):
        return np.ascontiguousarray(base[:: len(base) // n][:n])
    vectors, spread = np.empty((n, base.shape[1]), np.float32), JITTER * np.std(base[::100], axis=0)
    for copy, first in enumerate(range(0, n, len(base))):
        part = vectors[first : first + len(base)]
        part[:] = base[: len(part)]
        if copy:
            random = np.random.default_rng([0, copy])
            part += random.standard_normal(part.shape, np.float32) * spread.astype(np.float32)
    return vectors


def chunks(vectors: Array) -> Iterator[Array]:
    """Yield the vectors in arrays of up to CHUNK rows."""
    return (vectors[first : first + CHUNK] for first in range(0, len(vectors), CHUNK))


def true_rows(vectors: Array, queries: Array) -> Array:
    """Return the K nearest rows of each query, by FAISS's scan chunk after chunk."""
    distances, rows, first = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64), 0
    for chunk in chunks(vectors):
        near, at = faiss.knn(queries, chunk, K)
        distances, rows = np.concatenate([distances, near], axis=1), np.concatenate([rows, at + first], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, :K]
        distances, rows = np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)
        first += len(chunk)
    return rows


def measure_ladder(vectors: Array, queries: Array, truth: Array) -> dict[str, Any]:
    search = LadderSearch(n_jobs=1)
    start = time.process_time()
    for chunk in chunks(vectors):
        search.add(chunk)
    search.train()
    trained = time.process_time()
    search.calibrate(K, RECALL)
    built = time.process_time()
    result: dict[str, Any] = {"build_s": built - start, "calibrate_s": built - trained}
    for name, recall in (("ladder", RECALL), ("exact", 1.0)):
        some = queries if recall < 1 or len(vectors) <= 1_000_000 else queries[:200]
        search.search(some, K, recall=recall)
        seconds, found = fastest(lambda some=some, recall=recall: search.search(some, K, recall=recall), ROUNDS)
        reached = float(np.mean(recall_at_k(found.rows, truth[: len(some)])))
        scanned = float(found.stats.scanned.mean())
        result[name] = {"qps": len(some) / seconds, "recall": reached, "scanned": scanned}
    about = search.info()
    return {**result, "bytes_per_set": about["bytes_per_row"], "n_lists": about["n_lists"]}


def measure_lists(vectors: Array, n_lists: int, queries: Array, truth: Array, least: float) -> dict[str, Any]:
    n, dim = vectors.shape
    start = time.process_time()
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, n_lists)
    sample = np.random.RandomState(0).choice(n, min(n, 64 * n_lists), replace=False)
    index.train(vectors[np.sort(sample)])
    for chunk in chunks(vectors):
        index.add(chunk)
    built = time.process_time() - start
    probes = 1
    while True:
        index.nprobe = probes
        seconds, found = fastest(lambda: index.search(queries, K)[1], ROUNDS)
        reached = float(np.mean(recall_at_k(found, truth)))
        if reached >= least or probes >= n_lists:
            break
        probes = min(n_lists, max(probes + 1, round(probes * 1.15)))
    size = 4 * dim + 8 + 4 * dim * n_lists / n
    return {"qps": len(queries) / seconds, "recall": reached, "probes": probes, "build_s": built, "bytes_per_set": size}


def measure_scan(vectors: Array, queries: Array) -> dict[str, Any]:
    index = faiss.IndexFlatL2(vectors.shape[1])
    for chunk in chunks(vectors):
        index.add(chunk)
    some = queries if index.ntotal <= 1_000_000 else queries[:200]
    seconds, _ = fastest(lambda: index.search(some, K), ROUNDS)
    return {"qps": len(some) / seconds}


def measure(vectors: Array, queries: Array) -> dict[str, Any]:
    """Return all figures of a collection."""
    n = len(vectors)
    truth = true_rows(vectors, queries)
    own = measure_ladder(vectors, queries, truth)
    gc.collect()
    n_lists = min(own["n_lists"], MOST_LISTS) if n > LISTS_FROM_ROWS else int(4 * n**0.5)
    lists = measure_lists(vectors, n_lists, queries, truth, own["ladder"]["recall"])
    gc.collect()
    return {"rows": n, **own, "lists": lists, "scan": measure_scan(vectors, queries)}


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the exponent of n in the time of a query, fitted to the sizes from 100,000 on, if there are three."""
    large = [row for row in rows if row["rows"] >= 100_000] if len(rows) > 4 else rows
    n = np.log([row["rows"] for row in large])
    return {
        name: float(np.polyfit(n, [-np.log(row[name]["qps"]) for row in large], 1)[0])
        for name in ("ladder", "exact", "lists", "scan")
    }


def table(rows: list[dict[str, Any]]) -> str:
    heads = [
        "sets", "asked .95: recall@10", "queries/s", "rows scanned", "bytes per set", "build, s",
        "FAISS lists, queries/s", "ratio", "bytes per set", "build, s", "exact, queries/s",
        "FAISS scan, queries/s", "ratio",
    ]  # fmt: skip
    cells = []
    for row in rows:
        own, lists, exact, scan = row["ladder"], row["lists"], row["exact"], row["scan"]
        cells.append([
            f"{row['rows']:,}", f"{own['recall']:.3f}", f"{own['qps']:,.0f}", f"{own['scanned']:,.0f}",
            f"{row['bytes_per_set']:.0f}", f"{row['build_s']:.1f}", f"{lists['qps']:,.0f}",
            f"{own['qps'] / lists['qps']:.1f} x", f"{lists['bytes_per_set']:.0f}", f"{lists['build_s']:.1f}",
            f"{exact['qps']:,.0f}", f"{scan['qps']:,.0f}", f"{exact['qps'] / scan['qps']:.1f} x",
        ])  # fmt: skip
    return markdown_table(heads, cells)


def report(results: dict[str, Any]) -> str:
    """Return the table, the machine and the exponents as Markdown."""
    slopes, n = results.get("exponents", {}), len(results["rows"])
    names = {
        "ladder": "`LadderSearch` asked for .95", "lists": "FAISS's lists at the same recall",
        "exact": "`LadderSearch`, exact", "scan": "FAISS's scan",
    }  # fmt: skip
    fitted = "; ".join(f"{names[name]} n^{slope:.2f}" for name, slope in slopes.items())
    over = "from 100,000 sets on" if n > 4 else "over all sizes"
    return f"{table(results['rows'])}\n\nThe time of a query grows as, {over}: {fitted}.\n\n{results['machine']}."


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    n, slopes = [row["rows"] for row in rows], exponents(rows)
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    names = {
        "ladder": ("LadderSearch, .95", "C0", "o-"), "lists": ("FAISS lists, the same recall", "C1", "s-"),
        "exact": ("LadderSearch, exact", "C0", "o--"), "scan": ("FAISS scan", "C1", "s--"),
    }  # fmt: skip
    for name, (label, color, style) in names.items():
        axes.loglog(
            n, [row[name]["qps"] for row in rows], style, color=color, label=f"{label}: time ~ n^{slopes[name]:.2f}"
        )
    axes.set(xlabel="sets", ylabel="queries per second, one thread")
    axes.set_title("Whitened vectors of 64 numbers, ten nearest")
    axes.grid(which="both", alpha=0.25)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure the sizes that are missing, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--cache", type=Path, default=search_data.CACHE)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "growth.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "growth.md", help="its table is written anew")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "search_growth.png")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    # Matrix products for batches of short vectors, too: see bench_search.py.
    faiss.cvar.distance_compute_blas_threshold = 10_000
    results = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    results["machine"] = (
        f"{cpu()}, {os.cpu_count()} cores, one thread; kernel {kernel.name()}, FAISS {faiss.__version__}"
    )
    missing = [n for n in options.sizes if n not in {row["rows"] for row in results["rows"]}]
    if missing:
        data = search_data.million(cache=options.cache, model_name="w64")
        queries = np.ascontiguousarray(data.queries[: data.n_queries])
        results["data"] = f"{data.data}; beyond {len(data):,} copies with jitter"
        for n in missing:
            results["rows"] = sorted(
                [*results["rows"], measure(collection(data.vectors, n), queries)], key=lambda row: row["rows"]
            )
            results["exponents"] = exponents(results["rows"]) if len(results["rows"]) > 2 else {}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(json.dumps(results["rows"][[row["rows"] for row in results["rows"]].index(n)]), flush=True)
    text = report(results)
    print(text)
    if len(results["rows"]) > 2:
        draw(results["rows"], options.picture)
    if options.page.exists():
        place = re.compile(r"<!-- growth -->\n.*?<!-- / -->", re.DOTALL)
        options.page.write_text(
            place.sub(lambda _: f"<!-- growth -->\n\n{text}\n\n<!-- / -->", options.page.read_text())
        )


if __name__ == "__main__":
    main()
