"""The text of the kernels, and the types of their arguments."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_float
FOLDER = Path(__file__).parent / "kernels"


@cache
def source(name: str) -> str:
    """Return the text of a file of `kernels/`."""
    return (FOLDER / name).read_text(encoding="utf-8")


def define(**values: int) -> str:
    """Return lines that define macros.

    >>> define(KEYS=8, AVERAGE=True)
    '#define KEYS 8\\n#define AVERAGE 1\\n'
    """
    return "".join(f"#define {name} {int(value)}\n" for name, value in values.items())


def width(keys: int, lanes: int) -> int:
    """Return how many numbers of shared memory a column takes: WIDTH in sort.cu."""
    span = keys * lanes
    return (span + (span >> 5)) | 1
