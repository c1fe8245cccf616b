"""slosh.rank: distances against plain definitions and POT, the matching, and the parts of an explanation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, directed_hausdorff

import slosh
from slosh import Sets, rank
from slosh.embed import SlicedWasserstein
from slosh.rank import distances
from slosh.slices import Polynomial

ot = pytest.importorskip("ot")


def clouds(sizes, dim=3, seed=0, weighted=False):
    rng = np.random.default_rng(seed)
    points = [rng.normal(size=(n, dim)) + rng.normal(size=dim) for n in sizes]
    weights = None
    if weighted:
        weights = [rng.uniform(0.1, 1, n) * (rng.random(n) > 0.3) for n in sizes]
        for w in weights:
            w[0] = 0.5
    return Sets.from_list(points, weights)


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


def test_nearest_in_blocks_and_by_tree_agree(monkeypatch):
    sets = clouds([200, 150], 3)
    by_tree = rank.chamfer(sets[:1], sets)
    monkeypatch.setattr(distances, "TREE_DIM", 0)
    np.testing.assert_allclose(rank.chamfer(sets[:1], sets), by_tree, atol=1e-9)
    large = clouds([3000, 2500], 13)
    assert len(large[0]) * len(large[1]) > 1 << 22
    expected = cdist(large[0].astype(float), large[1].astype(float))
    both = max(expected.min(axis=0).max(), expected.min(axis=1).max())
    assert rank.hausdorff(large[:1], large[1:])[0] == pytest.approx(both)


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
    x = clouds([30])[0]
    order = np.random.default_rng(1).permutation(30)
    found = rank.match(x, x[order])
    assert found.distance == pytest.approx(0, abs=1e-6)
    np.testing.assert_array_equal(order[found.columns], found.rows)


@settings(max_examples=30)
@given(
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    dim=st.integers(1, 4),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_parts_of_an_explanation_sum_to_the_whole(sizes, dim, weighted, seed):
    sets = clouds(sizes, dim, seed, weighted)
    found = rank.explain(sets[:1], sets[1:], n_slices=7)
    expected = slosh.distance(sets[:1], sets[1:], n_slices=7)
    assert found.distance == pytest.approx(expected, abs=1e-5)
    for parts, n in ((found.slices, None), (found.x_elements, sizes[0]), (found.y_elements, sizes[1])):
        assert (parts >= 0).all()
        assert parts.sum() == pytest.approx(expected**2, abs=1e-4)
        assert n is None or len(parts) == n
    if weighted:
        assert not found.x_elements[sets.weights_of(0) == 0].any()


def test_an_explanation_points_at_what_differs():
    rng = np.random.default_rng(0)
    x = rng.normal(scale=0.01, size=(40, 2))
    y = x.copy()
    y[7] += [0, 10]
    found = rank.explain(x, y, slices=np.eye(2))
    assert found.y_elements.argmax() == 7
    assert found.y_elements[7] > 0.9 * found.distance**2
    assert found.slices[1] > 0.99 * found.distance**2
    assert "elements of x" in str(found)
    assert np.array_equal(found.directions, np.eye(2))


def test_explanation_with_the_slices_of_a_model():
    sets = clouds([20, 30], 2)
    for slices in ("auto", Polynomial(3)):
        model = SlicedWasserstein(6, slices=slices, random_state=4).fit(sets)
        found = rank.explain(sets[0], sets[1], slices=model.slices_)
        lower, upper = model.bounds(sets[:1], sets[1:])
        assert lower.item() - 1e-5 <= found.distance <= upper.item() + 1e-5


@pytest.mark.parametrize("dim", [2, 3])
def test_plot(dim, tmp_path):
    pytest.importorskip("matplotlib")
    sets = clouds([300, 250], dim)
    path = tmp_path / "why.png"
    figure = rank.explain(sets[:1], sets[1:], n_slices=4).plot(path, title="why")
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert figure.axes[0].get_title() == "why"


def test_plot_into_axes_of_ones_own(tmp_path):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    left, right = figure.subplots(1, 2)
    sets = clouds([30, 25], 2)
    assert rank.explain(sets[:1], sets[1:]).plot(axes=right) is figure
    assert not left.has_data()
    assert right.has_data()


def test_plot_needs_two_or_three_dimensions():
    with pytest.raises(ValueError, match="PCA"):
        rank.explain(np.zeros((2, 5)), np.ones((3, 5))).plot()


def test_sets_of_different_dimensions_are_refused():
    for call in (slosh.distance, rank.explain, rank.match):
        with pytest.raises(ValueError, match="the first set has 3 features, the second 2"):
            call(np.zeros((4, 3)), np.zeros((5, 2)))
