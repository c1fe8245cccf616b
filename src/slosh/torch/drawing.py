"""Unit directions for `sliced_wasserstein` where its slices are no tensor: at once, or by operators of torch.compile.

A kind of slices or an array, the number of features and a seed come in; directions (L, d) go out, float32 on the CPU.
A seed draws the same slices in both ways. In what is compiled it is an argument of the operator, not a constant of the
graph, so that every call draws, and another seed needs no other graph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.checks import random_stream
from ..embed.sliced_wasserstein import auto_slicer, default_slices
from ..errors import UnsupportedError
from ..native.arrays import Float32
from ..slices import Linear, Slicer

FRESH_SEEDS = 1 << 31
"""The seeds that `random_state=None` takes one of in each call: those below it."""


def unit_directions(slices: Any, dim: int, n_slices: int | None, random_state: Any) -> Tensor:
    """Return the directions that `slices` stands for; `random_state=None` takes a seed of torch's generator."""
    if not torch.compiler.is_compiling():
        return _draw_now(slices, dim, n_slices, random_state)
    if type(slices) is Linear:
        slices = slices.kind
    found: Tensor
    if n_slices is not None and not isinstance(n_slices, int):
        found = _draw_outside(slices, dim, n_slices, random_state)
    elif isinstance(slices, list | tuple | np.ndarray):
        found = own_directions(torch.as_tensor(np.asarray(slices), device="cpu"), dim, n_slices)
    elif isinstance(slices, str) and random_state is None:
        found = seeded_directions(slices, dim, n_slices, _fresh_seed())
    elif isinstance(slices, str) and isinstance(random_state, int):
        seed = torch.full((), random_state, dtype=torch.int64, device="cpu")
        found = seeded_directions(slices, dim, n_slices, seed)
    else:
        found = _draw_outside(slices, dim, n_slices, random_state)
    return found


def not_linear(slicer: Slicer) -> UnsupportedError:
    """Return the error about slices that are not directions."""
    problem = f"slosh.torch needs linear slices, and {slicer} is not linear"
    return UnsupportedError(problem, "pass directions (L, d), or a kind of them", feature_name="slices")


def _fresh_seed() -> Tensor:
    return torch.randint(FRESH_SEEDS, (), device="cpu")


def _drawn(slices: Any, dim: int, n_slices: int | None, random_state: Any) -> Float32:
    slicer = auto_slicer(slices, dim, n_slices, random_stream(random_state))
    if slicer.directions_ is None:
        raise not_linear(slicer)
    return slicer.directions_


def _row_major(directions: Float32) -> Tensor:
    """Return a copy with the strides that the operators promise; that of drawn directions may be column by column."""
    return torch.tensor(np.ascontiguousarray(directions), device="cpu")


@torch.library.custom_op("slosh::seeded_directions", mutates_args=())
def seeded_directions(kind: str, dim: int, n_slices: int | None, seed: Tensor) -> Tensor:
    """Return the directions of a kind, drawn from a seed."""
    return _row_major(_latest_directions(kind, dim, n_slices, int(seed)))


@seeded_directions.register_fake
def _(kind: str, dim: int, n_slices: int | None, seed: Tensor) -> Tensor:
    if dim == 1:
        n_slices = 1
    elif kind == "axis":
        n_slices = dim
    elif n_slices is None:
        n_slices = default_slices(int(dim))
    # Fewer than one are refused when it runs, as all that cannot be drawn is.
    return seed.new_empty((max(n_slices, 1), dim), dtype=torch.float32)


@lru_cache(maxsize=1)
def _latest_directions(kind: str, dim: int, n_slices: int | None, seed: int) -> Float32:
    """Return drawn directions, those of the latest call again without drawing: most steps have the same seed."""
    return _drawn(kind, dim, n_slices, seed)


@torch.library.custom_op("slosh::own_directions", mutates_args=())
def own_directions(slices: Tensor, dim: int, n_slices: int | None) -> Tensor:
    """Return the rows of the user's own array as directions."""
    return _row_major(_drawn(slices.numpy(), dim, n_slices, 0))


@own_directions.register_fake
def _(slices: Tensor, dim: int, n_slices: int | None) -> Tensor:
    rows = 1 if dim == 1 or slices.dim() == 0 else slices.shape[0]
    return slices.new_empty((rows, dim), dtype=torch.float32)


def _draw_now(slices: Any, dim: int, n_slices: int | None, random_state: Any) -> Tensor:
    seed = int(_fresh_seed()) if random_state is None else random_state
    return torch.as_tensor(_drawn(slices, dim, n_slices, seed))


_WHY = (
    "what is compiled draws slices of a kind, or takes an array, with an int or None as n_slices and random_state: "
    "pass these, or draw outside of it and pass slices=torch.as_tensor(slosh.slices.directions(kind, n_slices, dim))"
)
try:
    _draw_outside = torch.compiler.disable(_draw_now, reason=_WHY)  # type: ignore[no-untyped-call]
except TypeError:  # before torch 2.8
    _draw_outside = torch.compiler.disable(_draw_now)  # type: ignore[no-untyped-call]
