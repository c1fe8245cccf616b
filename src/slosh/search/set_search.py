"""Search over sets: an embedding, a search over its vectors, and the points for distances between the sets themselves.

Sets come in, the nearest sets go out: by the embedded distance, re-ranked by an exact set distance, or certified: the
true nearest under the sliced distance, proved by bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from tqdm.auto import tqdm

from .. import rank
from ..data.checks import as_array, checked_count
from ..data.sets import Sets, as_sets
from ..embed import SlicedWasserstein
from ..embed.base import SetTransformer
from ..native import kernel
from ..rank.sliced import SORTED_NUMBERS as NUMBERS
from ..rank.sliced import fitted_slicer, sorted_slices
from .base import LEAST_HOLES, Learnt, Search, checked_radii, uninterrupted
from .flat import kth_smallest
from .ladder import LadderSearch
from .points import Points
from .result import RangeResult, Result, Stats
from .rows import Rows
from .store import Grown, Room, in_memory

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Distance = Callable[[Sets, Sets], ArrayLike]

RERANK: dict[str, Distance] = {
    "wasserstein": rank.wasserstein,
    "chamfer": rank.chamfer,
    "hausdorff": rank.hausdorff,
}
BATCH = 256
"""Queries worked on together."""
CHUNK = 1 << 24
"""Numbers of the vectors that are held while sets are added."""
STREAM = 1 << 22
"""Points of a batch of an iterator."""
SAFE = 1 + 1e-5
"""A computed sliced distance is off by less than this factor: float32 sums of 32 terms, the rest in double."""


class SetSearch:
    r"""Nearest sets, in memory: embedding, search and exact distances in one.

    The vector of a set is its embedding and, with the average rule of `SlicedWasserstein`, its residual norm r as one
    more number. The distance of two such vectors, sqrt(|phi(X) - phi(Y)|^2 + (r(X) - r(Y))^2), is a lower bound of the
    sliced distance, nearer to it than the embedded distance alone; it is what `search` ranks by.

    Parameters
    ----------
    embedding : an embedding of `slosh.embed`; None is `SlicedWasserstein()`. It is fitted on the first sets that are
        added, unless it is fitted already, and then stays as it is.
    search : a search of `slosh.search`, of which a copy is filled; None is `LadderSearch()`.
    n_jobs : threads.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import SetSearch
    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal(size=(rng.integers(20, 60), 2)) * s for s in rng.uniform(0.5, 2, 100)]
    >>> search = SetSearch()
    >>> rows = search.add(clouds)
    >>> result = search.search(clouds[:1], k=3, certify=True)
    >>> int(result.rows[0, 0]), float(result.distances[0, 0]), result.distance_kind
    (0, 0.0, 'sliced')
    """

    _started = False
    _rows: Rows
    _points: Points
    _errors: Grown

    def __init__(
        self, embedding: SetTransformer | None = None, search: Search | None = None, *, n_jobs: int | None = -1
    ) -> None:
        self.n_jobs = n_jobs
        self._threads = kernel.threads(n_jobs)
        check_parts(embedding, search)
        self.embedding: SetTransformer = SlicedWasserstein(n_jobs=n_jobs) if embedding is None else embedding
        if not hasattr(self.embedding, "n_features_in_"):
            self.embedding = clone(self.embedding)
        self.vector_search: Search = LadderSearch(n_jobs=n_jobs) if search is None else clone(search)

    def __repr__(self) -> str:
        there = f"{len(self)} sets, d = {self.dim}, " if self._started else ""
        return f"SetSearch({there}{self.embedding!r}, {type(self.vector_search).__name__})"

    def __contains__(self, row: object) -> bool:
        return self._started and row in self.vector_search

    @property
    def dim(self) -> int | None:
        """The dimension of the sets; None before the first `add`."""
        return int(self.embedding.n_features_in_) if self._started else None

    def __len__(self) -> int:
        """How many sets there are."""
        return len(self._rows) if self._started else 0

    @property
    def rows(self) -> Int64:
        """The rows that are there, in increasing order."""
        return self._rows.sorted() if self._started else np.empty(0, np.int64)

    @property
    def _bounded(self) -> bool:
        """Bounds on the sliced distance are known."""
        return isinstance(self.embedding, SlicedWasserstein) and self.embedding.has_bounds

    def add(self, sets: Any, rows: Any = None) -> Int64:
        """Adds sets (anything that `Sets` takes) under `rows`, or under the next free ones; returns the rows.

        All of them or, with an error or an interrupt, none. An iterator of sets is read batch by batch, without `rows`.
        """
        if isinstance(sets, Iterator):
            return self._add_stream(sets, rows)
        if isinstance(sets, list | tuple) and not len(sets):
            return np.empty(0, np.int64)
        collection = as_sets(sets, dim=getattr(self.embedding, "n_features_in_", None))
        table = self._rows if self._started else Rows()
        new = table.new(rows, len(collection), "set")
        if not len(collection):
            return new
        fresh, before = not self._started, (table.n_positions, table.highest)
        if fresh:
            fitted = self.embedding
            if not hasattr(fitted, "n_features_in_"):
                fitted = clone(fitted).fit(collection)
            self._points = Points(collection.dim, collection.weights is not None, collection.origin)
            self._errors = in_memory("errors", (), np.float64)
            given, self.embedding = self.embedding, fitted
            self._rows, self._started = table, True
        self._points.check(collection)
        step = max(1, CHUNK // self.embedding.vector_length)
        try:
            with tqdm(total=len(new), unit="set", delay=2, disable=None, leave=False, desc="add") as bar:
                for first in range(0, len(new), step):
                    part = slice(first, first + step)
                    self._add(collection[part], new[part])
                    bar.update(len(new[part]))
        except BaseException:
            self._undo(before, new)
            if fresh:
                self.embedding, self._started = given, False
                self.vector_search = clone(self.vector_search)
            raise
        return new

    def _add_stream(self, sets: Iterator[Any], rows: Any) -> Int64:
        if rows is not None:
            raise ValueError("rows of an iterator: its length is not known; add it part by part, or leave rows out")
        parts: list[Int64] = []
        try:
            for batch in Sets.stream(sets, STREAM, dim=getattr(self.embedding, "n_features_in_", None)):
                parts.append(self.add(batch))
        except BaseException:
            if parts:
                self.remove(np.concatenate(parts))
            raise
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _add(self, sets: Sets, rows: Int64) -> None:
        self._append(sets, rows, *self._embed(sets))

    def _append(self, sets: Sets, rows: Int64, vectors: Float32, errors: Float64) -> None:
        """Adds sets whose vectors are known."""
        self.vector_search.add(vectors, rows)
        errors += self.vector_search._moved(self.vector_search._rows._find(rows))
        self._points.append(sets)
        self._errors.extend(errors)
        self._rows.add(rows)

    def _begin(
        self, weighted: bool, rows: Rows, room: Room, learnt: Learnt | None, derived: Learnt | None = None
    ) -> None:
        """Starts as the sets of an index: with those that `room` has already, under `rows`."""
        self._rows, self._points = rows, Points(self.embedding.n_features_in_, weighted, self.embedding.origin_, room)
        self._errors = room("errors", (), np.float64)
        mine, self._started = deepcopy(rows), True
        self.vector_search._begin(self.embedding.vector_length + self._bounded, mine, room, learnt, derived)

    def _adopt(self, rows: Int64) -> None:
        """Takes in sets that others have put into the arrays of `room`, at the next positions."""
        first = self._rows.n_positions
        self._rows.add(rows)
        self.vector_search._rows.add(rows)
        self.vector_search._attached(first)

    def _cut_back(self, n: int, highest: int) -> None:
        """Forgets all from position n on, as if it had never been added."""
        learnt = self.vector_search._learnt()
        self.vector_search._rows.cut(n, highest)
        self.vector_search._cut(n)
        self._rows.cut(n, highest)
        self._points.cut(n)
        self._errors.cut(n)
        self.vector_search._relearn(*learnt)
        self.vector_search._attached()

    def _undo(self, before: tuple[int, int], new: Int64) -> None:
        """After an add that failed: nothing of it is left."""
        there = new[self.vector_search._rows._find(new) >= 0] if self.vector_search._started else new[:0]
        if len(there):
            self.vector_search.remove(there)
        self._rows.cut(*before)
        self._points.cut(before[0])
        self._errors.cut(before[0])

    def _embed(self, sets: Sets) -> tuple[Float32, Float64]:
        """Vectors, and how far rounding may have moved each."""
        return self.embedding.index_vectors(sets)

    def _vectors(self, sets: Sets) -> tuple[Float32, Float64]:
        return self.embedding.index_vectors(sets)

    def remove(self, rows: Any) -> None:
        """Removes rows; one that is not there, or is given twice, is an error, and nothing is changed."""
        if not self._started:
            raise ValueError("the collection is empty: there is nothing to remove")
        positions = self._rows.removal(rows)
        with uninterrupted():
            self.vector_search.remove(rows)
            self._rows.remove(positions)
            holes = self._rows.n_positions - len(self._rows)
            if holes > max(LEAST_HOLES, len(self._rows)) and self.vector_search._room is None:
                kept = self._rows.close_up()
                self._points.keep(kept)
                self._errors.replace(self._errors.array[kept])

    def sets(self, rows: Any) -> Sets:
        """The stored sets of these rows."""
        if not self._started:
            raise ValueError("the collection is empty: it has no sets")
        return self._points.take(self._rows.positions(rows, done="give rows that are"))

    def info(self) -> dict[str, Any]:
        """Counts and memory in bytes, of the points and of the search over the vectors."""
        about = {"rows": len(self), "embedding": repr(self.embedding), "search": self.vector_search.info()}
        if self._started:
            about["bytes"] = {"points": self._points.n_bytes, "bounds": self._errors.n_bytes}
        return about

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        allowed: Any = None,
        recall: float | None = None,
        rerank: str | Distance | None = None,
        depth: int | None = None,
        certify: bool = False,
    ) -> Result:
        """The k nearest sets of each query.

        Parameters
        ----------
        queries : sets, as for `add`.
        k, allowed, recall : as for every search, by the embedded distance.
        rerank : "sliced", "wasserstein", "chamfer", "hausdorff", or a function (query, candidates) -> distances of
            `Sets` of one and of many sets: the `depth` nearest by the embedded distance are ordered by this one. What
            part of the nearest by this distance is among them is not known, and `stats.recall` None.
        depth : how many; None is 4 k, at least 32.
        certify : the true k nearest under the sliced distance, with the slices of the embedding, from the points: no
            binning, and no set left out but by proof. `stats.full_distances` says how many distances it took.
        """
        started = time.perf_counter()
        checked_count("k", k)
        if depth is not None:
            checked_count("depth", depth)
        sets = self._queries(queries)
        measure = self._measure(rerank)
        if certify and (rerank is not None or depth is not None or recall not in (None, 1.0)):
            raise ValueError("certify is exact, by the sliced distance: leave rerank, depth and recall out")
        if depth is not None and rerank is None:
            raise ValueError("depth says how many are re-ranked: give rerank too")
        if certify:
            self._need_bounds()
        found = []
        for batch in self._batches(sets):
            if certify:
                found.append(self._certified(batch, k, allowed))
            elif measure is not None:
                found.append(self._reranked(batch, k, max(k, depth or max(4 * k, 32)), allowed, recall, measure))
            else:
                found.append(self.vector_search.search(self._vectors(batch)[0], k, allowed=allowed, recall=recall))
        kind = "sliced" if certify or measure == "sliced" else self.vector_search._distance_kind
        if callable(measure):
            kind = str(getattr(measure, "__name__", "own"))
        return _joined(found, time.perf_counter() - started, kind, (len(sets), min(k, len(self))))

    def range_search(
        self,
        queries: Any,
        radius: ArrayLike,
        *,
        allowed: Any = None,
        recall: float | None = None,
        certify: bool = False,
    ) -> RangeResult:
        """All sets at most `radius` away from each query, nearest first; one radius for all queries, or one for each.

        By the embedded distance, with the recall of the search over vectors (`LadderSearch` leaves none out); or, with
        `certify`, by the sliced distance, from the points: none is left out.
        """
        started = time.perf_counter()
        if certify and recall not in (None, 1.0):
            raise ValueError("certify leaves none out: leave recall out")
        sets = self._queries(queries)
        radii = checked_radii(radius, len(sets))
        if certify:
            self._need_bounds()
        found, first = [], 0
        for batch in self._batches(sets):
            part = radii[first : first + len(batch)]
            first += len(batch)
            if certify:
                found.append(self._certified_range(batch, part, allowed))
            else:
                vectors, _ = self._vectors(batch)
                found.append(self.vector_search.range_search(vectors, part, allowed=allowed, recall=recall))
        seconds, kind = time.perf_counter() - started, "sliced" if certify else self.vector_search._distance_kind
        counts = [np.diff(part.offsets) for part in found]
        return RangeResult(
            np.concatenate([[0], *counts]).cumsum(),
            np.concatenate([np.empty(0), *(part.distances for part in found)]),
            np.concatenate([np.empty(0, np.int64), *(part.rows for part in found)]),
            _summed([part.stats for part in found], seconds),
            kind,
        )

    def _queries(self, queries: Any) -> Sets:
        if not len(self):
            raise ValueError("the collection is empty: add sets first")
        return as_sets(queries, dim=self.embedding.n_features_in_)

    def _batches(self, sets: Sets) -> Iterator[Sets]:
        if len(sets) <= BATCH:  # a bar would take longer than the search
            yield from [sets] if len(sets) else []
            return
        bar = tqdm(total=len(sets), unit="query", delay=2, disable=None, leave=False, desc="search")
        with bar:
            for first in range(0, len(sets), BATCH):
                batch = sets[first : first + BATCH]
                yield batch
                bar.update(len(batch))

    def _need_bounds(self) -> None:
        if not self._bounded:
            raise ValueError(
                "certify needs bounds on the sliced distance, which only SlicedWasserstein(quantiles='average') has: "
                f"this search embeds by {self.embedding!r}"
            )

    def _measure(self, rerank: Any) -> Distance | str | None:
        if rerank is None:
            return None
        if callable(rerank):
            own: Distance = rerank
            return own
        if rerank in ("sliced", "sliced_wasserstein"):
            if not isinstance(self.embedding, SlicedWasserstein):
                raise ValueError("rerank='sliced' takes its slices from SlicedWasserstein: choose it as the embedding")
            return "sliced"
        if isinstance(rerank, str) and rerank in RERANK:
            return RERANK[rerank]
        raise ValueError(f"rerank={rerank!r}: give 'sliced', {', '.join(map(repr, RERANK))}, or a function")

    def _reranked(
        self, queries: Sets, k: int, depth: int, allowed: Any, recall: float | None, measure: Distance | str
    ) -> Result:
        near = self.vector_search.search(self._vectors(queries)[0], depth, allowed=allowed, recall=recall)
        n, width = near.rows.shape
        there = near.rows >= 0
        distances = np.full((n, width), np.inf)
        which = np.nonzero(there)[0]
        positions = self._rows._find(near.rows[there])
        if measure == "sliced":
            distances[there] = self._sliced(queries, which, positions)
        elif callable(measure):
            for i in range(n):
                candidates = self._points.take(positions[which == i])
                given = as_array(measure(queries[i : i + 1], candidates), "what rerank returned")
                if given.shape != (len(candidates),) or given.dtype.kind not in "fiu" or np.isnan(given).any():
                    raise ValueError(f"rerank must return {len(candidates)} distances, one for each candidate")
                distances[i, there[i]] = given
        order = np.lexsort((near.rows, distances), axis=1)[:, : min(k, width)]
        stats = Stats(near.stats.candidates, near.stats.scanned, None, 0.0, there.sum(axis=1))
        return Result(np.take_along_axis(distances, order, 1), np.take_along_axis(near.rows, order, 1), stats)

    def _sliced(self, queries: Sets, which: Int64, positions: Int64, ready: Any = None) -> Float64:
        """The sliced distance of query which[i] and the set at positions[i], from the points."""
        slicer = fitted_slicer(self.embedding.slices_, queries.dim, None, None)  # type: ignore[attr-defined]
        a = sorted_slices(queries, slicer, self._threads) if ready is None else ready
        unique, inverse = np.unique(positions, return_inverse=True)
        ends = self._points._ends.array
        sizes = ends[unique] - np.where(unique > 0, ends[unique - 1], 0)
        group = np.cumsum(sizes) // max(1, NUMBERS // slicer.n_slices_)  # memory stays bounded
        out = np.empty(len(positions))
        for g in np.unique(group):
            first, last = np.searchsorted(group, [g, g + 1])
            b = sorted_slices(self._points.take(unique[first:last]), slicer, self._threads)
            mine = np.flatnonzero((inverse >= first) & (inverse < last))
            pairs = np.stack([which[mine], inverse[mine] - first], axis=1)
            out[mine] = kernel.transport(a[0], a[1], a[2], b[0], b[1], b[2], pairs, self._threads)
        return np.sqrt(out, out=out)

    def _certified(self, queries: Sets, k: int, allowed: Any) -> Result:
        n = len(queries)
        vectors, errors = self._embed(queries)
        errors += self.vector_search._moves(vectors)
        near = self.vector_search.search(vectors, k, allowed=allowed, recall=1.0)
        k = near.rows.shape[1]
        if k == 0:
            none = np.zeros(n, np.int64)
            return Result(near.distances, near.rows, Stats(none, none, 1.0, 0.0, none), "sliced")
        slicer = fitted_slicer(self.embedding.slices_, queries.dim, None, None)  # type: ignore[attr-defined]
        ready = sorted_slices(queries, slicer, self._threads)
        which, positions = np.repeat(np.arange(n), k), self._rows._find(near.rows.ravel())
        distances = self._sliced(queries, which, positions, ready)
        limit = distances.reshape(n, k).max(axis=1)
        rest = self._candidates(vectors, errors, limit, allowed)
        known = np.isin(
            rest.which * self._rows.n_positions + rest.positions, which * self._rows.n_positions + positions
        )
        rest.keep(~known)
        wave = 4
        while len(rest.which):
            # The next few of each query, nearest lower bound first: each distance found may spare the ones behind it.
            now = rest.place() < wave
            more = self._sliced(queries, rest.which[now], rest.positions[now], ready)
            which, positions = np.append(which, rest.which[now]), np.append(positions, rest.positions[now])
            distances = np.append(distances, more)
            limit = np.minimum(limit, kth_smallest(which, distances, n, k))
            rest.keep(~now & (rest.low <= limit[rest.which] * SAFE))
            wave *= 2
        order = np.lexsort((self._rows.row[positions], distances, which))
        starts = np.searchsorted(which[order], np.arange(n))
        best = order[starts[:, None] + np.arange(k)]
        full = np.bincount(which, minlength=n)
        stats = Stats(near.stats.candidates + rest.compared, near.stats.scanned + rest.scanned, 1.0, 0.0, full)
        return Result(distances[best], self._rows.row[positions[best]], stats)

    def _candidates(self, vectors: Float32, errors: Float64, limit: Float64, allowed: Any) -> _Rest:
        """All sets that may be within the sliced distance `limit` of each query, nearest lower bound first."""
        reach = limit * SAFE + errors + self._errors.array.max(initial=0.0)
        near = self.vector_search.range_search(vectors, reach, allowed=allowed, recall=1.0)
        which = np.repeat(np.arange(len(vectors)), np.diff(near.offsets))
        positions = self._rows._find(near.rows)
        low = np.maximum(near.distances - errors[which] - self._errors.array[positions], 0.0)
        rest = _Rest(which, positions, low, near.stats.candidates, near.stats.scanned)
        rest.keep(low <= limit[which] * SAFE)
        return rest

    def _certified_range(self, queries: Sets, radii: Float64, allowed: Any) -> RangeResult:
        vectors, errors = self._embed(queries)
        errors += self.vector_search._moves(vectors)
        rest = self._candidates(vectors, errors, radii, allowed)
        distances = self._sliced(queries, rest.which, rest.positions)
        near = np.flatnonzero(distances <= radii[rest.which])
        rows = self._rows.row[rest.positions]
        order = near[np.lexsort((rows[near], distances[near], rest.which[near]))]
        n = len(queries)
        stats = Stats(rest.compared, rest.scanned, 1.0, 0.0, np.bincount(rest.which, minlength=n))
        offsets = np.searchsorted(rest.which[order], np.arange(n + 1))
        return RangeResult(offsets, distances[order], rows[order], stats)


def check_parts(embedding: Any, search: Any) -> None:
    """Refuses what is no embedding, and what is no empty search."""
    if embedding is not None and not isinstance(embedding, SetTransformer):
        raise ValueError(f"embedding={embedding!r:.60}: give an embedding of slosh.embed, or None")
    if search is not None and not isinstance(search, Search):
        raise ValueError(f"search={search!r:.60}: give a search of slosh.search, e.g. ExactSearch(), or None")
    if search is not None and len(search):
        raise ValueError(f"search holds {len(search)} rows already: give an empty one, it is filled from the sets")


class _Rest:
    """Sets that are not excluded yet: of which query, at which position, with which lower bound; sorted by it."""

    def __init__(self, which: Int64, positions: Int64, low: Float64, compared: Int64, scanned: Int64) -> None:
        order = np.lexsort((low, which))
        self.which, self.positions, self.low = which[order], positions[order], low[order]
        self.compared, self.scanned = compared, scanned

    def keep(self, kept: NDArray[np.bool_]) -> None:
        self.which, self.positions, self.low = self.which[kept], self.positions[kept], self.low[kept]

    def place(self) -> Int64:
        """Of each, how many of its query come before it."""
        return np.arange(len(self.which)) - np.searchsorted(self.which, self.which)


def _summed(parts: list[Stats], seconds: float) -> Stats:
    none = np.empty(0, np.int64)
    full = [part.full_distances for part in parts if part.full_distances is not None]
    return Stats(
        np.concatenate([none, *(part.candidates for part in parts)]),
        np.concatenate([none, *(part.scanned for part in parts)]),
        parts[0].recall if parts else 1.0,
        seconds,
        np.concatenate(full) if full else None,
    )


def _joined(parts: list[Result], seconds: float, kind: str, shape: tuple[int, int]) -> Result:
    if len(parts) == 1:
        one = parts[0]
        return Result(one.distances, one.rows, replace(one.stats, seconds=seconds), kind)
    stats = _summed([part.stats for part in parts], seconds)
    if not parts:
        return Result(np.empty(shape), np.empty(shape, np.int64), stats, kind)
    return Result(
        np.concatenate([part.distances for part in parts]), np.concatenate([part.rows for part in parts]), stats, kind
    )
