"""The measures of quality, against plain loops over their definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh import evaluate
from slosh.evaluate import mean_average_precision, precision_at_k, recall_at_k, vote_accuracy

# -- the definitions, slowly -------------------------------------------------------------------------------------------


def slow_precision(neighbours, labels):
    return sum(a == label for row, label in zip(neighbours, labels, strict=True) for a in row) / sum(
        len(row) for row in neighbours
    )


def slow_vote(neighbours, labels):
    right = 0
    for row, label in zip(neighbours, labels, strict=True):
        counts = Counter(a for a in row if a != -1)
        if counts:
            most = max(counts.values())
            right += min(name for name, count in counts.items() if count == most) == label
    return right / len(labels)


def slow_recall(rows, exact):
    shares = []
    for found, true in zip(rows, exact, strict=True):
        true = set(true) - {-1}
        if true:
            shares.append(len(true & set(found)) / len(true))
    return sum(shares) / len(shares)


def slow_average_precision(ranking, relevant, ignored, trapezoid):
    """The loop of the Oxford benchmark's compute_ap, and the usual one."""
    area, old_recall, old_precision, hits, rank = 0.0, 0.0, 1.0, 0, 0
    plain = 0.0
    for row in ranking:
        if row == -1 or row in ignored:
            continue
        rank += 1
        if row in relevant:
            hits += 1
            plain += hits / rank / len(relevant)
        recall, precision = hits / len(relevant), hits / rank
        area += (recall - old_recall) * (old_precision + precision) / 2
        old_recall, old_precision = recall, precision
    return area if trapezoid else plain


def slow_mean_average_precision(rankings, relevant, ignored, trapezoid):
    each = [
        slow_average_precision(a, set(b), set(c), trapezoid)
        for a, b, c in zip(rankings, relevant, ignored, strict=True)
        if len(b)
    ]
    return sum(each) / len(each)


@pytest.fixture(params=[1 << 22, 7])
def each_block(request, monkeypatch):
    """All at once, and in many small blocks."""
    monkeypatch.setattr(evaluate, "EVALUATION_BLOCK_NUMBERS", request.param)


# -- labels ------------------------------------------------------------------------------------------------------------

KINDS = {
    "int": lambda x: x,
    "uint8": lambda x: np.where(x < 0, 9, x).astype(np.uint8),
    "float": lambda x: x.astype(float),
    "strings": lambda x: np.array(["?", "ant", "bee", "cat", "dog"])[x],
    "objects": lambda x: np.array(["?", "ant", "bee", "cat", "dog"], object)[x],
    "bool": lambda x: x > 1,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (50, 1), (50, 4), (200, 7)])
def test_labels(kind, n, k, each_block):
    rng = np.random.default_rng(n + k)
    neighbours, labels = rng.integers(-1, 4, size=(n, k)), rng.integers(0, 4, size=n)
    neighbours, labels = KINDS[kind](neighbours), KINDS[kind](labels)
    assert precision_at_k(neighbours, labels) == pytest.approx(slow_precision(neighbours.tolist(), labels.tolist()))
    assert vote_accuracy(neighbours, labels) == pytest.approx(slow_vote(neighbours.tolist(), labels.tolist()))
    assert isinstance(vote_accuracy(neighbours.tolist(), labels.tolist()), float)


@given(st.integers(0, 2**32 - 1))
def test_votes(seed):
    rng = np.random.default_rng(seed)
    n, k, classes = rng.integers(1, 20), rng.integers(1, 9), rng.integers(1, 5)
    neighbours, labels = rng.integers(-1, classes, size=(n, k)), rng.integers(0, classes, size=n)
    assert vote_accuracy(neighbours, labels) == pytest.approx(slow_vote(neighbours.tolist(), labels.tolist()))


def test_ties_and_abstentions():
    assert vote_accuracy([[3, 2, 2, 3]], [2]) == 1
    assert vote_accuracy([[3, 2, 2, 3]], [3]) == 0
    assert vote_accuracy([[-1, -1, 3]], [3]) == 1
    assert vote_accuracy([[-1, -1, -1]], [0]) == 0
    assert vote_accuracy([[-1, -1], [5, 5]], [0, 5]) == 0.5
    assert vote_accuracy([["b", "a"]], ["a"]) == 1
    assert vote_accuracy([[-7, -7, 2]], [-7]) == 1
    assert precision_at_k([[-1, 0]], [0]) == 0.5


@pytest.mark.parametrize("measure", [precision_at_k, vote_accuracy])
@pytest.mark.parametrize(
    ("neighbours", "labels", "message"),
    [
        ([1, 2], [1, 2], r"neighbour_labels must be \(n, k\), one row a query, not of shape \(2,\)"),
        (np.zeros((0, 3)), [], r"not of shape \(0, 3\)"),
        (np.zeros((2, 0)), [1, 2], r"not of shape \(2, 0\)"),
        ([[1], [2]], [1], r"labels must be \(2,\), one for each row of neighbour_labels, not of shape \(1,\)"),
        ([[1], [2]], [[1], [2]], r"not of shape \(2, 1\)"),
        ([["1"], ["2"]], [1, 2], "neighbour_labels are <U1, labels are int64"),
        ([[1], [2]], [3, -1], "labels: query 1 has the label -1, which means unlabelled: leave it out"),
        ([[1.0], [np.nan]], [1, 2], "neighbour_labels holds NaN: give unlabelled neighbours the label -1"),
        ([[1], [2]], [1.0, np.nan], "labels holds NaN"),
        ([[None], ["a"]], ["a", "b"], "neighbour_labels: dtype object; labels must be numbers or strings"),
        ([[1j], [2]], [1, 2], "dtype complex128"),
        ([[1, 2], [3]], [1, 2], "neighbour_labels"),
    ],
)
def test_labels_are_checked(measure, neighbours, labels, message):
    with pytest.raises(ValueError, match=message):
        measure(neighbours, labels)


# -- recall ------------------------------------------------------------------------------------------------------------


def rankings(rng, n, m, n_rows):
    """n rankings of m different rows each, with empty slots at the end of some."""
    rows = np.array([rng.permutation(n_rows)[:m] for _ in range(n)])
    rows[np.arange(m) >= rng.integers(m // 2, m + 1, size=n)[:, None]] = -1
    return rows


@pytest.mark.parametrize(("k", "true"), [(1, 1), (5, 5), (10, 5), (3, 8)])
def test_recall(k, true, each_block):
    rng = np.random.default_rng(k)
    rows, exact = rankings(rng, 60, k, 12), rankings(rng, 60, true, 12)
    expected = slow_recall(rows.tolist(), exact.tolist())
    assert recall_at_k(rows, exact) == pytest.approx(expected)
    assert recall_at_k(rows[:, ::-1], exact[:, ::-1]) == pytest.approx(expected)
    big = np.where(exact < 0, -1, exact + (1 << 60))
    assert recall_at_k(np.where(rows < 0, -1, rows + (1 << 60)), big) == pytest.approx(expected)
    assert recall_at_k(exact.astype(np.int32), exact) == 1


def test_recall_counts_what_it_says():
    assert recall_at_k([[1, 1, 1]], [[1, 2]]) == 0.5  # once
    assert recall_at_k([[-1, -1]], [[1, -1]]) == 0
    assert recall_at_k([[1, 2]], [[2, 3, 4, 1]]) == 0.5  # k < k'
    assert recall_at_k([[1, -1], [3, 4]], [[-1, -1], [4, 3]]) == 1  # the first query has nothing to find
    assert recall_at_k([[1], [0]], [[0], [1]]) == 0  # rows of another query do not count


@pytest.mark.parametrize(
    ("rows", "exact", "message"),
    [
        ([1, 2], [[1, 2]], r"rows must be integers \(n, k\), one row a query, not int64 of \(2,\)"),
        ([[1.0]], [[1]], r"rows must be integers .* not float64"),
        ([[1]], np.zeros((1, 0), int), r"exact_rows must be integers .* of \(1, 0\)"),
        ([[1], [2]], [[1]], "rows has 2 queries, exact_rows has 1"),
        ([[1], [2]], [[1, 2], [3, 3]], "exact_rows: query 1 has row 3 twice"),
        ([[1]], [[-1]], "exact_rows holds nothing but -1: there is nothing to find"),
        ([[-2]], [[1]], "rows holds -2: rows count from 0, and -1 is an empty slot"),
    ],
)
def test_rows_are_checked(rows, exact, message):
    with pytest.raises(ValueError, match=message):
        recall_at_k(rows, exact)


# -- average precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trapezoid", [False, True])
@pytest.mark.parametrize(("n", "m", "n_rows"), [(1, 1, 1), (30, 20, 20), (30, 8, 40)])
def test_average_precision(trapezoid, n, m, n_rows, each_block):
    rng = np.random.default_rng(m)
    ranked = rankings(rng, n, m, n_rows)
    kind = rng.choice(3, p=[0.6, 0.25, 0.15], size=(n, n_rows))
    kind[0, 0] = 1
    relevant, ignored = ([np.flatnonzero(row == which) for row in kind] for which in (1, 2))
    interpolation = "trapezoid" if trapezoid else "plain"
    nothing = [[]] * n
    for junk, junk_mask in ((ignored, kind == 2), (nothing, None)):
        expected = slow_mean_average_precision(ranked.tolist(), relevant, junk, trapezoid)
        assert mean_average_precision(ranked, relevant, junk, interpolation) == pytest.approx(expected)
        assert mean_average_precision(ranked, kind == 1, junk_mask, interpolation) == pytest.approx(expected)
        lists = [[*row.tolist(), *row.tolist(), -1] for row in relevant]
        assert mean_average_precision(ranked.tolist(), lists, junk, interpolation) == pytest.approx(expected)


def test_average_precision_by_hand():
    assert mean_average_precision([[7, 8, 9]], [[7, 8, 9]]) == 1
    assert mean_average_precision([[7, 8, 9]], [[7, 8, 9]], interpolation="trapezoid") == 1
    # Hits at ranks 2 and 3 of two, and one that is never found.
    assert mean_average_precision([[5, 1, 2]], [[1, 2, 3]]) == pytest.approx((1 / 2 + 2 / 3) / 3)
    by_trapezoids = ((0 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2) / 3
    assert mean_average_precision([[5, 1, 2]], [[1, 2, 3]], interpolation="trapezoid") == pytest.approx(by_trapezoids)
    # An ignored row is neither hit nor miss: as if it were not there. So is an empty slot.
    assert mean_average_precision([[6, 5, 1, -1, 2]], [[1, 2, 3]], [[6]]) == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert mean_average_precision([[5, 6]], [[1]]) == 0
    # A query without relevant rows is left out.
    assert mean_average_precision([[0, 1], [1, 0]], [[0], []]) == 1
    assert mean_average_precision([[0, 1], [1, 0]], np.array([[True, False], [False, False]])) == 1
    assert mean_average_precision([[0, 1], [1, 0]], np.array([[0, -1], [1, 0]])) == 1


@pytest.mark.parametrize(
    ("relevant", "ignored", "message"),
    [
        ([[0]], None, "relevant is for 1 queries, ranked_rows has 2"),
        ([[0], [1]], [[0]], "ignored is for 1 queries, ranked_rows has 2"),
        (np.ones((2, 3), bool), None, r"relevant is a mask of shape \(2, 3\).*rows up to 5 are ranked"),
        (np.ones(2, bool), None, r"relevant is a mask of shape \(2,\)"),
        ({0: [1]}, None, "relevant must be a list of rows for each query, or a boolean mask, not a dict"),
        ("ab", None, "not a str"),
        ([[0], [[1]]], None, r"relevant of query 1 must be a list of rows, integers, not int64 of shape \(1, 1\)"),
        ([[0], [0.5]], None, "relevant of query 1 must be a list of rows, integers, not float64"),
        ([[0], [1]], [[], [-3]], "ignored of query 1 holds -3"),
        ([[0], [1, 4]], [[2], [3, 4]], "query 1: row 4 is both relevant and ignored"),
        ([[], []], None, "relevant is empty for every query"),
    ],
)
def test_lists_are_checked(relevant, ignored, message, each_block):
    with pytest.raises(ValueError, match=message):
        mean_average_precision([[0, 1, 2], [3, 4, 5]], relevant, ignored)


def test_rankings_are_checked():
    with pytest.raises(ValueError, match="interpolation='linear': pass one of 'plain', 'trapezoid'"):
        mean_average_precision([[0]], [[0]], interpolation="linear")
    with pytest.raises(ValueError, match="ranked_rows: query 1 has row 3 twice"):
        mean_average_precision([[0, 1, 2], [3, 4, 3]], [[0], [1]])
    with pytest.raises(ValueError, match="ranked_rows must be integers"):
        mean_average_precision([0, 1], [[0], [1]])
