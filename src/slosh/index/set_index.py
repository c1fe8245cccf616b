"""SetIndex: a collection of sets with ids and metadata, in memory or durable, that is added to, changed and searched.

Sets, ids and metadata come in; `Hits` go out. Where it lives is up to an engine (`slosh.engines`); how a question is
answered is up to the planner (`planner.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from .. import rank
from ..data.checks import checked_count
from ..data.preprocess import Preprocess
from ..data.sets import Sets
from ..engines.base import Engine, Int64, Records, View
from ..engines.registry import Location, create_engine, open_engine
from ..engines.spec import WHOLE, IndexSpec, make_spec
from ..errors import InputError
from ..search import checked_recall
from ..where import parse
from . import changes, pairs
from .hits import HitLists, Hits, Pairs
from .planner import Question, answer
from .records import Record, checked_ids, is_single_id, is_single_set
from .verify import Report, verify

TIMED_QUERIES = 256
"""Stored sets that `tune` searches for, to say how long a query takes."""


class Tuned(NamedTuple):
    """What `tune` measured: `measured` recall over `n_queries` queries, `promised` its lower confidence bound."""

    k: int
    recall: float
    promised: float
    measured: float
    n_queries: int
    seconds_per_query: float
    exact: bool

    def __str__(self) -> str:
        how = "exact" if self.exact else f"recall {self.measured:.4f} measured, {self.promised:.4f} promised"
        return f"k = {self.k}, recall {self.recall:g} asked for: {how}; {self.seconds_per_query * 1e6:.0f} us a query"


class SetIndex:
    """A collection of sets that is searched by the Sliced-Wasserstein distance, with ids and metadata.

    `SetIndex.create` and `slosh.open` make one. Threads may share an index. A search sees one version of it and never
    waits for a change; other processes may read a durable index while one writes. Use it as a context manager, or
    `close` it.

    Examples
    --------
    >>> import numpy as np, slosh
    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal(size=(50, 3)) * scale for scale in (1, 1.1, 3)]
    >>> index = slosh.SetIndex.create(None, dim=3)
    >>> index.add(clouds, ids=["a", "b", "c"], metadata=[{"kind": "small"}, {"kind": "small"}, {"kind": "large"}])
    ['a', 'b', 'c']
    >>> hits = index.search(clouds[0], k=2)
    >>> hits.ids, hits[0].metadata
    (['a', 'b'], {'kind': 'small'})
    >>> index.search(clouds[0], where={"kind": "large"}).ids
    ['c']
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def create(
        cls,
        path: Location,
        dim: int,
        *,
        embedding: Any = None,
        search: Any = None,
        preprocess: Preprocess | None = None,
        sample: Any = None,
        weighted: bool | None = None,
        origin: Any = None,
        n_jobs: int | None = -1,
    ) -> SetIndex:
        """Create an empty index in the folder `path`, which must not exist; None keeps it in memory.

        What is chosen here decides about distances. It is stored with the index and never changes.

        Parameters
        ----------
        dim : number of features of an element.
        embedding : an embedding of `slosh.embed`; None is `SlicedWasserstein()`. One that is fitted stays as it is. An
            index in memory takes any transformer over sets, and slices that are Python functions.
        search : a search of `slosh.search`; None is `LadderSearch()`.
        preprocess : a `slosh.Preprocess`: what is done to each set, and to each query, before it is embedded. The sets
            themselves are stored as they come.
        sample : some sets to learn from, which are not added, where something is learnt from data: `standardize`,
            `origin="auto"`, a reference of the data, `HammingSearch`.
        weighted : whether elements have weights; None lets the first `add` decide. Sets without weights may be added to
            an index with weights: each element counts the same.
        origin : (d,) float64 numbers subtracted from all coordinates before they become float32, or "auto".
        n_jobs : threads; -1 is all cores.
        """
        checked_count("dim", dim)
        if weighted is not None and not isinstance(weighted, bool):
            raise InputError(f"weighted={weighted!r:.60}", "give True, False, or None", argument="weighted")
        spec = make_spec(int(dim), embedding, search, preprocess, origin, sample, n_jobs)
        return cls(create_engine(path, spec, weighted, n_jobs))

    # About it

    @property
    def path(self) -> Path | None:
        """The folder of the index; None where it is not in a folder."""
        place = self._engine.location
        return None if place is None or "://" in place else Path(place)

    @property
    def _spec(self) -> IndexSpec:
        with self._engine.view() as view:
            return view.spec

    @property
    def dim(self) -> int:
        """The number of features of an element."""
        return self._spec.dim

    @property
    def origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from all coordinates."""
        return self._spec.origin

    @property
    def embedding(self) -> Any:
        """The fitted embedding."""
        return self._spec.embedding

    @property
    def read_only(self) -> bool:
        """Whether the index was opened for reading only."""
        return self._engine.read_only

    def __len__(self) -> int:
        with self._engine.view() as view:
            return len(view)

    def __contains__(self, id: object) -> bool:
        if not is_single_id(id):
            return False
        with self._engine.view() as view:
            return bool(view.keys([str(id)])[0] >= 0)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids, in the order of the adds."""
        return iter(self.ids)

    @property
    def ids(self) -> list[str]:
        """All ids, in the order of the adds."""
        return self.select()

    def select(self, where: Any = None, limit: int | None = None) -> list[str]:
        """Return the ids of the sets whose metadata match, in the order of the adds; at most `limit` of them."""
        if limit is not None:
            checked_count("limit", limit)
        node = None if where is None else parse(where)
        with self._engine.view() as view:
            return view.ids(view.select(node, limit))

    def __repr__(self) -> str:
        place = "in memory" if self._engine.location is None else repr(self._engine.location)
        if self._engine.closed:
            return f"SetIndex({place}, closed)"
        mode = ", read only" if self.read_only else ""
        return f"SetIndex({place}, {len(self)} sets, dim={self.dim}{mode}, {self.embedding!r})"

    def __enter__(self) -> SetIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an index cannot be pickled: open it in the other process, slosh.open(path, read_only=True)")

    def close(self) -> None:
        """Let go of files and lock. What was changed is on disk without it."""
        self._engine.close()

    # Changes

    def add(
        self,
        sets: Any,
        ids: Iterable[Any] | None = None,
        metadata: Any = None,
        *,
        weights: Any = None,
        update: bool = False,
    ) -> list[str]:
        """Add sets, and return their ids. When it returns they are stored; after an error none of them is.

        Parameters
        ----------
        sets : anything that `Sets` takes; or an iterator of sets, of `Sets`, or of (sets, ids, metadata) as
            `slosh.readers.read` gives. An iterator is read batch by batch, and each batch is stored by itself: what
            came before an error stays, and the error says how many those are.
        ids : strings, or whole numbers, which become strings; an iterable of them for an iterator. None counts.
        metadata : a dict for each set, or one dict for all: strings, numbers, true and false, lists and dicts of them.
        weights : an array of weights for each set; or pass `Sets` that have them.
        update : replace sets whose id exists; otherwise that is an error (`DuplicateId`).
        """
        is_batch = isinstance(sets, tuple) and hasattr(sets, "_fields")  # a batch of a reader
        if isinstance(sets, Iterator) or is_batch:
            if weights is not None:
                raise InputError("weights of an iterator", "let it give Sets with weights", argument="weights")
            added = changes.add_stream(self._engine, iter([sets]) if is_batch else sets, ids, metadata, update)
        else:
            added = changes.add(self._engine, self._spec.sets(sets, weights), ids, metadata, update)
        if added:
            changes.train(self._engine)
        return added

    def update(self, ids: Any, sets: Any = None, metadata: Any = None, *, weights: Any = None) -> None:
        """Replace the points, the metadata, or both, of existing sets.

        Arguments that are None leave that part unchanged. The update is atomic. An id that is not there is an error
        (`UnknownId`).
        """
        single = is_single_id(ids)
        names = checked_ids(ids)
        if sets is None and metadata is None:
            raise InputError("there is nothing to update", "give sets, metadata, or both")
        if sets is None and weights is not None:
            raise InputError("weights without sets", "give the sets, too", argument="weights")
        if single and sets is not None and not isinstance(sets, Sets):
            sets, weights = [sets], None if weights is None else [weights]
        new = None if sets is None else self._spec.sets(sets, weights)
        changes.update(self._engine, names, new, [metadata] if single and metadata is not None else metadata)

    def remove(self, ids: Any) -> None:
        """Remove sets. If an id is not there (`UnknownId`), nothing is changed."""
        names = checked_ids(ids)
        with self._engine.write() as write:
            write.delete(np.sort(changes.known_keys(write.view, names)))

    def get(self, ids: Any) -> Record | Records:
        """Return the stored set of an id, as a `Record`; of a list of ids, as `Records` (sets, ids, metadata)."""
        names = checked_ids(ids, repeats=True)
        with self._engine.view() as view:
            found = view.records(changes.known_keys(view, names, ""))
        if is_single_id(ids):
            return Record(names[0], found.sets[0], found.sets.weights_of(0), found.metadata[0])
        return found

    def records(self, batch: int = 4096) -> Iterator[Records]:
        """Yield all that is stored, in batches, in the order of the adds: as it is now, whatever changes meanwhile."""
        checked_count("batch", batch)
        with self._engine.view() as view:
            keys = view.select()
            for first in range(0, len(keys), batch):
                yield view.records(keys[first : first + batch])

    # Searching

    def search(
        self,
        queries: Any = None,
        k: int = 10,
        *,
        id: Any = None,
        where: Any = None,
        recall: float | None = None,
        rerank: Any = None,
        depth: int | None = None,
        certify: bool = False,
    ) -> Any:
        """Return the k nearest sets, nearest first.

        Parameters
        ----------
        queries : one set (N, d), which gives `Hits`; or several, as `Sets` takes them, which give `HitLists`.
        id : instead of queries, the id of a stored set, or a list of ids; the set itself is not among its hits.
        where : only sets whose metadata match, see `slosh.where`; e.g. {"kind": "chair", "year": {">": 2010}}.
        recall : the fraction of the true nearest to find, on average; 1.0 is exact. None is what `tune` stored, or the
            default of the search.
        rerank : "sliced", "wasserstein", "chamfer", "hausdorff", or a function (query, candidates) -> distances of
            `Sets` of one and of many sets: the `depth` nearest are ordered by it. A function may use this index.
        depth : how many sets are re-ranked; None is 4 k, at least 32.
        certify : return the true k nearest under the sliced distance, proved. `stats.full_distances` says how many
            distances it took.
        """
        with self._engine.view() as view:
            question = Question.checked(
                view, k=k, where=where, recall=recall, rerank_by=rerank, depth=depth, certify=certify
            )
            return _answer(view, queries, id, question)

    def range_search(
        self,
        queries: Any = None,
        radius: ArrayLike = 0.0,
        *,
        id: Any = None,
        where: Any = None,
        recall: float | None = None,
        certify: bool = False,
    ) -> Any:
        """Return all sets at most `radius` away, nearest first; `Hits`, or `HitLists`, as `search` gives.

        By the embedded distance; with `certify` by the sliced distance, and none is left out. `radius` is one number,
        or one for each query.
        """
        with self._engine.view() as view:
            question = Question.checked(view, radius=radius, where=where, recall=recall, certify=certify)
            return _answer(view, queries, id, question)

    def kneighbors(
        self, queries: Any = None, k: int = 10, *, id: Any = None, where: Any = None, recall: float | None = None
    ) -> tuple[NDArray[np.float64], Int64]:
        """Return distances and positions (n, k) of the k nearest sets as arrays, nearest first.

        A position counts the stored sets in the order of the adds: `index.ids[position]` is the id. Where fewer than k
        are found, the position is -1 at the distance inf. This is faster than `search`, which makes objects with ids
        and metadata. The arguments are those of `search`; without queries and id every stored set is a query, and none
        is its own neighbour.
        """
        with self._engine.view() as view:
            question = Question.checked(view, k=k, where=where, recall=recall)
            if queries is None and id is None:
                return pairs.all_kneighbors(view, question)
            sets, keys, _ = _queries(view, queries, id)
            return pairs.kneighbors(view, sets, keys, question)

    def duplicates(self, radius: float = 0.0, *, where: Any = None, certify: bool = False) -> Pairs:
        """Return pairs of sets at most `radius` apart, each once, nearest first.

        By the embedded distance, which is never larger than the sliced distance but for rounding, by which the radius
        is widened: so no pair within the radius by the sliced distance is left out (with the average rule of
        `SlicedWasserstein`), and some may be a little beyond. With `certify` it is the sliced distance itself.
        """
        with self._engine.view() as view:
            return pairs.duplicates(view, radius, None if where is None else parse(where), certify)

    def neighbor_graph(
        self, k: int = 15, *, mode: str = "distance", recall: float | None = None, certify: bool = False
    ) -> tuple[csr_matrix, list[str]]:
        """Return the k-nearest-neighbour graph, (n, n) sparse, and the ids of its rows; no set is its own neighbour.

        `mode` is "distance" or "connectivity" (ones), as in scikit-learn. For UMAP, clustering and spectral embedding.
        """
        if mode not in ("distance", "connectivity"):
            raise InputError(f"mode={mode!r:.60}", 'give "distance" or "connectivity"', argument="mode")
        with self._engine.view() as view:
            return pairs.neighbor_graph(view, Question.checked(view, k=k, recall=recall, certify=certify), mode)

    def explain(self, query: Any, id: Any) -> rank.Explanation:
        """Explain the distance of a query, which may be an id, and a stored set: see `slosh.rank.explain`."""
        with self._engine.view() as view:
            by_id = is_single_id(query)
            sets, _, _ = _queries(view, None if by_id else query, query if by_id else None)
            if len(sets) != 1:
                raise InputError(f"explain takes one query, not {len(sets)}", argument="query")
            other, _, _ = _queries(view, None, id)
            slices = getattr(view.spec.embedding, "slices_", None)
        return rank.explain(sets, other, **({} if slices is None else {"slices": slices}))

    # Maintenance

    def tune(self, recall: float = 0.99, k: int = 10, queries: Any = None) -> Tuned:
        """Measure what it takes to find this fraction of the k nearest, and store it: the default recall from now on.

        `queries` are sets like those that will be asked for, 30 or more; None takes stored ones.
        """
        checked_count("k", k)
        target = checked_recall(recall)
        if target is None:
            raise InputError("recall=None", "give a number up to 1.0", argument="recall")
        with self._engine.view() as view:
            if len(view) < 2:
                raise InputError("tune needs two sets or more", "add them first")
            spec = view.spec
            asked = None if queries is None else spec.vectors(spec.prepare(spec.sets(queries)), slack=False)
        known = self._engine.calibrate(WHOLE, int(k), target, asked)
        with self._engine.write() as write:
            write.set_settings(recall=target)
        with self._engine.view() as view:
            keys = view.select()
            keys = keys[:: max(1, len(keys) // TIMED_QUERIES)][:TIMED_QUERIES]
            sets, started = view.prepared(keys), time.perf_counter()
            found = answer(view, sets, None, Question(k=int(k), recall=target))
            seconds = (time.perf_counter() - started) / len(keys)
        if known is None or found.stats.recall == 1.0:  # whatever was measured: such searches are exact
            return Tuned(int(k), target, 1.0, 1.0, 0 if known is None else known.n_queries, seconds, True)
        return Tuned(int(k), target, known.promised, known.measured, known.n_queries, seconds, False)

    def info(self) -> dict[str, Any]:
        """Return counts, sizes on disk and in memory, parameters, and what was trained and calibrated."""
        with self._engine.view() as view:
            about = {"path": self._engine.location, "sets": len(view), **view.settings, **view.spec.describe()}
            return {**about, **view.info()}

    def verify(self, sample: int | None = None) -> Report:
        """Check everything that an index promises, and report what is wrong.

        `sample` limits how many sets are embedded again.
        """
        if sample is not None:
            checked_count("sample", sample)
        return verify(self._engine, sample)

    def compact(self) -> None:
        """Reclaim the space of removed sets and retrain. The result equals an index built from scratch in id order."""
        self._engine.compact()

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all sets, ids and metadata to a Parquet file, which `slosh.readers.read` reads; return how many."""
        from .export import export

        return export(self, path)

    def copy_to(self, target: Location, *, n_jobs: int | None = -1) -> int:
        """Copy all sets with ids, metadata and weights into a new index at `target`, and return how many they are.

        The copy has the same specification and settings, and is trained anew. `target` may be on another engine. After
        an error there is nothing at `target`.
        """
        from .copy import copy_index

        return copy_index(self._engine, target, n_jobs)


def open(path: Location, read_only: bool = False, *, n_jobs: int | None = -1) -> SetIndex:
    """Open an index that `SetIndex.create` made.

    One process at a time may open it for writing; with `read_only` any number may read it, and see every change of the
    writer from their next call on.
    """
    return SetIndex(open_engine(path, read_only, n_jobs))


def _queries(view: View, queries: Any, id: Any) -> tuple[Sets, Int64 | None, bool]:
    """Return the prepared queries, their keys if they are stored, and whether there is a single one."""
    if (queries is None) == (id is None):
        raise InputError("give queries, or id=... of a stored set, and not both")
    if id is not None:
        keys = changes.known_keys(view, checked_ids(id, repeats=True), "")
        return view.prepared(keys), keys, is_single_id(id)
    single = is_single_set(queries)
    return view.spec.prepare(view.spec.sets([queries] if single else queries)), None, single


def _answer(view: View, queries: Any, id: Any, question: Question) -> Hits | HitLists:
    sets, keys, single = _queries(view, queries, id)
    found = answer(view, sets, keys, question)
    return found[0] if single else found
