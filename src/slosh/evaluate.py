"""How good neighbours are: precision@k and vote accuracy from labels, recall@k and mean average precision from rows.

Arrays of labels or rows have one row a query, the nearest neighbour first. -1 stands for an unlabelled neighbour or an
empty slot. Every measure is one number between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .data.checks import Array, as_array
from .errors import InputError

Int64: TypeAlias = NDArray[np.int64]

BLOCK_NUMBERS = 1 << 22
"""Numbers held at once."""
INTERPOLATIONS = ("plain", "trapezoid")


def precision_at_k(neighbour_labels: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of neighbours that have the label of their query, over all n k of them.

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
    """Return the share of queries whose label is the one that most of their neighbours have.

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
    step = max(1, BLOCK_NUMBERS // len(names))
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

    Parameters
    ----------
    rows : (n, k) rows found.
    exact_rows : (n, k') rows of the true neighbours.

    >>> recall_at_k([[4, -1], [9, 8]], [[2, 4], [8, 9]])
    0.75
    """
    found, exact = _checked_rows(rows, "rows"), _checked_rows(exact_rows, "exact_rows")
    if len(found) != len(exact):
        raise InputError(
            f"rows has {len(found)} queries, exact_rows has {len(exact)}",
            "pass one row of each for every query",
            argument="exact_rows",
        )
    _check_no_row_twice(exact, "exact_rows")
    recalls = []
    step = max(1, BLOCK_NUMBERS // (found.shape[1] + exact.shape[1]))
    for start in range(0, len(found), step):
        part = exact[start : start + step]
        wanted = part >= 0
        hits = np.sum(wanted & _among(part, *_filled(found[start : start + step])), axis=1)
        counts = np.sum(wanted, axis=1)
        recalls.append(hits[counts > 0] / counts[counts > 0])
    each = np.concatenate(recalls)
    if not each.size:
        raise InputError("exact_rows holds nothing but -1: there is nothing to find", argument="exact_rows")
    return float(each.mean())


def mean_average_precision(
    ranked_rows: ArrayLike,
    relevant: Sequence[ArrayLike] | NDArray[np.bool_],
    ignored: Sequence[ArrayLike] | NDArray[np.bool_] | None = None,
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
        known = ", ".join(map(repr, INTERPOLATIONS))
        raise InputError(f"interpolation={interpolation!r}", f"pass one of {known}", argument="interpolation")
    ranked = _checked_rows(ranked_rows, "ranked_rows")
    _check_no_row_twice(ranked, "ranked_rows")
    _check_lists(relevant, "relevant", ranked)
    if ignored is not None:
        _check_lists(ignored, "ignored", ranked)
    averages = []
    step = max(1, BLOCK_NUMBERS // ranked.shape[1])
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
        raise InputError("relevant is empty for every query: there is nothing to find", argument="relevant")
    return float(each.mean())


def _precisions(hit: NDArray[np.bool_], keep: NDArray[np.bool_], interpolation: str) -> NDArray[np.float64]:
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


def _among(rows: Int64, queries: Int64, members: Int64) -> NDArray[np.bool_]:
    """Return which of the rows (n, m) are members for their query."""
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
        raise InputError(
            f"neighbour_labels must be (n, k), one row a query, not of shape {neighbours.shape}",
            argument="neighbour_labels",
        )
    if queries.shape != neighbours.shape[:1]:
        raise InputError(
            f"labels must be ({len(neighbours)},), one for each row of neighbour_labels, not of shape {queries.shape}",
            argument="labels",
        )
    if (neighbours.dtype.kind == "U") != (queries.dtype.kind == "U"):
        raise InputError(
            f"neighbour_labels are {neighbours.dtype}, labels are {queries.dtype}",
            "pass both as strings or as numbers",
            argument="labels",
        )
    if queries.dtype.kind != "U" and (unlabelled := np.flatnonzero(queries == -1)).size:
        raise InputError(
            f"labels: query {unlabelled[0]} has the label -1, which means unlabelled", "leave it out", argument="labels"
        )
    return neighbours, queries


def _label_array(labels: ArrayLike, name: str) -> Array:
    array = as_array(labels, name)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())  # strings in a pandas column, say
    if array.dtype.kind not in "iubfU":
        raise InputError(
            f"{name}: dtype {array.dtype}; labels must be numbers or strings, all of one kind", argument=name
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(f"{name} holds NaN", "give unlabelled neighbours the label -1", argument=name)
    return array


def _checked_rows(rows: ArrayLike, name: str) -> Int64:
    array = as_array(rows, name)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} must be integers (n, k), one row a query, not {array.dtype} of {array.shape}", argument=name
        )
    _check_no_negative_rows(array, name)
    return array.astype(np.int64, copy=False)


def _check_no_negative_rows(array: Array, name: str) -> None:
    if array.size and array.min() < -1:
        raise InputError(f"{name} holds {array.min()}: rows count from 0, and -1 is an empty slot", argument=name)


def _check_no_row_twice(rows: Int64, name: str) -> None:
    step = max(1, BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        ordered = np.sort(rows[start : start + step], axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        for query, place in np.argwhere(twice)[:1]:
            raise InputError(f"{name}: query {start + query} has row {ordered[query, place]} twice", argument=name)


def _check_lists(lists: Any, name: str, ranked: Int64) -> None:
    """Refuse what is neither a list for each query nor a mask over all rows."""
    if isinstance(lists, np.ndarray) and lists.dtype.kind == "b":
        if lists.ndim != 2 or lists.shape[1] <= ranked.max():
            raise InputError(
                f"{name} is a mask of shape {lists.shape}: it must be (n, number of rows), and rows up to "
                f"{ranked.max()} are ranked",
                argument=name,
            )
    elif not isinstance(lists, Sequence | np.ndarray) or isinstance(lists, str):
        raise InputError(
            f"{name} must be a list of rows for each query, or a boolean mask, not a {type(lists).__name__}",
            argument=name,
        )
    if len(lists) != len(ranked):
        raise InputError(f"{name} is for {len(lists)} queries, ranked_rows has {len(ranked)}", argument=name)


def _checked_list(rows: ArrayLike, name: str, query: int) -> Int64:
    array = as_array(rows, f"{name} of query {query}")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} of query {query} must be a list of rows, integers, not {array.dtype} of shape {array.shape}",
            argument=name,
        )
    _check_no_negative_rows(array, f"{name} of query {query}")
    return array[array >= 0].astype(np.int64)


def _check_apart(queries: Int64, rows: Int64, other_queries: Int64, others: Int64, start: int) -> None:
    for i in np.flatnonzero(_same_pairs(queries, rows, other_queries, others))[:1]:
        raise InputError(f"query {start + queries[i]}: row {rows[i]} is both relevant and ignored", argument="ignored")
