"""slosh.distance and slosh.pairwise against POT."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from builders import clouds
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.rank import sliced
from slosh.slices import Circular, Polynomial, directions

ot = pytest.importorskip("ot")


def exact(x, y, theta, u=None, v=None):
    x, y, theta = (np.asarray(a, np.float64) for a in (x, y, theta))
    u, v = (None if w is None else np.asarray(w, np.float64) / np.sum(w, dtype=np.float64) for w in (u, v))
    return np.sqrt(np.mean([ot.wasserstein_1d(x @ t, y @ t, u, v, p=2) for t in theta]))


@pytest.mark.parametrize("weighted", [False, True])
def test_pairwise_is_pot(each_kernel, weighted, monkeypatch):
    rng = np.random.default_rng(0)
    sizes = [1, 2, 5, 16, 33, 33, 100, 250]
    points = [rng.normal(size=(n, 3)) + rng.normal(size=3) for n in sizes]
    weights = [rng.uniform(0.1, 1, n) for n in sizes] if weighted else None
    sets = Sets.from_list(points, weights)
    theta = directions("random", 19, 3, 1)
    expected = np.zeros((8, 8))
    for i in range(8):
        for j in range(i):
            expected[i, j] = expected[j, i] = exact(sets[i], sets[j], theta, sets.weights_of(i), sets.weights_of(j))
    np.testing.assert_allclose(slosh.pairwise(sets, slices=theta), expected, atol=1e-5)
    np.testing.assert_allclose(slosh.pairwise(sets[:3], sets[2:], slices=theta), expected[:3, 2:], atol=1e-5)
    monkeypatch.setattr(sliced, "SORTED_NUMBERS", 19 * 40)  # many small blocks
    monkeypatch.setattr(sliced, "TRANSPORT_STEPS", 19 * 100)
    np.testing.assert_allclose(slosh.pairwise(sets, slices=theta), expected, atol=1e-5)


def test_weighted_against_unweighted(each_kernel):
    x = np.array([[0.0], [1.0], [5.0]])
    twice = np.array([[0.0], [0.0], [1.0], [5.0]])
    weighted = Sets.from_list([x], [[2.0, 1.0, 1.0]])
    assert slosh.distance(weighted, twice) == pytest.approx(0, abs=1e-6)
    assert slosh.distance(weighted, x) > 0.5
    assert slosh.distance(Sets.from_list([x], [[1.0, 1.0, 0.0]]), x[:2]) == pytest.approx(0, abs=1e-6)


def test_it_is_a_metric(mnist):
    sets = mnist[0][:25]
    d = slosh.pairwise(sets)
    assert np.array_equal(d, d.T)
    assert not np.diag(d).any()
    assert (d[~np.eye(25, dtype=bool)] > 0).all()
    assert (d[:, :, None] <= d[:, None, :] + d.T[None, :, :] + 1e-6).all()


def test_distance_of_single_sets():
    assert slosh.distance([[0, 0]], [[3, 4]], slices="axis") == pytest.approx(5 / np.sqrt(2))
    assert slosh.distance(np.zeros((3, 2)), np.ones((5, 2)), n_slices=1000) == pytest.approx(1, rel=1e-3)
    assert slosh.distance([[0, 0]], [[3, 4]], slices=Circular(1e-6), n_slices=4) == pytest.approx(5, rel=1e-5)
    with pytest.raises(ValueError, match="pairwise"):
        slosh.distance(Sets.from_list([[[0.0]], [[1.0]]]), [[0.0]])
    with pytest.raises(ValueError, match="feature"):
        slosh.distance([[0.0, 1.0]], [[0.0]])


def test_more_slices_come_nearer_to_the_whole_integral():
    """For one point each the sliced distance is |v| / sqrt(d) in the mean over the sphere."""
    v = np.array([[1.0, 2.0, 2.0]])
    errors = [abs(slosh.distance(v, 0 * v, n_slices=n) - 3 / np.sqrt(3)) for n in (4, 64, 1024)]
    assert errors[2] < 1e-3
    assert errors[2] < errors[0]


def test_origins_are_minded():
    rng = np.random.default_rng(0)
    utm = [rng.normal(size=(50, 2)) + np.array([500_000, 4_500_000]) for _ in range(2)]
    sets = Sets.from_list(utm, origin="auto")
    expected = slosh.distance(utm[0] - sets.origin, utm[1] - sets.origin)
    assert expected > 0
    assert slosh.distance(sets[:1], utm[1]) == pytest.approx(expected, rel=1e-5)
    assert slosh.distance(utm[0], sets[1:]) == pytest.approx(expected, rel=1e-5)
    assert slosh.pairwise(sets, utm)[0, 1] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="origin"):
        slosh.distance(sets[:1], Sets.from_list(utm[1:], origin=[500_000, 4_499_000]))


def test_a_fitted_slicer_is_taken_as_it_is():
    sets = [np.random.default_rng(i).normal(size=(30, 2)) for i in range(2)]
    model = SlicedWasserstein(10, slices=Polynomial(3), random_state=5).fit(sets)
    lower, upper = model.bounds(sets[:1], sets[1:])
    assert lower <= slosh.pairwise(sets[:1], sets[1:], slices=model.slices_) <= upper


def test_fitted_slices_give_the_bits_of_the_fitted_slicer():
    sets = clouds(12, 5, 3)
    model = SlicedWasserstein(n_slices=40, slices="random").fit(sets)
    expected = slosh.pairwise(sets, slices=model.slicer_)
    assert np.array_equal(slosh.pairwise(sets, slices=model.slices_), expected)
    pairs = sliced.SlicedPairs(sets[:1], model.slices_)
    assert np.array_equal(pairs.distances(np.zeros(12, int), sets, np.arange(12)), expected[0])
    again = SlicedWasserstein(slices=model.slices_).fit(sets)
    assert np.array_equal(again.transform(sets), model.transform(sets))


def test_nothing_compares_to_nothing():
    assert slosh.pairwise([]).shape == (0, 0)
    assert slosh.pairwise([], [[[0.0]]]).shape == (0, 1)


def test_a_collection_is_sent_to_pairwise():
    x = np.zeros((3, 2))
    for a, b in [([x, x], x), (x, [x])]:
        with pytest.raises(ValueError, match="pairwise"):
            slosh.distance(a, b)


@pytest.mark.parametrize("weighted", [False, True])
def test_chosen_pairs_are_pot(each_kernel, weighted, monkeypatch):
    queries, stored = clouds([7, 1, 30], 3, 1, weighted), clouds([40, 1, 2, 60, 9], 3, 2, weighted)
    theta = directions("random", 19, 3, 1)
    which, index = np.array([2, 0, 0, 1, 2, 2, 0]), np.array([4, 3, 0, 3, 0, 4, 3])
    expected = [
        exact(queries[i], stored[j], theta, queries.weights_of(i), stored.weights_of(j))
        for i, j in zip(which, index, strict=True)
    ]
    pairs = sliced.SlicedPairs(queries, theta)
    found = pairs.distances(which, stored, index)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    whole = slosh.pairwise(queries, stored, slices=theta)
    assert np.array_equal(found, whole[which, index])  # the same bits, however it is batched
    monkeypatch.setattr(sliced, "SORTED_NUMBERS", 19 * 45)
    assert np.array_equal(pairs.distances(which, stored, index), found)
    every = np.arange(5)
    assert np.array_equal(pairs.distances(every * 0, stored, every), whole[0])
    assert pairs.distances(which[:0], stored, index[:0]).shape == (0,)


def test_pairs_of_slices_that_are_not_linear():
    queries, stored = clouds(3, seed=1), clouds(4, seed=2)
    slicer = Circular(2.0).fit(2, 5, 0)
    which, index = np.divmod(np.arange(12), 4)
    found = sliced.SlicedPairs(queries, slicer, n_jobs=1).distances(which, stored, index)
    assert np.array_equal(found.reshape(3, 4), slosh.pairwise(queries, stored, slices=slicer))
