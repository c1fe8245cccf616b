"""SlicedWasserstein against POT and what the mathematics promises."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import slosh
from builders import clouds
from slosh import Sets
from slosh.embed import SlicedWasserstein, WassersteinEmbedding, default_slices
from slosh.errors import InputError
from slosh.slices import Circular, Linear, Neural, Polynomial

ot = pytest.importorskip("ot")


SLICERS = [
    Linear("random"),
    Polynomial(3),
    Circular(2.0),
    Neural(16, 2),
    lambda x: np.stack([x.sum(axis=1), x[:, 0] ** 3], axis=1),
]


def pot_sliced(x, y, theta, u=None, v=None):
    """The sliced distance by POT's one-dimensional transport, slice by slice, in float64."""
    x, y, theta = (np.asarray(a, np.float64) for a in (x, y, theta))
    u, v = (None if w is None else np.asarray(w, np.float64) / np.sum(w, dtype=np.float64) for w in (u, v))
    return np.sqrt(np.mean([ot.wasserstein_1d(x @ t, y @ t, u, v, p=2) for t in theta]))


@pytest.mark.parametrize("n", [1, 2, 17, 150])
def test_linear_rule_with_n_equal_m_is_the_sliced_distance(each_kernel, n):
    sets = clouds([n, n, n], 3)
    model = SlicedWasserstein(n_slices=20, n_quantiles=n, quantiles="linear", slices="random").fit(sets)
    embedded = model.distance(sets, sets)
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        theirs = ot.sliced_wasserstein_distance(sets[i], sets[j], projections=model.slices_.T.astype(np.float64))
        assert embedded[i, j] == pytest.approx(theirs, abs=1e-5)


@settings(max_examples=40)
@given(
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    dim=st.integers(1, 5),
    n_quantiles=st.sampled_from([1, 2, 3, 8, 16, 50]),
    weighted=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_average_rule_never_exceeds_and_bounds_hold(sizes, dim, n_quantiles, weighted, seed):
    sets = clouds(sizes, dim, seed, weighted)
    model = SlicedWasserstein(n_slices=6, n_quantiles=n_quantiles, slices="random", random_state=seed).fit(sets)
    theta = model.slices_
    exact = pot_sliced(sets[0], sets[1], theta, sets.weights_of(0), sets.weights_of(1))
    embedded = model.distance(sets[:1], sets[1:])[0, 0]
    lower, upper = (b[0, 0] for b in model.bounds(sets[:1], sets[1:]))
    assert embedded <= exact + 1e-5
    assert lower <= exact <= upper
    assert lower >= embedded - 1e-4
    # The bounds are as tight as the formulas say, not merely true.
    r, s = model.residual(sets)
    assert lower == pytest.approx(np.hypot(embedded, r - s), abs=1e-4)
    assert upper == pytest.approx(np.sqrt(embedded**2 + r**2 + s**2), abs=1e-4)
    assert slosh.distance(sets[:1], sets[1:], slices=theta) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_average_rule_converges_as_m_grows(each_kernel, weighted):
    sets = clouds([37, 120], 2, weighted=weighted)
    gaps = []
    for m in (2, 4, 8, 16, 64, 512):
        model = SlicedWasserstein(n_slices=8, n_quantiles=m, slices="random").fit(sets)
        exact = pot_sliced(sets[0], sets[1], model.slices_, sets.weights_of(0), sets.weights_of(1))
        lower, upper = model.bounds(sets[:1], sets[1:])
        gaps.append((exact - model.distance(sets[:1], sets[1:])[0, 0], upper[0, 0] - lower[0, 0]))
    embedded_gaps, widths = np.array(gaps).T
    assert (np.diff(embedded_gaps) < 1e-5).all()
    assert embedded_gaps[-1] < 1e-3 < embedded_gaps[0]
    assert (np.diff(widths) < 0).all()


@pytest.mark.parametrize("n", [17, 1000, 20_000])
@pytest.mark.parametrize("kind", ["outlier", "light outlier", "lognormal"])
def test_bounds_hold_for_wild_data(each_kernel, n, kind):
    if each_kernel == "numpy" and n > 1000:
        pytest.skip("slow on NumPy")
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(2, n, 2))
    weights = np.ones(n)
    if kind == "lognormal":
        x, y = -rng.lognormal(0, 3, (n, 2)), rng.lognormal(0, 3, (n, 2))
    else:
        x[0] = -1e6
    if kind == "light outlier":
        weights[0] = 1e-7
    sets = Sets.from_list([x, y, np.repeat(x, 2, axis=0)], [weights, np.ones(n), np.repeat(weights, 2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", slosh.ScaleWarning)
        model = SlicedWasserstein(n_slices=5, n_quantiles=8, slices="random").fit(sets)
    lower, upper = model.bounds(sets, sets)
    exact = slosh.pairwise(sets, slices=model.slices_)
    assert (lower <= exact).all()
    assert (exact <= upper).all()


def test_bounds_from_vectors_are_those_from_sets():
    sets = clouds([30, 50, 9], 3)
    model = SlicedWasserstein(n_slices=8, n_quantiles=4, reference="normal").fit(sets)
    stored = model.transform(sets, return_residual=True)
    for ours, theirs in zip(model.bounds(stored, sets), model.bounds(sets, sets), strict=True):
        np.testing.assert_allclose(ours, theirs)
    with pytest.raises(ValueError, match=r"\(n, 32\)"):
        model.bounds((stored[0][:, :5], stored[1]), sets)


@pytest.mark.parametrize("rule", ["linear", "average"])
def test_index_vectors_are_the_same_without_their_slack(rule):
    sets = clouds([3, 20, 300], dim=3)
    model = SlicedWasserstein(n_slices=8, quantiles=rule).fit(sets)
    vectors, slack = model.index_vectors(sets)
    same, none = model.index_vectors(sets, slack=False)
    assert slack.shape == (3,)
    assert none is None
    assert np.array_equal(vectors, same)


@pytest.mark.parametrize("rule", ["average", "linear"])
def test_c1_and_c2_of_the_paper(rule):
    """|phi(X0)| = 0; |phi(X)| is the distance to the reference; |phi(X) - phi(Y)| does not depend on it."""
    sets = clouds([40] * 4, 3)
    own = sets[3]
    model = SlicedWasserstein(n_slices=9, n_quantiles=40, quantiles=rule, reference=own).fit(sets)
    vectors = model.transform(sets)
    assert np.linalg.norm(vectors[3]) == 0
    for i in range(3):
        assert np.linalg.norm(vectors[i]) == pytest.approx(pot_sliced(sets[i], own, model.slices_), abs=1e-5)
    free = clone(model).set_params(reference=None).fit(sets)
    np.testing.assert_allclose(model.distance(sets, sets), free.distance(sets, sets), atol=1e-6)


def test_moving_a_set_moves_the_distance_as_it_must(each_kernel):
    sets = clouds([80, 33], 3)
    v = np.array([3.0, -1.0, 2.0], np.float32)
    model = SlicedWasserstein(n_slices=16, n_quantiles=8).fit(sets)
    moved = Sets.from_list([sets[0] + v, sets[1] + v])
    projected = np.sqrt(np.mean((model.slices_ @ v) ** 2))
    assert model.distance(sets[:1], moved[:1])[0, 0] == pytest.approx(projected, rel=1e-5)
    np.testing.assert_allclose(model.distance(moved, moved), model.distance(sets, sets), atol=1e-5)
    # All directions of a full orthogonal block together: |v|^2 / d.
    axis = SlicedWasserstein(slices="axis").fit(sets)
    assert axis.distance(sets[:1], moved[:1])[0, 0] == pytest.approx(np.linalg.norm(v) / np.sqrt(3), rel=1e-5)


@pytest.mark.parametrize("rule", ["average", "linear"])
@pytest.mark.parametrize("n", [1, 7, 100, 4000])
def test_order_of_the_elements_does_not_matter(each_kernel, rule, n):
    x, order = clouds([n], 3)[0], np.random.default_rng(0).permutation(n)
    model = SlicedWasserstein(n_slices=17, quantiles=rule).fit([x])
    assert np.array_equal(model.transform([x]), model.transform([x[order]]))
    weights = np.random.default_rng(1).uniform(0.1, 1, n)
    a, b = (model.transform(Sets.from_list([x[o]], [weights[o]])) for o in (np.arange(n), order))
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_repeating_or_splitting_changes_nothing_under_the_average_rule(each_kernel):
    x, weights = clouds([50], 3)[0], np.random.default_rng(0).uniform(0.1, 1, 50)
    model = SlicedWasserstein(n_slices=8, n_quantiles=7).fit([x])
    once = model.transform([x])
    for times in (2, 3):
        np.testing.assert_allclose(model.transform([np.repeat(x, times, axis=0)]), once, atol=1e-6)
    np.testing.assert_allclose(model.transform(Sets.from_list([x], [np.full(50, 2.5)])), once, atol=1e-6)
    whole = model.transform(Sets.from_list([x], [weights]))
    split = Sets.from_list([np.concatenate([x, x])], [np.concatenate([0.3 * weights, 0.7 * weights])])
    np.testing.assert_allclose(model.transform(split), whole, atol=1e-5)
    padded = Sets.from_list([np.concatenate([x, x + 100])], [np.concatenate([weights, np.zeros(50)])])
    np.testing.assert_allclose(model.transform(padded), whole, atol=1e-6)
    linear = SlicedWasserstein(n_slices=8, n_quantiles=7, quantiles="linear").fit([x])
    assert np.abs(linear.transform([np.repeat(x, 2, axis=0)]) - linear.transform([x])).max() > 1e-4


def test_far_from_zero_keeps_its_digits():
    x = clouds([500], 2)[0]
    model = SlicedWasserstein(n_slices=8).fit([x])
    shift = np.array([1000.0, -500.0], np.float32)
    there = model.transform([x + shift]).reshape(8, 16) - ((model.slices_ @ shift) / np.sqrt(128))[:, None]
    np.testing.assert_allclose(there, model.transform([x]).reshape(8, 16), atol=2e-4 / np.sqrt(128) * 10)


def test_the_largest_numbers_do_not_overflow(each_kernel):
    for size, dim in [(5, 2), (500, 1000), (9000, 1)]:
        x = np.full((size, dim), 1e15, np.float32) * np.random.default_rng(0).choice([-1, 1], (size, dim))
        model = SlicedWasserstein(n_slices=4, n_quantiles=3).fit([x])
        vectors, residual = model.transform([x], return_residual=True)
        assert np.isfinite(vectors).all()
        assert np.isfinite(residual).all()
    with pytest.raises(ValueError, match="scale the feature down"):
        model.transform([2 * x])


@pytest.mark.parametrize("slices", SLICERS, ids=lambda s: type(s).__name__)
def test_generalised_slicers_equal_their_definition(each_kernel, slices):
    sets = clouds([20, 33], 2)
    model = SlicedWasserstein(
        n_slices=None if callable(slices) else 5, n_quantiles=20, slices=slices, quantiles="linear"
    ).fit(sets)
    slicer = model.slicer_
    values = np.sort(slicer.project(sets[0]).astype(np.float64), axis=0).T
    np.testing.assert_allclose(
        model.transform(sets)[0].reshape(values.shape) * np.sqrt(values.size), values, rtol=1e-4, atol=1e-4
    )
    whole = model.transform(sets)
    assert np.array_equal(whole[1], model.transform(sets[1:])[0])


@pytest.mark.parametrize(
    "reference",
    ["uniform", "normal", "sample", "kmeans", "barycenter", np.zeros((1, 3)), [[0, 0, 0], [1, 2, 3]]],
    ids=str,
)
def test_a_reference_shifts_all_vectors_alike(reference):
    sets = clouds([30, 12, 50, 8], 3)
    free = SlicedWasserstein(n_slices=6, n_quantiles=5).fit(sets)
    model = SlicedWasserstein(n_slices=6, n_quantiles=5, reference=reference).fit(sets)
    assert model.reference_.shape == (6, 5)
    np.testing.assert_allclose(
        free.transform(sets) - model.transform(sets), np.tile(model.reference_.ravel() / np.sqrt(30), (4, 1)), atol=1e-6
    )
    np.testing.assert_allclose(model.distance(sets, sets), free.distance(sets, sets), atol=1e-6)
    again = clone(model).fit(sets)
    assert np.array_equal(again.reference_, model.reference_)
    if not isinstance(reference, str) or reference != "barycenter":
        assert (np.diff(model.reference_, axis=1) >= -1e-6).all()


def test_references_are_what_they_say():
    sets = clouds([400, 300, 500], 3)
    middle = SlicedWasserstein(reference="barycenter").fit(sets)
    np.testing.assert_allclose(middle.transform(sets).mean(axis=0), 0, atol=1e-6)
    sample = SlicedWasserstein(reference="sample").fit(sets)
    assert np.sort(np.linalg.norm(sample.transform(sets), axis=1))[0] == 0
    uniform = SlicedWasserstein(slices="axis", n_quantiles=1000, reference="uniform").fit(sets)
    np.testing.assert_allclose(uniform.reference_, np.tile((np.arange(1000) + 0.5) / 1000, (3, 1)), atol=0.08)


def test_same_bits_for_any_batching_and_threads(mnist, each_kernel, monkeypatch):
    sets = mnist[0][:60]
    model = SlicedWasserstein(20, 8).fit(sets)
    expected = model.transform(sets)
    for steps, jobs in [(1, 1), (20 * 3000, 3), (1 << 40, 2)]:
        monkeypatch.setattr("slosh.embed.sliced_wasserstein.NATIVE_STEPS", steps)
        assert np.array_equal(clone(model).set_params(n_jobs=jobs).fit(sets).transform(sets), expected)


def test_a_set_larger_than_a_batch_takes_its_slices_in_turns(monkeypatch):
    x = np.random.default_rng(0).normal(size=(3000, 2)).astype(np.float32)
    model = SlicedWasserstein(40, 8, slices="random", reference="normal").fit([x])
    vectors, residual = model.transform([x], return_residual=True)
    monkeypatch.setattr("slosh.embed.sliced_wasserstein.NATIVE_STEPS", 3000 * 16)
    again, residual_again = model.transform([x, x], return_residual=True)
    assert np.array_equal(again, np.concatenate([vectors, vectors]))
    np.testing.assert_allclose(residual_again, residual[0], rtol=1e-12)


def test_what_is_fitted_stays_fitted():
    sets = clouds([20, 30], 3)
    model = SlicedWasserstein(4, 8, reference="normal").fit(sets)
    expected = model.transform(sets)
    model.set_params(n_quantiles=3, reference=None, quantiles="linear", n_slices=2)
    assert np.array_equal(model.transform(sets), expected)
    assert model.residual(sets).shape == (2,)


def test_slices_are_not_the_users_own_draws():
    """Data drawn with the seed of the slices must not be the slices."""
    data = np.random.RandomState(0).standard_normal((8, 3))
    data /= np.linalg.norm(data, axis=1, keepdims=True)
    slices = SlicedWasserstein(8, slices="random", random_state=0).fit([data]).slices_
    assert np.abs(slices - data).max() > 0.1


def test_one_large_set_and_many_quantiles():
    x = np.random.default_rng(0).normal(size=(300_000, 2)).astype(np.float32)
    model = SlicedWasserstein(5, 1000).fit([x])
    vector = model.transform([x]).reshape(5, 1000) * np.sqrt(5000)
    exact = (
        np.sort(x.astype(np.float64) @ model.slices_.T.astype(np.float64), axis=0).reshape(1000, 300, 5).mean(axis=1).T
    )
    np.testing.assert_allclose(vector, exact, atol=2e-6)


def test_clone_pickle_params_and_set_output(mnist):
    pytest.importorskip("pandas")
    sets, _ = mnist
    model = SlicedWasserstein(4, 3, slices=Polynomial(3), reference="normal", random_state=7).fit(sets)
    expected = model.transform(sets)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(sets), expected)
    assert np.array_equal(clone(model).fit_transform(sets), expected)
    assert SlicedWasserstein(**model.get_params(deep=False)).get_params(deep=False) == model.get_params(deep=False)
    framed = model.set_output(transform="pandas")
    frame = framed.transform(sets)
    assert list(frame.columns) == list(model.get_feature_names_out())
    assert frame.columns[0] == "slicedwasserstein0"
    np.testing.assert_array_equal(frame.to_numpy(), expected)
    assert framed.distance(sets[:2], sets[:3]).shape == (2, 3)
    pandas_list = framed.transform(list(sets[:3]))
    np.testing.assert_array_equal(pandas_list.to_numpy(), expected[:3])
    vectors, residual = clone(model).fit(sets).transform(sets, return_residual=True)
    assert residual.shape == (len(sets),)
    assert np.array_equal(np.asarray(vectors), expected)


def test_seeds():
    sets = clouds([5, 6], 5)
    draws = [SlicedWasserstein(random_state=s).fit(sets).slices_ for s in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_defaults():
    for dim in (1, 2, 3, 8, 64, 384):
        model = SlicedWasserstein().fit(clouds([4], dim))
        assert model.slices_.shape == (default_slices(dim), dim)
    one = SlicedWasserstein(n_slices=50).fit(clouds([4], 1))
    assert one.n_slices_ == 1
    assert SlicedWasserstein(slices="axis").fit(clouds([4], 6)).n_slices_ == 6
    assert SlicedWasserstein(slices=np.eye(4)[:2]).fit(clouds([4], 4)).n_slices_ == 2


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"n_slices": 0}, "n_slices"),
        ({"n_slices": 2.5}, "n_slices"),
        ({"n_quantiles": 0}, "n_quantiles"),
        ({"n_quantiles": "many"}, "n_quantiles"),
        ({"n_quantiles": True}, "n_quantiles"),
        ({"quantiles": "median"}, "average"),
        ({"slices": "spiral"}, "orthogonal"),
        ({"slices": np.ones((3, 7))}, "7"),
        ({"reference": "centroid"}, "barycenter"),
        ({"reference": np.ones((3, 7))}, "7"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_bad_parameters_name_themselves(params, word):
    with pytest.raises(ValueError, match=word):
        SlicedWasserstein(**params).fit(clouds([5, 6], 3))


@pytest.mark.parametrize("embedding", [SlicedWasserstein, WassersteinEmbedding])
def test_a_reference_of_ones_own_lies_where_the_sets_lie(embedding):
    city = [np.random.default_rng(i).normal(size=(40, 2)) * 10 + [500_000, 4_500_000] for i in range(3)]
    sets = Sets.from_list(city, origin="auto")
    for own in (city[0], sets[:1]):
        assert np.linalg.norm(embedding(reference=own).fit(sets).transform(sets)[0]) < 1e-4
    with pytest.raises(ValueError, match="origin"):
        embedding(reference=Sets.from_list(city[:1], origin=[499_999, 4_500_000])).fit(sets)


def test_vectors_that_are_too_long_are_refused():
    with pytest.raises(InputError, match="more than 16,777,216 numbers") as told:
        SlicedWasserstein(4096, 1 << 13).fit([np.zeros((2, 8))])
    assert told.value.argument == "n_quantiles"


def test_the_default_is_a_whole_block_of_slices_as_long_as_that_is_little():
    assert [default_slices(dim) for dim in (2048, 4096, 4097, 60_000)] == [2048, 4096, 512, 512]
    model = SlicedWasserstein().fit([np.zeros((1, 5000))])
    assert model.slices_.shape == (512, 5000)
    assert model.vector_length == 512 * 16
