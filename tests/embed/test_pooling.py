"""Pooling, GeM, covariance and WassersteinEmbedding against slow plain loops in float64: with and without weights,
any sizes, any batching.
"""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ragged import each, some_sets
from sklearn.base import clone

from slosh import Sets
from slosh.data import batching
from slosh.embed import Covariance, GeM, MaxPool, MeanPool, SumPool, WassersteinEmbedding

BASELINES = [
    MeanPool(),
    SumPool(),
    MaxPool(),
    GeM(1),
    GeM(4),
    GeM(7),
    Covariance(),
    Covariance(0.5),
    WassersteinEmbedding("normal", 5),
]


def plain(estimator: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One vector by the formula of the docstring, element by element."""
    v = w / w.sum()
    n, d = x.shape
    if isinstance(estimator, SumPool):
        return sum(w[i] * x[i] for i in range(n))
    if isinstance(estimator, MaxPool):
        return np.array([max(x[i, k] for i in range(n) if w[i] > 0) for k in range(d)])
    if isinstance(estimator, MeanPool):
        return sum(v[i] * x[i] for i in range(n))
    if isinstance(estimator, GeM):
        orders = []
        for q in range(1, estimator.p + 1):
            mean = sum(v[i] * x[i] ** q for i in range(n))
            orders.append(np.sign(mean) * np.abs(mean) ** (1 / q))
        return np.concatenate(orders)
    if isinstance(estimator, Covariance):
        if np.count_nonzero(w) == 1:
            return np.zeros(d * d)
        mean = sum(v[i] * x[i] for i in range(n))
        matrix = sum(v[i] * np.outer(x[i] - mean, x[i] - mean) for i in range(n)) / (1 - (v * v).sum())
        return (matrix + estimator.regularization * np.trace(matrix) * np.eye(d)).ravel()
    raise TypeError


@pytest.mark.parametrize("estimator", BASELINES[:-1], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3, 16, 17, 40])
def test_equals_the_plain_loop(estimator: Any, weighted: bool, dim: int) -> None:
    sets = some_sets(dim=dim, weighted=weighted)
    vectors = clone(estimator).fit_transform(sets)
    expected = np.stack([plain(estimator, x, w) for x, w in each(sets)])
    assert vectors.dtype == np.float32
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 5, 30])
def test_batching_changes_no_bit(estimator: Any, weighted: bool, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = some_sets(50, dim, weighted, largest=400)
    fitted = clone(estimator).fit(sets)
    whole = fitted.transform(sets)
    random = np.random.RandomState(0)
    for _ in range(3):
        cuts = [0, *np.sort(random.choice(np.arange(1, 50), 6, replace=False)), 50]
        parts = [fitted.transform(sets[a:b]) for a, b in pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(np.concatenate([fitted.transform(sets[i : i + 1]) for i in range(50)]), whole)
    order = random.permutation(50)
    np.testing.assert_array_equal(fitted.transform(sets.take(order)), whole[order])
    monkeypatch.setattr(batching, "BLOCK_NUMBERS", 500)
    np.testing.assert_array_equal(fitted.transform(sets), whole)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_order_of_elements_does_not_matter(estimator: Any, weighted: bool) -> None:
    sets = some_sets(weighted=weighted)
    random = np.random.RandomState(1)
    orders = [random.permutation(size) for size in sets.sizes]
    pairs = each(sets)
    shuffled = Sets.from_list(
        [x[order] for (x, _), order in zip(pairs, orders, strict=True)],
        [w[order] for (_, w), order in zip(pairs, orders, strict=True)] if weighted else None,
    )
    fitted = clone(estimator).fit(sets)
    np.testing.assert_allclose(fitted.transform(shuffled), fitted.transform(sets), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
def test_equal_weights_are_no_weights(estimator: Any) -> None:
    if isinstance(estimator, SumPool):
        estimator = MeanPool()
    sets = some_sets()
    weighted = Sets(sets.points, sets.offsets, np.full(len(sets.points), 0.3))
    fitted = clone(estimator).fit(sets)
    np.testing.assert_allclose(fitted.transform(weighted), fitted.transform(sets), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", [MeanPool(), MaxPool(), GeM(3), Covariance(), WassersteinEmbedding("normal", 5)])
def test_weight_zero_is_not_there(estimator: Any) -> None:
    sets = some_sets()
    arrays = [np.concatenate([x, 100 + x]) for x, _ in each(sets)]
    weights = [np.concatenate([np.full(len(x) // 2, 2.0), np.zeros(len(x) // 2)]) for x in arrays]
    fitted = clone(estimator).fit(sets)
    vectors = fitted.transform(Sets.from_list(arrays, weights))
    np.testing.assert_allclose(vectors, fitted.transform(sets), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
def test_clone_pickle_parameters(estimator: Any) -> None:
    sets = some_sets()
    fitted = clone(estimator).fit(sets)
    vectors = fitted.transform(sets)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(sets), vectors)
    np.testing.assert_array_equal(clone(fitted).fit_transform(sets), vectors)
    assert clone(fitted).get_params() == estimator.get_params()
    assert vectors.shape == (len(sets), fitted.vector_length)
