"""How products of float32 are computed: in full on GPUs, or rounded as TF32 does, whatever a program has set.

The setting of torch is one for the process. While any thread needs full products all of them get these; a fit that
allows TF32 gets it where nobody does. What the program had set is put back when the last one leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch

_lock = threading.Lock()
_inside = {"ieee": 0, "tf32": 0}
_before: _Setting | None = None


@contextmanager
def full_precision(device: Any) -> Iterator[None]:
    """Compute products of float32 on a device in float32 within the block, whatever TF32 and autocast are set to."""
    kind = torch.device(device).type
    with torch.autocast(kind, enabled=False), nullcontext() if kind == "cpu" else products("ieee"):
        yield


@contextmanager
def tf32(device: Any) -> Iterator[None]:
    """Let a GPU round the factors of products of float32 as TF32 does, but for blocks of `full_precision`."""
    with nullcontext() if torch.device(device).type == "cpu" else products("tf32"):
        yield


@contextmanager
def products(kind: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Compute products of float32 on GPUs so within the block; where threads differ, "ieee" holds for all."""
    global _before
    with _lock:
        if not any(_inside.values()):
            _before = _Setting.of_the_program()
        _inside[kind] += 1
        _apply()
    try:
        yield
    finally:
        with _lock:
            _inside[kind] -= 1
            _apply()


def _apply() -> None:
    """Set what the threads that are inside want, or put back what the program had set if there is none."""
    if any(_inside.values()):
        # Both of torch's settings, the older one first: where they differ, whoever reads the older one gets an error.
        matmul, rounded = torch.backends.cuda.matmul, not _inside["ieee"]
        matmul.allow_tf32 = rounded
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32" if rounded else "ieee"
    elif _before is not None:
        _before.put_back()


class _Setting(NamedTuple):
    """How a program has set products of float32 on GPUs: as torch 2.9 and later know it, and as all versions do."""

    precision: str | None
    """None before torch 2.9, and what is inherited otherwise."""
    older: str | None
    """None if the program has set the newer one alone, so that the older one cannot be read."""

    @classmethod
    def of_the_program(cls) -> _Setting:
        try:
            older = torch.get_float32_matmul_precision()
        except RuntimeError:
            older = None
        return cls(getattr(torch.backends.cuda.matmul, "fp32_precision", None), older)

    def put_back(self) -> None:
        backends: Any = torch.backends  # the types of torch do not know its newer setting
        matmul = backends.cuda.matmul
        if self.older == "medium":  # it is a setting of the CPU, too, which the program may have changed since
            on_cpu: Any = getattr(backends.mkldnn, "matmul", None)
            kept = getattr(on_cpu, "fp32_precision", None)
            torch.set_float32_matmul_precision(self.older)
            if kept is not None:
                on_cpu.fp32_precision = kept
        else:
            matmul.allow_tf32 = self.older == "high"
        if self.precision is not None:
            inherited = self.precision == backends.fp32_precision
            matmul.fp32_precision = "none" if inherited else self.precision
