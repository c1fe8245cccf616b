"""Which device runs something: the name that a user gave comes in; one that can be used goes out, or an error.

A GPU that was asked for and cannot be used is always an error: nothing runs on the CPU instead.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..checkpoints import checkpoint
from ..errors import DeviceError, DeviceMemoryError, bad_value, import_extra

CPU = "cpu"
LEAST_CAPABILITY = (7, 0)
"""What a GPU must be able to do, as NVIDIA counts it: Volta and later."""
OLDER_TORCH = "install a torch that was built for an older CUDA, or use a newer GPU"
OTHERWISE = "or leave device out to compute on the CPU"

ALLOCATION, UNAVAILABLE = 2, 46
"""CUDA's numbers of the errors of a GPU whose memory is full, and of one that others keep for themselves."""

FULL, BUSY = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory"), "busy or unavailable"
"""What torch says then in an error without a number: all errors before torch 2.8, and those of cuBLAS."""

_found: dict[str, str] = {}
"""The GPUs that were found to be usable, with their numbers, by the names that they were given by."""
_names: dict[str, str] = {}
"""What these are called."""
_process: int | None = None
"""The process that uses them: one that is forked from it cannot."""


def checked_device(device: Any) -> str:
    """Return "cpu" for None and "cpu", and the name of a GPU with its number, such as "cuda:1", that can be used.

    "cuda" is the one that was torch's current device, in its thread, when it was first asked for: it is the same in
    all threads then. Anything else is refused: an InputError for what is no such name, a MissingExtra without torch,
    and a DeviceError for a GPU that is not there or cannot be used.

    >>> checked_device(None)
    'cpu'
    """
    if device is None:
        return CPU
    if type(device).__module__ == "torch":  # a torch.device
        device = str(device)
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", device) if isinstance(device, str) else None
    if device == CPU and isinstance(device, str):
        return CPU
    if found is None:
        remedy = 'give "cpu", "cuda" for the GPU that torch takes by itself, or "cuda:1" for that of number 1'
        raise bad_value("device", device, remedy)
    name = str(found[0])
    if name not in _found or _process != os.getpid():
        _reach(name, None if found[1] is None else int(found[1]))
    return _found[name]


def device_name(device: Any) -> str:
    """Return what is recorded of a device: "cpu", or what the GPU is called.

    >>> device_name(None)
    'cpu'
    """
    name = checked_device(device)
    return CPU if name == CPU else _names[name]


def _reach(name: str, number: int | None) -> None:
    """Note the number of a GPU and what it is called, or say why it cannot be used."""
    global _process
    torch: Any = import_extra("torch", f"device={name!r}", "torch")
    if (_names and _process != os.getpid()) or getattr(torch.cuda, "_is_in_bad_fork", bool)():
        problem = f"device={name!r}: this process was forked from one that uses a GPU, and cannot use it"
        raise _unusable(name, "forked", problem, 'start processes with multiprocessing\'s method "spawn"')
    if torch.version.cuda is None:
        kind = "ROCm" if getattr(torch.version, "hip", None) else "the CPU"
        problem = f"device={name!r}: the torch that is installed, {torch.__version__}, was built for {kind}"
        remedy = "install one that was built for CUDA (pytorch.org says how)"
        raise _unusable(name, "torch without CUDA", problem, remedy)
    with memory_errors(name, "anything more"):
        count, said, code = _count(torch, number)
    if code == UNAVAILABLE or (code is None and BUSY in said):
        remedy = "wait until the program that keeps it for itself has ended (nvidia-smi lists it), use another one"
        raise _unusable(name, "busy", f"device={name!r}: torch cannot use the GPU: {said}", remedy)
    if said:
        problem = f"device={name!r}: torch cannot use the GPU: {said}"
        raise _unusable(name, "driver", problem, "update the NVIDIA driver, or install a torch for an older one")
    if not count:
        problem = f"device={name!r}: torch sees no GPU"
        remedy = "see whether nvidia-smi lists one, and CUDA_VISIBLE_DEVICES does not hide it"
        raise _unusable(name, "no GPU", problem, remedy)
    if number is not None and number >= count:
        there = "there is one GPU, cuda:0" if count == 1 else f"there are {count} GPUs, up to cuda:{count - 1}"
        raise _unusable(name, "no such number", f"device={name!r}: {there}", "give the number of one of them")
    capability = tuple(torch.cuda.get_device_capability(name))
    called = str(torch.cuda.get_device_name(name))
    if capability < LEAST_CAPABILITY:
        numbers, least = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        problem = f"device={name!r}: {called} has compute capability {numbers}, and slosh needs {least}"
        raise _unusable(name, "too old", problem, "use a newer GPU")
    oldest = min((int(arch[3:]) for arch in torch.cuda.get_arch_list() if re.fullmatch(r"sm_\d+", arch)), default=0)
    if 10 * capability[0] + capability[1] < oldest:
        problem = f"device={name!r}: torch {torch.__version__} has no code for {called} (compute capability "
        problem += f"{'.'.join(map(str, capability))}; it begins at {oldest / 10})"
        raise _unusable(name, "too old", problem, OLDER_TORCH)
    numbered = name if number is not None else f"cuda:{torch.cuda.current_device()}"
    _found[name] = _found[numbered] = numbered
    _names[numbered], _process = called, os.getpid()


def _count(torch: Any, number: int | None) -> tuple[int, str, int | None]:
    """Return how many GPUs torch sees, what it says of one that it cannot use, and CUDA's number of that error."""
    code = None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
            if count and (number is None or number < count):
                torch.empty(1, device="cuda" if number is None else f"cuda:{number}")
            said = [str(each.message) for each in told] if not count else []
        except (RuntimeError, AssertionError) as error:
            if memory_is_full(error):
                raise
            code = getattr(error, "error_code", None)  # of torch.AcceleratorError
            count, said = 0, [str(error)]
    return count, (said[0].strip().splitlines() or ["it does not say why"])[0][:300] if said else "", code


def _unusable(device: str, reason: str, problem: str, remedy: str) -> DeviceError:
    return DeviceError(problem, f"{remedy}, {OTHERWISE}", device=device, reason=reason, argument="device")


def memory_is_full(error: Exception) -> bool:
    """Return whether an error says that memory of a GPU, or page-locked memory of the host, is full."""
    torch: Any = import_extra("torch", "a GPU", "torch")
    if isinstance(error, torch.cuda.OutOfMemoryError | DeviceMemoryError):
        return True
    code = getattr(error, "error_code", None)
    return code == ALLOCATION or (code is None and any(words in str(error) for words in FULL))


@contextmanager
def memory_errors(device: str = "cuda", least: str = "the smallest batch") -> Iterator[None]:
    """Raise what torch says when the memory of a device is full as a DeviceMemoryError, after smaller batches were
    tried; `least` is what did not fit.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, DeviceMemoryError) or not memory_is_full(error):
            raise
        problem = f"the memory of {device} cannot hold {least}"
        remedy = "free some of it (other programs and tensors of this one take it), or leave device out"
        raise DeviceMemoryError(problem, remedy, device=device, reason="memory") from error


def in_smaller_batches(
    work: Callable[[int, int], None], n: int, most: int, device: str = "cuda", least: str = "the smallest batch"
) -> int:
    """Call work(first, last) for runs of at most `most` of n things, and of half as many whenever memory is full.

    Returns how many a run had in the end, so that the next call begins with it.
    """
    first = 0
    while first < n:
        checkpoint()
        last = min(n, first + most)
        is_done = True
        if last - first == 1:
            with memory_errors(device, least):
                work(first, last)
        else:
            try:
                work(first, last)
            except RuntimeError as error:
                if not memory_is_full(error):
                    raise
                is_done = False
        if is_done:
            first = last
        else:  # the error is gone, and with it what the batch held
            most = (last - first + 1) // 2
            free_memory()
    return most


def free_memory() -> None:
    """Give back what torch keeps of the memory of GPUs for later."""
    torch: Any = import_extra("torch", "a GPU", "torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
