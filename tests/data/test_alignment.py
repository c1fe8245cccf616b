"""Principal axes: turned copies become equal, no set is mirrored, ties are settled, and weights are respected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import special_ortho_group

import slosh
from slosh import Sets
from slosh.data.preprocess import Preprocess
from slosh.errors import InputError

STEPS = Preprocess(center=True, align="pca")


def skewed(rng, n, dim):
    """A shape of clearly different variances, and skewed along each axis."""
    return rng.exponential(size=(n, dim)) * 2.0 ** -np.arange(dim)


def turned(points, seed, rng):
    dim = points.shape[1]
    turn = special_ortho_group.rvs(dim, random_state=seed) if dim > 1 else np.eye(1)
    return points @ turn + rng.normal(size=dim)


def slow(points, weights=None):
    """One set by the singular value decomposition; the signs as the docstring says them."""
    w = np.ones(len(points)) if weights is None else weights
    x = points - np.average(points, axis=0, weights=w)
    axes = np.linalg.svd(x * np.sqrt(w)[:, None], full_matrices=True)[2].T
    z = x @ axes
    skewness = np.average(z**3, axis=0, weights=w) / np.average(z**2, axis=0, weights=w) ** 1.5
    axes = axes * np.where(skewness < 0, -1, 1)
    if np.linalg.det(axes) < 0:
        axes[:, np.argmin(np.abs(skewness))] *= -1
    return x @ axes


@settings(max_examples=40)
@given(
    dim=st.sampled_from([1, 2, 3, 5, 17, 20]),
    n=st.integers(60, 200),
    seed=st.integers(0, 10_000),
    weighted=st.booleans(),
)
def test_against_a_decomposition_and_turned_copies(dim, n, seed, weighted):
    rng = np.random.default_rng(seed)
    points = skewed(rng, n, min(dim, 5)) @ np.eye(min(dim, 5), dim)
    points += 1e-3 * rng.normal(size=(n, dim)) * np.arange(dim, 0, -1)
    weights = rng.uniform(0.5, 1, n) if weighted else None
    given_weights = None if weights is None else [weights, weights]
    sets = Sets.from_list([points, turned(points, seed, rng)], given_weights)
    found = STEPS.apply(sets)
    covariance = np.atleast_2d(np.cov(points.T, aweights=weights))
    values = np.linalg.eigvalsh(covariance)
    if np.diff(values).min(initial=1) < 0.02 * values[-1]:  # variances that a rounding could exchange
        np.testing.assert_allclose(np.sort(found[0].std(axis=0)), np.sort(found[1].std(axis=0)), atol=1e-3)
        return
    np.testing.assert_allclose(found[0], slow(sets[0].astype(float), weights), atol=2e-5)
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)
    product = np.cov(np.asarray(found[0], float).T, aweights=weights)
    np.testing.assert_allclose(product, np.diag(values[::-1]) if dim > 1 else values[0], atol=1e-5)


def test_a_set_is_turned_and_never_mirrored():
    rng = np.random.default_rng(0)
    for dim in (1, 2, 3, 20):
        points = rng.exponential(size=(200, dim)) * rng.uniform(0.1, 1, dim)
        found = np.asarray(STEPS.apply([points])[0], float)
        x = points - points.mean(axis=0)
        turn = np.linalg.lstsq(x, found, rcond=None)[0]
        np.testing.assert_allclose(turn @ turn.T, np.eye(dim), atol=1e-4)
        assert np.linalg.det(turn) == pytest.approx(1, abs=1e-4)
    left = skewed(rng, 300, 3)
    right = left * [-1, 1, 1]  # another shape, as a left hand and a right one
    one, other = STEPS.apply([left, right])
    assert np.abs(one - other).max() > 0.5


def test_without_center_a_set_is_turned_where_it_is():
    rng = np.random.default_rng(0)
    points = skewed(rng, 100, 3) + np.array([10, 20, 30])
    found = Preprocess(align="pca").apply([points])[0]
    np.testing.assert_allclose(found.mean(axis=0), points.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(found - points.mean(axis=0), STEPS.apply([points])[0], atol=1e-4)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([[1.0, 2, 3]], [[0, 0, 0]]),
        (np.full((9, 2), 0.1), np.zeros((9, 2))),
        ([[0.0, 0, 0], [0, 0, 2]], [[-1, 0, 0], [1, 0, 0]]),  # symmetric: it keeps its direction
        (
            [[0.0, 1], [0, -1], [1, 0], [-1, 0]],
            [[0, 1], [0, -1], [1, 0], [-1, 0]],
        ),  # equal variances: it keeps its axes
        ([[0.0, 3], [0, -3], [1, 0], [-1, 0]], [[3, 0], [-3, 0], [0, -1], [0, 1]]),
        ([[0.0, 0, 5], [0, 0, -1], [0, 0, -1], [0, 0, -3]], [[5, 0, 0], [-1, 0, 0], [-1, 0, 0], [-3, 0, 0]]),
    ],
    ids=["one point", "all equal", "two points", "a square", "a cross", "a line"],
)
def test_odd_sets(points, expected):
    found = STEPS.apply([points])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_equal_variances_are_settled_among_the_axes_that_share_them():
    rng = np.random.default_rng(0)
    ball = rng.normal(size=(500, 3))
    ball -= ball.mean(axis=0)
    ball = ball @ np.linalg.inv(np.linalg.cholesky(ball.T @ ball)).T  # all variances are equal
    np.testing.assert_allclose(np.abs(STEPS.apply([ball])[0]), np.abs(ball), atol=1e-5)
    disc = ball * [3, 1, 1]
    np.testing.assert_allclose(np.abs(STEPS.apply([disc])[0]), np.abs(disc), atol=1e-5)
    disc = ball * [1, 1, 3]
    np.testing.assert_allclose(np.abs(STEPS.apply([disc])[0]), np.abs(disc)[:, [2, 0, 1]], atol=1e-5)


def test_rounding_off_a_plane_does_not_turn_the_plane_round():
    """The third axis of a flat set sees nothing but rounding, so its sign must not decide about the others."""
    rng = np.random.default_rng(0)
    flat = skewed(rng, 200, 3) * [1, 1, 0]
    expected = STEPS.apply([flat])[0]
    for seed in range(20):
        np.testing.assert_allclose(STEPS.apply([turned(flat, seed, rng)])[0][:, :2], expected[:, :2], atol=1e-4)


def test_rounding_across_a_plane_has_no_skewness():
    """A set that is nearly symmetric in its plane: what rounding leaves across it must not seem more skew."""
    rng = np.random.default_rng(0)
    along = np.linspace(-1, 1, 12)
    flat = np.column_stack([3 * along + 0.02 * along**2, np.tile([1.0, -1, 0.5, -0.52], 3), np.zeros(12)])
    expected = STEPS.apply([flat])[0]
    for seed in range(40):
        np.testing.assert_allclose(STEPS.apply([turned(flat, seed, rng)])[0][:, :2], expected[:, :2], atol=1e-3)


def test_rounding_of_a_symmetric_set_has_no_skewness():
    """Its axes keep the direction that they have, wherever the set lies."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(30, 3)) * [3, 2, 1]
    points = np.concatenate([half, -half])
    expected = STEPS.apply([points])[0]
    for _ in range(20):
        np.testing.assert_allclose(STEPS.apply([points + rng.normal(size=3)])[0], expected, atol=1e-5)


def test_an_element_of_weight_zero_far_away_costs_no_digits():
    rng = np.random.default_rng(0)
    points = skewed(rng, 50, 3)
    more = np.concatenate([[[1e14, 1e14, -1e14]], points])
    weighted = Sets.from_list([more], [np.concatenate([[0.0], np.ones(50)])])
    np.testing.assert_allclose(STEPS.apply(weighted)[0][1:], STEPS.apply([points])[0], atol=1e-5)


def test_elements_of_weight_zero_change_nothing():
    rng = np.random.default_rng(0)
    points, weights = skewed(rng, 50, 3), rng.uniform(0.5, 1, 50)
    more = np.concatenate([rng.normal(size=(5, 3)) * 100, points, rng.normal(size=(5, 3)) * 100])
    zeros = np.zeros(5)
    plain = STEPS.apply(Sets.from_list([points], [weights]))[0]
    padded = STEPS.apply(Sets.from_list([more], [np.concatenate([zeros, weights, zeros])]))[0]
    np.testing.assert_allclose(padded[5:-5], plain, atol=1e-5)


def test_the_pose_does_not_matter_in_an_index():
    rng = np.random.default_rng(0)
    shapes = [skewed(rng, 80, 3) * rng.uniform(0.8, 1.2, 3) for _ in range(30)]
    index = slosh.SetIndex.create(None, dim=3, preprocess=Preprocess(center=True, align="pca", scale="unit"))
    index.add(shapes, ids=[str(i) for i in range(30)])
    for i in range(0, 30, 5):
        hit = index.search(turned(shapes[i], i, rng), k=1)[0]
        assert hit.id == str(i)
        assert hit.distance < 1e-4


def test_bad_input():
    for bad in ("axes", True, 1):
        with pytest.raises(InputError, match="principal axes") as told:
            Preprocess(align=bad)
        assert told.value.argument == "align"
    wide = np.random.default_rng(0).normal(size=(5, 65))
    with pytest.raises(InputError, match="64 features") as told:
        STEPS.apply([wide])
    assert told.value.argument == "align"
    with pytest.raises(InputError, match="64 features"):
        slosh.SetIndex.create(None, dim=65, preprocess=STEPS)
    with pytest.raises(InputError, match="beyond"):
        Preprocess(align="pca").apply([np.array([[1e15, 1e15], [-1e15, -1e15]])])


def test_repr_and_storage():
    assert repr(STEPS) == "Preprocess(center=True, align='pca')"
    assert Preprocess.from_dict(STEPS.to_dict()) == STEPS
    assert not Preprocess(align="pca").is_identity
    stored = STEPS.to_dict()
    del stored["align"]  # as versions before this step wrote it
    assert Preprocess.from_dict(stored) == Preprocess(center=True)
