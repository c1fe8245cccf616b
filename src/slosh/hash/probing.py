"""Query-directed multi-probe for p-stable hashes: which buckets to look into besides the query's own.

Given the positions of queries in their cells, (n, T, k), as `PStableHash.positions` returns them, `probes` finds the
buckets of all T tables together that most likely hold a neighbour, and `success` says how likely they do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ..native.arrays import Float32, Float64, Int64

SPREAD = 0.3
"""Buckets are ordered for neighbours at this distance, in widths of a cell. From 0.15 to 0.4 it matters little."""
STEPS = 4096
"""Places in a cell that scores tell apart."""
SCORE_UNIT, LARGEST_SCORE = 1 / 1024, 40.0
"""Scores are integer multiples of a unit, and bounded: sums in float32 are then exact, and a query has the same buckets
in any batch."""
MAX_TABLE_PROBES = 256
"""The largest number of perturbed buckets of one table."""
BLOCK_SCORES = 1 << 20
"""Scores computed at once."""
SUCCESS_DRAWS = 512
"""Draws of the places in the cells, for probabilities that have no closed form."""
TINY = 1e-300
"""Stands for a probability of zero under a logarithm."""


class Probes(NamedTuple):
    """P buckets for each query: first the T buckets of the query itself, then the others, the likeliest first.

    tables : (n, P), the table of each bucket.
    moves : (n, P, L), how the bucket differs from the query's own in that table: i moves hash i - 1 one cell up, -i one
        cell down, and 0 moves nothing.
    """

    tables: Int64
    moves: NDArray[np.int16]


class Template(NamedTuple):
    """Sets of borders of a table's cells. A border is its rank by distance among 2 k; j and 2 k - 1 - j bound one cell.

    ranks : (M, L), padded with 2 k.
    member : (2 k, M), 1 where the rank is in the set.
    """

    ranks: Int64
    member: Float32


@lru_cache(maxsize=64)
def template(k: int, most: int) -> Template:
    """Return all sets of borders that can be among the `most` best of a table, whatever the distances.

    A set is no better than one whose ranks are all as small or smaller. So it is left out as soon as `most` others are
    below it; only sets of the k nearer borders are counted, which never have two borders of the same cell.
    """
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [(0,)]
    while stack:
        ranks = stack.pop()
        if _below(ranks, k) > most:
            continue
        twice = 2 * k - 1 - ranks[-1] in ranks  # both borders of a cell
        if not twice:
            found.append(ranks)
        last = ranks[-1] + 1
        if last < 2 * k:
            stack += [(*ranks[:-1], last)] if twice else [(*ranks[:-1], last), (*ranks, last)]
    found.sort(key=lambda ranks: (sum((rank + 1) * (rank + 2) for rank in ranks), ranks))  # about the mean score
    # With few hashes the count above stops little; what is cut off here is never among the best.
    found = found[: 8 * most]
    out = np.full((len(found), max(map(len, found), default=1)), 2 * k, np.int64)
    member = np.zeros((2 * k, len(found)), np.float32)
    for i, ranks in enumerate(found):
        out[i, : len(ranks)] = ranks
        member[list(ranks), i] = 1
    return Template(out, member)


def _below(ranks: tuple[int, ...], k: int) -> int:
    """Count the sets of the k nearer borders, not empty, that are no worse: as many ranks or fewer, each no larger."""
    total, ways = 0, [1] + [0] * k  # ways[j]: sets so far whose smallest rank is k - j, from the largest rank down
    for rank in reversed(ranks):
        upto, new = 0, [0] * (k + 1)
        for j in range(k):
            upto += ways[j]
            if k - 1 - j <= rank:
                new[j + 1] = upto
        ways = new
        total += sum(ways)
    return total


def probes(positions: Float64, n_probes: int, p: int = 2) -> Probes:
    """Return the `n_probes` likeliest buckets of each query, at positions (n, T, k), in all tables together.

    A neighbour at the distance r is in the cell next to the query's own with the probability that a p-stable number of
    scale r carries it over the border, and one of k cells with the product. So a bucket's score is

        sum of -log P(stays) over all k hashes  +  sum of log P(stays) / P(crosses) over the borders that are crossed

    at r = SPREAD w. The T buckets of the query itself come first, so that `success_probability` of the hash always
    holds; the others in order of their score. No cell but the next ones is looked at. `n_probes` is T or more; all
    buckets are returned if there are fewer.
    """
    n, T, k = positions.shape
    sets = template(k, per_table(T, n_probes))
    extra = min(max(0, n_probes - T), T * len(sets.ranks))
    tables = np.empty((n, T + extra), np.int64)
    moves = np.zeros((n, T + extra, sets.ranks.shape[1]), np.int16)
    step = max(1, BLOCK_SCORES // (T * max(2 * k, len(sets.ranks))))
    for first in range(0, n, step):
        part = slice(first, first + step)
        tables[part], moves[part, T:] = _block(positions[part], extra, p, sets)
    return Probes(tables, moves)


def per_table(T: int, n_probes: int) -> int:
    """Return how many perturbed buckets of one table are considered: more are hardly ever among the best of all."""
    extra = max(1, n_probes - T)
    return min(extra, 16 + 4 * extra // T, MAX_TABLE_PROBES)


def _block(positions: Float64, extra: int, p: int, sets: Template) -> tuple[Int64, NDArray[np.int16]]:
    n, T, k = positions.shape
    place = positions - np.floor(positions)
    cell = np.minimum((place * STEPS).astype(np.int32), STEPS - 1)
    stays, crosses = score_tables(p)
    home = stays[cell].sum(axis=2)
    homes = np.argsort(home, axis=1, kind="stable")
    if not extra:
        return homes, np.zeros((n, 0, sets.ranks.shape[1]), np.int16)
    # Of each hash the nearer border, by distance; then the farther ones, which are in the opposite order.
    up = cell >= STEPS // 2
    nearer = np.where(up, STEPS - 1 - cell, cell)
    order = np.argsort(nearer, axis=2, kind="stable")
    sorted_cells = np.take_along_axis(nearer, order, axis=2)
    borders = np.concatenate([crosses[sorted_cells], crosses[STEPS - 1 - sorted_cells[:, :, ::-1]]], axis=2)
    score = (borders.reshape(n * T, 2 * k) @ sets.member).reshape(n, T, -1)
    score += home[:, :, None]
    table, which = np.divmod(_smallest(score, extra), len(sets.ranks))
    code = (order + 1).astype(np.int16)
    np.negative(code, out=code, where=~np.take_along_axis(up, order, axis=2))
    signed = np.concatenate([code, -code[:, :, ::-1], np.zeros((n, T, 1), np.int16)], axis=2)
    at = (np.arange(n)[:, None] * T + table) * (2 * k + 1)
    moves = signed.ravel()[at[:, :, None] + sets.ranks[which]]
    return np.concatenate([homes, table], axis=1), moves


def _smallest(score: Float32, count: int) -> Int64:
    """Return the indices into score[i].ravel() of the `count` smallest scores of each query, (n, count), in order.

    The first sets of the template are the best ones of most queries: they give a limit, which few others pass.
    """
    n, T, M = score.shape
    first = min(M, -(-2 * count // T))
    limit = np.partition(score[:, :, :first].reshape(n, -1), count - 1, axis=1)[:, count - 1]
    passed = np.flatnonzero(score <= limit[:, None, None])
    query = passed // (T * M)
    starts = np.searchsorted(query, np.arange(n + 1))
    column = np.arange(len(passed)) - starts[query]
    width = int(np.diff(starts).max())
    values, where = np.full((n, width), np.inf, np.float32), np.zeros((n, width), np.int64)
    values[query, column], where[query, column] = score.ravel()[passed], passed - query * (T * M)
    return np.take_along_axis(where, np.argsort(values, axis=1, kind="stable")[:, :count], axis=1)


@lru_cache(maxsize=2)
def score_tables(p: int) -> tuple[Float32, Float32]:
    """Return -log P(stays), and `crossing` of the lower border, at STEPS places of a cell, in units of a score."""
    place = (np.arange(STEPS) + 0.5) / STEPS
    scores = -log_stays(place, SPREAD, p), crossing(place, SPREAD, p)
    stays, crosses = (np.rint(np.minimum(score, LARGEST_SCORE) / SCORE_UNIT).astype(np.float32) for score in scores)
    return stays, crosses


def crossing(distance: Float64, spread: float, p: int) -> Float64:
    """Return log P(stays) / P(crosses): how much less likely the cell beyond a border is than the query's own.

    `distance` to the border and `spread`, the distance of the neighbour, are in widths of a cell. It rises with the
    distance; for p = 1, where it would fall again near the far border, P(stays) is that in the middle from there on.
    """
    inside = np.minimum(distance, 0.5) if p == 1 else distance
    return log_stays(inside, spread, p) - _log(_cdf(-distance / spread, p) - _cdf(-(1 + distance) / spread, p))


def log_stays(place: Float64, spread: float, p: int) -> Float64:
    """Return log P(stays), that a neighbour is in the cell of the query, which lies at `place` in it."""
    return _log(_cdf((1 - place) / spread, p) - _cdf(-place / spread, p))


def _cdf(x: Float64, p: int) -> Float64:
    return np.asarray(ndtr(x) if p == 2 else 0.5 + np.arctan(x) / math.pi)


def _log(probability: Float64) -> Float64:
    return np.asarray(np.log(np.maximum(probability, TINY)))


def bucket_probabilities(positions: Float64, found: Probes, ratios: Float64, p: int = 2) -> Float64:
    """Return how likely a neighbour at the distance ratio * width is in each bucket of `found`, (len(ratios), n, P)."""
    n, T, k = positions.shape
    place = positions - np.floor(positions)
    code = np.where(found.moves > 0, found.moves + k, -found.moves)  # 0: no move; 1 to k: down; k + 1 to 2 k: up
    at = np.arange(n)[:, None, None], found.tables[:, :, None], code
    out = np.empty((len(ratios), *found.tables.shape))
    for i, ratio in enumerate(ratios):
        spread = max(float(ratio), 1e-9)
        stays = log_stays(place, spread, p)
        to_border = np.concatenate([place, 1 - place], axis=2) / spread
        leaves = _log(_cdf(-to_border, p) - _cdf(-to_border - 1 / spread, p)) - np.concatenate([stays, stays], axis=2)
        table = np.concatenate([np.zeros((n, T, 1)), leaves], axis=2)
        home = np.take_along_axis(stays.sum(axis=2), found.tables, axis=1)
        out[i] = np.exp(home + table[at].sum(axis=2))
    return out


def success(
    n_tables: int, n_hashes: int, n_probes: int | Sequence[int], ratios: Float64, p: int = 2, draws: int = SUCCESS_DRAWS
) -> tuple[Float64, Float64]:
    """Return how likely a neighbour at the distance ratio * width is in a probed bucket, and the standard error.

    Given where a query lies in its cells the probability is known, 1 - prod_t (1 - sum of the buckets of table t); it
    is averaged over `draws` of that place, uniform in the cells, as the offsets of the hash make it. Both are of
    the shape of `ratios`; for several `n_probes`, in increasing order, (len(n_probes), len(ratios)).
    """
    levels = [n_probes] if isinstance(n_probes, int) else list(n_probes)
    random = np.random.RandomState(np.array([0x9B0B, n_tables, n_hashes], np.uint32))
    shape = (len(levels), len(ratios))
    mean, square = np.zeros(shape), np.zeros(shape)
    step = max(1, (1 << 21) // (len(ratios) * max(levels[-1], n_tables * n_hashes)))
    for first in range(0, draws, step):
        positions = random.uniform(size=(min(step, draws - first), n_tables, n_hashes))
        found = probes(positions, levels[-1], p)
        chance = bucket_probabilities(positions, found, ratios, p)
        for i, level in enumerate(levels):
            hit = _found_in_any(chance[:, :, :level], found.tables[:, :level], n_tables)
            mean[i] += hit.sum(axis=1)
            square[i] += (hit**2).sum(axis=1)
    mean /= draws
    error = np.sqrt(np.maximum(0, square / draws - mean**2) / draws)
    return (mean[0], error[0]) if isinstance(n_probes, int) else (mean, error)


def _found_in_any(chance: Float64, tables: Int64, n_tables: int) -> Float64:
    """Return 1 - prod over the tables of (1 - sum of its buckets), (G, n), given the chance (G, n, P)."""
    n = len(tables)
    cell = (np.arange(n)[:, None] * n_tables + tables).ravel()
    in_table = [np.bincount(cell, each.ravel(), n * n_tables).reshape(n, n_tables) for each in chance]
    return np.asarray(1 - np.prod(1 - np.minimum(in_table, 1), axis=2))
