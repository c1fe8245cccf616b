"""DistanceField against the formula, the facts that its docstring states, and what it refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import each, some_sets
from scipy.spatial.distance import cdist, directed_hausdorff
from sklearn.base import clone

from builders import clouds
from slosh import Sets, errors
from slosh.embed import DistanceField


def plain(sets, anchors):
    """The distance of each anchor to the nearest element with a weight, in float64."""
    return np.array([cdist(anchors, x[w > 0]).min(axis=1) for x, w in each(sets)])


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@settings(max_examples=40)
@given(
    sizes=SIZES,
    dim=st.sampled_from([1, 2, 3, 5, 40]),
    n_anchors=st.sampled_from([1, 5, 64, 100]),
    weighted=st.booleans(),
    scale=st.sampled_from([1e-25, 1e-3, 1.0, 1e12]),
    seed=st.integers(0, 999),
)
def test_is_the_formula_but_for_the_rounding_that_it_states(each_kernel, sizes, dim, n_anchors, weighted, scale, seed):
    drawn = clouds(sizes, dim, seed, weighted)
    sets = Sets(drawn.points * np.float32(scale), drawn.offsets, drawn.weights)
    anchors = (np.random.default_rng(seed).normal(size=(n_anchors, dim)) * scale).astype(np.float32)
    model = DistanceField(anchors=anchors).fit(sets)
    np.testing.assert_array_equal(model.anchors_, anchors)
    vectors, slack = model.index_vectors(sets)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(sets), n_anchors) == (len(sets), model.vector_length)
    away = np.linalg.norm(vectors - plain(sets, anchors.astype(np.float64)), axis=1)
    assert (away <= slack).all()
    assert (slack <= 1e-4 * np.linalg.norm(vectors, axis=1) + 1e-20).all()
    assert model.index_vectors(sets, slack=False)[1] is None


@settings(max_examples=40)
@given(sizes=SIZES, dim=st.sampled_from([1, 2, 3, 8]), weighted=st.booleans(), seed=st.integers(0, 999))
def test_the_largest_difference_is_at_most_the_hausdorff_distance(sizes, dim, weighted, seed):
    sets = clouds([*sizes, 7], dim, seed, weighted)
    model = DistanceField(anchors=np.random.default_rng(seed).normal(size=(50, dim))).fit(sets)
    vectors, counted = model.transform(sets), [x[w > 0] for x, w in each(sets)]
    for i, a in enumerate(counted):
        for j, b in enumerate(counted):
            hausdorff = max(directed_hausdorff(a, b)[0], directed_hausdorff(b, a)[0])
            assert np.abs(vectors[i] - vectors[j]).max() <= hausdorff * (1 + 1e-5) + 1e-5
    # With an anchor at every element the bound is the distance itself.
    everywhere = DistanceField(anchors=np.concatenate(counted)).fit(sets).transform(sets)
    hausdorff = max(directed_hausdorff(counted[0], counted[-1])[0], directed_hausdorff(counted[-1], counted[0])[0])
    assert np.abs(everywhere[0] - everywhere[-1]).max() == pytest.approx(hausdorff, rel=1e-5, abs=1e-6)


def test_a_field_changes_no_faster_than_the_place_moves():
    sets = some_sets()
    model = DistanceField(60).fit(sets)
    differences = np.abs(model.transform(sets)[:, :, None] - model.transform(sets)[:, None, :])
    assert (differences <= cdist(model.anchors_, model.anchors_) + 1e-5).all()


def test_elements_of_weight_zero_do_not_count():
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 2))
    weights = np.where(np.arange(30) % 3 == 0, 0.0, random.uniform(0.1, 9, 30))
    model = DistanceField(anchors=random.normal(size=(20, 2))).fit([x])
    found = model.transform(Sets.from_list([x], [weights]))
    np.testing.assert_array_equal(found, model.transform([x[weights > 0]]))
    assert (found > model.transform([x])).any()


def test_of_one_point_and_of_identical_points():
    anchors = np.random.default_rng(0).normal(size=(33, 3)).astype(np.float32)
    point = np.array([[0.5, -1.0, 2.0]])
    model = DistanceField(anchors=anchors).fit([point])
    one, many = model.transform([point]), model.transform([np.repeat(point, 37, axis=0)])
    np.testing.assert_allclose(one[0], np.linalg.norm(anchors - point, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(one, many)
    np.testing.assert_array_equal(model.transform([anchors])[0], np.zeros(33))


@pytest.mark.parametrize("weighted", [False, True])
def test_same_bits_for_any_threads_and_batches(each_kernel, monkeypatch, weighted):
    sets = some_sets(weighted=weighted)
    anchors = np.random.default_rng(1).normal(size=(70, 3))
    model = DistanceField(anchors=anchors, n_jobs=1).fit(sets)
    expected = model.transform(sets)
    assert np.array_equal(model.transform(iter(sets)), expected)
    assert np.array_equal(np.concatenate([model.transform(sets[i : i + 1]) for i in range(len(sets))]), expected)
    for steps, jobs in [(1, 1), (70 * 3 * 100, 3), (1 << 40, 2)]:
        monkeypatch.setattr("slosh.embed.distance_field.NATIVE_STEPS", steps)
        assert np.array_equal(clone(model).set_params(n_jobs=jobs).fit(sets).transform(sets), expected)


def test_anchors_are_the_centres_of_the_elements():
    random = np.random.default_rng(0)
    true = np.array([[0.0, 0], [100, 0], [0, 100], [70, 70]])
    sets = Sets.from_list([true[random.integers(4, size=50)] + random.standard_normal((50, 2)) for _ in range(40)])
    model = DistanceField(4).fit(sets)
    assert model.anchors_.dtype == np.float32
    np.testing.assert_allclose(model.anchors_[np.lexsort(model.anchors_.round(-1).T)], true[np.lexsort(true.T)], atol=1)
    np.testing.assert_array_equal(clone(model).fit(sets).anchors_, model.anchors_)
    many = [DistanceField(100, random_state=seed).fit(sets).anchors_ for seed in (3, 3, 4)]
    assert np.array_equal(many[0], many[1])
    assert not np.array_equal(many[0], many[2])
    there = np.abs(sets.points - [100, 0]).max(axis=1) < 20
    near = DistanceField(10).fit(Sets(sets.points, sets.offsets, there + 0.0)).anchors_
    assert (np.abs(near - [100, 0]).max(axis=1) < 20).all(), "elements of weight zero have no centres"


def test_every_element_counts_the_same_whatever_its_set():
    """Of two places, the one with a large set takes nearly all anchors."""
    random = np.random.default_rng(0)
    large, small = random.normal(size=(3900, 1)), random.normal(size=(10, 1)) + 1000
    anchors = DistanceField(40).fit([large, *[small] * 10]).anchors_
    assert 30 < np.count_nonzero(anchors < 500) < 40


def test_fitted_anchors_stay_and_travel():
    sets = some_sets()
    model = DistanceField(20, random_state=5).fit(sets)
    expected = model.transform(sets)
    model.set_params(n_anchors=3, anchors=np.zeros((2, 3)))
    assert np.array_equal(model.transform(sets), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(sets), expected)
    usual = {"n_anchors": 256, "anchors": "kmeans", "random_state": 0, "n_jobs": -1, "device": None}
    assert DistanceField().get_params() == usual
    assert model.get_feature_names_out()[0] == "distancefield0"
    assert np.array_equal(model.distance(sets[:2], sets[:3]), cdist(expected[:2].astype(float), expected[:3]))


def test_anchors_of_ones_own_lie_where_the_sets_lie():
    city = [np.random.default_rng(i).normal(size=(40, 2)) * 10 + [500_000, 4_500_000] for i in range(3)]
    sets = Sets.from_list(city, origin="auto")
    for own in (city[0], sets[:1], sets[0]):
        model = DistanceField(anchors=own).fit(sets)
        np.testing.assert_allclose(model.transform(sets)[0], 0, atol=1e-4)
        np.testing.assert_allclose(model.transform(city), model.transform(sets), atol=1e-4)
    with pytest.raises(ValueError, match="origin"):
        DistanceField(anchors=Sets.from_list(city[:1], origin=[499_999, 4_500_000])).fit(sets)
    with pytest.raises(ValueError, match="origin"):
        DistanceField(8).fit(sets).transform(Sets.from_list(city, origin=[499_999, 4_500_000]))
    weighted = Sets.from_list([[[0.0, 0.0], [5.0, 5.0]]], [[0.0, 1.0]])
    assert DistanceField(anchors=weighted).fit([[[1.0, 1.0]]]).anchors_.tolist() == [[5.0, 5.0]]


@pytest.mark.parametrize(
    ("params", "argument", "words"),
    [
        ({"n_anchors": 0}, "n_anchors", "1 or more"),
        ({"n_anchors": 2.5}, "n_anchors", "whole number"),
        (
            {"n_anchors": 10**6},
            "n_anchors",
            r"as many different elements .* have 11: fit on more sets, .* fewer anchors",
        ),
        ({"n_anchors": 12}, "n_anchors", "n_anchors=12 .* have 11"),
        ({"anchors": "grid"}, "anchors", r'anchors=\'grid\': give "kmeans", or an array \(K, d\)'),
        ({"anchors": np.ones((3, 7))}, "anchors", r"array \(K, 3\), one anchor a row; got shape \(3, 7\)"),
        ({"anchors": np.ones(3)}, "anchors", r"got shape \(3,\)"),
        ({"anchors": np.ones((0, 3))}, "anchors", r"got shape \(0, 3\)"),
        ({"anchors": [[1, 2, np.nan]]}, "anchors", "row 0 holds NaN"),
        ({"anchors": [[1, 2, 3], [1e16, 2, 3]]}, "anchors", r"beyond 1e\+15, in row 1: give places"),
        ({"anchors": clouds([5, 6], 3)}, "anchors", "must be one set; these are 2"),
        ({"random_state": "x"}, "random_state", "random_state"),
        ({"n_jobs": 0}, "n_jobs", "n_jobs"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_bad_parameters_name_themselves_and_the_remedy(params, argument, words):
    with pytest.raises(errors.InputError, match=words) as told:
        DistanceField(**{"n_anchors": 4, **params}).fit(clouds([5, 6], 3))
    assert told.value.argument == argument


def test_repeated_elements_are_counted_once():
    """Of elements that are all the same no two centres can be found."""
    with pytest.raises(errors.InputError, match=r"n_anchors=2 .* these sets have 1"):
        DistanceField(2).fit([np.ones((500, 3)), np.ones((2, 3))])
    same = Sets.from_list([[[0.0], [1.0], [2.0]]] * 5, [[1.0, 1.0, 0.0]] * 5)
    assert sorted(DistanceField(2).fit(same).anchors_.ravel()) == [0, 1]
    with pytest.raises(errors.InputError, match="these sets have 2"):
        DistanceField(3).fit(same)
