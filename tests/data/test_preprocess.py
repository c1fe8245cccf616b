"""The steps before embedding, against a plain loop over sets, and the same bits in any batch."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh import Sets
from slosh.data import batching
from slosh.data.preprocess import Preprocess
from slosh.embed import SlicedWasserstein


def slow(points, weights, steps, mean=None, std=None):
    """One set, in the words of the docstring; no sampling."""
    x = points.astype(np.float64)
    w = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    if mean is not None:
        x = (x - mean) / np.where(std > 0, std, 1)
    noise = 1e-12 * np.abs(x).max()
    if steps.center:
        x = x - np.average(x, axis=0, weights=w)
    norms = np.linalg.norm(x, axis=1)
    size = {"unit": norms[w > 0].max(), "rms": np.sqrt(np.average(norms**2, weights=w)), None: 0}[steps.scale]
    return x / size if size > noise else x  # no smaller size comes from float32


def slow_moments(sets):
    """Each set counts the same."""
    w = [np.ones(len(x)) if sets.weights is None else sets.weights_of(i) for i, x in enumerate(sets)]
    share = np.concatenate([one.astype(np.float64) / one.sum(dtype=np.float64) for one in w]) / len(sets)
    mean = share @ sets.points
    return mean, np.sqrt(share @ (sets.points - mean) ** 2)


def random_sets(seed, weighted=None, n=None, dim=None):
    rng = np.random.default_rng(seed)
    n, dim = n or int(rng.integers(1, 12)), dim or int(rng.integers(1, 6))
    sizes = rng.choice([1, 1, 2, 3, 7, 40], size=n)
    points = rng.normal(size=(sizes.sum(), dim)) * 10.0 ** rng.integers(-3, 4) + rng.normal(size=dim)
    points[rng.random(len(points)) < 0.1] = 0
    weights = None
    if rng.random() < 0.5 if weighted is None else weighted:
        weights = rng.random(sizes.sum()) * (rng.random(sizes.sum()) < 0.7)
        weights[np.cumsum(sizes) - 1] += 0.1
    return Sets(points.astype(np.float32), np.concatenate([[0], np.cumsum(sizes)]), weights)


def every_step():
    return [
        Preprocess(center=center, align=align, scale=scale, standardize=standardize, max_points=max_points)
        for center in (False, True)
        for align in (None, "pca")
        for scale in (None, "unit", "rms")
        for standardize in (False, True)
        for max_points in (None, 3)
        if align is None or (not standardize and max_points is None)
    ]


def same(a, b):
    assert a.points.tobytes() == b.points.tobytes()
    assert a.offsets.tolist() == b.offsets.tolist()
    assert (a.weights is None) == (b.weights is None)
    assert a.weights is None or a.weights.tobytes() == b.weights.tobytes()
    assert (None if a.origin is None else a.origin.tolist()) == (None if b.origin is None else b.origin.tolist())


@pytest.fixture(params=[1 << 18, 10])
def each_block(request, monkeypatch):
    monkeypatch.setattr(batching, "PART_NUMBERS", request.param)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_against_a_loop(each_block, seed):
    sets = random_sets(seed)
    before = sets.points.tobytes(), sets.offsets.tobytes()
    for steps in every_step():
        if steps.max_points is not None or steps.align is not None:  # tests/data/test_alignment.py has that
            continue
        mean = std = None
        if steps.standardize:
            steps = steps.fit(sets)
            mean, std = slow_moments(sets)
            scale = np.abs(sets.points).max() + 1e-30
            np.testing.assert_allclose(steps.mean, mean, atol=1e-12 * scale)
            np.testing.assert_allclose(steps.std, std, atol=1e-7 * scale)  # a constant feature: zero, not rounding
            mean, std = steps.mean, steps.std
        result = steps.apply(sets)
        assert result.points.dtype == np.float32
        assert result.offsets is sets.offsets
        assert result.weights is sets.weights
        for i, x in enumerate(sets):
            expected = slow(x, sets.weights_of(i), steps, mean, std)
            np.testing.assert_allclose(result[i], expected, rtol=1e-5, atol=1e-6 * (1 + np.abs(expected).max()))
    assert before == (sets.points.tobytes(), sets.offsets.tobytes())


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_the_same_bits_in_any_batch(each_block, seed):
    sets = random_sets(seed, n=9)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sets))
    for steps in every_step():
        steps = steps.fit(sets)
        result = steps.apply(sets)
        same(steps.apply(sets.take(order)), result.take(order))
        for i in range(len(sets)):
            same(steps.apply(sets[i : i + 1]), result[i : i + 1])
        cut = int(rng.integers(0, len(sets) + 1))
        same(Sets.concat([steps.apply(sets[:cut]), steps.apply(sets[cut:])]), result)


@pytest.mark.parametrize("dim", [1, 2, 3, 8, 17, 300])
def test_the_same_bits_of_large_sets(dim):
    rng = np.random.default_rng(dim)
    sizes = [3000, 1, 257, 5000, 64]
    points = rng.normal(size=(sum(sizes), dim)).astype(np.float32)
    sets = Sets(points, np.concatenate([[0], np.cumsum(sizes)]), rng.random(sum(sizes)))
    for steps in every_step():
        if steps.align is not None and dim > 64:
            continue
        described = steps.to_dict()
        if steps.max_points is not None:
            described["max_points"] = 1000
        steps = Preprocess.from_dict(described).fit(sets)
        result = steps.apply(sets)
        for i in range(len(sets)):
            same(steps.apply(sets[i : i + 1]), result[i : i + 1])
        same(steps.apply(sets.take([4, 2, 0])), result.take([4, 2, 0]))


def test_nothing_to_do():
    sets = random_sets(0)
    steps = Preprocess()
    assert steps.apply(sets) is sets
    assert Preprocess(max_points=1000).apply(sets) is sets
    assert len(Preprocess(center=True).apply(sets[:0])) == 0


# ---- samples


@pytest.mark.parametrize("weighted", [False, True])
def test_samples(weighted):
    rng = np.random.default_rng(0)
    sizes = [5, 50, 10, 11, 500]
    points = rng.normal(size=(sum(sizes), 3)).astype(np.float32)
    weights = (rng.random(sum(sizes)) * (rng.random(sum(sizes)) < 0.5) + 1e-3) if weighted else None
    sets = Sets(points, np.concatenate([[0], np.cumsum(sizes)]), weights)
    result = Preprocess(max_points=10).apply(sets)
    assert result.sizes.tolist() == [5, 10, 10, 10, 10]
    for i, x in enumerate(result):
        places = [int(np.flatnonzero((sets[i] == one).all(axis=1))[0]) for one in x]
        assert places == sorted(set(places))
        if weighted:
            np.testing.assert_array_equal(result.weights_of(i), sets.weights_of(i)[places])
    same(Preprocess(max_points=10).apply(sets), result)
    other = Preprocess(max_points=10, random_state=1).apply(sets)
    assert (other[4] != result[4]).any()
    assert len(np.unique(Preprocess(max_points=1).apply(sets.take([4] * 50)).points)) == 3  # one set, one draw


def test_samples_are_even():
    points = np.arange(200_000, dtype=np.float32).reshape(-1, 20, 1)
    found = Preprocess(max_points=5).apply(points).points[:, 0].astype(int) % 20
    counts = np.bincount(found, minlength=20)
    assert np.abs(counts - 2500).max() < 250  # five deviations


def test_samples_leave_weights():
    """A set that has one element with a weight keeps it."""
    weights = np.zeros(300)
    weights[[7, 100, 105, 299]] = 1
    sets = Sets(np.arange(300.0)[:, None], [0, 100, 200, 300], weights)
    result = Preprocess(max_points=2).apply(sets)
    assert result.points[:, 0].tolist() == [7, 100, 105, 299]
    assert result.weights.tolist() == [1, 1, 1, 1]
    assert result.sizes.tolist() == [1, 2, 1]


# ---- hard cases


def test_sets_of_size_zero():
    x = np.float32(0.1)
    for weights in (None, [0.3, 0.3, 0.1, 0.7, 0.9, 0.2, 0.1]):
        sets = Sets(
            np.array([[x, 5], [0, 0], [x, 1e14], [x, 1e14], [x, 1e14], [1, 2], [1, 2]]), [0, 1, 2, 5, 7], weights
        )
        for scale in ("unit", "rms"):
            assert not Preprocess(center=True, scale=scale).apply(sets).points.any()
            steps = Preprocess(scale=scale).apply(sets)
            np.testing.assert_allclose(np.linalg.norm(steps.points, axis=1), [1, 0, 1, 1, 1, 1, 1], rtol=1e-6)
    zero_first = Sets(np.array([[9.0], [x], [x], [x]]), [0, 4], [0, 0.3, 0.1, 0.7])
    assert not Preprocess(center=True).apply(zero_first).points[1:].any()


def test_elements_without_weight_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 2)).astype(np.float32)
    there = [0, 2, 3]
    weights = np.array([1, 0, 2, 3, 0, 0.0])
    far = np.where(weights[:, None] > 0, x, 1e6).astype(np.float32)
    for steps in every_step():
        if steps.max_points:
            continue
        a = steps.fit(Sets(far, [0, 6], weights)).apply(Sets(far, [0, 6], weights)).points[there]
        again = Preprocess.from_dict({**steps.to_dict(), "standardize": steps.standardize})
        b = again.fit(Sets(x[there], [0, 3], weights[there])).apply(Sets(x[there], [0, 3], weights[there])).points
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_huge_and_tiny_coordinates():
    rng = np.random.default_rng(0)
    shape = rng.normal(size=(50, 3))
    for factor in (1e-30, 1e-3, 1e14):
        sets = Sets((shape * factor).astype(np.float32), [0, 20, 50])
        unit = Preprocess(center=True, scale="unit").apply(sets)
        np.testing.assert_allclose([np.linalg.norm(x, axis=1).max() for x in unit], 1, rtol=1e-6)
        rms = Preprocess(center=True, scale="rms", standardize=True).fit(sets).apply(sets)
        np.testing.assert_allclose([np.sqrt((x.astype(float) ** 2).sum(1).mean()) for x in rms], 1, rtol=1e-6)
    far = Sets(np.array([[9e14, 0], [9e14 + 2e8, 0], [-1e15, 3.0]], np.float32), [0, 2, 3])
    np.testing.assert_allclose(Preprocess(center=True, scale="unit").apply(far)[0][:, 0], [-1, 1])


def test_constant_features():
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.normal(size=1000), np.full(1000, np.float32(0.1)), np.zeros(1000)])
    steps = Preprocess(standardize=True).fit(Sets(points.astype(np.float32), np.arange(0, 1001, 10)))
    assert steps.std[1:].tolist() == [0, 0]
    result = steps.apply(Sets(points.astype(np.float32), [0, 1000]))
    assert not result.points[:, 1:].any()
    assert result.points[:, 0].std() == pytest.approx(1)


def test_each_set_counts_the_same():
    sets = Sets.from_list([np.zeros((1000, 1)), np.ones((1, 1))])
    steps = Preprocess(standardize=True).fit(sets)
    assert (steps.mean.tolist(), steps.std.tolist()) == ([0.5], [0.5])
    once = Preprocess(standardize=True, max_points=1).fit(sets)
    assert once == Preprocess(standardize=([0.5], [0.5]), max_points=1)


# ---- the origin


def test_origin():
    """It is kept; the mean of standardize does not depend on it; what goes together goes together."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)) * [1, 100] + [1e7, -3e6]
    origin = np.array([1e7, -3e6])
    a, b = (Sets(x[i : i + 30], [0, 10, 30], origin=origin) for i in (0, 30))
    shifted = Sets(x[:30], [0, 10, 30], origin=origin + np.array([1, 2]))
    for steps in every_step():
        steps = steps.fit(a)
        one, two = steps.apply(a), steps.apply(b)
        np.testing.assert_array_equal(one.origin, origin)
        assert len(Sets.concat([one, two])) == 4
        model = SlicedWasserstein(n_slices=4).fit(one)
        assert np.isfinite(model.transform(two)).all()
        with pytest.raises(ValueError, match="made with the origin"):
            model.transform(steps.apply(shifted))
        if steps.standardize and steps.max_points is None:
            np.testing.assert_allclose(steps.apply(shifted).points, one.points, atol=1e-4)
            np.testing.assert_allclose(steps.mean, x[:10].mean(axis=0) / 2 + x[10:30].mean(axis=0) / 2, rtol=1e-6)
            given = Preprocess.from_dict({**steps.to_dict(), "standardize": (steps.mean, steps.std)})
            same(given.apply(a), one)


# ---- stored, compared, refused


def test_dict_and_back():
    sets = random_sets(3)
    seen = []
    for steps in every_step():
        assert Preprocess.from_dict(json.loads(json.dumps(steps.to_dict()))) == steps
        assert steps.needs_sample == steps.standardize
        steps = steps.fit(sets)
        assert not steps.needs_sample
        again = Preprocess.from_dict(json.loads(json.dumps(steps.to_dict())))
        assert again == steps
        assert again not in seen
        same(again.apply(sets), steps.apply(sets))
        seen.append(again)
    assert Preprocess() != "Preprocess()"
    assert Preprocess.from_dict({}) == Preprocess()
    with pytest.raises(ValueError, match="the steps have 'whiten', which this version of slosh does not know"):
        Preprocess.from_dict({"whiten": True})
    with pytest.raises(ValueError, match=re.escape("the steps are a list: give the dict of Preprocess.to_dict()")):
        Preprocess.from_dict([1])
    blank = Preprocess(standardize=True)
    fitted = blank.fit(sets)
    assert blank.needs_sample  # a value: fit returns another
    assert fitted != blank
    assert fitted.fit(random_sets(4, dim=sets.dim)) is fitted  # what is learnt stays


def test_repr():
    assert repr(Preprocess()) == "Preprocess()"
    steps = Preprocess(center=True, scale="rms", standardize=True, max_points=100, random_state=7)
    assert repr(steps) == "Preprocess(center=True, scale='rms', standardize=True, max_points=100, random_state=7)"
    assert repr(Preprocess(standardize=([0], [1]))) == "Preprocess(standardize=([0.0], [1.0]))"
    for exact in (Preprocess(random_state=7), steps, steps.fit(random_sets(1))):
        assert eval(repr(exact)) == exact
    with pytest.raises(TypeError):
        hash(steps)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"center": 1}, "center=1 must be True or False"),
        ({"scale": True}, "scale=True is not known: give None, 'unit'"),
        ({"scale": "max"}, "scale='max' is not known: give None"),
        ({"max_points": 0}, "max_points=0 must be a whole number, 1 or more"),
        ({"max_points": 2.5}, "max_points=2.5 must be"),
        ({"random_state": None}, "random_state=None must be a whole number from 0"),
        ({"random_state": -1}, "random_state=-1 must be"),
        ({"standardize": "yes"}, "standardize is a str: give True, False, or a pair"),
        ({"standardize": ([1, 2],)}, "standardize is a tuple: give"),
        ({"standardize": ([1, 2], [1])}, "standardize has 2 means and 1 stds"),
        ({"standardize": ([1, np.nan], [1, 1])}, "the mean of standardize must be finite numbers"),
        ({"standardize": ([1, 1], [[1, 1]])}, "the std of standardize must be finite numbers"),
        ({"standardize": (None, [1])}, "the mean of standardize must be finite numbers"),
        ({"standardize": ([1, 1], [1, -1])}, "the std of feature 1 is -1, and must be 0 or more"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**parameters)


def test_sets_are_checked():
    sets = random_sets(1, dim=2)
    with pytest.raises(ValueError, match=r"standardize=True learns from a sample: call fit\(sample\) first"):
        Preprocess(standardize=True).apply(sets)
    with pytest.raises(ValueError, match="the sets have 2 features, standardize has 3"):
        Preprocess(standardize=([0] * 3, [1] * 3)).apply(sets)
    with pytest.raises(ValueError, match="give fit at least one"):
        Preprocess(standardize=True).fit(sets[:0])
    small = Preprocess(standardize=([0, 0], [1, 1e-300]), scale="unit")
    with pytest.raises(ValueError, match=r"set 1, element 1, feature 1 is 1e\+10, and standardize makes inf of it"):
        small.apply([np.zeros((3, 2)), [[0, 0], [0, 1e10]]])
    lone = Sets(np.array([[1e-20], [1e15]]), [0, 2], [1, 0])
    with pytest.raises(ValueError, match=r"set 0, element 1, feature 0 is 1e.15, and scale='unit' makes 1e.35"):
        Preprocess(scale="unit").apply(lone)
