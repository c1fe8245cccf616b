"""Sets: every constructor against plain Python, every error by its words, and what must not be copied."""

from __future__ import annotations

import itertools
import pickle
import re
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slosh.data import precision
from slosh.data.sets import PrecisionWarning, ScaleWarning, Sets, as_sets

shared = np.shares_memory


def cloud(sizes, dim=2, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, dim)).astype(dtype) for n in sizes]


def same(sets, arrays, weights=None):
    assert len(sets) == len(arrays)
    assert sets.points.dtype == np.float32
    assert sets.points.flags.c_contiguous
    assert sets.offsets.dtype == np.int64
    assert sets.offsets[0] == 0
    assert sets.sizes.tolist() == [len(x) for x in arrays]
    for one, other in zip(sets, arrays, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other, np.float32))
    if weights is None:
        assert sets.weights is None
    else:
        assert sets.weights.dtype == np.float32
        np.testing.assert_array_equal(sets.weights, np.concatenate([np.asarray(w, np.float32) for w in weights]))


def raises(*words, error=ValueError):
    """The message has all of the words, in that order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(word) for word in words))


@pytest.fixture
def sets():
    arrays = cloud([3, 1, 4, 2])
    return Sets(np.concatenate(arrays), [0, 3, 4, 8, 10], np.arange(1, 11))


# ---- the container


def test_constructor_keeps_float32_without_a_copy():
    points, offsets, weights = np.ones((5, 2), np.float32), np.array([0, 2, 5]), np.ones(5, np.float32)
    sets = Sets(points, offsets, weights)
    assert sets.points is points
    assert shared(sets.offsets, offsets)
    assert shared(sets.weights, weights)
    assert sets.origin is None


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", "i1", "u1", "i4", "i8", "u8", "?", "g"])
def test_constructor_converts(dtype):
    points = np.array([[0, 1], [1, 1], [0, 0]]).astype(dtype)
    same(Sets(points, [0, 1, 3]), [points[:1], points[1:]])
    same(Sets(np.asfortranarray(points), [0, 1, 3]), [points[:1], points[1:]])
    same(Sets.from_list([points[:1], points[1:]]), [points[:1], points[1:]])


def test_properties(sets):
    assert (len(sets), sets.dim, sets.shape) == (4, 2, (4,))
    assert sets.sizes.dtype == np.int64
    assert sets.nbytes == 10 * 2 * 4 + 5 * 8 + 10 * 4
    assert repr(sets) == "Sets(4 sets, d=2, sizes 1..2.5..4, weighted)"
    assert repr(sets[:1]) == "Sets(1 set, d=2, sizes 3..3..3, weighted)"
    assert repr(as_sets([], dim=3)) == "Sets(0 sets, d=3)"


def test_item_is_a_view(sets):
    assert shared(sets[2], sets.points)
    np.testing.assert_array_equal(sets[2], sets.points[4:8])
    np.testing.assert_array_equal(sets[-1], sets.points[8:])
    np.testing.assert_array_equal(sets[np.int32(1)], sets.points[3:4])
    assert shared(sets.weights_of(2), sets.weights)
    assert sets.weights_of(2).tolist() == [5, 6, 7, 8]
    assert sets.weights_of(-4).tolist() == [1, 2, 3]
    assert Sets(sets.points, sets.offsets).weights_of(0) is None
    for bad in (4, -5):
        with raises(f"set {bad}", "4 sets", error=IndexError):
            sets[bad]
        with raises(f"set {bad}", "4 sets", error=IndexError):
            sets.weights_of(bad)
    assert [len(x) for x in sets] == [3, 1, 4, 2]


def test_slice_is_a_view(sets):
    part = sets[1:3]
    same(part, [sets[1], sets[2]], [[4], [5, 6, 7, 8]])
    assert shared(part.points, sets.points)
    assert shared(part.weights, sets.weights)
    same(part[1:], [sets[2]], [[5, 6, 7, 8]])
    assert len(sets[3:1]) == len(sets[9:]) == 0
    assert sets[9:].dim == 2
    same(sets[:], list(sets), [sets.weights])


@given(data=st.data())
@settings(deadline=None)
def test_indexing_is_that_of_a_list(data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    arrays = cloud(sizes, dim=3)
    weights = [np.arange(1, n + 1) for n in sizes]
    sets = Sets.from_list(arrays, weights)
    key = data.draw(st.slices(len(sizes)))
    rows = range(len(sizes))[key]
    if len(rows):
        same(sets[key], [arrays[i] for i in rows], [weights[i] for i in rows])
    else:
        assert len(sets[key]) == 0
    picks = data.draw(st.lists(st.integers(-len(sizes), len(sizes) - 1), min_size=1))
    chosen = [arrays[i] for i in picks], [weights[i] for i in picks]
    for indices in (picks, np.array(picks), np.array(picks, np.int16)):
        same(sets.take(indices), *chosen)
        same(sets[indices], *chosen)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))))
    same(
        sets[mask][:],
        [a for a, m in zip(arrays, mask, strict=True) if m],
        [np.empty(0), *np.array(weights, object)[mask]],
    )


def test_take_copies_and_refuses(sets):
    assert not shared(sets.take([0, 1, 2, 3]).points, sets.points)
    assert len(sets.take([])) == len(sets[[]]) == 0
    assert sets[[]].dim == 2
    same(sets[[True, False, False, True]], [sets[0], sets[3]], [[1, 2, 3], [9, 10]])
    with raises("set 4", "4 sets", error=IndexError):
        sets.take([0, 4])
    with raises("set -5", "4 sets", error=IndexError):
        sets[[-5]]
    with raises("mask has 3", "4 sets", error=IndexError):
        sets[[True, False, True]]
    for bad in ([0.5], [[0, 1]], "ab", True):
        with raises("integers or a boolean mask", error=IndexError):
            sets[bad]


def test_concat(sets):
    both = Sets.concat([sets[:1], sets[3:], sets[1:2]])
    same(both, [sets[0], sets[3], sets[1]], [[1, 2, 3], [9, 10], [4]])
    assert Sets.concat([sets]) is sets
    assert Sets.concat([as_sets([], dim=2), sets]) is sets
    with raises("2 and of 3 features"):
        Sets.concat([sets, as_sets(np.zeros((1, 1, 3)))])
    with raises("some have none", "weight 1", "np.ones"):
        Sets.concat([sets, Sets(sets.points, sets.offsets)])
    with raises("at least one"):
        Sets.concat([])
    with raises("item 1 is a list", "from_list"):
        Sets.concat([sets, [np.zeros((2, 2))]])


def test_concat_refuses_other_origins():
    x = [np.ones((3, 2))]
    a, b, c = (Sets.from_list(x, origin=o) for o in (None, [1, 1], [1, 2]))
    for one, other in ((a, b), (b, a), (b, c)):
        with raises("origin", "do not compare", "same origin="):
            Sets.concat([one, other])
    assert Sets.concat([b, b]).origin.tolist() == [1, 1]
    assert Sets.concat([as_sets([], dim=2), b, b]).origin.tolist() == [1, 1]


def test_pickle(sets):
    part = pickle.loads(pickle.dumps(sets.with_origin([1, 2])[1:3]))
    same(part, [sets[1], sets[2]], [[4], [5, 6, 7, 8]])
    assert part.origin.tolist() == [1, 2]
    assert len(pickle.dumps(Sets(np.zeros((100_000, 2)), [0, 99_999, 100_000])[1:])) < 2000


def test_scikit_learn_indexes_and_keeps_weights(sets):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.model_selection import KFold, cross_val_score, train_test_split
    from sklearn.utils import _safe_indexing

    for key in ([2, 0], np.array([2, 0]), (2, 0)):
        same(_safe_indexing(sets, key), [sets[2], sets[0]], [[5, 6, 7, 8], [1, 2, 3]])
    same(_safe_indexing(sets, np.array([True, False, False, True])), [sets[0], sets[3]], [[1, 2, 3], [9, 10]])
    same(_safe_indexing(sets, slice(1, 3)), [sets[1], sets[2]], [[4], [5, 6, 7, 8]])

    class WeightReader(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            assert isinstance(X, Sets)
            assert len(X) == len(y)
            self.classes_ = np.unique(y)
            return self

        def predict(self, X):
            return [int(X.weights_of(i).sum()) for i in range(len(X))]

    x = Sets(np.zeros((12, 1)), np.arange(0, 13, 2), np.arange(12))
    y = np.arange(12).reshape(6, 2).sum(axis=1)
    assert cross_val_score(WeightReader(), x, y, cv=KFold(3)).tolist() == [
        1,
        1,
        1,
    ]
    train, test, y_train, _ = train_test_split(x, y, test_size=2, random_state=0)
    assert (len(train), len(test)) == (4, 2)
    assert [int(train.weights_of(i).sum()) for i in range(4)] == y_train.tolist()


def test_memory_map_stays_a_view(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "BLOCK", 64)
    path = tmp_path / "points.f32"
    np.arange(2000, dtype=np.float32).tofile(path)
    points = np.memmap(path, np.float32, "r", shape=(1000, 2))
    sets = Sets(points, np.arange(0, 1001, 10))
    assert shared(sets.points, points)
    assert type(sets.points) is np.ndarray
    assert shared(sets[3:5].points, points)
    same(pickle.loads(pickle.dumps(sets)), list(sets))
    whole = np.memmap(path, np.float32, "r+", shape=(1000, 2))
    whole[777, 1] = np.inf
    with raises("set 77, element 7, feature 1: inf"):
        Sets(points, np.arange(0, 1001, 10))


def test_read_only_arrays():
    points, weights = np.ones((4, 2), np.float32), np.ones(4, np.float32)
    offsets = np.array([0, 4])
    for array in (points, weights, offsets):
        array.flags.writeable = False
    sets = Sets(points, offsets, weights)
    assert sets.points is points
    same(sets[[0]], [points], [weights])


# ---- from_list


@given(
    st.lists(
        hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.just(3)), elements=st.floats(-9, 9, width=32)),
        min_size=1,
    )
)
@settings(deadline=None)
def test_from_list_round_trip(arrays):
    sets = Sets.from_list(arrays)
    same(sets, arrays)
    same(as_sets(tuple(x.tolist() for x in arrays)), arrays)


def test_from_list_takes_lists_tuples_and_mixed_dtypes():
    arrays = [
        [[1, 2], [3, 4]],
        ((5.5, 6),),
        np.array([[True, False]]),
        np.array([[7, 8]], np.float16),
    ]
    weights = [[1, 2], (3,), np.array([True]), np.array([0.5])]
    same(Sets.from_list(arrays, weights), [np.asarray(x, np.float32) for x in arrays], weights)


def test_small_and_large_parts_are_joined_in_order(monkeypatch):
    monkeypatch.setattr(precision, "BLOCK", 20)
    for sizes in ([1, 2, 30, 1, 1, 9, 1, 12, 3], [25], [3, 3, 3, 3, 3], [10, 10, 1]):
        arrays = cloud(sizes, dtype=np.float64)
        same(Sets.from_list(arrays), arrays)
        shifted = Sets.from_list(arrays, origin=[1, -2])
        same(shifted, [x - [1, -2] for x in arrays])
        for i, x in enumerate(arrays):
            broken = [y.copy() for y in arrays]
            broken[i][len(x) - 1, 1] = np.nan
            with raises(f"set {i}, element {len(x) - 1}, feature 1: nan"):
                Sets.from_list(broken)


def test_no_sets_need_dim():
    for make in (as_sets, Sets.from_list):
        assert make([], dim=3).points.shape == (0, 3)
        with raises("pass dim"):
            make([])
    with raises("at least 1"):
        as_sets([], dim=0)
    assert as_sets(np.empty((0, 4, 3))).dim == 3
    assert len(Sets(np.empty((0, 3)), [0], [])) == 0


# ---- errors in the points


def bad_sets(bad, at=2):
    return [*cloud([3] * at), bad]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.empty((0, 2)), ["set 2 is empty", "drop it", "give it a point"]),
        ([], ["set 2 is empty", "drop it"]),
        (np.zeros((3, 5)), ["set 2 has 5 features, the others have 2"]),
        (np.zeros((3, 0)), ["set 2 has 0 features", "d > 0"]),
        ([[0, 0], [np.nan, 0]], ["set 2, element 1, feature 0: nan", "drop the element"]),
        ([[0, 0], [0, -np.inf]], ["set 2, element 1, feature 1: -inf", "drop the element"]),
        (np.float16([[0, 0], [0, np.inf]]), ["set 2, element 1, feature 1: inf", "drop the element"]),
        ([[0, 0], [0, 1e300]], ["set 2, element 1, feature 1: 1e+300 is beyond 1e+15", "scale"]),
        (np.zeros(4), ["set 2 is 1-D", "4 numbers", "(N, 1)", "x[:, None]"]),
        ([1, 2], ["set 2 is 1-D", "x[:, None]"]),
        (np.zeros((1, 2, 2)), ["set 2 is 3-D", "(1, 2, 2)", "reshape"]),
        ([[1, 2], [3, 4], [5, 6, 7]], ["set 2: row 2 has 3 numbers, row 0 has 2", "same features"]),
        ([[1, 2], 3], ["set 2: numbers and rows are mixed", "(N, d)"]),
        (np.array([[1, None]], object), ["set 2: dtype object", "astype(float)"]),
        (np.array([["a", "b"]]), ["set 2: dtype <U1", "float"]),
        (np.zeros((1, 2), "M8[s]"), ["set 2: dtype datetime64", "float"]),
        (np.zeros((1, 2), complex), ["set 2: complex", "x.real, x.imag"]),
        (np.ma.array([[1, 2]], mask=[[0, 1]]), ["set 2: masked", "drop the masked elements"]),
        ("ab", ["set 2 is a str", "(N, d)"]),
        (None, ["set 2 is None", "(N, d)"]),
        (3.5, ["set 2 is a float", "(N, d)"]),
        ({"a": 1}, ["set 2 is a dict", "(N, d)"]),
        (as_sets(np.zeros((1, 1, 2))), ["set 2 is a Sets", "Sets.concat"]),
    ],
    ids=lambda x: x[0] if isinstance(x, list) and x and isinstance(x[0], str) else "",
)
def test_bad_set_is_named(bad, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises(*words):
            as_sets(bad_sets(bad))
        with raises(*words):
            Sets.from_list(bad_sets(bad))
        if "the others" not in words[0] and not isinstance(bad, Sets):  # a stream says "expected", and takes Sets
            with raises(words[0].replace("set 2", "set 7"), *words[1:]):
                list(Sets.stream(bad_sets(bad, at=7), batch_points=6))


def test_the_odd_dimension_is_named():
    arrays = cloud([1, 1, 1])
    arrays[0] = np.zeros((1, 3))
    with raises("set 0 has 3 features, the others have 2"):
        as_sets(arrays)
    with raises("set 1 has 2 features, expected 3"):
        as_sets(arrays, dim=3)
    for data in (cloud([1, 2], dim=3), np.zeros((1, 1, 3)), Sets([[1, 2, 3]], [0, 1])):
        assert as_sets(data, dim=3).dim == 3
        with raises("set 0 has 3 features, expected 2"):
            as_sets(data, dim=2)


def test_from_list_refuses_sets():
    with raises("Sets already"):
        Sets.from_list(as_sets(np.zeros((1, 1, 2))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.integers(0, 9), st.integers(0, 1), st.sampled_from([np.nan, np.inf, -np.inf]))
@settings(deadline=None, max_examples=20)
def test_any_non_finite_value_is_found(dtype, row, feature, value):
    points = np.zeros((10, 2), dtype)
    points[row, feature] = value
    i = np.searchsorted([3, 4, 8], row, side="right")
    with raises(f"set {i}, element {row - [0, 3, 4, 8][i]}, feature {feature}: {value}"):
        Sets(points, [0, 3, 4, 8, 10])


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (np.zeros(4), ["(P, d)", "(4,)", "x[:, None]"]),
        (np.zeros((4, 0)), ["(P, d)", "(4, 0)"]),
        ([[1, 2], [3]], ["points: row 1 has 1 numbers, row 0 has 2"]),
        (np.zeros((4, 2), complex), ["points: complex"]),
        (np.zeros((4, 2), object), ["points: dtype object"]),
        (np.ma.zeros((4, 2)), ["points: masked"]),
    ],
)
def test_bad_points(points, words):
    with raises(*words):
        Sets(points, [0, 4])


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([1, 4], ["start at 0, not at 1"]),
        ([0, 3, 2, 4], ["backwards at set 1", "from 3 to 2"]),
        ([0, 2, 3], ["end at the number of points, 4, not at 3"]),
        ([0, 5], ["end at the number of points, 4, not at 5"]),
        ([0, 2, 2, 4], ["set 1 is empty", "drop it"]),
        ([0.0, 4.0], ["integers", "float64"]),
        ([False, True], ["integers", "bool"]),
        ([[0, 4]], ["one dimension", "(1, 2)"]),
        (4, ["one dimension", "()"]),
        ([], ["n + 1 integers"]),
    ],
)
def test_bad_offsets(offsets, words):
    with raises(*words):
        Sets(np.zeros((4, 2)), offsets)


# ---- weights


def test_zero_and_huge_weights_are_fine():
    sets = Sets(np.zeros((4, 1)), [0, 2, 4], np.float64([0, 1, 3e38, 3e38]))
    assert sets.weights[0] == 0
    assert np.isfinite(sets.weights).all()
    assert Sets(np.zeros((2, 1)), [0, 2], np.array([1, 2], ">f8")).weights.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, 1, 1, -2, 1], ["set 1, element 1 has the weight -2", ">= 0"]),
        ([1, 1, np.nan, 1, 1], ["set 1, element 0 has the weight nan", "finite"]),
        ([np.inf, 1, 1, 1, 1], ["set 0, element 0 has the weight inf", "finite"]),
        ([1, 1, 1, 1, -np.inf], ["set 1, element 2 has the weight -inf", "finite"]),
        ([1, 1, 1, 1e39, 1], ["set 1, element 1 has the weight 1e+39", "overflows float32", "divide"]),
        ([0, 0, 1, 1, 1], ["weights of set 0 are all zero", "drop the set"]),
        ([1, 1, 0, 0, 0], ["weights of set 1 are all zero", "drop the set"]),
        ([1, 1, 0, 1e-60, 0], ["weights of set 1 are all zero", "too small for float32", "divide"]),
    ],
)
def test_bad_weights(weights, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises(*words):
            Sets(np.zeros((5, 2)), [0, 2, 5], weights)
        with raises(*words):
            Sets.from_list([np.zeros((2, 2)), np.zeros((3, 2))], [weights[:2], weights[2:]])


def test_weights_of_the_wrong_shape():
    arrays = cloud([2, 3])
    with raises("shape (4,), points have 5 rows"):
        Sets(np.zeros((5, 2)), [0, 2, 5], np.ones(4))
    with raises("set 1 has 2 weights, 3 elements"):
        Sets.from_list(arrays, [[1, 1], [1, 1]])
    with raises("weights of 1 sets", "2 sets"):
        Sets.from_list(arrays, [[1, 1]])
    with raises("weights of set 0 are 0-D", "(N,)"):
        Sets.from_list(arrays, np.ones(5))
    with raises("weights of set 1 are 2-D", "(N,)"):
        Sets.from_list(arrays, [np.ones(2), np.ones((3, 1))])
    with raises("weights of set 1: dtype <U1"):
        Sets.from_list(arrays, [[1, 1], ["a", "b", "c"]])
    with raises("weights: dtype object"):
        Sets(np.zeros((1, 2)), [0, 1], [None])


def test_bad_weights_are_found_block_by_block(monkeypatch):
    monkeypatch.setattr("slosh.data.checks.BLOCK", 16)
    weights = np.ones(1000)
    weights[777] = -1
    with raises("set 77, element 7 has the weight -1"):
        Sets(np.zeros((1000, 1)), np.arange(0, 1001, 10), weights)


# ---- from_padded


@given(data=st.data())
@settings(deadline=None)
def test_from_padded(data):
    n, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    array = np.random.default_rng(0).standard_normal((n, width, 2)).astype(data.draw(st.sampled_from(["f4", "f8"])))
    weights = np.arange(1, n * width + 1).reshape(n, width).astype(float)
    lengths = np.array(data.draw(st.lists(st.integers(1, width), min_size=n, max_size=n)))
    mask = np.array([data.draw(st.permutations([j < size for j in range(width)])) for size in lengths])
    same(Sets.from_padded(array, weights=weights), array, weights)
    for there, how in ((np.arange(width) < lengths[:, None], {"lengths": lengths}), (mask, {"mask": mask})):
        padded = np.where(there[:, :, None], array, np.nan).astype(array.dtype)
        expected = [x[m] for x, m in zip(array, there, strict=True)]
        same(Sets.from_padded(padded, **how), expected)
        with_weights = Sets.from_padded(padded, weights=np.where(there, weights, np.nan), **how)
        same(with_weights, expected, [w[m] for w, m in zip(weights, there, strict=True)])


def test_from_padded_of_one_size_is_a_view():
    array = np.zeros((3, 4, 2), np.float32)
    assert shared(Sets.from_padded(array).points, array)
    assert shared(as_sets(array).points, array)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"lengths": [1, 2], "mask": np.ones((2, 3), bool)}, ["not both"]),
        ({"lengths": [1, 4]}, ["set 1 has the length 4", "0 to 3"]),
        ({"lengths": [-1, 3]}, ["set 0 has the length -1"]),
        ({"lengths": [1.0, 3.0]}, ["2 integers", "float64"]),
        ({"lengths": [1, 2, 3]}, ["2 integers", "(3,)"]),
        ({"lengths": [2, 0]}, ["set 1 is empty"]),
        ({"mask": np.zeros((2, 3), bool)}, ["set 0 is empty"]),
        ({"mask": np.ones((2, 3))}, ["boolean", "float64"]),
        ({"mask": np.ones((2, 2), bool)}, ["boolean of shape (2, 3)", "(2, 2)"]),
        ({"weights": np.ones((2, 2))}, ["shape (2, 3)", "(2, 2)"]),
        ({"weights": [[1, 1, 1], [1, -1, 1]]}, ["set 1, element 1 has the weight -1"]),
    ],
)
def test_from_padded_refuses(how, words):
    with raises(*words):
        Sets.from_padded(np.zeros((2, 3, 2)), **how)


def test_from_padded_refuses_other_shapes():
    with raises("(n, max, d)", "(2, 3)"):
        Sets.from_padded(np.zeros((2, 3)))
    with raises("(n, max, d)", "(2, 3, 0)"):
        Sets.from_padded(np.zeros((2, 3, 0)))
    with raises("set 0 is empty"):
        Sets.from_padded(np.zeros((2, 0, 3)))
    bad = np.zeros((2, 3, 2))
    bad[1, 2, 0] = np.nan
    with raises("set 1, element 2, feature 0: nan"):
        Sets.from_padded(bad)


# ---- as_sets


def test_as_sets_takes_collections(sets):
    arrays = list(sets)
    assert as_sets(sets) is sets
    for data in (arrays, tuple(arrays), np.array(arrays, dtype=object)):
        same(as_sets(data), arrays)
    same(as_sets(np.zeros((2, 3, 4))), np.zeros((2, 3, 4)))

    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.zeros((2, 3, 4), dtype or float)

    same(as_sets(Wrapped()), np.zeros((2, 3, 4)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.zeros((3, 2)), ["a 2-D array is one set", "pass [x]", "3-D"]),
        (np.zeros(3), ["a 1-D array", "list of (N, d) arrays"]),
        (np.zeros((1, 2, 3, 4)), ["a 4-D array"]),
        (np.array([[None, 1]]), ["dtype object"]),
        (np.array([1, None]), ["set 0 is a int"]),
        (np.array(["a", "b"]), ["dtype <U1"]),
        (np.ma.zeros((1, 2, 3)), ["masked"]),
        (np.zeros((1, 2, 3), complex), ["complex"]),
        (np.float64(3), ["a 0-D array"]),
        ("points", ["a str is not a collection", "list of (N, d) arrays"]),
        (b"points", ["a bytes is not a collection"]),
        ({"a": [[1, 2]]}, ["a dict is not a collection"]),
        (None, ["None is not a collection"]),
        (3, ["a int is not a collection"]),
        (iter([np.zeros((1, 2))]), ["list(x)", "Sets.stream"]),
        ((x for x in [np.zeros((1, 2))]), ["a generator", "Sets.stream"]),
        ([1.0, 2.0], ["set 0 is a float"]),
        ([[1.0, 2.0], [3.0, 4.0]], ["set 0 is 1-D", "x[:, None]", "pass [x]"]),
    ],
)
def test_as_sets_refuses(data, words):
    with raises(*words):
        as_sets(data)


# ---- precision and scale


def utm(n=500, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([500_000.0, 4_500_000.0]) + np.round(rng.uniform(0, 300, (n, 2)), 2)


def test_far_coordinates_warn_and_an_origin_keeps_the_detail():
    x = utm()
    with pytest.warns(
        PrecisionWarning, match=r"feature 1 by about 0\.2.* units of the data.*origin=\"auto\""
    ) as caught:
        sets = Sets(x, [0, 200, 500])
    assert caught[0].filename == __file__
    assert np.abs(sets.points - x).max() > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (
            lambda origin: Sets(x, [0, 200, 500], origin=origin),
            lambda origin: Sets.from_list([x[:200], x[200:]], origin=origin),
        ):
            for origin in ("auto", [500_000, 4_500_000], x[0]):
                sets = make(origin)
                assert sets.origin.dtype == np.float64
                assert np.abs(sets.points + sets.origin - x).max() < 2e-5
                assert sets[:1].origin is sets.take([1]).origin is sets.origin
            assert make("auto").origin.tolist() == np.round(make("auto").origin, -1).tolist()
            assert np.all((x.min(axis=0) - 10 < make("auto").origin) & (make("auto").origin < x.max(axis=0) + 10))
    with pytest.warns(PrecisionWarning, match="origin that is nearer"):
        Sets(x, [0, 500], origin=[0, 1])


def test_every_constructor_warns_at_the_callers_line():
    x = utm()
    for make in (
        lambda: Sets.from_list([x]),
        lambda: Sets.from_padded(x[None]),
        lambda: as_sets([x]),
        lambda: next(Sets.stream([x])),
    ):
        with pytest.warns(PrecisionWarning) as caught:
            make()
        assert caught[0].filename == __file__


def test_a_stray_value_does_not_hide_the_loss():
    x = utm()
    x[7] = 0
    with pytest.warns(PrecisionWarning):
        Sets(x, [0, 500])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sets = Sets(x, [0, 500], origin="auto")
    good = np.arange(500) != 7
    assert np.abs(sets.points + sets.origin - x)[good].max() < 2e-5


def test_the_sample_is_even_over_sets_too():
    x = np.arange(60_000.0).reshape(30_000, 2)
    whole = precision._sample([x], len(x))
    assert whole.shape[1] <= 4096
    assert len(set(np.diff(whole[0]))) == 1
    np.testing.assert_array_equal(precision._sample(np.split(x, 10_000), len(x)), whole)


def test_integers_far_from_zero():
    big = 2**40 + np.arange(100)[:, None] * [1, 3]
    with pytest.warns(PrecisionWarning, match="feature"):
        Sets(big, [0, 100])
    sets = Sets(big, [0, 100], origin="auto")
    np.testing.assert_array_equal(sets.points + sets.origin, big)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).standard_normal((1000, 3)),
        np.exp(3 * np.random.default_rng(0).standard_normal((1000, 3))),
        np.full((100, 2), 0.1),
        np.arange(200).reshape(100, 2) + 4_500_000,
        np.full((100, 1), 0.1) + 1e-17 * np.arange(100)[:, None],
        np.c_[np.random.default_rng(0).standard_normal(100), 0.1 + 1e-13 * np.arange(100)],
        np.c_[np.r_[np.zeros(99), 1.1]],
        utm().astype(np.float32),
        np.array([[500_000.01, 4_500_000.01]]),
    ],
    ids=["normal", "heavy tail", "constant", "exact integers", "noise", "flat", "rare", "float32", "one point"],
)
def test_no_false_alarm(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sets(x, [0, len(x)])
        Sets.from_list([x])


def test_values_too_small_for_float32():
    with pytest.warns(PrecisionWarning, match="multiply"):
        Sets(1e-42 * np.random.default_rng(0).standard_normal((100, 2)), [0, 100])


def test_origin_auto_of_special_data():
    assert Sets([[0.1, -3.0]] * 3, [0, 3], origin="auto").origin.tolist() == [0.1, -3.0]
    assert Sets(np.empty((0, 2)), [0], origin="auto").origin.tolist() == [0, 0]
    assert Sets(np.random.default_rng(0).standard_normal((9999, 1)), [0, 9999], origin="auto").origin.tolist() == [0]
    for value in (np.nan, np.inf):
        for x in (np.full((9, 1), value), np.array([[1.0], [value]])):
            with raises("is not a finite number"):
                Sets(x, [0, len(x)], origin="auto")
    with raises("is beyond 1e+15"):
        Sets(np.array([[1.7e308], [-1.7e308]]), [0, 2], origin="auto")


def test_with_origin_subtracts_nothing(sets):
    other = sets.with_origin([7, 8])
    assert other.points is sets.points
    assert other.origin.tolist() == [7, 8]
    assert other.with_origin(None).origin is None
    assert sets.origin is None


@pytest.mark.parametrize("origin", [[1], [1, 2, 3], [[1, 2]], [1, np.nan], "middle", 3, ["a", "b"]])
def test_bad_origin(origin):
    with raises("origin must be 2 finite numbers", '"auto"'):
        Sets(np.zeros((3, 2)), [0, 3], origin=origin)
    with raises("origin must be 2 finite numbers"):
        as_sets(np.zeros((1, 1, 2))).with_origin(origin)


def test_check_scale():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3)) * [1, 50, 1]
    sets = Sets(x, [0, 100, 400])
    with pytest.warns(ScaleWarning, match=r"feature 1 carries 99\.\d\d %.*standardise.*standard deviation") as caught:
        sets.check_scale()
    assert caught[0].filename == __file__
    with pytest.warns(ScaleWarning) as caught:
        sets.check_scale(stacklevel=1)
    assert caught[0].filename.endswith("sets.py")
    with pytest.warns(ScaleWarning, match=r"99\.99 %"):
        Sets(x * [0.0001, 1, 0], [0, 400]).check_scale()
    big = np.tile(x, (1000, 1)).astype(np.float32)
    with pytest.warns(ScaleWarning):
        Sets(big, [0, len(big)]).check_scale()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sets(x / x.std(axis=0), [0, 400]).check_scale()
        Sets(x[:99], [0, 99]).check_scale()
        Sets(x[:, 1:2], [0, 400]).check_scale()
        Sets(x * [0, 1, 0], [0, 400]).check_scale()
        Sets(x * 0, [0, 400]).check_scale()
        Sets(x, [0, 400])


# ---- stream


def test_stream_batches_and_laziness():
    pulled = []

    def source():
        for i in range(1000):
            pulled.append(i)
            yield np.full((4, 2), i, np.float32)

    batches = Sets.stream(source(), batch_points=10)
    assert pulled == []
    first = next(batches)
    assert len(first) == 2
    assert len(pulled) <= 3
    second = next(batches)
    assert second[0][0, 0] == 2
    assert len(pulled) <= 5


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 12), st.booleans(), st.data())
@settings(deadline=None)
def test_stream_gives_all_sets_in_order(sizes, batch_points, weighted, data):
    arrays = cloud(sizes)
    weights = [np.arange(1, n + 1) for n in sizes] if weighted else None
    items = []
    i = 0
    while i < len(sizes):  # single arrays (if there are no weights) and Sets of several
        j = data.draw(st.integers(i + 1, len(sizes)))
        if weighted or data.draw(st.booleans()):
            items.append(Sets.from_list(arrays[i:j], weights[i:j] if weighted else None))
        else:
            items += arrays[i:j]
        i = j
    batches = list(Sets.stream(iter(items), batch_points))
    assert sum(len(batch) for batch in batches) == len(sizes)
    assert all(len(batch.points) <= batch_points or len(batch) == 1 for batch in batches)
    if sizes:
        same(Sets.concat(batches), arrays, weights)
    if all(isinstance(item, Sets) for item in items) or not any(isinstance(item, Sets) for item in items):
        for one, other in itertools.pairwise(batches):  # as full as they can be
            assert len(one.points) + len(other[0]) > batch_points


def test_stream_cuts_sets_into_views(sets):
    batches = list(Sets.stream([sets], batch_points=4))
    assert [len(batch) for batch in batches] == [2, 1, 1]
    assert all(shared(batch.points, sets.points) and shared(batch.weights, sets.weights) for batch in batches)
    assert [len(batch) for batch in Sets.stream(sets, batch_points=4)] == [2, 1, 1]
    assert list(Sets.stream([])) == []


def test_stream_errors_count_from_the_start():
    def source(bad):
        for _ in range(12345):
            yield np.zeros((3, 2))
        yield bad

    for bad, words in (
        (np.array([[0, 0], [0, np.nan]]), ["set 12345, element 1, feature 1: nan"]),
        (np.zeros((2, 3)), ["set 12345 has 3 features, expected 2"]),
        (np.zeros((0, 2)), ["set 12345 is empty"]),
        (as_sets(np.zeros((1, 1, 3))), ["set 12345 has 3 features, expected 2"]),
        (Sets(np.zeros((1, 2)), [0, 1], [1]), ["set 12345 has weights, unlike", "np.ones"]),
        (as_sets(np.zeros((1, 1, 2))).with_origin([1, 1]), ["origin"]),
    ):
        with raises(*words):
            list(Sets.stream(source(bad), batch_points=100))
    with raises("set 0 has 2 features, expected 5"):
        next(Sets.stream(source(None), dim=5))
    with raises("set 1 has no weights, unlike"):
        list(Sets.stream([Sets(np.zeros((1, 2)), [0, 1], [1]), np.zeros((1, 2))]))
    with raises("batch_points=0", "1 or more"):
        Sets.stream([], batch_points=0)


def test_stream_keeps_one_origin():
    x = utm(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(Sets.stream([x[i : i + 100] for i in range(0, 1000, 100)], 250, origin="auto"))
        assert len(batches) == 5
        assert len({tuple(batch.origin) for batch in batches}) == 1
        joined = Sets.concat(batches)
        assert np.abs(joined.points + joined.origin - x).max() < 2e-5
        again = list(Sets.stream([*batches, x[:100]], 250, origin="auto"))
        assert {tuple(batch.origin) for batch in again} == {tuple(joined.origin)}
    with pytest.warns(PrecisionWarning) as caught:
        list(Sets.stream([np.zeros((300, 2)), *(x[i : i + 100] for i in range(0, 1000, 100))], 250))
    assert "rounds feature" in str(caught[0].message)  # not only the first batch is looked at


# ---- Arrow


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


ARROW = cloud([2, 1, 3, 1, 2], dim=3)


def arrow_types(pa):
    for number in (pa.float32(), pa.float64()):
        for vector in (pa.list_(number, 3), pa.list_(number), pa.large_list(number)):
            yield pa.list_(vector)
            yield pa.large_list(vector)


def test_arrow_types_slices_and_chunks(pa):
    rows = [x.tolist() for x in ARROW]
    for kind in arrow_types(pa):
        column = pa.array(rows, kind)
        same(Sets.from_arrow(column), ARROW)
        same(as_sets(column), ARROW)
        for a, b in ((1, 4), (2, 5), (0, 2), (4, 5)):
            same(Sets.from_arrow(column[a:b]), ARROW[a:b])
            same(Sets.from_arrow(column[a:][: b - a]), ARROW[a:b])
        same(Sets.from_arrow(pa.chunked_array([column[1:3], column[:0], column[3:]])), ARROW[1:])
        same(Sets.from_arrow(pa.chunked_array([column])), ARROW)


def test_arrow_fixed_sizes_and_values_that_are_slices(pa):
    x = np.arange(48, dtype=np.float32).reshape(4, 4, 3)
    column = pa.array(x.tolist(), pa.list_(pa.list_(pa.float32(), 3), 4))
    same(Sets.from_arrow(column), x)
    same(Sets.from_arrow(column[1:3]), x[1:3])
    assert shared(Sets.from_arrow(column[1:3]).points, column.values.values.to_numpy())
    vectors = column.values[2:]  # a child with an offset of its own
    same(Sets.from_arrow(pa.ListArray.from_arrays([0, 3, 5], vectors)), [x.reshape(-1, 3)[2:5], x.reshape(-1, 3)[5:7]])
    same(Sets.from_arrow(pa.ListArray.from_arrays([0, 3, 5], vectors)[1:]), [x.reshape(-1, 3)[5:7]])


def test_arrow_is_not_copied(pa, sets):
    column = sets.to_arrow()
    assert column.type == pa.large_list(pa.list_(pa.float32(), 2))
    column.validate(full=True)
    assert column.to_pylist() == [x.tolist() for x in sets]
    assert shared(column.values.values.to_numpy(), sets.points)
    for part, arrays in ((column, list(sets)), (column[1:3], [sets[1], sets[2]])):
        back = Sets.from_arrow(part)
        same(back, arrays)
        assert shared(back.points, sets.points)
    same(Sets.from_arrow(sets[1:3].to_arrow()), [sets[1], sets[2]])
    assert shared(sets[1:3].to_arrow().values.values.to_numpy(), sets.points)
    same(Sets.from_arrow(sets[:0].to_arrow()), [])


def test_arrow_weights(pa):
    column = pa.array([x.tolist() for x in ARROW], pa.list_(pa.list_(pa.float32(), 3)))
    weights = [np.arange(1, len(x) + 1) for x in ARROW]
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.int16())):
        given = pa.array([w.tolist() for w in weights], kind)
        same(Sets.from_arrow(column, given), ARROW, weights)
        same(Sets.from_arrow(column[2:], given[2:]), ARROW[2:], weights[2:])
        same(Sets.from_arrow(column, pa.chunked_array([given[:2], given[2:]])), ARROW, weights)
    same(Sets.from_arrow(column, weights), ARROW, weights)
    with raises("set 2 has 2 weights, 3 elements"):
        Sets.from_arrow(column, pa.array([[1, 1], [1], [1, 1], [1], [1, 1]]))
    with raises("weights: set 1, element 0 is null"):
        Sets.from_arrow(column, pa.array([[1, 1], [None], [1, 1, 1], [1], [1, 1]]))
    with raises("weights: set 1 is null"):
        Sets.from_arrow(column, pa.array([[1, 1], None, [1, 1, 1], [1], [1, 1]]))


def test_arrow_nulls_are_named(pa):
    good, fixed = [[1.0, 2.0]], pa.list_(pa.list_(pa.float32(), 2))
    for kind in (fixed, pa.list_(pa.list_(pa.float32()))):
        for rows, where in (
            ([good, good, None], "set 2 is null"),
            ([good, good, [[1, 2], None]], "set 2, element 1 is null"),
            ([good, good, [[1, 2], [3, None]]], "set 2, element 1, feature 1 is null"),
        ):
            column = pa.array(rows, kind)
            with raises(where, "drop it"):
                Sets.from_arrow(column)
            with raises(where.replace("2", "1", 1), "drop it"):
                Sets.from_arrow(column[1:])
            with raises(where):
                Sets.from_arrow(pa.chunked_array([column[:1], column[1:]]))
            same(Sets.from_arrow(column[:2]), [good, good])


def test_arrow_refuses(pa):
    with raises("set 1: row 1 has 3 numbers, the others have 2"):
        Sets.from_arrow(pa.array([[[1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0, 3.0]]]))
    with raises("set 1: row 0 has 3 numbers, the others have 2"):
        Sets.from_arrow(pa.chunked_array([[[[1.0, 2.0]]], [[[1.0, 2.0, 3.0]]]]))
    with raises("set 1 is empty"):
        Sets.from_arrow(pa.array([[[1.0, 2.0]], []]))
    with raises("set 0 is empty"):
        Sets.from_arrow(pa.array([[]], pa.list_(pa.list_(pa.float32()))))
    with raises("set 0, element 0 has 0 features"):
        Sets.from_arrow(pa.array([[[]]], pa.list_(pa.list_(pa.float32()))))
    with raises("set 1, element 0, feature 1: nan"):
        Sets.from_arrow(pa.array([[[1.0, 2.0]], [[1.0, np.nan]]]))
    for column in (pa.array([[1.0, 2.0]]), pa.array([1.0]), pa.array([[["a"]]]), pa.array(["a"])):
        with raises(str(column.type), "list<fixed_size_list<float>[d]>"):
            as_sets(column)
    with raises("pass the one"):
        as_sets(pa.table({"x": [1]}))
    with raises("not an Arrow column but a list"):
        Sets.from_arrow([[[1.0]]])
    empty = pa.array([], pa.list_(pa.list_(pa.float32())))
    with raises("pass dim"):
        Sets.from_arrow(empty)
    assert as_sets(empty, dim=4).dim == 4
    assert as_sets(pa.chunked_array([], pa.list_(pa.list_(pa.float32(), 3)))).dim == 3
    with raises("set 0 has 3 features, expected 2"):
        as_sets(pa.array([x.tolist() for x in ARROW]), dim=2)


def test_without_pyarrow(sets, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises('pip install "slosh[tables]"', error=ImportError):
        sets.to_arrow()
    with raises('pip install "slosh[tables]"', error=ImportError):
        Sets.from_arrow(None)


def test_arrow_origin(pa):
    column = pa.array([utm(100).tolist()])
    with pytest.warns(PrecisionWarning):
        Sets.from_arrow(column)
    sets = Sets.from_arrow(column, origin="auto")
    assert np.abs(sets.points + sets.origin - utm(100)).max() < 2e-5


# ---- tables


def grouped(rows, keys):
    """Plain Python: {key: rows}, in the order of first appearance."""
    result = {}
    for key, row in zip(keys, rows, strict=True):
        result.setdefault(key, []).append(row)
    return result


@pytest.mark.parametrize("library", ["pandas", "polars"])
@given(
    st.lists(
        st.tuples(st.sampled_from("cabd"), st.integers(-2, 2), st.floats(-9, 9, width=32), st.integers(-9, 9)),
        min_size=1,
    )
)
@settings(deadline=None, max_examples=40)
def test_groups_are_those_of_plain_python(library, table):
    frame_type = pytest.importorskip(library).DataFrame
    s, i, x, y = (list(column) for column in zip(*table, strict=True))
    frame = frame_type({"s": s, "x": np.array(x, np.float32), "i": i, "y": y})
    points = list(zip(x, y, strict=True))
    for by, keys in (("s", s), ("i", i), (["s", "i"], list(zip(s, i, strict=True))), (["i"], [(k,) for k in i])):
        expected = grouped(points, keys)
        sets, found = Sets.from_groups(frame, by, columns=["x", "y"])
        assert found == list(expected)
        same(sets, list(expected.values()))
        if library == "pandas":
            objects = [frame.groupby(by), frame.groupby(by, sort=False)[["x", "y"]]]
        else:
            objects = [frame.group_by(by), frame.group_by(by, maintain_order=True)]
        for gb in objects:
            sets, found = Sets.from_groups(gb, columns=["x", "y"])
            assert found == list(expected)
            same(sets, list(expected.values()))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_groups_columns_and_weights(library):
    frame_type = pytest.importorskip(library).DataFrame
    data = {
        "k": [3, 1, 3],
        "w": [1.0, 2.0, 0.0],
        "x": [1, 2, 3],
        "name": ["a", "b", "c"],
        "y": [4.0, 5, 6],
        "ok": [True] * 3,
    }
    frame = frame_type(data)
    expected = [[[1, 4], [3, 6]], [[2, 5]]]
    sets, keys = Sets.from_groups(frame, "k", weights="w")
    assert keys == [3, 1]
    assert all(type(key) is int for key in keys)
    same(sets, expected, [[1, 0], [2]])
    same(Sets.from_groups(frame, by="k", columns=["y", "ok"])[0], [[[4, 1], [6, 1]], [[5, 1]]])
    gb = frame.groupby("k") if library == "pandas" else frame.group_by("k")
    same(Sets.from_groups(gb, weights="w")[0], expected, [[1, 0], [2]])
    sets, keys = Sets.from_groups(frame[:0], "k", weights="w")
    assert (len(sets), sets.dim, keys) == (0, 2, [])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_groups_refuse(library):
    frame_type = pytest.importorskip(library).DataFrame
    frame = frame_type({"k": ["a", "b", None], "f": [1.0, None, 2.0], "x": [1.0, 2.0, 3.0], "j": [1, 1, 2]})
    with raises("row 2 of column 'k' is null", "drop the row"):
        Sets.from_groups(frame, "k", ["x"])
    with raises("row 1 of column 'f' is null", "drop the row"):
        Sets.from_groups(frame, "f", ["x"])
    with raises("row 1 of column 'f' is null", "drop the row"):
        Sets.from_groups(frame, "j")
    with raises("row 1 of column 'f' is null", "drop the row"):
        Sets.from_groups(frame, "j", ["x"], weights="f")
    with raises("row 1 of column 'y' is null or NaN"):
        Sets.from_groups(frame_type({"j": [1, 1], "y": [1.0, np.nan]}), "j")
    with raises("no column is named 'z'", "'k', 'f', 'x', 'j'"):
        Sets.from_groups(frame, "z")
    with raises("no column is named 'z'"):
        Sets.from_groups(frame, "j", ["x", "z"])
    with raises("no column is named 'z'"):
        Sets.from_groups(frame, "j", ["x"], weights="z")
    with raises("column 'k'", "not numbers"):
        Sets.from_groups(frame[:2], "j", ["k"])
    with raises("no numeric columns are left"):
        Sets.from_groups(frame[:2][["k", "j"]], "j")
    with raises("list of column names"):
        Sets.from_groups(frame, "j", "x")
    with raises("by is missing"):
        Sets.from_groups(frame)
    with raises("not a column name"):
        Sets.from_groups(frame, frame["j"], ["x"])
    with raises("set 1, element 0, feature 0: inf"):
        Sets.from_groups(frame_type({"j": [1, 2], "y": [1.0, np.inf]}), "j")
    with raises("the weights of set 0 are all zero"):
        Sets.from_groups(frame_type({"j": [1, 2], "y": [1.0, 2], "w": [0, 1]}), "j", weights="w")
    gb = frame.groupby("j") if library == "pandas" else frame.group_by("j")
    with raises("grouped already"):
        Sets.from_groups(gb, "j")
    with raises("Sets.from_groups(frame, by=...)"):
        as_sets(frame)
    with raises("Sets.from_groups"):
        as_sets(gb)


def test_groups_take_only_tables():
    with raises("pandas or polars DataFrame, not a dict"):
        Sets.from_groups({"k": [1]}, "k")


def test_pandas_groups_by_other_things():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"k": [5, 4, 5], "x": [1.0, 2, 3], "y": [0.5, 1, 2]}, index=pd.Index(["r", "s", "t"], name="row")
    )
    frame["c"] = pd.Categorical(["b", "a", "b"], categories=["z", "a", "b"])
    expected = [[[1, 0.5], [3, 2]], [[2, 1]]]
    for by, keys in ((frame["k"], [5, 4]), (np.array([1, 0, 1]), [1, 0]), (lambda label: label == "s", [False, True])):
        sets, found = Sets.from_groups(frame.groupby(by), columns=["x", "y"])
        assert found == keys
        same(sets, expected)
    sets, found = Sets.from_groups(frame.groupby(level="row"), columns=["x", "y"])
    assert found == ["r", "s", "t"]
    for observed in (True, False):
        for gb in (frame.groupby("c", observed=observed), frame.groupby(frame["c"], observed=observed)):
            sets, found = Sets.from_groups(gb, columns=["x", "y"])
            assert found == ["b", "a"]
            same(sets, expected)
    same(Sets.from_groups(frame.groupby("k")[["x", "y"]])[0], expected)
    same(Sets.from_groups(frame.groupby(frame["k"])[["x", "y"]])[0], expected)
    with raises("row 1 of the group key is null"):
        Sets.from_groups(frame.groupby([1.0, np.nan, 1.0]), columns=["x"])
    nullable = frame.astype({"x": "Float64", "k": "Int64"})
    nullable["z"] = pd.array([1, 2, 3], "Int32")
    same(Sets.from_groups(nullable, "k", ["x", "z"])[0], [[[1, 1], [3, 3]], [[2, 2]]])
    nullable.loc["s", "z"] = pd.NA
    with raises("row 1 of column 'z' is null"):
        Sets.from_groups(nullable, "k", ["x", "z"])
    with raises("more than one column is named 'x'"):
        Sets.from_groups(pd.concat([frame, frame[["x"]]], axis=1), "k", ["x"])
    timed = frame.assign(t=pd.to_timedelta([1, 2, 3]), q=[1j, 2j, 3j])
    with raises("column 't'", "not numbers"):
        Sets.from_groups(timed, "k", ["x", "t"])
    with raises("column 'q': complex"):
        Sets.from_groups(timed, "k")


def test_polars_groups_by_other_things():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"k": [5, 4, 5], "x": [1.0, 2, 3], "y": [0.5, 1, 2]})
    expected = [[[1, 0.5], [3, 2]], [[2, 1]]]
    for gb, keys in (
        (frame.group_by(pl.col("k") * 10), [50, 40]),
        (frame.group_by(["k"]), [(5,), (4,)]),
        (frame.group_by(big=pl.col("k") > 4), [True, False]),
        (frame.group_by("k", big=pl.col("k") > 4), [(5, True), (4, False)]),
    ):
        sets, found = Sets.from_groups(gb, columns=["x", "y"])
        assert found == keys
        same(sets, expected)
    same(Sets.from_groups(frame.group_by("k"))[0], expected)
    decimal = frame.with_columns(pl.col("y").cast(pl.Decimal(10, 2)))
    same(Sets.from_groups(decimal, "k")[0], expected)
    with raises("row 0 of column 'x' is null or NaN"):
        Sets.from_groups(pl.DataFrame({"x": [float("nan")], "y": [1.0]}), "x")
    with raises("LazyFrame", "collect()"):
        Sets.from_groups(frame.lazy(), "k")


def test_many_shuffled_groups():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.repeat(np.arange(70_000), 2))  # more groups than 16 bits hold
    frame = pd.DataFrame({"k": keys, "x": np.arange(140_000, dtype=np.float32)})
    sets, found = Sets.from_groups(frame, "k")
    assert found == list(dict.fromkeys(keys.tolist()))
    assert (keys[sets.points[:, 0].astype(int)].reshape(-1, 2) == np.array(found)[:, None]).all()
    assert (np.diff(sets.points.reshape(-1, 2)) > 0).all()


def test_groups_origin():
    pd = pytest.importorskip("pandas")
    x = utm()
    frame = pd.DataFrame({"k": np.arange(500) // 100, "e": x[:, 0], "n": x[:, 1]})
    with pytest.warns(PrecisionWarning, match="feature 1"):
        Sets.from_groups(frame, "k")
    sets, _ = Sets.from_groups(frame, "k", origin="auto")
    assert np.abs(sets.points + sets.origin - x).max() < 2e-5


def test_series_of_arrays(sets):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    same(as_sets(pd.Series(list(sets), index=list("abcd"))), list(sets))
    lists = [x.tolist() for x in sets]
    same(as_sets(pd.Series(lists)), list(sets))
    same(as_sets(pd.Series(sets.to_arrow(), dtype=pd.ArrowDtype(sets.to_arrow().type))), list(sets))
    same(as_sets(pl.Series(lists)), list(sets))
    same(as_sets(pl.Series(lists, dtype=pl.List(pl.Array(pl.Float32, 2)))), list(sets))
    same(Sets.from_arrow(pa.array(lists), pl.Series([[1.0] * len(x) for x in lists])), list(sets), [np.ones(10)])
    with raises("set 1 is None"):
        as_sets(pd.Series([lists[0], None]))


# ---- torch


def test_torch_nested_and_padded():
    torch = pytest.importorskip("torch")
    arrays = cloud([3, 1, 2], dim=4)
    tensors = [torch.tensor(x) for x in arrays]
    weights = [np.arange(1, len(x) + 1) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are new
        for layout in (torch.strided, torch.jagged):
            for grad in (False, True):
                nested = torch.nested.nested_tensor(tensors, layout=layout, requires_grad=grad)
                same(Sets.from_torch(nested), arrays)
                same(as_sets(nested), arrays)
                same(Sets.from_torch(nested, weights), arrays, weights)
            for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32):
                ones = torch.nested.nested_tensor([torch.ones(n, 4, dtype=dtype) for n in (3, 1, 2)], layout=layout)
                same(as_sets(ones), [np.ones((n, 4)) for n in (3, 1, 2)])
        jagged = torch.nested.nested_tensor(tensors, layout=torch.jagged)
        assert shared(Sets.from_torch(jagged).points, jagged.values().numpy())
        gaps = torch.nested.narrow(
            torch.arange(24.0).reshape(2, 4, 3), 1, torch.tensor([1, 0]), torch.tensor([2, 3]), torch.jagged
        )
        dense = np.arange(24.0).reshape(2, 4, 3)
        same(as_sets(gaps), [dense[0, 1:3], dense[1, :3]])
        with raises("set 1 is a nested tensor", "unbind"):
            as_sets([tensors[0], jagged])
        with raises("set 1, element 0, feature 2: nan"):
            bad = [t.clone() for t in tensors]
            bad[1][0, 2] = float("nan")
            as_sets(torch.nested.nested_tensor(bad, layout=torch.jagged))


def test_torch_dense():
    torch = pytest.importorskip("torch")
    padded = torch.arange(24.0).reshape(2, 4, 3).requires_grad_()
    same(as_sets(padded), padded.detach().numpy())
    assert shared(as_sets(padded).points, padded.detach().numpy())
    same(Sets.from_torch(padded, [[1, 2, 3, 4], [5, 6, 7, 8]]), padded.detach().numpy(), [np.arange(1, 9)])
    same(
        Sets.from_padded(padded, lengths=torch.tensor([1, 2])),
        [padded.detach().numpy()[0, :1], padded.detach().numpy()[1, :2]],
    )
    same(as_sets([padded[0], padded[1].double()]), padded.detach().numpy())
    same(as_sets([padded[0].bfloat16()]), [padded.detach().numpy()[0]])
    assert shared(Sets(padded[0], [0, 4]).points, padded.detach().numpy())
    with raises("a 2-D array is one set"):
        as_sets(padded[0])
    with raises("set 0 is 1-D"):
        as_sets([padded[0, 0]])
    with raises("complex"):
        as_sets(torch.zeros(1, 2, 3, dtype=torch.complex64))
    with raises("0 features"):
        as_sets(torch.zeros(1, 2, 0))
    with raises("set 0: this tensor", "dense"):
        as_sets([torch.eye(3).to_sparse()])
    with raises("takes a tensor, not a list", "from_list"):
        Sets.from_torch([padded[0]])


# ---- speed: only that nothing loops over elements


def test_many_sets_are_fast():
    import time

    arrays = [np.zeros((150, 2))] * 60_000
    start = time.perf_counter()
    sets = Sets.from_list(arrays)
    assert len(sets) == 60_000
    assert time.perf_counter() - start < 5  # 0.1 s on the machine it was written on


# ---- loss inside of sets


def test_detail_lost_inside_of_sets_that_lie_far_apart():
    """A country of small sites: the spread over all of them is large, and float32 still takes what makes a site."""
    rng = np.random.default_rng(0)
    places = rng.uniform([-1e6, 4e6], [1e6, 6e6], (100, 2))
    sites = [place + rng.normal(scale=1.5, size=(30, 2)) for place in places]
    for origin in (None, "auto"):
        with pytest.warns(PrecisionWarning, match="of its spread"):
            Sets.from_list(sites, origin=origin)
    with pytest.warns(PrecisionWarning, match="a centre of its own"):
        Sets.from_list([1000 * site for site in sites], origin="auto")


def test_few_points_far_away_warn_too():
    with pytest.warns(PrecisionWarning, match="origin"):
        Sets.from_list([np.array([[500_000.01, 4_500_000.01], [500_000.22, 4_500_000.32], [500_000.5, 4_500_000.9]])])


def test_streams_have_batches_of_few_sets_too():
    sizes = [len(batch) for batch in Sets.stream((np.zeros((1, 2)) for _ in range(10)), batch_sets=4)]
    assert sizes == [4, 4, 2]
    whole = Sets.from_padded(np.zeros((10, 1, 2)))
    assert [len(batch) for batch in Sets.stream([whole[:3], whole], batch_sets=4)] == [4, 4, 4, 1]
    for bad in ({"batch_sets": 0}, {"batch_points": 2.5}):
        with pytest.raises(ValueError, match="must be a whole number"):
            Sets.stream([], **bad)
    with pytest.raises(ValueError, match="iterable"):
        Sets.stream(None)
