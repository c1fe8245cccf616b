"""What FaissSearch learns, and the FAISS index that it makes of it: vectors come in, candidate positions go out.

A FAISS index can be changed, and must not be while it is searched. So it is never changed here: a `Filled` holds the
index of the first n positions, made by one thread before any other sees it, and `extend` makes another one. Each state
of a search has the one that it began with; positions behind its n are compared one by one (faiss_state.py).

What is stored are arrays of ours, never FAISS's own serialized form: FAISS trusts what it reads, so that a file which
somebody has made up could write anywhere in memory. Trained are the transform, the centres and the code book, which are
checked for shape and for finite numbers; derived is the list of each position, or the links of the graph, which are
checked for what they point at. FAISS's objects are made from these, by its factory.

FAISS runs on one thread of its own wherever slosh calls it. The number is kept by OpenMP for each thread that calls, so
that nobody else sees it; several queries are shared out among threads of ours (`Filled.candidates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..checkpoints import aside, checkpoint, in_threads
from ..errors import UnsupportedError, import_extra
from ..native import kernel, scan
from ..native.arrays import Array, Float32, Int32, Int64, Mask
from . import basis as bases
from .basis import Basis
from .centroids import centroids
from .columns import check_arrays, positions_up_to
from .faiss_factory import Factory, parse_factory
from .state import Trained
from .store import Vectors

LARGEST = np.float32(1e15)
"""Numbers are cut to this, scaled as they are, so that no square is infinite."""
SAMPLED_PER_LIST, SAMPLED_PER_CODE, SMALLEST_SAMPLE = 32, 64, 16384
"""Vectors that are learnt from: for each list, for each code of a part, and at least."""
FILLED_NUMBERS = 1 << 22
"""Numbers of vectors that are handed to FAISS in one go."""
BLOCK_QUERIES = 16
"""Queries of one call of FAISS. From 20 on it multiplies matrices, whose last bits depend on the batch."""
SHARED_QUERIES = 64
"""So many queries, or more, are shared out among threads."""
CONSTRUCTION = 80
"""Candidates of a row when the graph is built (efConstruction)."""
MAX_EXPONENT = 200


def import_faiss() -> Any:
    """Return the module `faiss`, or raise a MissingExtra that says how to install it."""
    return import_extra("faiss", "FaissSearch", "faiss", "faiss-cpu")


@contextmanager
def one_thread(faiss: Any) -> Iterator[None]:
    """Let FAISS use one thread where this thread calls it. Other threads have a number of their own."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@dataclass(frozen=True, eq=False)
class Training:
    """What was learnt from a collection.

    basis : the transform; None: vectors are taken as they are.
    exponent : FAISS gets numbers divided by two to this power, so that float32 can hold their squares.
    centres : (n_lists, width) of the lists; (0, width) without lists.
    code_book : what the codes are made with: (0,) where nothing is learnt for them.
    n_rows : how many rows there were.
    seed : of the graph.
    """

    factory: Factory
    dim: int
    basis: Basis | None
    exponent: int
    centres: Float32
    code_book: Float32
    n_rows: int
    seed: int

    @classmethod
    def learn(
        cls, factory: Factory, store: Vectors, alive: Mask, random: np.random.RandomState, n_jobs: int | None
    ) -> Training:
        """Learn from a sample of the rows that are alive."""
        there = np.flatnonzero(alive)
        wanted = max(SMALLEST_SAMPLE, SAMPLED_PER_LIST * factory.n_lists, SAMPLED_PER_CODE << factory.n_bits)
        sample = store.take(np.sort(random.choice(there, min(len(there), wanted), replace=False)))
        seed, dim = int(random.randint(1 << 30)), sample.shape[1]
        factory.check_dim(dim)
        basis, none = _learn_transform(factory, sample, random, seed), np.empty(0, np.float32)
        width = factory.padded_width(dim if basis is None else len(basis.directions))
        made = cls(factory, dim, basis, 0, none.reshape(0, width), none, len(there), seed)
        largest = float(np.abs(made.mapped(sample, None, n_jobs)).max(initial=0.0))
        made = replace(made, exponent=_exponent(largest))
        mapped = made.mapped(sample, None, n_jobs)
        if factory.n_lists:
            made = replace(made, centres=centroids(mapped, min(factory.n_lists, len(mapped)), random))
        return replace(made, code_book=made.learn_code_book(mapped))

    @classmethod
    def from_trained(cls, trained: Trained, dim: int) -> Training:
        """Return what `header` and `arrays` gave; raise ValueError, KeyError or TypeError if it does not fit."""
        header, arrays = trained
        factory = parse_factory(header["factory"])
        factory.check_dim(dim)
        n_directions = len(arrays["directions"])
        width = factory.padded_width(n_directions if factory.transform else dim)
        n_lists = len(arrays["centres"])
        check_arrays(
            arrays,
            {
                "middle": ((dim if factory.transform else 0,), np.float64),
                "directions": ((n_directions, dim), np.float64),
                "centres": ((n_lists, width), np.float32),
                "code_book": ((len(arrays["code_book"]),), np.float32),
            },
        )
        if bool(n_directions) != bool(factory.transform) or n_directions > factory.transformed_width(dim):
            raise ValueError(f"its transform has {n_directions} directions")
        if bool(n_lists) != bool(factory.n_lists) or n_lists > factory.n_lists:
            raise ValueError(f"it has {n_lists} lists")
        middle, directions, centres, code_book = parts = [
            np.ascontiguousarray(arrays[name]) for name in ("middle", "directions", "centres", "code_book")
        ]
        if not all(np.isfinite(array).all() for array in parts):
            raise ValueError("its numbers are not finite")
        exponent, n_rows, seed = (int(header[name]) for name in ("exponent", "trained", "seed"))
        if abs(exponent) > MAX_EXPONENT or n_rows < 1 or not 0 <= seed < 1 << 30:
            raise ValueError(f"it was trained on {n_rows} rows, with a seed {seed} and an exponent {exponent}")
        basis = Basis(middle, directions) if factory.transform else None
        made = cls(factory, dim, basis, exponent, centres, code_book, n_rows, seed)
        if len(code_book) != made.code_book_size:
            raise ValueError(f"its code book has {len(code_book)} numbers")
        return made

    def header(self) -> dict[str, Any]:
        """Return its numbers, for JSON."""
        return {"factory": self.factory.text, "trained": self.n_rows, "exponent": self.exponent, "seed": self.seed}

    def arrays(self) -> dict[str, Array]:
        """Return its arrays."""
        none, basis = np.empty(0), self.basis
        middle = none if basis is None else basis.middle
        directions = np.empty((0, self.dim)) if basis is None else basis.directions
        return {"middle": middle, "directions": directions, "centres": self.centres, "code_book": self.code_book}

    @property
    def width(self) -> int:
        """Numbers of a vector as FAISS gets it."""
        return int(self.centres.shape[1])

    @property
    def code_book_size(self) -> int:
        """Numbers of the code book."""
        if self.factory.n_parts:
            return self.width << self.factory.n_bits
        return 2 * self.width if self.factory.codes in ("SQ4", "SQ6", "SQ8") else 0

    @cached_property
    def heads(self) -> scan.Heads:
        """The centres, as the lists of positions are found."""
        return scan.Heads(self.centres)

    def mapped(self, vectors: Array, scale: Float32 | None, n_jobs: int | None) -> Float32:
        """Return vectors as FAISS gets them, (n, width). A row's bits do not depend on the others."""
        if self.basis is None:
            rows = np.asarray(vectors if scale is None else vectors * scale[:, None], np.float32)
        else:
            rows = self.basis.prefixes(vectors, scale, n_jobs)[0][:, :-1]  # without the norm of the rest
        out = np.zeros((len(rows), self.width), np.float32)
        part = out[:, : rows.shape[1]]
        with np.errstate(over="ignore", under="ignore"):
            np.ldexp(rows, -self.exponent, out=part)
        np.clip(part, -LARGEST, LARGEST, out=part)
        return out

    def mapped_blocks(self, store: Vectors, first: int, n_jobs: int | None) -> Iterator[tuple[Int64, Float32]]:
        """Yield the positions from `first` on, and their vectors as FAISS gets them."""
        array, scale, step = store.array, store.scale, max(1, FILLED_NUMBERS // self.dim)
        for start in range(first, store.n, step):
            checkpoint()
            at = positions_up_to(store.n)[start : start + step]
            part = slice(start, start + len(at))
            yield at, self.mapped(array[part], None if scale is None else scale[part], n_jobs)

    # FAISS's objects

    def empty_index(self) -> Any:
        """Return FAISS's index with what was learnt, and no vectors; for fast scan the one that it is made from."""
        index = self._untrained_index()
        codes = _codes_of(index)
        if self.factory.n_parts:
            import_faiss().copy_array_to_vector(self.code_book, codes.pq.centroids)
            codes.precompute_table()
        elif len(self.code_book):
            import_faiss().copy_array_to_vector(self.code_book, codes.sq.trained)
        codes.is_trained = index.is_trained = True
        return index

    def _untrained_index(self) -> Any:
        faiss, factory = import_faiss(), self.factory
        codes = factory.codes.partition("fs")[0]
        body = f"HNSW{factory.n_links},{codes}" if factory.n_links else codes
        if factory.n_lists:
            body = f"IVF{len(self.centres)},{codes}"
        try:
            index = faiss.index_factory(self.width, body)
        except RuntimeError as error:
            problem = f"FAISS {faiss.__version__} cannot make {factory.text!r} ({str(error).splitlines()[-1]:.80})"
            remedy = "give another factory, or install a newer faiss-cpu"
            raise UnsupportedError(problem, remedy, feature_name="factory") from None
        if factory.n_lists:
            faiss.downcast_index(index.quantizer).add(self.centres)
        if factory.n_parts:
            index.by_residual = not factory.codes.endswith("fs")
        if factory.n_links:
            index.hnsw.efConstruction = CONSTRUCTION
        return index

    def learn_code_book(self, mapped: Float32) -> Float32:
        """Return what the codes of these vectors are to be made with."""
        faiss = import_faiss()
        index = self._untrained_index()
        if not self.code_book_size:
            return self.code_book
        codes = _codes_of(index)
        if self.factory.n_parts:
            codes.pq.cp.min_points_per_centroid, codes.pq.cp.seed = 1, self.seed
        aside(lambda: _train(faiss, index, mapped))
        learnt = codes.pq.centroids if self.factory.n_parts else codes.sq.trained
        return np.array(faiss.vector_to_array(learnt), np.float32)


def _train(faiss: Any, part: Any, sample: Float32) -> None:
    with one_thread(faiss):
        part.train(sample)


def _codes_of(index: Any) -> Any:
    """Return the part of an index that holds the codes."""
    return import_faiss().downcast_index(index.storage) if hasattr(index, "storage") else index


def _exponent(largest: float) -> int:
    return int(np.clip(np.frexp(largest)[1], -MAX_EXPONENT, MAX_EXPONENT))


def _learn_transform(factory: Factory, sample: Float32, random: np.random.RandomState, seed: int) -> Basis | None:
    dim = sample.shape[1]
    width = factory.transformed_width(dim)
    if not factory.transform:
        return None
    if factory.transform == "OPQ":
        faiss = import_faiss()
        turn = faiss.OPQMatrix(dim, factory.n_turned, width)
        turn.verbose = False
        scaled = np.ldexp(sample, -_exponent(float(np.abs(sample).max(initial=0.0))))
        aside(lambda: _train(faiss, turn, scaled))
        directions = np.array(faiss.vector_to_array(turn.A), np.float64).reshape(width, dim)
        return Basis(np.zeros(dim), directions)
    if factory.transform == "RR":
        return Basis(np.zeros(dim), _rotation(dim, random)[:width])
    found = bases.fit(sample, width, random)
    if factory.transform == "PCAR":
        return Basis(found.middle, _rotation(len(found.directions), random) @ found.directions)
    return found


def _rotation(n: int, random: np.random.RandomState) -> Any:
    """Return n orthonormal directions at random."""
    turned, triangle = np.linalg.qr(random.normal(size=(n, n)))
    return np.ascontiguousarray((turned * np.sign(np.diag(triangle))).T)


class Filled:
    """FAISS's index of the first n positions, and what it is made of again; immutable, see the module.

    parts : by name, `assigned` (n,) int32, the list of each position; or the graph: `levels` (n,) int32, `links` int32
        and `entry` (1,) int64. Empty for a scan.
    """

    def __init__(self, training: Training, n: int, parts: Mapping[str, Array], index: Any, base: Any = None) -> None:
        self.training, self.n, self.parts = training, n, dict(parts)
        self._index, self._base = index, base  # the second owns what the first points at

    @classmethod
    def start(cls, training: Training, derived: Trained | None, store: Vectors, n_jobs: int | None) -> Filled:
        """Return the index of all positions of the store, with what `as_derived` returned as far as it fits."""
        try:
            parts = {} if derived is None else checked_parts(training, derived, store.n)
        except (LookupError, TypeError, ValueError):
            parts = {}
        return _fill(training, parts, store, n_jobs)

    def extend(self, store: Vectors, n_jobs: int | None) -> Filled:
        """Return another index, of all positions of the store."""
        return _fill(self.training, self.parts, store, n_jobs)

    def as_derived(self) -> Trained | None:
        """Return what saves the work of making it again; None if nothing does."""
        return Trained({"rows": self.n}, self.parts) if self.parts else None

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes: codes, links and row numbers."""
        training = self.training
        row_numbers = 8 if training.factory.n_lists else 0
        codes = int(_codes_of(self._index).sa_code_size()) if not training.factory.is_fast_scan else training.width // 4
        held = sum(array.nbytes for array in self.parts.values())
        links = int(self.parts["links"].nbytes) if training.factory.n_links else 0
        return self.n * (codes + row_numbers) + held + links + training.centres.nbytes

    def selector(self, mask: Mask) -> Any:
        """Return what lets FAISS find these positions only."""
        return import_faiss().IDSelectorBitmap(np.packbits(mask[: self.n], bitorder="little"))

    def candidates(self, queries: Float32, depth: int, effort: int, selector: Any, n_jobs: int | None) -> Int64:
        """Return the `depth` best positions of mapped queries by FAISS's codes, (n_queries, depth), padded with -1.

        effort : lists that are probed (nprobe), or candidates that a graph keeps while it is searched (efSearch).
        """
        faiss, factory, n = import_faiss(), self.training.factory, len(queries)
        params = None if selector is None else faiss.SearchParameters(sel=selector)
        if factory.n_lists:
            params = faiss.SearchParametersIVF(sel=selector, nprobe=min(effort, len(self.training.centres)))
        elif factory.n_links:
            params = faiss.SearchParametersHNSW(sel=selector, efSearch=max(effort, depth))
        depth, found = min(depth, self.n), np.empty((n, min(depth, self.n)), np.int64)

        def search(first: int, last: int) -> None:
            with one_thread(faiss):
                for start in range(first, last, BLOCK_QUERIES):
                    checkpoint()
                    part = slice(start, min(start + BLOCK_QUERIES, last))
                    found[part] = self._index.search(queries[part], depth, params=params)[1]

        n_threads = max(1, min(kernel.threads(n_jobs), -(-n // SHARED_QUERIES)))
        ends = np.linspace(0, n, n_threads + 1).astype(int).tolist()
        in_threads(lambda i: search(ends[i], ends[i + 1]), range(n_threads), n_threads)
        return found


def _fill(training: Training, parts: Mapping[str, Array], store: Vectors, n_jobs: int | None) -> Filled:
    """Return the index of all positions of a store; `parts` are those of the first of them."""
    faiss, factory = import_faiss(), training.factory
    with one_thread(faiss):
        if factory.n_links:
            return _fill_graph(faiss, training, parts, store, n_jobs)
        index = training.empty_index()
        if not factory.n_lists:
            for _, rows in training.mapped_blocks(store, 0, n_jobs):
                index.add(rows)
            return Filled(training, store.n, {}, index)
        assigned = np.empty(store.n, np.int32)
        known = parts.get("assigned", np.empty(0, np.int32))[: store.n]
        assigned[: len(known)] = known
        for at, rows in training.mapped_blocks(store, 0, n_jobs):
            new = at[max(0, len(known) - int(at[0])) :]
            if len(new):
                assigned[new] = scan.nearest_lists(training.heads, rows[-len(new) :], n_jobs)[0]
            lists = assigned[at].astype(np.int64)
            ids = np.ascontiguousarray(at)
            index.add_core(len(at), *(faiss.swig_ptr(array) for array in (rows, ids, lists)))
        if not factory.is_fast_scan:
            return Filled(training, store.n, {"assigned": assigned}, index)
        packed = faiss.IndexIVFPQFastScan(index)
        index.reset()
        return Filled(training, store.n, {"assigned": assigned}, packed, index)


def _fill_graph(
    faiss: Any, training: Training, parts: Mapping[str, Array], store: Vectors, n_jobs: int | None
) -> Filled:
    index, known = training.empty_index(), len(parts.get("levels", ()))
    graph, codes = index.hnsw, _codes_of(index)
    graph.rng = faiss.RandomGenerator(training.seed + known)
    linked = False
    for at, rows in training.mapped_blocks(store, 0, n_jobs):
        n_known = min(len(rows), max(0, known - int(at[0])))
        codes.add(np.ascontiguousarray(rows[:n_known]))
        if n_known < len(rows):
            if known and not linked:
                _link(faiss, index, parts)
                linked = True
            _add(faiss, index, np.ascontiguousarray(rows[n_known:]))
    if known and not linked:
        _link(faiss, index, parts)
    found: dict[str, Array] = {
        "levels": np.array(faiss.vector_to_array(graph.levels), np.int32),
        "links": np.array(faiss.vector_to_array(graph.neighbors), np.int32),
        "entry": np.array([graph.entry_point], np.int64),
    }
    return Filled(training, store.n, found, index)


def _add(faiss: Any, index: Any, rows: Float32) -> None:
    """Add rows to a graph, which takes long; one that is not waited for is never used."""

    def add() -> None:
        with one_thread(faiss):
            index.add(rows)

    aside(add)


def _link(faiss: Any, index: Any, parts: Mapping[str, Array]) -> None:
    """Give an index whose vectors are there the graph that was made of them."""
    graph, levels = index.hnsw, parts["levels"]
    per_level = faiss.vector_to_array(graph.cum_nneighbor_per_level).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(per_level[levels])]).astype(np.uint64)
    faiss.copy_array_to_vector(np.ascontiguousarray(levels, np.int32), graph.levels)
    faiss.copy_array_to_vector(offsets, graph.offsets)
    faiss.copy_array_to_vector(np.ascontiguousarray(parts["links"], np.int32), graph.neighbors)
    graph.entry_point, graph.max_level = int(parts["entry"][0]), int(levels.max()) - 1
    index.ntotal = len(levels)


def checked_parts(training: Training, derived: Trained, n: int) -> dict[str, Array]:
    """Return the parts of a stored `Filled`; raise ValueError, KeyError or TypeError if they are not those of one.

    What is returned is safe to hand to FAISS, whoever made it: every list, row and level is there that is pointed at.
    """
    rows, arrays = int(derived.header["rows"]), derived.arrays
    if not 0 < rows <= n:
        raise ValueError(f"it is of {rows} rows")
    if training.factory.n_lists:
        check_arrays(arrays, {"assigned": ((rows,), np.int32)})
        assigned: Int32 = np.array(arrays["assigned"])
        if assigned.min() < 0 or assigned.max() >= len(training.centres):
            raise ValueError("it names lists that are not there")
        return {"assigned": assigned}
    if not training.factory.n_links:
        return {}
    n_links = len(arrays["links"])
    check_arrays(arrays, {"levels": ((rows,), np.int32), "links": ((n_links,), np.int32), "entry": ((1,), np.int64)})
    levels, links, entry = (np.array(arrays[name]) for name in ("levels", "links", "entry"))
    faiss = import_faiss()
    index = training.empty_index()  # kept: what is read of it dies with it
    per_level = faiss.vector_to_array(index.hnsw.cum_nneighbor_per_level).astype(np.int64)
    if levels.min() < 1 or levels.max() >= len(per_level) or not 0 <= entry[0] < rows:
        raise ValueError("its levels, or where it is entered, are not there")
    sizes = per_level[levels]
    if sizes.sum() != n_links or levels[entry[0]] != levels.max() or links.min() < -1 or links.max() >= rows:
        raise ValueError("its links lead nowhere")
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    level_of_link = np.searchsorted(per_level, np.arange(n_links) - starts, side="right") - 1
    there = links >= 0
    if np.any(levels[links[there]] <= level_of_link[there]):
        raise ValueError("its links lead to rows that are not on their level")
    return {"levels": levels, "links": links, "entry": entry}
