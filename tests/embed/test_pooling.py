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

from builders import clouds
from slosh import Sets
from slosh.data import batching
from slosh.embed import (
    Covariance,
    FSPool,
    GeM,
    MaxPool,
    MeanPool,
    SlicedWasserstein,
    SumPool,
    WassersteinEmbedding,
    pooling,
)

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
    monkeypatch.setattr(batching, "PART_NUMBERS", 500)
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


def test_gem_of_very_large_and_very_small_numbers() -> None:
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (30, 2))
    expected = GeM(12).fit_transform([x])
    for scale in (1e-37, 1e15):
        with np.errstate(all="raise", under="ignore"):
            vectors = GeM(12).fit_transform([x * scale])
        np.testing.assert_allclose(vectors / np.float32(scale), expected, rtol=1e-5)
    assert not GeM(3).fit_transform([np.zeros((4, 2))]).any()


@pytest.mark.parametrize("p", [0, -1, 1.5, "2", None, True])
def test_gem_order_is_checked(p: Any) -> None:
    with pytest.raises(ValueError, match=f"p={p!r} must be"):
        GeM(p).fit(some_sets())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [2, 24])
def test_covariance_is_numpys(weighted: bool, dim: int) -> None:
    sets = some_sets(dim=dim, weighted=weighted)
    vectors = Covariance(0).fit_transform(sets).reshape(-1, dim, dim)
    for matrix, (x, w) in zip(vectors, each(sets), strict=True):
        np.testing.assert_array_equal(matrix, matrix.T)
        if np.count_nonzero(w) > 1:
            np.testing.assert_allclose(matrix, np.cov(x.T, aweights=w), rtol=1e-5, atol=1e-6)
        else:
            assert not matrix.any()


@pytest.mark.parametrize("dim", [2, pooling.RAGGED_DIM + 1])
def test_covariance_of_one_element_is_zero(dim: int) -> None:
    x = np.full((1, dim), 0.1)
    assert not Covariance().fit_transform([x, x]).any()
    assert not Covariance().fit_transform(Sets.from_list([x, x], [[0.3], [7]])).any()
    pair = np.repeat(x, 2, axis=0) * [[1], [5]]
    assert not Covariance().fit_transform(Sets.from_list([pair], [[0.3, 0]])).any()


def test_covariance_far_from_zero() -> None:
    x = np.random.RandomState(0).randint(-50, 50, (200, 2)).astype(np.float32)
    near, far = Covariance(0).fit_transform([x]), Covariance(0).fit_transform([x + np.float32(2**23)])
    np.testing.assert_allclose(far, near, rtol=1e-6)


def test_covariance_errors() -> None:
    for value in (-1e-4, np.inf, np.nan, "1", None):
        with pytest.raises(ValueError, match="regularization="):
            Covariance(value).fit(some_sets())  # type: ignore[arg-type]
    assert Covariance().fit_transform([[[1e15], [-1e15]]]) == pytest.approx(2e30, rel=1e-3)  # the largest numbers
    with pytest.raises(ValueError, match="too large for float32"):
        SumPool().fit_transform(Sets.from_list([[[1e15]]], [[1e30]]))


@pytest.mark.parametrize("rule", ["linear", "average"])
def test_fspool_is_the_axis_sliced_embedding(each_kernel, rule):
    sets = clouds([1, 9, 30, 200], 5, weighted=True)
    pooled = FSPool(n_quantiles=12, quantiles=rule).fit_transform(sets)
    embedded = SlicedWasserstein(n_quantiles=12, slices="axis", quantiles=rule).fit_transform(sets)
    np.testing.assert_allclose(pooled, embedded * np.sqrt(60), atol=1e-5)
    with pytest.raises(ValueError, match="n_quantiles"):
        FSPool(n_quantiles=0).fit(sets)
    with pytest.raises(ValueError, match="quantiles"):
        FSPool(quantiles="cubic").fit(sets)
