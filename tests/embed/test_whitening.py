"""The algebra of whitening on plain vectors, against numpy.linalg; few vectors, equal ones, and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from slosh.embed.whitening import LinearMap, spread


def vectors(n: int, dim: int, rank: int | None = None, seed: int = 0, decay: float = 1.0, middle: float = 1.0):
    """Return vectors whose variances decay, about a middle."""
    rng = np.random.default_rng(seed)
    rank = dim if rank is None else rank
    turn = np.linalg.qr(rng.normal(size=(dim, rank)))[0] if rank else np.zeros((dim, 0))
    parts = rng.normal(size=(n, rank)) * np.arange(1, rank + 1) ** -decay
    return (parts @ turn.T + middle * rng.normal(size=dim)).astype(np.float32)


def fitted(x, n_directions, seed=0):
    return spread(x, n_directions, np.random.RandomState(seed))


def oracle(x, n_directions):
    """Return mean, variances and directions by a decomposition of the whole covariance matrix."""
    values, columns = np.linalg.eigh(np.cov(x.astype(float).T, bias=True).reshape(x.shape[1], x.shape[1]))
    return x.mean(axis=0, dtype=float), values[::-1][:n_directions], columns.T[::-1][:n_directions]


@given(n=st.integers(2, 60), dim=st.integers(1, 30), kept=st.integers(1, 30), seed=st.integers(0, 99))
def test_directions_and_variances_are_those_of_the_covariance(n, dim, kept, seed):
    x = vectors(n, dim, seed=seed)
    found = fitted(x, kept)
    r = min(kept, dim, n - 1)
    mean, variances, directions = oracle(x, r)
    assert len(found.variances) <= r
    r = len(found.variances)
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(found.variances, variances[:r], rtol=1e-5, atol=1e-9 * variances[0])
    np.testing.assert_allclose(found.total, np.trace(np.atleast_2d(np.cov(x.T.astype(float), bias=True))), rtol=1e-6)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(r), atol=1e-9)
    for k in range(r):
        gap = np.delete(variances, k) - variances[k] if len(variances) > 1 else np.array([1.0])
        if np.abs(gap).min() > 1e-3 * variances[0]:
            assert abs(found.directions[k] @ directions[k]) > 1 - 1e-6


def test_the_randomised_method_finds_the_same():
    """Vectors too long for a covariance matrix, of full rank and of a rank below what is asked for."""
    for rank, kept in ((120, 40), (30, 40)):
        x = vectors(150, 1200, rank, decay=1.0)
        found = fitted(x, kept)
        singular = np.linalg.svd(x - x.mean(axis=0, dtype=float), full_matrices=False)
        r = min(rank, kept)
        assert len(found.variances) == r
        np.testing.assert_allclose(found.variances, singular[1][:r] ** 2 / 150, rtol=1e-3)
        np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(r), atol=1e-9)
        agree = np.linalg.norm(found.directions @ singular[2][:r].T, axis=1)
        assert agree.min() > 0.99
    again = fitted(x, kept)
    assert np.array_equal(again.directions, found.directions)
    assert not np.array_equal(fitted(x, kept, seed=1).directions, found.directions)


@pytest.mark.parametrize("shape", [(700, 200), (150, 1200)])
def test_bits_do_not_depend_on_threads(shape):
    x = vectors(*shape, rank=60)
    results = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            results.append(fitted(x, 40))
    for other in results[1:]:
        assert np.array_equal(other.directions, results[0].directions)
        assert np.array_equal(other.variances, results[0].variances)


@pytest.mark.parametrize("middle", [0.0, 1.0, 1e6])
def test_rounding_is_no_direction(middle):
    """Vectors of rank 3, in float32 far from zero: the rounding of a thousand numbers is not taken for variance."""
    x = vectors(500, 40, rank=3, decay=0.0, middle=middle)
    assert len(fitted(x, 40).variances) == 3
    same = np.repeat(x[:1], 50, axis=0)
    for constant in (fitted(same, 40), fitted(x[:1], 40)):
        assert constant.is_constant
        assert constant.directions.shape == (0, 40)
    assert not fitted(x, 0).is_constant


def test_scales_flatten_but_never_blow_up():
    x = vectors(400, 50, rank=20, decay=2.0)
    found = fitted(x, 50)
    assert len(found.variances) == 20
    for power in (0.0, 0.2, 0.5):
        flattened = found.variances * found.scales(power) ** 2
        ratio = (found.variances[0] / found.variances) ** (1 - 2 * power)
        expected = (found.variances + found.floor) / found.variances
        np.testing.assert_allclose(flattened[0] / flattened, ratio * (expected / expected[0]) ** (2 * power), rtol=1e-9)
        assert found.rest_scale(power) >= found.scales(power).max()
    assert found.rest_scale(0.35) == pytest.approx((0.04 / 410 + 10 / 400**2) ** -0.35)
    few = fitted(x[:20], 50)
    assert few.floor / few.total > 10 * found.floor / found.total


@given(
    n=st.integers(1, 40), dim=st.integers(1, 40), r=st.integers(0, 20), rest=st.sampled_from([0.0, 0.5]),
    shortest=st.sampled_from([None, 1e-6]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_map_is_its_formula(n, dim, r, rest, shortest, seed):
    rng = np.random.default_rng(seed)
    r = min(r, dim)
    r, rest = (r, rest) if r or rest else (1, 0.0)
    directions = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:r].astype(np.float32)
    mean, scales = rng.normal(size=dim), rng.uniform(0.1, 3, r)
    x = rng.normal(size=(n, dim)).astype(np.float32)
    out = np.empty((n, dim if rest else r), np.float32)
    LinearMap(mean, directions, scales, rest, shortest).apply(x, out, 1)
    along = (x - mean) @ directions.T.astype(float)
    expected = along * scales
    if rest:
        expected = rest * ((x - mean) - along @ directions) + expected @ directions
    if shortest is not None:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(out, expected, atol=2e-6 * (1 + np.abs(expected).max()))


def test_a_row_has_its_own_bits(each_kernel):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 70)).astype(np.float32)
    directions = np.linalg.qr(rng.normal(size=(70, 9)))[0].T.astype(np.float32)
    for rest in (0.0, 0.7):
        mapping = LinearMap(rng.normal(size=70), directions, rng.uniform(1, 2, 9), rest, 1e-6)
        length = 70 if rest else 9
        whole, parts, alone = (np.empty((50, length), np.float32) for _ in range(3))
        mapping.apply(x, whole, 2)
        mapping.apply(x[:33], parts[:33], 1)
        mapping.apply(x[33:], parts[33:], 3)
        for row in range(50):
            mapping.apply(x[row : row + 1], alone[row : row + 1], 1)
        assert np.array_equal(parts, whole)
        assert np.array_equal(alone, whole)


def test_what_is_shorter_than_rounding_stays_short():
    mean = np.ones(5)
    mapping = LinearMap(mean, np.eye(5, dtype=np.float32)[:2], np.ones(2), 0.0, 1e-5)
    x = np.ones((3, 5), np.float32)
    x[1, 0] += 1e-6
    x[2, 0] += 1e-3
    out = np.empty((3, 2), np.float32)
    mapping.apply(x, out, 1)
    assert not out[0].any()
    assert 0 < np.linalg.norm(out[1]) < 0.2
    assert np.linalg.norm(out[2]) == pytest.approx(1)


def test_nothing_learnt_changes_nothing():
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    out = np.empty_like(x)
    LinearMap(np.zeros(6), np.empty((0, 6), np.float32), np.empty(0), 1.0, None).apply(x, out, 1)
    assert np.array_equal(out, x)
    assert cdist(out, out).max() > 0
