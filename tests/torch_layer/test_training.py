"""The layer within torch: compiled, and in two processes whose gradients are averaged."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from optional_torch import torch

from slosh.errors import InputError
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
