"""P-stable hashes collide as often as their formulas say; seeds hold, and batching changes no bit."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from collisions import assert_rate, gauss
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from sklearn.base import clone

from slosh.embed import SlicedWasserstein
from slosh.hash import PStableHash

DIMS = [1, 2, 3, 100, 1024]


def density(p: int, x: float) -> float:
    """Of the absolute value of a p-stable number."""
    return math.sqrt(2 / math.pi) * math.exp(-x * x / 2) if p == 2 else 2 / (math.pi * (1 + x * x))


@given(p=st.sampled_from([1, 2]), log_s=st.floats(-6, 4), width=st.floats(1e-3, 1e3))
def test_closed_forms_are_the_integral(p: int, log_s: float, width: float) -> None:
    """The paper's integral, with t = r e^y."""
    s = 10.0**log_s
    low, high = -40.0, math.log(s if p == 1 else min(s, 40.0))
    pieces = np.linspace(low, high, 9)
    expected = sum(
        quad(lambda y: math.exp(y) * density(p, math.exp(y)) * (1 - math.exp(y) / s), a, b, epsabs=0, epsrel=1e-12)[0]
        for a, b in pairwise(pieces)
    )
    assert PStableHash(width, p=p).collision_probability(width / s) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("p", [1, 2])
def test_closed_forms_hold_from_the_smallest_to_the_largest_distance(p: int) -> None:
    hash_ = PStableHash(2.0, p=p)
    r = np.concatenate([[0.0, 5e-324], 10.0 ** np.arange(-307, 309), [np.inf]])
    with np.errstate(all="raise", under="ignore"):
        P = hash_.collision_probability(r)
        success = hash_.success_probability(r)
    assert P[0] == P[1] == success[0] == 1
    assert P[-1] == success[-1] == 0
    assert np.all(np.diff(P) <= 0)
    assert np.all(np.diff(P[r > 1e-10]) < 0)
    assert np.all((success >= 0) & (success <= 1))
    large = 10.0 ** np.arange(6, 300)
    slope = 1 / math.sqrt(2 * math.pi) if p == 2 else 1 / math.pi
    np.testing.assert_allclose(hash_.collision_probability(large), 2.0 / large * slope, rtol=1e-11)
    # No step where the series takes over.
    s = 1e-4 * (1 + np.linspace(-1e-3, 1e-3, 2001))
    np.testing.assert_allclose(np.diff(hash_.collision_probability(2.0 / s)), slope * 1e-10, rtol=1e-4)
    assert hash_.collision_probability(np.ones((2, 3))).shape == (2, 3)
    assert isinstance(hash_.collision_probability(1), float)
    assert isinstance(hash_.success_probability(1), float)


def apart(x: np.ndarray, y: np.ndarray, r: float, p: int) -> tuple[np.ndarray, np.ndarray]:
    """x and a vector from x towards y, at the distance |x - .|_p = r."""
    return x, x + (y - x) * r / np.sum(np.abs(y - x) ** p) ** (1 / p)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("r", [0.0, 0.05, 0.5, 1.0, 3.0, 20.0])
def test_hashes_agree_as_often_as_the_formula_says(p: int, r: float) -> None:
    x, y = apart(*gauss(2, 6).astype(float), r, p)
    hash_ = PStableHash(1.5, n_hashes=4, n_tables=5000, p=p).fit([x])
    same = np.equal(*hash_.transform([x, y]))
    r = float(np.sum(np.abs(np.float32(x) - np.float32(y)) ** p) ** (1 / p))  # after float32
    assert_rate(same.sum(), same.size, hash_.collision_probability(r))
    assert_rate(same.all(axis=1).sum(), 5000, hash_.collision_probability(r) ** 4)
    ten = replaced(hash_, n_tables=10)
    assert_rate(same.all(axis=1).reshape(-1, 10).any(axis=1).sum(), 500, ten.success_probability(r))


def replaced(hash_: PStableHash, **params: object) -> PStableHash:
    other: PStableHash = clone(hash_).set_params(**params)
    return other


@pytest.mark.parametrize("p", [1, 2])
def test_thousands_of_pairs_at_their_distances(p: int) -> None:
    """Pair i is looked at with table i, so that the trials are independent."""
    rng = np.random.RandomState(3)
    X = rng.standard_normal((3000, 12)).astype(np.float32)
    Y = X + rng.standard_normal((3000, 12)).astype(np.float32) * rng.uniform(0.01, 2, (3000, 1)).astype(np.float32)
    r = np.sum(np.abs(X.astype(float) - Y) ** p, axis=1) ** (1 / p)
    hash_ = PStableHash(4.0, n_hashes=1, n_tables=3000, p=p).fit(X)
    i = np.arange(3000)
    same = hash_.transform(X)[i, i, 0] == hash_.transform(Y)[i, i, 0]
    assert_rate(same.sum(), 3000, hash_.collision_probability(r))


def test_success_probability_is_its_formula() -> None:
    hash_ = PStableHash(2.0, n_hashes=3, n_tables=7)
    P = hash_.collision_probability(0.7)
    assert hash_.success_probability(0.7) == pytest.approx(1 - (1 - P**3) ** 7)
    rare = PStableHash(1e-3, n_hashes=3, n_tables=7)  # where 1 - (1 - P^3)^7 would be rounded to zero
    assert rare.success_probability(100.0) == pytest.approx(7 * rare.collision_probability(100.0) ** 3)


@pytest.mark.parametrize("r", [-1.0, np.nan, [1.0, -2.0]])
def test_distances_are_checked(r: object) -> None:
    with pytest.raises(ValueError, match="r must be a distance, 0 or more"):
        PStableHash(1.0).collision_probability(r)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="r must be a distance, 0 or more"):
        PStableHash(1.0).success_probability(r)  # type: ignore[arg-type]


def random_set(rng: np.random.RandomState) -> np.ndarray:
    return rng.standard_normal((rng.randint(5, 60), 3)) * rng.uniform(0.3, 2, 3) + rng.standard_normal(3)


@pytest.mark.parametrize("r", [0.3, 1.0, 2.5])
def test_sets_at_an_embedded_distance_collide_as_vectors_do(r: float) -> None:
    """1500 pairs of sets, each scaled to the embedded distance r, each looked at with a table of its own."""
    rng = np.random.RandomState(5)
    model = SlicedWasserstein(n_slices=8, n_quantiles=8, n_jobs=1).fit([np.zeros((1, 3))])
    pairs = []
    for _ in range(1500):
        x, y = random_set(rng), random_set(rng)
        scale = r / model.distance([x], [y])[0, 0]  # the embedding of a scaled set is the scaled embedding
        pairs.append((scale * x, scale * y))
    u, v = (model.transform([both[side] for both in pairs]) for side in range(2))
    np.testing.assert_allclose(np.linalg.norm(u - v, axis=1), r, rtol=1e-4)
    hash_ = PStableHash(2.0, n_hashes=1, n_tables=1500).fit(u)
    i = np.arange(1500)
    same = hash_.transform(u)[i, i, 0] == hash_.transform(v)[i, i, 0]
    assert_rate(same.sum(), 1500, hash_.collision_probability(r))


def test_real_sets_collide_as_their_embedded_distances_say(mnist: tuple) -> None:
    """250 pairs of digits, 20 tables of 2 hashes for each."""
    sets, _ = mnist
    vectors = SlicedWasserstein(n_slices=16, n_quantiles=16, n_jobs=1).fit_transform(sets)
    u, v = vectors[0::2], vectors[1::2]
    r = np.linalg.norm(u.astype(float) - v, axis=1)
    hash_ = PStableHash(float(2 * np.median(r)), n_hashes=2, n_tables=20 * 250).fit(vectors)
    i = np.arange(250)
    a, b = (hash_.transform(x).reshape(250, 250, 20, 2)[i, i] for x in (u, v))
    same = (a == b).all(axis=2)
    P = hash_.collision_probability(r) ** 2
    assert_rate(same.sum(), same.size, np.repeat(P, 20))
    success = replaced(hash_, n_tables=20).success_probability(r)
    assert_rate(same.any(axis=1).sum(), 250, success)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dim", DIMS)
def test_hashes_are_their_formula(p: int, dim: int) -> None:
    X = gauss(60, dim)
    hash_ = PStableHash(1.7, n_hashes=3, n_tables=4, p=p).fit(X)
    values = hash_.transform(X)
    assert values.shape == (60, 4, 3)
    assert values.dtype == np.int32
    assert hash_.directions_.shape == (4, 3, dim)
    assert hash_.offsets_.shape == (4, 3)
    assert np.all((hash_.offsets_ >= 0) & (hash_.offsets_ < 1.7))
    exact = (np.einsum("nd,tkd->ntk", X.astype(float), hash_.directions_) + hash_.offsets_) / 1.7
    np.testing.assert_array_equal(values, np.floor(exact))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dim", [1, 3, 300])
def test_batching_changes_no_hash(p: int, dim: int) -> None:
    rng = np.random.RandomState(dim)
    X = rng.standard_normal((1200, dim)).astype(np.float32)
    hash_ = PStableHash(1e-4, n_hashes=3, n_tables=5, p=p).fit(X)  # narrow, so that many lie near an edge
    whole = hash_.transform(X)
    cuts = np.sort(rng.choice(np.arange(1, 1200), 10, replace=False))
    np.testing.assert_array_equal(np.concatenate([hash_.transform(part) for part in np.split(X, cuts)]), whole)
    for row in rng.choice(1200, 15):
        np.testing.assert_array_equal(hash_.transform(X[row : row + 1])[0], whole[row])
    np.testing.assert_array_equal(hash_.transform(np.asfortranarray(X)), whole)


GOLDEN_STABLE = {
    1: [[[-163, -1, 2], [-18, -27, -11]], [[115, 6, -6], [16, -32, -18]]],
    2: [[[3, -8, -1], [3, 5, -4]], [[3, -1, -1], [1, 2, 5]]],
}


@pytest.mark.parametrize("p", [1, 2])
def test_a_seed_fixes_the_hashes(p: int) -> None:
    X = (np.arange(12).reshape(2, 6) * 7 % 11 - 5).astype(np.float32)
    hash_ = PStableHash(2.0, n_hashes=3, n_tables=2, p=p, random_state=42).fit(X)
    assert hash_.transform(X).tolist() == GOLDEN_STABLE[p]
    more = PStableHash(2.0, n_hashes=3, n_tables=5, p=p, random_state=np.int64(42)).fit(X)
    np.testing.assert_array_equal(more.transform(X)[:, :2], hash_.transform(X))
    assert not np.array_equal(replaced(hash_, random_state=1).fit(X).transform(X), hash_.transform(X))


def test_cells_beyond_int32_are_refused() -> None:
    X = gauss(50, 8)
    hash_ = PStableHash(1e-6, random_state=0).fit(X)
    hash_.transform(X)
    X[33] *= 1e4
    with pytest.raises(ValueError, match=r"row 33 falls into cell .*beyond int32: width=1e-06 is too small.*larger"):
        hash_.transform(X)
