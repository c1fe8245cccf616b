"""The layer: its vectors against an oracle and the embedding, its gradients against finite differences and autograd."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional_torch import torch
from plain_oracle import ragged, vectors
from torch.utils._python_dispatch import TorchDispatchMode

import slosh
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.errors import InputError, UnsupportedError
from slosh.torch import SlicedWassersteinPool, sliced_wasserstein
from slosh.torch.batches import check_directions, ragged_batch
from slosh.torch.operators import sliced_embedding

RULES = ["average", "linear"]


def tensors(points, offsets, weights, dtype=torch.float32):
    weights = None if weights is None else torch.tensor(weights, dtype=dtype)
    return torch.tensor(points, dtype=dtype), torch.tensor(offsets), weights


def unit(n_slices, dim, seed=0):
    rows = torch.randn(n_slices, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    dim=st.sampled_from([1, 2, 3, 7]),
    n_slices=st.sampled_from([1, 5, 16]),
    n_quantiles=st.sampled_from([1, 4, 16]),
    rule=st.sampled_from(RULES),
    weighted=st.booleans(),
    kind=st.sampled_from(["normal", "ties"]),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_vectors_equal_the_oracle(sizes, dim, n_slices, n_quantiles, rule, weighted, kind, double, seed):
    given = ragged(sizes, dim, weighted, seed, kind)
    pool = SlicedWassersteinPool(dim, n_slices, n_quantiles, quantiles=rule, reference="normal", random_state=seed)
    dtype = torch.float64 if double else torch.float32
    points, offsets, weights = tensors(*given, dtype)
    found = pool.to(dtype)(points, offsets, weights=weights)
    assert found.dtype == dtype
    theta, reference = pool.slices.detach().numpy(), pool.reference.detach().numpy()
    if kind == "ties" and rule == "linear" and weighted and dim > 1 and not double:
        return  # values that are equal in exact numbers may differ in float32, and weights then count otherwise
    expected = vectors(*given, theta, n_quantiles, rule == "average", reference)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-6 if not double else 1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighted", [False, True])
def test_sizes_up_to_5000(rule, weighted):
    given = ragged([1, 5000, 2, 3073, 150, 1023], 3, weighted)
    pool = SlicedWassersteinPool(3, 10, 16, quantiles=rule)
    points, offsets, weights = tensors(*given)
    found = pool(points, offsets, weights=weights).detach().numpy()
    expected = vectors(*given, pool.slices.detach().numpy(), 16, rule == "average")
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_a_set_does_not_depend_on_how_many_there_are(rule):
    """Sums of the weights of many sets lose no digits: an element of weight zero is never the one at a quantile."""
    points, offsets, weights = ragged(np.random.default_rng(0).integers(2, 9, size=100_000), 2, True)
    points += 5
    pool = SlicedWassersteinPool(2, 3, 8, quantiles=rule, reference=None).double()
    found = pool(*tensors(points, offsets, None, torch.float64)[:2], weights=torch.tensor(weights, dtype=torch.float64))
    last = len(offsets) - 301
    expected = vectors(points, offsets[last:], weights, pool.slices.detach().numpy(), 8, rule == "average")
    np.testing.assert_allclose(found[last:].detach().numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("slices", ["auto", "random", "orthogonal", "qmc"])
@pytest.mark.parametrize("reference", [None, "uniform", "normal"])
def test_the_same_seed_is_the_same_embedding(rule, slices, reference):
    points, offsets, weights = ragged([4, 70, 13], 4, True)
    sets = Sets(points, offsets, weights)
    arguments = {"slices": slices, "quantiles": rule, "reference": reference, "random_state": 3}
    embedding = SlicedWasserstein(6, 8, **arguments).fit(sets)
    pool = SlicedWassersteinPool(4, 6, 8, **arguments)
    found = pool(*tensors(points, offsets, None)[:2], weights=torch.tensor(weights))
    np.testing.assert_allclose(found.detach().numpy(), embedding.transform(sets), atol=2e-7)
    again = SlicedWassersteinPool.from_embedding(embedding)
    assert torch.equal(again.directions, pool.directions)
    assert torch.equal(again.reference, pool.reference)


@pytest.mark.parametrize("rule", RULES)
def test_what_was_learnt_is_an_embedding_without_torch(rule, tmp_path):
    points, offsets, _ = ragged([4, 70, 13, 1], 3)
    pool = SlicedWassersteinPool(3, 7, 8, quantiles=rule)
    optimizer = torch.optim.SGD(pool.parameters(), lr=5.0)
    for _ in range(3):
        optimizer.zero_grad()
        pool(*tensors(points, offsets, None)[:2]).square().sum().backward()
        optimizer.step()
    assert not torch.allclose(pool.directions.norm(dim=1), torch.ones(7))  # no constraint on the parameter itself
    embedding = pool.to_embedding()
    np.testing.assert_allclose(np.linalg.norm(embedding.slices_, axis=1), 1.0, atol=1e-6)
    found = embedding.transform(Sets(points, offsets))
    np.testing.assert_allclose(found, pool(*tensors(points, offsets, None)[:2]).detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(embedding)).transform(Sets(points, offsets)), found)
    index = slosh.SetIndex.create(tmp_path / "learnt", embedding=embedding, dim=3)
    index.add(Sets(points, offsets))
    index.close()
    with slosh.open(tmp_path / "learnt", read_only=True) as index:
        np.testing.assert_array_equal(index.spec.embedding.transform(Sets(points, offsets)), found)


def test_a_reference_that_was_fitted():
    points, offsets, _ = ragged([4, 70, 13], 3)
    sets = Sets(points, offsets)
    embedding = SlicedWasserstein(5, 4, reference="barycenter").fit(sets)
    pool = SlicedWassersteinPool.from_embedding(embedding, learn_reference=False)
    found = pool(*tensors(points, offsets, None)[:2]).detach().numpy()
    np.testing.assert_allclose(found, embedding.transform(sets), atol=2e-7)
    np.testing.assert_allclose(found.mean(0), 0.0, atol=1e-6)


# ---- gradients


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradcheck(average, weighted):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(21, 3, dtype=torch.float64, generator=generator).requires_grad_()
    offsets = torch.tensor([0, 1, 3, 8, 21])
    weights = (torch.rand(21, dtype=torch.float64, generator=generator) + 0.1).requires_grad_() if weighted else None
    directions = torch.randn(4, 3, dtype=torch.float64, generator=generator).requires_grad_()
    reference = torch.randn(4, 5, dtype=torch.float64, generator=generator).requires_grad_()

    def layer(points, weights, directions, reference):
        theta = torch.nn.functional.normalize(directions, dim=1)
        return sliced_embedding(points, offsets, weights, theta, reference, average, 0.3, True)

    assert torch.autograd.gradcheck(layer, (points, weights, directions, reference))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 8, 20])
def test_gradients_on_every_kernel_equal_those_in_float64(each_kernel, rule, weighted, dim):
    points, offsets, weights = ragged([1, 2, 17, 150, 40], dim, weighted)
    found = []
    for dtype in (torch.float32, torch.float64):
        pool = SlicedWassersteinPool(dim, 21, 16, quantiles=rule).to(dtype)
        p, o, w = tensors(points, offsets, weights, dtype)
        p.requires_grad_()
        if weighted:
            w.requires_grad_()
        vectors = pool(p, o, weights=w)
        vectors.square().sum().backward()
        found.append([vectors, p.grad, pool.directions.grad, pool.reference.grad, *([w.grad] if weighted else [])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_some_inputs_only(rule):
    points, offsets, weights = tensors(*ragged([5, 9], 3, True))
    full = SlicedWassersteinPool(3, 5, 4, quantiles=rule)
    p, w = points.clone().requires_grad_(), weights.clone().requires_grad_()
    full(p, offsets, weights=w).sum().backward()
    still = SlicedWassersteinPool(3, 5, 4, quantiles=rule, learn_slices=False, learn_reference=False)
    assert not list(still.parameters())
    assert sorted(still.state_dict()) == ["directions", "reference"]
    only = points.clone().requires_grad_()
    still(only, offsets, weights=weights).sum().backward()
    torch.testing.assert_close(only.grad, p.grad)
    only = weights.clone().requires_grad_()
    still(points, offsets, weights=only).sum().backward()
    torch.testing.assert_close(only.grad, w.grad)
    assert not still(points, offsets).requires_grad


def test_a_slice_has_no_gradient_along_itself():
    points, offsets, _ = tensors(*ragged([5, 9], 3))
    pool = SlicedWassersteinPool(3, 5, 4)
    with torch.no_grad():
        pool.directions.mul_(3.0)
    pool(points, offsets).square().sum().backward()
    torch.testing.assert_close((pool.directions.grad * pool.directions).sum(1), torch.zeros(5), atol=1e-6, rtol=0)


def test_weights_count_by_their_ratios():
    points, offsets, weights = tensors(*ragged([5, 9], 3, True))
    pool = SlicedWassersteinPool(3, 5, 4)
    scaled = weights * torch.tensor([2.0] * 5 + [7.0] * 9)
    torch.testing.assert_close(pool(points, offsets, weights=scaled), pool(points, offsets, weights=weights))
    w = weights.requires_grad_()
    pool(points, offsets, weights=w).square().sum().backward()
    for part in (slice(0, 5), slice(5, 14)):  # no gradient along what changes nothing
        assert abs(float((w.grad[part] * weights.detach()[part]).sum())) < 1e-6
    assert (w.grad[weights == 0] == 0).all()


# ---- batches


def same_batches(dim=3, weighted=True):
    """The same sets, ragged, nested (both layouts) and padded (by lengths, by a prefix, and by a scattered mask)."""
    points, offsets, weights = tensors(*ragged([3, 7, 1], dim, weighted, seed=2))
    parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(offsets)]
    yield "ragged", (points, offsets), {"weights": weights}
    yield "ragged int32", (points, offsets.int()), {"weights": weights}
    for layout in (torch.jagged, torch.strided):
        nested = torch.nested.nested_tensor([points[part] for part in parts], layout=layout)
        w = torch.nested.nested_tensor([weights[part] for part in parts], layout=layout)
        yield str(layout), (nested,), {"weights": w}
    padded, w = torch.full((3, 7, dim), torch.nan), torch.full((3, 7), torch.nan)
    for i, part in enumerate(parts):
        padded[i, : part.stop - part.start], w[i, : part.stop - part.start] = points[part], weights[part]
    lengths = offsets.diff()
    yield "lengths", (padded,), {"weights": w, "lengths": lengths}
    yield "mask", (padded,), {"weights": w, "mask": torch.arange(7) < lengths[:, None]}
    turned = torch.flip(padded, [1]), torch.flip(w, [1])
    yield "scattered", (turned[0],), {"weights": turned[1], "mask": ~torch.isnan(turned[1])}


BATCHES = {name: (arguments, options) for name, arguments, options in same_batches()}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", [*BATCHES])
def test_every_kind_of_batch_is_the_same(name):
    pool = SlicedWassersteinPool(3, 5, 4)
    (points, *rest), options = BATCHES[name]
    expected = pool(*BATCHES["ragged"][0], **BATCHES["ragged"][1])
    torch.testing.assert_close(pool(points, *rest, **options), expected, atol=1e-7, rtol=0)
    without = pool(*BATCHES["ragged"][0])
    options = {key: value for key, value in options.items() if key != "weights"}
    torch.testing.assert_close(pool(points, *rest, **options), without, atol=1e-7, rtol=0)
    leaf = points.detach().clone().requires_grad_()
    pool(leaf, *rest, **options).square().sum().backward()
    total = leaf.grad.unbind() if leaf.grad.is_nested else [leaf.grad]
    assert sum(float(each.square().sum()) for each in total) == pytest.approx(_reference_gradient(pool), rel=1e-5)


def _reference_gradient(pool):
    points, offsets = BATCHES["ragged"][0]
    leaf = points.clone().requires_grad_()
    pool(leaf, offsets).square().sum().backward()
    return float(leaf.grad.square().sum())


def test_a_padded_batch_without_padding():
    pool, points = SlicedWassersteinPool(2, 5, 4), torch.randn(6, 8, 2)
    torch.testing.assert_close(pool(points), pool(points.reshape(48, 2), torch.arange(7) * 8))


def test_an_empty_batch():
    pool = SlicedWassersteinPool(3, 5, 4)
    for dtype in (torch.float32, torch.float64):
        points = torch.zeros((0, 3), dtype=dtype, requires_grad=True)
        found = pool.to(dtype)(points, torch.tensor([0]))
        assert found.shape == (0, 20)
        found.sum().backward()
        assert points.grad.shape == (0, 3)
        assert (pool.directions.grad == 0).all()
    assert pool(torch.zeros((0, 9, 3), dtype=dtype)).shape == (0, 20)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    points, offsets, weights = tensors(*ragged([5, 9], 3, True))
    pool = SlicedWassersteinPool(3, 5, 4)
    half = points.to(dtype).requires_grad_()
    found = pool(half, offsets, weights=weights)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, pool(points.to(dtype).float(), offsets, weights=weights))
    found.sum().backward()
    assert half.grad.dtype == dtype
    halved = copy.deepcopy(pool).to(dtype)
    assert halved(half, offsets).dtype == torch.float32


def test_autocast():
    torch.manual_seed(0)
    points, offsets, _ = tensors(*ragged([5, 9], 3))
    network, pool = torch.nn.Linear(3, 4), SlicedWassersteinPool(4, 6, 4)
    for module in (pool, copy.deepcopy(pool)):
        network.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = network(points)
            found = module(inside, offsets)
        assert inside.dtype == torch.bfloat16
        torch.testing.assert_close(found, module(inside.float(), offsets))
        found.square().sum().backward()
        assert network.weight.grad.abs().sum() > 0
    double = copy.deepcopy(pool).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # also where it runs on torch's own products
        exact = double(points.new_tensor(np.random.default_rng(0).normal(size=(14, 4))).double(), offsets)
    again = double(points.new_tensor(np.random.default_rng(0).normal(size=(14, 4))).double(), offsets)
    torch.testing.assert_close(exact, again, atol=1e-14, rtol=0)


# ---- what is refused

POINTS, OFFSETS = torch.zeros(5, 3), torch.tensor([0, 2, 5])
NAN, INFINITE = POINTS.clone(), POINTS.clone()
NAN[3, 1], INFINITE[1, 2] = torch.nan, -torch.inf


@pytest.mark.parametrize(
    ("arguments", "options", "words", "fields"),
    [
        ((POINTS,), {}, "no offsets", {"argument": "offsets"}),
        ((POINTS[0],), {}, "1-D", {"argument": "points"}),
        ((POINTS.numpy(),), {}, "must be a tensor, not ndarray", {"argument": "points"}),
        ((POINTS[:, :2], OFFSETS), {}, "has 2 features, expected 3", {"argument": "points"}),
        ((POINTS.double(), OFFSETS), {}, "torch.float64, the slices are torch.float32", {"argument": "points"}),
        ((POINTS.long(), OFFSETS), {}, "convert it", {"argument": "points"}),
        ((POINTS.to("meta"), OFFSETS), {}, "is on meta, the slices are on cpu", {"argument": "points"}),
        ((POINTS, OFFSETS.float()), {}, "must be n + 1 integers", {"argument": "offsets"}),
        ((POINTS, [0, 2, 5]), {}, "must be a tensor, not list: pass torch.as_tensor(offsets)", {"argument": "offsets"}),
        ((POINTS, torch.tensor([0, 2, 6])), {}, "must end at the number of points", {"argument": "offsets"}),
        ((POINTS, torch.tensor([0, 4, 2, 5])), {}, "run backwards", {"argument": "offsets"}),
        ((POINTS, torch.tensor([0, 2, 2, 5])), {}, "set 1 is empty", {"set": 1}),
        ((NAN, OFFSETS), {}, "set 1, element 1, feature 1 is nan", {"set": 1, "element": 1, "feature": 1}),
        ((INFINITE, OFFSETS), {}, "set 0, element 1, feature 2 is -inf", {"set": 0, "element": 1}),
        ((POINTS, OFFSETS), {"weights": torch.ones(4)}, "shape", {"argument": "weights"}),
        ((POINTS, OFFSETS), {"weights": np.ones(5)}, "not ndarray: pass torch.as_tensor(weights)", {}),
        ((POINTS, OFFSETS), {"weights": -torch.ones(5)}, "has the weight -1.0", {"set": 0, "element": 0}),
        ((POINTS, OFFSETS), {"weights": torch.zeros(5)}, "all zero", {"set": 0}),
        ((POINTS, OFFSETS), {"weights": torch.ones(5).double()}, "torch.float64", {"argument": "weights"}),
        ((POINTS, OFFSETS), {"lengths": OFFSETS}, "leave lengths out", {"argument": "lengths"}),
        ((POINTS[None],), {"offsets": OFFSETS}, "leave offsets out", {"argument": "offsets"}),
        ((POINTS[None],), {"lengths": [2]}, "not list: pass torch.as_tensor(lengths)", {"argument": "lengths"}),
        ((POINTS[None],), {"mask": np.ones((1, 5), bool)}, "not ndarray: pass torch.as_tensor(mask)", {}),
        ((POINTS[None],), {"lengths": torch.tensor([0])}, "set 0 is empty", {"set": 0}),
        ((POINTS[None],), {"lengths": torch.tensor([6])}, "holds 0 to 5", {"set": 0}),
        ((POINTS[None],), {"lengths": torch.tensor([1, 2])}, "must be 1 integers", {"argument": "lengths"}),
        ((POINTS[None],), {"mask": torch.ones(1, 5)}, "must be torch.bool", {"argument": "mask"}),
        ((POINTS[None],), {"mask": torch.ones(1, 5) > 0, "lengths": torch.tensor([1])}, "both", {"argument": "mask"}),
        ((POINTS[None],), {"weights": torch.ones(5)}, "give one weight for each element", {"argument": "weights"}),
    ],
)
def test_wrong_batches(arguments, options, words, fields):
    pool = SlicedWassersteinPool(3, 5, 4)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        pool(*arguments, **options)
    assert {name: getattr(caught.value, name) for name in fields} == fields


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wrong_nested_batches():
    pool = SlicedWassersteinPool(3, 5, 4)
    for layout in (torch.jagged, torch.strided):
        with pytest.raises(InputError, match="2 features, expected 3"):
            pool(torch.nested.nested_tensor([torch.zeros(2, 2)], layout=layout))
        with pytest.raises(InputError, match="is empty") as caught:
            pool(torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(0, 3)], layout=layout))
        assert caught.value.set == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_weights_of_other_sizes():
    pool = SlicedWassersteinPool(3, 5, 4, check=False)
    layouts = torch.jagged, torch.strided
    for of_points, of_weights in itertools.product(layouts, layouts):
        points = torch.nested.nested_tensor([torch.randn(n, 3) for n in (4, 2, 5)], layout=of_points)

        def weights(*sizes, layout=of_weights):
            return torch.nested.nested_tensor([torch.ones(n) for n in sizes], layout=layout)

        with pytest.raises(InputError, match="set 1 of points has 2 elements and 5 weights") as caught:
            pool(points, weights=weights(4, 5, 2))
        assert (caught.value.set, caught.value.argument) == (1, "weights")
        with pytest.raises(InputError, match="weights are those of 2 sets, points has 3"):
            pool(points, weights=weights(6, 5))
        torch.testing.assert_close(pool(points, weights=weights(4, 2, 5)), pool(points))
        with pytest.raises(InputError, match="are a nested tensor, and points is not one"):
            pool(torch.zeros(1, 11, 3), weights=weights(11))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_reference_that_is_not_finite(value, dtype):
    """As of a network that has diverged."""
    pool, points = SlicedWassersteinPool(3, 5, 4).to(dtype), POINTS.to(dtype)
    with torch.no_grad():
        pool.reference[2, 1] = value
    with pytest.raises(InputError, match=f"^reference is {value} in row 2, column 1: give it finite numbers") as caught:
        pool(points, OFFSETS)
    assert caught.value.argument == "reference"
    pool.check = False
    assert not torch.isfinite(pool(points, OFFSETS)).all()
    pool.check = True
    with torch.no_grad():
        pool.directions[0] = value  # of both, the first row is named
    with pytest.raises(InputError, match="slices have no direction in row 0, which holds numbers that are not finite"):
        pool(points, OFFSETS)


class Waits(TorchDispatchMode):
    """Counts the operations that wait for a GPU, since their result is a number, or has a size that depends on data."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.name() in ("aten::nonzero", "aten::_local_scalar_dense")
        return func(*args, **(kwargs or {}))


def test_the_reference_is_checked_without_another_wait():
    counts = []
    for reference in ((), (torch.zeros(5, 4),)):
        with Waits() as waits:
            check_directions(torch.eye(3)[[0, 1, 2, 0, 1]], *reference)
        counts.append(waits.count)
    assert counts == [1, 1]


def test_checking_can_be_off():
    pool = SlicedWassersteinPool(3, 5, 4, check=False)
    assert torch.isfinite(pool(NAN, OFFSETS)[0]).all()
    for offsets, words in (([0, 2, 9], "offsets must run"), ([0, 2, 2, 5], "at least one point")):
        with pytest.raises(ValueError, match=words) as caught:  # of the kernel, which never reads outside
            pool(POINTS, torch.tensor(offsets))
        assert not isinstance(caught.value, InputError)


def test_forward_mode_is_not_there():
    pool, points = SlicedWassersteinPool(3, 5, 4), torch.randn(2, 4, 3)
    with pytest.raises(RuntimeError, match=r"autograd\.Function"):
        torch.func.grad(lambda x: pool(x).sum())(points)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        pool(torch.autograd.forward_ad.make_dual(points, points))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_numbers_are_those_that_the_embedding_takes(dtype):
    pool, points = SlicedWassersteinPool(3, 5, 4).to(dtype), POINTS.to(dtype, copy=True)
    embedding = SlicedWasserstein(5, 4).fit([np.zeros((1, 3))])
    for value in (9e14, -9e14):
        points[3, 1] = value
        assert torch.isfinite(pool(points, OFFSETS)).all()
        assert np.isfinite(embedding.transform(Sets(points.numpy(), OFFSETS.numpy()))).all()
    for value in (2e15, -2e15, 3e38):
        points[3, 1] = value
        with pytest.raises(InputError, match=re.escape("set 1, element 1, feature 1 is ") + ".*beyond 1e") as caught:
            pool(points, OFFSETS)
        assert (caught.value.set, caught.value.element, caught.value.feature) == (1, 1, 1)
        with pytest.raises(InputError, match="beyond"):
            embedding.transform([points[2:].numpy()])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"reference": "barycenter"}, InputError, "from_embedding"),
        ({"reference": "middle"}, InputError, "not known"),
        ({"slices": slosh.slices.Circular(1.0)}, UnsupportedError, "not linear"),
        ({"slices": "even"}, InputError, "even"),
        ({"quantiles": "median"}, InputError, "average"),
        ({"n_quantiles": 0}, InputError, "n_quantiles"),
        ({"check": "yes"}, InputError, "check"),
        ({"dim": 0}, InputError, "dim"),
    ],
)
def test_wrong_parameters(options, error, words):
    with pytest.raises(error, match=words):
        SlicedWassersteinPool(**{"dim": 3, "n_slices": 4, **options})


def test_what_cannot_become_a_layer():
    with pytest.raises(InputError, match="fitted"):
        SlicedWassersteinPool.from_embedding(SlicedWasserstein())
    circular = SlicedWasserstein(4, slices=slosh.slices.Circular(1.0)).fit([POINTS.numpy()])
    with pytest.raises(UnsupportedError, match="not linear"):
        SlicedWassersteinPool.from_embedding(circular)
    far = SlicedWasserstein(4).fit(Sets(POINTS.numpy(), OFFSETS.numpy()).with_origin([1.0, 2.0, 3.0]))
    with pytest.raises(UnsupportedError, match="origin"):
        SlicedWassersteinPool.from_embedding(far)


# ---- as a module


def test_as_a_module():
    pool = SlicedWassersteinPool(3, 5, 4, random_state=1)
    assert repr(pool) == "SlicedWassersteinPool(dim=3, n_slices=5, n_quantiles=4, quantiles='average')"
    assert pool.vector_length == 20
    points, offsets, _ = tensors(*ragged([5, 9], 3))
    other = SlicedWassersteinPool(3, 5, 4, random_state=2)
    assert not torch.equal(other(points, offsets), pool(points, offsets))
    other.load_state_dict(pool.state_dict())
    assert torch.equal(other(points, offsets), pool(points, offsets))
    assert torch.equal(copy.deepcopy(pool)(points, offsets), pool(points, offsets))
    assert torch.equal(pickle.loads(pickle.dumps(pool))(points, offsets), pool(points, offsets))
    assert SlicedWassersteinPool(1, 8, 4).n_slices == 1  # one is exact
    assert SlicedWassersteinPool(3).n_slices == SlicedWasserstein().fit([POINTS.numpy()]).n_slices_


def test_tensors_in_any_layout_of_memory():
    """A gradient that is written into a copy would be lost."""
    points, offsets, weights = tensors(*ragged([5, 9], 4, True))
    reference = torch.zeros(6, 3)
    found = []
    for turn in (lambda x: x, lambda x: x.T.contiguous().T if x.dim() == 2 else torch.stack([x, x], 1)[:, 0]):
        leaves = [turn(x).detach().requires_grad_() for x in (points, weights, unit(6, 4).float(), reference)]
        p, w, theta, r = leaves
        vectors = sliced_embedding(p, offsets, w, theta, r, True, 1.0, True)
        vectors.backward(turn(torch.linspace(-1, 1, vectors.numel()).view_as(vectors)))
        found.append([vectors, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*found)
    assert (found[0][3] != 0).any()


def test_offsets_in_any_layout_of_memory():
    points, offsets, _ = tensors(*ragged([5, 9, 2], 3))
    apart = torch.stack([offsets, torch.full_like(offsets, 7)], 1)[:, 0]
    assert not apart.is_contiguous()
    pool = SlicedWassersteinPool(3, 5, 4)
    assert torch.equal(pool(points, apart), pool(points, offsets))
    batch = ragged_batch(points, apart, None, None, None, dim=3, like=points)
    assert batch.offsets.is_contiguous()  # the kernels of a GPU read their memory


@pytest.fixture
def other_defaults():
    """A program that computes in float64, and makes its tensors elsewhere."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def _vectors_and_gradients(of, weighted):
    points, offsets, weights = (None if x is None else torch.from_numpy(x) for x in ragged([5, 9, 2], 3, weighted))
    p = points.to(of).detach().requires_grad_()
    theta, reference = (torch.from_numpy(np.ones((4, n)) * np.arange(1, 5)[:, None]).to(of) for n in (3, 2))
    w = None if weights is None else weights.to(of)
    found = sliced_embedding(p, offsets, w, theta, reference, True, 1.0, True)
    found.square().sum().backward()
    x, y = ((p[rows][None], None if w is None else w[rows][None]) for rows in (slice(0, 5), slice(5, 14)))
    far = sliced_wasserstein(x[0], y[0], x_weights=x[1], y_weights=y[1], slices=theta / theta.norm(dim=1, keepdim=True))
    return [t.detach().numpy() for t in (found, p.grad, far)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("of", [torch.float32, torch.float64])
def test_what_torch_takes_by_default_changes_no_number(of, weighted, request):
    expected = _vectors_and_gradients(of, weighted)
    request.getfixturevalue("other_defaults")
    for one, other in zip(_vectors_and_gradients(of, weighted), expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_the_threads_change_no_bit():
    points, offsets, _ = tensors(*ragged(np.random.default_rng(0).integers(1, 200, 100), 3))
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            pool, p = SlicedWassersteinPool(3, 37, 8), points.clone().requires_grad_()
            vectors = pool(p, offsets)
            vectors.backward(torch.linspace(-1, 1, vectors.numel()).view_as(vectors))
            found.append([x.detach().numpy().tobytes() for x in (vectors, p.grad, pool.directions.grad)])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_the_operator_is_what_torch_expects():
    points, offsets, weights = tensors(*ragged([5, 9], 3, True))
    for dtype in (torch.float32, torch.float64):
        theta, reference = unit(4, 3).to(dtype).requires_grad_(), torch.zeros(4, 5, dtype=dtype).requires_grad_()
        for w in (None, weights.to(dtype).requires_grad_()):
            arguments = (points.to(dtype).requires_grad_(), offsets, w, theta, reference, True, 0.5, True)
            torch.library.opcheck(sliced_embedding, arguments)


def test_lengths_are_checked_in_what_is_compiled():
    pool, padded = SlicedWassersteinPool(3, 4, 4), torch.randn(2, 5, 3)
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    good = torch.tensor([2, 5])
    assert torch.equal(compiled(padded, lengths=good), pool(padded, lengths=good))
    for wrong in (-1, 9):
        with pytest.raises(InputError, match=f"set 1 has the length {wrong}, but the padded batch holds 0 to 5"):
            compiled(padded, lengths=torch.tensor([2, wrong]))
