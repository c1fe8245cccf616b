"""What the kernels of slosh.gpu compute, on the CPU (`cuda_on_cpu`), against the NumPy reference in float64."""

from __future__ import annotations

import cuda_on_cpu
import numpy as np
import pytest
from optional_gpu import torch

from slosh.native import kernel_numpy
from slosh.native.arrays import Quantiles, Ragged

pytestmark = pytest.mark.skipif(
    cuda_on_cpu.COMPILER is None, reason="no g++ on Linux, which compiles the kernels for the CPU"
)

SIZES = (1, 5, 22, 150, 700, 2048, 2049, 5000)
"""Of some size classes, of a full one, and of large sets."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True, params=[False, True], ids=["forwards", "backwards"])
def _on_cpu(request, monkeypatch, folder):
    cuda_on_cpu.install(monkeypatch, folder, backwards=request.param)


def drawn(sizes, dim, weighted=False, ties=False, seed=0):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(sum(sizes), dim)).astype(np.float32)
    weights = None
    if ties:
        points = np.round(points * 4) / 4
    if weighted:
        weights = rng.exponential(size=len(points)).astype(np.float32)
        weights[rng.random(len(points)) < 0.2] = 0
        weights[np.cumsum(sizes) - 1] = 1
    return Ragged(points, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), weights)


def rule(dim, n_slices, n_quantiles, average):
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(n_slices, dim))
    directions = (directions / np.linalg.norm(directions, axis=1, keepdims=True)).astype(np.float32)
    reference = rng.normal(size=(n_slices, n_quantiles)).astype(np.float32)
    return Quantiles(directions, reference, n_slices, n_quantiles, average, 0.25)


def tensors(sets):
    return [None if each is None else torch.tensor(each) for each in (sets.points, sets.offsets, sets.weights)]


def embedded(sets, what, tf32=False):
    """The vectors of sets by the kernels, and their squared residuals under the average rule."""
    from slosh.gpu import columns

    n = len(sets.offsets) - 1
    out = torch.full((n, what.n_slices * what.n_quantiles), torch.nan)
    squares = torch.full((n,), torch.nan, dtype=torch.float64) if what.average else None
    numbers = columns.Rule(what.n_quantiles, what.average, what.scale, torch.tensor(what.reference), tf32)
    columns.embed(columns.Batch.of(*tensors(sets)), torch.tensor(what.directions), numbers, out, squares)
    return out.numpy(), None if squares is None else squares.numpy()


def expected(sets, what):
    n = len(sets.offsets) - 1
    out, squares = np.empty((n, what.n_slices * what.n_quantiles), np.float32), np.empty(n)
    kernel_numpy.embed(sets, what, out, squares)
    return out, squares


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("dim", [2, 5, 64])
def test_vectors_and_residuals_equal_those_of_numpy(dim, average):
    sets, what = drawn(SIZES, dim), rule(dim, 3, 7, average)
    found, squares = embedded(sets, what)
    wanted, left = expected(sets, what)
    assert np.abs(found - wanted).max() < 4e-6 * np.sqrt(dim)
    if average:
        np.testing.assert_allclose(squares, left, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("average", [True, False])
def test_vectors_of_sets_with_weights_equal_those_of_numpy(average):
    sets, what = drawn(SIZES, 2, weighted=True, ties=average), rule(2, 3, 7, average)
    found, squares = embedded(sets, what)
    wanted, left = expected(sets, what)
    assert np.abs(found - wanted).max() < 4e-6
    if average:
        np.testing.assert_allclose(squares, left, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 0.7), (0.3, 0.7), (-2.0, 0.1)])
@pytest.mark.parametrize("share", [15 / 16, 7 / 16])
def test_residuals_where_equal_elements_end_just_behind_a_bin(low, high, share):
    """Nearly all of them are of other bins, and what is rounded in their squares must not count."""
    n = 20_001
    points = np.full((n, 1), high, np.float32)
    points[: int(n * share) + 1] = low
    sets = Ragged(np.random.default_rng(0).permutation(points), np.array([0, n]), None)
    what = Quantiles(np.ones((1, 1), np.float32), np.zeros((1, 16), np.float32), 1, 16, True, 0.25)
    found, squares = embedded(sets, what)
    wanted, left = expected(sets, what)
    allowed = 2.0**-23 * (9 * (4 * np.linalg.norm(wanted) / 4 + np.sqrt(left)) + 24 * np.sqrt(left))
    assert np.abs(found - wanted).max() < 1e-6
    assert np.abs(np.sqrt(squares) - np.sqrt(left)) <= allowed


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("ties", [False, True])
def test_gradients_equal_those_of_torch_operations(average, ties):
    from slosh.gpu import plain
    from slosh.torch import on_gpu

    sets = drawn(SIZES, 1, ties=ties)
    points, offsets, _ = tensors(sets)
    directions, n_quantiles = torch.ones((1, 1)), 7
    grad = torch.randn(len(SIZES), n_quantiles, generator=torch.Generator().manual_seed(0))
    given = (None, directions, n_quantiles, average, 0.5, (True, False, True))
    found = on_gpu.embed_backward(grad, points, offsets, *given)
    exact = plain.embed_backward(grad.double(), points.double(), offsets, None, directions.double(), *given[2:])
    if not ties:
        torch.testing.assert_close(found.directions.double(), exact.directions, rtol=1e-4, atol=1e-5)
    for start, stop in zip(sets.offsets[:-1], sets.offsets[1:], strict=True):
        _, which, counts = torch.unique(points[start:stop, 0], return_inverse=True, return_counts=True)
        total = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, which, exact.points[start:stop, 0])
        shared = (total / counts)[which]
        assert (found.points[start:stop, 0] - shared).abs().max() <= 1e-5 * shared.abs().max()


@pytest.mark.parametrize("how", ["plain", "tensor", "tf32"])
@pytest.mark.parametrize("dim", [4, 33, 70])
def test_products_are_as_accurate_as_their_factors(how, dim):
    from slosh.gpu import projection

    rng = np.random.default_rng(dim)
    points = torch.tensor(rng.normal(size=(131, dim)), dtype=torch.float32)
    directions = torch.nn.functional.normalize(torch.tensor(rng.normal(size=(66, dim)), dtype=torch.float32))
    exact = directions.double() @ points.double().T
    step = 2.0**-10 * 1.01 if how == "tf32" else 0.0
    allowed = (step + 2.0**-24 * (dim + 32)) * (directions.double().abs() @ points.double().abs().T)
    for first in (0, 1):  # rows that begin at 16 bytes, and rows that do not
        values = torch.full((66, 136), torch.nan)
        projection.project_by(how, points[first:], directions, values)
        assert ((values[:, : 131 - first] - exact[:, first:]).abs() <= allowed[:, first:]).all()
        assert values[:, 131 - first :].isnan().all()


def test_many_features_are_multiplied_on_tensor_cores(monkeypatch):
    from slosh.gpu import projection

    asked = []
    monkeypatch.setattr(projection, "project_by", lambda how, *given: asked.append(how))
    for dim in (5, 63, 64):
        given = torch.zeros((4, dim)), torch.zeros((2, dim)), torch.zeros((2, 4))
        projection.project(*given)
        projection.project(*given, tf32=True)
    assert asked == ["plain", "tf32", "plain", "tf32", "tensor", "tf32"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    projection.project(*given, tf32=True)
    assert asked[-1] == "plain"


@pytest.mark.parametrize("weighted", [False, True])
def test_fields_equal_distances(weighted):
    from slosh.gpu import columns, field

    sets = drawn((1, 40, 3000), 3, weighted=weighted)
    anchors = np.random.default_rng(2).normal(size=(130, 3)).astype(np.float32)
    out = torch.full((3, 130), torch.nan)
    field.work(anchors, "cuda")(columns.Batch.of(*tensors(sets)), out, None)
    for row, start, stop in zip(out, sets.offsets[:-1], sets.offsets[1:], strict=True):
        points = sets.points[start:stop].astype(np.float64)
        if weighted:
            points = points[sets.weights[start:stop] > 0]
        least = np.sqrt(((points[:, None] - anchors) ** 2).sum(2)).min(0)
        np.testing.assert_allclose(row, least, rtol=1e-5, atol=1e-6)


def gradients_agree(sizes, dim, n_slices, n_quantiles, average, tolerance=2e-5):
    """Compare the gradients of points and slices, each alone and both, with those of torch operations in float64."""
    from slosh.gpu import plain
    from slosh.torch import on_gpu

    rng = np.random.default_rng(dim)
    points = torch.tensor(rng.normal(size=(sum(sizes), dim)), dtype=torch.float32)
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(sizes)]))
    directions = torch.nn.functional.normalize(torch.tensor(rng.normal(size=(n_slices, dim)), dtype=torch.float32))
    grad = torch.tensor(rng.normal(size=(len(sizes), n_slices * n_quantiles)), dtype=torch.float32)
    for wanted in ((True, False, True), (True, False, False), (False, False, True)):
        given = (n_quantiles, average, 0.5, wanted)
        found = on_gpu.embed_backward(grad, points, offsets, None, directions, *given)
        exact = plain.embed_backward(grad.double(), points.double(), offsets, None, directions.double(), *given)
        for one, other in zip(found, exact, strict=True):
            assert one.shape == other.shape
            if one.numel():
                assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    ("dim", "n_slices", "n_quantiles"), [(1, 1, 300), (2, 70, 7), (3, 3, 1), (4, 65, 7), (5, 3, 7)]
)
def test_gradients_of_small_sets_equal_those_of_torch_operations(dim, n_slices, n_quantiles, average):
    """Sets whose values are computed where they are sorted, up to 4 features."""
    gradients_agree((1, 3, 8, 9, 40, 150), dim, n_slices, n_quantiles, average)


@pytest.mark.parametrize("average", [True, False])
def test_gradients_of_many_quantiles(average):
    """Ranks times quantiles do not fit 32 bits from 1,048,064 quantiles on, for sets of up to 2,048 elements."""
    for n_quantiles in (1_048_063, 1_048_064):
        gradients_agree((1990,), 1, 1, n_quantiles, average, 2e-4)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("largest", [90, 2500])
def test_gradients_of_several_pieces_and_turns(largest, average, monkeypatch):
    from slosh.gpu import large, pieces

    for module in (pieces, large):
        monkeypatch.setattr(module, "VALUES", 2000)
    gradients_agree((5, 40, 150, largest, 7, 33, 61), 3, 5, 5, average)


def test_a_launch_has_no_more_slices_than_a_grid():
    """Its second number counts tiles of 64 slices, and is below 65,536."""
    from slosh.gpu import large, projection

    assert large.turns(3, 5) == 5
    assert large.turns(1 << 28, 5) == 2
    assert -(-large.turns(1, 1 << 24) // projection.SLICES) < 1 << 16


def test_no_points_have_no_gradients():
    from slosh.gpu import factors

    of_directions = torch.ones((3, 2))
    points = torch.zeros((0, 2))
    factors.add_gradients(torch.zeros((3, 0)), points, torch.ones((3, 2)), points.clone(), of_directions)
    assert (of_directions == 1).all()


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("n_points", "n_slices"), [(3, 1), (1024, 64), (2501, 70)])
def test_gradients_of_both_factors_equal_products(dim, n_points, n_slices):
    from slosh.gpu import factors

    rng = np.random.default_rng(dim)
    of_values = np.full((n_slices, (n_points + 3) // 4 * 4), np.nan, np.float32)
    of_values[:, :n_points] = rng.normal(size=(n_slices, n_points))
    points, directions = (rng.normal(size=(n, dim)).astype(np.float32) for n in (n_points, n_slices))
    exact = of_values[:, :n_points].astype(np.float64)
    for wanted in ((True, True), (True, False), (False, True)):
        of_points, of_directions = torch.ones((n_points, dim)), torch.ones((n_slices, dim))
        given = (each if want else None for each, want in zip((of_points, of_directions), wanted, strict=True))
        factors.add_gradients(torch.tensor(of_values)[:, :n_points], *map(torch.tensor, (points, directions)), *given)
        for found, product, want in zip(
            (of_points, of_directions), (exact.T @ directions, exact @ points), wanted, strict=True
        ):
            np.testing.assert_allclose(found, 1 + product if want else 1, rtol=1e-5, atol=2e-6 * n_points**0.5)


def test_zeros_of_both_signs_are_equal_in_large_sets():
    """A product of a multiple of eight features that underflows is -0.0; it shares the gradient of 0.0."""
    from slosh.torch import on_gpu

    n = 5001
    points = torch.tensor(np.random.default_rng(0).normal(size=(n, 8)), dtype=torch.float32)
    points[:3000] = 0
    points[:3000:2, 7], points[1:3000:2, 7] = 1e-45, -1e-45
    grad = torch.randn(1, 7, generator=torch.Generator().manual_seed(0))
    given = (points, torch.tensor([0, n]), None, torch.full((1, 8), 0.4), 7, True, 1.0, (True, False, False))
    found = on_gpu.embed_backward(grad, *given).points[:3000]
    assert (found == found[0]).all()
