"""The gradients of the kernel, on every instruction set and in NumPy, against finite differences of plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.native import gradient_numpy, kernel
from slosh.native.arrays import Quantiles, Ragged

native = pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")


def collection(sizes, dim, weighted, seed, kind="normal"):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = rng.normal(size=(offsets[-1], dim)).astype(np.float32)
    if kind == "ties":
        points = points.round()
    weights = None
    if weighted:
        weights = rng.uniform(0.1, 2.0, offsets[-1]).astype(np.float32)
        if weighted == "some":
            weights *= rng.random(offsets[-1]) > 0.3
            weights[offsets[:-1]] = 1.0
        if weighted == "equal":
            weights[:] = 0.5
    return Ragged(points, offsets, weights)


def directions(n_slices, dim, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n_slices, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def empty_like(sets):
    return np.full_like(sets.points, np.nan), None if sets.weights is None else np.full_like(sets.weights, np.nan)


def embed_gradient(sets, rule, grad, threads=None):
    """Run the kernel, or, without threads, its twin."""
    found = (*empty_like(sets), np.full_like(rule.directions, np.nan))
    if threads is None:
        gradient_numpy.embed_gradient(sets, rule, grad, *found)
    else:
        kernel.embed_gradient(sets, rule, grad, *found, threads)
    return [each for each in found if each is not None]


def transport_gradient(a, b, theta, grad, threads=None):
    of_a, of_b, of_theta = empty_like(a), empty_like(b), np.full_like(theta, np.nan)
    if threads is None:
        gradient_numpy.transport_gradient(a, b, theta, grad, of_a, of_b, of_theta)
    else:
        kernel.transport_gradient(a, b, theta, grad, of_a, of_b, of_theta, threads)
    return [each for each in (*of_a, *of_b, of_theta) if each is not None]


def steps(points, weights, theta):
    """The quantile function of one slice of one set: sorted values, and where each begins and ends in (0, 1]."""
    values = points @ theta
    order = sorted((i for i in range(len(values)) if weights[i] > 0), key=lambda i: (values[i], weights[i]))
    ends = np.cumsum([weights[i] for i in order]) / sum(weights)
    return [values[i] for i in order], [0.0, *ends[:-1]], ends


def plain_quantiles(points, weights, theta, n_quantiles, average):
    values, begins, ends = steps(points, weights, theta)
    found = []
    for m in range(n_quantiles):
        low, high = m / n_quantiles, (m + 1) / n_quantiles
        if average:
            parts = (max(0.0, min(high, e) - max(low, b)) * v for v, b, e in zip(values, begins, ends, strict=True))
            found.append(n_quantiles * sum(parts))
        else:
            found.append(np.interp(high, ends, values))
    return np.array(found)


def plain_transport(x, wx, y, wy, theta):
    total = 0.0
    (v, b, e), (u, c, f) = steps(x, wx, theta), steps(y, wy, theta)
    for i in range(len(v)):
        for j in range(len(u)):
            total += max(0.0, min(e[i], f[j]) - max(b[i], c[j])) * (v[i] - u[j]) ** 2
    return total


def by_differences(function, arrays, step=1e-6):
    """The gradients of a function of several float64 arrays, by central differences."""
    found = []
    for array in arrays:
        gradient = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            before = array[place]
            ends = []
            for sign in (1, -1):
                array[place] = before + sign * step
                ends.append(function())
            array[place] = before
            gradient[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(gradient)
    return found


def parts(offsets):
    return [slice(a, b) for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_quantiles", [1, 3, 8])
def test_embedding_by_finite_differences(each_kernel, average, weighted, n_quantiles):
    sets = collection([1, 2, 5, 11], 3, weighted, seed=1)
    theta = directions(5, 3)
    grad = np.random.default_rng(2).normal(size=(4, 5 * n_quantiles)).astype(np.float32)
    points, slices = sets.points.astype(np.float64), theta.astype(np.float64)
    weights = np.ones(len(points)) if sets.weights is None else sets.weights.astype(np.float64)

    def loss():
        total = 0.0
        for part, row in zip(parts(sets.offsets), grad.reshape(4, 5, -1), strict=True):
            for each, g in zip(slices, row, strict=True):
                total += 0.5 * g @ plain_quantiles(points[part], weights[part], each, n_quantiles, average)
        return total

    found = embed_gradient(sets, Quantiles(theta, None, 5, n_quantiles, average, 0.5), grad, threads=1)
    expected = by_differences(loss, [points, *([weights] if weighted else []), slices])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_transport_by_finite_differences(each_kernel, weighted):
    a, b = collection([1, 3, 6, 9], 2, weighted, seed=3), collection([4, 3, 1, 7], 2, weighted, seed=4)
    theta, grad = directions(5, 2), np.random.default_rng(2).normal(size=4)
    slices = theta.astype(np.float64)
    x, y = a.points.astype(np.float64), b.points.astype(np.float64)
    u, v = (np.ones(len(s.points)) if s.weights is None else s.weights.astype(np.float64) for s in (a, b))

    def loss():
        total = 0.0
        for g, i, j in zip(grad, parts(a.offsets), parts(b.offsets), strict=True):
            total += g * np.mean([plain_transport(x[i], u[i], y[j], v[j], each) for each in slices])
        return total

    arrays = [x, u, y, v, slices] if weighted else [x, y, slices]
    for one, other in zip(transport_gradient(a, b, theta, grad, threads=1), by_differences(loss, arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def assert_near(found, expected):
    largest = max(1.0, *(np.abs(each).max() for each in expected))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=4e-6 * largest)


WEIGHTED = [False, True, "some", "equal"]


@native
@given(
    sizes=st.lists(st.sampled_from([1, 2, 15, 16, 17, 33, 150]), min_size=1, max_size=6),
    dim=st.sampled_from([1, 2, 3, 4, 5, 9, 16, 17, 40]),
    n_slices=st.sampled_from([1, 3, 4, 5, 8, 16, 17, 21, 48]),
    n_quantiles=st.sampled_from([1, 2, 7, 16, 40]),
    average=st.booleans(),
    weighted=st.sampled_from(WEIGHTED),
    seed=st.integers(0, 100),
)
def test_embedding_on_every_kernel(sizes, dim, n_slices, n_quantiles, average, weighted, seed):
    sets, theta = collection(sizes, dim, weighted, seed), directions(n_slices, dim, seed)
    grad = np.random.default_rng(seed).normal(size=(len(sizes), n_slices * n_quantiles)).astype(np.float32)
    rule = Quantiles(theta, None, n_slices, n_quantiles, average, 0.7)
    expected = embed_gradient(sets, rule, grad)
    before = kernel.native.name()
    try:
        for name in kernel.native.names():
            kernel.native.use(name)
            assert_near(embed_gradient(sets, rule, grad, threads=2), expected)
    finally:
        kernel.native.use(before)


@native
@given(
    sizes=st.lists(st.tuples(*[st.sampled_from([1, 2, 15, 16, 17, 60])] * 2), min_size=1, max_size=5),
    dim=st.sampled_from([1, 2, 3, 5, 17]),
    n_slices=st.sampled_from([1, 4, 7, 16, 21]),
    weighted=st.tuples(*[st.sampled_from(WEIGHTED)] * 2),
    seed=st.integers(0, 100),
)
def test_transport_on_every_kernel(sizes, dim, n_slices, weighted, seed):
    a, b = (collection([pair[k] for pair in sizes], dim, weighted[k], seed + k) for k in (0, 1))
    theta, grad = directions(n_slices, dim, seed), np.random.default_rng(seed).normal(size=len(sizes))
    expected = transport_gradient(a, b, theta, grad)
    before = kernel.native.name()
    try:
        for name in kernel.native.names():
            kernel.native.use(name)
            assert_near(transport_gradient(a, b, theta, grad, threads=2), expected)
    finally:
        kernel.native.use(before)


@native
@pytest.mark.parametrize("size", [5000, 8192, 8193, 20_000, (1 << 17) + 5])
@pytest.mark.parametrize("weighted", [False, "some"])
def test_large_sets(size, weighted):
    sets, theta = collection([3, size, 20], 2, weighted, seed=5), directions(5, 2)
    grad = np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    for average in (True, False):
        rule = Quantiles(theta, None, 5, 4, average)
        assert_near(embed_gradient(sets, rule, grad, threads=2), embed_gradient(sets, rule, grad))
    other = collection([7, 50, size], 2, weighted, seed=6)
    g = np.array([1.0, -2.0, 0.5])
    assert_near(transport_gradient(sets, other, theta, g, threads=2), transport_gradient(sets, other, theta, g))


@native
@pytest.mark.parametrize("weighted", [False, True])
def test_the_bits_do_not_depend_on_the_threads(weighted):
    sizes = np.random.default_rng(0).integers(1, 300, 200)
    sets, theta = collection(sizes, 3, weighted, seed=7), directions(37, 3)
    grad = np.random.default_rng(1).normal(size=(200, 37 * 8)).astype(np.float32)
    rule = Quantiles(theta, None, 37, 8, True)
    once = embed_gradient(sets, rule, grad, threads=1)
    other = collection(sizes[::-1], 3, weighted, seed=8)
    pairs = transport_gradient(sets, other, theta, grad[:, 0].astype(np.float64), threads=1)
    for threads in (2, 5):
        for one, again in zip(once, embed_gradient(sets, rule, grad, threads=threads), strict=True):
            assert one.tobytes() == again.tobytes()
        found = transport_gradient(sets, other, theta, grad[:, 0].astype(np.float64), threads=threads)
        for one, again in zip(pairs, found, strict=True):
            assert one.tobytes() == again.tobytes()


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("weighted", [False, "some"])
def test_ties_share_the_gradient_in_some_order(each_kernel, average, weighted):
    """Which of equal elements gets what is open. What all of them get together is not, nor what others get."""
    sets, theta = collection([40, 9], 1, weighted, seed=9, kind="ties"), np.ones((1, 1), np.float32)
    grad = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    rule = Quantiles(theta, None, 1, 6, average)
    found = embed_gradient(sets, rule, grad, threads=1)[0][:, 0]
    assert found.tobytes() == embed_gradient(sets, rule, grad, threads=1)[0][:, 0].tobytes()
    points, step = sets.points.astype(np.float64), 1e-6
    weights = np.ones(len(points)) if sets.weights is None else sets.weights.astype(np.float64)
    for part, g in zip(parts(sets.offsets), grad, strict=True):
        for value in np.unique(points[part]):
            same = (points[part] == value)[:, 0]
            ends = [
                g @ plain_quantiles(points[part] + sign * step * same[:, None], weights[part], np.ones(1), 6, average)
                for sign in (1, -1)
            ]
            assert found[part][same].sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-5)


@native
def test_what_does_not_fit_is_refused():
    sets, theta = collection([3, 4], 2, False, seed=0), directions(3, 2)
    grad, out = np.zeros((2, 12), np.float32), np.zeros((7, 2), np.float32)

    def call(points=sets.points, offsets=sets.offsets, weights=None, grad=grad, of_points=out, of_weights=None):
        kernel.native.embed_gradient(
            points, offsets, weights, theta, 4, True, 1.0, grad, of_points, of_weights, None, 1
        )

    call()
    for wrong in (
        {"points": sets.points[:, :1].copy()},
        {"offsets": np.array([0, 3, 8])},
        {"weights": np.ones(6, np.float32)},
        {"grad": grad[:, 1:].copy()},
        {"of_points": out[1:].copy()},
        {"of_weights": np.ones(7, np.float32)},
    ):
        with pytest.raises(ValueError, match=r"must be|offsets|one weight"):
            call(**wrong)
    for copied in (np.asfortranarray(out), out.astype(np.float64)):  # the gradient would go to a copy
        with pytest.raises(TypeError):
            call(of_points=copied)


@native
def test_numbers_that_are_not_finite_do_no_harm(each_kernel):
    """The layer may be told not to look for them: whatever comes out, nothing outside of the arrays is touched."""
    sets, theta = collection([5, 40, 150], 3, False, seed=0), directions(7, 3)
    for bad in (np.nan, np.inf, -np.inf):
        points = sets.points.copy()
        points[::7] = bad
        rule = Quantiles(theta, None, 7, 4, True)
        with np.errstate(invalid="ignore"):
            found = embed_gradient(sets._replace(points=points), rule, np.ones((3, 28), np.float32), threads=1)
        assert found[0].shape == points.shape
