"""LocalShape: what it learns, what stays the same when a set is moved or turned, odd sets, and what it refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import some_sets
from scipy.stats import special_ortho_group
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from builders import clouds
from slosh import Sets
from slosh.embed import LocalShape, MeanPool, SlicedWasserstein, Wrapped
from slosh.errors import InputError


def small(**options) -> LocalShape:
    return LocalShape(SlicedWasserstein(8, 4), **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [2, 3])
def test_vectors_are_those_of_the_richer_sets(dim, weighted):
    sets = some_sets(30, dim, weighted)
    model = small(neighbors=(4, 9)).fit(sets)
    rich = model.enrich(sets)
    assert rich.dim == dim + 1 + 2 * (2 * dim + 1) == len(model.column_names) == dim + len(model.scale_)
    assert np.array_equal(rich.points[:, :dim], sets.points)
    assert rich.weights is sets.weights
    expected = SlicedWasserstein(8, 4).fit(rich).transform(rich)
    assert np.array_equal(model.transform(sets), expected)
    assert model.vector_length == model.index_length == 32
    assert not model.has_bounds
    assert not hasattr(model.embedding, "n_features_in_")  # a copy was fitted
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(sets), expected)
    assert np.array_equal(clone(model).fit(sets).transform(sets), expected)


def test_columns_vary_as_much_as_the_coordinates():
    """Over the collection, and each set counts the same, however many elements it has."""
    sets = some_sets(60, 3, weighted=True, largest=200)
    rich = small().fit(sets).enrich(sets)
    shares = rich.weights / np.repeat(np.add.reduceat(rich.weights, rich.offsets[:-1]), rich.sizes) / len(rich)
    points = rich.points.astype(np.float64)
    variances = np.average((points - np.average(points, axis=0, weights=shares)) ** 2, axis=0, weights=shares)
    np.testing.assert_allclose(variances[3:], variances[:3].mean(), rtol=1e-5)


def test_default_is_the_sliced_embedding():
    sets = clouds(20, 2)
    model = LocalShape().fit(sets)
    assert isinstance(model.embedding_, SlicedWasserstein)
    assert model.column_names == [
        "x0", "x1", "center", "extent0 of 8", "extent1 of 8", "offset of 8", "normal0 of 8", "normal1 of 8",
        "extent0 of 32", "extent1 of 32", "offset of 32", "normal0 of 32", "normal1 of 32",
    ]  # fmt: skip


@settings(max_examples=30)
@given(dim=st.sampled_from([2, 3]), seed=st.integers(0, 1000), size=st.integers(1, 80))
def test_columns_stay_when_a_set_is_moved_and_turned(dim, seed, size):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(size, dim))
    turned = points @ special_ortho_group.rvs(dim, random_state=seed) + rng.normal(size=dim)
    model = small(neighbors=(8, 20)).fit(clouds(20, dim))
    before, after = model.enrich([points]).points, model.enrich([turned]).points
    each = 2 * dim + 1
    lengths = [dim, *(dim + 1 + s * each + k for s in range(2) for k in range(dim + 1))]
    np.testing.assert_allclose(after[:, lengths], before[:, lengths], atol=1e-4)
    moved = model.enrich([points + 1.0]).points
    np.testing.assert_allclose(moved[:, dim:], before[:, dim:], atol=1e-3)


def test_the_normal_of_a_plane_and_of_a_line():
    rng = np.random.default_rng(0)
    flat = np.column_stack([rng.normal(size=(40, 2)), np.zeros(40)]) @ np.array(
        [[1, 0, 0], [0, 0.6, -0.8], [0, 0.8, 0.6]]
    )
    line = np.outer(rng.normal(size=40), [0, 0, 1.0])
    model = LocalShape(MeanPool(), neighbors=10).fit(clouds(20, 3))
    names = model.column_names
    for points, direction in ((flat, [0, 0.8, 0.6]), (line, [0.5**0.5, 0.5**0.5, 0])):
        rich = model.enrich([points]).points[:, 3:] / model.scale_
        normals = rich[:, [names.index(f"normal{k} of 10") - 3 for k in range(3)]]
        np.testing.assert_allclose(normals, np.tile(direction, (40, 1)), atol=1e-5)
        assert np.abs(rich[:, names.index("extent2 of 10") - 3]).max() < 1e-6


ODD = {
    "one point": [[1.0, 2.0, 3.0]],
    "two points": [[0.0, 0, 0], [1, 0, 0]],
    "all equal": np.full((50, 3), 0.1),
    "on a line": np.outer(np.arange(40), [1.0, 2, 3]) / 7,
    "in a plane": np.random.default_rng(0).normal(size=(40, 3)) * [1, 1, 0],
    "smaller than the neighbourhood": np.random.default_rng(0).normal(size=(5, 3)),
    "far out": np.random.default_rng(0).normal(size=(40, 3)) + 1e6,
    "large": np.random.default_rng(0).normal(size=(40, 3)) * 1e14,
    "small": np.random.default_rng(0).normal(size=(40, 3)) * 1e-38,
}


@pytest.mark.filterwarnings("ignore::slosh.errors.PrecisionWarning", "ignore::slosh.errors.ScaleWarning")
@pytest.mark.parametrize("name", ODD)
def test_odd_sets_have_finite_vectors(each_kernel, name):
    usual = small().fit(clouds(20, 3))
    own = small().fit([ODD[name]])
    for model in (usual, own):
        vectors = model.transform([ODD[name]])
        assert np.isfinite(vectors).all()
    assert np.isfinite(own.scale_).all()


def test_a_constant_column_is_zero_and_rounding_is_not_blown_up():
    """Sets in one plane: the normal is the same everywhere, but for rounding, and so is the extent along it."""
    rng = np.random.default_rng(0)
    turn = special_ortho_group.rvs(3, random_state=0)
    flat = [(rng.normal(size=(60, 3)) * [1, 1, 0] + 5) @ turn for _ in range(20)]
    model = small(neighbors=(16, 32)).fit(flat)
    constant = {name for name, scale in zip(model.column_names[3:], model.scale_, strict=True) if scale == 0}
    assert constant == {f"{what} of {k}" for k in (16, 32) for what in ("extent2", "normal0", "normal1", "normal2")}
    one = small().fit([[[1.0, 2, 3]]])
    assert not one.scale_.any()
    assert np.array_equal(one.enrich([[[1.0, 2, 3]]]).points[0], [1, 2, 3, *[0] * 15])


@pytest.mark.filterwarnings("ignore::slosh.errors.PrecisionWarning", "ignore::slosh.errors.ScaleWarning")
def test_a_set_of_another_size_stays_in_range(each_kernel):
    """A column that hardly varies has a large factor, which must not make infinity of a large set."""
    rng = np.random.default_rng(0)
    angles = np.tile(np.arange(50) * np.pi / 25, (20, 1))
    radii = 1 + 1e-4 * rng.normal(size=(20, 50))
    circles = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=2)
    model = small().fit(circles)
    assert model.scale_[0] > 1000
    large = [1e15 * rng.uniform(-1, 1, (50, 2))]
    rich = model.enrich(large).points
    assert rich[:, 2].max() == np.float32(1e15)
    vectors = model.transform(large)
    assert np.isfinite((vectors.astype(np.float32) ** 2).sum())


def test_what_an_index_asks_an_embedding():
    model = LocalShape()
    assert "sample" not in model.needs_data
    assert model.learns
    assert model.distance_kind == "embedded"
    assert not model.lower_bounds  # distances of richer sets bound none of the sets themselves
    assert not model.has_bounds


@pytest.mark.parametrize("dim", [2, 3])
def test_elements_of_weight_zero_change_nothing(each_kernel, dim):
    sets = some_sets(25, dim, weighted=True)
    rng = np.random.default_rng(1)
    parts, weights = [], []
    for i in range(len(sets)):  # elements without weight, anywhere among the others
        points, mass = np.asarray(sets[i]), sets.weights_of(i)
        order = rng.permutation(len(points) + 7)
        parts.append(np.concatenate([points, rng.normal(size=(7, dim))])[order])
        weights.append(np.concatenate([mass, np.zeros(7)])[order])
    more = Sets.from_list(parts, weights)
    model, other = small().fit(sets), small().fit(more)
    np.testing.assert_allclose(other.scale_, model.scale_, rtol=1e-6)
    np.testing.assert_allclose(model.transform(more), model.transform(sets), atol=1e-5)
    rich = model.enrich(more)
    assert not rich.points[more.weights == 0][:, dim:].any()


def test_same_bits_for_any_batching_and_threads(each_kernel, monkeypatch):
    sets = some_sets(40, 3, largest=150)
    model = small().fit(sets)
    expected = model.transform(sets)
    assert np.array_equal(model.transform(iter(sets)), expected)
    assert np.array_equal(np.concatenate([model.transform(sets[i : i + 1]) for i in range(len(sets))]), expected)
    monkeypatch.setattr("slosh.embed.local_shape.BATCH_POINTS", 200)
    for n_jobs in (1, 4):
        again = small(n_jobs=n_jobs).fit(sets)
        assert np.array_equal(again.scale_, model.scale_)
        assert np.array_equal(again.transform(sets), expected)
        assert again.embedding_.n_jobs == n_jobs
    again.n_jobs = 2  # as an index sets it
    again.transform(sets)
    assert again.embedding_.n_jobs == 2


def test_a_large_collection_is_fitted_on_a_part(monkeypatch):
    sets = some_sets(400, 2)
    monkeypatch.setattr("slosh.embed.local_shape.FITTED_POINTS", 2000)
    seen = []

    class Looking(MeanPool):
        def _fit(self, sets):
            seen.append(sets)

    model = LocalShape(Looking()).fit(sets)
    assert 1000 < len(seen[0].points) < 3000
    np.testing.assert_allclose(model.scale_, LocalShape(MeanPool()).fit(sets[:]).scale_)
    monkeypatch.undo()
    np.testing.assert_allclose(model.scale_, LocalShape(MeanPool()).fit(sets).scale_, rtol=0.2)


def test_an_origin_is_kept():
    arrays = [np.random.default_rng(i).normal(size=(20, 2)) + 1000 for i in range(5)]
    sets = Sets.from_list(arrays, origin=[1000.0, 1000.0])
    model = small().fit(sets)
    rich = model.enrich(sets)
    assert np.array_equal(rich.origin, [1000, 1000, *[0] * 11])
    assert np.array_equal(model.transform(arrays), model.transform(sets))
    with pytest.raises(ValueError, match="origin"):
        model.transform(Sets.from_list(arrays, origin=[999.0, 1000.0]))


@pytest.mark.parametrize(
    ("model", "sets", "argument", "message"),
    [
        (LocalShape(), clouds(5, 4), "X", "2 or 3 features"),
        (LocalShape(), clouds(5, 300), "X", "300 features.*SlicedWasserstein"),
        (LocalShape(), clouds(5, 1), "X", "1 feature"),
        (LocalShape(neighbors=()), clouds(5, 2), "neighbors", "size"),
        (LocalShape(neighbors=1), clouds(5, 2), "neighbors", "2 or more"),
        (LocalShape(neighbors=(8, 0)), clouds(5, 2), "neighbors", "1 or more"),
        (LocalShape(neighbors=(8, 2.5)), clouds(5, 2), "neighbors", "whole number"),
        (LocalShape(neighbors=(8, 8)), clouds(5, 2), "neighbors", "once"),
        (LocalShape(neighbors="8"), clouds(5, 2), "neighbors", "size"),
        (LocalShape(neighbors=range(2, 40)), clouds(5, 2), "neighbors", "16"),
        (LocalShape("sliced"), clouds(5, 2), "embedding", "slosh.embed"),
        (LocalShape(SlicedWasserstein), clouds(5, 2), "embedding", "slosh.embed"),
        (LocalShape(SlicedWasserstein(0)), clouds(5, 2), "n_slices", "1 or more"),
        (LocalShape(n_jobs=0), clouds(5, 2), "n_jobs", "threads"),
        (LocalShape(), [], "X", "at least one set"),
    ],
    ids=lambda value: f"{value!r:.50}",
)
def test_bad_input_names_the_remedy(model, sets, argument, message):
    with pytest.raises(InputError, match=message) as told:
        model.fit(sets)
    assert told.value.argument == argument


def test_not_fitted_and_another_dimension():
    with pytest.raises(NotFittedError):
        LocalShape().transform(clouds(3, 2))
    with pytest.raises(NotFittedError):
        LocalShape().enrich(clouds(3, 2))
    with pytest.raises(ValueError, match="3 features"):
        LocalShape().fit(clouds(3, 2)).transform(clouds(3, 3))


def test_any_transformer_may_be_inside():
    class Sizes(MeanPool):
        pass

    sets = clouds(12, 2)
    model = LocalShape(Wrapped(Sizes())).fit(sets)
    assert model.transform(sets).shape == (12, 13)
