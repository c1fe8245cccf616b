"""Names of devices, and what is said where a GPU cannot be used. torch is played by a stand-in: no GPU is needed."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from types import SimpleNamespace

import pytest

from slosh.errors import DeviceError, DeviceMemoryError, InputError, MissingExtra
from slosh.gpu import devices


class OutOfMemoryError(RuntimeError):
    pass


class AcceleratorError(RuntimeError):
    """What torch raises for an error of CUDA, with the number that CUDA has for it."""

    def __init__(self, error_code):
        super().__init__(f"CUDA error: of number {error_code}")
        self.error_code = error_code


def torch_with(
    count=1, capability=(9, 0), cuda="13.0", hip=None, said=None, fails=None, archs=("sm_75", "sm_90a"), forked=False
):
    """A torch that sees so many GPUs; `said` is its warning, `fails` what it raises when one is first used."""
    current = threading.local()  # as of CUDA, each thread begins with the first

    def is_available():
        if said:
            warnings.warn(said, UserWarning, stacklevel=2)
        return count > 0

    def empty(n, device):
        if fails:
            raise fails if isinstance(fails, Exception) else RuntimeError(fails)

    gpus = SimpleNamespace(
        is_available=is_available,
        device_count=lambda: count,
        get_device_capability=lambda name: capability,
        get_arch_list=lambda: [*archs, "compute_120"],
        get_device_name=lambda name: f"GPU behind {name}",
        OutOfMemoryError=OutOfMemoryError,
        empty_cache=lambda: None,
        _is_in_bad_fork=lambda: forked,
        set_device=lambda number: setattr(current, "number", number),
        current_device=lambda: getattr(current, "number", 0),
    )
    return SimpleNamespace(version=SimpleNamespace(cuda=cuda, hip=hip), __version__="2.11.0", cuda=gpus, empty=empty)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(devices, "_names", {})
    monkeypatch.setattr(devices, "_found", {})
    monkeypatch.setattr(devices, "_process", None)


def use(monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.mark.parametrize("name", [None, "cpu"])
def test_the_cpu_needs_no_torch(monkeypatch, name):
    use(monkeypatch, None)
    assert devices.checked_device(name) == devices.device_name(name) == "cpu"


@pytest.mark.parametrize(
    "name", ["gpu", "CUDA", "cuda:", "cuda:-1", "cuda:0 ", "cuda:99999", "", 0, 1.5, b"cuda", ["cpu"]]
)
def test_a_name_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(InputError, match='give "cpu", "cuda"') as caught:
        devices.checked_device(name)
    assert caught.value.argument == "device"


def test_without_torch_the_extra_is_named(monkeypatch):
    use(monkeypatch, None)
    with pytest.raises(MissingExtra, match='pip install "slosh\\[torch\\]"') as caught:
        devices.checked_device("cuda")
    assert (caught.value.package, caught.value.extra) == ("torch", "torch")


@pytest.mark.parametrize(
    ("torch", "reason", "words"),
    [
        (torch_with(cuda=None), "torch without CUDA", "built for the CPU: install one that was built for CUDA"),
        (torch_with(cuda=None, hip="6.2"), "torch without CUDA", "built for ROCm"),
        (torch_with(count=0), "no GPU", "sees no GPU: see whether nvidia-smi lists one"),
        (torch_with(count=0, said="The NVIDIA driver on your system is too old"), "driver", "update the NVIDIA driver"),
        (torch_with(fails="CUDA error: no kernel image"), "driver", "no kernel image"),
        (torch_with(fails=AcceleratorError(46)), "busy", "keeps it for itself has ended"),
        (torch_with(fails="CUDA error: CUDA-capable device(s) is/are busy or unavailable"), "busy", "has ended"),
        (torch_with(capability=(6, 1)), "too old", "compute capability 6.1, and slosh needs 7.0"),
        (torch_with(capability=(7, 0)), "too old", "no code for .* capability 7.0; it begins at 7.5.: install a torch"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_an_error_with_a_remedy(monkeypatch, torch, reason, words):
    use(monkeypatch, torch)
    for _ in range(2):  # it is not remembered as one that can
        with pytest.raises(DeviceError, match=words) as caught:
            devices.checked_device("cuda")
    error = caught.value
    assert (error.reason, error.device, error.argument) == (reason, "cuda", "device")
    assert "leave device out" in error.remedy


def test_a_gpu_that_is_newer_than_torch_is_tried(monkeypatch):
    use(monkeypatch, torch_with(capability=(13, 0)))
    assert devices.checked_device("cuda") == "cuda:0"


@pytest.mark.parametrize(
    "full", [OutOfMemoryError("full"), AcceleratorError(2), RuntimeError("CUDA error: out of memory\nCompile with")]
)
def test_a_gpu_whose_memory_is_full_from_the_start_is_no_matter_of_drivers(monkeypatch, full):
    use(monkeypatch, torch_with(fails=full))
    with pytest.raises(DeviceMemoryError, match="memory of cuda cannot hold anything more: free some of it") as caught:
        devices.checked_device("cuda")
    assert (caught.value.reason, caught.value.device) == ("memory", "cuda")


def test_cuda_is_the_current_device_of_the_first_use_in_all_threads(monkeypatch):
    torch = torch_with(count=2)
    use(monkeypatch, torch)
    torch.cuda.set_device(1)
    found = [devices.checked_device("cuda")]
    thread = threading.Thread(target=lambda: found.append(devices.checked_device("cuda")))
    thread.start()
    thread.join()
    assert found == ["cuda:1", "cuda:1"]
    assert devices.device_name("cuda") == devices.device_name("cuda:1") == "GPU behind cuda"


def test_devices_of_torch_are_taken_by_their_names(monkeypatch):
    torch = pytest.importorskip("torch")
    assert devices.checked_device(torch.device("cpu")) == "cpu"
    with pytest.raises(InputError, match='give "cpu", "cuda"'):
        devices.checked_device(torch.device("meta"))
    first = torch.device("cuda:1")
    use(monkeypatch, torch_with(count=2))
    assert devices.checked_device(first) == "cuda:1"


def test_a_number_that_is_not_there(monkeypatch):
    use(monkeypatch, torch_with(count=2))
    assert devices.checked_device("cuda:1") == "cuda:1"
    with pytest.raises(DeviceError, match="there are 2 GPUs, up to cuda:1") as caught:
        devices.checked_device("cuda:2")
    assert caught.value.reason == "no such number"


def test_names_are_recorded_as_the_driver_has_them(monkeypatch):
    use(monkeypatch, torch_with())
    assert devices.device_name("cuda") == "GPU behind cuda"


def test_a_process_that_was_forked_from_one_with_a_gpu_is_told_so(monkeypatch):
    use(monkeypatch, torch_with())
    devices.checked_device("cuda")
    monkeypatch.setattr(devices.os, "getpid", lambda: -1)
    with pytest.raises(DeviceError, match="spawn") as caught:
        devices.checked_device("cuda")
    assert caught.value.reason == "forked"


def test_a_process_that_was_forked_from_one_in_which_torch_has_used_a_gpu_is_told_so(monkeypatch):
    said = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ..."
    use(monkeypatch, torch_with(forked=True, fails=said))
    with pytest.raises(DeviceError, match="spawn") as caught:
        devices.checked_device("cuda")
    assert caught.value.reason == "forked"


def test_smaller_batches_are_tried_before_memory_is_said_to_be_full(monkeypatch):
    use(monkeypatch, torch_with())
    runs = []

    def work(first, last, most=3):
        if last - first > most:
            raise OutOfMemoryError("full")
        runs.append((first, last))

    def locked(first, last):
        if last - first > 3:
            raise AcceleratorError(devices.ALLOCATION)
        work(first, last)

    def product(first, last):
        if last - first > 3:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        work(first, last)

    def nested(first, last):
        devices.in_smaller_batches(lambda one, other: work(first, last), 5, 5)

    for each in (locked, product, work):
        assert devices.in_smaller_batches(each, 10, 8) == 2
    assert runs == 3 * [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert devices.in_smaller_batches(nested, 10, 8) == 2
    with pytest.raises(DeviceMemoryError, match="cannot hold a set") as caught:
        devices.in_smaller_batches(lambda first, last: work(first, last, 0), 10, 8, "cuda:1", "a set")
    assert isinstance(caught.value, MemoryError)
    assert (caught.value.reason, caught.value.device) == ("memory", "cuda:1")


def test_what_failed_is_gone_when_memory_is_given_back(monkeypatch):
    use(monkeypatch, torch_with())
    alive = []

    class Held:
        pass

    def work(first, last):
        held = Held()
        if last - first > 3:
            alive.append(weakref.ref(held))
            raise OutOfMemoryError("full")

    monkeypatch.setattr(devices, "free_memory", lambda: alive.append(alive.pop()()))
    devices.in_smaller_batches(work, 10, 8)
    assert alive == [None, None]


def test_errors_of_other_kinds_pass():
    pytest.importorskip("torch")
    with pytest.raises(KeyError), devices.memory_errors():
        raise KeyError
