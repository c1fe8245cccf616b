"""A copy of large arrays by several threads: where rows are long, past the caches of the CPU, into memory that is not
read soon.

Compiled if the kernel was built, NumPy otherwise.
"""

from __future__ import annotations

import numpy as np

from . import kernel
from .arrays import Array


def copy(to: Array, source: Array, n_threads: int) -> None:
    """Copy `source` to `to`, which has its shape and type. The rows of matrices may be apart; other arrays that are not
    contiguous take one thread.
    """
    assert to.shape == source.shape
    assert to.dtype == source.dtype
    rows, of_source = _bytes_of_rows(to), _bytes_of_rows(source)
    if not kernel.is_compiled() or rows is None or of_source is None or rows.shape != of_source.shape:
        np.copyto(to, source)
        return
    kernel.native.copy(rows, of_source, n_threads)


def _bytes_of_rows(array: Array) -> Array | None:
    """Return the rows of an array, or all of it as one, as bytes on the same memory; None where they are scattered."""
    if array.ndim == 2 and array.size and array.strides[1] == array.itemsize and array.strides[0] >= 0:
        return array.view(np.uint8)
    return array.reshape(1, -1).view(np.uint8) if array.flags.c_contiguous else None
