"""What each recall costs `LSHSearch`, beside an exact scan: MNIST's 60,000 sets, sliced and whitened; one thread.

    python benchmarks/lsh_recalls.py [--models s256 w64 s1024] [--queries 500]

Prints a table: tables tuned for .9, asked for more; CPU time of a query in one batch, the ten nearest.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse

import numpy as np

import machine
import search_data
from markdown_tables import markdown_table
from slosh.evaluate import recall_at_k
from slosh.search import ExactSearch, LSHSearch

RECALLS = (0.9, 0.95, 0.98, 0.99)


def rows_of(model: str, n_queries: int, rounds: int) -> list[list[object]]:
    """Return the lines of the table for one kind of vectors."""
    data = search_data.mnist(n_queries=n_queries, model_name=model)
    exact, search = ExactSearch(n_jobs=1), LSHSearch(n_jobs=1)
    for each in (exact, search):
        each.add(data.vectors)
    search.tune()
    exact.search(data.queries[:8])
    scan, truth = machine.fastest(lambda: exact.search(data.queries), rounds)
    lines: list[list[object]] = []
    for recall in RECALLS:
        plan = search.calibrate(10, recall)
        taken, found = machine.fastest(lambda r=recall: search.search(data.queries, recall=r), rounds)  # type: ignore[misc]
        compared = found.stats.candidates
        some = f"{np.mean(compared >= len(data)):.0%}"
        how = ["exact", "-", "-"] if plan.exact else [plan.n_probes, f"{np.median(compared):,.0f}", some]
        times = [f"{1e6 * seconds / n_queries:.0f} µs" for seconds in (taken, scan)]
        lines.append([model, recall, *how, f"{recall_at_k(found.rows, truth.rows):.3f}", *times])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(search_data.MODELS), default=["s256", "s1024", "w64"])
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    head = ["vectors", "asked for", "probes", "compared, median", "queries scanned", "recall", "time", "`ExactSearch`"]
    lines = [line for model in args.models for line in rows_of(model, args.queries, args.rounds)]
    print(f"{machine.cpu()}, 60,000 vectors, {args.queries} queries\n\n{markdown_table(head, lines)}")


if __name__ == "__main__":
    main()
