"""The kernels on a GPU, against the NumPy reference in float64."""

from __future__ import annotations

import numpy as np
import pytest
from optional_gpu import torch

from slosh.errors import DeviceMemoryError
from slosh.native import kernel_numpy
from slosh.native.arrays import Quantiles, Ragged

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")

SMALL, LARGE = (
    (1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 150, 151, 300, 511, 513, 1024, 2000, 2047, 2048),
    (2049, 4096, 20000),
)


def ragged(sizes, dim, seed=0, weighted=False, ties=False):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = rng.normal(size=(offsets[-1], dim)).astype(np.float32)
    if ties:
        points = np.round(points)
    weights = None
    if weighted:
        weights = rng.exponential(size=offsets[-1]).astype(np.float32)
        weights[rng.random(len(weights)) < 0.2] = 0
        weights[offsets[:-1]] = 1
    return Ragged(points, offsets, weights)


def rule(dim, n_slices, n_quantiles, average=True, reference=True, seed=0):
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n_slices, dim))
    directions = (directions / np.linalg.norm(directions, axis=1, keepdims=True)).astype(np.float32)
    centre = rng.normal(size=(n_slices, n_quantiles)).astype(np.float32) if reference else None
    return Quantiles(directions, centre, n_slices, n_quantiles, average, 0.25)


def on_gpu(sets, what, with_residual=True):
    """The vectors of sets on the host, by way of the GPU, and their squared residuals."""
    from slosh.gpu import embedding

    n = len(sets.offsets) - 1
    out = np.full((n, what.n_slices * what.n_quantiles), np.nan, np.float32)
    squares = np.full(n, np.nan) if with_residual and what.average else None
    embedding.embed(sets, what, out, squares, "cuda")
    return out, squares


def by_numpy(sets, what):
    n = len(sets.offsets) - 1
    out, squares = np.empty((n, what.n_slices * what.n_quantiles), np.float32), np.empty(n)
    kernel_numpy.embed(sets, what, out, squares)
    return out, squares


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 16, 130])
@pytest.mark.parametrize("ties", [False, True])
def test_vectors_equal_those_of_numpy(dim, average, weighted, ties):
    sizes = np.random.default_rng(dim).permutation([*SMALL, *(LARGE if dim < 100 else LARGE[:1])])
    sets = ragged(sizes, dim, dim, weighted, ties)
    for n_slices, n_quantiles in ((5, 7), (33, 16)):
        what = rule(dim, n_slices, n_quantiles, average)
        found, squares = on_gpu(sets, what)
        expected, left = by_numpy(sets, what)
        # The linear rule jumps where a weight ends, which rounding moves: compare the others there.
        assert np.abs(found - expected).max() < 4e-6 * np.sqrt(dim)
        if average:
            assert np.allclose(squares, left, rtol=1e-5, atol=1e-9)


def test_directions_may_lie_column_after_column():
    sets, what = ragged([1, 150, 3000], 5), rule(5, 6, 4)
    turned = what._replace(directions=np.asfortranarray(what.directions), reference=np.asfortranarray(what.reference))
    assert np.array_equal(on_gpu(sets, turned)[0], on_gpu(sets, what)[0])


@pytest.mark.parametrize("n_quantiles", [1, 2, 32, 5000])
def test_any_number_of_quantiles(n_quantiles):
    sets = ragged([1, 5, 150, 2048, 2049, 5000], 2)
    for average in (True, False):
        what = rule(2, 3, n_quantiles, average, reference=False)
        found, _ = on_gpu(sets, what, False)
        assert np.abs(found - by_numpy(sets, what)[0]).max() < 4e-6


@pytest.mark.parametrize("dim", [2, 3, 6])
@pytest.mark.parametrize("weighted", [False, True])
def test_bits_do_not_depend_on_the_batch(dim, weighted, monkeypatch):
    from slosh.gpu import pieces, pipeline

    sizes = np.random.default_rng(1).integers(1, 400, 300)
    sizes[[10, 200]] = 3000, 2500
    if weighted:
        sizes = np.minimum(sizes, 2048)  # larger ones with weights run on torch operations
    sets, what = ragged(sizes, dim, 3, weighted), rule(dim, 37, 16)
    found, squares = on_gpu(sets, what)
    monkeypatch.setattr(pieces, "VALUES", 50_000)
    monkeypatch.setattr(pipeline, "PIECE_BYTES", 20_000)
    again, squares_again = on_gpu(sets, what)
    assert found.tobytes() == again.tobytes()
    assert np.allclose(squares, squares_again, rtol=1e-12)
    for number in (0, 10, 77, 299):
        part = slice(sets.offsets[number], sets.offsets[number + 1])
        weights = None if sets.weights is None else sets.weights[part]
        alone = Ragged(sets.points[part], np.array([0, sizes[number]]), weights)
        assert on_gpu(alone, what)[0].tobytes() == found[number].tobytes()


def test_an_empty_batch():
    found, squares = on_gpu(ragged([], 2), rule(2, 4, 4))
    assert found.shape == (0, 16)
    assert len(squares) == 0


def test_the_order_of_elements_changes_no_bit():
    sets, what = ragged([100, 3000], 3), rule(3, 16, 16)
    rng = np.random.default_rng(0)
    turned = np.concatenate([rng.permutation(100), 100 + rng.permutation(3000)])
    other = Ragged(sets.points[turned], sets.offsets, None)
    assert np.abs(on_gpu(sets, what)[0] - on_gpu(other, what)[0]).max() < 1e-6
    assert on_gpu(sets, what)[0][0].tobytes() == on_gpu(other, what)[0][0].tobytes()


def test_memory_that_is_short_means_smaller_pieces():
    from slosh.gpu import embedding

    sets, what = ragged(np.full(20000, 200), 2), rule(2, 64, 16)
    expected, _ = on_gpu(sets, what)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (60 << 20)) / total)
    try:
        found, _ = on_gpu(sets, what)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.tobytes() == expected.tobytes()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 20)) / total)
    try:
        with pytest.raises(DeviceMemoryError) as error:
            embedding.embed(ragged([3_000_000], 2), what, np.empty((1, 1024), np.float32), None, "cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert error.value.device == "cuda"


def without_ties(sizes, dim, n_slices):
    """Points and directions whose products float32 computes without rounding, and no two of a set are equal.

    Rounding would put elements that nearly tie into another order, and their gradients are those of other ranks.
    """
    rng = np.random.default_rng(2)
    directions = rng.normal(size=(n_slices, dim))
    directions = np.round(directions / np.linalg.norm(directions, axis=1, keepdims=True) * 2**10) / 2**10
    which, points = np.repeat(np.arange(len(sizes)), sizes), np.zeros((sum(sizes), dim))
    tied = np.ones(len(points), bool)
    while tied.any():
        points[tied] = np.round(rng.normal(size=(tied.sum(), dim)) * 2**9) / 2**9
        tied[:] = False
        for values in (points @ directions.T).T:
            order = np.lexsort((values, which))
            same = (np.diff(values[order]) == 0) & (np.diff(which[order]) == 0)
            tied[order[1:][same]] = True
    return points.astype(np.float32), directions.astype(np.float32)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("dim", [2, 3, 4, 5, 64])
@pytest.mark.parametrize("largest", [700, 2048, 2500, 70_000])
def test_gradients_equal_those_of_torch_operations(average, dim, largest):
    from slosh.gpu import plain
    from slosh.gpu.pieces import CAPACITIES
    from slosh.torch import on_gpu

    every_class = CAPACITIES[largest > CAPACITIES]
    sizes = np.concatenate([np.random.default_rng(0).integers(1, 700, 40), every_class, [largest, 1]])
    points, directions = (torch.tensor(each, device="cuda") for each in without_ties(sizes, dim, 24))
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(sizes)]), device="cuda")
    grad = torch.randn(len(sizes), 24 * 16, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    wanted = True, False, True
    found = on_gpu.embed_backward(grad, points, offsets, None, directions, 16, average, 0.5, wanted)
    exact = plain.embed_backward(
        grad.double(), points.double(), offsets, None, directions.double(), 16, average, 0.5, wanted
    )
    for ours, theirs in ((found.points, exact.points), (found.directions, exact.directions)):
        assert ((ours - theirs).abs() < 1e-4 * theirs.abs().max()).all()
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("n_quantiles", [1, 16, 5000])
def test_equal_elements_of_large_sets_share_their_gradient(average, n_quantiles):
    from slosh.gpu import plain
    from slosh.torch import on_gpu

    rng = np.random.default_rng(0)
    points = torch.tensor(np.round(rng.normal(size=(12_000, 1)) * 20) / 20, dtype=torch.float32, device="cuda")
    offsets = torch.tensor([0, 5000, 5003, 12_000], device="cuda")
    directions = torch.ones((1, 1), device="cuda")
    grad = torch.tensor(rng.normal(size=(3, n_quantiles)), dtype=torch.float32, device="cuda")
    given = offsets, None, directions, n_quantiles, average, 0.5, (True, False, False)
    found = on_gpu.embed_backward(grad, points, *given).points[:, 0]
    exact = plain.embed_backward(grad.double(), points.double(), *given[:2], directions.double(), *given[3:]).points[
        :, 0
    ]
    for start, stop in ((0, 5000), (5003, 12_000)):
        values, which, counts = torch.unique(points[start:stop, 0], return_inverse=True, return_counts=True)
        assert counts.max() > 50
        wanted = torch.zeros(len(values), dtype=torch.float64, device="cuda").index_add_(0, which, exact[start:stop])
        shared = (wanted / counts)[which]
        assert (found[start:stop] - shared).abs().max() <= 1e-5 * shared.abs().max()


def test_equal_elements_share_their_gradient():
    from slosh.torch import on_gpu

    points = torch.tensor([[1.0, 0], [3, 0], [1, 0], [2, 0]], device="cuda")
    offsets, directions = torch.tensor([0, 4], device="cuda"), torch.tensor([[1.0, 0]], device="cuda")
    grad = torch.tensor([[1.0, 2, 3, 4]], device="cuda")
    found = on_gpu.embed_backward(grad, points, offsets, None, directions, 4, True, 1.0, (True, False, False))
    assert found.points[:, 0].tolist() == [1.5, 4, 1.5, 3]
