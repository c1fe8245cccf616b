"""The inner loops of part search: compiled if the kernel was built, NumPy otherwise (see `slosh.native.kernel`).

`nearest_elements` compares the elements of pairs of sets; `covered_means` makes one-sided distances of what it found.
"""

from __future__ import annotations

import numpy as np

from . import kernel, parts_numpy
from .arrays import Float64, Int64, Ragged


def nearest_elements(x: Ragged, y: Ragged, pairs: Int64, threads: int) -> tuple[Float64, Int64, Int64]:
    """Return the squared distance of each element of a set of x to the nearest element of a set of y, and which it is.

    pairs : (n, 2) a set of x and a set of y each; pairs with the same set of x belong together, for speed.

    What is found of pair i is `squares[starts[i]:starts[i + 1]]`, in the order of the elements, and `which`, counted
    from the first element of the set of y: returned are squares, which, starts. Of equally near elements it is the
    first one. Elements of y of weight zero do not count. The squares are in float64, exact but for its rounding, and
    their bits depend on the two sets alone.
    """
    starts = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(np.diff(x.offsets)[pairs[:, 0]], out=starts[1:])
    squares, which = np.empty(starts[-1]), np.empty(starts[-1], np.int64)
    if kernel.is_compiled():
        pairs = np.ascontiguousarray(pairs, np.int64)
        kernel.native.nearest_elements(
            x.points, x.offsets, y.points, y.offsets, y.weights, pairs, starts, squares, which, threads
        )
    else:
        parts_numpy.nearest_elements(x, y, pairs, starts, squares, which)
    return squares, which, starts


def covered_means(
    squares: Float64, starts: Int64, x: Ragged, sets: Int64, coverage: float, squared: bool = False
) -> Float64:
    """Return the weighted mean of sqrt(squares), or of squares, of each pair, by the weights of `sets[i]` of x.

    With coverage below 1 it is the mean over the share of the mass that has the smallest squares; the element that
    straddles the limit counts in part.
    """
    out, sets = np.empty(len(sets)), np.ascontiguousarray(sets, np.int64)
    if kernel.is_compiled():
        kernel.native.covered_means(squares, starts, sets, x.offsets, x.weights, coverage, squared, out)
    else:
        parts_numpy.covered_means(squares, starts, x, sets, coverage, squared, out)
    return out
