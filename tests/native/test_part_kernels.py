"""The kernels of part search on every instruction set, against SciPy and NumPy in float64, which share no code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from slosh.native import kernel, parts, parts_numpy
from slosh.native.arrays import Ragged

native = pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")


def collection(sizes, dim, seed=0, weighted=False, far=0.0, scale=1.0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = (scale * rng.normal(size=(offsets[-1], dim)) + far).astype(np.float32)
    weights = None
    if weighted:
        weights = (rng.uniform(0.1, 2.0, offsets[-1]) * (rng.random(offsets[-1]) > 0.5)).astype(np.float32)
        weights[rng.integers(offsets[:-1], offsets[1:])] = 1.0
    return Ragged(points, offsets, weights)


def elements(sets, i):
    """Return the elements of a set in float64, and which of them have a weight."""
    part = slice(sets.offsets[i], sets.offsets[i + 1])
    points = sets.points[part].astype(np.float64)
    return points, np.ones(len(points), bool) if sets.weights is None else sets.weights[part] > 0


def table_of(x, y, i, j):
    """Return the squared distances of all elements, infinite where one of y does not count."""
    (a, _), (b, counts) = elements(x, i), elements(y, j)
    table = np.stack([np.square(b - each).sum(axis=1) for each in a])
    table[:, ~counts] = np.inf
    return table


# -- nearest elements --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    sizes=st.tuples(*[st.integers(1, 40) | st.integers(41, 700)] * 3),
    dim=st.sampled_from([1, 2, 3, 4, 7, 8, 33, 128, 256, 300, 512]),
    weighted=st.booleans(),
    far=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    scale=st.sampled_from([1.0, 1e-25, 1e-12, 1e9]),
    seed=st.integers(0, 1000),
)
@example((150, 150, 150), 384, False, 0.0, 1.0, 0)
@example((20_000, 1, 33), 2, True, 0.0, 1.0, 0)
@example((1, 20_000, 500), 2, True, 0.0, 1.0, 0)
def test_nearest_elements_are_what_numpy_finds(each_kernel, sizes, dim, weighted, far, scale, seed):
    """To the last digits of float64, also of points far from zero, tiny ones, and huge ones."""
    if dim * max(sizes) ** 2 > 1 << 24 and each_kernel == "numpy":
        sizes = tuple(min(size, 50) for size in sizes)
    x = collection(sizes, dim, seed, weighted, far * scale, scale)
    y = collection(sizes[::-1], dim, seed + 1, weighted, far * scale, scale)
    pairs = np.array([[0, 1], [0, 2], [1, 0], [2, 2], [2, 0], [0, 1]])
    squares, which, starts = parts.nearest_elements(x, y, pairs, 2)
    assert starts[-1] == len(squares) == len(which)
    for k, (i, j) in enumerate(pairs):
        found, index = squares[starts[k] : starts[k + 1]], which[starts[k] : starts[k + 1]]
        points, others = elements(x, i)[0], elements(y, j)[0]
        assert elements(y, j)[1][index].all()
        np.testing.assert_allclose(found, np.square(points - others[index]).sum(axis=1), rtol=1e-12)
        if len(points) * len(others) * dim < 1 << 24:
            np.testing.assert_allclose(found, table_of(x, y, i, j).min(axis=1), rtol=1e-12)


@pytest.mark.parametrize("dim", [2, 40])
def test_of_equal_elements_the_first_is_named(each_kernel, dim):
    """Also of thousands of them, all of which may be the nearest."""
    rng = np.random.default_rng(0)
    few = rng.normal(size=(5, dim)).astype(np.float32)
    y = Ragged(np.concatenate([few[rng.integers(1, 5, 900)], few]), np.array([0, 905]), None)
    x = Ragged(np.concatenate([few, few + 1e-3]).astype(np.float32), np.array([0, 10]), None)
    squares, which, _ = parts.nearest_elements(x, y, np.zeros((1, 2), np.int64), 1)
    table = table_of(x, y, 0, 0)
    np.testing.assert_array_equal(which, table.argmin(axis=1))
    np.testing.assert_array_equal(squares[:5], 0)


def test_a_distant_element_hides_no_near_one(each_kernel):
    """Products with a very long vector are rounded coarsely; those of the others are not."""
    rng = np.random.default_rng(0)
    for dim in (3, 64):
        near = rng.normal(size=(200, dim)).astype(np.float32)
        y = Ragged(np.concatenate([near, near[:3] * 1e7]), np.array([0, 203]), None)
        x = Ragged((near[:100] + rng.normal(size=(100, dim)) * 0.01).astype(np.float32), np.array([0, 100]), None)
        squares, which, _ = parts.nearest_elements(x, y, np.zeros((1, 2), np.int64), 1)
        table = table_of(x, y, 0, 0)
        np.testing.assert_array_equal(which, table.argmin(axis=1))
        np.testing.assert_allclose(squares, table.min(axis=1), rtol=1e-12)


@native
def test_native_refuses_what_it_would_read_out_of_bounds():
    x, y = collection([4, 5], 3), collection([2, 3], 3)
    pairs, starts = np.array([[0, 1], [1, 0]]), np.array([0, 4, 9])
    squares, which = np.empty(9), np.empty(9, np.int64)
    good = [x.points, x.offsets, y.points, y.offsets, None, pairs, starts, squares, which]
    kernel.native.nearest_elements(*good, 1)
    for word, place, bad in [
        ("offsets", 1, np.array([0, 4, 10])),
        ("features", 2, np.zeros((5, 2), np.float32)),
        ("weight", 4, np.ones(3, np.float32)),
        ("set that is not there", 5, np.array([[0, 2], [1, 0]])),
        ("set that is not there", 5, np.array([[0, 1], [-1, 0]])),
        ("starts", 6, np.array([0, 5, 9])),
        ("starts", 6, np.array([0, 4])),
        ("squares", 7, np.empty(8)),
        ("squares", 8, np.empty(10, np.int64)),
    ]:
        arguments = list(good)
        arguments[place] = bad
        with pytest.raises(ValueError, match=word):
            kernel.native.nearest_elements(*arguments, 1)
    means = [squares, starts, np.array([0, 1]), x.offsets, None, 1.0, False, np.empty(2)]
    kernel.native.covered_means(*means)
    for word, place, bad in [
        ("starts", 1, np.array([0, 4, 8])),
        ("set that is not there", 2, np.array([0, 2])),
        ("starts", 2, np.array([1, 0])),
        ("weight", 4, np.ones(3, np.float32)),
        ("coverage", 5, 0.0),
        ("result", 7, np.empty(3)),
    ]:
        arguments = list(means)
        arguments[place] = bad
        with pytest.raises(ValueError, match=word):
            kernel.native.covered_means(*arguments)


def test_numpy_twin_in_blocks_of_bounded_size(monkeypatch):
    x, y = collection([30, 5], 3, weighted=True), collection([20, 7], 3, 1, weighted=True)
    pairs = np.array([[0, 1], [1, 0]])
    monkeypatch.setattr(kernel, "native", None)
    monkeypatch.setattr(kernel, "is_compiled", lambda: False)
    whole = parts.nearest_elements(x, y, pairs, 1)
    monkeypatch.setattr(parts_numpy, "TABLE_NUMBERS", 50)
    for one, other in zip(whole, parts.nearest_elements(x, y, pairs, 1), strict=True):
        np.testing.assert_array_equal(one, other)


# -- nearest anchors ---------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    n=st.integers(1, 70),
    n_anchors=st.sampled_from([1, 2, 11, 12, 13, 64, 251, 252, 253, 600]),
    n_near=st.integers(1, 12),
    dim=st.sampled_from([1, 2, 3, 8, 64, 256, 384]),
    far=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 1000),
)
def test_nearest_anchors_are_the_nearest(each_kernel, n, n_anchors, n_near, dim, far, seed):
    rng = np.random.default_rng(seed)
    points, anchors = (rng.normal(size=(size, dim)).astype(np.float32) + np.float32(far) for size in (n, n_anchors))
    n_near = min(n_near, n_anchors)
    ids, distances = parts.nearest_anchors(points, anchors, n_near, 2)
    table = cdist(points.astype(np.float64), anchors.astype(np.float64))
    np.testing.assert_allclose(distances, np.take_along_axis(table, ids.astype(np.int64), axis=1), rtol=1e-12)
    assert (np.diff(distances, axis=1) >= 0).all()
    assert all(len(set(row)) == n_near for row in ids.tolist())
    # An anchor that float32 cannot tell from a nearer one may stand in its place.
    np.testing.assert_allclose(distances, np.sort(table, axis=1)[:, :n_near], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [3, 64])
def test_anchors_of_a_point_do_not_depend_on_the_others(each_kernel, dim):
    rng = np.random.default_rng(0)
    points, anchors = rng.normal(size=(100, dim)).astype(np.float32), rng.normal(size=(300, dim)).astype(np.float32)
    ids, distances = parts.nearest_anchors(points, anchors, 8, 1)
    for some in (slice(0, 1), slice(31, 37), slice(5, 100)):
        for threads in (1, 3):
            found = parts.nearest_anchors(points[some].copy(), anchors, 8, threads)
            np.testing.assert_array_equal(found[0], ids[some])
            np.testing.assert_array_equal(found[1], distances[some])


# -- bounds from fields ------------------------------------------------------------------------------------------------


def trimmed(values, weights, coverage):
    """Return the mean over the best share of the mass, by a walk over the sorted elements."""
    left = limit = coverage * weights.sum()
    total = 0.0
    for i in np.argsort(values, kind="stable"):
        take = min(left, weights[i])
        total, left = total + take * values[i], left - take
    return total / limit


def coded(fields, step):
    return np.minimum(fields / step, 255).astype(np.uint8)


@st.composite
def questions(draw):
    """Draw stored sets, anchors and queries, as the index has them."""
    dim, seed = draw(st.sampled_from([1, 2, 3, 16])), draw(st.integers(0, 1000))
    n_sets, n_anchors = (
        draw(st.sampled_from([1, 5, 16, 63, 64, 65, 150])),
        draw(st.sampled_from([1, 7, 16, 17, 40, 100])),
    )
    sizes = draw(st.lists(st.sampled_from([1, 3, 16, 30, 300]), min_size=1, max_size=3))
    rng = np.random.default_rng(seed)
    anchors = rng.normal(size=(n_anchors, dim))
    stored = [rng.normal(size=(rng.integers(1, 12), dim)) * rng.uniform(0.2, 3) for _ in range(n_sets)]
    queries = [rng.normal(size=(n, dim)) * rng.uniform(0.2, 2) for n in sizes]
    weights = None
    if draw(st.booleans()):
        scale = draw(st.sampled_from([1.0, 1e-30, 1e30]))
        weights = [scale * rng.uniform(0.01, 1, n) * (rng.random(n) > 0.3) + scale * (np.arange(n) == 0) for n in sizes]
    n_near = min(n_anchors, draw(st.sampled_from([1, 2, 8])))
    step = draw(st.sampled_from([0.003, 0.02, 0.3]))
    rows = draw(st.sampled_from([None, "some"]))
    return anchors, stored, queries, weights, n_near, step, None if rows is None else rng.integers(0, n_sets, 9)


@settings(max_examples=80)
@given(asked=questions(), coverage=st.sampled_from([1.0, 0.9, 0.5, 0.05]), squared=st.booleans())
def test_field_bounds_are_bounds(each_kernel, asked, coverage, squared):
    anchors, stored, queries, weights, n_near, step, rows = asked
    fields = np.array([cdist(anchors, each).min(axis=1) for each in stored])
    codes = coded(fields, step)
    elements, sizes = np.concatenate(queries), [len(q) for q in queries]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    table = cdist(elements, anchors)
    ids = np.argsort(table, axis=1)[:, :n_near].astype(np.int32)
    away = np.take_along_axis(table, ids.astype(np.int64), axis=1) + 1e-12
    flat = None if weights is None else np.concatenate(weights).astype(np.float32)
    lower, upper = parts.field_bounds(codes, step, ids, away, offsets, flat, coverage, squared, rows=rows, threads=2)
    chosen = range(len(stored)) if rows is None else rows
    assert lower.shape == upper.shape == (len(queries), len(chosen))
    low_steps = np.maximum(codes[:, ids].astype(float) - np.ceil(away / step), 0).max(axis=2)
    for q, query in enumerate(queries):
        part = slice(offsets[q], offsets[q + 1])
        mass = np.ones(len(query)) if flat is None else flat[part].astype(np.float64)
        for s, row in enumerate(chosen):
            nearest = cdist(query, stored[row]).min(axis=1)
            exact = trimmed(nearest**2 if squared else nearest, mass, coverage)
            assert lower[q, s] <= exact <= upper[q, s]
            # And they are no looser than the rounding to whole steps makes them.
            steps = step * np.minimum(low_steps[row, part], 255)
            expected = trimmed(steps**2 if squared else steps, mass, coverage)
            assert lower[q, s] == pytest.approx(expected, rel=1e-4, abs=1e-9)


@settings(max_examples=40)
@given(asked=questions(), coverage=st.sampled_from([1.0, 0.7]), squared=st.booleans())
def test_bounds_of_the_kernels_are_those_of_numpy(each_kernel, asked, coverage, squared):
    anchors, stored, queries, weights, n_near, step, rows = asked
    rng = np.random.default_rng(len(stored))
    codes = rng.integers(0, 256, (len(stored), len(anchors))).astype(np.uint8)
    offsets = np.concatenate([[0], np.cumsum([len(q) for q in queries])]).astype(np.int64)
    ids = rng.integers(0, len(anchors), (offsets[-1], n_near)).astype(np.int32)
    away = rng.uniform(0, 300 * step, ids.shape)
    flat = None if weights is None else np.concatenate(weights).astype(np.float32)
    found = parts.field_bounds(codes, step, ids, away, offsets, flat, coverage, squared, rows=rows, threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "is_compiled", lambda: False)
        patch.setattr(parts_numpy, "TABLE_NUMBERS", 200)
        expected = parts.field_bounds(codes, step, ids, away, offsets, flat, coverage, squared, rows=rows)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-5, atol=1e-12)


@settings(max_examples=40)
@given(
    n_sets=st.sampled_from([1, 5, 64, 130]),
    n_anchors=st.sampled_from([1, 3, 15, 16, 64, 65, 200]),
    n_queries=st.integers(0, 5),
    filtered=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_histogram_bounds_are_bounds(each_kernel, n_sets, n_anchors, n_queries, filtered, seed):
    rng = np.random.default_rng(seed)
    anchors = rng.normal(size=(n_anchors, 3))
    stored = [rng.normal(size=(rng.integers(1, 60), 3)) for _ in range(n_sets)]
    queries = [rng.normal(size=(rng.integers(1, 20), 3)) * 2 for _ in range(n_queries)]
    scale, shares, slack = 1 / 255, np.empty((n_sets, n_anchors)), np.empty(n_sets)
    for i, each in enumerate(stored):
        table = cdist(each, anchors)
        shares[i] = np.bincount(table.argmin(axis=1), minlength=n_anchors) / len(each)
        slack[i] = table.min(axis=1).mean()
    codes = np.floor(shares / scale).astype(np.uint8)
    fields = np.array([cdist(anchors, q).min(axis=1) for q in queries]).reshape(n_queries, n_anchors)
    rows = rng.integers(0, n_sets, 7) if filtered else None
    fields = np.nextafter(fields.astype(np.float32), np.float32(0))
    found = parts.histogram_bounds(codes, scale, slack, fields, rows=rows, threads=2)
    chosen = np.arange(n_sets) if rows is None else rows
    assert found.shape == (n_queries, len(chosen))
    expected = np.maximum(fields.astype(float) @ codes[chosen].T * scale - slack[chosen], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5)
    assert (found <= expected).all()
    for q, query in enumerate(queries):
        for s, row in enumerate(chosen):
            assert 0 <= found[q, s] <= cdist(stored[row], query).min(axis=1).mean()


def test_same_bounds_for_any_threads_and_batches(each_kernel):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (500, 70)).astype(np.uint8)
    offsets, weights = np.array([0, 40, 41, 700]), rng.uniform(0.1, 1, 700).astype(np.float32)
    ids, away = rng.integers(0, 70, (700, 8)).astype(np.int32), rng.uniform(0, 1, (700, 8))
    fields = rng.random((3, 70)).astype(np.float32)
    products = parts.histogram_bounds(codes, 1 / 255, np.zeros(500), fields)
    np.testing.assert_array_equal(parts.histogram_bounds(codes, 1 / 255, np.zeros(500), fields, threads=3), products)
    for coverage in (1.0, 0.6):
        whole = parts.field_bounds(codes, 0.01, ids, away, offsets, weights, coverage)
        again = parts.field_bounds(codes, 0.01, ids, away, offsets, weights, coverage, threads=3)
        rows = np.arange(500)[::-3].copy()
        last = slice(41, 700)
        alone = parts.field_bounds(
            codes, 0.01, ids[last], away[last], np.array([0, 659]), weights[last], coverage, rows=rows
        )
        for one, two, three in zip(whole, again, alone, strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one[2, rows], three[0])


@native
def test_native_bounds_refuse_what_they_would_read_out_of_bounds():
    codes, near, away = np.zeros((4, 6), np.uint8), np.zeros((5, 2), np.int32), np.zeros((5, 2), np.uint8)
    ones, two, table = np.ones(5, np.float32), np.ones(2), np.empty((2, 4))
    good = [codes, None, near, away, np.array([0, 3, 5]), ones, None, False, two, two, table, table.copy()]
    kernel.native.field_bounds(*good, 1)
    for word, place, bad in [
        ("row that is not there", 1, np.array([0, 1, 2, 4])),
        ("row that is not there", 1, np.array([0, 1, 2, -1])),
        ("anchor that is not there", 2, near + np.int32(6)),
        ("anchor that is not there", 2, near - np.int32(1)),
        ("row an element", 3, away[:4]),
        ("offsets", 4, np.array([0, 3, 6])),
        ("row an element", 5, ones[:4]),
        ("limit", 6, two[:1]),
        ("scale", 8, two[:1]),
        ("scale", 9, two[:1]),
        ("lower", 10, table[:, :3].copy()),
        ("lower", 11, table[:1]),
    ]:
        arguments = list(good)
        arguments[place] = bad
        with pytest.raises(ValueError, match=word):
            kernel.native.field_bounds(*arguments, 1)
    fields = np.zeros((2, 6), np.float32)
    for word, arguments in [
        ("row that is not there", (codes, np.array([4]), fields, np.empty((2, 1)))),
        ("anchors", (codes, None, fields[:, :5].copy(), table)),
        ("out", (codes, None, fields, table[:1])),
    ]:
        with pytest.raises(ValueError, match=word):
            kernel.native.histogram_products(*arguments, 1)
    points, anchors = np.zeros((3, 2), np.float32), np.zeros((4, 2), np.float32)
    for word, arguments in [
        ("features", (points, np.zeros((4, 3), np.float32), np.empty((3, 2), np.int32), np.empty((3, 2)))),
        ("as many anchors", (points, anchors, np.empty((3, 5), np.int32), np.empty((3, 5)))),
        ("as many anchors", (points, anchors, np.empty((3, 0), np.int32), np.empty((3, 0)))),
        ("ids", (points, anchors, np.empty((2, 2), np.int32), np.empty((3, 2)))),
        ("ids", (points, anchors, np.empty((3, 2), np.int32), np.empty((3, 1)))),
    ]:
        with pytest.raises(ValueError, match=word):
            kernel.native.nearest_anchors(*arguments, 1)
