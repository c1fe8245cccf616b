"""Which code is compiled for which GPU, and what is said of errors of CUDA. No GPU is needed."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from optional_gpu import torch

from slosh.errors import DeviceError
from slosh.gpu import nvrtc


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setattr(nvrtc, "supported", lambda: (75, 80, 90, 120))


@pytest.mark.parametrize(
    ("capability", "wanted"), [((7, 5), "sm_75"), ((9, 0), "sm_90"), ((8, 9), "compute_80"), ((13, 0), "compute_120")]
)
def test_a_gpu_that_nvrtc_does_not_know_gets_what_the_driver_translates(capability, wanted):
    assert nvrtc.architecture(capability) == wanted


def test_a_gpu_that_is_too_old_for_this_cuda():
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
