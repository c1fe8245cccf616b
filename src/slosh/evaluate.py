"""How good neighbours are: precision@k and vote accuracy from labels, recall@k and mean average precision from rows.

Arrays of labels or rows come in, one row a query, the nearest neighbour first; one number between 0 and 1 goes out.
-1 stands for what is not there: an unlabelled neighbour, an empty slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .data.checks import Array, as_array

Int64: TypeAlias = NDArray[np.int64]

BLOCK = 1 << 22  # numbers held at once
INTERPOLATIONS = ("plain", "trapezoid")


def precision_at_k(neighbour_labels: ArrayLike, labels: ArrayLike) -> float:
    """The share of neighbours that have the label of their query, over all n k of them.

    Parameters
    ----------
    neighbour_labels : (n, k) labels of the neighbours: numbers or strings. -1 is a miss.
    labels : (n,) labels of the queries.

    >>> precision_at_k([["a", "b"], ["b", "b"]], ["a", "b"])
    0.75
    """
    neighbours, queries = _checked_labels(neighbour_labels, labels)
    return float(np.mean(neighbours == queries[:, None]))


def vote_accuracy(neighbour_labels: ArrayLike, labels: ArrayLike) -> float:
    """The share of queries whose label is the one that most of their neighbours have.

    A tie goes to the smallest label (the first in the alphabet for strings). Neighbours labelled -1 do not vote; a
    query none of whose neighbours vote is counted as wrong.

    Parameters
    ----------
    neighbour_labels : (n, k) labels of the neighbours: numbers or strings.
    labels : (n,) labels of the queries.

    >>> vote_accuracy([[7, 1, 1], [2, 1, -1]], [1, 2])
    0.5
    """
    neighbours, queries = _checked_labels(neighbour_labels, labels)
    names, codes = np.unique(neighbours, return_inverse=True)
    codes = codes.reshape(neighbours.shape)
    voters = np.ones(len(names), bool) if names.dtype.kind == "U" else names != -1
    right = 0
    step = max(1, BLOCK // len(names))
    for start in range(0, len(queries), step):
        part = codes[start : start + step]
        cells = np.arange(len(part))[:, None] * len(names) + part
        votes = np.bincount(cells.ravel(), minlength=len(part) * len(names)).reshape(len(part), -1) * voters
        winners = votes.argmax(axis=1)  # the first of equals, and names are sorted
        right += int(np.sum((names[winners] == queries[start : start + step]) & votes.any(axis=1)))
    return right / len(queries)


def recall_at_k(rows: ArrayLike, exact_rows: ArrayLike) -> float:
    """How many of the true neighbours were found: the mean over the queries of |rows and exact_rows| / |exact_rows|.

    The order does not matter, a row found twice counts once, and -1 is an empty slot on both sides. The denominator is
    the number of true neighbours given, k' less empty slots; so with k < k' the recall cannot reach 1. Cut
    `exact_rows[:, :k]` for the usual recall@k. Queries without true neighbours are left out.

    Parameters
    ----------
    rows : (n, k) rows found.
    exact_rows : (n, k') rows of the true neighbours.

    >>> recall_at_k([[4, -1], [9, 8]], [[2, 4], [8, 9]])
    0.75
    """
    found, exact = _checked_rows(rows, "rows"), _checked_rows(exact_rows, "exact_rows")
    if len(found) != len(exact):
        raise ValueError(f"rows has {len(found)} queries, exact_rows has {len(exact)}: give one row of each a query")
    _check_no_row_twice(exact, "exact_rows")
    recalls = []
    step = max(1, BLOCK // (found.shape[1] + exact.shape[1]))
    for start in range(0, len(found), step):
        part = exact[start : start + step]
        wanted = part >= 0
        hits = np.sum(wanted & _among(part, *_filled(found[start : start + step])), axis=1)
        counts = np.sum(wanted, axis=1)
        recalls.append(hits[counts > 0] / counts[counts > 0])
    each = np.concatenate(recalls)
    if not each.size:
        raise ValueError("exact_rows holds nothing but -1: there is nothing to be found")
    return float(each.mean())


def mean_average_precision(
    ranked_rows: ArrayLike,
    relevant: Sequence[ArrayLike] | NDArray[np.bool_],
    ignored: Sequence[ArrayLike] | NDArray[np.bool_] | None = None,
    interpolation: str = "plain",
) -> float:
    """The mean over the queries of the average precision of their rankings.

    Ignored rows are taken out of a ranking before anything is counted, as landmark retrieval needs it: they are neither
    hits nor misses. In what is left let the j-th hit be at rank n_j = 1, 2, ..., and let R rows be relevant, found or
    not. Then the average precision is

        "plain":      1/R  sum over the hits j of  j / n_j
        "trapezoid":  1/R  sum over the hits j of  ((j - 1) / (n_j - 1) + j / n_j) / 2,   0 / 0 = 1

    The first is the usual one. The second is that of the Oxford and Paris buildings: the area under the
    precision-recall curve by trapezoids, from the precision just before each hit to that just after it.

    Parameters
    ----------
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
        raise ValueError(f"interpolation={interpolation!r}: give one of {', '.join(map(repr, INTERPOLATIONS))}")
    ranked = _checked_rows(ranked_rows, "ranked_rows")
    _check_no_row_twice(ranked, "ranked_rows")
    _check_lists(relevant, "relevant", ranked)
    if ignored is not None:
        _check_lists(ignored, "ignored", ranked)
    averages = []
    step = max(1, BLOCK // ranked.shape[1])
    for start in range(0, len(ranked), step):
        part = ranked[start : start + step]
        keep = part >= 0
        queries, rows = _pairs(relevant, "relevant", start, len(part))
        if ignored is not None:
            junk = _pairs(ignored, "ignored", start, len(part))
            _check_apart(queries, rows, *junk, start)
            keep &= ~_among(part, *junk)
        hit = keep & _among(part, queries, rows)
        n_relevant = np.bincount(queries, minlength=len(part))
        total = _precisions(hit, keep, interpolation).sum(axis=1)
        averages.append(total[n_relevant > 0] / n_relevant[n_relevant > 0])
    each = np.concatenate(averages)
    if not each.size:
        raise ValueError("relevant is empty for every query: there is nothing to be found")
    return float(each.mean())


def _precisions(hit: NDArray[np.bool_], keep: NDArray[np.bool_], interpolation: str) -> NDArray[np.float64]:
    """What each hit adds to R times the average precision; 0 elsewhere."""
    rank, hits = (np.cumsum(x, axis=1, dtype=np.float64) for x in (keep, hit))
    at = np.divide(hits, rank, out=np.zeros_like(rank), where=hit)
    if interpolation == "plain":
        return at
    before = np.divide(hits - 1, rank - 1, out=np.ones_like(rank), where=hit & (rank > 1))
    return np.where(hit, (before + at) / 2, 0.0)


# -- sets of rows, one for each query: as flat arrays (query, row) -----------------------------------------------------


def _filled(rows: Int64) -> tuple[Int64, Int64]:
    """The slots of rows (n, k) that are not empty."""
    there = rows >= 0
    return np.nonzero(there)[0], rows[there]


def _pairs(lists: Any, name: str, start: int, n: int) -> tuple[Int64, Int64]:
    """The lists of the queries from `start` on; queries are counted from there."""
    part = lists[start : start + n]
    if isinstance(part, np.ndarray) and part.dtype.kind == "b":
        queries, rows = np.nonzero(part)
        return queries, rows
    each = [np.unique(_checked_list(rows, name, start + i)) for i, rows in enumerate(part)]
    return np.repeat(np.arange(n), [len(rows) for rows in each]), np.concatenate([np.empty(0, np.int64), *each])


def _among(rows: Int64, queries: Int64, members: Int64) -> NDArray[np.bool_]:
    """Which of the rows (n, m) are members for their query."""
    return _same_pairs(np.repeat(np.arange(len(rows)), rows.shape[1]), rows.ravel(), queries, members).reshape(
        rows.shape
    )


def _same_pairs(queries: Int64, rows: Int64, other_queries: Int64, others: Int64) -> NDArray[np.bool_]:
    names, codes = np.unique(np.concatenate([rows, others]), return_inverse=True)
    keys = np.concatenate([queries, other_queries]) * len(names) + codes.ravel()
    return np.isin(keys[: len(rows)], keys[len(rows) :])


# -- checks ------------------------------------------------------------------------------------------------------------


def _checked_labels(neighbour_labels: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    neighbours, queries = (
        _label_array(x, name) for x, name in ((neighbour_labels, "neighbour_labels"), (labels, "labels"))
    )
    if neighbours.ndim != 2 or neighbours.size == 0:
        raise ValueError(f"neighbour_labels must be (n, k), one row a query, not of shape {neighbours.shape}")
    if queries.shape != neighbours.shape[:1]:
        raise ValueError(
            f"labels must be ({len(neighbours)},), one for each row of neighbour_labels, not of shape {queries.shape}"
        )
    if (neighbours.dtype.kind == "U") != (queries.dtype.kind == "U"):
        raise ValueError(
            f"neighbour_labels are {neighbours.dtype}, labels are {queries.dtype}: give both as strings or as numbers"
        )
    if queries.dtype.kind != "U" and (unlabelled := np.flatnonzero(queries == -1)).size:
        raise ValueError(f"labels: query {unlabelled[0]} has the label -1, which means unlabelled: leave it out")
    return neighbours, queries


def _label_array(labels: ArrayLike, name: str) -> Array:
    array = as_array(labels, name)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())  # strings in a pandas column, say
    if array.dtype.kind not in "iubfU":
        raise ValueError(f"{name}: dtype {array.dtype}; labels must be numbers or strings, all of one kind")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"{name} holds NaN: give unlabelled neighbours the label -1")
    return array


def _checked_rows(rows: ArrayLike, name: str) -> Int64:
    array = as_array(rows, name)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be whole numbers (n, k), one row a query, not {array.dtype} of {array.shape}")
    _check_not_below(array, name)
    return array.astype(np.int64, copy=False)


def _check_not_below(array: Array, name: str) -> None:
    if array.size and array.min() < -1:
        raise ValueError(f"{name} holds {array.min()}: rows count from 0, and -1 is an empty slot")


def _check_no_row_twice(rows: Int64, name: str) -> None:
    step = max(1, BLOCK // rows.shape[1])
    for start in range(0, len(rows), step):
        ordered = np.sort(rows[start : start + step], axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        for query, place in np.argwhere(twice)[:1]:
            raise ValueError(f"{name}: query {start + query} has row {ordered[query, place]} twice")


def _check_lists(lists: Any, name: str, ranked: Int64) -> None:
    """Refuses what is neither a list for each query nor a mask over all rows."""
    if isinstance(lists, np.ndarray) and lists.dtype.kind == "b":
        if lists.ndim != 2 or lists.shape[1] <= ranked.max():
            raise ValueError(
                f"{name} is a mask of shape {lists.shape}: it must be (n, number of rows), and rows up to "
                f"{ranked.max()} are ranked"
            )
    elif not isinstance(lists, Sequence | np.ndarray) or isinstance(lists, str):
        raise ValueError(
            f"{name} must be a list of rows for each query, or a boolean mask, not a {type(lists).__name__}"
        )
    if len(lists) != len(ranked):
        raise ValueError(f"{name} is for {len(lists)} queries, ranked_rows has {len(ranked)}")


def _checked_list(rows: ArrayLike, name: str, query: int) -> Int64:
    array = as_array(rows, f"{name} of query {query}")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} of query {query} must be a list of rows, whole numbers, not {array.dtype} of shape {array.shape}"
        )
    _check_not_below(array, f"{name} of query {query}")
    return array[array >= 0].astype(np.int64)


def _check_apart(queries: Int64, rows: Int64, other_queries: Int64, others: Int64, start: int) -> None:
    for i in np.flatnonzero(_same_pairs(queries, rows, other_queries, others))[:1]:
        raise ValueError(f"query {start + queries[i]}: row {rows[i]} is both relevant and ignored")
