"""A copy of large arrays by several threads: into memory that is not read soon, past the caches of the CPU.

Compiled if the kernel was built, NumPy otherwise.
"""

from __future__ import annotations

import numpy as np

from . import kernel
from .arrays import Array


def copy(to: Array, source: Array, n_threads: int) -> None:
    """Copy `source` to `to`, which has its shape and type. Arrays that are not contiguous take one thread."""
    assert to.shape == source.shape
    assert to.dtype == source.dtype
    if not (kernel.is_compiled() and to.flags.c_contiguous and source.flags.c_contiguous):
        np.copyto(to, source)
        return
    kernel.native.copy(to.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8), n_threads)
