"""How products of float32 are computed: in full on GPUs, or rounded as TF32 does, whatever a program has set.

The setting of torch is one for the process. While any thread needs full products all of them get these; a fit that
allows TF32 gets it where nobody does. What the program had set is put back when the last one leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

_lock = threading.Lock()
_inside = {"ieee": 0, "tf32": 0}
_before: Any = None


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
            _before = _precision()
        _inside[kind] += 1
        _set_precision(_wanted())
    try:
        yield
    finally:
        with _lock:
            _inside[kind] -= 1
            _set_precision(_wanted())


def _wanted() -> Any:
    if _inside["ieee"]:
        return "ieee"
    return "tf32" if _inside["tf32"] else _before


def _precision() -> Any:
    """Return how products of float32 are computed on GPUs."""
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


def _set_precision(value: Any) -> None:
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # torch 2.9 and later
        matmul.fp32_precision = value
    else:
        matmul.allow_tf32 = value if isinstance(value, bool) else value == "tf32"
