"""The layer and the loss on a GPU, against float64 on the CPU."""

from __future__ import annotations

import pytest
from optional_torch import torch
from plain_oracle import ragged

from slosh.errors import InputError
from slosh.gpu import columns
from slosh.torch import SlicedWassersteinPool, sliced_wasserstein

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")

SIZES = [1, 2, 17, 150, 5000, 40]


def gradients(device, dtype, rule, weighted, padded=False):
    points, offsets, weights = ragged(SIZES, 3, weighted)
    pool = SlicedWassersteinPool(3, 21, 16, quantiles=rule, reference="normal").to(device, dtype)
    p = torch.tensor(points, dtype=dtype, device=device).requires_grad_()
    w = torch.tensor(weights, dtype=dtype, device=device).requires_grad_() if weighted else None
    o = torch.tensor(offsets, device=device)
    if padded:
        sizes = o.diff()
        mask = torch.arange(int(sizes.max()), device=device) < sizes[:, None]
        table = torch.full((*mask.shape, 3), torch.nan, dtype=dtype, device=device)
        found = pool(table.masked_scatter(mask[:, :, None], p), mask=mask)
    else:
        found = pool(p, o, weights=w)
    found.square().sum().backward()
    leaves = [p.grad, pool.directions.grad, pool.reference.grad, *([w.grad] if weighted else [])]
    return [x.detach().double().cpu() for x in (found, *leaves)]


@pytest.mark.parametrize("rule", ["average", "linear"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_equal_those_of_the_cpu(rule, weighted, dtype):
    expected = gradients("cpu", torch.float64, rule, weighted)
    # Equal to rounding; a product of matrices in float32 may order two values otherwise, which moves their gradients.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for one, other in zip(gradients("cuda", dtype, rule, weighted), expected, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padded_batches(dtype):
    expected = gradients("cuda", dtype, "average", False)
    for one, other in zip(gradients("cuda", dtype, "average", False, padded=True), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_padding_is_no_set(monkeypatch):
    """What was padding is not sorted with the sets: it would be one large set of zeros."""
    seen, embed = [], columns.embed
    monkeypatch.setattr(
        columns, "embed", lambda batch, *given: (seen.append(batch.known.tolist()), embed(batch, *given))
    )
    pool, table = SlicedWassersteinPool(3, 8, 4).cuda(), torch.randn(5, 4000, 3, device="cuda")
    pool(table, lengths=torch.tensor([1, 2, 3, 4, 5], device="cuda"))
    assert seen == [[0, 1, 3, 6, 10, 15]]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss(weighted):
    found = []
    for device in ("cpu", "cuda"):
        leaves = []
        for seed, sizes in enumerate((SIZES, SIZES[::-1])):
            points, offsets, weights = ragged(sizes, 3, weighted, seed)
            p = torch.tensor(points, dtype=torch.float64, device=device).requires_grad_()
            w = torch.tensor(weights, dtype=torch.float64, device=device).requires_grad_() if weighted else None
            leaves.append((p, torch.tensor(offsets, device=device), w))
        (x, a, u), (y, b, v) = leaves
        loss = sliced_wasserstein((x, a), (y, b), x_weights=u, y_weights=v, n_slices=9)
        loss.sum().backward()
        found.append([loss, x.grad, y.grad, *([u.grad, v.grad] if weighted else [])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other.cpu(), atol=1e-10, rtol=1e-9)


def test_the_same_bits_again():
    once, again = (gradients("cuda", torch.float32, "linear", True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


def test_what_is_refused():
    pool = SlicedWassersteinPool(3, 5, 4).cuda()
    with pytest.raises(InputError, match="is on cpu, the slices are on cuda:0"):
        pool(torch.zeros(1, 4, 3))
    bad = torch.full((1, 4, 3), torch.nan, device="cuda")
    assert torch.isnan(pool(bad)).all()  # not checked by default, which would wait for the device
    with pytest.raises(InputError, match="set 0, element 0, feature 0 is nan"):
        SlicedWassersteinPool(3, 5, 4, check=True).cuda()(bad)


def test_autocast_and_compile():
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), SlicedWassersteinPool(8, 16, 8)).cuda()
    points = torch.randn(6, 50, 3, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = network(points)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, network(points), atol=0.02, rtol=0.05)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(points), network(points))
