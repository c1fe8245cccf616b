"""Centres of lists: about as good as those of scikit-learn's k-means, and the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from slosh.search.centroids import centroids, nearest


def blobs(n=4000, dim=8, n_blobs=150, seed=0):
    rng = np.random.default_rng(seed)
    middles = rng.normal(size=(n_blobs, dim)) * 3
    return (middles[rng.integers(n_blobs, size=n)] + rng.normal(size=(n, dim)) * 0.4).astype(np.float32)


def spread(rows, centres):
    """The mean squared distance to the nearest centre."""
    return np.square(rows[:, None].astype(float) - centres[None]).sum(axis=2).min(axis=1).mean()


@pytest.mark.parametrize("n_centres", [1, 2, 40, 64, 100])
def test_centres_are_as_near_to_the_rows_as_those_of_scikit_learn(n_centres):
    rows = blobs()
    found = centroids(rows, n_centres, np.random.RandomState(0))
    assert found.shape == (n_centres, 8)
    assert found.dtype == np.float32
    start = rows[np.random.RandomState(0).choice(len(rows), n_centres, replace=False)]
    peer = KMeans(n_centres, init=start, n_init=1, max_iter=8).fit(rows).cluster_centers_
    assert spread(rows, found) <= 1.1 * spread(rows, peer)


def test_a_seed_gives_the_same_centres():
    rows = blobs()
    one, again, other = (centroids(rows, 90, np.random.RandomState(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("factor", [1e-30, 1e25])
def test_numbers_whose_squares_float32_cannot_hold(factor):
    rows = blobs(1000)
    usual = centroids(rows, 70, np.random.RandomState(0))
    far = centroids((rows * np.float32(factor)).astype(np.float32), 70, np.random.RandomState(0))
    assert np.isfinite(far).all()
    assert spread(rows, far / np.float32(factor)) == pytest.approx(spread(rows, usual), rel=0.05)


@pytest.mark.parametrize("n_centres", [5, 80])
def test_rows_that_are_all_equal_or_zero(n_centres):
    for row in ([0.0, 0.0], [3.0, -1.0]):
        found = centroids(np.tile(np.array(row, np.float32), (200, 1)), n_centres, np.random.RandomState(0))
        assert 1 <= len(found) <= n_centres
        assert np.allclose(found, row)


def test_the_nearest_centre_is_the_nearest():
    rows, centres = blobs(500), blobs(60, seed=1)
    table = np.square(rows[:, None].astype(float) - centres[None]).sum(axis=2)
    assert np.take_along_axis(table, nearest(rows, centres)[:, None], axis=1)[:, 0] == pytest.approx(table.min(axis=1))
