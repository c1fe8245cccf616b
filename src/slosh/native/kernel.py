"""The inner loops of the embedding: `embed`, `sort`, `transport`. Compiled if the kernel was built, NumPy otherwise.

Inputs are ragged points (P, d) with offsets and weights that `Sets` has checked, and the directions of the slices; with
`directions=None` the points are values (P, n_slices) that a non-linear slicer has projected already. The environment
variable `SLOSH_KERNEL` (`numpy`, `avx512`, `avx2`, `generic`) chooses which kernel runs.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, user_level
from . import kernel_numpy
from .kernel_numpy import Doubles, Floats, Offsets

native: Any
try:
    from . import _native as native  # type: ignore[attr-defined,no-redef]
except ImportError:
    native = None

_asked = os.environ.get("SLOSH_KERNEL", "")
if _asked == "numpy":
    native = None
elif _asked and native is None:
    raise ImportError(f"SLOSH_KERNEL={_asked}, but slosh was installed without its native kernel: set it to numpy")
elif _asked:
    native.use(_asked)

_warned = False


def name() -> str:
    """Return the kernel that runs: "avx512", "avx2", "generic" (compiled for any machine) or "numpy".

    >>> name() in {"avx512", "avx2", "generic", "numpy"}
    True
    """
    return "numpy" if native is None else str(native.name())


def _warn_once() -> None:
    global _warned
    if not _warned and _asked != "numpy":
        _warned = True
        warnings.warn(
            "slosh was installed without its native kernel (no C++17 compiler was found) and runs on NumPy: the same "
            "results, but many times slower. Install a compiler (e.g. apt install g++) and then slosh again, with "
            "pip's --force-reinstall --no-cache-dir.",
            RuntimeWarning,
            stacklevel=user_level(),
        )


def threads(n_jobs: int | None) -> int:
    """Return the number of threads that `n_jobs` stands for: None is one, -1 all cores of this process, -2 all but one.

    >>> threads(3)
    3
    """
    if n_jobs is None:
        return 1
    if not isinstance(n_jobs, (int, np.integer)) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise InputError(f"n_jobs={n_jobs!r}", "pass a number of threads, or -1 for all cores", argument="n_jobs")
    if n_jobs > 0:
        return int(n_jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores + 1 + int(n_jobs))


def embed(
    points: Floats,
    offsets: Offsets,
    weights: Floats | None,
    directions: Floats | None,
    reference: Floats | None,
    n_slices: int,
    n_quantiles: int,
    average: bool,
    scale: float,
    out: Floats,
    residual: Doubles | None,
    threads: int,
) -> None:
    """Write (quantiles - reference) * scale of every set into `out` (sets, n_slices * n_quantiles), slice after slice.

    `residual`, if given, receives one number a set, unscaled: the mean over the slices of the integral of (Q - its bin
    means)^2.
    """
    if native is None:
        _warn_once()
    (native or kernel_numpy).embed(
        points, offsets, weights, directions, reference, n_slices, n_quantiles, average, scale, out, residual, threads
    )


def sort(
    points: Floats, offsets: Offsets, weights: Floats | None, directions: Floats | None, n_slices: int, threads: int
) -> tuple[Floats, Floats | None]:
    """Return the values of every set, sorted slice by slice, (P, n_slices), and their weights in the same order."""
    if native is None:
        _warn_once()
        return kernel_numpy.sort(points, offsets, weights, directions, n_slices, threads)
    out: NDArray[np.float32] = np.empty((len(points), n_slices), np.float32)
    out_weights = None if weights is None else np.empty_like(out)
    native.sort(points, offsets, weights, directions, n_slices, out, out_weights, threads)
    return out, out_weights


def transport(
    a: Floats,
    a_offsets: Offsets,
    a_weights: Floats | None,
    b: Floats,
    b_offsets: Offsets,
    b_weights: Floats | None,
    pairs: Offsets,
    threads: int,
) -> Doubles:
    """Return, for each pair (i, j) of set i of a and set j of b, the mean over the slices of the squared distance.

    `a` and `b` are what `sort` returned. The distance is exact for any sizes and weights.
    """
    if native is None:
        _warn_once()
        return kernel_numpy.transport(a, a_offsets, a_weights, b, b_offsets, b_weights, pairs, threads)
    out = np.empty(len(pairs))
    native.transport(
        a, a_offsets, a_weights, b, b_offsets, b_weights, np.ascontiguousarray(pairs, np.int64), out, threads
    )
    return out
