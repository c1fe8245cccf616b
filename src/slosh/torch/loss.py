"""`sliced_wasserstein`: the distance of two batches of sets, set by set, as a loss with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.checks import input_error
from ..errors import InputError, bad_value
from .batches import HALF, ragged_batch, wrong_dimensions
from .drawing import unit_directions
from .operators import sliced_transport


def sliced_wasserstein(
    x: Any,
    y: Any,
    *,
    x_weights: Tensor | None = None,
    y_weights: Tensor | None = None,
    n_slices: int | None = None,
    slices: Any = "auto",
    random_state: Any = 0,
    squared: bool = False,
    check: bool | None = None,
) -> Tensor:
    r"""Return the sliced distance of each set of x and the same set of y, (n,), with gradients to points and weights.

    sqrt( mean over L slices of integral_0^1 (Q_x(t) - Q_y(t))^2 dt ): exact one-dimensional transport, for any sizes
    and weights. It equals `slosh.distance` with the same slices.

    Parameters
    ----------
    x, y : batches of as many sets each: a tensor (n, N, d), a nested tensor, or a pair of points (P, d) and offsets
        (n + 1,).
    x_weights, y_weights : one number >= 0 for each element, in the shape of the batch.
    n_slices, slices, random_state : as for `SlicedWassersteinPool`; a tensor (L, d) of your own may have a gradient,
        and is divided by its norms. `random_state=None` draws in every call, by a seed of torch's generator.
    squared : whether to return the square. The distance itself has a gradient of zero where it is zero.
    check : as for `SlicedWassersteinPool`.

    >>> import torch
    >>> from slosh.torch import sliced_wasserstein
    >>> sliced_wasserstein(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[2.0], [3.0]]]))
    tensor([2.])
    """
    if check not in (None, True, False):
        raise bad_value("check", check, "pass True, False or None")
    sides = _pair(x, "x"), _pair(y, "y")
    source = "slices" if isinstance(slices, Tensor) else "x"  # those that are drawn are like x
    directions = _directions(slices, sides[0][0], n_slices, random_state)
    a, b = (
        ragged_batch(*side, weights, None, None, dim=directions.shape[1], like=directions, name=name, source=source)
        for side, weights, name in zip(sides, (x_weights, y_weights), ("x", "y"), strict=True)
    )
    n, m = len(a.offsets) - 1, len(b.offsets) - 1
    if n != m:
        raise InputError(
            f"x has {n} sets, y has {m}", "pass as many of both: set i is compared with set i", argument="y"
        )
    check = directions.device.type == "cpu" if check is None else check
    squares: Tensor = sliced_transport(*a[:3], *b[:3], directions, check)
    return squares if squared else _root(squares)


def _root(squares: Tensor) -> Tensor:
    """Return the root, whose gradient at zero is zero."""
    zero = squares <= 0  # NaN is not: the loss of what is no number is none
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def _pair(sets: Any, name: str) -> tuple[Tensor, Tensor | None]:
    """Return the points and the offsets of a batch; other than those of a pair, points have no offsets."""
    points, offsets = sets, None
    if isinstance(sets, tuple | list):
        if len(sets) != 2 or not _may_be_offsets(sets[1]):
            what = f"is a {type(sets).__name__} of {len(sets)}, not a pair (points, offsets) of tensors"
            raise input_error(name, what, "for sets of any sizes pass (torch.cat(sets), their offsets)")
        points, offsets = sets
        for part, value in (("points", points), ("offsets", offsets)):
            if not isinstance(value, Tensor):
                what = f"has {part} of type {type(value).__name__}, not a tensor"
                raise input_error(name, what, f"pass torch.as_tensor({part})")
    if not isinstance(points, Tensor):
        what = f"must be a tensor or a pair (points, offsets), not {type(points).__name__}"
        raise input_error(name, what, "make a tensor with torch.as_tensor")
    if points.dim() not in ((3,) if points.is_nested else (2, 3)):
        raise wrong_dimensions(points, name)
    if points.dim() == 2 and offsets is None and not points.is_nested:
        remedy = f"pass the pair ({name}, offsets), and for one set {name}[None]"
        raise input_error(name, "is 2-D, and there are no offsets", remedy)
    if not points.is_nested and not points.shape[-1]:
        raise input_error(name, "has no features")
    return points, offsets


def _may_be_offsets(value: Any) -> bool:
    """Return whether the second of two is a tensor, an array or a list of integers, and not a set."""
    if isinstance(value, Tensor):
        return not value.dtype.is_floating_point
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iu"
    return isinstance(value, tuple | list) and all(isinstance(each, int | np.integer) for each in value)


def _directions(slices: Any, points: Tensor, n_slices: int | None, random_state: Any) -> Tensor:
    if isinstance(slices, Tensor):
        if slices.dim() != 2 or not slices.numel():
            raise input_error("slices", f"must be (L, d) numbers, not of the shape {tuple(slices.shape)}")
        if n_slices not in (None, len(slices)):
            raise bad_value("n_slices", n_slices, f"slices has {len(slices)} rows: leave n_slices out")
        if not slices.dtype.is_floating_point:
            raise input_error("slices", f"is {slices.dtype}", f"convert it: slices.to({torch.float32})")
        return torch.nn.functional.normalize(slices.float() if slices.dtype in HALF else slices, dim=1)
    if points.is_nested and points.layout != torch.jagged:  # it has no shape; that all sets agree is checked later
        sets = points.unbind()
        dim = sets[0].shape[-1] if sets else 1
    else:
        dim = int(points.shape[-1])
    drawn = unit_directions(slices, dim, n_slices, random_state)
    return drawn.to(points.device, torch.float64 if points.dtype == torch.float64 else torch.float32)
