"""The vectors that hashes and searches take: checked, and read block by block, so that a memory map never is in memory.

Anything like an array (n, D) comes in; C-contiguous float32 blocks of its rows go out, or a ValueError. Also the random
numbers that all hashes draw from.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from .checks import BLOCK, Array, as_array, check_numeric, kind_of

Float32: TypeAlias = NDArray[np.float32]

LARGEST = 1e18  # a sum of a hundred squares still fits float32


def hash_stream(random_state: Any) -> np.random.RandomState:
    """The draws of a seed: a stream of the hashes alone. Vectors, or slices, drawn with the same seed would otherwise
    be the directions that they are hashed with.
    """
    if isinstance(random_state, Integral) and 0 <= int(random_state) < 1 << 32:
        return np.random.RandomState(np.array([0x4A54, int(random_state)], np.uint32))
    stream: np.random.RandomState = check_random_state(random_state)
    return stream


def checked_vectors(
    X: Any, dim: int | None = None, *, name: str = "X", expected: str = "the hash was fitted on"
) -> Array:
    """X as an array (n, D) of real numbers, D = dim if that is given; the numbers themselves are not looked at yet.

    Errors call it `name`, and say that what was `expected` is dim.
    """
    if hasattr(X, "toarray"):
        raise ValueError(f"{name} is sparse, {kind_of(X)}: pass {name}.toarray()")
    array = as_array(X, name)
    if array.ndim == 0:
        raise ValueError(f"{name} is {kind_of(X)}, not an array of vectors (n, D)")
    if array.ndim == 1:
        raise ValueError(
            f"{name} is 1-D, of {len(array)} numbers: vectors must be (n, D), so pass x[None] for one of them"
        )
    if array.ndim != 2:
        raise ValueError(f"{name} is {array.ndim}-D, of shape {array.shape}: vectors must be (n, D); embed sets first")
    check_numeric(array, name)
    if array.shape[1] == 0:
        raise ValueError(f"{name} has the shape {array.shape}: vectors need at least one number")
    if dim is not None and array.shape[1] != dim:
        raise ValueError(f"{name} has vectors of {array.shape[1]} numbers; {expected} {dim}")
    return array


def fitting_vectors(X: Any) -> Array:
    """X for `fit`: at least one vector."""
    array = checked_vectors(X)
    if len(array) == 0:
        raise ValueError(f"X has the shape {array.shape}: fit needs at least one vector")
    return array


def blocks(array: Array, n_rows: int, name: str = "X") -> Iterator[tuple[slice, Float32]]:
    """Blocks of at most `n_rows` rows, as (rows, float32 block); NaN and what is too large are refused."""
    for start in range(0, len(array), n_rows):
        rows = slice(start, min(start + n_rows, len(array)))
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.ascontiguousarray(array[rows], dtype=np.float32)
        if not (block.min() >= -LARGEST and block.max() <= LARGEST):  # NaN fails too
            raise _refused(array[rows], block, start, name)
        yield rows, block


def check_numbers(array: Array, name: str = "X") -> None:
    """Refuses NaN and what is too large, where there is no other use for the numbers yet."""
    for _ in blocks(array, max(1, BLOCK // array.shape[1]), name):
        pass


def _refused(given: Array, block: Float32, start: int, name: str) -> ValueError:
    row = int(np.flatnonzero(~(np.abs(block) <= LARGEST).all(axis=1))[0])
    column = int(np.flatnonzero(~(np.abs(block[row]) <= LARGEST))[0])
    value = given[row, column]
    if np.isfinite(value):
        return ValueError(
            f"{name}: row {start + row} has {value:.3g} in column {column}, beyond {LARGEST:g}: scale the vectors down"
        )
    what = "NaN" if np.isnan(value) else "infinity"
    return ValueError(f"{name}: row {start + row} holds {what} (column {column}): correct the vector, or drop it")
