"""OutlierScore: scikit-learn's local outlier factor, the formulas of the others, copies and units."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import neighbors as oracle

from slosh import Sets
from slosh.embed import MeanPool, SlicedWasserstein
from slosh.neighbors import OutlierScore


@pytest.mark.parametrize("k", [1, 5, 20])
def test_lof_is_that_of_scikit_learn(data, index_vectors, k):
    train, _, test, _ = data
    x, z = index_vectors(SlicedWasserstein(), train, test)
    for contamination in ("auto", 0.05):
        model = OutlierScore(k, contamination=contamination)
        inside = model.fit_predict(train)
        other = oracle.LocalOutlierFactor(k, novelty=True, contamination=contamination, algorithm="brute").fit(x)
        np.testing.assert_allclose(model.training_scores_, other.negative_outlier_factor_, rtol=1e-6)
        np.testing.assert_allclose(model.score_samples(test), other.score_samples(z), rtol=1e-6)
        np.testing.assert_allclose(model.decision_function(test), other.decision_function(z), rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(model.predict(test), other.predict(z))
        assert model.offset_ == pytest.approx(other.offset_)
        again = oracle.LocalOutlierFactor(k, contamination=contamination, algorithm="brute")
        np.testing.assert_array_equal(inside, again.fit_predict(x))


def test_distance_and_density_by_their_formulas(data, index_vectors):
    train, _, test, _ = data
    x, z = index_vectors(SlicedWasserstein(), train, test)
    tree = oracle.NearestNeighbors(n_neighbors=20, algorithm="brute").fit(x)
    near, own = tree.kneighbors(z)[0], tree.kneighbors()[0]
    model = OutlierScore(method="distance").fit(train)
    np.testing.assert_allclose(model.score_samples(test), -near[:, -1], rtol=1e-6)
    np.testing.assert_allclose(model.training_scores_, -own[:, -1], rtol=1e-6)
    low, high = np.percentile(-own[:, -1], [25, 75])
    assert model.offset_ == pytest.approx(low - 1.5 * (high - low))

    model = OutlierScore(method="density").fit(train)
    h = np.median(own[:, -1])
    assert model.bandwidth_ == pytest.approx(h)
    np.testing.assert_allclose(
        model.score_samples(test), np.log(np.exp(-((near / h) ** 2) / 2).sum(axis=1) / len(train)), rtol=1e-6
    )
    np.testing.assert_allclose(
        model.training_scores_, np.log(np.exp(-((own / h) ** 2) / 2).sum(axis=1) / len(train)), rtol=1e-6
    )


def test_density_of_all_neighbours_is_the_kernel_density(data, index_vectors):
    train, _, test, _ = data
    x, z = index_vectors(MeanPool(), train, test)
    with pytest.warns(UserWarning, match=r"n_neighbors=400, .* 399 are used"):
        model = OutlierScore(400, method="density", bandwidth=0.3, embedding=MeanPool()).fit(train)
    model.n_neighbors_ = 400  # new sets have them all
    density = oracle.KernelDensity(bandwidth=0.3).fit(x).score_samples(z)
    volume = z.shape[1] / 2 * np.log(2 * np.pi * 0.3**2)
    np.testing.assert_allclose(model.score_samples(test), density + volume, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["lof", "distance", "density"])
def test_odd_sets_are_found(digits, method):
    sets, labels = digits
    zeros, odd = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)[:6]
    model = OutlierScore(10, method=method).fit(sets.take(zeros[:40]))
    assert np.mean(model.predict(sets.take(odd)) == -1) >= 0.8
    assert np.mean(model.predict(sets.take(zeros[40:])) == 1) >= 0.8
    mixed = sets.take(np.concatenate([zeros, odd]))
    model = OutlierScore(10, method=method, contamination=len(odd) / len(mixed))
    found = model.fit_predict(mixed)
    assert np.mean(found[len(zeros) :] == -1) >= 0.6
    assert abs(int((found == -1).sum()) - len(odd)) <= 1
    np.testing.assert_array_equal(found == -1, model.training_scores_ < model.offset_)


@pytest.mark.parametrize("exponent", [-40, 30])
def test_outlier_factors_have_no_unit(digits, exponent):
    sets = digits[0][:100]
    scaled = Sets(sets.points * np.float32(2.0**exponent), sets.offsets, sets.weights)
    a, b = (OutlierScore(5).fit(s).training_scores_ for s in (sets, scaled))
    np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("method", ["lof", "distance", "density"])
def test_copies(method):
    """Among copies every distance is 0: they are as usual as can be, and nothing is NaN."""
    same = [[[1.0, 2.0]]] * 30
    model = OutlierScore(5, method=method).fit(same)
    assert np.isfinite(model.training_scores_).all()
    np.testing.assert_array_equal(model.fit_predict(same), 1)
    model.fit([*same, [[1.5, 2.0]]])
    assert np.isfinite(model.training_scores_).all()
    assert model.training_scores_.argmin() == 30
    assert model.predict([[[4.0, 4.0]], [[1.0, 2.0]]]).tolist() == [-1, 1]
