"""The inner loops of the embeddings: `embed`, `sort`, `transport`, their gradients, `field`, `local_shape`.

Compiled if the kernel was built, NumPy otherwise.

The environment variable `SLOSH_KERNEL` (`numpy`, `avx512vnni`, `avx512`, `avx2`, `generic`) chooses which kernel runs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..errors import bad_value, user_level
from . import gradient_numpy, kernel_numpy, local_numpy
from .arrays import Float32, Float64, Int64, Quantiles, Ragged

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
    """Return the kernel that runs: "avx512vnni", "avx512", "avx2", "generic" (compiled for any machine) or "numpy".

    >>> name() in {"avx512vnni", "avx512", "avx2", "generic", "numpy"}
    True
    """
    return "numpy" if native is None else str(native.name())


def is_compiled() -> bool:
    """Return whether the compiled kernel runs; warn once if it was not built."""
    global _warned
    if native is None and not _warned and _asked != "numpy":
        _warned = True
        warnings.warn(
            "slosh was installed without its native kernel (no C++17 compiler was found) and runs on NumPy: the same "
            "results, but many times slower. Install a compiler (e.g. apt install g++) and then slosh again, with "
            "pip's --force-reinstall --no-cache-dir.",
            RuntimeWarning,
            stacklevel=user_level(),
        )
    return native is not None


_most_threads: ContextVar[int | None] = ContextVar("most_threads", default=None)


@contextmanager
def limited_threads(most: int) -> Iterator[None]:
    """Let work within the block use at most so many threads, whatever its `n_jobs` is; no result depends on it.

    >>> with limited_threads(1):
    ...     threads(3)
    1
    """
    token = _most_threads.set(most)
    try:
        yield
    finally:
        _most_threads.reset(token)


def threads(n_jobs: int | None, tasks: int | None = None) -> int:
    """Return the number of threads that `n_jobs` stands for: None is one, -1 all cores of this process, -2 all but one.

    For one task it is one, and the cores are not counted.

    >>> threads(3), threads(-1, tasks=1)
    (3, 1)
    """
    if n_jobs is None or (tasks == 1 and type(n_jobs) is int and n_jobs):
        return 1
    if not isinstance(n_jobs, (int, np.integer)) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise bad_value("n_jobs", n_jobs, "pass a number of threads, or -1 for all cores")
    most = _most_threads.get()
    if n_jobs > 0:
        return int(n_jobs) if most is None else min(int(n_jobs), most)
    if most == 1:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores + 1 + int(n_jobs)) if most is None else max(1, min(cores + 1 + int(n_jobs), most))


def embed(sets: Ragged, rule: Quantiles, out: Float32, residual: Float64 | None, threads: int) -> None:
    """Write (quantiles - reference) * scale of every set into `out` (sets, n_slices * n_quantiles), slice after slice.

    `residual`, if given, receives one number a set, unscaled: the mean over the slices of the integral of (Q - its bin
    means)^2.
    """
    if is_compiled():
        native.embed(*sets, *rule, out, residual, threads)
    else:
        kernel_numpy.embed(sets, rule, out, residual)


def embed_gradient(
    sets: Ragged,
    rule: Quantiles,
    grad: Float32,
    of_points: Float32 | None,
    of_weights: Float32 | None,
    of_directions: Float32 | None,
    threads: int,
) -> None:
    """Write the gradients of points (P, d), weights (P,) and directions (L, d), given that of `embed`.

    `grad` is (sets, n_slices * n_quantiles); that of the reference is its sum over the sets, times - scale. What is
    None is not computed. Elements of weight zero get none. The bits do not depend on the number of threads.
    """
    if is_compiled():
        asked = of_points, of_weights, of_directions
        native.embed_gradient(*sets, rule.directions, rule.n_quantiles, rule.average, rule.scale, grad, *asked, threads)
    else:
        gradient_numpy.embed_gradient(sets, rule, grad, of_points, of_weights, of_directions)


def sort(sets: Ragged, directions: Float32 | None, n_slices: int, threads: int) -> Ragged:
    """Return the values of every set, sorted slice by slice, (P, n_slices), and their weights in the same order."""
    if not is_compiled():
        return kernel_numpy.sort(sets, directions, n_slices)
    values = np.empty((len(sets.points), n_slices), np.float32)
    weights = None if sets.weights is None else np.empty_like(values)
    native.sort(*sets, directions, n_slices, values, weights, threads)
    return Ragged(values, sets.offsets, weights)


def transport(a: Ragged, b: Ragged, pairs: Int64, threads: int) -> Float64:
    """Return, for each pair (i, j) of set i of a and set j of b, the mean over the slices of the squared distance.

    `a` and `b` are what `sort` returned. The distance is exact for any sizes and weights.
    """
    if not is_compiled():
        return kernel_numpy.transport(a, b, pairs)
    out = np.empty(len(pairs))
    native.transport(*a, *b, np.ascontiguousarray(pairs, np.int64), out, threads)
    return out


def transport_gradient(
    a: Ragged,
    b: Ragged,
    directions: Float32,
    grad: Float64,
    of_a: tuple[Float32 | None, Float32 | None],
    of_b: tuple[Float32 | None, Float32 | None],
    of_directions: Float32 | None,
    threads: int,
) -> None:
    """Write the gradients of points and weights, of both sides, and of directions, given that of squared distances.

    `a` and `b` are unsorted, and set i of the one is compared with set i of the other; `grad` is (sets,), of what
    `transport` returns. What is None is not computed. The bits do not depend on the number of threads.
    """
    if is_compiled():
        native.transport_gradient(*a, *b, directions, grad, *of_a, *of_b, of_directions, threads)
    else:
        gradient_numpy.transport_gradient(a, b, directions, grad, of_a, of_b, of_directions)


def field(sets: Ragged, anchors: Float32, out: Float32, threads: int) -> None:
    """Write the distance from each anchor (K, d) to the nearest element of every set into `out` (sets, K).

    Elements of weight zero do not count. A number has the same bits whatever else is computed.
    """
    if is_compiled():
        native.field(*sets, anchors, out, threads)
    else:
        kernel_numpy.field(sets, anchors, out)


def local_shape(sets: Ragged, sizes: Sequence[int], scale: Float64 | None, threads: int) -> Float32:
    """Return the elements of 2-D or 3-D sets with what their neighbours say beside the coordinates, (P, columns).

    sizes : elements of a neighbourhood, increasing.
    scale : what each column but the coordinates is multiplied by, (local_columns(d, n_sizes),); None: 1.

    The columns are the distance to the set's centre and, for each size, the roots of the eigenvalues of the covariance
    of the nearest elements, largest first (d), the distance to their mean (1), and the absolute components of the
    direction in which they vary least (d). `slosh.embed.LocalShape` says how ties, weights and lines are treated.
    """
    dim = sets.points.shape[1]
    found = np.empty((len(sets.points), dim + local_columns(dim, len(sizes))), np.float32)
    if is_compiled():
        native.local_shape(*sets, list(sizes), scale, found, threads)
    else:
        local_numpy.local_shape(sets, sizes, scale, found)
    return found


def local_columns(dim: int, n_sizes: int) -> int:
    """Return how many columns `local_shape` puts beside the coordinates."""
    return 1 + n_sizes * (2 * dim + 1)
