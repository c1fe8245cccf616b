"""Changes of sets that leave their label as it is, so that more is learnt from them: torch tensors in, tensors out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.sets import Sets
from ..errors import InputError
from ..native.arrays import Array, Float64

KEPT = 0.5
"""The smallest share of its elements that "drop" leaves a set."""
JITTER = 0.02
"""Of "jitter": the deviation of what is added to a coordinate, over that of the coordinates within a set."""
STRETCH = 1.18
"""Of "scale": the most that a set is stretched along an axis, or, as 1 / STRETCH, shrunk."""
FIXED = 0.5
"""Sets are stretched from their lowest or highest coordinates if these vary less between sets than this part of what
their means do, and otherwise from their means."""
MOST = 0.8
"""The part of the sets that say how much something varies: those in the middle, so that a few odd ones do not count."""
NORMAL = 2.5631
"""How far apart so many lie of what is distributed normally, over its deviation."""
TURN = 30.0
"""Of "rotate": the largest angle that a set of 2 or 3 features is turned by, in degrees."""
SHIFT = 0.2
"""Of "shift": how far a set is moved along an axis at most, over the deviation of all coordinates."""

Change = Callable[[Tensor, Tensor], Tensor]


class SetBatch(NamedTuple):
    """Sets on a device: points (P, d), offsets (n + 1,), weights (P,) or None, and further features (n, k) or None.

    size : the elements of each set where all have as many, and None where that is not known.
    """

    points: Tensor
    offsets: Tensor
    weights: Tensor | None
    features: Tensor | None = None
    size: int | None = None

    @property
    def sizes(self) -> Tensor:
        return torch.diff(self.offsets)

    @property
    def set_of(self) -> Tensor:
        """The set of each element, (P,)."""
        which = torch.arange(len(self.offsets) - 1, device=self.offsets.device)
        if self.size is not None:
            return which[:, None].expand(-1, self.size).flatten()
        return torch.repeat_interleave(which, self.sizes, output_size=len(self.points))


class Layout(NamedTuple):
    """How the sets of a collection lie. A few odd ones do not count.

    center : (d,) the middle of the sets.
    spread : the deviation of all coordinates, each from that of the center; 1 if there is none.
    within : the deviation of the coordinates from the mean of their set; the spread if there is none.
    fixed : (d,) what of a set stays where it is when the set is stretched along an axis: -1 is its lowest coordinate, 0
        its mean, 1 its highest.
    by_means : whether it is the mean along all axes.
    """

    center: Float64
    spread: float
    within: float
    fixed: Tensor
    by_means: bool

    @classmethod
    def of(cls, sets: Sets) -> Layout:
        """Return how these sets lie, whose elements all have a weight.

        Sets are given in a frame: they are centred, begin at zero, stand on a floor. It is found by what of them is
        at the same place in most, and stays there when they are stretched.
        """
        points, starts = sets.points, sets.offsets[:-1]
        means = np.add.reduceat(points, starts, dtype=np.float64) / sets.sizes[:, None]
        variances = _variances(sets, means)
        within = np.median(variances, axis=0)
        within = (within if within.any() else variances.mean(axis=0)).mean()
        ends = np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)
        low, high, middle = (_width(each) for each in (*ends, means))
        spread = float(np.sqrt(within + ((middle / NORMAL) ** 2).mean()))
        spread = spread or float(np.sqrt(points.var(axis=0, dtype=np.float64).mean())) or 1.0
        which = np.where(low <= high, -1, 1)
        fixed = np.where(np.minimum(low, high) < FIXED * middle, which, 0)
        by_axis = torch.tensor(fixed, dtype=torch.int8)
        return cls(np.median(means, axis=0), spread, float(np.sqrt(within)) or spread, by_axis, not fixed.any())

    def to(self, device: torch.device) -> Layout:
        return self._replace(fixed=self.fixed.to(device))


def _width(places: Array) -> Float64:
    """Return how far apart most of these places lie along each axis, (d,)."""
    first, last = np.quantile(places, [(1 - MOST) / 2, (1 + MOST) / 2], axis=0)
    return np.asarray(last - first, np.float64)


def _variances(sets: Sets, means: Float64) -> Float64:
    """Return the variance of each set along each axis, (n, d): a feature after the other, which takes less memory."""
    found = np.empty_like(means)
    for i, column in enumerate(sets.points.T):
        away = column - np.repeat(means[:, i], sets.sizes)
        found[:, i] = np.add.reduceat(np.square(away, out=away), sets.offsets[:-1]) / sets.sizes
    return found


def _drop(batch: SetBatch, layout: Layout) -> SetBatch:
    """Keep a random part of the elements of each set, one at least."""
    of = batch.set_of
    share = torch.empty(len(batch.offsets) - 1, device=of.device).uniform_(KEPT, 1)
    drawn = torch.rand(len(of), device=of.device)
    first = torch.segment_reduce(drawn, "min", offsets=batch.offsets)
    kept = (drawn < share[of]) | (drawn == first[of])
    sizes = torch.zeros_like(batch.sizes).index_add_(0, of, kept.to(batch.sizes.dtype))
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    weights = None if batch.weights is None else batch.weights[kept]
    return batch._replace(points=batch.points[kept], offsets=offsets, weights=weights, size=None)


def _jitter(batch: SetBatch, layout: Layout) -> SetBatch:
    return batch._replace(points=batch.points + JITTER * layout.within * torch.randn_like(batch.points))


def _scale(batch: SetBatch, layout: Layout) -> SetBatch:
    factors, of, fixed = _of_each_set(batch).uniform_(1 / STRETCH, STRETCH), batch.set_of, _means(batch)
    if not layout.by_means:
        low, high = _ends(batch)
        fixed = torch.where(layout.fixed < 0, low, torch.where(layout.fixed > 0, high, fixed))
    fixed = fixed[of]
    return batch._replace(points=fixed + (batch.points - fixed) * factors[of])


def _shift(batch: SetBatch, layout: Layout) -> SetBatch:
    steps = _of_each_set(batch).uniform_(-SHIFT * layout.spread, SHIFT * layout.spread)
    return batch._replace(points=batch.points + steps[batch.set_of])


def _rotate(batch: SetBatch, layout: Layout) -> SetBatch:
    """Turn each set about its mean, by an angle of at most TURN degrees; in space about an axis that is drawn, too."""
    points, of = batch.points, batch.set_of
    n, dim = len(batch.offsets) - 1, points.shape[1]
    angles = points.new_empty(n).uniform_(-math.radians(TURN), math.radians(TURN))
    if dim == 2:
        axes = torch.eye(3, device=points.device, dtype=points.dtype)[2:].expand(n, 3)
    else:
        axes = torch.nn.functional.normalize(torch.randn(n, 3, device=points.device, dtype=points.dtype), dim=1)
    # Rodrigues: R = 1 + sin K + (1 - cos) K^2, with K the matrix of the product with the axis.
    x, y, z = axes.T
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).view(n, 3, 3)
    turn = torch.eye(3, device=points.device, dtype=points.dtype) + angles.sin()[:, None, None] * cross
    turn = (turn + (1 - angles.cos())[:, None, None] * (cross @ cross))[:, :dim, :dim]
    mean = _means(batch)[of]
    return batch._replace(points=mean + torch.einsum("pij,pj->pi", turn[of], points - mean))


def _means(batch: SetBatch) -> Tensor:
    """Return the mean of each set, (n, d)."""
    if batch.size is not None:
        return batch.points.view(-1, batch.size, batch.points.shape[1]).mean(dim=1)
    return _of_each_set(batch).zero_().index_add_(0, batch.set_of, batch.points) / batch.sizes[:, None]


def _ends(batch: SetBatch) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest coordinates of each set, (n, d) each."""
    if batch.size is not None:
        low, high = torch.aminmax(batch.points.view(-1, batch.size, batch.points.shape[1]), dim=1)
        return low, high
    low, high = (torch.segment_reduce(batch.points, how, offsets=batch.offsets, axis=0) for how in ("min", "max"))
    return low, high


def _of_each_set(batch: SetBatch) -> Tensor:
    return batch.points.new_empty((len(batch.offsets) - 1, batch.points.shape[1]))


CHANGES: dict[str, Callable[[SetBatch, Layout], SetBatch]] = {
    "rotate": _rotate,
    "scale": _scale,
    "shift": _shift,
    "jitter": _jitter,
    "drop": _drop,
}


def with_regions_of_others(batch: SetBatch, share: float) -> tuple[SetBatch, Tensor, Tensor]:
    """Put, into about this share of the sets, a region of another set in the place of their own.

    The region is that of the elements nearest to one of the set's own, and takes as many of those of the other set.
    Return the sets, the number of the other set of each, (n,), and the part of the elements, or of their weight, that
    is a set's own, (n,). The weights of all sets must have the same mean.
    """
    assert batch.size is not None
    n_sets, n = len(batch.offsets) - 1, batch.size
    points = batch.points.view(n_sets, n, -1)
    device = points.device
    other = torch.rand(n_sets, device=device).argsort()
    chosen = torch.rand(n_sets, device=device) < share
    n_taken = (torch.rand(n_sets, device=device) * chosen * n).long()
    with torch.no_grad():
        middle = points[:, :1]  # one of the elements at random, since they come in a random order
        far = (points - middle).square().sum(2).argsort(dim=1, descending=True)
        near = (points[other] - middle).square().sum(2).argsort(dim=1)
    # The farthest of the own elements first, and behind them the nearest of the other set's.
    place = torch.arange(n, device=device)
    own = place < (n - n_taken)[:, None]
    rank = torch.where(own, place, place - (n - n_taken)[:, None])
    element = torch.where(own, far.gather(1, rank), near.gather(1, rank))
    from_set = torch.where(own, torch.arange(n_sets, device=device)[:, None], other[:, None])
    at = (from_set * n + element).flatten()
    if batch.weights is None:
        return batch._replace(points=batch.points[at]), other, 1 - n_taken / n
    weights = batch.weights[at]
    each = weights.view(n_sets, n)
    part = (each * own).sum(1) / each.sum(1)
    return batch._replace(points=batch.points[at], weights=weights), other, part


def augmented(batch: SetBatch, changes: Sequence[str] | Change, layout: Layout) -> SetBatch:
    """Return the sets changed at random, by torch's generator. `layout` is on their device."""
    if callable(changes):
        points: Any = changes(batch.points, batch.offsets)
        if not isinstance(points, Tensor) or points.shape != batch.points.shape:
            found = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
            problem = f"augment returned {found} for points of {tuple(batch.points.shape)}"
            raise InputError(problem, "return a tensor like that of the points", argument="augment")
        return batch._replace(points=points.to(batch.points))
    for name, change in CHANGES.items():
        if name in changes:
            batch = change(batch, layout)
    return batch
