"""Kernels from source: compiled for the GPU at hand by NVRTC, which comes with torch, and launched on torch's stream.

A source and its options become a `Kernel`, which is called with a grid and arguments. What was compiled is kept for as
long as the process lives. No compiler is needed on the machine.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import DeviceError
from .devices import OLDER_TORCH

OUT_OF_MEMORY, UNSUPPORTED_PTX = 2, 222
"""Errors of CUDA."""
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
DEFAULT_SHARED_BYTES = 48 << 10
COMPILERS = 8
"""Threads that compile at once."""
NVRTC_REMEDY = "install PyTorch for CUDA from its wheels, which bring NVRTC, or put libnvrtc on the library path"


class KernelFailed(RuntimeError):
    """A kernel was not compiled or not launched: a defect of slosh, or of the driver."""


def _library_names(major: int) -> list[str]:
    if sys.platform == "win32":
        return [f"nvrtc64_{major}0_0.dll", f"nvrtc64_{major}2_0.dll"]
    return [f"libnvrtc.so.{major}", "libnvrtc.so"]


def _library_folders() -> list[Path]:
    """Return where the wheels of torch, and of what it depends on, keep libraries."""
    folders = [Path(torch.__file__).parent / "lib"]
    found = importlib.util.find_spec("nvidia")
    for root in [] if found is None else found.submodule_search_locations or []:
        folders += [folder for kind in ("lib", "bin") for folder in Path(root).glob(f"*/{kind}")]
    return folders


@lru_cache(maxsize=1)
def _nvrtc() -> ctypes.CDLL:
    version = torch.version.cuda or "0"
    names = _library_names(int(version.split(".")[0]))
    places = [str(folder / name) for name in names for folder in _library_folders() if (folder / name).exists()]
    for place in (*places, *names):
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    problem = f"NVRTC of CUDA {version}, which compiles the kernels, was not found"
    raise DeviceError(problem, NVRTC_REMEDY, device="cuda", reason="NVRTC")


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        problem = f"the library of the driver cannot be loaded ({error})"
        raise DeviceError(problem, "install the driver of the GPU", device="cuda", reason="driver") from None


def _check(code: int, what: str) -> None:
    """Raise what a call of the driver returned, if it failed; a memory that is full as torch says it."""
    if not code:
        return
    if code == OUT_OF_MEMORY:
        raise torch.cuda.OutOfMemoryError(f"{what}: out of memory")
    if code == UNSUPPORTED_PTX:
        problem = f"the driver is older than the CUDA that torch was built for, {torch.version.cuda}, and cannot run"
        raise DeviceError(f"{problem} its kernels", "update the NVIDIA driver", device="cuda", reason="driver")
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    said = (text.value or b"unknown").decode()
    raise KernelFailed(f"{what}: {said} (CUDA error {code})")


@lru_cache(maxsize=1)
def supported() -> tuple[int, ...]:
    """Return the architectures that NVRTC knows, 90 for "sm_90", in order."""
    count = ctypes.c_int()
    _check_nvrtc(_nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    found = (ctypes.c_int * count.value)()
    _check_nvrtc(_nvrtc().nvrtcGetSupportedArchs(found))
    return tuple(sorted(found))


def architecture(capability: tuple[int, int]) -> str:
    """Return what to compile for: machine code of a GPU that NVRTC knows, "sm_90", or "compute_90", which the driver
    translates, for one that is newer than NVRTC.
    """
    wanted, known = 10 * capability[0] + capability[1], supported()
    if wanted in known:
        return f"sm_{wanted}"
    older = [each for each in known if each < wanted]
    if not older:
        problem = f"NVRTC of CUDA {torch.version.cuda} has no code for GPUs of compute capability {wanted / 10}"
        raise DeviceError(problem, OLDER_TORCH, device="cuda", reason="too old")
    return f"compute_{older[-1]}"


def compile_source(source: str, arch: str) -> bytes:
    """Return the code of a source: machine code for "sm_90", and what the driver translates for "compute_90"."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    kind = "CUBIN" if arch.startswith("sm_") else "PTX"
    _check_nvrtc(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"slosh.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if code:
            length = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(length))
            log = ctypes.create_string_buffer(length.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise KernelFailed(f"NVRTC did not compile a kernel for {arch}:\n{log.value.decode(errors='replace')}")
        length = ctypes.c_size_t()
        _check_nvrtc(getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(length)))
        image = ctypes.create_string_buffer(length.value)
        _check_nvrtc(getattr(nvrtc, f"nvrtcGet{kind}")(program, image))
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check_nvrtc(code: int) -> None:
    if code:
        raise KernelFailed(f"NVRTC: {_nvrtc().nvrtcGetErrorString(code).decode()}")


class Kernel:
    """A compiled function on one GPU.

    types : of the arguments, ctypes classes.
    shared : bytes of shared memory that a block asks for when it is launched.
    """

    def __init__(self, image: bytes, name: str, types: Sequence[Any], shared: int) -> None:
        self._types, self._shared, self._image = tuple(types), shared, image
        driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(module), image), f"loading {name}")
        _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"finding {name}")
        if shared > DEFAULT_SHARED_BYTES:
            attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(function, attribute, shared), f"shared memory of {name}")
        self._name, self._function = name, function

    def __call__(self, blocks: int | tuple[int, int], threads: int, *arguments: Any) -> None:
        """Launch so many blocks on the current stream of the current device."""
        wide, high = (blocks, 1) if isinstance(blocks, int) else blocks
        held = [
            value if isinstance(value, ctypes.Structure) else kind(value)
            for kind, value in zip(self._types, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(
            _driver().cuLaunchKernel(
                self._function, wide, high, 1, threads, 1, 1, self._shared, stream, pointers, None
            ),
            f"launching {self._name}",
        )


class Request(NamedTuple):
    """A kernel that is wanted. `key` stands for all else; `make` returns its source."""

    key: Any
    make: Callable[[], str]
    name: str
    types: Sequence[Any]
    shared: int = 0


_kernels: dict[Any, Kernel] = {}
_lock = threading.Lock()


def kernels(device: torch.device, wanted: Sequence[Request]) -> list[Kernel]:
    """Return kernels for a device, which must be the current one. Those that are new are compiled side by side."""
    try:
        return [_kernels[device.index, each.key] for each in wanted]
    except KeyError:
        pass
    with _lock:
        new = [each for each in wanted if (device.index, each.key) not in _kernels]
        arch = architecture(torch.cuda.get_device_capability(device))

        def image(each: Request) -> bytes:
            return compile_source(each.make(), arch)

        if len(new) > 1:
            with ThreadPoolExecutor(min(len(new), COMPILERS)) as pool:
                images = list(pool.map(image, new))
        else:
            images = [image(each) for each in new]
        for each, code in zip(new, images, strict=True):
            _kernels[device.index, each.key] = Kernel(code, each.name, each.types, each.shared)
    return [_kernels[device.index, each.key] for each in wanted]
