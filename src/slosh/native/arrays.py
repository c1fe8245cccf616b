"""The types of arrays, and of the arguments of the kernels, that all modules share."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]
Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
UInt8: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]


class Ragged(NamedTuple):
    """Points (P, d) of sets one after the other, where the sets begin, and weights, all of them as `Sets` checks them.

    Instead of points there may be values (P, n_slices) of slices that are not linear; directions are then None.
    """

    points: Float32
    offsets: Int64
    weights: Float32 | None


class Quantiles(NamedTuple):
    """What to compute of a set: (quantiles - reference) * scale along directions, by the average or the linear rule."""

    directions: Float32 | None
    reference: Float32 | None
    n_slices: int
    n_quantiles: int
    average: bool = True
    scale: float = 1.0


class ElementLayer(NamedTuple):
    """One layer of a network over elements, as `slosh.native.element_network` runs it.

    own : (outputs, inputs) what an element's own numbers are multiplied by.
    neighbors : (outputs, inputs) what its neighbours' numbers are multiplied by; None: they do not count.
    scale, shift : (outputs,) what the sum is multiplied by, and what is added then.
    """

    own: Float32
    neighbors: Float32 | None
    scale: Float32
    shift: Float32
