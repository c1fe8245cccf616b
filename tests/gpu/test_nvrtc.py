"""Which code is compiled for which GPU, and what is said of errors of CUDA. No GPU is needed."""

from __future__ import annotations

import ctypes
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from types import SimpleNamespace

import cuda_on_cpu
import numpy as np
import pytest
from optional_gpu import torch

from slosh.errors import DeviceError
from slosh.gpu import nvrtc


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(nvrtc, "supported", lambda: (75, 80, 90, 120))


@pytest.mark.parametrize(
    ("capability", "wanted"), [((7, 5), "sm_75"), ((9, 0), "sm_90"), ((8, 9), "compute_80"), ((13, 0), "compute_120")]
)
def test_a_gpu_that_nvrtc_does_not_know_gets_what_the_driver_translates(capability, wanted, known):
    assert nvrtc.architecture(capability) == wanted


def test_a_gpu_that_is_too_old_for_this_cuda(known):
    with pytest.raises(DeviceError, match=r"7\.0: install a torch that was built for an older CUDA") as caught:
        nvrtc.architecture((7, 0))
    assert caught.value.reason == "too old"


def launched(code, monkeypatch):
    """Launch a kernel with a driver that answers with a code."""

    def cu(name):
        def call(*given):
            if name == "cuGetErrorString":
                ctypes.cast(given[1], ctypes.POINTER(ctypes.c_char_p))[0] = b"said by the driver"
                return 0
            return code if name == "cuLaunchKernel" else 0

        return call

    names = ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuGetErrorString")
    monkeypatch.setattr(nvrtc, "_driver", lambda: SimpleNamespace(**{name: cu(name) for name in names}))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    nvrtc.Kernel(b"", "columns", [ctypes.c_int], 0)(1, 32, 5)


def test_errors_of_the_driver(monkeypatch):
    launched(0, monkeypatch)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="launching columns"):
        launched(2, monkeypatch)
    with pytest.raises(DeviceError, match="update the NVIDIA driver") as caught:
        launched(222, monkeypatch)
    assert caught.value.reason == "driver"
    with pytest.raises(nvrtc.KernelFailed, match=r"launching columns: said by the driver \(CUDA error 700\)"):
        launched(700, monkeypatch)


@pytest.fixture
def library(monkeypatch):
    """NVRTC from its own wheel: it compiles where there is no GPU."""
    try:
        major = version("nvidia-cuda-nvrtc").split(".")[0]
    except PackageNotFoundError:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    monkeypatch.setattr(torch.version, "cuda", f"{major}.0")


ARCHITECTURES, LONG = ("sm_75", "sm_80", "sm_90", "compute_90", "sm_120"), pytest.mark.long


def requests(monkeypatch):
    """What kernels are asked for by sets of some sizes, with every option."""
    from slosh.gpu import columns, field, projection
    from slosh.torch import on_gpu

    asked = {}

    def kernels(device, wanted):
        asked.update((each.key, each) for each in wanted)
        return [lambda *given: None] * len(wanted)

    cuda_on_cpu.take_kernels(monkeypatch, kernels)
    small, all_sizes = torch.tensor([0, 5, 155, 2203]), torch.tensor([0, 5, 155, 2203, 5203])
    for dim, offsets in product((1, 4, 5, 64), (small, all_sizes)):
        n, n_points = len(offsets) - 1, int(offsets[-1])
        points, directions, vectors = torch.zeros((n_points, dim)), torch.zeros((3, dim)), torch.zeros((n, 24))
        for average, weights in product((True, False), (None, torch.ones(n_points))):
            batch, rule = columns.Batch.of(points, offsets, weights), columns.Rule(8, average, 1.0)
            for squares in (None, torch.zeros(n, dtype=torch.float64)) if average else (None,):
                columns.embed(batch, directions, rule, vectors, squares)
            for wanted in ((True, False, True), (True, False, False), (False, False, True)):
                on_gpu.embed_backward(vectors, points, offsets, None, directions, 8, average, 1.0, wanted)
        for how in ("tensor", "tf32"):
            projection.project_by(how, points, directions, torch.zeros((3, 5204)))
    batch = columns.Batch.of(torch.zeros((2203, 3)), small, None)
    field.work(np.zeros((9, 3), np.float32), "cuda")(batch, torch.zeros((3, 9)), None)
    return asked


@pytest.mark.parametrize(
    ("arch", "step"),
    [
        ("sm_90", 6),
        *((arch, 20) for arch in ARCHITECTURES),
        *(pytest.param(arch, 1, marks=LONG) for arch in ARCHITECTURES),
    ],
)
def test_kernels_compile(arch, step, library, monkeypatch):
    asked = requests(monkeypatch)
    names = {each.name for each in asked.values()}
    of_large = {"runs", "cuts", "bins", "around", "spread"}
    assert names == {"columns", "weighted", *of_large, "project", "factors", "field"}
    if arch == "sm_75":  # has no tensor cores for TF32, and project() does not ask for them
        asked = {key: each for key, each in asked.items() if key[0] != "project_tensor"}
    for each in list(asked.values())[::step]:
        assert each.name.encode() in nvrtc.compile_source(each.make(), arch)
