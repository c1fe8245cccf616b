"""`sliced_wasserstein`: the distance of two batches of sets, set by set, as a loss with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data.checks import input_error, random_stream
from ..embed.sliced_wasserstein import auto_slicer
from ..errors import InputError, UnsupportedError
from ..slices import Slicer
from . import plain
from .batches import Batch, check_values, ragged_batch


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
        and is divided by its norms.
    squared : whether to return the square. The distance itself has a gradient of zero where it is zero.
    check : as for `SlicedWassersteinPool`.

    >>> import torch
    >>> from slosh.torch import sliced_wasserstein
    >>> sliced_wasserstein(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[2.0], [3.0]]]))
    tensor([2.])
    """
    first = x[0] if isinstance(x, tuple) else x
    if not isinstance(first, Tensor):
        raise input_error("x", f"must be a tensor or a pair (points, offsets), not {type(first).__name__}")
    directions = _directions(slices, first, n_slices, random_state)
    dim = directions.shape[1]
    a, b = _side(x, x_weights, dim, directions, "x"), _side(y, y_weights, dim, directions, "y")
    n, m = len(a.offsets) - 1, len(b.offsets) - 1
    if n != m:
        raise InputError(
            f"x has {n} sets, y has {m}", "pass as many of both: set i is compared with set i", argument="y"
        )
    if directions.device.type == "cpu" if check is None else check:
        for each in (a, b):
            check_values(each.points, each.offsets, each.weights)
    squares = _squares(a, b, directions)
    return squares if squared else _root(squares)


def not_linear(slicer: Slicer) -> UnsupportedError:
    """Return the error about slices that are not directions."""
    problem = f"slosh.torch needs linear slices, and {slicer} is not linear"
    return UnsupportedError(problem, "pass directions (L, d), or a kind of them", feature_name="slices")


def _root(squares: Tensor) -> Tensor:
    """Return the root, whose gradient at zero is zero."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)


def _side(sets: Any, weights: Tensor | None, dim: int, like: Tensor, name: str) -> Batch:
    points, offsets = sets if isinstance(sets, tuple) else (sets, None)
    return ragged_batch(points, offsets, weights, None, None, dim=dim, like=like, name=name)


def _directions(slices: Any, points: Tensor, n_slices: int | None, random_state: Any) -> Tensor:
    if isinstance(slices, Tensor):
        if slices.dim() != 2:
            raise input_error("slices", f"must be (L, d), not {slices.dim()}-D")
        return torch.nn.functional.normalize(slices, dim=1)
    dim = points.shape[-1]
    slicer = auto_slicer(slices, int(dim), n_slices, random_stream(random_state))
    if slicer.directions_ is None:
        raise not_linear(slicer)
    dtype = torch.float64 if points.dtype == torch.float64 else torch.float32
    return torch.as_tensor(slicer.directions_, dtype=dtype).to(points.device)


def _squares(a: Batch, b: Batch, directions: Tensor) -> Tensor:
    """Return the mean over the slices of the squared distance of one-dimensional transport."""
    n = len(a.offsets) - 1
    if not n:
        return (a.points.sum() + b.points.sum()) * a.points.new_zeros(0)
    sides = [(plain.places(s.offsets, len(s.points)), s) for s in (a, b)]
    total = a.points.new_zeros(n, dtype=torch.float64)
    for part in plain.chunks(len(a.points) + len(b.points), len(directions), directions.device):
        rows = [plain.sort_sets(s.points, at, s.weights, directions[part]) for at, s in sides]
        cuts = [plain.upto(r, at) + at.set_of for r, (at, _) in zip(rows, sides, strict=True)]
        edges = torch.cat([c.expand(max(map(len, cuts)), -1) for c in cuts], 1).sort(1).values
        widths = torch.diff(edges, dim=1, prepend=torch.zeros_like(edges[:, :1]))
        middle = (edges - widths / 2).detach()
        values = []
        for r, c in zip(rows, cuts, strict=True):
            c = c.detach().expand(len(middle), -1).contiguous()
            place = torch.searchsorted(c, middle).clamp_(max=c.shape[1] - 1)
            values.append(r.values.gather(1, place.expand(len(r.values), -1)))
        parts = (values[0] - values[1]) ** 2 * widths
        of_set = middle.floor().long().clamp(0, n - 1).expand(parts.shape)
        total = total + parts.new_zeros((len(parts), n)).scatter_add(1, of_set, parts).sum(0)
    return (total / len(directions)).to(a.points.dtype)
