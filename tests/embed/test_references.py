"""Reference sets: what they are drawn from, and which are refused."""

from __future__ import annotations

import numpy as np
import pytest
from ragged import each, some_sets
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from slosh import Sets
from slosh.embed.references import kmeans_centres, reference_points, spread_elements


def test_references_drawn_without_data() -> None:
    sets = some_sets()
    uniform, weights = reference_points("uniform", sets, 500, 0)
    assert uniform.shape == (500, 3)
    assert uniform.dtype == np.float64
    assert weights is None
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() <= 1
    normal, _ = reference_points("normal", sets, 500, 0)
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1
    np.testing.assert_array_equal(uniform, reference_points("uniform", sets, 500, np.random.RandomState(0))[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_reference_sample_is_one_of_the_sets(weighted: bool) -> None:
    sets = some_sets(weighted=weighted)
    pairs = each(sets)
    seen = set()
    for seed in range(30):
        points, weights = reference_points("sample", sets, None, seed)
        found = [i for i, (x, _) in enumerate(pairs) if x.shape == points.shape and np.array_equal(x, points)]
        seen.update(found)
        assert len(found) == 1
        if weighted:
            np.testing.assert_array_equal(weights, pairs[found[0]][1])
        else:
            assert weights is None
    assert len(seen) > 10


def test_reference_kmeans_finds_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.RandomState(0)
    true = np.array([[0.0, 0], [100, 0], [0, 100], [70, 70]])
    sets = Sets.from_list([true[random.randint(4, size=50)] + random.standard_normal((50, 2)) for _ in range(40)])

    def sorted_centres(sets: Sets) -> np.ndarray:
        centres, weights = reference_points("kmeans", sets, 4, 0)
        assert weights is None
        return centres[np.lexsort(centres.round(-1).T)]

    expected = true[np.lexsort(true.T)]
    np.testing.assert_allclose(sorted_centres(sets), expected, atol=1)
    monkeypatch.setattr("slosh.embed.references.KMEANS_ELEMENTS", (200, 300))
    np.testing.assert_allclose(sorted_centres(sets), expected, atol=1)
    np.testing.assert_array_equal(sorted_centres(sets), sorted_centres(sets))
    weights = (np.abs(sets.points[:, 0] - 100) < 20) + 1e-6  # nearly all the weight on one cluster
    heavy = Sets(sets.points, sets.offsets, weights)
    centre, _ = reference_points("kmeans", heavy, 1, 0)
    np.testing.assert_allclose(centre, [[100, 0]], atol=1)


def test_reference_of_ones_own() -> None:
    sets = some_sets()
    own = [[1, 2, 3], [4, 5, 6]]
    points, weights = reference_points(own, sets, 9)
    np.testing.assert_array_equal(points, own)
    assert points.dtype == np.float64
    assert weights is None
    one = Sets.from_list([own], [[1, 3]])
    points, weights = reference_points(one, sets, None)
    np.testing.assert_array_equal(points, own)
    np.testing.assert_array_equal(weights, [1, 3])
    for wrong, message in [
        ("gauss", "'gauss' is not known: choose one of 'uniform', 'normal', 'sample', 'kmeans'"),
        (np.ones((4, 2)), r"array \(M, 3\).*got shape \(4, 2\)"),
        (np.ones(3), r"got shape \(3,\)"),
        (np.ones((0, 3)), r"got shape \(0, 3\)"),
        ([[1, 2, np.inf]], "row 0 holds NaN or infinity"),
        ([[1, 2, 3], [1]], "array of numbers"),
        (sets, "must be one set; these are 40"),
    ]:
        with pytest.raises(ValueError, match=message):
            reference_points(wrong, sets, 5)  # type: ignore[arg-type]
    for count in (0, None, 2.5):
        with pytest.raises(ValueError, match="n_points"):
            reference_points("uniform", sets, count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs as many elements; the sets have"):
        reference_points("kmeans", sets, 10**6)


@pytest.mark.parametrize("weighted", [False, True])
def test_many_centres_are_spread_as_well_as_those_of_scikit_learn(weighted):
    random = np.random.RandomState(0)
    elements = random.standard_normal((7200, 3)) * np.repeat([[0.1], [1.0], [5.0]], 2400, axis=0)
    weights = random.uniform(0.1, 2, 7200) if weighted else None
    own = kmeans_centres(elements, weights, 600, np.random.RandomState(1))
    peer = KMeans(600, n_init=1, max_iter=25, random_state=1).fit(elements, sample_weight=weights).cluster_centers_

    def spread(centres):
        return np.average(cdist(elements, centres, "sqeuclidean").min(axis=1), weights=weights)

    assert len(np.unique(own, axis=0)) == 600
    assert spread(own) < 1.15 * spread(peer)


def test_many_centres_of_elements_that_are_often_equal():
    """As the pixels of images are: no two centres are the same, and none is wasted."""
    random = np.random.RandomState(0)
    elements = random.randint(0, 28, (40_000, 2)).astype(np.float64)
    centres = kmeans_centres(elements, None, 600, np.random.RandomState(1))
    assert len(np.unique(centres, axis=0)) == 600
    away = cdist(elements[:2000], centres).min(axis=1)
    assert np.mean(away > 0.01) < 0.5


def test_spread_elements_are_different():
    chosen = spread_elements(np.arange(50.0)[:, None] * 1e-200, None, 40, np.random.RandomState(0))
    assert len(np.unique(chosen)) == 40
