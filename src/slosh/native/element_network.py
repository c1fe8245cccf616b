"""A small network over the elements of sets and their neighbours: compiled if the kernel was built, NumPy otherwise.

Sets, a row of inputs for each element, and layers come in; the outputs of all layers for each element come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from ..checkpoints import result_of
from ..errors import InputError
from . import element_network_numpy, kernel
from .arrays import Array, ElementLayer, Float32, Ragged

MAX_OUTPUTS = 1024
"""Outputs of a layer at most."""
MAX_LAYERS = 64
TREE_DIM = 3
"""Coordinates up to which a tree finds neighbours; beyond, all pairs of a set are compared."""
LONG_PAIRS = 2.0**27
"""Pairs of elements, times coordinates where all are compared, from which on a call may take a second: a tree has to
compare all pairs, too, where they are crowded within the rounding of the coordinates."""


def element_network(
    sets: Ragged,
    inputs: Float32,
    n_neighbors: int,
    layers: Sequence[ElementLayer],
    threads: int,
    slope: float = 0.2,
    out: Float32 | None = None,
) -> Float32:
    """Return the outputs of all layers side by side, (P, outputs of all layers), also in `out` if it is given.

    inputs : (P, c) the numbers h of the elements that the first layer takes; the coordinates tell who is a neighbour.
    n_neighbors : k, the elements of a neighbourhood N(i), of which the element itself is one.
    slope : what a number below zero is multiplied by.
    out : float32 with contiguous rows.

    A layer makes of the numbers h of the elements

        z_i = scale * (own h_i + max over j in N(i) of neighbors h_j) + shift
        z_i if z_i > 0 else slope * z_i

    with the maximum of each component. N(i) are the k elements of the set that are nearest to element i by their
    coordinates, the same for all layers, and all that are as near as the k-th, or that only the rounding of coordinates
    to float32 may have put farther: as in `slosh.embed.LocalShape`, but for any number of coordinates. Where there are
    fewer than k elements, all are neighbours. Elements of weight zero are no neighbours, and their outputs are zero.

    The numbers of a set have the same bits whatever else is computed. They are computed in float32, so that large
    inputs or layers may overflow. Arrays that do not fit together are refused (InputError, which is a ValueError).

    Up to three coordinates the time grows with the elements; beyond, with the square of the elements of a set.
    Ctrl-C is heard within a fraction of a second, also in long calls.

    >>> points = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]], np.float32)
    >>> one = np.ones((1, 2), np.float32)
    >>> layer = ElementLayer(own=one, neighbors=one, scale=np.ones(1, np.float32), shift=np.zeros(1, np.float32))
    >>> element_network(Ragged(points, np.array([0, 3]), None), points, 2, [layer], threads=1).ravel().tolist()
    [1.0, 2.0, 10.0]
    """
    columns = check_layers(layers, inputs.shape[1] if inputs.ndim == 2 else 0)
    n = len(sets.points)
    _check(inputs.shape[0] == n, "inputs", f"inputs has {len(inputs)} rows for {n} elements")
    _check(inputs.dtype == np.float32, "inputs", f"inputs is {inputs.dtype}, not float32")
    _check(n_neighbors >= 1, "n_neighbors", f"n_neighbors is {n_neighbors}")
    if out is None:
        out = np.empty((n, columns), np.float32)
    elif out.shape != (n, columns) or out.dtype != np.float32:
        raise InputError(f"out is {out.dtype} of shape {out.shape}", f"give float32 of shape {(n, columns)}")
    if n == 0:
        return out
    if kernel.is_compiled():
        _run_native(sets, np.ascontiguousarray(inputs), min(n_neighbors, n), layers, threads, slope, out)
    else:
        element_network_numpy.element_network(sets, inputs, n_neighbors, layers, slope, out)
    return out


def _run_native(
    sets: Ragged,
    inputs: Float32,
    n_neighbors: int,
    layers: Sequence[ElementLayer],
    threads: int,
    slope: float,
    out: Float32,
) -> None:
    arrays = [tuple(None if a is None else np.ascontiguousarray(a) for a in layer) for layer in layers]
    dim, sizes = sets.points.shape[1], np.diff(sets.offsets).astype(np.float64)
    run = partial(kernel.native.element_network, *sets, inputs, n_neighbors, arrays, slope, out)
    if float(sizes @ sizes) * (dim if dim > TREE_DIM else 1) < LONG_PAIRS:
        run(None, threads)
        return
    # Signals are handled by the main thread, which is free to do so while another one computes.
    stop = np.zeros(1, np.int32)
    with ThreadPoolExecutor(1) as pool:
        try:  # the signal may come while the thread is started
            result_of(pool.submit(run, stop, threads))
        finally:
            stop[0] = 1


def check_layers(layers: Sequence[ElementLayer], n_inputs: int) -> int:
    """Return how many outputs the layers have together; refuse (InputError) arrays that do not fit together.

    n_inputs : the numbers of an element that the first layer takes.
    """
    _check(1 <= len(layers) <= MAX_LAYERS, "layers", f"there are {len(layers)} layers, not 1 to {MAX_LAYERS}")
    _check(n_inputs >= 1, "inputs", "inputs must be rows of at least one number, (elements, numbers)")
    total, width = 0, n_inputs
    for number, layer in enumerate(layers):
        n_outputs = len(layer.own) if isinstance(layer.own, np.ndarray) and layer.own.ndim == 2 else 0
        where = f"layer {number}"
        allowed = 1 <= n_outputs <= MAX_OUTPUTS
        _check(allowed, "layers", f"{where}: own must be (outputs, inputs) with 1 to {MAX_OUTPUTS} outputs")
        _check_array(layer.own, (n_outputs, width), f"{where}: own")
        if layer.neighbors is not None:
            _check_array(layer.neighbors, (n_outputs, width), f"{where}: neighbors")
        _check_array(layer.scale, (n_outputs,), f"{where}: scale")
        _check_array(layer.shift, (n_outputs,), f"{where}: shift")
        total, width = total + n_outputs, n_outputs
    return total


def _check_array(array: Array, shape: tuple[int, ...], what: str) -> None:
    _check(isinstance(array, np.ndarray) and array.dtype == np.float32, "layers", f"{what} is not a float32 array")
    _check(array.shape == shape, "layers", f"{what} is of shape {array.shape}, not {shape}")
    _check(bool(np.isfinite(array).all()), "layers", f"{what} has NaN or infinities")


def _check(good: bool, argument: str, problem: str) -> None:
    if not good:
        raise InputError(problem, "give arrays that fit together, as slosh.learn writes them", argument=argument)
