"""The layer within torch: compiled, and in two processes whose gradients are averaged."""

from __future__ import annotations

import copy
import os
import re
import selectors
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from optional_torch import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from slosh.errors import InputError
from slosh.slices import Linear, Slicer, directions
from slosh.torch import SlicedWassersteinPool, sliced_wasserstein


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Each test compiles by itself."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def sets(seed=0, n_points=30):
    torch.manual_seed(seed)
    return torch.randn(n_points, 3), torch.tensor([0, 10, 11, n_points])


@pytest.mark.parametrize("rule", ["average", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_without_a_break(rule, dtype):
    pool = SlicedWassersteinPool(3, 5, 4, quantiles=rule).to(dtype)
    weights = torch.rand(30, dtype=dtype) + 0.1
    points, offsets = sets()
    found = []
    layer = compiled(pool)
    for function in (pool, layer):
        pool.zero_grad()
        p, w = points.to(dtype).requires_grad_(), weights.clone().requires_grad_()
        vectors = function(p, offsets, weights=w)
        vectors.square().sum().backward()
        found.append([vectors, p.grad, w.grad, pool.directions.grad.clone(), pool.reference.grad.clone()])
    torch.testing.assert_close(*found)
    points, offsets = sets(1, 44)  # other sizes
    torch.testing.assert_close(layer(points.to(dtype), offsets), pool(points.to(dtype), offsets))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_by_inductor():
    """With the compiler that is used by default, inside a network."""
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh())
    pool = SlicedWassersteinPool(8, 6, 4)
    points, offsets = sets()

    def loss(points):
        return pool(network(points), offsets).square().sum()

    expected = loss(points)
    found = torch.compile(loss, fullgraph=True)(points)
    torch.testing.assert_close(found, expected)
    found.backward()
    one = pool.directions.grad.clone()
    pool.zero_grad()
    loss(points).backward()
    torch.testing.assert_close(pool.directions.grad, one)


@pytest.mark.parametrize("kind", ["lengths", "mask"])
def test_compiled_on_padded_batches(kind):
    """The number of elements is not known when a batch is compiled: what is left over must not be seen."""
    torch.manual_seed(0)
    pool, points = SlicedWassersteinPool(3, 5, 4), torch.randn(4, 7, 3)
    lengths = torch.tensor([1, 7, 3, 2])
    padding = {"lengths": lengths} if kind == "lengths" else {"mask": torch.arange(7) < lengths[:, None]}
    points[torch.arange(7) >= lengths[:, None]] = torch.nan
    weights = torch.rand(4, 7)
    for w in (None, weights):
        found = []
        for function in (pool, compiled(pool)):
            leaf = points.clone().requires_grad_()
            vectors = function(leaf, weights=w, **padding)
            vectors.square().sum().backward()
            found.append([vectors, leaf.grad])
        torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)


def test_compiled_on_nested_batches():
    pool = SlicedWassersteinPool(3, 5, 4)
    points = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(5, 3)], layout=torch.jagged)
    weights, other = (
        torch.nested.nested_tensor([torch.rand(n) + 0.1 for n in sizes], layout=torch.jagged)
        for sizes in ((2, 5), (5, 2))
    )
    layer = compiled(pool)
    torch.testing.assert_close(layer(points, weights=weights), pool(points, weights=weights))
    with pytest.raises(InputError, match="set 0 of points has 2 elements and 5 weights"):
        layer(points, weights=other)


def test_compiled_loss():
    points, offsets = sets()
    other = points.flip(0) + 1

    def loss(x):
        return sliced_wasserstein((x, offsets), (other, offsets), n_slices=7).sum()

    found = []
    for function in (loss, compiled(loss)):
        x = points.clone().requires_grad_()
        value = function(x)
        value.backward()
        found.append([value, x.grad])
    torch.testing.assert_close(*found)


def seeded_loss(x, y, seed, slices="auto"):
    return sliced_wasserstein(x, y, random_state=seed, slices=slices, squared=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_a_compiled_loss_takes_another_seed_without_another_graph(backend, dim):
    """Of more than 8 graphs of one function torch compiles none."""
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    x, y = torch.randn(2, 5, dim), torch.randn(2, 8, dim)
    graphs = CompileCounterWithBackend(backend)
    loss = torch.compile(seeded_loss, fullgraph=True, backend=graphs)
    for seed in (5, 6, 7, 2**32 - 1, 0, 1, *range(20, 40)):
        assert torch.equal(loss(x, y, seed), seeded_loss(x, y, seed))
    assert graphs.frame_count <= 4  # 2 of torch 2.13; another version may have graphs of their own for 0 and 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_without_a_seed_every_compiled_call_draws(backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    x, y = torch.randn(2, 5, 3), torch.randn(2, 8, 3)
    graphs = CompileCounterWithBackend(backend)
    loss = torch.compile(seeded_loss, fullgraph=True, backend=graphs)
    assert len({tuple(loss(x, y, None).tolist()) for _ in range(10)}) == 10
    assert graphs.frame_count == 1
    once, again = (torch.manual_seed(0) and loss(x, y, None) for _ in range(2))
    assert torch.equal(once, again)

    def twice(x, y):
        return seeded_loss(x, y, None), seeded_loss(x, y, None)

    one, other = torch.compile(twice, fullgraph=True, backend=backend)(x, y)
    assert not torch.equal(one, other)


def test_gradients_are_along_the_slices_that_were_drawn():
    """Also where the forward pass is repeated in the backward pass."""
    x, y = torch.randn(2, 5, 3), torch.randn(2, 8, 3)

    def drawn(x):
        return seeded_loss(x, y, None)

    def drawn_again(x):
        return checkpoint(drawn, x, use_reentrant=False)

    found = []
    for function in (drawn, compiled(drawn), drawn_again, compiled(drawn_again)):
        leaf = x.clone().requires_grad_()
        torch.manual_seed(0)
        value = function(leaf)
        value.sum().backward()
        found.append([value, leaf.grad])
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])


def test_a_compiled_loss_takes_other_slices():
    x, y = torch.randn(2, 5, 3), torch.randn(2, 8, 3)
    loss = compiled(seeded_loss)
    for seed in range(3):
        array = np.random.default_rng(seed).normal(size=(4, 3))
        for slices in (array, array.tolist(), Linear(array), Linear("axis"), "axis"):
            assert torch.equal(loss(x, y, 0, slices), seeded_loss(x, y, 0, slices))


class OwnSlicer(Slicer):
    """Linear slices of a kind that torch.compile does not know."""

    def _draw(self, dim, n_slices, random):
        self.directions_ = directions("random", 4, dim, random)
        return 4


@pytest.mark.parametrize(
    "options",
    [
        {"random_state": np.random.RandomState(5)},
        {"random_state": np.int64(5)},
        {"slices": OwnSlicer()},
        {"n_slices": np.int64(4)},
    ],
)
def test_what_a_graph_cannot_draw_is_drawn_outside_of_it(options):
    x, y = torch.randn(2, 5, 3), torch.randn(2, 8, 3)

    def loss(x, options):
        return sliced_wasserstein(x, y, **options, squared=True)

    with pytest.raises(RuntimeError, match="or draw outside of it and pass slices="):
        compiled(loss)(x, options)
    torch.compiler.reset()
    broken = torch.compile(loss, backend="aot_eager")
    expected = loss(x, copy.deepcopy(options))  # a RandomState changes when it is drawn from
    assert torch.equal(broken(x, copy.deepcopy(options)), expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "random_state=-1 must be"),
        ({"seed": 2**32}, "random_state=4294967296 must be"),
        ({"seed": 0, "slices": "spiral"}, "slices='spiral' is not known"),
        ({"seed": 0, "slices": np.zeros((2, 3))}, "row 0 is zero"),
        ({"seed": 0, "slices": np.ones((2, 4))}, "slices"),
    ],
)
def test_what_cannot_be_drawn_when_compiled(options, words):
    x = torch.randn(2, 5, 3)
    for function in (seeded_loss, compiled(seeded_loss)):
        with pytest.raises(InputError, match=re.escape(words)):
            function(x, x, **options)


def test_checks_are_made_when_compiled():
    layer = compiled(SlicedWassersteinPool(3, 5, 4))
    points, offsets = sets()
    points[10] = torch.nan
    with pytest.raises(InputError, match="set 1, element 0") as caught:
        layer(points, offsets)
    assert caught.value.set == 1


WORKER = """
import os, sys
import torch
import torch.distributed as distributed
from slosh.torch import SlicedWassersteinPool

rank, rendezvous, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
torch.manual_seed(0)
points, offsets = torch.randn(4, 20, 3), None
network = torch.nn.Sequential(torch.nn.Linear(3, 4), SlicedWassersteinPool(4, 6, 5))
parallel = torch.nn.parallel.DistributedDataParallel(network)
parallel(points[2 * rank : 2 * rank + 2]).square().mean().backward()
if rank == 0:
    torch.save([p.grad for p in network.parameters()], out)
print("done", flush=True)
sys.stdin.read()  # until the test ends it: who leaves first breaks the connection of the other
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_processes_average_their_gradients(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    arguments = [str(tmp_path / "rendezvous"), str(tmp_path / "gradients")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    logs = [tmp_path / f"log {rank}" for rank in (0, 1)]
    workers = []
    for rank, log in enumerate(logs):
        command = [sys.executable, str(script), str(rank), *arguments]
        with log.open("w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            workers.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    try:
        # Until both are done, or one has ended, after which the other would wait for it.
        with selectors.DefaultSelector() as waiting:
            for worker in workers:
                waiting.register(worker.stdout, selectors.EVENT_READ)
            while waiting.get_map():
                for key, _ in waiting.select():
                    assert key.fileobj.readline() == "done\n", "".join(log.read_text() for log in logs)
                    waiting.unregister(key.fileobj)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    torch.manual_seed(0)
    points = torch.randn(4, 20, 3)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), SlicedWassersteinPool(4, 6, 5))
    network(points).square().mean().backward()
    averaged = torch.load(Path(arguments[1]), weights_only=True)
    assert len(averaged) == 4
    for one, other in zip(averaged, network.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, atol=1e-7, rtol=1e-5)


def test_learning_turns_the_slices():
    """Two kinds of sets that differ along one axis only: training turns the slices towards it."""
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    points = torch.randn(64, 40, 6)
    points[:, :, 0] *= torch.where(labels == 1, 1.6, 0.6)[:, None]
    pool = SlicedWassersteinPool(6, 4, 8)
    network = torch.nn.Sequential(pool, torch.nn.Linear(32, 2))
    before = pool.slices[:, 0].detach().abs()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(points), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert pool.slices[:, 0].detach().abs().max() > max(before.max(), 0.9)


def test_torch_is_not_imported_unless_it_is_used():
    checks = """
import sys
import slosh, slosh.torch
assert "SlicedWassersteinPool" in dir(slosh.torch)
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    slosh.torch.SlicedWassersteinPool
except slosh.errors.MissingExtra as error:
    assert error.extra == "torch" and "slosh[torch]" in str(error)
else:
    raise AssertionError("no error")
try:
    slosh.torch.Pool
except AttributeError:
    pass
"""
    subprocess.run([sys.executable, "-c", checks], check=True, timeout=240)
