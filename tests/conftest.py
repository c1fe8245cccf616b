"""Shared by all tests: where the real data is, and a fixture that runs a test on every kernel of this machine."""

from __future__ import annotations

import os
import signal
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from builders import DATA
from slosh import Sets
from slosh.native import kernel

# A shell that starts the tests in the background lets them ignore Ctrl-C, and all their children with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers of pytest-xdist share the cores: threads of OpenBLAS would spin, and wait for each other and for the workers.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for what is loaded later, and for processes that tests start
    threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")

# The machines that run these tests are shared: no deadline on one example, and the same examples in every run but in
# the long campaigns of histories (tests/history.py).
settings.register_profile(
    "slosh", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("slosh")

KERNELS = ["numpy", *(kernel.native.names() if kernel.native else [])]


@pytest.fixture(params=KERNELS)
def each_kernel(request, monkeypatch):
    """Run the test on NumPy and on every instruction set that the machine has."""
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "native", None)
        warnings.filterwarnings("ignore", "slosh was installed without its native kernel")  # pytest undoes it
        yield "numpy"
        return
    before = kernel.native.name()
    kernel.native.use(request.param)
    yield request.param
    kernel.native.use(before)


@pytest.fixture(params=["part", pytest.param("all", marks=pytest.mark.long)])
def campaign(request):
    """How much of a long campaign to run: "part" in every run, "all" with `make test-long`."""
    return request.param


@pytest.fixture
def ctrl_c():
    """Let SIGINT raise KeyboardInterrupt, as it does in a program; pytest's workers ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def mnist():
    """500 sets of Point Cloud MNIST and their labels; generated rings and bars where the data is not there."""
    path = DATA / "pointcloud_mnist_2d.npz"
    if path.exists():
        with np.load(path) as file:
            offsets = file["offsets"][:501].astype(np.int64)
            points = file["points"][: offsets[-1]].astype(np.float32) / 28
            return Sets(points, offsets), file["labels"][:500].astype(int)
    rng = np.random.default_rng(0)
    sets, labels = [], []
    for i in range(500):
        n, turn = int(rng.integers(34, 351)), rng.uniform(0, 2 * np.pi, 1)
        t = rng.uniform(0, 1, n)
        ring = np.stack([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)], axis=1) * rng.uniform(0.2, 0.5)
        bar = (t[:, None] - 0.5) * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        sets.append((ring if i % 2 else bar) + 0.5 + rng.normal(scale=0.02, size=(n, 2)))
        labels.append(i % 2)
    return Sets.from_list(sets), np.array(labels)
