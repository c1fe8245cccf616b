"""The vectors that hashes and searches take: checked, and read block by block, so that a memory map stays on disk.

Anything like an array (n, D) comes in; C-contiguous float32 blocks of its rows go out, or an `InputError`. Also the
random numbers that all hashes draw from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..checkpoints import checkpoint
from ..errors import InputError
from ..native.arrays import Array
from ..native.arrays import Float32 as Float32
from .checks import CHECKED_AT_ONCE, as_array, check_numeric, first_beyond, input_error, kind_of, random_stream

MAX_VALUE = 1e18  # a sum of a hundred squares still fits float32
HASHES_STREAM = 0x4A54
FLOAT32 = np.dtype(np.float32)


def hash_stream(random_state: Any) -> np.random.RandomState:
    """Return the draws of a seed, from a stream of the hashes alone.

    Vectors, or slices, drawn with the same seed would otherwise be the directions that they are hashed with.
    """
    return random_stream(random_state, HASHES_STREAM)


def checked_vectors(
    X: Any, dim: int | None = None, *, name: str = "X", expected: str = "the hash was fitted on"
) -> Array:
    """Return X as an array (n, D) of real numbers, D = dim if that is given; the numbers are not looked at yet.

    Errors call it `name`, and say that what was `expected` is dim.
    """
    if type(X) is not np.ndarray and hasattr(X, "toarray"):
        raise input_error(name, f"is sparse, {kind_of(X)}", f"pass {name}.toarray()")
    array = as_array(X, name)
    if array.ndim == 0:
        raise input_error(name, f"is {kind_of(X)}, not an array of vectors (n, D)")
    if array.ndim == 1:
        remedy = "vectors must be (n, D), so pass x[None] for one of them"
        raise input_error(name, f"is 1-D, of {len(array)} numbers", remedy)
    if array.ndim != 2:
        remedy = "vectors must be (n, D), so embed sets first"
        raise input_error(name, f"is {array.ndim}-D, of shape {array.shape}", remedy)
    check_numeric(array, name)
    if array.shape[1] == 0:
        raise input_error(name, f"has the shape {array.shape}", "vectors need at least one number")
    if dim is not None and array.shape[1] != dim:
        raise input_error(name, f"has vectors of {array.shape[1]} numbers; {expected} {dim}")
    return array


def fitting_vectors(X: Any) -> Array:
    """Return X for `fit`: at least one vector."""
    array = checked_vectors(X)
    if len(array) == 0:
        raise input_error("X", f"has the shape {array.shape}", "fit needs at least one vector")
    return array


def blocks(array: Array, n_rows: int, name: str = "X") -> Iterator[tuple[slice, Float32]]:
    """Yield blocks of at most `n_rows` rows, as (rows, float32 block); refuse NaN and what is too large."""
    for start in range(0, len(array), n_rows):
        checkpoint()
        rows = slice(start, min(start + n_rows, len(array)))
        yield rows, as_float32(array[rows], name, start)


def as_float32(array: Array, name: str = "X", first: int = 0) -> Float32:
    """Return vectors as C-contiguous float32; refuse NaN and what is too large. Errors count rows from `first`."""
    if array.dtype == FLOAT32:
        block = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.ascontiguousarray(array, dtype=np.float32)
    if (bad := first_beyond(block, MAX_VALUE)) is None:
        return block
    value, row, column = array[bad], first + bad[0], bad[1]
    problem = f"{name}: row {row} holds {'NaN' if np.isnan(value) else 'infinity'} (column {column})"
    remedy = "correct the vector, or drop it"
    if np.isfinite(value):
        problem = f"{name}: row {row} has {value:.3g} in column {column}, beyond {MAX_VALUE:g}"
        remedy = "scale the vectors down"
    raise InputError(problem, remedy, argument=name, element=row, feature=column)


def check_numbers(array: Array, name: str = "X") -> None:
    """Refuse NaN and what is too large, where there is no other use for the numbers yet."""
    for _ in blocks(array, max(1, CHECKED_AT_ONCE // array.shape[1]), name):
        pass
