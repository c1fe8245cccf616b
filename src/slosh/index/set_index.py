"""SetIndex: a collection of sets with ids and metadata, on disk or in memory, that is added to, changed and searched.

Sets, ids and metadata come in; `Hits` go out. All that is stored is in one folder, and every change is on disk when the
call returns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from tqdm.auto import tqdm

from .. import rank
from .. import where as filters
from ..data.checks import checked_count
from ..data.preprocess import Preprocess
from ..data.sets import Sets
from ..engines import answers
from ..engines import lines as db
from ..engines.info import info
from ..engines.local import Local
from ..engines.spec import make_recipe
from ..engines.verify import Report, verify
from ..search.base import checked_recall
from .hits import HitLists, Pair, Pairs, parsed
from .records import Record, Records, UnknownId, checked_ids, is_one, merged, per_set, stream_batches

Int64 = NDArray[np.int64]

BATCH_QUERIES = 1024


class Tuned(NamedTuple):
    """What `tune` measured: `measured` recall over `n_queries` stored sets, `promised` its lower confidence bound."""

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
    """A collection of sets that is searched by the Sliced-Wasserstein distance, durable, with ids and metadata.

    Made by `SetIndex.create` and `slosh.open`. Threads may use one index together; other processes may read it while
    one writes. Use it as a context manager, or `close` it.

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

    def __init__(self, engine: Local) -> None:
        self._engine = engine

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        dim: int,
        *,
        embedding: Any = None,
        search: Any = None,
        sample: Any = None,
        weighted: bool | None = None,
        center: bool = False,
        scale: Any = None,
        standardize: Any = False,
        max_points: int | None = None,
        origin: Any = None,
        random_state: int = 0,
        n_jobs: int | None = -1,
    ) -> SetIndex:
        """A new, empty index in the folder `path`, which must not exist; None keeps it in memory.

        What is chosen here is stored with the index, and never changes.

        Parameters
        ----------
        dim : number of features of an element.
        embedding : of `slosh.embed`; None is `SlicedWasserstein()`. What is fitted already stays as it is.
        search : of `slosh.search`; None is `LadderSearch()`.
        sample : some sets to learn from, where something is to be learnt from data: `standardize`, `origin="auto"`, an
            embedding with a reference of the data, `HammingSearch`. They are not added.
        weighted : whether elements have weights; None is decided by the first `add`. Sets without weights may be added
            to an index with weights: each element counts the same.
        center, scale, standardize, max_points : what is done to each set, and to each query, before it is embedded; see
            `slosh.Preprocess`. The sets themselves are stored as they come.
        origin : (d,) float64 numbers subtracted from all coordinates before they become float32, or "auto".
        random_state : seed of `max_points`.
        n_jobs : threads.
        """
        checked_count("dim", dim)
        if weighted is not None and not isinstance(weighted, bool):
            raise ValueError(f"weighted={weighted!r}: give True, False, or None")
        preprocess = Preprocess(
            center=center, scale=scale, standardize=standardize, max_points=max_points, random_state=random_state
        )
        recipe = make_recipe(int(dim), embedding, search, preprocess, origin, sample, n_jobs)
        folder = None if path is None else Path(path).absolute()
        engine = Local.create(folder, recipe, n_jobs)
        if weighted is not None:
            engine.set_weighted(weighted)
        return cls(engine)

    # About it

    @property
    def path(self) -> Path | None:
        return self._engine.folder

    @property
    def dim(self) -> int:
        """The number of features of an element."""
        return self._engine.recipe.dim

    @property
    def origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from all coordinates."""
        return self._engine.recipe.origin

    @property
    def read_only(self) -> bool:
        return self._engine.read_only

    def __len__(self) -> int:
        return len(self._engine)

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, str | Integral) or isinstance(id, bool):
            return False
        with self._engine.seen() as c:
            return bool(db.rows_of(c, [str(id)]))

    def __iter__(self) -> Iterator[str]:
        """The ids, in the order of the adds."""
        return iter(self.ids)

    @property
    def ids(self) -> list[str]:
        """All ids, in the order of the adds."""
        with self._engine.seen() as c:
            return [name for (name,) in c.execute("SELECT id FROM sets ORDER BY row")]

    def select(self, where: Any = None, limit: int | None = None) -> list[str]:
        """The ids of the sets whose metadata match, in the order of the adds; at most `limit` of them."""
        if limit is not None:
            checked_count("limit", limit)
        node = _parsed(where)
        sql, values = ("SELECT row FROM sets", []) if node is None else filters.compile(node, unique=False)
        with self._engine.seen() as c:
            found = c.execute(f"SELECT id FROM sets WHERE row IN ({sql}) ORDER BY row LIMIT ?", [*values, limit or -1])
            return [name for (name,) in found]

    def __repr__(self) -> str:
        where_ = "in memory" if self.path is None else repr(str(self.path))
        if self._engine.database._closed:
            return f"SetIndex({where_}, closed)"
        mode = ", read only" if self.read_only else ""
        return f"SetIndex({where_}, {len(self)} sets, dim={self.dim}{mode}, {self._engine.recipe.embedding!r})"

    def __enter__(self) -> SetIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an index cannot be pickled: open it in the other process, slosh.open(path, read_only=True)")

    def close(self) -> None:
        """Lets go of files and lock. What was changed is on disk without it."""
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
        """Adds sets, and returns their ids. When it returns they are on disk; after an error none of them is.

        Parameters
        ----------
        sets : anything that `Sets` takes; or an iterator of sets, of `Sets`, or of (sets, ids, metadata) as
            `slosh.readers.read` gives. An iterator is read batch by batch, and each batch is stored by itself: what
            came before an error stays, and the error says how many those are.
        ids : strings, or whole numbers, which become strings; an iterable of them for an iterator. None counts.
        metadata : a dict for each set, or one dict for all: strings, numbers, true and false, lists and dicts of them.
        weights : an array of weights for each set; or pass `Sets` that have them.
        update : replace sets whose id exists; otherwise that is an error.
        """
        if isinstance(sets, Iterator):
            if weights is not None:
                raise ValueError("weights of an iterator: let it give Sets with weights")
            return self._add_stream(sets, ids, metadata, update)
        if isinstance(sets, tuple) and hasattr(sets, "_fields"):  # a batch of a reader
            return self._add_stream(iter([sets]), ids, metadata, update)
        with self._engine.changing():
            added = self._add_batch(self._sets(sets, weights), ids, metadata, update)
            self._learn()
        return added

    def _learn(self) -> None:
        """What is due after sets were stored. If it fails they are stored all the same, and a search learns it."""
        with suppress(Exception):
            self._engine.ready()

    def _sets(self, sets: Any, weights: Any = None) -> Sets:
        recipe = self._engine.recipe
        if weights is not None:
            return Sets.from_list(sets, weights, dim=recipe.dim, origin=recipe.origin)
        return recipe.sets(sets)

    def _add_batch(self, sets: Sets, ids: Any, metadata: Any, update: bool) -> list[str]:
        names = None if ids is None else checked_ids(ids)
        if names is not None and len(names) != len(sets):
            raise ValueError(f"there are {len(sets)} sets and {len(names)} ids: give one for each")
        return self._engine.add(sets, names, per_set(metadata, len(sets)), update)

    def _add_stream(self, items: Iterator[Any], ids: Any, metadata: Any, update: bool) -> list[str]:
        if metadata is not None and not isinstance(metadata, dict):
            raise ValueError("metadata of an iterator: one dict for all, or let it give (sets, ids, metadata)")
        names = None if ids is None else iter(ids)
        added: list[str] = []
        bar = tqdm(unit="set", delay=2, disable=None, leave=False, desc="add")
        with self._engine.changing(), bar:
            try:
                for sets, own, about in stream_batches(items, self.dim, self.origin):
                    if own is not None and names is not None:
                        raise ValueError("ids are given, and the batches bring their own: leave ids out")
                    if names is not None:
                        own = list(islice(names, len(sets)))
                    added += self._add_batch(sets, own, merged(about, metadata, len(sets)), update)
                    bar.update(len(sets))
            except Exception as error:
                if added:
                    _say(error, f" (the {len(added)} sets before this batch are stored)")
                raise
            finally:
                if added:
                    self._learn()
        return added

    def update(self, ids: Any, sets: Any = None, metadata: Any = None, *, weights: Any = None) -> None:
        """Other points, other metadata, or both, for sets that are there; what is None stays. All of them or none."""
        one = isinstance(ids, str | Integral)
        names = checked_ids([ids] if one else ids)
        if sets is None and metadata is None:
            raise ValueError("update needs sets, metadata, or both")
        if sets is None and weights is not None:
            raise ValueError("weights without sets: give the sets, too")
        about = None if metadata is None else per_set([metadata] if one else metadata, len(names))
        with self._engine.changing():
            with self._engine.seen() as c:
                there = self._engine._rows_of_all(c, names)
                if about is None:
                    described = db.described(c, list(there.values()))
                    about = [parsed(described[there[name]][1]) for name in names]
            if sets is None:
                self._engine.set_metadata(names, about)
                return
            if one and not isinstance(sets, Sets):
                sets, weights = [sets], None if weights is None else [weights]
            self._add_batch(self._sets(sets, weights), names, about, True)

    def remove(self, ids: Any) -> None:
        """Removes sets; an id that is not there is an error (KeyError), and nothing is changed."""
        self._engine.remove(checked_ids([ids] if isinstance(ids, str | Integral) else ids))

    def get(self, ids: Any) -> Record | Records:
        """The stored set of an id, as a `Record`; of a list of ids, as `Records` (sets, ids, metadata)."""
        names = checked_ids([ids] if isinstance(ids, str | Integral) else ids, twice=True)
        with self._engine.seen() as c:
            found = self._records(c, names)
        if isinstance(ids, str | Integral):
            return Record(names[0], found.sets[0], found.sets.weights_of(0), found.metadata[0])
        return found

    def _records(self, c: Any, names: list[str]) -> Records:
        there = db.rows_of(c, names)
        for name in names:
            if name not in there:
                raise UnknownId(f"there is no set with the id {name!r}")
        rows = np.array([there[name] for name in names], np.int64)
        described = db.described(c, rows.tolist())
        return Records(self._engine.sets_of(c, rows), names, [parsed(described[row][1]) for row in rows.tolist()])

    def records(self, batch: int = 4096) -> Iterator[Records]:
        """All that is stored, in batches, in the order of the adds: as it is now, whatever is changed meanwhile."""
        checked_count("batch", batch)
        with self._engine.snapshot() as c:
            lines = c.execute("SELECT row, id, metadata FROM sets ORDER BY row")
            while part := lines.fetchmany(batch):
                sets = self._engine.sets_of(c, np.array([row for row, _, _ in part], np.int64))
                yield Records(sets, [name for _, name, _ in part], [parsed(text) for _, _, text in part])

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
        """The k nearest sets, nearest first.

        Parameters
        ----------
        queries : one set (N, d), which gives `Hits`; or several, as `Sets` takes them, which give `HitLists`.
        id : instead of queries, the id of a stored set, or a list of ids; the set itself is not among its hits.
        where : only sets whose metadata match, see `slosh.where`; e.g. {"kind": "chair", "year": {">": 2010}}.
        recall : the part of the true nearest that is to be found, on average; 1.0 is exact. None is what `tune` stored,
            or the default of the search.
        rerank : "sliced", "wasserstein", "chamfer", "hausdorff", or a function (query, candidates) -> distances: the
            `depth` nearest are ordered by it; `depth` None is 4 k, at least 32. A function may ask this index for more,
            but not from threads of its own.
        certify : the true k nearest under the sliced distance, proved.
        """
        checked_count("k", k)
        recall = checked_recall(recall)
        options: dict[str, Any] = {"rerank": rerank, "depth": depth, "certify": certify}
        filter_ = _parsed(where)
        with self._engine.seen() as c:
            sets, own, one = self._asked(c, queries, id)
            recall = self._default_recall(recall, certify)
            allowed = self._engine.allowed(c, filter_)
            found = answers.nearest(c, self._engine, sets, int(k), allowed, own, recall=recall, **options)
        return found[0] if one else found

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
        """All sets at most `radius` away, nearest first; `Hits`, or `HitLists`, as `search` gives.

        By the embedded distance; with `certify` by the sliced distance, and none is left out.
        """
        recall = checked_recall(recall)
        filter_ = _parsed(where)
        with self._engine.seen() as c:
            sets, own, one = self._asked(c, queries, id)
            allowed = self._engine.allowed(c, filter_)
            found = answers.within(c, self._engine, sets, radius, allowed, own, recall=recall, certify=certify)
        return found[0] if one else found

    def _default_recall(self, recall: float | None, certify: bool) -> float | None:
        return self._engine.recall if recall is None and not certify else recall

    def _asked(self, c: Any, queries: Any, id: Any) -> tuple[Sets, Int64 | None, bool]:
        """The queries as they are embedded, their rows if they are stored, and whether it is one."""
        recipe = self._engine.recipe
        if (queries is None) == (id is None):
            raise ValueError("give queries, or id=... of a stored set, and not both")
        if id is not None:
            one = isinstance(id, str | Integral)
            names = checked_ids([id] if one else id, twice=True)
            there = db.rows_of(c, names)
            if missing := [name for name in names if name not in there]:
                raise UnknownId(f"there is no set with the id {missing[0]!r}")
            rows = np.array([there[name] for name in names], np.int64)
            ready = self._engine._sets
            assert ready is not None
            return ready.sets(rows), rows, one
        one = is_one(queries)
        return recipe.prepared(recipe.sets([queries] if one else queries)), None, one

    def duplicates(self, radius: float = 0.0, *, where: Any = None, certify: bool = False) -> Pairs:
        """Pairs of sets at most `radius` apart, each once, nearest first.

        By the embedded distance, which is never larger than the sliced distance but for rounding, by which the radius
        is widened: so no pair within the radius by the sliced distance is left out (with the average rule of
        `SlicedWasserstein`), and some may be a little beyond. With `certify` it is the sliced distance itself.
        """
        filter_ = _parsed(where)
        pairs: list[Pair] = []
        with self._engine.seen() as c:
            ready = self._engine._sets
            if ready is None or not len(ready):
                return Pairs([], "sliced" if certify else "embedded")
            allowed = self._engine.allowed(c, filter_)
            kind = ready.vector_search._distance_kind
            recall = None if certify or kind != "embedded" else 1.0
            wider = 0.0 if certify or not ready._bounded else 2 * float(ready._errors.array.max(initial=0.0))
            asked = {"radius": radius + wider, "certify": certify, "recall": recall}
            for rows, hits in self._each(c, ready, allowed, "duplicates", **asked):
                kind, names = hits.distance_kind, db.described(c, rows.tolist())
                for row, found in zip(rows.tolist(), hits, strict=True):
                    name = names[row][0]
                    pairs += [
                        Pair(name, other, float(distance))
                        for other, distance in zip(found.ids, found.distances, strict=True)
                        if name < other
                    ]
        return Pairs(sorted(pairs, key=lambda pair: (pair.distance, pair.id, pair.other)), kind)

    def neighbor_graph(
        self, k: int = 15, *, mode: str = "distance", recall: float | None = None, certify: bool = False
    ) -> tuple[csr_matrix, list[str]]:
        """The k-nearest-neighbour graph, (n, n) sparse, and the ids of its rows; no set is its own neighbour.

        `mode` is "distance" or "connectivity" (ones), as in scikit-learn. For UMAP, clustering and spectral embedding.
        """
        checked_count("k", k)
        if mode not in ("distance", "connectivity"):
            raise ValueError(f'mode={mode!r}: give "distance" or "connectivity"')
        with self._engine.seen() as c:
            ready = self._engine.ready_sets
            names = [name for (name,) in c.execute("SELECT id FROM sets ORDER BY row")]
            number = {name: i for i, name in enumerate(names)}
            columns, distances, counts = [np.empty(0, np.int64)], [np.empty(0)], [np.zeros(1, np.int64)]
            recall = self._default_recall(checked_recall(recall), certify)
            for _, hits in self._each(c, ready, None, "graph", k=k, recall=recall, certify=certify):
                columns.append(np.array([number[name] for found in hits for name in found.ids], np.int64))
                distances += hits.distances
                counts.append(np.array([len(found) for found in hits], np.int64))
        values = np.concatenate(distances)
        starts = np.cumsum(np.concatenate(counts))
        data = values if mode == "distance" else np.ones(len(values))
        return csr_matrix((data, np.concatenate(columns), starts), shape=(len(names), len(names))), names

    def _each(self, c: Any, ready: Any, allowed: Any, what: str, **asked: Any) -> Iterator[tuple[Int64, HitLists]]:
        """Every stored set as a query, batch by batch."""
        rows = ready.rows if allowed is None or allowed.mask is None else ready._rows.row[allowed.mask]
        with tqdm(total=len(rows), unit="set", delay=2, disable=None, leave=False, desc=what) as bar:
            for first in range(0, len(rows), BATCH_QUERIES):
                part = rows[first : first + BATCH_QUERIES]
                sets = ready.sets(part)
                if "radius" in asked:
                    yield part, answers.within(c, self._engine, sets, allowed=allowed, own=part, **asked)
                else:
                    options = {"rerank": None, "depth": None, **asked}
                    yield part, answers.nearest(c, self._engine, sets, allowed=allowed, own=part, **options)
                bar.update(len(part))

    def explain(self, query: Any, id: Any) -> rank.Explanation:
        """Why a query and a stored set are as far apart as they are: see `slosh.rank.explain`. `query` may be an id."""
        with self._engine.seen() as c:
            by_id = isinstance(query, str | Integral)
            sets, _, one = self._asked(c, None if by_id else query, query if by_id else None)
            if not one and len(sets) != 1:
                raise ValueError(f"explain takes one query, not {len(sets)}")
            other, _, _ = self._asked(c, None, id)
        slices = getattr(self._engine.recipe.embedding, "slices_", None)
        return rank.explain(sets, other, **({} if slices is None else {"slices": slices}))

    # Care

    def tune(self, recall: float = 0.99, k: int = 10, queries: Any = None) -> Tuned:
        """Measures what it takes to find this part of the k nearest, and stores it: from now on the default recall.

        `queries` are sets like those that will be asked for, 30 or more; None takes stored ones.
        """
        checked_count("k", k)
        target = checked_recall(recall)
        if target is None:
            raise ValueError("recall=None: give a number up to 1.0")
        engine = self._engine
        with engine.changing():
            ready = engine._sets
            if ready is None or len(ready) < 2:
                raise ValueError("tune needs two sets or more: add them first")
            asked = None
            if queries is not None:
                sets = engine.recipe.prepared(engine.recipe.sets(queries))
                asked = ready._embed(sets)[0]
            known = engine.calibrate(target, int(k), asked)
            engine.set_recall(target)
            rows = ready.rows[:: max(1, len(ready) // 256)][:256]
            sets = ready.sets(rows)
        with engine.seen() as c:
            started = time.perf_counter()
            answers.nearest(c, engine, sets, int(k), None, None, recall=target, rerank=None, depth=None, certify=False)
            seconds = (time.perf_counter() - started) / len(rows)
        if known is None:
            return Tuned(int(k), target, 1.0, 1.0, 0, seconds, True)
        exact = known.promised == 1.0 and known.measured == 1.0
        return Tuned(int(k), target, known.promised, known.measured, known.n_queries, seconds, exact)

    def info(self) -> dict[str, Any]:
        """Counts, sizes on disk and in memory, parameters, and what was learnt and calibrated."""
        return info(self._engine)

    def verify(self, sample: int | None = None) -> Report:
        """Checks everything that an index promises, and says what is wrong; `sample` embeds only so many sets again."""
        return verify(self._engine, sample)

    def compact(self) -> None:
        """Gives space back, and learns anew: the index is then as one freshly built, in the order of the ids."""
        self._engine.compact()

    def export(self, path: str | os.PathLike[str]) -> int:
        """Writes all sets, ids and metadata to a Parquet file, which `slosh.readers.read` reads; how many they are."""
        from .export import export

        return export(self, path)


def open(path: str | os.PathLike[str], read_only: bool = False, *, n_jobs: int | None = -1) -> SetIndex:
    """An index that `SetIndex.create` made. One process at a time may open it for writing; with `read_only` any number,
    which see every change of the writer from their next call on.
    """
    return SetIndex(Local.open(Path(path).absolute(), read_only, n_jobs))


def _say(error: Exception, more: str) -> None:
    """Adds to the message of an error."""
    if isinstance(error, OSError) and error.strerror is not None:
        error.strerror = f"{error.strerror}{more}"
    else:
        error.args = (f"{error}{more}",)


def _parsed(where: Any) -> filters.Node | None:
    return None if where is None else filters.parse(where)
