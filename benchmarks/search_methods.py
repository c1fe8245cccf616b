"""The methods of `make bench-search`: slosh's searches, FAISS and usearch, each built over the same vectors.

METHODS maps a name to a function that takes a `Bench` and returns what it built, with one or more settings to time.
Import it only after the environment limits the libraries to one thread (`bench_search.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from usearch.index import Index as UsearchIndex

import search_data
import slosh
from search_data import Collection
from search_report import CERTIFIED, FLOAT_SCAN, LADDER, YARDSTICK
from slosh.hash import SignHash
from slosh.rank import sliced_wasserstein
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch

Array = NDArray[Any]
K, BITS = 10, 1024
RECALLS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
VECTORS_PER_CHUNK = 50_000
TRUTH_QUERIES, TRUTH_QUERIES_IF_LARGE = 20, 2
"""Queries of certified search that are compared with all sets, in a small and in a large collection."""
LARGE = 200_000
"""Sets of a collection whose graphs are kept in the cache."""


class Skipped(Exception):
    """A method cannot be measured; the message says why."""


@dataclass
class Level:
    """One setting of a method: `search` returns the rows of the K nearest neighbours of queries[part]."""

    name: str
    search: Callable[[slice], Any]


@dataclass
class Built:
    """A method that was built: its settings, the size of its index, and anything worth knowing about it."""

    levels: list[Level]
    size: Callable[[], int]
    note: str = ""
    facts: Callable[[], dict[str, Any]] = dict  # called after the searches
    beside: Callable[[], list[Level]] = list  # timed in the same rounds, for a ratio
    truth: Callable[[], Array] | None = None  # rows of the first queries, if not those of ExactSearch
    build_seconds: float | None = None  # if it was built in an earlier run


@dataclass
class Bench:
    """A collection, its true neighbours, and what several methods share."""

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
        """Yield the vectors in chunks, as arrays in memory, with the number of the first one."""
        for first in range(0, len(self.data), VECTORS_PER_CHUNK):
            yield first, np.array(self.vectors[first : first + VECTORS_PER_CHUNK])

    def sample(self, n: int) -> Array:
        """Return n random vectors, to train on."""
        rows = np.random.RandomState(0).permutation(len(self.data))[:n]
        return np.array(self.vectors[np.sort(rows)])

    @cached_property
    def truth(self) -> Array:
        """The K nearest rows of each query by ExactSearch, kept in the cache."""
        path = self.cache / f"truth-{self.data.key}-{search_data.digest(self.queries)}-{K}.npy"
        if not path.exists():
            search = ExactSearch(n_jobs=1)
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


def to_json(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, dict):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


# -- slosh -------------------------------------------------------------------------------------------------------------


def slosh_search(bench: Bench, search: Any, recalls: tuple[float | None, ...]) -> Built:
    """Build one of slosh's searches, with a setting for each recall; None is its default."""
    search.add(bench.vectors)
    if hasattr(search, "train"):
        search.train()

    def level(recall: float | None) -> Level:
        name = "default" if recall is None else f"recall={recall:g}"
        return Level(name, lambda part: search.search(bench.queries[part], K, recall=recall))

    def size() -> int:
        return sum(search.info()["bytes"].values())

    return Built([level(recall) for recall in recalls], size, facts=lambda: {"info": to_json(search.info())})


def exact(bench: Bench) -> Built:
    return slosh_search(bench, ExactSearch(n_jobs=1), (None,))


def hamming(bench: Bench) -> Built:
    """Build codes alone, and codes with vectors to re-rank the best 100 or as many as a recall takes."""
    built = slosh_search(bench, HammingSearch(SignHash(BITS), rerank=100, n_jobs=1), (None, *RECALLS[:-1]))
    codes = HammingSearch(SignHash(BITS), n_jobs=1)
    codes.add(bench.vectors)
    built.levels.insert(0, Level("codes alone", lambda part: codes.search(bench.queries[part], K)))
    built.note = "times include coding the queries; the vectors for the re-rank are counted, codes take 128 bytes a set"
    return built


def lsh(bench: Bench) -> Built:
    return slosh_search(bench, LSHSearch(n_jobs=1), RECALLS[:-1])


def ladder(bench: Bench) -> Built:
    return slosh_search(bench, LadderSearch(n_jobs=1), RECALLS)


def certified(bench: Bench) -> Built:
    """Build an index in memory for certified search, which finds the true nearest sets by the sliced distance.

    For its recall a few queries are compared with all sets, from the points.
    """
    model, sets = bench.data.model, bench.data.query_sets
    index = slosh.SetIndex.create(None, sets.dim, embedding=model, search=LadderSearch(n_jobs=1), n_jobs=1)
    first = 0
    for batch in bench.data.batches():
        index.add(batch, ids=[str(row) for row in range(first, first + len(batch))])
        first += len(batch)

    def size() -> int:
        return sum(index.info()["memory_bytes"].values())

    def truth() -> Array:
        few = sets[: TRUTH_QUERIES if len(bench.data) <= LARGE else TRUTH_QUERIES_IF_LARGE]
        found = [[sliced_wasserstein(x, batch, slices=model.slices_) for x in few] for batch in bench.data.batches()]
        return np.argsort(np.concatenate(found, axis=1), axis=1, kind="stable")[:, :K]

    def float_scan() -> list[Level]:
        flat_index = fill(faiss.IndexFlatL2(bench.dim), bench)
        return [Level(FLOAT_SCAN, lambda part: flat_index.search(bench.queries[part], K)[1])]

    levels = [Level("SetIndex in memory, certify=True", lambda part: index.search(sets[part], K, certify=True))]
    note = "takes sets, and embeds them; recall of the ten nearest by the sliced distance, for a few queries"
    return Built(levels, size, note, beside=float_scan, truth=truth)


# -- FAISS and usearch -------------------------------------------------------------------------------------------------


def faiss_size(index: Any) -> int:
    """Return the bytes of the index as FAISS writes it."""
    count = 0

    def add(piece: bytes) -> None:
        nonlocal count
        count += len(piece)

    write = faiss.write_index_binary if isinstance(index, faiss.IndexBinary) else faiss.write_index
    write(index, faiss.BufferedIOWriter(faiss.PyCallbackIOWriter(add), 1 << 20))
    return count


def fill(index: Any, bench: Bench) -> Any:
    """Add all vectors to an index and return it."""
    for _, chunk in bench.chunks():
        index.add(chunk)
    return index


def faiss_built(index: Any, bench: Bench, settings: dict[str, Callable[[], None]], note: str = "") -> Built:
    """Return a FAISS index with settings, each a function that applies it in no time."""

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
    return Built([level], lambda: faiss_size(index), "codes of slosh's SignHash; coding the queries is not timed")


def refined(base: Any, store: Any, bench: Bench, probes: tuple[int, ...], factors: tuple[int, ...], note: str) -> Built:
    """Build an inverted-file index whose best `factor * K` candidates are re-ranked by their vectors (0: none are)."""
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


def n_lists(bench: Bench, limit: int) -> int:
    """Return about 4 sqrt(n) lists (256 for 60,000), at most `limit`, because training them takes time."""
    return int(min(limit, 256 if len(bench.data) <= 100_000 else 4096, max(4, len(bench.data) // 64)))


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
    """Fill a graph; raise Skipped once it must take too long, as a vector never takes less time than those before."""
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
                f"building takes too long: {done:,} of {n:,} vectors were added in {spent / 60:.1f} minutes, the rest "
                f"would take at least {rest / 60:.0f} more (--build-limit {bench.build_limit:.0f} seconds)"
            )


def kept_graph(bench: Bench, name: str, make: Callable[[], Any], save: Any, load: Any) -> tuple[Any, float | None]:
    """Return a graph and, if it comes from the cache, the seconds it took to build. Only large graphs are cached."""
    path = bench.cache / f"{name}-{bench.data.key}"
    seconds = path.with_suffix(".seconds")
    if seconds.exists():
        return load(str(path)), float(seconds.read_text())
    start = time.process_time()
    graph = make()
    if len(bench.data) > LARGE:
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
    construction = 128 if len(bench.data) <= LARGE else 40

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

    note = f"float16, connectivity 16, expansion {construction} during the build"
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
