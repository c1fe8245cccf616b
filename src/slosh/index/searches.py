"""The questions to an index: the half of `SetIndex` that searches.

A question opens a view, checks what the user passed, and hands it to the planner (`planner.py`, `pairs.py`).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from .. import rank
from ..data.checks import checked_count, checked_flag
from ..data.sets import Sets
from ..engines.base import Engine, Int64, View
from ..engines.spec import IndexSpec
from ..errors import InputError, bad_value
from ..where import parse
from . import changes, pairs
from .hits import HitLists, Hits, Pairs
from .pairs import Progress
from .planner import Question, answer
from .records import checked_ids, is_single_id, is_single_set


class Searches:
    """What an index can be asked; `SetIndex` inherits it.

    In the signatures `Sets` give `HitLists` and a single id gives `Hits`; of anything else a type checker cannot know
    whether it is one set or several.
    """

    _engine: Engine

    @overload
    def search(
        self,
        queries: Sets,
        k: int = ...,
        *,
        where: Any = ...,
        recall: float | None = ...,
        rerank: Any = ...,
        depth: int | None = ...,
        certify: bool = ...,
        offset: int = ...,
        match: str = ...,
        coverage: float | None = ...,
    ) -> HitLists: ...
    @overload
    def search(
        self,
        queries: None = ...,
        k: int = ...,
        *,
        id: str | int,
        where: Any = ...,
        recall: float | None = ...,
        rerank: Any = ...,
        depth: int | None = ...,
        certify: bool = ...,
        offset: int = ...,
        match: str = ...,
        coverage: float | None = ...,
    ) -> Hits: ...
    @overload
    def search(
        self,
        queries: Any = ...,
        k: int = ...,
        *,
        id: Any = ...,
        where: Any = ...,
        recall: float | None = ...,
        rerank: Any = ...,
        depth: int | None = ...,
        certify: bool = ...,
        offset: int = ...,
        match: str = ...,
        coverage: float | None = ...,
    ) -> Hits | HitLists: ...

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
        offset: int = 0,
        match: str = "whole",
        coverage: float | None = None,
    ) -> Hits | HitLists:
        """Return the k nearest sets, nearest first.

        Parameters
        ----------
        queries : one set (N, d), which gives `Hits`; or several, as `Sets` takes them, which give `HitLists`.
        id : instead of queries, the id of a stored set, or a list of ids; the set itself is not among its hits.
        where : only sets whose metadata match, see `slosh.where`; e.g. {"kind": "chair", "year": {">": 2010}}.
        recall : the fraction of the true nearest to find, on average; 1.0 is exact. None is what `tune` stored, or the
            default of the search; for parts it is .95, or as much as was measured to be had.
        rerank : "sliced", "wasserstein", "chamfer", "hausdorff", "maxsim", or a function: the `depth` nearest are
            ordered by that distance; for parts also "partial_wasserstein", which moves the share `coverage`. A function
            is called once for each query, as function(query, candidates), with `Sets` of one set and of `depth` sets,
            preprocessed and with their weights, and returns a distance for each candidate, in their order; smaller is
            nearer. It may use this index.
        depth : how many sets are re-ranked; None is 4 k, at least 32. For parts how many distances are computed; None
            is what was measured for the recall or, where nothing was, 4 k and at least 64.
        certify : return the true k nearest under the sliced distance, proved; with `rerank="hausdorff"` those under the
            Hausdorff distance, if `DistanceField` is the embedding. `stats.full_distances` says how many distances it
            took.
        offset : leave out the first so many: page p of k hits has offset = p k. It costs as much as k + offset hits.
            Pages are parts of one answer if that is exact (`recall=1.0`, `certify`), or re-ranked with the same
            `depth`; pages of approximate searches may miss or repeat a set.
        match : "whole" compares all of both sets. "part" finds the sets that contain the query: the distance is the
            mean distance from its elements to the nearest element of the set. "contained" finds the sets that lie
            within the query, by the same from theirs, and "both" takes the mean of the two. These need
            `enable("parts")`; `certify` proves them, and `rerank="maxsim"` compares unit vectors by 1 - MaxSim. See
            docs/parts.md.
        coverage : with match="part" or "contained", the share of the mass that counts, that of the nearest elements;
            None is all of it.
        """
        checked_count("k", k)
        with self._engine.view() as view:
            question = Question.checked(
                view,
                k=k,
                where=where,
                recall=recall,
                rerank_by=rerank,
                depth=depth,
                certify=certify,
                offset=offset,
                match=match,
                coverage=coverage,
            )
            return _answer(view, queries, id, question, offset)

    @overload
    def range_search(
        self,
        queries: Sets,
        radius: ArrayLike = ...,
        *,
        where: Any = ...,
        recall: float | None = ...,
        rerank: str | None = ...,
        certify: bool = ...,
        match: str = ...,
        coverage: float | None = ...,
        max_hits: int | None = ...,
    ) -> HitLists: ...
    @overload
    def range_search(
        self,
        queries: None = ...,
        radius: ArrayLike = ...,
        *,
        id: str | int,
        where: Any = ...,
        recall: float | None = ...,
        rerank: str | None = ...,
        certify: bool = ...,
        match: str = ...,
        coverage: float | None = ...,
        max_hits: int | None = ...,
    ) -> Hits: ...
    @overload
    def range_search(
        self,
        queries: Any = ...,
        radius: ArrayLike = ...,
        *,
        id: Any = ...,
        where: Any = ...,
        recall: float | None = ...,
        rerank: str | None = ...,
        certify: bool = ...,
        match: str = ...,
        coverage: float | None = ...,
        max_hits: int | None = ...,
    ) -> Hits | HitLists: ...

    def range_search(
        self,
        queries: Any = None,
        radius: ArrayLike = 0.0,
        *,
        id: Any = None,
        where: Any = None,
        recall: float | None = None,
        rerank: str | None = None,
        certify: bool = False,
        match: str = "whole",
        coverage: float | None = None,
        max_hits: int | None = None,
    ) -> Hits | HitLists:
        """Return all sets at most `radius` away, nearest first; `Hits`, or `HitLists`, as `search` gives.

        By the embedded distance; with `certify` by the sliced distance, or by the Hausdorff distance with
        `rerank="hausdorff"` where `DistanceField` is the embedding, and none is left out. `radius` is one number, or
        one for each query. `match` and `coverage` are as in `search`; with "part", "contained" and "both" none is left
        out. A large radius may find everything that is stored, for each query: more than `max_hits` of all queries
        together are an error, before their ids and metadata are read.
        """
        if radius is None:
            raise bad_value("radius", radius, "give a number, or one for each query")
        with self._engine.view() as view:
            question = Question.checked(
                view,
                radius=radius,
                where=where,
                recall=recall,
                rerank_by=rerank,
                certify=certify,
                match=match,
                coverage=coverage,
            )
            if max_hits is not None:
                question = question._replace(max_hits=checked_count("max_hits", max_hits))
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
        checked_count("k", k)
        with self._engine.view() as view:
            question = Question.checked(view, k=k, where=where, recall=recall)
            if queries is None and id is None:
                return pairs.all_kneighbors(view, question)
            sets, keys, _ = _queries(view, queries, id)
            return pairs.kneighbors(view, sets, keys, question)

    def duplicates(
        self,
        radius: float = 0.0,
        *,
        id: Any = None,
        where: Any = None,
        certify: bool = False,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> Pairs:
        """Return pairs of sets at most `radius` apart, each once, nearest first.

        By the embedded distance, which is never larger than the sliced distance but for rounding, by which the radius
        is widened: so no pair within the radius by the sliced distance is left out (with the average rule of
        `SlicedWasserstein`), and some may be a little beyond. With `certify` it is the sliced distance itself.

        `id` is a list of ids: only the pairs are returned whose first id, by its text, is one of them. So a large
        collection can be gone through part by part, as `slosh.batch.duplicates` does.

        `limit` is how many pairs there may be: more are an error (`InputError`) as soon as they are found, so that a
        radius that is too large does not fill the memory. A server has a limit of its own.

        `progress` is called as progress(done, total) now and then; without it a bar is shown on a terminal.
        """
        if radius is None or np.ndim(radius):
            raise bad_value("radius", radius, "give one number")
        _check_progress(progress)
        if limit is not None:
            checked_count("limit", limit)
        with self._engine.view() as view:
            node = None if where is None else parse(where)
            keys = None if id is None else changes.known_keys(view, checked_ids(id), "")
            return pairs.duplicates(view, radius, node, checked_flag("certify", certify), progress, keys, limit)

    def neighbor_graph(
        self,
        k: int = 15,
        *,
        mode: str = "distance",
        recall: float | None = None,
        certify: bool = False,
        progress: Progress | None = None,
    ) -> tuple[csr_matrix, list[str]]:
        """Return the k-nearest-neighbour graph, (n, n) sparse, and the ids of its rows; no set is its own neighbour.

        `mode` is "distance" or "connectivity" (ones), as in scikit-learn. For UMAP, clustering and spectral embedding.
        `progress` is as in `duplicates`.
        """
        if mode not in ("distance", "connectivity"):
            raise InputError(f"mode={mode!r:.60}", 'give "distance" or "connectivity"', argument="mode")
        _check_progress(progress)
        checked_count("k", k)
        with self._engine.view() as view:
            question = Question.checked(view, k=k, recall=recall, certify=certify)
            return pairs.neighbor_graph(view, question, mode, progress)

    @overload
    def explain(self, query: Any, id: Any, *, match: Literal["whole"] = ...) -> rank.Explanation: ...
    @overload
    def explain(self, query: Any, id: Any, *, match: str) -> rank.Explanation | rank.PartExplanation: ...

    def explain(self, query: Any, id: Any, *, match: str = "whole") -> rank.Explanation | rank.PartExplanation:
        """Explain the distance of a query, which may be an id, and a stored set: see `slosh.rank.explain`.

        With match="part" it says which element of the set is nearest to each element of the query, and what of the
        query is not covered (`slosh.rank.explain_part`); with match="contained" the same of the set's elements.
        """
        if match not in ("whole", "part", "contained"):
            raise InputError(f"match={match!r:.60}", 'give "whole", "part" or "contained"', argument="match")
        with self._engine.view() as view:
            by_id = is_single_id(query)
            sets, _, _ = _queries(view, None if by_id else query, query if by_id else None)
            if len(sets) != 1:
                raise InputError(f"explain takes one query, not {len(sets)}", argument="query")
            other, _, _ = _queries(view, None, id)
            slices = getattr(view.spec.embedding.sliced_view, "slices_", None)
        if match != "whole":
            return rank.explain_part(sets, other) if match == "part" else rank.explain_part(other, sets)
        return rank.explain(sets, other, **({} if slices is None else {"slices": slices}))


def _check_progress(progress: Any) -> None:
    if progress is not None and not callable(progress):
        raise bad_value("progress", progress, "give a function that is called as progress(done, total), or None")


class Asked(NamedTuple):
    """What is searched for: sets that are not prepared yet, or the ids of stored ones; and whether it is one."""

    sets: Sets | None
    ids: list[str] | None
    single: bool


def checked_queries(spec: IndexSpec, queries: Any, id: Any) -> Asked:
    """Return what a user asks about, as checked sets or ids."""
    if (queries is None) == (id is None):
        raise InputError("give queries, or id=... of a stored set, and not both")
    if isinstance(queries[0] if isinstance(queries, list | tuple) and queries else queries, str):
        problem = f"{queries!r:.60} is not a set" if isinstance(queries, str) else f"{queries!r:.60} are not sets"
        raise InputError(problem, f"give id={queries!r:.60} for what is stored", argument="queries")
    if id is not None:
        return Asked(None, checked_ids(id, repeats=True), is_single_id(id))
    single = is_single_set(queries)
    return Asked(spec.one_set(queries) if single else spec.sets(queries), None, single)


def _queries(view: View, queries: Any, id: Any) -> tuple[Sets, Int64 | None, bool]:
    """Return the prepared queries, their keys if they are stored, and whether there is a single one."""
    asked = checked_queries(view.spec, queries, id)
    if asked.ids is not None:
        keys = changes.known_keys(view, asked.ids, "")
        return view.prepared(keys), keys, asked.single
    assert asked.sets is not None
    return view.spec.prepare(asked.sets), None, asked.single


def _answer(view: View, queries: Any, id: Any, question: Question, offset: int = 0) -> Hits | HitLists:
    sets, keys, single = _queries(view, queries, id)
    found = answer(view, sets, keys, question, offset)
    return found[0] if single else found
