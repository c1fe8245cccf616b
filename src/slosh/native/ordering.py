"""The order of float64 numbers within ragged sets, on the CPU: compiled if the kernel was built, NumPy otherwise."""

from __future__ import annotations

import numpy as np

from . import kernel
from .arrays import Float64, Int64


def order(values: Float64, offsets: Int64, ties: Int64, n_threads: int) -> Int64:
    """Return the elements of every set by rising value, of equal ones by rising `ties`, for each row of values.

    values : (rows, P). offsets : (n + 1,), the first elements of the sets and P. ties : (P,), all different.

    >>> order(np.array([[3.0, 1, 2, 0, 0]]), np.array([0, 3, 5]), np.array([0, 1, 2, 4, 3]), 1)
    array([[1, 2, 0, 4, 3]])
    """
    out = np.empty(values.shape, np.int64)
    if kernel.is_compiled():
        kernel.native.order(np.ascontiguousarray(values), offsets, ties, out, n_threads)
        return out
    set_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for row, found in zip(values, out, strict=True):
        found[:] = np.lexsort((ties, row, set_of))
    return out
