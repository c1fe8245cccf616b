"""Covariance pooling beyond what holds for every embedding (test_pooling.py)."""

from __future__ import annotations

import numpy as np
import pytest
from ragged import each, some_sets

from slosh import Sets
from slosh.embed import Covariance, SumPool, covariance


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


@pytest.mark.parametrize("dim", [2, covariance.RAGGED_DIM + 1])
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
