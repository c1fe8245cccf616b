"""The columns of local shape on every kernel, against a loop over elements that knows no tree and no vector."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from slosh.native import kernel
from slosh.native.arrays import Ragged

KINDS = ("normal", "surface", "grid", "line", "plane", "equal", "few places", "far", "outlier", "tiny")


def shape(kind, n, dim, rng):
    points = rng.normal(size=(n, dim))
    if kind == "surface":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    elif kind == "grid":  # its distances are equal in the plane of the pixels, and differ by rounding here
        points = np.round(3 * points) / 28
    elif kind == "line":
        points = points[:, :1] * np.arange(1, dim + 1)
    elif kind == "plane":
        points[:, -1] = 0.3 * points[:, 0]
    elif kind == "equal":
        points[:] = 1 / 3
    elif kind == "few places":
        points = points[rng.integers(0, 3, n) % n]
    elif kind == "far":
        points += 100.0
    elif kind == "outlier":
        points[0] *= 1e6
    elif kind == "tiny":
        points *= 1e-30
    return points.astype(np.float32)


def collection(sizes, dim, kind, weighted, seed):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = np.concatenate([shape(kind, n, dim, rng) for n in sizes])
    weights = None
    if weighted:
        weights = rng.uniform(0.1, 2.0, len(points)) * (rng.random(len(points)) > 0.2)
        weights[offsets[:-1]] = 0.5
        weights = weights.astype(np.float32)
    return Ragged(points, offsets, weights)


def direction(covariance, slack):
    values, vectors = np.linalg.eigh(covariance)
    space = vectors[:, values <= values[0] + slack]
    return np.sqrt(np.diag(space @ space.T) / space.shape[1])


def plain(points, weights, sizes):
    """Return the columns of one set, and which rows hang on the last bits of a distance or of an eigenvalue."""
    x, n = points.astype(np.float64), len(points)
    size = np.abs(x).max(axis=1).mean()
    centre = np.average(x, axis=0, weights=weights)
    rows, doubtful = [], np.zeros(n, bool)
    for i in range(n):
        row = [np.linalg.norm(x[i] - centre)]
        distances = np.sqrt(((x - x[i]) ** 2).sum(axis=1))
        for k in sizes:
            last = np.sort(distances)[min(k, n) - 1]
            reach = last + size / 2**20
            near = distances <= reach
            doubtful[i] |= (np.abs(distances - reach)[distances > last] <= 1e-6 * reach).any()
            mean = np.average(x[near], axis=0, weights=weights[near])
            about = x[near] - x[i]
            covariance = np.atleast_2d(np.cov(about.T, aweights=weights[near], bias=True))
            if near.sum() == 1:
                covariance = np.zeros((x.shape[1],) * 2)
            values = np.maximum(np.linalg.eigvalsh(covariance), 0)
            slack = size / 2**20 * (np.sqrt(values[-1]) + size / 2**20)
            doubtful[i] |= (np.abs(values - values[0] - slack) <= 1e-3 * slack).any()
            row += [*np.sqrt(values[::-1]), np.linalg.norm(x[i] - mean), *direction(covariance, slack)]
        rows.append(row)
    return np.array(rows), doubtful


def columns(sets, sizes, scale=None, threads=1):
    return kernel.local_shape(sets, sizes, scale, threads)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 40), st.integers(41, 120)), min_size=1, max_size=3),
    dim=st.sampled_from([2, 3]),
    neighbors=st.sampled_from([(8, 32), (2,), (3, 4, 90), (16,), (500,)]),
    kind=st.sampled_from(KINDS),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
@example([1, 2, 3], 3, (8, 32), "normal", True, 0)
@example([33, 200], 3, (8, 32), "outlier", False, 0)
@example([150], 2, (8, 32), "grid", True, 1)
@example([150], 3, (8, 32), "line", False, 1)
def test_columns_are_those_of_a_plain_loop(each_kernel, sizes, dim, neighbors, kind, weighted, seed):
    sets = collection(sizes, dim, kind, weighted, seed)
    found = columns(sets, neighbors)
    assert found.dtype == np.float32
    assert np.array_equal(found[:, :dim], sets.points)
    for a, b in pairwise(sets.offsets):
        weights = np.ones(b - a) if sets.weights is None else sets.weights[a:b].astype(np.float64)
        there = weights > 0
        expected, doubtful = plain(sets.points[a:b][there], weights[there], neighbors)
        size = np.abs(sets.points[a:b][there]).max()
        unit = np.ones(expected.shape[1]) * size
        for s in range(len(neighbors)):
            unit[2 + s * (2 * dim + 1) + dim :][:dim] = 1.0
        error = np.abs(found[a:b, dim:][there] - expected) / np.where(unit > 0, unit, 1)
        assert error[~doubtful].max(initial=0) < 3e-6
        assert doubtful.mean() <= 0.2 or kind in ("far", "outlier")
        assert not found[a:b, dim:][~there].any()


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("kind", ["normal", "surface", "grid", "few places", "outlier", "clusters"])
def test_large_sets_find_the_same_neighbours(each_kernel, dim, kind):
    """A few elements of a set of many blocks, whose boxes are grouped; SciPy's tree finds the same."""
    rng, n = np.random.default_rng(3), 3000 if each_kernel == "numpy" else 20_000
    points = shape(kind, n, dim, rng)
    if kind == "clusters":  # ever smaller ones, so that a grid would hold most elements in one cell
        points = (points * 10.0 ** -rng.integers(0, 6, n)[:, None]).astype(np.float32)
    sets = Ragged(points, np.array([0, n]), None)
    found, x = columns(sets, (8, 32)), points.astype(np.float64)
    rounding, rows = np.abs(x).max(axis=1).mean() / 2**20, rng.choice(n, 40, replace=False)
    tree = cKDTree(x)
    for k, at in ((8, dim + 1), (32, dim + 1 + 2 * dim + 1)):
        for row in rows:
            reach = tree.query(x[row], k=k)[0][-1] + rounding
            near = tree.query_ball_point(x[row], reach)
            fewer, more = (tree.query_ball_point(x[row], reach * f) for f in (1 - 1e-6, 1 + 1e-6))
            if len(fewer) < len(more):
                continue  # hangs on the last bits of a distance
            covariance = np.cov((x[near] - x[row]).T, bias=True)
            scale = np.abs(x[near]).max()
            assert found[row, at : at + dim] ** 2 @ np.ones(dim) == pytest.approx(
                np.trace(covariance), abs=1e-6 * scale**2
            )
            assert found[row, at + dim] == pytest.approx(
                np.linalg.norm(x[near].mean(axis=0) - x[row]), abs=1e-6 * scale
            )


def test_scales_multiply_the_columns(each_kernel):
    sets = collection([50, 7], 3, "normal", True, 0)
    scale = np.random.default_rng(0).uniform(0, 2, 15)
    found, scaled = columns(sets, (8, 32)), columns(sets, (8, 32), scale)
    assert np.array_equal(scaled[:, :3], sets.points)
    np.testing.assert_allclose(scaled[:, 3:], found[:, 3:] * scale, rtol=3e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_same_bits_for_any_batching_and_threads(each_kernel, weighted):
    sets = collection([100, 1, 700, 33, 2, 64, 300], 3, "surface", weighted, 5)
    found = columns(sets, (8, 32))
    assert np.array_equal(columns(sets, (8, 32), threads=4), found)
    for a, b in pairwise(sets.offsets):
        alone = Ragged(sets.points[a:b], np.array([0, b - a]), None if sets.weights is None else sets.weights[a:b])
        assert np.array_equal(columns(alone, (8, 32)), found[a:b])


@pytest.mark.parametrize("dim", [2, 3])
def test_grids_do_not_depend_on_the_order_of_the_elements(each_kernel, dim):
    """Most neighbours on a grid are at equal distances, and are none the farther for being rounded."""
    rng = np.random.default_rng(0)
    axes = np.meshgrid(*[np.arange(9 if dim == 2 else 5)] * dim)
    points = (np.stack(axes, axis=-1).reshape(-1, dim) / 28 - 0.1).astype(np.float32)
    order = rng.permutation(len(points))
    offsets = np.array([0, len(points)])
    found, shuffled = (columns(Ragged(x, offsets, None), (8, 32)) for x in (points, points[order]))
    np.testing.assert_allclose(shuffled, found[order], atol=2e-6)
    middle = len(points) // 2  # its neighbourhoods are symmetric
    np.testing.assert_allclose(found[middle, dim + 1 :][[dim, 3 * dim + 1]], 0, atol=1e-6)
    np.testing.assert_allclose(found[middle, 2 * dim + 2 : 3 * dim + 2], dim**-0.5, atol=1e-6)


@pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")
def test_what_would_write_outside_of_an_array_is_refused():
    points, offsets = np.zeros((4, 3), np.float32), np.array([0, 4])
    out = np.zeros((4, 11), np.float32)
    good = (points, offsets, None, [8], None, out, 1)
    kernel.native.local_shape(*good)
    for place, bad, message in [
        (0, np.zeros((4, 4), np.float32), "two or three"),
        (0, np.zeros((3, 3), np.float32), "offsets"),
        (1, np.array([0, 5]), "offsets"),
        (2, np.ones(3, np.float32), "weight"),
        (3, [8, 32], "out must be"),
        (3, [], "at least one size"),
        (3, [0], "positive"),
        (3, [8, 8], "increase"),
        (4, np.ones(7), "scale"),
        (5, out[:, 1:].copy(), "out must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernel.native.local_shape(*good[:place], bad, *good[place + 1 :])
