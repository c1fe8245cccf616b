"""The kernels of the distance field against their NumPy twins, and these against the plainest possible loop."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slosh.native import kernel, kernel_numpy, scan, scan_numpy
from slosh.native.arrays import Ragged

native = pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")


def collection(sizes, dim, seed=0, weighted=False, far=0.0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = (rng.normal(size=(offsets[-1], dim)) + far).astype(np.float32)
    weights = None
    if weighted:
        weights = (rng.uniform(0.1, 2.0, offsets[-1]) * (rng.random(offsets[-1]) > 0.5)).astype(np.float32)
        weights[rng.integers(offsets[:-1], offsets[1:])] = 1.0
    return Ragged(points, offsets, weights)


def anchors_of(n, dim, seed=0, far=0.0):
    return (np.random.default_rng(seed + 1).normal(size=(n, dim)) + far).astype(np.float32)


def run(field, sets, anchors, threads=1):
    out = np.full((len(sets.offsets) - 1, len(anchors)), np.nan, np.float32)
    field(sets, anchors, out, *([threads] if field is kernel.field else []))
    return out


def plain(sets, anchors):
    rows = []
    for a, b in pairwise(sets.offsets.tolist()):
        points = sets.points[a:b].astype(np.float64)
        if sets.weights is not None:
            points = points[sets.weights[a:b] > 0]
        rows.append([min(np.linalg.norm(x - anchor) for x in points) for anchor in anchors.astype(np.float64)])
    return np.array(rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_reference_is_the_formula(weighted):
    sets, anchors = collection([1, 2, 3, 7, 30, 4], 3, weighted=weighted), anchors_of(9, 3)
    np.testing.assert_allclose(run(kernel_numpy.field, sets, anchors), plain(sets, anchors), rtol=1e-7)


def test_reference_in_blocks_of_bounded_size(monkeypatch):
    sets, anchors = collection([1, 20, 3, 300, 2, 2], 3), anchors_of(4, 3)
    whole = run(kernel_numpy.field, sets, anchors)
    monkeypatch.setattr(kernel_numpy, "TABLE_NUMBERS", 30)
    np.testing.assert_array_equal(run(kernel_numpy.field, sets, anchors), whole)


@native
@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40) | st.integers(41, 700), min_size=1, max_size=4),
    dim=st.sampled_from([1, 2, 3, 4, 7, 33, 128, 300]),
    n_anchors=st.sampled_from([1, 2, 15, 16, 17, 31, 33, 64, 65, 200]),
    weighted=st.booleans(),
    far=st.sampled_from([0.0, 1000.0]),
    seed=st.integers(0, 1000),
)
@example([1, 2, 3, 4, 5, 6, 7, 8, 9], 3, 256, False, 0.0, 0)
@example([1, 2, 3, 4, 5, 6, 7, 8, 9], 2, 256, True, 0.0, 0)
@example([20_000], 2, 40, True, 0.0, 0)
def test_kernel_equals_reference(each_kernel, sizes, dim, n_anchors, weighted, far, seed):
    """To within the rounding of differences, also of points that lie far from zero."""
    sets, anchors = collection(sizes, dim, seed, weighted, far), anchors_of(n_anchors, dim, seed, far)
    expected = run(kernel_numpy.field, sets, anchors)
    np.testing.assert_allclose(run(kernel.field, sets, anchors, threads=2), expected, rtol=(dim + 8) * 2.0**-24)


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 128])
@pytest.mark.parametrize("weighted", [False, True])
def test_same_bits_for_any_threads_batches_and_anchors(each_kernel, dim, weighted):
    sets, anchors = collection([1, 9, 16, 33, 150, 700, 3, 2, 41], dim, weighted=weighted), anchors_of(150, dim)
    whole = run(kernel.field, sets, anchors)
    for threads in (2, 5):
        np.testing.assert_array_equal(run(kernel.field, sets, anchors, threads), whole)
    for i, (a, b) in enumerate(pairwise(sets.offsets.tolist())):
        weights = None if sets.weights is None else sets.weights[a:b]
        alone = Ragged(sets.points[a:b], np.array([0, b - a]), weights)
        np.testing.assert_array_equal(run(kernel.field, alone, anchors)[0], whole[i])
        order = np.random.default_rng(i).permutation(b - a)
        mixed = Ragged(alone.points[order], alone.offsets, None if weights is None else weights[order])
        np.testing.assert_array_equal(run(kernel.field, mixed, anchors[::-1].copy())[0], whole[i, ::-1])


def test_writes_only_where_it_should(each_kernel):
    sets, anchors = collection([5, 6], 3), anchors_of(5, 3)
    wide = np.zeros((2, 100), np.float32)
    kernel.field(sets, anchors, wide[:, 40:45], 1)
    np.testing.assert_array_equal(wide[:, 40:45], run(kernel.field, sets, anchors))
    assert not wide[:, :40].any()
    assert not wide[:, 45:].any()


@native
def test_native_refuses_what_it_would_read_out_of_bounds():
    sets, anchors = collection([4, 5], 3), anchors_of(6, 3)
    out = np.zeros((2, 6), np.float32)
    for word, bad in [
        ("offsets", (sets._replace(offsets=np.array([0, 4, 10])), anchors, out)),
        ("weight", (sets._replace(weights=np.ones(3, np.float32)), anchors, out)),
        ("anchors", (sets, anchors_of(6, 2), out)),
        ("anchors", (sets, anchors[:0], out[:, :0])),
        ("out", (sets, anchors, out[:, :5])),
        ("out", (sets, anchors, out[:1])),
        ("out", (sets, anchors, np.zeros((6, 2), np.float32).T)),
    ]:
        with pytest.raises(ValueError, match=word):
            kernel.field(*bad, 1)


# -- the largest difference --------------------------------------------------------------------------------------------


def stored(n, dim, seed, short):
    vectors = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    vectors[n // 2 :] = vectors[: n - n // 2]  # equal ones are in the order of their rows
    if not short:
        return vectors, None, vectors.astype(np.float64)
    scale = (np.abs(vectors).max(axis=1) / 32767).astype(np.float32)
    whole = np.rint(vectors / scale[:, None]).astype(np.int16)
    return whole, scale, (whole * scale[:, None]).astype(np.float64)


@settings(max_examples=60)
@given(
    n=st.integers(1, 300),
    dim=st.sampled_from([1, 2, 7, 8, 31, 32, 33, 64, 100, 257]),
    n_queries=st.integers(0, 5),
    short=st.booleans(),
    filtered=st.booleans(),
    quantile=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_largest_within_is_what_numpy_finds(each_kernel, n, dim, n_queries, short, filtered, quantile, seed):
    vectors, scale, doubles = stored(n, dim, seed, short)
    rng = np.random.default_rng(seed + 1)
    queries = rng.normal(size=(n_queries, dim)).astype(np.float32)
    mask = rng.random(n) < 0.5 if filtered else None
    rows = rng.permutation(n)
    table = np.abs(queries[:, None].astype(np.float64) - doubles[None]).max(axis=2).reshape(n_queries, n)
    radii = np.quantile(table, quantile, axis=1, method="lower") if n_queries else np.empty(0)
    offsets, largest, positions = scan.largest_within(queries, vectors, scale, mask, rows, radii, 2)
    assert len(offsets) == n_queries + 1
    for i, (a, b) in enumerate(pairwise(offsets.tolist())):
        near = np.flatnonzero((table[i] <= radii[i]) & (True if mask is None else mask))
        expected = near[np.lexsort((rows[near], table[i][near]))]
        np.testing.assert_array_equal(positions[a:b], expected)
        np.testing.assert_array_equal(largest[a:b], table[i][expected])


def test_largest_within_more_vectors_than_a_part(each_kernel):
    """Several threads share them, and every one of them is found once."""
    vectors = np.random.default_rng(0).normal(size=(3000, 200)).astype(np.float32)
    queries = vectors[[5, 2999]]
    everything = scan.largest_within(queries, vectors, None, None, np.arange(3000), np.full(2, np.inf), 3)
    for a, b in pairwise(everything[0].tolist()):
        assert sorted(everything[2][a:b].tolist()) == list(range(3000))
    offsets, largest, positions = scan.largest_within(queries, vectors, None, None, np.arange(3000), np.zeros(2), 3)
    assert (offsets.tolist(), largest.tolist(), positions.tolist()) == ([0, 1, 2], [0, 0], [5, 2999])


@native
def test_native_largest_refuses_what_it_would_read_out_of_bounds():
    vectors, queries = np.zeros((4, 3), np.float32), np.zeros((2, 3), np.float32)
    one = np.ones(2)
    for word, bad in [
        ("position", (queries, vectors, None, None, np.array([4]), one)),
        ("position", (queries, vectors, None, None, np.array([-1]), one)),
        ("radius", (queries, vectors, None, None, None, one[:1])),
        ("dim", (queries[:, :2].copy(), vectors, None, None, None, one)),
        ("scale", (queries, None, vectors.astype(np.int16), None, None, one)),
    ]:
        with pytest.raises(ValueError, match=word):
            kernel.native.largest_within(*bad, 1)


def test_numpy_twin_in_blocks_of_bounded_size(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    whole = scan_numpy.largest_within(vectors[:3], vectors, None, None, np.full(3, 2.0))
    monkeypatch.setattr(scan_numpy, "DISTANCE_NUMBERS", 30)
    parts = scan_numpy.largest_within(vectors[:3], vectors, None, None, np.full(3, 2.0))
    order = np.lexsort((parts[2], parts[0]))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one[np.lexsort((whole[2], whole[0]))], other[order])
