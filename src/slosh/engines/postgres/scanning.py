"""Exact searches of one version: by a scan on the server, or by comparing here what the server sends.

The server compares vectors in half precision. What rounding may have moved is stored with each vector, so that a
distance there is a bound of the true one. All that is found is compared here in full precision: distances
are those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...search import ExactSearch, HammingSearch, Metric, State
from ...where import ALL, Node
from ..base import Description, Float64, Int64
from ..spec import WHOLE
from . import codec
from .filters import compile_filter

if TYPE_CHECKING:
    from .view import PostgresView

FEW_QUERIES = 6
"""Up to so many queries the server compares; for more it sends all vectors once, and they are compared here."""
BLOCK_ROWS = 8192
MORE, MORE_SHARE = 16, 4
"""Candidates that a scan returns beyond k, so that rounding seldom makes a second scan necessary."""
ROUNDING = 6e-8
"""What a sum of float32 may be off by, for each number of a vector."""
RADIUS_MARGIN = 1 + 1e-12
BITS = np.array([number.bit_count() for number in range(256)], np.uint8)
"""How many bits a byte has that are set."""
SCAN_MODES = {"enable_seqscan": "on", "enable_bitmapscan": "on", "enable_sort": "on"}


class Answer(NamedTuple):
    """What is found for one query: keys and distances, nearest first.

    `moved` is how far rounding had moved what was looked at; 0.0 where that does not matter.
    """

    keys: Int64
    distances: Float64
    moved: float = 0.0


class Condition(NamedTuple):
    """A filter for the server."""

    sql: str = "TRUE"
    parameters: tuple[Any, ...] = ()

    @property
    def is_all(self) -> bool:
        return self == Condition()

    @classmethod
    def of(cls, where: Node | None) -> Condition:
        if where is None or where == ALL:
            return cls()
        sql, parameters = compile_filter(where)
        return cls(sql, tuple(parameters))


def compared(view: PostgresView, query: Any, k: int, lines: list[Any], own: int) -> Answer:
    """Return the k nearest of some sets, by their vectors in full precision."""
    kept = [line for line in lines if line[0] != own]
    view.remember((line[0], Description(line[1], line[2])) for line in kept)
    keys = np.array([line[0] for line in kept], np.int64)
    distances = _distances(query, codec.rows_of([line[3] for line in kept], "<f4", (len(query),)))
    order = np.lexsort((keys, distances))[:k]
    return Answer(keys[order], distances[order])


def _distances(query: Any, vectors: Any) -> Float64:
    apart = vectors.astype(np.float64) - query
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", apart, apart)))


def nearest_exactly(
    view: PostgresView, space: str, queries: Any, k: int, condition: Condition, own: Int64
) -> list[Answer]:
    """Return the k nearest of each query, and all that are as far as the last of them."""
    if len(queries) > FEW_QUERIES:
        return nearest_here(view, space, queries, k, condition, own)
    return [_nearest_there(view, space, q, k, condition, int(x)) for q, x in zip(queries, own, strict=True)]


class _Scan(NamedTuple):
    """A scan on the server for one query: an expression of the least distance that a set may have, and parameters."""

    least: str
    parameters: tuple[Any, ...]


def _scan_of(view: PostgresView, space: str, query: Any, more: float = 0.0) -> _Scan:
    at = list(view.spec.spaces).index(space)
    scale = (view.header.scales or (1.0,) * (at + 1))[at]
    halves, moved = codec.halves_of(query[None], scale)
    off = (1 - ROUNDING * (len(query) + 8)) / scale
    # Adding to the distance keeps the planner from walking the graph.
    least = f"(({space} <-> %s)::float8 * %s - {space}_moved - %s)"
    return _Scan(least, (codec.half_parameter(halves[0]), off, float(moved[0]) + more))


def _nearest_there(view: PostgresView, space: str, query: Any, k: int, condition: Condition, own: int) -> Answer:
    view.set_modes(SCAN_MODES)
    scan, tables = _scan_of(view, space, query), view.tables
    wanted = min(k + max(MORE, k // MORE_SHARE), view.header.sets)
    sql = (
        f"SELECT n.key, n.id, n.metadata, e.{space}, n.least FROM (SELECT key, id, metadata, {scan.least} AS least"
        f" FROM {tables.sets} WHERE {condition.sql} AND key <> %s ORDER BY least LIMIT {wanted:d}) n"
        f" JOIN {tables.exact} e USING (key)"
    )
    lines = view.execute(sql, (*scan.parameters, *condition.parameters, own), prepare=False).fetchall()
    found = compared(view, query, len(lines), lines, own)
    if len(lines) <= k and len(lines) < wanted:
        return found
    last = found.distances[min(k, len(found.keys)) - 1] if len(found.keys) else 0.0
    if len(lines) == wanted and max(line[4] for line in lines) <= last * RADIUS_MARGIN:
        found = within_there(view, space, query, last * RADIUS_MARGIN, condition, own)
    kept = found.distances <= found.distances[min(k, len(found.keys)) - 1] if len(found.keys) else slice(0)
    return Answer(found.keys[kept], found.distances[kept])


def within_there(
    view: PostgresView,
    space: str,
    query: Any,
    radius: float,
    condition: Condition,
    own: int,
    bounds: bool = False,
    slack: float = 0.0,
) -> Answer:
    """Return all sets that may be within a radius of a query, sorted; those that are not are left out by the caller."""
    view.set_modes(SCAN_MODES)
    scan = _scan_of(view, space, query, slack)
    less = f"{scan.least} - slack" if bounds else scan.least
    sql = (
        f"SELECT n.key, n.id, n.metadata, e.{space} FROM (SELECT key, id, metadata FROM {view.tables.sets}"
        f" WHERE {condition.sql} AND key <> %s AND {less} <= %s) n JOIN {view.tables.exact} e USING (key)"
    )
    parameters = (*condition.parameters, own, *scan.parameters, radius)
    parts = [compared(view, query, len(lines), lines, own) for lines in view.blocks(sql, parameters, BLOCK_ROWS)]
    keys = np.concatenate([np.empty(0, np.int64), *(each.keys for each in parts)])
    distances = np.concatenate([np.empty(0), *(each.distances for each in parts)])
    order = np.lexsort((keys, distances))
    return Answer(keys[order], distances[order])


def _blocks(view: PostgresView, space: str, condition: Condition) -> Iterator[tuple[Int64, Any]]:
    """Yield keys and vectors of all sets that match."""
    length = view.spec.spaces[space].length
    sql = (
        f"SELECT s.key, e.{space} FROM (SELECT key FROM {view.tables.sets} WHERE {condition.sql}) s"
        f" JOIN {view.tables.exact} e USING (key)"
    )
    view.set_modes(SCAN_MODES)
    for lines in view.blocks(sql, condition.parameters, BLOCK_ROWS):
        yield (
            np.array([line[0] for line in lines], np.int64),
            codec.rows_of([line[1] for line in lines], "<f4", (length,)),
        )


def nearest_here(
    view: PostgresView, space: str, queries: Any, k: int, condition: Condition, own: Int64
) -> list[Answer]:
    """Compare all sets with all queries, block by block."""
    best = [Answer(np.empty(0, np.int64), np.empty(0)) for _ in queries]
    for keys, vectors in _blocks(view, space, condition):
        state = _state_of(view, vectors)
        order = np.argsort(keys)
        at = order[np.minimum(np.searchsorted(keys[order], own), len(keys) - 1)]
        excluded = np.where(keys[at] == own, at, -1)
        near = state.nearest(queries, k, recall=1.0, exclude=excluded)
        tied = np.flatnonzero(near.tied) if near.tied is not None else ()
        for i in range(len(queries)):
            positions = near.positions[i]
            if i in tied:
                radius = np.array([near.distances[i, -1] * (1 + 1e-6)])
                positions = state.within(queries[i : i + 1], radius, recall=1.0, exclude=excluded[i : i + 1]).positions
            best[i] = _merged(best[i], keys, vectors, positions[positions >= 0], queries[i], k)
    return best


def within_here(
    view: PostgresView, space: str, queries: Any, radii: Float64, condition: Condition, own: Int64, metric: Metric
) -> list[Answer]:
    parts: list[list[tuple[Int64, Float64]]] = [[] for _ in queries]
    for keys, vectors in _blocks(view, space, condition):
        state = _state_of(view, vectors)
        found = state.within(queries, radii * (1 + 1e-6), recall=1.0, metric=metric)
        for i, part in enumerate(parts):
            positions = found.positions[found.offsets[i] : found.offsets[i + 1]]
            if metric == "euclidean":
                distances = _distances(queries[i], vectors[positions])
            else:
                distances = found.distances[found.offsets[i] : found.offsets[i + 1]]
            part.append((keys[positions], distances))
    answers = []
    for i, part in enumerate(parts):
        keys = np.concatenate([np.empty(0, np.int64), *(each for each, _ in part)])
        distances = np.concatenate([np.empty(0), *(each for _, each in part)])
        kept = (keys != own[i]) & (distances <= radii[i])
        order = np.lexsort((keys[kept], distances[kept]))
        answers.append(Answer(keys[kept][order], distances[kept][order]))
    return answers


def nearest_codes(view: PostgresView, queries: Any, k: int, condition: Condition, own: Int64) -> list[Answer]:
    """Return the k nearest by the codes of the vectors, which are made here: the server does not store them."""
    assert isinstance(view.spec.search, HammingSearch)
    hash_ = view.spec.search.given_hash
    asked = hash_.transform(queries)
    best = [Answer(np.empty(0, np.int64), np.empty(0)) for _ in queries]
    for keys, vectors in _blocks(view, WHOLE, condition):
        codes = hash_.transform(vectors)
        for i, code in enumerate(asked):
            away = np.concatenate([best[i].distances, BITS[codes ^ code].sum(axis=1, dtype=np.int64)])
            both = np.concatenate([best[i].keys, keys])
            order = np.lexsort((both, away))
            order = order[both[order] != own[i]][:k]
            best[i] = Answer(both[order], away[order])
    return best


def _state_of(view: PostgresView, vectors: Any) -> State:
    """Return vectors as something that can be searched."""
    search = ExactSearch(n_jobs=view.spec.search.n_jobs)
    return search.start(vectors.shape[1]).extend(np.ascontiguousarray(vectors, np.float32))


def _merged(known: Answer, keys: Int64, vectors: Any, positions: Int64, query: Any, k: int) -> Answer:
    distances = np.concatenate([known.distances, _distances(query, vectors[positions])])
    both = np.concatenate([known.keys, keys[positions]])
    order = np.lexsort((both, distances))
    if len(order) > k:
        order = order[distances[order] <= distances[order[k - 1]]]
    return Answer(both[order], distances[order])
