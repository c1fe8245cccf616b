"""Neighbours in bulk, as arrays; and every stored set as a query: near-equal pairs, the graph of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from scipy.sparse import csr_matrix

from ..checkpoints import checkpoint
from ..data.progress import ProgressBar
from ..data.sets import Sets
from ..engines.base import Float64, Int64, View
from ..errors import InputError, ServerLost
from ..where import Node
from .hits import Pair, Pairs
from .planner import Question, rank

Found = TypeVar("Found")
Progress = Callable[[int, int], object]
"""Called as progress(done, total)."""

QUERY_BATCH_SETS = 1024
RADIUS_BATCH_SETS = 128
"""Sets whose neighbours within a radius are held at once: all others, at worst."""
NAMED_AT_ONCE = 1 << 13
"""Neighbours whose ids are asked for at once."""


def _each(
    view: View, keys: Int64, ask: Callable[..., Found], question: Question, progress: Progress | None, at_once: int
) -> Iterator[tuple[Int64, Found]]:
    """Ask for the neighbours of these stored sets, batch by batch; none is its own."""
    hidden = None if progress is None else True
    with ProgressBar(total=len(keys), unit="set", disable=hidden, desc="neighbours") as bar:
        for first in range(0, len(keys), at_once):
            part = keys[first : first + at_once]
            yield part, ask(view, view.prepared(part), part, question)
            bar.update(len(part))
            if progress is not None:
                progress(first + len(part), len(keys))


def _check_whole(view: View) -> None:
    """Refuse what was found in a part of the collection, where the answer could not say so."""
    if view.covered < 1:
        problem = f"only {view.covered:.1%} of the collection can be reached, and this answer could not say so"
        raise ServerLost(problem, "try again when all of it can be reached")


def duplicates(
    view: View,
    radius: float,
    where: Node | None,
    certify: bool,
    progress: Progress | None,
    keys: Int64 | None = None,
    limit: int | None = None,
) -> Pairs:
    """Return all pairs of sets at most a radius apart, each once; with `keys` those whose first id is that of one.

    More pairs than `limit` are refused, as soon as they are found.
    """
    kind, by_vectors = view.spec.distance_kind, view.spec.search.distance_kind == "embedded"
    exact = 1.0 if by_vectors and not certify and view.capabilities.exact_range else None
    question = Question(radius=radius, where=where, recall=exact, certify=certify, slack=by_vectors and not certify)
    pairs: list[Pair] = []
    asked = view.select(where) if keys is None else keys
    for part, found in _each(view, asked, rank, question, progress, RADIUS_BATCH_SETS):
        _check_whole(view)
        names, query = view.ids(part), found.query
        for first in range(0, len(found.keys), NAMED_AT_ONCE):
            checkpoint()
            some = slice(first, first + NAMED_AT_ONCE)
            near = zip(query[some].tolist(), view.ids(found.keys[some]), found.distances[some].tolist(), strict=True)
            pairs += [Pair(names[i], other, far) for i, other, far in near if names[i] < other]
            if limit is not None and len(pairs) > limit:
                problem = f"more than {limit:,} pairs are within radius={radius:g}"
                raise InputError(problem, "give a smaller radius, or fewer sets at a time", argument="radius")
    return Pairs(sorted(pairs, key=lambda pair: (pair.distance, pair.id, pair.other)), "sliced" if certify else kind)


def kneighbors(view: View, queries: Sets, keys: Int64 | None, question: Question) -> tuple[Float64, Int64]:
    """Return distances and positions (n, k) of the nearest of prepared queries; `keys` are theirs if they are stored.

    Equal distances are in the order of ids. Where fewer are found, the distance is inf and the position -1.
    """
    assert question.k is not None
    ranked = rank(view, queries, keys, question)
    _check_whole(view)
    found, distances, offsets = ranked.keys, ranked.distances, ranked.offsets
    if (distances[1:] == distances[:-1]).any():
        names, far, query = view.ids(found), distances.tolist(), np.repeat(np.arange(len(queries)), np.diff(offsets))
        found = found[sorted(range(len(names)), key=lambda i: (query[i], far[i], names[i]))]
    place = offsets[:-1, None] + np.arange(question.k)
    place[place >= offsets[1:, None]] = -1
    return np.append(distances, np.inf)[place], np.append(view.positions(found), -1)[place]


def all_kneighbors(view: View, question: Question, progress: Progress | None = None) -> tuple[Float64, Int64]:
    """Return the nearest of every stored set, none of which is its own neighbour, as `kneighbors` does."""
    none = np.empty((0, question.k or 0))
    each = _each(view, view.select(), kneighbors, question, progress, QUERY_BATCH_SETS)
    parts = [(none, none.astype(np.int64)), *(found for _, found in each)]
    return np.concatenate([distances for distances, _ in parts]), np.concatenate([rows for _, rows in parts])


def neighbor_graph(
    view: View, question: Question, mode: str, progress: Progress | None
) -> tuple[csr_matrix, list[str]]:
    """Return the sparse graph of nearest neighbours, and the ids of its rows."""
    distances, positions = all_kneighbors(view, question, progress)
    there, n = positions >= 0, len(view)
    values = distances[there] if mode == "distance" else np.ones(np.count_nonzero(there))
    starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    return csr_matrix((values, positions[there], starts), shape=(n, n)), view.ids(view.select())
