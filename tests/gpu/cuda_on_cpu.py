"""The kernels of slosh.gpu on the CPU, compiled by g++: so much that what they compute is tested where there is no GPU.

`install` puts them in the place of those that NVRTC compiles; tensors of the CPU then go where those of a GPU would.
`cuda_on_cpu.h` says what CUDA is there.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
COMPILER = shutil.which("g++") if sys.platform == "linux" else None
WORD = r"\((\w+)\)"
ASM = [
    (rf'asm\("mad\.lo\.s32 [^"]*" : "=r"{WORD} : "r"{WORD}, "r"{WORD}, "r"{WORD}\);',
     r"\1 = int(unsigned(\2) * unsigned(\3) + unsigned(\4));"),
    (rf'asm volatile\("cp\.async\.c[ag]\.[^"]*\], (\d+), %2;" ::"r"{WORD}, "l"{WORD}, "r"{WORD} : "memory"\);',
     r"copy_async(\2, \3, \1, \4);"),
    (r'asm volatile\("cp\.async\.commit_group;" ::: "memory"\);', "commit_copies();"),
    (r'asm volatile\("cp\.async\.wait_group %0;" ::"n"\(([^"]*)\) : "memory"\);', r"wait_copies(\1);"),
    (r'asm\("mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32 .*?\);', "multiply_tf32(c, a, b);"),
    (r"extern __shared__ (\w+) shared\[\];", r"\1 *shared = (\1 *)dynamic_shared.data();"),
]  # fmt: skip
"""Instructions that C++ has no words for, and what stands in for them."""


def as_cpp(source: str, name: str) -> str:
    """Return the text of a kernel as C++ with a function `launch`."""
    for pattern, instead in ASM:
        source = re.sub(pattern, instead, source, flags=re.DOTALL if "mma" in pattern else 0)
    assert not re.search(r"\basm\b", source), "an instruction that has no stand-in"
    return f"""{HEADER.read_text()}
{source}
static void all_of(void **arguments) {{ call({name}, arguments); }}
extern "C" const char *launch(unsigned wide, unsigned high, unsigned threads, unsigned long shared, int backwards,
                              void **arguments) {{
  return launch_all(all_of, wide, high, threads, shared, backwards, arguments);
}}
"""


@cache
def compiled(source: str, name: str, folder: Path) -> Any:
    """Return the function `launch` of a kernel."""
    text = as_cpp(source, name)
    place = folder / hashlib.sha256(text.encode()).hexdigest()[:20]
    place.with_suffix(".cpp").write_text(text)
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", place.with_suffix(".so"), place.with_suffix(".cpp")], check=True)
    launch = ctypes.CDLL(str(place.with_suffix(".so"))).launch
    launch.restype = ctypes.c_char_p
    launch.argtypes = [ctypes.c_uint] * 3 + [ctypes.c_ulong, ctypes.c_int, ctypes.c_void_p]
    return launch


class CpuKernel:
    """Is called as `slosh.gpu.nvrtc.Kernel` is. `backwards`: the last thread of a block comes first."""

    def __init__(self, request: Any, folder: Path, backwards: bool) -> None:
        self._launch = compiled(request.make(), request.name, folder)
        self._types, self._shared, self._backwards = request.types, request.shared, backwards

    def __call__(self, blocks: int | tuple[int, int], threads: int, *arguments: Any) -> None:
        wide, high = (blocks, 1) if isinstance(blocks, int) else blocks
        held = [
            value if isinstance(value, ctypes.Structure) else kind(value)
            for kind, value in zip(self._types, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))
        if why := self._launch(wide, high, threads, self._shared, self._backwards, pointers):
            raise AssertionError(why.decode())


def install(monkeypatch: Any, folder: Path, *, backwards: bool = False) -> None:
    """Let kernels run on tensors of the CPU. What nobody has written yet is NaN, or a number far below zero."""
    import torch

    def kernels(device: Any, wanted: Any) -> list[CpuKernel]:
        return [CpuKernel(each, folder, backwards) for each in wanted]

    def empty(*given: Any, make: Any = torch.empty, **more: Any) -> Any:
        made = make(*given, **more)
        return made.fill_(torch.nan if made.is_floating_point() else -(1 << 30))

    take_kernels(monkeypatch, kernels)
    monkeypatch.setattr(torch, "empty", empty)


def take_kernels(monkeypatch: Any, kernels: Any) -> None:
    """Let `kernels` stand for `slosh.gpu.nvrtc.kernels`, and tensors of the CPU for those of a GPU."""
    import torch

    from slosh.gpu import columns, factors, field, large, pieces, projection

    for module in (columns, factors, field, large, projection):
        monkeypatch.setattr(module, "kernels", kernels)
    for module, name in ((pieces, "moved"), (large, "moved"), (field, "moved"), (field, "sent")):
        monkeypatch.setattr(module, name, lambda array, device: torch.tensor(array))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
