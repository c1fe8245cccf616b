"""The peers of `make bench-search`: FAISS, hnswlib, usearch and ScaNN, each built in several ways.

`peers` maps the name of each build to a function that builds it over the vectors of a `Bench`. Their settings are swept
in small steps, so that the best of them in hindsight is close to the best there is.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from search_methods import LARGE, Array, Bench, Built, K, Level, Skipped
from search_report import FLAT

TRAINING_SAMPLE, POINTS_PER_CENTROID = 200_000, 64
HIGHEST_PROBES, HIGHEST_EF = 0.5, 800
"""The part of the lists, and the candidates of a graph, at which a sweep ends."""


def steps(first: int, last: float, ratio: float = 1.2) -> list[int]:
    """Return whole numbers from first to last, each about `ratio` times the one before."""
    values = [first]
    while (following := max(values[-1] + 1, round(values[-1] * ratio))) <= last:
        values.append(following)
    return values


# -- FAISS -------------------------------------------------------------------------------------------------------------


def faiss_size(index: Any) -> int:
    """Return the bytes of the index as FAISS writes it."""
    count = 0

    def add(piece: bytes) -> None:
        nonlocal count
        count += len(piece)

    faiss.write_index(index, faiss.BufferedIOWriter(faiss.PyCallbackIOWriter(add), 1 << 20))
    return count


def fill(index: Any, bench: Bench) -> Any:
    """Add all vectors to an index and return it."""
    for _, chunk in bench.chunks():
        index.add(chunk)
    return index


def faiss_search(index: Any) -> Callable[[Array], Array]:
    return lambda queries: np.asarray(index.search(queries, K)[1])


def flat(bench: Bench) -> Built:
    index = fill(faiss.IndexFlatL2(bench.dim), bench)
    note = "batches by |x|^2 - 2xy + |y|^2 in float32, which rounds"
    return Built([[Level("scan", faiss_search(index), faiss_size(index))]], note)


def kept(bench: Bench, name: str, make: Callable[[], Any], save: Any, load: Any) -> tuple[Any, float]:
    """Return what `make` makes, from the cache if it is there, and then the CPU seconds that making it took."""
    path = bench.cache / f"{name}-{bench.data.key}"
    seconds = Path(f"{path}.seconds")
    if seconds.exists():
        return load(str(path)), float(seconds.read_text())
    start = time.process_time()
    made = make()
    spent = time.process_time() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    save(made, str(path))
    seconds.write_text(f"{spent:.3f}\n")
    return made, 0.0


def centroids(bench: Bench, n_lists: int, pca: int) -> tuple[Any, float]:
    """Return an index of the centroids of the lists, after a PCA or none, and the seconds if it was kept.

    Builds that divide the vectors in the same way share them.
    """

    def make() -> Any:
        sample = bench.sample(min(TRAINING_SAMPLE, POINTS_PER_CENTROID * n_lists))
        chain = faiss.index_factory(bench.dim, f"PCA{pca},Flat" if pca else "Flat")
        chain.train(sample)
        turned = chain.chain.at(0).apply(sample) if pca else sample
        clustering = faiss.Kmeans(pca or bench.dim, n_lists, niter=10, max_points_per_centroid=POINTS_PER_CENTROID)
        clustering.train(turned)
        (faiss.downcast_index(chain.index) if pca else chain).add(clustering.centroids)
        return chain

    return kept(bench, f"centroids{n_lists}-pca{pca}", make, faiss.write_index, faiss.read_index)


STORES: dict[str, Callable[[int], Any]] = {
    "float32": faiss.IndexFlatL2,
    "float16": lambda dim: faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16),
}


def inverted_lists(
    bench: Bench,
    n_lists: int,
    make: Callable[[Any, int, int], Any],
    *,
    pca: int = 0,
    rotate: bool = False,
    factors: tuple[float, ...] = (0,),
) -> Built:
    """Build inverted lists whose best `factor * K` candidates are re-ranked by their vectors (0: none are).

    `make` takes the quantiser, the length of the vectors in the lists, and the number of lists.
    """
    divided, seconds = centroids(bench, n_lists, pca)
    transform = divided.chain.at(0) if pca else None
    quantizer = faiss.downcast_index(divided.index) if pca else divided
    dim = pca or bench.dim
    if rotate:
        transform = faiss.HadamardRotation(dim)
        transform.train(np.zeros((1, dim), np.float32))
        turned = transform.apply(quantizer.reconstruct_n(0, n_lists))
        dim = int(transform.d_out)
        quantizer = faiss.IndexFlatL2(dim)
        quantizer.add(turned)
    lists = make(quantizer, dim, n_lists)
    base = lists if transform is None else faiss.IndexPreTransform(transform, lists)
    base.train(bench.sample(min(TRAINING_SAMPLE, POINTS_PER_CENTROID * n_lists)))
    fill(base, bench)
    stores = {kind: fill(make_store(bench.dim), bench) for kind, make_store in STORES.items()} if any(factors) else {}
    size = faiss_size(base)

    def chain(factor: float, store: str) -> list[Level]:
        index = faiss.IndexRefine(base, stores[store]) if factor else base
        if factor:
            index.k_factor = factor
        keep = (base, lists, quantizer, transform, stores, divided)  # FAISS does not own what it points to

        def choose(n_probes: int) -> None:
            keep[1].nprobe = n_probes

        total = size + (faiss_size(stores[store]) if factor else 0)
        rest = f", best {factor * K:.0f} in {store}" if factor else ""
        return [
            Level(f"nprobe {n}{rest}", faiss_search(index), total, partial(choose, n))
            for n in steps(1, max(2, n_lists * HIGHEST_PROBES))
        ]

    # float16 is faster; float32 reaches recalls that it does not.
    chains = [chain(factor, store) for factor in factors for store in (stores if factor else ("",))]
    return Built(chains, kept_seconds=seconds)


def ivf_flat(quantizer: Any, dim: int, n_lists: int) -> Any:
    return faiss.IndexIVFFlat(quantizer, dim, n_lists)


def ivf_sq8(quantizer: Any, dim: int, n_lists: int) -> Any:
    return faiss.IndexIVFScalarQuantizer(quantizer, dim, n_lists, faiss.ScalarQuantizer.QT_8bit)


def ivf_rabitq(quantizer: Any, dim: int, n_lists: int) -> Any:
    return faiss.IndexIVFRaBitQFastScan(quantizer, dim, n_lists)


def ivf_pq(n_codes: int) -> Callable[[Any, int, int], Any]:
    return lambda quantizer, dim, n_lists: faiss.IndexIVFPQFastScan(quantizer, dim, n_lists, n_codes, 4)


# -- graphs ------------------------------------------------------------------------------------------------------------


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


def faiss_graph(bench: Bench, m: int, construction: int, short: bool) -> Built:
    def make() -> Any:
        kind = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexHNSWSQ(bench.dim, kind, m) if short else faiss.IndexHNSWFlat(bench.dim, m)
        index.hnsw.efConstruction = construction
        index.train(bench.sample(50_000))
        grow(bench, lambda _, chunk: index.add(chunk))
        return index

    name = f"hnsw{'sq' if short else ''}{m}-{construction}"
    index, seconds = kept(bench, name, make, faiss.write_index, faiss.read_index)
    size = faiss_size(index)

    def level(ef: int) -> Level:
        return Level(f"efSearch {ef}", faiss_search(index), size, lambda: setattr(index.hnsw, "efSearch", ef))

    return Built([[level(ef) for ef in steps(K, HIGHEST_EF)]], f"efConstruction = {construction}", seconds)


def hnswlib_graph(bench: Bench, m: int, construction: int) -> Built:
    import hnswlib

    def make() -> Any:
        index = hnswlib.Index("l2", bench.dim)
        index.init_index(len(bench.data), ef_construction=construction, M=m)
        index.set_num_threads(1)
        grow(bench, lambda first, chunk: index.add_items(chunk, np.arange(first, first + len(chunk)), num_threads=1))
        return index

    def load(path: str) -> Any:
        index = hnswlib.Index("l2", bench.dim)
        index.load_index(path)
        index.set_num_threads(1)
        return index

    name = f"hnswlib{m}-{construction}"
    index, seconds = kept(bench, name, make, lambda index, path: index.save_index(path), load)

    def search(queries: Array) -> Array:
        return np.asarray(index.knn_query(queries, K, num_threads=1)[0]).astype(np.int64)

    size = index.index_file_size()
    levels = [Level(f"ef {ef}", search, size, partial(index.set_ef, ef)) for ef in steps(K, HIGHEST_EF)]
    return Built([levels], f"ef_construction = {construction}", seconds)


def usearch_graph(bench: Bench, construction: int, dtype: str) -> Built:
    from usearch.index import Index

    def make() -> Any:
        graph = Index(ndim=bench.dim, metric="l2sq", dtype=dtype, expansion_add=construction)
        grow(bench, lambda first, chunk: graph.add(np.arange(first, first + len(chunk)), chunk, threads=1))
        return graph

    name = f"usearch-{dtype}-{construction}"
    graph, seconds = kept(bench, name, make, lambda graph, path: graph.save(path), Index.restore)

    def search(queries: Array) -> Array:
        return np.asarray(graph.search(queries, K, threads=1).keys).reshape(-1, K).astype(np.int64)

    def level(expansion: int) -> Level:
        choose = partial(setattr, graph, "expansion_search", expansion)
        return Level(f"expansion {expansion}", search, graph.serialized_length, choose)

    note = f"connectivity 16, expansion {construction} during the build"
    return Built([[level(expansion) for expansion in steps(K, HIGHEST_EF)]], note, seconds)


# -- ScaNN -------------------------------------------------------------------------------------------------------------


def scann_lists(bench: Bench, n_lists: int, best: tuple[int, ...] = (20, 30, 50, 100)) -> Built:
    import scann

    builder = scann.scann_ops_pybind.builder(np.array(bench.vectors), K, "squared_l2").set_n_training_threads(1)
    builder = builder.tree(n_lists, 1, training_sample_size=min(TRAINING_SAMPLE, POINTS_PER_CENTROID * n_lists))
    searcher = builder.score_ah(2, anisotropic_quantization_threshold=float("nan")).reorder(best[0]).build()
    searcher.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        searcher.serialize(folder)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())

    def search(n_leaves: int, n_best: int, queries: Array) -> Array:
        if len(queries) == 1:
            return searcher.search(queries[0], K, n_best, n_leaves)[0][None]
        return np.asarray(searcher.search_batched(queries, K, n_best, n_leaves)[0])

    def chain(n: int) -> list[Level]:
        leaves = steps(1, max(2, n_lists * HIGHEST_PROBES))
        return [Level(f"{probes} leaves, best {n}", partial(search, probes, n), size) for probes in leaves]

    return Built([chain(n) for n in best], "4-bit codes of two dimensions, float32 vectors for the re-rank")


def peers(n: int, dim: int, avx2: bool = False) -> dict[str, Callable[[Bench], Built]]:
    """Return the builds of the peers for so many vectors of this length, the usually fast ones first.

    FAISS can be held to AVX2, the others cannot: held to it there are only FAISS's.
    """
    large = n > LARGE
    list_counts = (4096, 1024) if large else (256, 512, 1024) if n > 20_000 else (16,)
    prefixes = (dim // 2,) if dim <= 128 else (16, 32, 64)  # whitened vectors are as long in every direction
    codes = [(0, dim // 2), (0, dim)] if dim <= 128 else [(32, 32), (64, 32), (0, dim // 4)]
    few, many = (1.5, 2, 3, 5), (0, 2, 3, 5, 10)
    prefixed: dict[str, Callable[[Bench], Built]] = {}
    coded: dict[str, Callable[[Bench], Built]] = {}
    for count in list_counts:
        for pca in prefixes:
            lists = partial(inverted_lists, n_lists=count, pca=pca, factors=few)
            prefixed[f"FAISS PCA{pca} IVF{count}"] = partial(lists, make=ivf_flat)
    for count in (*list_counts, min(list_counts) // 2):  # its scans are so fast that fewer lists may be better
        for pca, width in codes:
            name = f"FAISS {f'PCA{pca} ' if pca else ''}IVF{count} PQ{width}x4 fast scan"
            lists = partial(
                inverted_lists, n_lists=count, pca=pca, factors=(3, 5, 10, 20, 50) if large else (2, 3, 5, 10, 20)
            )
            coded[name] = partial(lists, make=ivf_pq(width))
    builds = {FLAT: flat, **(coded | prefixed if dim <= 128 else prefixed | coded)}
    for count in list_counts:
        builds[f"FAISS IVF{count} flat"] = partial(inverted_lists, n_lists=count, make=ivf_flat)
    for count in list_counts:
        builds[f"FAISS IVF{count} SQ8"] = partial(inverted_lists, n_lists=count, make=ivf_sq8, factors=(0, 2))
    for count in list_counts:
        lists = partial(inverted_lists, n_lists=count, rotate=True, factors=many)
        builds[f"FAISS IVF{count} RaBitQ"] = partial(lists, make=ivf_rabitq)
    graphs = (32,) if large else (16, 32)
    if not avx2 and importlib.util.find_spec("scann"):
        builds |= {f"ScaNN {count}": partial(scann_lists, n_lists=count) for count in list_counts}
    for short in (False, True):
        kind = "HNSW SQ8" if short else "HNSW"
        builds |= {f"FAISS {kind} M{m}": partial(faiss_graph, m=m, construction=80, short=short) for m in graphs}
    if not avx2 and importlib.util.find_spec("hnswlib"):
        builds |= {f"hnswlib M{m}": partial(hnswlib_graph, m=m, construction=80) for m in graphs}
    if not avx2 and importlib.util.find_spec("usearch"):
        builds |= {f"usearch {kind}": partial(usearch_graph, construction=80, dtype=kind) for kind in ("f16", "f32")}
    return builds
