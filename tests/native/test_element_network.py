"""The network over elements on every kernel, against plain float64 sums over all pairs of elements."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slosh.native import kernel
from slosh.native.arrays import ElementLayer, Ragged
from slosh.native.element_network import check_layers, element_network

KINDS = ("normal", "surface", "grid", "equal", "few places", "outlier", "tiny", "corners")


def shape(kind, n, dim, rng):
    points = rng.normal(size=(n, dim))
    if kind == "surface":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    elif kind == "grid":  # its distances are equal in the plane of the pixels, and differ by rounding here
        points = np.round(3 * points) / 28
    elif kind == "equal":
        points[:] = 1 / 3
    elif kind == "few places":
        points = points[rng.integers(0, 3, n) % n]
    elif kind == "outlier":
        points[0] *= 1e6
    elif kind == "tiny":
        points *= 1e-30
    elif kind == "corners":  # of a cube: whole numbers, whose distances are equal without rounding
        points = rng.integers(0, 2, (n, dim))
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


def network(n_inputs, widths, seed, every=True):
    """Return layers of random numbers; unless `every`, each second one has no neighbours."""
    rng, layers = np.random.default_rng(seed), []
    for number, n_outputs in enumerate(widths):
        own, neighbors = rng.normal(size=(2, n_outputs, n_inputs)).astype(np.float32) / np.float32(np.sqrt(n_inputs))
        scale, shift = rng.normal(size=(2, n_outputs)).astype(np.float32)
        layers.append(ElementLayer(own, neighbors if every or number % 2 == 0 else None, scale, shift))
        n_inputs = n_outputs
    return layers


def numbers(sets, n_inputs, seed):
    return np.random.default_rng(seed).normal(size=(len(sets.points), n_inputs)).astype(np.float32)


def neighborhoods(points, k):
    """Return who is a neighbour of whom, (n, n), and which rows hang on the last bits of a distance."""
    x, n = points.astype(np.float64), len(points)
    rounding = np.abs(x).max(axis=1).mean() / 2**20
    distances = np.sqrt(((x[:, None] - x) ** 2).sum(axis=2))
    last = np.sort(distances, axis=1)[:, min(k, n) - 1 : min(k, n)]
    reach = last + rounding
    doubtful = (distances > last) & is_doubtful(distances, reach)
    return distances <= reach, doubtful.any(axis=1)


def is_doubtful(distances, reach):
    """Squares are compared in float32, and what is as far but for their rounding counts as near."""
    return (distances > reach * (1 - 3e-7)) & (distances < reach * (1 + 8e-7))


def plain(points, inputs, k, layers, slope):
    """Return the outputs of one set, and which rows hang on the last bits of a distance in any layer."""
    near, doubtful = neighborhoods(points, k)
    h, outputs, rows = inputs.astype(np.float64), [], doubtful.copy()
    for layer in layers:
        z = h @ layer.own.T.astype(np.float64)
        if layer.neighbors is not None:
            spread = h @ layer.neighbors.T.astype(np.float64)
            z += np.array([spread[members].max(axis=0) for members in near])
            rows = doubtful | (near @ rows)
        z = z * layer.scale + layer.shift
        h = np.where(z > 0, z, slope * z)
        outputs.append(h)
    return np.concatenate(outputs, axis=1), rows


def alone(sets, inputs, number):
    part = slice(*sets.offsets[number : number + 2])
    weights = None if sets.weights is None else sets.weights[part]
    return Ragged(sets.points[part], np.array([0, part.stop - part.start]), weights), inputs[part]


@settings(max_examples=30)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 40), st.integers(41, 150)), min_size=1, max_size=3),
    dim=st.sampled_from([1, 2, 3, 4, 7]),
    n_neighbors=st.sampled_from([1, 2, 16, 40, 500]),
    widths=st.lists(st.one_of(st.integers(1, 40), st.integers(41, 140)), min_size=1, max_size=3),
    n_inputs=st.integers(1, 9),
    kind=st.sampled_from(KINDS),
    weighted=st.booleans(),
    every=st.booleans(),
    seed=st.integers(0, 1000),
)
@example([1, 2, 3], 3, 16, [64, 64, 128], 6, "normal", True, True, 0)
@example([33, 200], 3, 16, [64, 64, 128], 6, "surface", False, True, 0)
@example([150], 2, 16, [64, 64, 128], 4, "grid", True, True, 1)
@example([150], 5, 16, [65, 3, 47], 5, "corners", True, True, 1)
@example([150], 4, 16, [16], 5, "few places", False, True, 1)
@example([1], 1, 1, [1], 1, "normal", True, False, 0)
def test_outputs_are_those_of_plain_sums(
    each_kernel, sizes, dim, n_neighbors, widths, n_inputs, kind, weighted, every, seed
):
    sets, layers = collection(sizes, dim, kind, weighted, seed), network(n_inputs, widths, seed, every)
    inputs = numbers(sets, n_inputs, seed + 1)
    found = element_network(sets, inputs, n_neighbors, layers, threads=1, slope=0.1)
    assert found.dtype == np.float32
    assert found.shape == (len(sets.points), sum(widths))
    for a, b in pairwise(sets.offsets):
        there = np.ones(b - a, bool) if sets.weights is None else sets.weights[a:b] > 0
        expected, doubtful = plain(sets.points[a:b][there], inputs[a:b][there], n_neighbors, layers, 0.1)
        error = np.abs(found[a:b][there] - expected)[~doubtful].max(initial=0)
        assert error < 1e-5 * max(1.0, np.abs(expected).max())
        assert doubtful.mean() <= 0.5 or kind == "outlier"
        assert not found[a:b][~there].any()


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("kind", ["surface", "grid", "few places", "clusters"])
def test_large_sets_find_the_same_neighbours(each_kernel, dim, kind):
    """The largest inputs among the neighbours, of some elements of a set of many blocks, whose boxes are grouped."""
    rng, n, k = np.random.default_rng(3), 2000 if each_kernel == "numpy" or dim > 3 else 20_000, 16
    points = shape(kind, n, dim, rng)
    if kind == "clusters":  # ever smaller ones, so that a grid would hold most elements in one cell
        points = (points * 10.0 ** -rng.integers(0, 6, n)[:, None]).astype(np.float32)
    identity, one, zero = np.eye(5, dtype=np.float32), np.ones(5, np.float32), np.zeros(5, np.float32)
    inputs = rng.normal(size=(n, 5)).astype(np.float32)
    layer = ElementLayer(identity * 0, identity, one, zero)
    found = element_network(Ragged(points, np.array([0, n]), None), inputs, k, [layer], threads=1, slope=1.0)
    x = points.astype(np.float64)
    rounding = np.abs(x).max(axis=1).mean() / 2**20
    for row in rng.choice(n, 60, replace=False):
        distances = np.linalg.norm(x - x[row], axis=1)
        last = np.sort(distances)[k - 1]
        near = distances <= last + rounding
        doubtful = (distances > last) & is_doubtful(distances, last + rounding)
        assert (found[row] >= inputs[near & ~doubtful].max(axis=0)).all()
        assert (found[row] <= inputs[near | doubtful].max(axis=0)).all()


def test_wide_layers(each_kernel):
    sets, layers = collection([30, 5], 6, "normal", False, 0), network(300, [1024, 1, 1000], 0)
    inputs = numbers(sets, 300, 1)
    found = element_network(sets, inputs, 4, layers, threads=1)
    for a, b in pairwise(sets.offsets):
        expected, doubtful = plain(sets.points[a:b], inputs[a:b], 4, layers, 0.2)
        np.testing.assert_allclose(found[a:b][~doubtful], expected[~doubtful], atol=2e-5)


@pytest.mark.parametrize("dim", [3, 6])
@pytest.mark.parametrize("weighted", [False, True])
def test_same_bits_for_any_batching_and_threads(each_kernel, dim, weighted):
    sets = collection([100, 1, 700, 33, 2, 64, 300], dim, "surface", weighted, 5)
    layers, inputs = network(6, [64, 20, 100], 0), numbers(sets, 6, 1)
    found = element_network(sets, inputs, 16, layers, threads=1)
    assert np.array_equal(element_network(sets, inputs, 16, layers, threads=4), found)
    for number, (a, b) in enumerate(pairwise(sets.offsets)):
        one, its_inputs = alone(sets, inputs, number)
        assert np.array_equal(element_network(one, its_inputs, 16, layers, threads=1), found[a:b])


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["normal", "grid", "few places", "corners"])
def test_the_outputs_follow_the_order_of_the_elements(each_kernel, dim, kind):
    sets = collection([200], dim, kind, True, 2)
    layers, inputs = network(5, [64, 30], 0), numbers(sets, 5, 1)
    order = np.random.default_rng(0).permutation(200)
    found = element_network(sets, inputs, 16, layers, threads=1)
    shuffled = Ragged(sets.points[order], sets.offsets, sets.weights[order])
    again = element_network(shuffled, inputs[order], 16, layers, threads=1)
    if each_kernel == "numpy":  # whose matrix products may round a row by where it stands
        np.testing.assert_allclose(again, found[order], atol=1e-5)
    else:
        assert np.array_equal(again, found[order])


@pytest.mark.parametrize("dim", [2, 5])
def test_crowded_sets_need_no_more_memory_than_others(each_kernel, dim):
    """Far from zero most elements are as near as rounding tells, and lists of them would grow with the square."""
    n = 300 if each_kernel == "numpy" else 6000
    rng = np.random.default_rng(0)
    points = rng.normal(size=(n, dim))
    points[: n // 2] += 3e7
    points = points.astype(np.float32)
    layers = network(3, [5, 4], 0)
    inputs = rng.normal(size=(n, 3)).astype(np.float32)
    found = element_network(Ragged(points, np.array([0, n]), None), inputs, 16, layers, threads=1)
    h = inputs.astype(np.float64)
    for layer, columns in zip(layers, (slice(0, 5), slice(5, 9)), strict=True):  # each half is a neighbourhood
        spread = h @ layer.neighbors.T
        largest = np.repeat([spread[: n // 2].max(axis=0), spread[n // 2 :].max(axis=0)], n // 2, axis=0)
        z = (h @ layer.own.T + largest) * layer.scale + layer.shift
        h = np.where(z > 0, z, 0.2 * z)
        np.testing.assert_allclose(found[:, columns], h, atol=1e-5)


def test_out_may_be_columns_of_a_larger_array(each_kernel):
    sets, layers = collection([20, 7], 3, "normal", True, 0), network(4, [9, 20], 0)
    inputs = numbers(sets, 4, 1)
    expected = element_network(sets, inputs, 8, layers, threads=1)
    wide = np.full((27, 40), 7.0, np.float32)
    assert element_network(sets, inputs, 8, layers, threads=1, out=wide[:, 5:34]) is not None
    assert np.array_equal(wide[:, 5:34], expected)
    assert (wide[:, :5] == 7).all()
    assert (wide[:, 34:] == 7).all()


def test_no_sets(each_kernel):
    none = Ragged(np.empty((0, 3), np.float32), np.zeros(1, np.int64), None)
    assert element_network(none, np.empty((0, 4), np.float32), 8, network(4, [9], 0), threads=1).shape == (0, 9)


def test_a_set_without_weight_has_no_outputs(each_kernel):
    sets = collection([20], 3, "normal", False, 0)._replace(weights=np.zeros(20, np.float32))
    assert not element_network(sets, numbers(sets, 4, 1), 8, network(4, [9], 0), threads=1).any()


def test_arrays_that_do_not_fit_together_are_refused(each_kernel):
    sets = collection([20, 7], 3, "normal", False, 0)
    inputs, (first, second) = numbers(sets, 4, 1), network(4, [9, 5], 0)
    assert check_layers([first, second], 4) == 14
    infinite = np.full(9, np.inf, np.float32)
    for layers, message in [
        ([], "0 layers"),
        ([first] * 65, "65 layers"),
        ([second], r"layer 0: own is of shape \(5, 9\), not \(5, 4\)"),
        ([first, first], r"layer 1: own is of shape \(9, 4\), not \(9, 9\)"),
        ([first._replace(own=first.own[0])], r"layer 0: own must be \(outputs, inputs\)"),
        ([first._replace(own=first.own[:0])], "1 to 1024 outputs"),
        ([first._replace(own=np.zeros((1025, 4), np.float32))], "1 to 1024 outputs"),
        ([first._replace(own=first.own.astype(np.float64))], "own is not a float32 array"),
        ([first._replace(neighbors=first.neighbors[:, 1:])], r"neighbors is of shape \(9, 3\)"),
        ([first._replace(neighbors="all")], "neighbors is not a float32 array"),
        ([first._replace(scale=first.scale[1:])], r"scale is of shape \(8,\)"),
        ([first, second._replace(shift=first.shift)], r"layer 1: shift is of shape \(9,\)"),
        ([first._replace(shift=infinite)], "shift has NaN or infinities"),
    ]:
        with pytest.raises(ValueError, match=message):
            element_network(sets, inputs, 8, layers, threads=1)
    for changed, message in [
        ({"inputs": inputs[1:]}, "26 rows for 27 elements"),
        ({"inputs": inputs[0]}, "inputs must be rows"),
        ({"inputs": inputs.astype(np.float64)}, "float64"),
        ({"n_neighbors": 0}, "n_neighbors is 0"),
        ({"out": np.zeros((27, 13), np.float32)}, r"shape \(27, 13\)"),
        ({"out": np.zeros((27, 14))}, "float64"),
    ]:
        arguments = {"inputs": inputs, "n_neighbors": 8, "layers": [first, second], "threads": 1, **changed}
        with pytest.raises(ValueError, match=message):
            element_network(sets, **arguments)


@pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_search(threads):
    """All pairs of so many elements take many seconds, and the call returns before any output is written."""
    n = 250_000
    rng = np.random.default_rng(0)
    points, offsets = rng.normal(size=(n + 5, 8)).astype(np.float32), np.array([0, 5, n + 5])
    layers, out = network(8, [64], 0), np.full((n + 5, 64), np.nan, np.float32)
    begun, given_up = Event(), Event()

    def press_ctrl_c():
        begun.wait()
        while np.isnan(out[4, 63]) and not given_up.wait(0.001):  # the small set comes first
            pass
        os.kill(os.getpid(), signal.SIGINT)

    def search():
        begun.set()
        element_network(Ragged(points, offsets, None), points, 16, layers, threads=threads, out=out)
        given_up.set()

    thread = Thread(target=press_ctrl_c)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        search()
    thread.join()
    assert not np.isnan(out[:5]).any()
    assert np.isnan(out[5:]).all()


@pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")
def test_what_would_write_outside_of_an_array_is_refused():
    """The binding checks again: it is what stands before the memory."""
    points, offsets, inputs = np.zeros((4, 3), np.float32), np.array([0, 4]), np.zeros((4, 2), np.float32)
    layer = (np.zeros((5, 2), np.float32), None, np.zeros(5, np.float32), np.zeros(5, np.float32))
    good = (points, offsets, None, inputs, 8, [layer], 0.2, np.zeros((4, 5), np.float32), None, 1)
    kernel.native.element_network(*good)
    for place, bad, message in [
        (0, np.zeros((3, 3), np.float32), "offsets"),
        (0, np.zeros((4, 0), np.float32), "coordinate"),
        (1, np.array([0, 5]), "offsets"),
        (2, np.ones(3, np.float32), "weight"),
        (3, np.zeros((3, 2), np.float32), "inputs"),
        (3, np.zeros((4, 3), np.float32), "layer"),
        (4, 0, "neighbour"),
        (5, [], "layer"),
        (5, [layer, layer], "layer must take"),
        (5, [(layer[0], layer[0][:4], *layer[2:])], "like own"),
        (5, [(*layer[:3], layer[3][:4])], "shift"),
        (7, np.zeros((4, 6), np.float32), "out must be"),
        (7, np.zeros((5, 4), np.float32).T, "out must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernel.native.element_network(*good[:place], bad, *good[place + 1 :])
