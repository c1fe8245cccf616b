"""How good neighbours are: precision@k and vote accuracy from labels, recall@k and mean average precision from rows.

Arrays of labels or rows have one row a query, the nearest neighbour first. -1 stands for an unlabelled neighbour or an
empty slot. Every measure is one number between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .data.checks import as_array, input_error
from .errors import InputError, bad_value
from .native.arrays import Array, Float64, Int64, Mask

EVALUATION_BLOCK_NUMBERS = 1 << 22
"""Numbers held at once."""
INTERPOLATIONS = ("plain", "trapezoid")


def precision_at_k(neighbour_labels: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of neighbours that have the label of their query, over all n k of them.

    neighbour_labels : (n, k) labels of the neighbours: numbers or strings. -1 is a miss.
    labels : (n,) labels of the queries.

    >>> precision_at_k([["a", "b"], ["b", "b"]], ["a", "b"])
    0.75
    """
    neighbours, queries = _checked_labels(neighbour_labels, labels)
    return float(np.mean(neighbours == queries[:, None]))


def vote_accuracy(neighbour_labels: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of queries whose label is the one that most of their neighbours have.

    A tie goes to the smallest label (the first in the alphabet for strings). Neighbours labelled -1 do not vote; a
    query none of whose neighbours vote is counted as wrong. The parameters are those of `precision_at_k`.

    >>> vote_accuracy([[7, 1, 1], [2, 1, -1]], [1, 2])
    0.5
    """
    neighbours, queries = _checked_labels(neighbour_labels, labels)
    names, codes = np.unique(neighbours, return_inverse=True)
    codes = codes.reshape(neighbours.shape)
    voters = np.ones(len(names), bool) if names.dtype.kind == "U" else names != -1
    right = 0
    step = max(1, EVALUATION_BLOCK_NUMBERS // len(names))
    for start in range(0, len(queries), step):
        part = codes[start : start + step]
        cells = np.arange(len(part))[:, None] * len(names) + part
        votes = np.bincount(cells.ravel(), minlength=len(part) * len(names)).reshape(len(part), -1) * voters
        winners = votes.argmax(axis=1)  # the first of equals, and names are sorted
        right += int(np.sum((names[winners] == queries[start : start + step]) & votes.any(axis=1)))
    return right / len(queries)


def recall_at_k(rows: ArrayLike, exact_rows: ArrayLike) -> float:
    """Return the share of the true neighbours that were found: the mean of |rows and exact_rows| / |exact_rows|.

    The order does not matter, a row found twice counts once, and -1 is an empty slot on both sides. The denominator is
    the number of true neighbours given, k' less empty slots; so with k < k' the recall cannot reach 1. Pass
    `exact_rows[:, :k]` for the usual recall@k. Queries without true neighbours are left out.

    rows : (n, k) rows found. exact_rows : (n, k') rows of the true neighbours.

    >>> recall_at_k([[4, -1], [9, 8]], [[2, 4], [8, 9]])
    0.75
    """
    found, exact = _checked_rows(rows, "rows"), _checked_rows(exact_rows, "exact_rows")
    if len(found) != len(exact):
        problem = f"rows has {len(found)} queries, exact_rows has {len(exact)}"
        raise InputError(problem, "pass one row of each for every query", argument="exact_rows")
    _check_no_row_twice(exact, "exact_rows")
    shares = []
    step = max(1, EVALUATION_BLOCK_NUMBERS // (found.shape[1] + exact.shape[1]))
    for start in range(0, len(found), step):
        part = exact[start : start + step]
        wanted = part >= 0
        hits = np.sum(wanted & _among(part, *_filled(found[start : start + step])), axis=1)
        shares.append((hits, np.sum(wanted, axis=1)))
    return _mean_share(shares, "exact_rows", "holds nothing but -1: there is nothing to find")


def mean_average_precision(
    ranked_rows: ArrayLike,
    relevant: Sequence[ArrayLike] | Mask,
    ignored: Sequence[ArrayLike] | Mask | None = None,
    interpolation: str = "plain",
) -> float:
    """Return the mean over the queries of the average precision of their rankings.

    Ignored rows are taken out of a ranking before anything is counted, as landmark retrieval needs it: they are neither
    hits nor misses. In what is left let the j-th hit be at rank n_j = 1, 2, ..., and let R rows be relevant, found or
    not. Then the average precision is

        "plain":      1/R  sum over the hits j of  j / n_j
        "trapezoid":  1/R  sum over the hits j of  ((j - 1) / (n_j - 1) + j / n_j) / 2,   0 / 0 = 1

    The first is the usual one. The second is that of the Oxford and Paris buildings: the area under the
    precision-recall curve by trapezoids, from the precision just before each hit to that just after it.

    ranked_rows : (n, m) rows in the order of the ranking, best first; -1 is an empty slot.
    relevant : for each query a list of its relevant rows, or a boolean mask (n, number of rows). Queries without any
        are left out.
    ignored : the same for the rows to be ignored, or None.
    interpolation : "plain" or "trapezoid".

    >>> mean_average_precision([[3, 0, 5, 1]], relevant=[[0, 1]])
    0.5
    >>> mean_average_precision([[3, 0, 5, 1]], relevant=[[0, 1]], ignored=[[3, 5]])
    1.0
    """
    if interpolation not in INTERPOLATIONS:
        raise bad_value("interpolation", interpolation, f"pass one of {', '.join(map(repr, INTERPOLATIONS))}")
    ranked = _checked_rows(ranked_rows, "ranked_rows")
    _check_no_row_twice(ranked, "ranked_rows")
    _check_lists(relevant, "relevant", ranked)
    if ignored is not None:
        _check_lists(ignored, "ignored", ranked)
    shares = []
    step = max(1, EVALUATION_BLOCK_NUMBERS // ranked.shape[1])
    for start in range(0, len(ranked), step):
        part = ranked[start : start + step]
        keep = part >= 0
        queries, rows = _pairs(relevant, "relevant", start, len(part))
        if ignored is not None:
            junk = _pairs(ignored, "ignored", start, len(part))
            _check_apart(queries, rows, *junk, start)
            keep &= ~_among(part, *junk)
        hit = keep & _among(part, queries, rows)
        shares.append((_precisions(hit, keep, interpolation).sum(axis=1), np.bincount(queries, minlength=len(part))))
    return _mean_share(shares, "relevant", "is empty for every query: there is nothing to find")


def _mean_share(shares: list[tuple[Array, Array]], name: str, problem: str) -> float:
    """Return the mean of found / there over the queries where something is there; refuse to if there is none."""
    found, there = (np.concatenate(each) for each in zip(*shares, strict=True))
    if not there.any():
        raise input_error(name, problem)
    return float((found[there > 0] / there[there > 0]).mean())


def _precisions(hit: Mask, keep: Mask, interpolation: str) -> Float64:
    """Return what each hit adds to R times the average precision, and 0 elsewhere."""
    rank, hits = (np.cumsum(x, axis=1, dtype=np.float64) for x in (keep, hit))
    at = np.divide(hits, rank, out=np.zeros_like(rank), where=hit)
    if interpolation == "plain":
        return at
    before = np.divide(hits - 1, rank - 1, out=np.ones_like(rank), where=hit & (rank > 1))
    return np.where(hit, (before + at) / 2, 0.0)


# -- sets of rows, one for each query: as flat arrays (query, row) -----------------------------------------------------


def _filled(rows: Int64) -> tuple[Int64, Int64]:
    """Return the query and the row of each slot of rows (n, k) that is not empty."""
    filled = rows >= 0
    return np.nonzero(filled)[0], rows[filled]


def _pairs(lists: Any, name: str, start: int, n: int) -> tuple[Int64, Int64]:
    """Return the lists of n queries from `start` on as pairs (query, row); queries are counted from `start`."""
    part = lists[start : start + n]
    if isinstance(part, np.ndarray) and part.dtype.kind == "b":
        queries, rows = np.nonzero(part)
        return queries, rows
    each = [np.unique(_checked_list(rows, name, start + i)) for i, rows in enumerate(part)]
    return np.repeat(np.arange(n), [len(rows) for rows in each]), np.concatenate([np.empty(0, np.int64), *each])


def _among(rows: Int64, queries: Int64, members: Int64) -> Mask:
    """Return which of the rows (n, m) are members for their query."""
    own = np.repeat(np.arange(len(rows)), rows.shape[1])
    return _same_pairs(own, rows.ravel(), queries, members).reshape(rows.shape)


def _same_pairs(queries: Int64, rows: Int64, other_queries: Int64, others: Int64) -> Mask:
    names, codes = np.unique(np.concatenate([rows, others]), return_inverse=True)
    keys = np.concatenate([queries, other_queries]) * len(names) + codes.ravel()
    return np.isin(keys[: len(rows)], keys[len(rows) :])


# -- checks ------------------------------------------------------------------------------------------------------------


def _checked_labels(neighbour_labels: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    neighbours, queries = _label_array(neighbour_labels, "neighbour_labels"), _label_array(labels, "labels")
    n, found = len(neighbours), queries.shape
    if neighbours.ndim != 2 or neighbours.size == 0:
        raise input_error("neighbour_labels", f"must be (n, k), one row a query, not of shape {neighbours.shape}")
    if found != (n,):
        raise input_error("labels", f"must be ({n},), one for each row of neighbour_labels, not of shape {found}")
    if (neighbours.dtype.kind == "U") != (queries.dtype.kind == "U"):
        problem = f"neighbour_labels are {neighbours.dtype}, labels are {queries.dtype}"
        raise InputError(problem, "pass both as strings or as numbers", argument="labels")
    if queries.dtype.kind != "U" and (unlabelled := np.flatnonzero(queries == -1)).size:
        problem = f"labels: query {unlabelled[0]} has the label -1, which means unlabelled"
        raise InputError(problem, "leave it out", argument="labels")
    return neighbours, queries


def _label_array(labels: ArrayLike, name: str) -> Array:
    array = as_array(labels, name)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())  # strings in a pandas column, say
    if array.dtype.kind not in "iubfU":
        problem = f"{name}: dtype {array.dtype}; labels must be numbers or strings, all of one kind"
        raise InputError(problem, argument=name)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise input_error(name, "holds NaN", "give unlabelled neighbours the label -1")
    return array


def _checked_rows(rows: ArrayLike, name: str) -> Int64:
    array = as_array(rows, name)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise input_error(name, f"must be integers (n, k), one row a query, not {array.dtype} of {array.shape}")
    _check_no_negative_rows(array, name)
    return array.astype(np.int64, copy=False)


def _check_no_negative_rows(array: Array, name: str) -> None:
    if array.size and array.min() < -1:
        raise input_error(name, f"holds {array.min()}: rows count from 0, and -1 is an empty slot")


def _check_no_row_twice(rows: Int64, name: str) -> None:
    step = max(1, EVALUATION_BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        ordered = np.sort(rows[start : start + step], axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        for query, place in np.argwhere(twice)[:1]:
            raise InputError(f"{name}: query {start + query} has row {ordered[query, place]} twice", argument=name)


def _check_lists(lists: Any, name: str, ranked: Int64) -> None:
    """Refuse what is neither a list for each query nor a mask over all rows."""
    if isinstance(lists, np.ndarray) and lists.dtype.kind == "b":
        if lists.ndim != 2 or lists.shape[1] <= ranked.max():
            must = f"it must be (n, number of rows), and rows up to {ranked.max()} are ranked"
            raise input_error(name, f"is a mask of shape {lists.shape}: {must}")
    elif not isinstance(lists, Sequence | np.ndarray) or isinstance(lists, str):
        found = type(lists).__name__
        raise input_error(name, f"must be a list of rows for each query, or a boolean mask, not a {found}")
    if len(lists) != len(ranked):
        raise input_error(name, f"is for {len(lists)} queries, ranked_rows has {len(ranked)}")


def _checked_list(rows: ArrayLike, name: str, query: int) -> Int64:
    about = f"{name} of query {query}"
    array = as_array(rows, about)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        what = f"must be a list of rows, integers, not {array.dtype} of shape {array.shape}"
        raise input_error(about, what, argument=name)
    _check_no_negative_rows(array, about)
    return array[array >= 0].astype(np.int64)


def _check_apart(queries: Int64, rows: Int64, other_queries: Int64, others: Int64, start: int) -> None:
    for i in np.flatnonzero(_same_pairs(queries, rows, other_queries, others))[:1]:
        raise InputError(f"query {start + queries[i]}: row {rows[i]} is both relevant and ignored", argument="ignored")
