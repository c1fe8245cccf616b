"""One-sided distances against their definitions in NumPy, SciPy and POT, which share no code with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from builders import clouds
from slosh import Sets, rank
from slosh.errors import InputError
from slosh.rank import part_pairs
from slosh.rank.part_pairs import PartPairs


def single(sets, i):
    x, w = np.asarray(sets[i], np.float64), sets.weights_of(i)
    w = np.ones(len(x)) if w is None else w.astype(np.float64)
    return x[w > 0], w[w > 0]


def trimmed(values, weights, coverage):
    """Return the mean over the best share of the mass, by a walk over the sorted elements."""
    left = coverage * weights.sum()
    total, limit = 0.0, left
    for i in sorted(range(len(values)), key=values.__getitem__):
        take = min(left, weights[i])
        total, left = total + take * values[i], left - take
    return total / limit


def one_sided(x, u, y, coverage=1.0, squared=False):
    return trimmed(cdist(x, y, "sqeuclidean" if squared else "euclidean").min(axis=1), u, coverage)


def oracle(sets, i, j, direction="part", coverage=1.0, squared=False):
    (x, u), (y, v) = single(sets, i), single(sets, j)
    there, back = one_sided(x, u, y, coverage, squared), one_sided(y, v, x, coverage, squared)
    return {"part": there, "contained": back, "both": (there + back) / 2}[direction]


@st.composite
def collections(draw):
    """Draw sets of any sizes and weights, with repeated elements, near to zero or far from it."""
    dim = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 9, 31, 64, 130]))
    sizes = draw(st.lists(st.integers(1, 20) | st.integers(21, 300), min_size=2, max_size=4))
    weighted, seed = draw(st.booleans()), draw(st.integers(0, 10_000))
    far, repeat = draw(st.sampled_from([0.0, 1.0, 1e3])), draw(st.booleans())
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, dim)) * rng.uniform(0.1, 3) for n in sizes]
    if repeat:
        arrays[-1] = np.concatenate([arrays[-1], arrays[0], arrays[0][:1]])
    weights = None
    if weighted:
        weights = [rng.uniform(0.1, 1, len(x)) * (rng.random(len(x)) > 0.3) for x in arrays]
        for each in weights:
            each[rng.integers(len(each))] = 0.5
    arrays = [(x + far).astype(np.float32) for x in arrays]  # which rounds without a warning
    return Sets.from_list(arrays, weights)


@settings(max_examples=80)
@given(
    sets=collections(),
    direction=st.sampled_from(["part", "contained", "both"]),
    squared=st.booleans(),
    coverage=st.sampled_from([1.0, 0.999, 0.8, 0.5, 1 / 3, 0.01]),
)
def test_pairs_are_their_definitions(each_kernel, sets, direction, squared, coverage):
    pairs = PartPairs(sets[:2], direction, squared, coverage, n_jobs=1)
    which, index = np.divmod(np.arange(2 * len(sets)), len(sets))
    found = pairs.distances(which, sets, index)
    expected = [oracle(sets, i, j, direction, coverage, squared) for i, j in zip(which, index, strict=True)]
    # What straddles the limit of the coverage may be rounded away, so a very small distance is not exact in each digit.
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13 * (1e6 if squared else 1.0))


@settings(max_examples=40)
@given(sets=collections(), direction=st.sampled_from(["part", "contained", "both"]), squared=st.booleans())
def test_widened_distances_enclose_the_true_ones(each_kernel, sets, direction, squared):
    pairs = PartPairs(sets[:1], direction, squared, n_jobs=1)
    found = pairs.distances(np.zeros(len(sets), int), sets, np.arange(len(sets)))
    exact = [float(exact_distance(sets, j, direction, squared)) for j in range(len(sets))]
    assert (pairs.widen(found) >= exact).all()
    assert (pairs.widen(np.array(exact)) >= found).all()


def exact_distance(sets, j, direction, squared):
    """Return the distance of set 0 and set j in extended precision."""
    wide = np.longdouble

    def towards(x, u, y):
        squares = np.array([np.square(a.astype(wide) - y.astype(wide)).sum(axis=1).min() for a in x])
        values = squares if squared else np.sqrt(squares)
        return (values * u.astype(wide)).sum() / u.astype(wide).sum()

    (x, u), (y, v) = single(sets, 0), single(sets, j)
    if direction == "both":
        return (towards(x, u, y) + towards(y, v, x)) / 2
    return towards(x, u, y) if direction == "part" else towards(y, v, x)


@pytest.mark.parametrize("direction", ["part", "contained", "both"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bits_depend_on_the_two_sets_alone(each_kernel, direction, weighted, monkeypatch):
    sets = clouds([1, 5, 40, 150, 333, 700, 64], 3, weighted=weighted)
    which, index = np.divmod(np.arange(len(sets) ** 2), len(sets))
    whole = PartPairs(sets, direction, n_jobs=1).distances(which, sets, index)
    assert np.array_equal(PartPairs(sets, direction, n_jobs=3).distances(which, sets, index), whole)
    order = np.random.default_rng(0).permutation(len(which))
    mixed = PartPairs(sets, direction).distances(which[order], sets, index[order])
    assert np.array_equal(mixed, whole[order])
    for i, j in ((0, 6), (3, 4), (5, 2)):
        alone = PartPairs(sets[i : i + 1], direction).distances(np.zeros(1, int), sets[j : j + 1], np.zeros(1, int))
        assert alone[0] == whole[i * len(sets) + j]
    monkeypatch.setattr(part_pairs, "BATCH_ELEMENTS", 100)
    assert np.array_equal(PartPairs(sets, direction).distances(which, sets, index), whole)


@pytest.mark.parametrize("direction", ["part", "contained", "both"])
@pytest.mark.parametrize("coverage", [1.0, 0.6])
def test_trees_find_the_same(direction, coverage, monkeypatch):
    sets = clouds([50, 200, 150, 3], 3, weighted=True)
    which, index = np.divmod(np.arange(16), 4)
    by_kernel = PartPairs(sets, direction, coverage=coverage).distances(which, sets, index)
    monkeypatch.setattr(part_pairs, "TREE_PAIRS", 1000)
    by_tree = PartPairs(sets, direction, coverage=coverage).distances(which, sets, index)
    np.testing.assert_allclose(by_tree, by_kernel, rtol=1e-12)


def test_no_pairs_no_distances():
    sets = clouds([3, 4], 2)
    empty = np.empty(0, np.int64)
    for direction in ("part", "contained", "both"):
        assert PartPairs(sets, direction).distances(empty, sets, empty).shape == (0,)


# -- the functions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [2, 3, 40])
@pytest.mark.parametrize("coverage", [1.0, 0.7])
def test_functions_are_their_definitions(weighted, dim, coverage):
    sets = clouds([12, 1, 60, 150], dim, weighted=weighted)
    for name in ("part", "contained"):
        found = getattr(rank, name)(sets[:1], sets, coverage=coverage)
        assert found.dtype == np.float64
        expected = [oracle(sets, 0, j, name, coverage) for j in range(len(sets))]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    expected = [oracle(sets, 0, j, "both") for j in range(len(sets))]
    np.testing.assert_allclose(rank.chamfer(sets[:1], sets), expected, rtol=1e-12, atol=1e-14)


def test_a_part_is_in_the_whole_and_the_whole_not_in_the_part():
    whole = np.random.default_rng(0).normal(size=(80, 3))
    some = whole[:30]
    assert rank.part(some, [whole])[0] == 0
    assert rank.contained(whole, [some])[0] == 0
    assert rank.part(whole, [some])[0] > 0.1
    strays = np.concatenate([some, whole[:10] + 50])
    assert rank.part(strays, [whole], coverage=0.75)[0] == 0
    assert rank.part(strays, [whole], coverage=0.8)[0] > 0


def test_far_from_zero_the_digits_stay():
    rng = np.random.default_rng(0)
    for dim in (2, 3, 64, 384):
        sets = Sets.from_list([rng.normal(size=(100, dim)) * 1e-3 + 1.0 for _ in range(6)])
        found = rank.part(sets[:1], sets[1:])
        expected = [oracle(sets, 0, j) for j in range(1, len(sets))]
        np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_arguments_out_of_range_are_refused():
    x = np.zeros((2, 2))
    for coverage in (0, -1, 1.01, np.nan, "half", None, True):
        with pytest.raises(InputError, match="coverage=") as caught:
            rank.part(x, [x], coverage=coverage)
        assert caught.value.argument == "coverage"
        with pytest.raises(InputError, match="mass="):
            rank.partial_wasserstein(x, [x], mass=coverage)
    with pytest.raises(InputError, match="direction='up'"):
        PartPairs(clouds([2], 2), "up")
    for function in (rank.part, rank.contained, rank.maxsim):
        with pytest.raises(InputError, match="single"):
            function([x, x], [x])
        with pytest.raises(InputError, match="features"):
            function(np.zeros((2, 3)), [x])
        assert function(np.eye(2), clouds([2], 2)[:0]).shape == (0,)


# -- MaxSim ------------------------------------------------------------------------------------------------------------


def unit(n, dim, seed):
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@settings(max_examples=30)
@given(
    dim=st.sampled_from([2, 3, 64, 384]),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 99),
)
@example(384, (150, 150), 0)
def test_maxsim_is_the_mean_of_the_largest_products(each_kernel, dim, sizes, seed):
    x, y = unit(sizes[0], dim, seed), unit(sizes[1], dim, seed + 1)
    weights = np.random.default_rng(seed).uniform(0.1, 1, len(x))
    found = rank.maxsim(Sets.from_list([x], [weights]), [y])[0]
    assert found == pytest.approx(1 - weights @ (x @ y.T).max(axis=1) / weights.sum(), abs=3e-7)


def test_maxsim_names_the_element_that_is_not_of_unit_length():
    x, y = unit(5, 8, 0), unit(6, 8, 1)
    y[4] *= 1.1
    with pytest.raises(InputError, match=r"element 4 of set 1 has the length 1\.1") as caught:
        rank.maxsim(x, [x, y])
    assert (caught.value.set, caught.value.element) == (1, 4)
    assert "np.linalg.norm" in caught.value.remedy
    with pytest.raises(InputError, match="the query: element 0 of set 0"):
        rank.maxsim(2 * x, [x])
    rank.maxsim(x * 1.0005, [x])
    weighted = Sets.from_list([y], [[1, 1, 1, 1, 0, 1]])
    rank.maxsim(x, weighted)  # what does not count need not be of unit length
    about = Sets.from_list([x], origin=np.full(8, 0.5))
    assert rank.maxsim(about, about)[0] == pytest.approx(0, abs=1e-12)


# -- partial transport -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9, 1.0])
def test_partial_wasserstein_is_a_linear_program(weighted, mass):
    """The same minimum by SciPy's solver of linear programs."""
    pytest.importorskip("ot")
    from scipy.optimize import linprog

    sets = clouds([7, 9], 2, weighted=weighted)
    (x, u), (y, v) = single(sets, 0), single(sets, 1)
    cost = cdist(x, y, "sqeuclidean")
    rows = np.kron(np.eye(len(x)), np.ones(len(y)))
    columns = np.kron(np.ones(len(x)), np.eye(len(y)))
    limits = np.concatenate([u / u.sum(), v / v.sum()]) * (1 + 1e-12)
    found = linprog(cost.ravel(), np.concatenate([rows, columns]), limits, np.ones((1, cost.size)), [mass])
    expected = np.sqrt(found.fun / mass)
    assert rank.partial_wasserstein(sets[:1], sets[1:], mass=mass)[0] == pytest.approx(expected, rel=1e-5)


def test_partial_wasserstein_of_all_mass_is_wasserstein_and_of_a_part_of_a_set_nothing():
    pytest.importorskip("ot")
    x, y = clouds([12], 3)[0], clouds([15], 3, seed=1)[0]
    assert rank.partial_wasserstein(x, [y], mass=1)[0] == pytest.approx(rank.wasserstein(x, [y])[0])
    half = np.concatenate([x[:6], x[:6] + 30])
    assert rank.partial_wasserstein(half, [np.concatenate([x[:6], x[6:] - 30])], mass=0.5)[0] == pytest.approx(
        0, abs=1e-6
    )


# -- where a part lies -------------------------------------------------------------------------------------------------


def test_explain_part_says_which_elements_are_nearest():
    sets = clouds([40, 90], 2, weighted=True)
    found = rank.explain_part(sets[:1], sets[1:])
    weights = sets.weights_of(1)
    table = cdist(sets[0].astype(float), sets[1].astype(float))
    table[:, weights <= 0] = np.inf
    np.testing.assert_array_equal(found.nearest, table.argmin(axis=1))
    np.testing.assert_allclose(found.distances, table.min(axis=1), rtol=1e-12)
    assert found.distance == rank.part(sets[:1], sets[1:])[0]
    assert found.weights.sum() == pytest.approx(1)
    near = found.distances <= 0.3
    assert 0 < found.covered(0.3) == pytest.approx(found.weights[near].sum())
    assert found.covered(1e9) == pytest.approx(1)
    assert str(found).startswith(f"part distance {found.distance:.6g}; ")
    with pytest.raises(InputError, match="tolerance=-1"):
        found.covered(-1)


@pytest.mark.parametrize("dim", [2, 3])
def test_a_picture_of_a_part(dim, tmp_path):
    pytest.importorskip("matplotlib")
    sets = clouds([20, 60], dim)
    found = rank.explain_part(sets[:1], sets[1:])
    figure = found.plot(tmp_path / "part.png", tolerance=float(np.median(found.distances)))
    assert (tmp_path / "part.png").stat().st_size > 1000
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["y: 60 elements", "x: 20 elements", "not covered: 10 of x"]
    assert "50% within" in axes.get_title()
    assert found.plot(axes=axes) is figure
    with pytest.raises(InputError, match="2 or 3 dimensions, not 4"):
        rank.explain_part(np.zeros((1, 4)), np.zeros((1, 4))).plot()


@pytest.mark.parametrize("weighted", [False, True])
def test_what_lies_near_a_part_is_compared_in_both_directions(each_kernel, weighted):
    random = np.random.default_rng(3)
    x, ys = random.normal(size=(7, 2)), [random.normal(size=(n, 2)) for n in (1, 5, 40)] + [np.full((2, 2), 50.0)]
    u = random.integers(0, 3, 7) + 0.5
    vs = [random.integers(0, 3, len(y)) + (0.0 if len(y) > 5 else 1.0) for y in ys]
    query, sets = (Sets.from_list([x], [u]), Sets.from_list(ys, vs)) if weighted else (x, ys)
    found = rank.chamfer_nearby(query, sets, radius=0.6)
    for y, v, distance in zip(ys, vs, found, strict=True):
        u_, v_ = (u, v) if weighted else (np.ones(7), np.ones(len(y)))
        apart = np.linalg.norm(x.astype(np.float32)[:, None] - y.astype(np.float32)[None], axis=2)
        back, near = apart.min(axis=0), (apart.min(axis=0) <= 0.6) & (v_ > 0)
        there = (u_ * apart[:, v_ > 0].min(axis=1)).sum() / u_.sum()
        expected = (there + (v_ * back)[near].sum() / v_[near].sum()) / 2 if near.any() else np.inf
        assert distance == pytest.approx(expected, rel=1e-6)
    for radius in (0, -1, np.nan, "wide"):
        with pytest.raises(InputError):
            rank.chamfer_nearby(query, sets, radius=radius)
