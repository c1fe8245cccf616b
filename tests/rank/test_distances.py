"""slosh.rank: distances against plain definitions and POT, and the optimal matching of two sets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist, directed_hausdorff

import slosh
from builders import clouds
from slosh import rank

ot = pytest.importorskip("ot")


def single(sets, i):
    x, w = sets[i].astype(np.float64), sets.weights_of(i)
    w = np.ones(len(x)) if w is None else w.astype(np.float64)
    return x[w > 0], w[w > 0] / w.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 5, 40])
def test_distances_are_their_definitions(weighted, dim):
    sets = clouds([1, 2, 9, 60, 90], dim, weighted=weighted)
    for q in range(len(sets)):
        query = sets[q : q + 1]
        found = {name: getattr(rank, name)(query, sets) for name in ("wasserstein", "chamfer", "hausdorff")}
        sliced = rank.sliced_wasserstein(query, sets)
        np.testing.assert_allclose(sliced, slosh.pairwise(sets)[q], atol=1e-6)
        for i in range(len(sets)):
            (x, u), (y, v) = single(sets, q), single(sets, i)
            table = cdist(x, y)
            assert found["chamfer"][i] == pytest.approx((table.min(1) @ u + table.min(0) @ v) / 2, abs=1e-9)
            both = max(directed_hausdorff(x, y)[0], directed_hausdorff(y, x)[0])
            assert found["hausdorff"][i] == pytest.approx(both, abs=1e-9)
            assert found["wasserstein"][i] == pytest.approx(np.sqrt(ot.emd2(u, v, table**2)), abs=1e-6)
            assert sliced[i] <= found["wasserstein"][i] + 1e-5  # a projection makes nothing longer


def test_hausdorff_in_blocks():
    large = clouds([3000, 2500], 13)
    assert len(large[0]) * len(large[1]) > 1 << 22
    expected = cdist(large[0].astype(float), large[1].astype(float))
    both = max(expected.min(axis=0).max(), expected.min(axis=1).max())
    assert rank.hausdorff(large[:1], large[1:])[0] == pytest.approx(both)


@pytest.mark.parametrize("seed", range(5))
def test_hausdorff_is_exact_where_float32_cannot_tell_elements_apart(seed):
    points = np.random.default_rng(seed).normal(size=(500, 40))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    farthest = np.linalg.norm(points.astype(np.float64), axis=1).max()
    assert rank.hausdorff(np.zeros((1, 40)), [points])[0] == pytest.approx(farthest, rel=1e-14)
    assert rank.hausdorff(points, [np.zeros((1, 40))])[0] == pytest.approx(farthest, rel=1e-14)


def test_any_number_of_threads_and_arrays_or_sets():
    sets = clouds([20, 30, 40], 2)
    for name in ("sliced_wasserstein", "wasserstein", "chamfer", "hausdorff"):
        function = getattr(rank, name)
        expected = function(sets[:1], sets)
        assert np.array_equal(function(sets[0], list(sets), n_jobs=1), expected)
        assert np.array_equal(function(sets[0], list(sets), n_jobs=3), expected)
        assert function(sets[0], sets[:0]).shape == (0,)
        with pytest.raises(ValueError, match="single"):
            function(sets, sets)
        with pytest.raises(ValueError, match="features"):
            function(np.zeros((2, 3)), sets)


def test_sets_of_different_dimensions_are_refused():
    for call in (slosh.distance, rank.explain, rank.match):
        with pytest.raises(ValueError, match="the first set has 3 features, the second 2"):
            call(np.zeros((4, 3)), np.zeros((5, 2)))


@pytest.mark.parametrize("weighted", [False, True])
def test_match_is_the_optimal_plan(weighted):
    sets = clouds([12, 17], 2, weighted=weighted)
    found = rank.match(sets[:1], sets[1:])
    plan = found.plan().toarray()
    assert plan.shape == (12, 17)
    u, v = (np.ones(n) if w is None else w for n, w in ((12, sets.weights_of(0)), (17, sets.weights_of(1))))
    np.testing.assert_allclose(plan.sum(axis=1), u / u.sum(), atol=1e-6)
    np.testing.assert_allclose(plan.sum(axis=0), v / v.sum(), atol=1e-6)
    assert found.distance == pytest.approx(np.sqrt(found.mass @ found.lengths**2))
    assert found.distance == pytest.approx(rank.wasserstein(sets[:1], sets[1:])[0])
    np.testing.assert_allclose(
        found.lengths, np.linalg.norm(sets[0][found.rows] - sets[1][found.columns], axis=1), atol=1e-5
    )
    assert len(found) == len(found.mass)


def test_match_of_a_permuted_set_is_the_permutation():
    x = clouds([30], 3)[0]
    order = np.random.default_rng(1).permutation(30)
    found = rank.match(x, x[order])
    assert found.distance == pytest.approx(0, abs=1e-6)
    np.testing.assert_array_equal(order[found.columns], found.rows)
