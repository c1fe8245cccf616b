"""Measure one query at a time: where the microseconds of `SetIndex.search(set, k=10)` go.

    python benchmarks/single_query.py SRC [OLD_SRC] [--rounds 3] [--sets 60000] [--slices 64]

SRC and OLD_SRC are folders that hold the package `slosh` with its compiled kernel. Each round runs each tree once, in a
fresh process, and the two take turns to go first. For a LadderSearch over vectors, an index in memory and one in a
folder the tables have the median over all single queries, in wall-clock microseconds of one thread, and the median over
the rounds of that. The stages are of a second pass, in which each of them is timed without those inside of it; the
clock itself adds about half a microsecond to each. What a tree does not have under the names of STAGES is in "all
else".

The floor of an index in a folder is what cannot be left out: the native embedding and the native search, and a read
transaction of SQLite that looks at the version and at ten rows.

    python benchmarks/single_query.py SRC --beside-faiss w64 [--rounds 3] [--sets 60000]

compares a `LadderSearch` over vectors (a name of `search_data.MODELS`) with FAISS's inverted lists, both from Python in
one process and with one thread: the median over single queries, and the part of a query in a batch of all of them, each
the best of the rounds. The peer is the fastest of several numbers of lists, flat and in eight bits, with the fewest
probes that reach the recall which `LadderSearch` measured.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

N_QUERIES, N_QUANTILES, K = 1000, 16, 10
PASSES = 3
RECALLS = (0.9, 0.95, 0.99)
PEERS = ("IVF256,Flat", "IVF512,Flat", "IVF1024,Flat", "IVF512,SQ8", "IVF1024,SQ8")
MOST_PROBES = 128
STAGES = {  # what the time is for: functions, as module:name
    "open and close the view": ["engines.sqlite.engine:SqliteEngine.view", "engines.sqlite.view:SqliteView.__exit__"],
    "check the arguments": ["index.planner:Question.checked"],
    "check the set": ["engines.spec:IndexSpec.sets", "engines.spec:IndexSpec.one_set"],
    "around the embedding": ["engines.spec:IndexSpec.vectors"],
    "native embedding": ["native.kernel:embed"],
    "around the search": ["engines.snapshot:Snapshot.nearest"],
    "search": ["search.ladder_state:LadderState.nearest"],
    "ids and metadata": ["engines.sqlite.view:SqliteView.describe", "engines.memory:Version.describe"],
    "hits": ["index.planner:make_hits"],
}
REST = "all else"


def median(seconds: Iterable[float]) -> float:
    """Return the median in microseconds."""
    return 1e6 * statistics.median(seconds)


def time_each(call: Callable[[Any], Any], queries: Iterable[Any]) -> list[float]:
    """Return the seconds of a call for each query."""
    taken = []
    for query in queries:
        started = time.perf_counter()
        call(query)
        taken.append(time.perf_counter() - started)
    return taken


class Stages:
    """Times functions without the other timed functions that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed as part of a stage."""

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            started = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                taken = time.perf_counter() - started
                self.seconds[stage] = self.seconds.get(stage, 0.0) + taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        return call

    def watch(self) -> None:
        """Put the timed functions in the place of those that STAGES names."""
        for stage, names in STAGES.items():
            for name in names:
                module, _, path = name.partition(":")
                owner: Any = importlib.import_module(f"slosh.{module}")
                *outer, last = path.split(".")
                owner = functools.reduce(getattr, outer, owner)
                if not hasattr(owner, last):
                    continue
                static = isinstance(vars(owner).get(last), classmethod)
                timed = self.timed(stage, getattr(owner, last))
                setattr(owner, last, staticmethod(timed) if static else timed)

    def measure(self, call: Callable[[Any], Any], queries: Iterable[Any]) -> dict[str, float]:
        """Return the median microseconds of each stage over the queries."""
        lines = []
        for query in queries:
            self.seconds = {}
            (whole,) = time_each(call, [query])
            lines.append({**self.seconds, REST: whole - sum(self.seconds.values())})
        return {stage: median(line.get(stage, 0.0) for line in lines) for stage in (*STAGES, REST)}


def floor(path: Path) -> float:
    """Return the microseconds of a read transaction that looks at the version and at ten rows."""
    connection = sqlite3.connect(f"{(path / 'index.db').as_uri()}?mode=ro", uri=True, isolation_level=None)
    (n,) = connection.execute("SELECT count(*) FROM sets").fetchone()
    marks = ", ".join("?" * K)

    def read(first: int) -> None:
        connection.execute("BEGIN")
        connection.execute("SELECT value FROM settings WHERE key = 'version'").fetchone()
        rows = [(first + 7919 * i) % n for i in range(K)]
        connection.execute(f"SELECT row, id, metadata FROM sets WHERE row IN ({marks})", rows).fetchall()
        connection.execute("COMMIT")

    return median(time_each(read, range(N_QUERIES)))


def measure_here(source: str, n_sets: int, n_slices: int) -> dict[str, Any]:
    """Run all measurements in this process, with the slosh of a source tree."""
    import search_data
    import slosh
    from slosh.embed import SlicedWasserstein
    from slosh.search import LadderSearch

    if Path(slosh.__file__).resolve().parent != Path(source) / "slosh":
        raise SystemExit("another slosh was imported: pass the folder that holds the package")
    _, train, test = search_data.read(n_sets, N_QUERIES)
    model = SlicedWasserstein(n_slices, N_QUANTILES, n_jobs=1)
    ladder = LadderSearch(n_jobs=1)
    ladder.add(model.fit(train[:1]).transform(train))
    vectors = model.transform(test)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sets.slosh"
        for index in (slosh.SetIndex.create(place, 2, embedding=model, n_jobs=1) for place in (path, None)):
            index.add(search_data.records(train, 0))
            if index.path is not None:
                index.close()
        stored = slosh.open(path, read_only=True, n_jobs=1)
        asked: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
            "LadderSearch": (lambda query: ladder.search(query, K), [vector[None] for vector in vectors]),
            "SetIndex in memory": (lambda query: index.search(query, K), list(test)),
            "SetIndex in a folder": (lambda query: stored.search(query, K), list(test)),
        }
        totals: dict[str, float] = {}
        for name, (call, queries) in asked.items():
            time_each(call, queries)  # the first ones calibrate, and read ids and metadata
            totals[name] = min(median(time_each(call, queries)) for _ in range(PASSES))
        stages, sqlite = Stages(), floor(path)
        stages.watch()
        parts = {name: stages.measure(call, queries) for name, (call, queries) in asked.items()}
        stored.close()
    return {"totals": totals, "stages": parts, "sqlite": sqlite}


def compare_here(name: str, n_sets: int, rounds: int) -> list[dict[str, Any]]:
    """Measure LadderSearch and FAISS over the same vectors, in this process: a line for each recall."""
    import faiss
    import numpy as np

    import search_data
    from slosh.evaluate import recall_at_k
    from slosh.search import LadderSearch

    faiss.omp_set_num_threads(1)
    collection = search_data.mnist(n_sets, N_QUERIES, name)
    vectors, queries = (np.ascontiguousarray(each, np.float32) for each in (collection.vectors, collection.queries))
    each = [query[None] for query in queries]
    flat = faiss.IndexFlatL2(vectors.shape[1])
    flat.add(vectors)
    truth, ladder = flat.search(queries, K)[1], LadderSearch(n_jobs=1)
    ladder.add(vectors)
    peers = {}
    for kind in PEERS:
        peers[kind] = faiss.index_factory(vectors.shape[1], kind)
        peers[kind].train(vectors)
        peers[kind].add(vectors)

    def reached(rows: Any) -> float:
        return float(np.mean(recall_at_k(rows, truth)))

    def probing(kind: str, probes: int) -> Callable[[Any], Any]:
        def search(some: Any) -> Any:
            peers[kind].nprobe = probes
            return peers[kind].search(some, K)[1]

        return search

    lines = []
    for recall in RECALLS:
        ours: Callable[[Any], Any] = lambda some, recall=recall: ladder.search(some, K, recall=recall).rows  # noqa: E731
        found = reached(ours(queries))
        runs = {"LadderSearch": ours}
        for kind in PEERS:
            enough = (n for n in range(1, MOST_PROBES + 1) if reached(probing(kind, n)(queries)) >= found)
            if (probes := next(enough, None)) is not None:
                runs[f"{kind}, {probes} probes"] = probing(kind, probes)
        times: dict[str, list[tuple[float, float]]] = {run: [] for run in runs}
        for _ in range(rounds):
            for run, search in runs.items():
                batch = min(time_each(search, [queries] * PASSES))
                times[run].append((median(time_each(search, each)), 1e6 * batch / len(queries)))
        best = {run: [min(column) for column in zip(*rows, strict=True)] for run, rows in times.items()}
        one, part = best.pop("LadderSearch")
        line: dict[str, Any] = {"asked": recall, "recall": found, "one": one, "part": part, "peer": "none"}
        if best:
            line["peer"] = min(best, key=lambda run: best[run][0])
            line["peer_one"], line["peer_part"] = best[line["peer"]]
        lines.append(line)
    return lines


def print_peers(lines: list[dict[str, Any]]) -> None:
    """Print what `compare_here` measured."""
    print(f"{'asked':>6}{'recall':>8}{'one query':>12}{'of a batch':>12}{'FAISS: one':>14}{'of a batch':>12}  setting")
    for line in lines:
        ours = f"{line['asked']:6}{line['recall']:8.4f}{line['one']:9.1f} us{line['part']:9.1f} us"
        theirs = f"{line['peer_one']:11.1f} us{line['peer_part']:9.1f} us" if "peer_one" in line else " " * 26
        print(f"{ours}{theirs}  {line['peer']}")


def measure_tree(source: Path, *about: Any, beside: bool = False) -> Any:
    """Run all measurements, or those beside FAISS, in a fresh process with this source tree."""
    given = ["--compare", json.dumps(about)] if beside else ["--measure", json.dumps([str(source), *about])]
    command = [sys.executable, __file__, *given]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{source}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def print_tables(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the median of each figure over the rounds, a column for each tree."""

    def line(name: str, of: Callable[[dict[str, Any]], float]) -> None:
        cells = [statistics.median(map(of, rounds)) for rounds in results.values()]
        print(f"{name:28}" + "".join(f"{cell:9.1f} us" for cell in cells))

    print(f"{'':28}" + "".join(f"{tree:>12}" for tree in results))
    first = next(iter(results.values()))[0]
    for case in first["totals"]:
        line(f"{case}, p50", lambda found, case=case: found["totals"][case])
    for case in first["stages"]:
        print(f"\nstages of {case}")
        for stage in first["stages"][case]:
            if any(found["stages"][case][stage] for rounds in results.values() for found in rounds):
                line(f"  {stage}", lambda found, case=case, stage=stage: found["stages"][case][stage])
    print()
    line("SQLite alone", lambda found: found["sqlite"])


def main() -> None:
    """Measure one tree or two, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("new", type=Path, nargs="?", help="the source tree to measure")
    parser.add_argument("old", type=Path, nargs="?", help="the source tree to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", type=int, default=60_000, help="stored sets")
    parser.add_argument("--slices", type=int, default=64)
    parser.add_argument("--beside-faiss", metavar="VECTORS", help="vectors to compare LadderSearch with FAISS by")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--compare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compare:
        print(json.dumps(compare_here(*json.loads(options.compare))))
        return
    if options.measure:
        print(json.dumps(measure_here(*json.loads(options.measure))))
        return
    if options.new is None:
        parser.error("pass the source tree")
    if options.beside_faiss:
        about = options.beside_faiss, options.sets, options.rounds
        print(f"{options.sets:,} vectors {options.beside_faiss}, k = {K}, one thread, wall-clock")
        print_peers(measure_tree(options.new.resolve(), *about, beside=True))
        return
    trees = {name: path.resolve() for name, path in (("old", options.old), ("new", options.new)) if path is not None}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for number in range(options.rounds):
        for tree in list(trees)[:: 1 if number % 2 == 0 else -1]:
            results[tree].append(measure_tree(trees[tree], options.sets, options.slices))
    print(f"{options.sets:,} sets, {options.slices} slices of {N_QUANTILES} quantiles, k = {K}, one thread, wall-clock")
    print_tables(results)


if __name__ == "__main__":
    main()
