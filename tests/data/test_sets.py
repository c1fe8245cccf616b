"""Sets: every constructor against plain Python, every error by its words, and what must not be copied."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from builders import normal_arrays, split
from comparing import raises, same
from slosh.data import precision
from slosh.data.sets import Sets, as_sets, one_set
from slosh.errors import InputError

shared = np.shares_memory


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
    arrays = normal_arrays(*sizes, dim=3)
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
    monkeypatch.setattr(precision, "CHECKED_AT_ONCE", 64)
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
    with raises("set 77, element 7, feature 1 is inf"):
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
    monkeypatch.setattr(precision, "CHECKED_AT_ONCE", 20)
    for sizes in ([1, 2, 30, 1, 1, 9, 1, 12, 3], [25], [3, 3, 3, 3, 3], [10, 10, 1]):
        arrays = normal_arrays(*sizes, dtype=np.float64)
        same(Sets.from_list(arrays), arrays)
        shifted = Sets.from_list(arrays, origin=[1, -2])
        same(shifted, [x - [1, -2] for x in arrays])
        for i, x in enumerate(arrays):
            broken = [y.copy() for y in arrays]
            broken[i][len(x) - 1, 1] = np.nan
            with raises(f"set {i}, element {len(x) - 1}, feature 1 is nan"):
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
    return [*normal_arrays(*[3] * at), bad]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.empty((0, 2)), ["set 2 is empty", "drop it", "give it a point"]),
        ([], ["set 2 is empty", "drop it"]),
        (np.zeros((3, 5)), ["set 2 has 5 features, the others have 2"]),
        (np.zeros((3, 0)), ["set 2 has 0 features", "d > 0"]),
        ([[0, 0], [np.nan, 0]], ["set 2, element 1, feature 0 is nan", "drop the element"]),
        ([[0, 0], [0, -np.inf]], ["set 2, element 1, feature 1 is -inf", "drop the element"]),
        (np.float16([[0, 0], [0, np.inf]]), ["set 2, element 1, feature 1 is inf", "drop the element"]),
        ([[0, 0], [0, 1e300]], ["set 2, element 1, feature 1 is 1e+300, beyond 1e+15", "scale"]),
        (np.zeros(4), ["set 2 is 1-D", "4 numbers", "(N, 1)", "x[:, None]"]),
        ([1, 2], ["set 2 is 1-D", "x[:, None]"]),
        (np.zeros((1, 2, 2)), ["set 2 is 3-D", "(1, 2, 2)", "reshape"]),
        ([[1, 2], [3, 4], [5, 6, 7]], ["row 2 has 3 numbers, row 0 has 2", "same features"]),
        ([[1, 2], 3], ["set 2 must be of shape (N, d)", "numbers and rows mixed"]),
        (np.array([[1, None]], object), ["set 2 must be numbers, not of dtype object", "astype(float)"]),
        (np.array([["a", "b"]]), ["set 2 must be numbers, not of dtype <U1", "float"]),
        (np.zeros((1, 2), "M8[s]"), ["set 2 must be numbers, not of dtype datetime64", "float"]),
        (np.zeros((1, 2), complex), ["set 2 must be real numbers, not complex", "x.real, x.imag"]),
        (np.ma.array([[1, 2]], mask=[[0, 1]]), ["set 2 must be a plain array", "drop the masked elements"]),
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
    arrays = normal_arrays(1, 1, 1)
    arrays[0] = np.zeros((1, 3))
    with raises("set 0 has 3 features, the others have 2"):
        as_sets(arrays)
    with raises("set 1 has 2 features, expected 3"):
        as_sets(arrays, dim=3)
    for data in (normal_arrays(1, 2, dim=3), np.zeros((1, 1, 3)), Sets([[1, 2, 3]], [0, 1])):
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
    with raises(f"set {i}, element {row - [0, 3, 4, 8][i]}, feature {feature} is {value}"):
        Sets(points, [0, 3, 4, 8, 10])


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (np.zeros(4), ["(P, d)", "(4,)", "x[:, None]"]),
        (np.zeros((4, 0)), ["(P, d)", "(4, 0)"]),
        ([[1, 2], [3]], ["points must have rows of one length, but row 1 has 1 numbers, row 0 has 2"]),
        (np.zeros((4, 2), complex), ["points must be real numbers, not complex"]),
        (np.zeros((4, 2), object), ["points must be numbers, not of dtype object"]),
        (np.ma.zeros((4, 2)), ["points must be a plain array, not a masked"]),
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
        ([0, 0, 1, 1, 1], ["set 0 has weights that are all zero", "drop the set"]),
        ([1, 1, 0, 0, 0], ["set 1 has weights that are all zero", "drop the set"]),
        ([1, 1, 0, 1e-60, 0], ["set 1 has weights that are all zero", "too small for float32", "divide"]),
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
    arrays = normal_arrays(2, 3)
    with raises("shape (4,), points have 5 rows"):
        Sets(np.zeros((5, 2)), [0, 2, 5], np.ones(4))
    with raises("set 1 has 2 weights, 3 elements"):
        Sets.from_list(arrays, [[1, 1], [1, 1]])
    with raises("weights are of 1 sets", "2 sets"):
        Sets.from_list(arrays, [[1, 1]])
    with raises("the weights of set 0 must be 1-D, not 0-D", "(N,)"):
        Sets.from_list(arrays, np.ones(5))
    with raises("the weights of set 1 must be 1-D, not 2-D", "(N,)"):
        Sets.from_list(arrays, [np.ones(2), np.ones((3, 1))])
    with raises("the weights of set 1 must be numbers, not of dtype <U1"):
        Sets.from_list(arrays, [[1, 1], ["a", "b", "c"]])
    with raises("weights must be numbers, not of dtype object"):
        Sets(np.zeros((1, 2)), [0, 1], [None])


def test_bad_weights_are_found_block_by_block(monkeypatch):
    monkeypatch.setattr("slosh.data.checks.CHECKED_AT_ONCE", 16)
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
    with raises("set 1, element 2, feature 0 is nan"):
        Sets.from_padded(bad)


# ---- as_sets


def test_as_sets_takes_collections(sets):
    arrays = split(sets)
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
        (np.array([1, None]), ["set 0 is an int"]),
        (np.array(["a", "b"]), ["dtype <U1"]),
        (np.ma.zeros((1, 2, 3)), ["masked"]),
        (np.zeros((1, 2, 3), complex), ["complex"]),
        (np.float64(3), ["a 0-D array"]),
        ("points", ["a str is not a collection", "list of (N, d) arrays"]),
        (b"points", ["a bytes is not a collection"]),
        ({"a": [[1, 2]]}, ["a dict is not a collection"]),
        (None, ["None is not a collection"]),
        (3, ["an int is not a collection"]),
        (iter([np.zeros((1, 2))]), ["list(x)", "Sets.stream"]),
        ((x for x in [np.zeros((1, 2))]), ["a generator", "Sets.stream"]),
        ([1.0, 2.0], ["set 0 is a float"]),
        ([[1.0, 2.0], [3.0, 4.0]], ["set 0 is 1-D", "x[:, None]", "pass [x]"]),
    ],
)
def test_as_sets_refuses(data, words):
    with raises(*words):
        as_sets(data)


# ---- speed: only that nothing loops over elements


def test_many_sets():
    assert len(Sets.from_list([np.zeros((150, 2))] * 60_000)) == 60_000


# ---- the fields of errors


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (lambda: Sets.from_list([[[0, 1]], [[2, 3], [np.nan, 4]]]), {"set": 1, "element": 1, "feature": 0}),
        (lambda: Sets.from_list([[[0, 1]], []]), {"set": 1, "what": "is empty"}),
        (lambda: Sets.from_list([[[0, 1]], [[1, 2, 3]], [[4, 5]]]), {"set": 1}),
        (lambda: Sets.from_list([[[0, 1]], [3]]), {"set": 1, "what": "is 1-D, of 1 numbers"}),
        (lambda: Sets.from_list([[[0, 1]]], [["a"]]), {"set": 0, "argument": "weights"}),
        (lambda: Sets([[0], [1]], [0, 2], [1, -1]), {"set": 0, "element": 1, "argument": "weights"}),
        (lambda: Sets([[0]], [1]), {"argument": "offsets"}),
        (lambda: Sets([["a"]], [0, 1]), {"argument": "points"}),
        (lambda: as_sets([]), {"argument": "dim"}),
        (lambda: as_sets([[[0]]], origin=[1, 2]), {"argument": "origin"}),
        (lambda: as_sets(Sets([[0]], [0, 1]), origin=[1]), {"argument": "origin"}),
        (lambda: list(Sets.stream([[[0]], [[1]], [[np.inf]]], 1)), {"set": 2, "element": 0, "feature": 0}),
        (lambda: list(Sets.stream([], batch_sets=0)), {"argument": "batch_sets"}),
    ],
)
def test_errors_have_fields(made, fields):
    with pytest.raises(InputError) as caught:
        made()
    assert {name: getattr(caught.value, name) for name in fields} == fields


def test_what_is_checked_is_not_looked_at_again(sets):
    assert as_sets(sets) is sets
    assert as_sets(sets, dim=2, origin=None) is sets
    moved = sets.with_origin([1, 2])
    assert as_sets(moved, dim=2, origin=moved.origin) is moved
    sets.points[0, 0] = np.nan  # nobody should; but nothing reads the points to find out
    assert as_sets(sets, dim=2) is sets


# ---- one set


@pytest.mark.parametrize(
    "one",
    [
        np.arange(6, dtype=np.float32).reshape(3, 2),
        np.arange(6, dtype=np.float64).reshape(3, 2) / 3,
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.arange(6).reshape(3, 2),
        [[0, 1], [2, 3.5]],
        Sets([[0, 1], [2, 3], [4, 5]], [0, 1, 3], [1, 2, 3])[1],
        Sets([[0, 1], [2, 3], [4, 5]], [0, 1, 3], origin=[1, 2])[1],
    ],
)
def test_one_set_is_a_list_of_one(one):
    origin = getattr(one, "origin", None)
    alone, listed = one_set(one, dim=2, origin=origin), Sets.from_list([one], dim=2, origin=origin)
    assert np.array_equal(alone.points, listed.points)
    assert alone.points.dtype == np.float32
    assert alone.offsets.tolist() == listed.offsets.tolist() == [0, len(one)]
    assert (alone.weights is None) == (listed.weights is None)
    assert alone.weights is None or alone.weights.tolist() == listed.weights.tolist()
    assert np.array_equal(alone.origin, listed.origin)


def test_one_set_of_float32_is_not_copied_and_an_origin_is_subtracted():
    one = np.ones((3, 2), np.float32)
    assert one_set(one, dim=2).points is one
    assert one_set(one, dim=2, origin=[1, 2]).points.tolist() == [[0, -1]] * 3


@pytest.mark.parametrize(
    "wrong", [np.ones((3, 3)), np.ones(3), np.empty((0, 2)), [[1, 2], [3]], [[1, np.nan]], [["a", "b"]], 3, [[1, 1e16]]]
)
def test_one_set_is_refused_in_the_words_of_a_list(wrong):
    with pytest.raises(InputError) as listed:
        Sets.from_list([wrong], dim=2)
    with pytest.raises(InputError) as alone:
        one_set(wrong, dim=2)
    assert str(alone.value) == str(listed.value)
    assert vars(alone.value) == vars(listed.value)
