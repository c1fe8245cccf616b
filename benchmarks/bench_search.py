"""The searches of slosh beside FAISS and usearch, one thread, one run: `make bench-search`.

On MNIST's 60,000 sets and on about a million made of them (search_data.py), D = 1024: queries per second, recall@10
against `ExactSearch`, latency of one query, bytes a set, time to build. Every method is a function of the table METHODS
that builds it and names its settings. The settings of a method are timed in turns, several rounds, together with the
flat scan of 1024-bit codes (FAISS `IndexBinaryFlat`), the yardstick: each ratio compares times of the same minute.

Times are CPU seconds of this process, best of the rounds; a hidden second thread would count twice. The time to embed a
query is in none of them, except in certified search, which takes sets. FAISS's binary flat index gets its query
codes for nothing. What is measured is written at once; `--missing` goes on where an earlier run was stopped.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and FAISS are imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import copy
import gc
import json
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import usearch
from numpy.typing import NDArray
from usearch.index import Index as UsearchIndex

import search_data
import slosh
import slosh.search
from machine import cpu
from search_data import Collection
from search_report import CERTIFIED, FLOAT_SCAN, LADDER, YARDSTICK, goals
from slosh.evaluate import recall_at_k
from slosh.hash import SignHash
from slosh.native import kernel
from slosh.rank import sliced_wasserstein

Array = NDArray[Any]
ROOT = Path(__file__).resolve().parents[1]
K, BITS = 10, 1024
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
CHUNK, LEAST_BATCH = 50_000, 400  # vectors given to an index at a time, queries timed at a time


class Skipped(Exception):
    """A method that cannot be measured, and why."""


@dataclass
class Level:
    """One setting of a method: `search` finds the K nearest of queries[part] and returns their rows."""

    name: str
    search: Callable[[slice], Any]


@dataclass
class Built:
    """What a method's function gives: its settings, the size of its index, and anything worth knowing about it."""

    levels: list[Level]
    size: Callable[[], int]
    note: str = ""
    facts: Callable[[], dict[str, Any]] = dict  # asked after the searches
    beside: Callable[[], list[Level]] = list  # timed in the same rounds, for a ratio
    truth: Callable[[], Array] | None = None  # of the first queries, where it is not what ExactSearch finds
    build_seconds: float | None = None  # where it was not built in this run


@dataclass
class Bench:
    """A collection, what is true about it, and what several methods need."""

    data: Collection
    cache: Path
    rounds: int
    build_limit: float

    @property
    def vectors(self) -> Array:
        return self.data.vectors

    @property
    def queries(self) -> Array:
        return self.data.queries

    @property
    def dim(self) -> int:
        return int(self.data.queries.shape[1])

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """The vectors in pieces, as arrays in memory."""
        for first in range(0, len(self.data), CHUNK):
            yield first, np.array(self.vectors[first : first + CHUNK])

    def sample(self, n: int) -> Array:
        rows = np.random.RandomState(0).permutation(len(self.data))[:n]
        return np.array(self.vectors[np.sort(rows)])

    @cached_property
    def truth(self) -> Array:
        """The K nearest rows of each query, by ExactSearch; kept in the cache."""
        path = self.cache / f"truth-{self.data.key}-{search_data.digest(self.queries)}-{K}.npy"
        if not path.exists():
            search = slosh.search.ExactSearch(n_jobs=1)
            search.add(self.vectors)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, search.search(self.queries, K).rows)
        return np.asarray(np.load(path))

    @cached_property
    def hash(self) -> SignHash:
        return SignHash(BITS).fit(self.vectors)

    @cached_property
    def codes(self) -> Array:
        return np.concatenate([self.hash.transform(chunk) for _, chunk in self.chunks()])

    @cached_property
    def query_codes(self) -> Array:
        return np.asarray(self.hash.transform(self.queries))

    @cached_property
    def yardstick(self) -> Level:
        index = faiss.IndexBinaryFlat(BITS)
        index.add(self.codes)
        return Level(YARDSTICK, lambda part: index.search(self.query_codes[part], K)[1])


# -- the searches of slosh ---------------------------------------------------------------------------------------------


def need(name: str) -> Any:
    """A class of slosh.search."""
    if (found := getattr(slosh.search, name, None)) is None:
        raise Skipped(f"slosh.search has no {name}")
    return found


def ours(bench: Bench, search: Any, recalls: tuple[float | None, ...]) -> Built:
    """One of our searches, with the recalls it is asked for; None is its default."""
    search.add(bench.vectors)
    if hasattr(search, "train"):
        search.train()

    def level(recall: float | None) -> Level:
        name = "default" if recall is None else f"recall={recall:g}"
        return Level(name, lambda part: search.search(bench.queries[part], K, recall=recall))

    def size() -> int:
        return sum(search.info()["bytes"].values())

    return Built([level(recall) for recall in recalls], size, facts=lambda: {"info": plain(search.info())})


def exact(bench: Bench) -> Built:
    return ours(bench, need("ExactSearch")(n_jobs=1), (None,))


def hamming(bench: Bench) -> Built:
    """Codes alone, and with the vectors for a re-rank of the best: 100 of them, or as many as a recall takes."""
    built = ours(bench, need("HammingSearch")(SignHash(BITS), rerank=100, n_jobs=1), (None, *LEVELS[:-1]))
    codes = need("HammingSearch")(SignHash(BITS), n_jobs=1)
    codes.add(bench.vectors)
    built.levels.insert(0, Level("codes alone", lambda part: codes.search(bench.queries[part], K)))
    built.note = "the queries are coded in the time; memory with the vectors for the re-rank, 128 bytes a set without"
    return built


def lsh(bench: Bench) -> Built:
    return ours(bench, need("LSHSearch")(n_jobs=1), LEVELS[:-1])


def ladder(bench: Bench) -> Built:
    return ours(bench, need(LADDER)(n_jobs=1), LEVELS)


def certified(bench: Bench) -> Built:
    """The true nearest by the sliced distance. A few queries are compared with all sets one by one, from the points."""
    model, sets = copy.copy(bench.data.model).set_params(n_jobs=1), bench.data.query_sets
    search = need("SetSearch")(model, need(LADDER)(n_jobs=1), n_jobs=1)
    for batch in bench.data.batches():
        search.add(batch)

    def size() -> int:
        about = search.info()
        return sum(about["bytes"].values()) + sum(about["search"]["bytes"].values())

    def truth() -> Array:
        few = sets[: 20 if len(bench.data) <= 200_000 else 2]
        found = [[sliced_wasserstein(x, batch, slices=model.slices_) for x in few] for batch in bench.data.batches()]
        return np.argsort(np.concatenate(found, axis=1), axis=1, kind="stable")[:, :K]

    def float_scan() -> list[Level]:
        index = fill(faiss.IndexFlatL2(bench.dim), bench)
        return [Level(FLOAT_SCAN, lambda part: index.search(bench.queries[part], K)[1])]

    levels = [Level("proved", lambda part: search.search(sets[part], K, certify=True))]
    note = "takes sets, and embeds them; recall of the ten nearest by the sliced distance, of a few queries"
    return Built(levels, size, note, beside=float_scan, truth=truth)


# -- FAISS and usearch -------------------------------------------------------------------------------------------------


def faiss_size(index: Any) -> int:
    """Bytes of the index as FAISS writes it."""
    count = 0

    def add(piece: bytes) -> None:
        nonlocal count
        count += len(piece)

    write = faiss.write_index_binary if isinstance(index, faiss.IndexBinary) else faiss.write_index
    write(index, faiss.BufferedIOWriter(faiss.PyCallbackIOWriter(add), 1 << 20))
    return count


def fill(index: Any, bench: Bench) -> Any:
    for _, chunk in bench.chunks():
        index.add(chunk)
    return index


def faiss_built(index: Any, bench: Bench, settings: dict[str, Callable[[], None]], note: str = "") -> Built:
    """A FAISS index; a setting is a function that sets it, which takes no time."""

    def level(name: str, choose: Callable[[], None]) -> Level:
        def search(part: slice) -> Array:
            choose()
            return np.asarray(index.search(bench.queries[part], K)[1])

        return Level(name, search)

    return Built([level(*setting) for setting in settings.items()], lambda: faiss_size(index), note)


def flat(bench: Bench) -> Built:
    index = fill(faiss.IndexFlatL2(bench.dim), bench)
    return faiss_built(index, bench, {"scan": lambda: None}, "batches by |x|^2 - 2xy + |y|^2 in float32, which rounds")


def faiss_lsh(bench: Bench) -> Built:
    index = faiss.IndexLSH(bench.dim, BITS, True, True)
    index.train(bench.sample(50_000))
    return faiss_built(fill(index, bench), bench, {"scan": lambda: None}, "rotated, thresholds at the medians")


def binary_flat(bench: Bench) -> Built:
    index = faiss.IndexBinaryFlat(BITS)
    index.add(bench.codes)
    level = Level("scan", lambda part: index.search(bench.query_codes[part], K)[1])
    return Built([level], lambda: faiss_size(index), "codes of slosh's SignHash; coding the queries is not in the time")


def refined(base: Any, store: Any, bench: Bench, probes: tuple[int, ...], factors: tuple[int, ...], note: str) -> Built:
    """An inverted-file index whose best `factor * K` are compared again by their vectors; factor 0: they are not."""
    index = faiss.IndexRefineFlat(base) if store is None else faiss.IndexRefine(base, store)
    index.train(bench.sample(200_000))
    fill(index, bench)
    lists = faiss.extract_index_ivf(base)

    def level(n_probes: int, factor: int) -> Level:
        def search(part: slice) -> Array:
            lists.nprobe = n_probes
            if factor == 0:
                return np.asarray(base.search(bench.queries[part], K)[1])
            index.k_factor = factor
            return np.asarray(index.search(bench.queries[part], K)[1])

        return Level(f"nprobe {n_probes}, " + (f"best {factor * K}" if factor else "not re-ranked"), search)

    levels = [level(n, factor) for n in probes if n <= lists.nlist for factor in factors]
    return Built(levels, lambda: faiss_size(index), note)


def n_lists(bench: Bench, many: int) -> int:
    """About 4 sqrt(n) lists (256 for 60,000, as in the design), at most `many`: training them is not for nothing."""
    return int(min(many, 256 if len(bench.data) <= 100_000 else 4096, max(4, len(bench.data) // 64)))


def rabitq(bench: Bench) -> Built:
    lists, dim = n_lists(bench, 2048), bench.dim
    base = faiss.index_factory(dim, f"HR{dim},IVF{lists},RaBitQ")
    faiss.extract_index_ivf(base).cp.max_points_per_centroid = 64
    note = f"Hadamard rotation, {lists} lists, one bit a number; float32 vectors for the re-rank"
    return refined(base, None, bench, (2, 4, 8, 16, 32, 64, 128), (0, 2, 3, 10), note)


def prefix(bench: Bench, bits: int) -> Built:
    lists, dim = n_lists(bench, 4096), bench.dim
    base = faiss.index_factory(dim, f"PCA16,IVF{lists},Flat")
    faiss.extract_index_ivf(base).cp.max_points_per_centroid = 64
    store = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16) if bits == 16 else None
    note = f"{lists} lists over 16 principal components; float{bits} vectors for the re-rank"
    return refined(base, store, bench, (1, 2, 4, 8, 16, 32, 64, 128), (2, 3, 5, 10), note)


def grow(bench: Bench, add: Callable[[int, Array], None]) -> None:
    """Fills a graph, unless it can be seen that it would take too long: a vector never takes less time than before."""
    spent, n = 0.0, len(bench.data)
    for first, chunk in bench.chunks():
        start = time.process_time()
        add(first, chunk)
        last = time.process_time() - start
        spent += last
        rest = last / len(chunk) * (n - first - len(chunk))
        if spent + rest > bench.build_limit:
            done = first + len(chunk)
            raise Skipped(
                f"building takes too long: {done:,} of {n:,} vectors were in after {spent / 60:.1f} minutes, the rest "
                f"would take at least {rest / 60:.0f} more (--build-limit {bench.build_limit:.0f} seconds)"
            )


def kept_graph(bench: Bench, name: str, make: Callable[[], Any], save: Any, load: Any) -> tuple[Any, float | None]:
    """A graph and, if it comes from the cache, the seconds its building took. Only graphs of large collections."""
    path = bench.cache / f"{name}-{bench.data.key}"
    seconds = path.with_suffix(".seconds")
    if seconds.exists():
        return load(str(path)), float(seconds.read_text())
    start = time.process_time()
    graph = make()
    if len(bench.data) > 200_000:
        spent = time.process_time() - start
        save(graph, str(path))
        seconds.write_text(f"{spent:.3f}\n")
    return graph, None


def hnsw(bench: Bench) -> Built:
    m, construction = 32, 40

    def make() -> Any:
        index = faiss.IndexHNSWFlat(bench.dim, m)
        index.hnsw.efConstruction = construction
        grow(bench, lambda _, chunk: index.add(chunk))
        return index

    index, seconds = kept_graph(bench, f"hnsw{m}-{construction}", make, faiss.write_index, faiss.read_index)
    efs = (10, 16, 24, 32, 64, 128, 256)
    settings = {f"efSearch {ef}": lambda ef=ef: setattr(index.hnsw, "efSearch", ef) for ef in efs}
    built = faiss_built(index, bench, settings, f"M = {m}, efConstruction = {construction}")
    built.build_seconds = seconds
    return built


def usearch_graph(bench: Bench) -> Built:
    construction = 128 if len(bench.data) <= 200_000 else 40

    def make() -> Any:
        graph = UsearchIndex(ndim=bench.dim, metric="l2sq", dtype="f16", expansion_add=construction)
        grow(bench, lambda first, chunk: graph.add(np.arange(first, first + len(chunk)), chunk, threads=1))
        return graph

    graph, seconds = kept_graph(
        bench, f"usearch-{construction}", make, lambda graph, path: graph.save(path), UsearchIndex.restore
    )

    def level(expansion: int) -> Level:
        def search(part: slice) -> Array:
            graph.expansion_search = expansion
            return np.asarray(graph.search(bench.queries[part], K, threads=1).keys).reshape(-1, K)

        return Level(f"expansion {expansion}", search)

    note = f"float16, connectivity 16, expansion {construction} at building"
    levels = [level(expansion) for expansion in (10, 16, 32, 64, 128, 256)]
    return Built(levels, lambda: graph.serialized_length, note, build_seconds=seconds)


METHODS: dict[str, Callable[[Bench], Built]] = {
    YARDSTICK: binary_flat,
    FLOAT_SCAN: flat,
    "FAISS LSH": faiss_lsh,
    "FAISS IVF RaBitQ": rabitq,
    "FAISS IVF prefix": lambda bench: prefix(bench, 32),
    "FAISS IVF prefix, 16-bit": lambda bench: prefix(bench, 16),
    "ExactSearch": exact,
    "HammingSearch": hamming,
    "LSHSearch": lsh,
    LADDER: ladder,
    CERTIFIED: certified,
    "FAISS HNSW": hnsw,
    "usearch": usearch_graph,
}
GROWTH_METHODS = (YARDSTICK, FLOAT_SCAN, "ExactSearch", "LSHSearch", LADDER)


# -- measuring ---------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """For JSON."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def recall(found: Any, truth: Array) -> float:
    """Recall@K of as many queries as the truth is known of."""
    rows = np.asarray(found.rows if isinstance(found, slosh.search.Result) else found)
    return round(float(np.mean(recall_at_k(rows[: len(truth)], truth))), 5)


def once(search: Callable[[slice], Any], part: slice) -> tuple[float, float]:
    """CPU and wall-clock seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    search(part)
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(method: Callable[[Bench], Built], bench: Bench) -> dict[str, Any]:
    """Builds a method and measures its settings in turns."""
    n = bench.data.n_queries
    start = time.process_time()
    built = method(bench)
    seconds = time.process_time() - start
    beside = built.beside()
    truth = bench.truth if built.truth is None else built.truth()
    timed = [*built.levels, bench.yardstick, *beside]
    rows: list[dict[str, Any]] = []
    batches: list[slice] = []
    for level in timed:
        start = time.process_time()
        level.search(slice(0, min(100, n)))  # what is learnt at the first search, is learnt now
        first = time.process_time() - start
        start = time.process_time()
        found = level.search(slice(0, n))
        spent = time.process_time() - start
        # Batches of half a second, but never small ones: FAISS's float scan becomes a matrix product, and 7 times as
        # fast, from 125 queries on (128,000 numbers).
        batches.append(slice(0, int(np.clip(n * 0.5 / max(spent, 1e-6), min(LEAST_BATCH, n), n))))
        row: dict[str, Any] = {"level": level.name, "first_s": round(first, 4)}
        if level in built.levels:
            row["recall"] = recall(found, truth[:n])
            if built.truth is None and n < len(bench.queries):
                row["recall_known_maps"] = recall(level.search(slice(n, None)), truth[n:])
        if isinstance(found, slosh.search.Result):
            stats = found.stats
            row["promised"] = stats.recall
            row["scanned"] = round(float(np.mean(stats.scanned)), 1)
            row["candidates"] = round(float(np.mean(stats.candidates)), 1)
            if stats.full_distances is not None:
                row["full_distances"] = round(float(np.mean(stats.full_distances)), 1)
        rows.append(row)
    turns = range(bench.rounds)
    times = [[once(level.search, part) for level, part in zip(timed, batches, strict=True)] for _ in turns]
    for number, (row, part) in enumerate(zip(rows, batches, strict=True)):
        row["batch"] = part.stop
        row["qps"] = round(part.stop / min(turn[number][0] for turn in times), 2)
        row["wall_qps"] = round(part.stop / min(turn[number][1] for turn in times), 2)
    for row, level in zip(rows[: len(built.levels)], built.levels, strict=True):
        alone, spent = [], 0.0
        for i in range(min(n, 20 * bench.rounds)):
            alone.append(once(level.search, slice(i, i + 1))[0])
            spent += alone[-1]
            if spent > 1 and i >= 4:
                break
        row["p50_us"] = round(1e6 * float(np.median(alone)), 1)
        row["x_yardstick"] = round(row["qps"] / rows[len(built.levels)]["qps"], 3)
    result: dict[str, Any] = {
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "build_s": round(seconds if built.build_seconds is None else built.build_seconds, 2),
        "bytes_per_set": round(built.size() / len(bench.data), 1),
        "note": built.note,
        "yardstick_qps": rows[len(built.levels)]["qps"],
        "levels": rows[: len(built.levels)],
        **built.facts(),
    }
    if beside:
        others = rows[len(built.levels) + 1 :]
        result["beside_qps"] = {level.name: row["qps"] for level, row in zip(beside, others, strict=True)}
    return result


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu(), "cores": os.cpu_count(), "threads": 1, "kernel": kernel.name(),
        "python": platform.python_version(), "numpy": np.__version__, "faiss": faiss.__version__,
        "faiss_simd": faiss.SIMDConfig.get_level_name() if hasattr(faiss, "SIMDConfig") else "",
        "usearch": usearch.__version__, "slosh": slosh.__version__,
    }  # fmt: skip


class Report:
    """The JSON file. It is read again before each change, so that two runs can fill one file."""

    def __init__(self, path: Path, keep: bool, quick: bool) -> None:
        self.path, self.started = path, f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        results: dict[str, Any] = {"sizes": {}, "growth": {}}
        if keep and path.exists():
            results = self.read()
            if results["machine"] != plain(machine()):
                raise SystemExit(f"{path} is of another machine or other versions: measure everything anew")
        command = shlex.join(["python", "benchmarks/bench_search.py", *sys.argv[1:]])
        results.update(machine=machine(), date=f"{datetime.now():%Y-%m-%d}", command=command, quick=quick)
        self.write(results)

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text()))

    def write(self, results: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        unfinished.replace(self.path)

    def measured(self, kind: str, size: int) -> set[str]:
        methods = self.read()[kind].get(str(size), {}).get("methods", {})
        return {name for name, result in methods.items() if "levels" in result}

    def add(self, kind: str, size: int, bench: Bench, name: str, result: dict[str, Any]) -> None:
        results = self.read()
        section = results[kind].setdefault(str(size), {"methods": {}})
        section.update(data=bench.data.data, rows=len(bench.data), queries=bench.data.n_queries, dim=bench.dim)
        methods = {**section["methods"], name: {"run": self.started, **result}}
        section["methods"] = {name: methods[name] for name in METHODS if name in methods}
        self.write(results)


def run(bench: Bench, names: list[str], write: Callable[[str, dict[str, Any]], None]) -> None:
    """Measures methods one after the other, each with its memory freed before the next; writes after each."""
    print(f"\n{len(bench.data):,} sets: {bench.data.data}; {bench.data.n_queries} queries, D = {bench.dim}", flush=True)
    for name in names:
        try:
            result = measure(METHODS[name], bench)
        except Skipped as reason:
            result = {"date": f"{datetime.now():%Y-%m-%d %H:%M}", "skipped": str(reason)}
            print(f"{name}: {reason}", flush=True)
        result["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)  # so far
        write(name, result)
        gc.collect()
        if "skipped" in result:
            continue
        about = f"built in {result['build_s']:.1f} s, {result['bytes_per_set']:,.0f} bytes a set"
        print(f"{name}: {about}" + (f"; {result['note']}" if result["note"] else ""))
        for row in result["levels"]:
            extra = f", {row['full_distances']:.1f} full distances" if "full_distances" in row else ""
            if "recall_known_maps" in row:
                extra += f"; of known maps {row['recall_known_maps']:.4f}"
            print(
                f"  {row['level']:24} recall {row['recall']:.4f} {row['qps']:10,.0f} queries/s "
                f"({row['x_yardstick']:7.2f} x binary flat)  one alone {row['p50_us']:9,.0f} us{extra}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[60_000, 1_000_000],
                        help="up to 60000: sets of MNIST; more: mapped sets, 1000000 being all 1,020,000")  # fmt: skip
    parser.add_argument("--growth", type=int, nargs="*", default=[10_000, 100_000],
                        help="random parts of the mapped sets, for how times grow")  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(METHODS), help=", ".join(METHODS))
    parser.add_argument("--missing", action="store_true", help="only what --out does not hold yet")
    parser.add_argument("--quick", action="store_true", help="a few thousand sets: only to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build-limit", type=float, default=600, help="seconds that building a graph may take")
    parser.add_argument("--cache", type=Path, default=search_data.CACHE, help="for 4.2 GB of vectors, and for graphs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "search.json")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)

    report = Report(options.out, bool(options.only or options.missing), options.quick)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))

    n_train, n_maps, n_queries = search_data.N_TRAIN, search_data.N_MAPS, search_data.N_QUERIES
    if options.quick:
        n_train, n_maps, n_queries = 1200, 2, 50
        options.sizes, options.growth, options.rounds = [n_train, n_train * n_maps], [], 1

    def collection(size: int, growth: bool) -> Collection:
        if size <= n_train and not growth:
            return search_data.mnist(size, n_queries)
        everything = search_data.million(n_maps, cache=options.cache, n_train=n_train, n_queries=n_queries)
        return everything if size >= min(1_000_000, n_train * n_maps) else everything.subset(size)

    for kind, sizes, among in (("sizes", options.sizes, METHODS), ("growth", options.growth, GROWTH_METHODS)):
        for size in sizes:
            names = [name for name in METHODS if name in among and name in (options.only or METHODS)]
            if options.missing:
                names = [name for name in names if name not in report.measured(kind, size)]
            if names:
                bench = Bench(collection(size, kind == "growth"), options.cache, options.rounds, options.build_limit)
                run(bench, names, partial(report.add, kind, size, bench))
                del bench
                gc.collect()

    print("\nTo reach:" + (" (at this size it means nothing)" if options.quick else ""))
    for reached, goal, found in goals(report.read()):
        print({True: "  pass  ", False: "  FAIL  ", None: "  -     "}[reached] + f"{goal}: {found}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
