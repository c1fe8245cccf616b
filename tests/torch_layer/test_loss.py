"""The distance of two batches: against an oracle, `slosh.distance`, finite differences, and its own float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional_torch import torch
from plain_oracle import distances, ragged

import slosh
from slosh import Sets
from slosh.errors import InputError, UnsupportedError
from slosh.torch import sliced_wasserstein
from slosh.torch.drawing import own_directions, seeded_directions
from slosh.torch.operators import sliced_transport


def tensor(x, dtype=torch.float32):
    return None if x is None else torch.tensor(x, dtype=dtype)


def directions(n_slices, dim, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n_slices, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def call(a, b, theta, dtype=torch.float32, **options):
    sides = [(tensor(points, dtype), torch.tensor(offsets)) for points, offsets, _ in (a, b)]
    weights = {"x_weights": tensor(a[2], dtype), "y_weights": tensor(b[2], dtype)}
    return sliced_wasserstein(*sides, **weights, slices=tensor(theta, dtype), **options)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=6),
    dim=st.sampled_from([1, 2, 5]),
    weighted=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(["normal", "ties"]),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_distances_equal_the_oracle(sizes, dim, weighted, kind, double, seed):
    a, b = (ragged([pair[k] for pair in sizes], dim, weighted[k], seed + k, kind) for k in (0, 1))
    theta = directions(6, dim, seed)
    found = call(a, b, theta, torch.float64 if double else torch.float32)
    np.testing.assert_allclose(found, distances(a, b, theta), atol=1e-10 if double else 2e-6)
    squares = call(a, b, theta, torch.float64 if double else torch.float32, squared=True)
    np.testing.assert_allclose(squares, distances(a, b, theta) ** 2, atol=1e-10 if double else 1e-5)


@pytest.mark.parametrize("slices", ["auto", "random", "orthogonal"])
def test_the_same_seed_is_the_same_distance(slices):
    x, y = (np.random.default_rng(k).normal(size=(4, 20 + k, 3)).astype(np.float32) for k in (0, 1))
    found = sliced_wasserstein(torch.tensor(x), torch.tensor(y), n_slices=9, slices=slices, random_state=5)
    expected = [slosh.distance(a, b, n_slices=9, slices=slices, random_state=5) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_no_seed_is_one_of_torch():
    x, y = torch.randn(2, 5, 3), torch.randn(2, 8, 3)
    assert len({tuple(sliced_wasserstein(x, y, random_state=None).tolist()) for _ in range(10)}) == 10
    once, again = (torch.manual_seed(0) and sliced_wasserstein(x, y, random_state=None) for _ in range(2))
    assert torch.equal(once, again)


def test_sizes_up_to_5000():
    a, b = ragged([5000, 1, 150], 2, True, 0), ragged([1, 4999, 3000], 2, False, 1)
    theta = directions(5, 2)
    np.testing.assert_allclose(call(a, b, theta), distances(a, b, theta), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradcheck(weighted):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x, y, theta = draw(21, 3).requires_grad_(), draw(30, 3).requires_grad_(), draw(4, 3).requires_grad_()
    u, v = ((draw(n).abs() + 0.1).requires_grad_() if weighted else None for n in (21, 30))
    x_offsets, y_offsets = torch.tensor([0, 1, 3, 8, 21]), torch.tensor([0, 4, 8, 9, 30])
    for squared in (True, False):

        def loss(x, y, u, v, theta, squared=squared):
            options = {"x_weights": u, "y_weights": v, "slices": theta, "squared": squared}
            return sliced_wasserstein((x, x_offsets), (y, y_offsets), **options)

        assert torch.autograd.gradcheck(loss, (x, y, u, v, theta))


@pytest.mark.parametrize("weighted", [(False, False), (True, False), (True, True)])
def test_gradients_on_every_kernel_equal_those_in_float64(each_kernel, weighted):
    a, b = ragged([1, 2, 17, 150, 40], 3, weighted[0], 0), ragged([7, 1, 17, 60, 99], 3, weighted[1], 1)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [tensor(each, dtype) for each in (a[0], a[2], b[0], b[2], directions(21, 3))]
        for leaf in leaves:
            if leaf is not None:
                leaf.requires_grad_()
        x, u, y, v, theta = leaves
        sides = (x, torch.tensor(a[1])), (y, torch.tensor(b[1]))
        loss = sliced_wasserstein(*sides, x_weights=u, y_weights=v, slices=theta)
        loss.sum().backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves if leaf is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-6, rtol=1e-5)


def test_equal_sets_have_no_gradient():
    points, _, _ = ragged([4], 3)
    for dtype in (torch.float32, torch.float64):
        x = tensor(points, dtype).requires_grad_()
        y = x.detach().flip(0)  # the same elements in another order
        loss = sliced_wasserstein(x[None], y[None])
        assert loss.item() == 0
        loss.sum().backward()
        assert (x.grad == 0).all()


def test_moving_one_set_onto_another():
    torch.manual_seed(0)
    x, y = torch.nn.Parameter(torch.randn(2, 30, 2)), torch.randn(2, 45, 2) + 4
    optimizer = torch.optim.Adam([x], lr=0.3)
    first = sliced_wasserstein(x, y).sum().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = sliced_wasserstein(x, y, squared=True).sum()
        loss.backward()
        optimizer.step()
    assert sliced_wasserstein(x, y).sum().item() < 0.1 * first


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_every_kind_of_batch_is_the_same():
    x, y = torch.randn(3, 5, 2), torch.randn(3, 8, 2)
    expected = sliced_wasserstein(x, y, slices=torch.eye(2))
    for layout in (torch.jagged, torch.strided):
        nested = torch.nested.nested_tensor(list(x.unbind()), layout=layout)
        torch.testing.assert_close(sliced_wasserstein(nested, y, slices=torch.eye(2)), expected)
        torch.testing.assert_close(sliced_wasserstein(nested, y), sliced_wasserstein(x, y))
    pair = (y.reshape(24, 2), torch.arange(4) * 8)
    torch.testing.assert_close(sliced_wasserstein(x, pair, slices=torch.eye(2)), expected)
    torch.testing.assert_close(sliced_wasserstein(list(pair), x, slices=torch.eye(2)), expected)
    half = sliced_wasserstein(x.bfloat16(), y.bfloat16(), slices=torch.eye(2))
    assert half.dtype == torch.float32
    torch.testing.assert_close(sliced_wasserstein(x, y, slices=torch.eye(2).bfloat16()), expected)
    assert sliced_wasserstein(x[:0], y[:0]).shape == (0,)


def test_with_weights_it_is_the_distance_of_slosh():
    a, b = ragged([6, 30], 2, True, 0), ragged([9, 11], 2, True, 1)
    theta = directions(7, 2).astype(np.float32)
    expected = slosh.pairwise(Sets(*a), Sets(*b), slices=theta).diagonal()
    np.testing.assert_allclose(call(a, b, theta), expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("x", "y", "options", "words"),
    [
        (torch.zeros(2, 3, 2), torch.zeros(3, 3, 2), {}, "x has 2 sets, y has 3"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 1), {}, "y has 1 features, expected 2"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2).double(), {}, "or x.to(torch.float64)"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), {"slices": torch.eye(2).double()}, "or slices.to(torch.float32)"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), {"slices": torch.eye(2).long()}, "slices is torch.int64"),
        (torch.zeros(2, 3, 2), [torch.zeros(6, 2)], {}, "y is a list of 1, not a pair (points, offsets)"),
        (torch.zeros(2, 3, 2), [torch.zeros(6, 2), torch.zeros(3, 2)], {}, "pass (torch.cat(sets), their offsets)"),
        (torch.zeros(2, 3, 2), (torch.zeros(6, 2),) * 3, {}, "y is a tuple of 3, not a pair"),
        (torch.zeros(2, 3, 2), (torch.zeros(6, 2), None), {}, "y is a tuple of 2, not a pair"),
        (torch.zeros(2, 3, 2), [np.zeros((6, 2)), np.zeros((3, 2))], {}, "pass (torch.cat(sets), their offsets)"),
        (torch.zeros(3, 2), torch.zeros(2, 3, 2), {}, "x is 2-D, and there are no offsets"),
        (np.zeros((2, 3, 2)), torch.zeros(2, 3, 2), {}, "x must be a tensor"),
        (torch.zeros(2, 3, 2), torch.full((2, 3, 2), torch.nan), {}, "set 0, element 0, feature 0 is nan"),
        (torch.full((2, 3, 2), 1e20), torch.zeros(2, 3, 2), {}, "set 0, element 0, feature 0 is 1e+20, beyond 1e+15"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), {"slices": torch.zeros(2)}, "must be (L, d)"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), {"x_weights": torch.zeros(2, 3)}, "all zero"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), {"y_weights": np.ones((2, 3))}, "torch.as_tensor(y_weights)"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), {"y_weights": torch.ones(6)}, "y_weights have the shape (6,)"),
    ],
)
def test_wrong_batches(x, y, options, words):
    with pytest.raises(InputError, match=re.escape(words)):
        sliced_wasserstein(x, y, **options)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.tensor(1.0), "must be (P, d) with offsets, (n, N, d) or a nested tensor, not 0-D: for one set x of"),
        (torch.zeros(3), "a nested tensor, not 1-D: for one set x of (N, d) pass x[None]"),
        (torch.zeros(0), "a nested tensor, not 1-D"),
        (torch.zeros(2, 3, 2, 1), "a nested tensor, not 4-D"),
        ((torch.tensor(1.0), torch.tensor([0, 1])), "a nested tensor, not 0-D"),
        ((torch.zeros(6, 2), np.array([0, 3, 6])), "has offsets of type ndarray, not a tensor: pass torch.as_tensor(o"),
        ((torch.zeros(6, 2), [0, 3, 6]), "has offsets of type list, not a tensor: pass torch.as_tensor(offsets)"),
        ((np.zeros((6, 2)), np.array([0, 3, 6])), "has points of type ndarray, not a tensor: pass torch.as_tensor(p"),
        ((np.zeros((6, 2)), torch.tensor([0, 3, 6])), "has points of type ndarray, not a tensor"),
    ],
)
def test_what_is_no_batch(wrong, words):
    good = torch.zeros(2, 3, 2)
    for name, sides in (("x", (wrong, good)), ("y", (good, wrong))):
        with pytest.raises(InputError, match=re.escape(words)) as error:
            sliced_wasserstein(*sides)
        assert str(error.value).startswith(name)
        assert error.value.argument == name


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("one", "layout", "dimensions"),
    [((3,), torch.strided, 2), ((3,), torch.jagged, 2), ((), torch.strided, 1)],
)
def test_what_is_nested_and_no_batch(one, layout, dimensions):
    wrong, good = torch.nested.nested_tensor([torch.zeros(one)], layout=layout), torch.zeros(1, 3, 2)
    for name, sides in (("x", (wrong, good)), ("y", (good, wrong))):
        with pytest.raises(InputError, match=f"{name} is a nested tensor of {dimensions} dimensions: nest sets"):
            sliced_wasserstein(*sides)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_weights_of_other_sizes(side, layout):
    sets = torch.nested.nested_tensor([torch.zeros(2, 2), torch.zeros(5, 2)], layout=layout)
    weights = torch.nested.nested_tensor([torch.ones(5), torch.ones(2)], layout=layout)
    with pytest.raises(InputError, match=f"set 0 of {side} has 2 elements and 5 weights") as caught:
        sliced_wasserstein(sets, sets, **{f"{side}_weights": weights})
    assert (caught.value.set, caught.value.argument) == (0, f"{side}_weights")


def test_slices_that_are_not_linear():
    with pytest.raises(UnsupportedError, match="not linear"):
        sliced_wasserstein(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), slices=slosh.slices.Circular(), n_slices=3)


def test_the_operator_is_what_torch_expects():
    a, b = ragged([5, 9], 3, True, 0), ragged([4, 11], 3, True, 1)
    for dtype in (torch.float32, torch.float64):
        x, y, theta = (tensor(each, dtype).requires_grad_() for each in (a[0], b[0], directions(4, 3)))
        for u, v in ((None, None), (tensor(a[2], dtype).requires_grad_(), tensor(b[2], dtype))):
            arguments = (x, torch.tensor(a[1]), u, y, torch.tensor(b[1]), v, theta, True)
            torch.library.opcheck(sliced_transport, arguments)


def test_the_operators_that_draw_are_what_torch_expects():
    for kind, dim, n_slices in (("auto", 1, 7), ("auto", 3, None), ("auto", 8, None), ("axis", 3, None), ("qmc", 6, 5)):
        torch.library.opcheck(seeded_directions, (kind, dim, n_slices, torch.tensor(3)))
    for dim in (1, 3):
        torch.library.opcheck(own_directions, (torch.ones(4, dim).double(), dim, None))


@pytest.mark.parametrize("squared", [False, True])
def test_what_is_no_number_has_no_distance_of_zero(squared):
    """A network that has diverged must not have a loss of zero."""
    x, y = torch.full((1, 5, 3), torch.nan), torch.randn(1, 8, 3)
    assert sliced_wasserstein(x.double(), y.double(), squared=squared, check=False).isnan().all()
    assert not sliced_wasserstein(x, y, squared=squared, check=False).isfinite().any()


@pytest.mark.parametrize("row", [0.0, torch.nan, torch.inf])
def test_slices_that_are_no_directions(row):
    slices = torch.eye(3)
    slices[1] = row
    with pytest.raises(InputError, match="row 1") as error:
        sliced_wasserstein(torch.randn(2, 5, 3), torch.randn(2, 8, 3), slices=slices)
    assert error.value.argument == "slices"


def test_errors_say_which_batch_they_are_about():
    good, bad = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    bad[1, 2, 0] = torch.nan
    for name, sides in (("x", (bad, good)), ("y", (good, bad))):
        with pytest.raises(InputError, match=f"^{name}: set 1, element 2, feature 0 is nan") as error:
            sliced_wasserstein(*sides)
        assert (error.value.argument, error.value.set, error.value.element) == (name, 1, 2)
        with pytest.raises(InputError, match=f"pass the pair .{name}, offsets., and for one set {name}.None.") as error:
            sliced_wasserstein(*(each[0] if each is bad else each for each in sides))
        weights = {f"{name}_weights": torch.full((2, 5), -1.0)}
        with pytest.raises(InputError, match=f"^{name}: set 0, element 0 has the weight") as error:
            sliced_wasserstein(good, good, **weights)
        assert error.value.argument == f"{name}_weights"


@pytest.mark.parametrize(
    ("given", "argument", "said"),
    [
        ({"check": "no"}, "check", "pass True, False or None"),
        ({"slices": torch.empty(0, 3)}, "slices", "must be .L, d. numbers"),
        ({"slices": torch.eye(3), "n_slices": 7}, "n_slices", "slices has 3 rows: leave n_slices out"),
        ({"slices": torch.eye(2)}, "x", "has 3 features, the slices have 2"),
    ],
)
def test_arguments_that_cannot_be_meant(given, argument, said):
    with pytest.raises(InputError, match=said) as error:
        sliced_wasserstein(torch.randn(2, 5, 3), torch.randn(2, 8, 3), **given)
    assert error.value.argument == argument
    with pytest.raises(InputError, match="has no features"):
        sliced_wasserstein(torch.empty(2, 5, 0), torch.empty(2, 5, 0))
