"""Embeddings and distances of sets, and their gradients, in plain torch operations: for every device and float64.

Ragged points and their offsets come in; nothing is padded to the largest set. Slices are taken some at a time, and
the backward pass sorts again, so that memory is bounded by a few numbers a point, whatever the number of slices.
`slosh.torch` uses them for all but float32, and the kernels of `columns.py` leave to them what they do not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..native import ordering

CHUNK_NUMBERS = {"cpu": 1 << 22, "other": 1 << 24}
"""Elements times slices that are sorted at once; each needs about 100 bytes while it is worked on."""


class Places(NamedTuple):
    """Where the elements of ragged sets are. P is the number of elements, n of sets."""

    set_of: Tensor  # (P,) the set of each element
    starts: Tensor  # (n,)
    sizes: Tensor  # (n,)
    rank: Tensor  # (P,) the place of each element in its set
    n_sets: int

    def end_of(self) -> Tensor:
        """Return the last element of the set of each element, (P,)."""
        return (self.starts + self.sizes - 1)[self.set_of]


def places(offsets: Tensor, n_points: int) -> Places:
    """Return where the elements are."""
    starts, n_sets = offsets[:-1], len(offsets) - 1
    at = torch.arange(n_points, device=offsets.device)
    set_of = torch.searchsorted(offsets[1:].contiguous(), at, right=True)
    return Places(set_of, starts, offsets.diff(), at - starts[set_of], n_sets)


def chunks(n_points: int, n_slices: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of the slices: so many at a time that memory is bounded."""
    most = CHUNK_NUMBERS.get(device.type, CHUNK_NUMBERS["other"])
    step = max(1, min(n_slices, most // max(n_points, 1)))
    for first in range(0, n_slices, step):
        yield slice(first, min(first + step, n_slices))


class Sorted(NamedTuple):
    """Some slices, one a row: which element is where in the order of set and value, and the values (float64)."""

    order: Tensor  # (l, P)
    values: Tensor  # (l, P)
    mass: Tensor | None  # (l, P) float64 weights in that order, of sum 1 in each set; None: all equal
    total: Tensor | None  # (n,) what the weights of each set summed to


def sort_sets(points: Tensor, at: Places, weights: Tensor | None, directions: Tensor) -> Sorted:
    """Return the elements of every set in the order of their values; those that weigh nothing come last, as zeros.

    Of equal values the lightest comes first, so that the linear rule does not depend on the order of the elements.
    """
    values = (points @ directions.T).T.contiguous() + 0.0  # no negative zero
    if weights is None:
        order = _order(values, at, None)
        return Sorted(order, values.gather(1, order).double(), None, None)
    values = values.masked_fill((weights <= 0)[None], torch.inf)
    order = _order(values, at, torch.argsort(weights, stable=True))
    total = _set_sums(weights.double()[None], at)[0]
    mass = (weights.double() / total[at.set_of])[order]
    return Sorted(order, values.gather(1, order).double().masked_fill(mass <= 0, 0.0), mass, total)


def _order(values: Tensor, at: Places, first: Tensor | None) -> Tensor:
    """Return the order of each row by set and then by value; of equal ones, by their place in `first`, or their own."""
    if values.dtype == torch.float64 and values.device.type == "cpu":
        ties = torch.arange(len(at.set_of), device="cpu")
        if first is not None:
            ties[first] = ties.clone()
        offsets = torch.nn.functional.pad(at.sizes.cumsum(0), (1, 0))
        found = ordering.order(values.detach().numpy(), offsets.numpy(), ties.numpy(), torch.get_num_threads())
        return torch.from_numpy(found)
    if first is None:
        return _sorted(values, at.set_of)
    return first[_sorted(values[:, first], at.set_of[first])]


def _sorted(values: Tensor, set_of: Tensor) -> Tensor:
    """Return the stable order of each row by set and then by value."""
    if values.dtype == torch.float32:  # both fit one whole number
        bits = values.view(torch.int32)
        bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        return torch.argsort((set_of[None] << 32) + bits.long(), dim=1, stable=True)
    by_value = torch.argsort(values, dim=1, stable=True)
    return by_value.gather(1, torch.argsort(set_of[by_value], dim=1, stable=True))


def _sums_before(rows: Tensor) -> Tensor:
    """Return the sum of what stands before each place of a row, and of all as one place more."""
    return torch.nn.functional.pad(rows.cumsum(1), (1, 0))


def _set_sums(rows: Tensor, at: Places) -> Tensor:
    before = _sums_before(rows)
    return before[:, at.starts + at.sizes] - before[:, at.starts]


class Cuts(NamedTuple):
    """Where the M places m / M, m = 1 ... M, of (0, 1] fall in each row: element, and cumulative weights around it."""

    which: Tensor  # (l or 1, n * M) place of the element that reaches it
    left: Tensor  # (l or 1, n * M) cumulative weight before the element
    width: Tensor  # its weight
    edge: Tensor  # (n * M,) the places themselves


def cut(rows: Sorted, at: Places, n_quantiles: int) -> Cuts:
    """Find the element of each set, in each slice, at which the cumulative weight reaches m / M."""
    device, n = at.starts.device, at.n_sets
    step = torch.arange(1, n_quantiles + 1, device=device)
    edge = (step.double() / n_quantiles).repeat(n)
    if rows.mass is None:
        sizes = at.sizes[:, None]
        which = (step * sizes + n_quantiles - 1) // n_quantiles - 1  # the first whose (which + 1) / N >= m / M
        width = (1.0 / sizes.double()).expand(which.shape)
        where = (at.starts[:, None] + which).reshape(1, -1)
        return Cuts(where, (which * width).reshape(1, -1), width.reshape(1, -1), edge)
    upto = cumulative(rows.mass, at)
    asked = (torch.arange(n, device=device).repeat_interleave(n_quantiles) + edge - 1e-12).expand(len(upto), -1)
    which = torch.searchsorted(upto + at.set_of, asked.contiguous())
    first, last = (x.repeat_interleave(n_quantiles) for x in (at.starts, at.starts + n_weighted(rows.mass, at) - 1))
    which = torch.minimum(torch.maximum(which, first), last)
    width = rows.mass.gather(1, which)
    return Cuts(which, upto.gather(1, which) - width, width, edge)


def upto(rows: Sorted, at: Places) -> Tensor:
    """Return the cumulative weight up to and with each element: a row for each slice, or one for all of them."""
    if rows.mass is None:
        return ((at.rank + 1) / at.sizes.double()[at.set_of])[None]
    return cumulative(rows.mass, at)


def cumulative(mass: Tensor, at: Places) -> Tensor:
    """Return the cumulative weight of each set up to and with each element, at most 1.

    What is summed over all sets is how much heavier than the mean of its set each element is: the sums stay small, so
    that they lose no digits to the number of sets.
    """
    sizes = at.sizes.double()[at.set_of]
    before = _sums_before(mass - 1 / sizes)
    return (before[:, 1:] - before[:, at.starts][:, at.set_of] + (at.rank + 1) / sizes).clamp_(max=1.0)


def n_weighted(mass: Tensor, at: Places) -> Tensor:
    """Return how many elements of each set weigh anything, (n,): they come first in the order."""
    return _set_sums((mass[:1] > 0).double(), at)[0].long()


def embed(
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    reference: Tensor,
    average: bool,
    scale: float,
    squares: Tensor | None = None,
) -> Tensor:
    """Return (quantiles - reference) * scale of every set along every direction, (n, L * M), slice after slice.

    squares : (n,) float64, gets the mean over the slices of the integral of (Q - its bin means)^2; average rule only.
    """
    n, (n_slices, n_quantiles) = len(offsets) - 1, reference.shape
    out = points.new_empty((n, n_slices, n_quantiles))
    if not n:
        return out.reshape(0, n_slices * n_quantiles)
    at = places(offsets, len(points))
    if squares is not None:
        squares.zero_()
    for part in chunks(len(points), n_slices, points.device):
        rows = sort_sets(points, at, weights, directions[part])
        found = (_average if average else _linear)(rows, at, cut(rows, at, n_quantiles))
        if squares is not None:
            squares += _residuals(rows, at, found.view(len(found), n, n_quantiles)) / n_slices
        out[:, part] = found.view(len(found), n, n_quantiles).transpose(0, 1).to(out.dtype)
    return ((out - reference) * scale).reshape(n, n_slices * n_quantiles)


def _average(rows: Sorted, at: Places, cuts: Cuts) -> Tensor:
    n_quantiles = len(cuts.edge) // at.n_sets
    # About the first value of each set, so that sums lose no digits to the distance from zero.
    centre = rows.values[:, at.starts]
    values = rows.values - centre[:, at.set_of]
    if rows.mass is None:
        values_mass = values / at.sizes.double()[at.set_of]
    else:
        values_mass = values.masked_fill(rows.mass <= 0, 0.0) * rows.mass
    before = _sums_before(values_mass)
    start = before[:, at.starts].repeat_interleave(n_quantiles, dim=1)
    which = cuts.which.expand(len(values), -1)
    upto = before.gather(1, which) - start + (cuts.edge - cuts.left) * values.gather(1, which)
    upto = upto.view(len(values), at.n_sets, n_quantiles)
    means = torch.diff(upto, dim=2, prepend=torch.zeros_like(upto[:, :, :1])) * n_quantiles
    return (means + centre[:, :, None]).flatten(1)


def _residuals(rows: Sorted, at: Places, means: Tensor) -> Tensor:
    """Return the integral of (Q - its bin means)^2, summed over the slices, (n,)."""
    centre = rows.values[:, at.starts]
    values = rows.values - centre[:, at.set_of]
    mass = 1.0 / at.sizes.double()[at.set_of] if rows.mass is None else rows.mass
    whole = _set_sums((values.square() * mass).masked_fill(mass <= 0, 0.0), at)
    kept = (means - centre[:, :, None]).square().mean(2)
    return (whole - kept).clamp(min=0.0).sum(0)


def _linear(rows: Sorted, at: Places, cuts: Cuts) -> Tensor:
    before, part = _between(at, cuts)
    which, before = (x.expand(len(rows.values), -1) for x in (cuts.which, before))
    low = rows.values.gather(1, before)
    return low + (rows.values.gather(1, which) - low) * part


def _between(at: Places, cuts: Cuts) -> tuple[Tensor, Tensor]:
    """Return the element before that of each cut, and how far the cut is on the way from the one to the other."""
    n_quantiles = len(cuts.edge) // at.n_sets
    first = at.starts.repeat_interleave(n_quantiles)
    part = ((cuts.edge - cuts.left) / cuts.width.clamp(min=1e-300)).clamp(0.0, 1.0)
    part = torch.where(cuts.which > first, part, 1.0)
    return torch.maximum(cuts.which - 1, first), part


class Gradients(NamedTuple):
    """Gradients of what was asked for; empty tensors where it was not."""

    points: Tensor
    weights: Tensor
    directions: Tensor


def embed_backward(
    grad: Tensor,
    points: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    directions: Tensor,
    n_quantiles: int,
    average: bool,
    scale: float,
    wanted: tuple[bool, bool, bool],
) -> Gradients:
    """Return the gradients of points, weights and directions, given that of `embed`; `wanted` says which."""
    n, n_slices = len(offsets) - 1, len(directions)
    found = empty_gradients(points, weights, directions, wanted)
    if not n:
        return found
    at = places(offsets, len(points))
    grad = grad.view(n, n_slices, n_quantiles)
    for part in chunks(len(points), n_slices, points.device):
        rows = sort_sets(points, at, weights, directions[part])
        cuts = cut(rows, at, n_quantiles)
        upstream = grad[:, part].transpose(0, 1).reshape(-1, n * n_quantiles).double() * scale
        spread = _average_gradient if average else _linear_gradient
        of_values, of_cuts = spread(upstream, rows, at, cuts)
        scatter_gradients(found, part, of_values, of_cuts, rows, at, points, weights, directions)
    return found


def empty_gradients(
    points: Tensor, weights: Tensor | None, directions: Tensor, wanted: tuple[bool, bool, bool]
) -> Gradients:
    """Return zeros of the shapes of the gradients that are wanted."""
    kinds = (points, points.new_empty(0) if weights is None else weights, directions)
    return Gradients(*(x.new_zeros(x.shape if want else 0) for x, want in zip(kinds, wanted, strict=True)))


def scatter_gradients(
    found: Gradients,
    part: slice,
    of_values: Tensor,
    of_cuts: Tensor | None,
    rows: Sorted,
    at: Places,
    points: Tensor,
    weights: Tensor | None,
    directions: Tensor,
) -> None:
    """Add the gradients of sorted values, (l, P), and of cumulative weights to those of points, weights, directions.

    The cumulative weight of the last element of a set that has a weight is 1, whatever the weights are.
    """
    each = torch.empty_like(of_values).scatter_(1, rows.order, of_values).to(points.dtype)
    if found.points.numel():
        found.points.add_(each.T @ directions[part])
    if found.directions.numel():
        found.directions[part] = each @ points
    if found.weights.numel() and of_cuts is not None and rows.mass is not None:
        assert weights is not None
        assert rows.total is not None
        of_cuts = of_cuts.masked_fill((at.rank >= n_weighted(rows.mass, at)[at.set_of] - 1)[None], 0.0)
        before = _sums_before(of_cuts)
        of_mass = before[:, at.end_of() + 1] - before[:, :-1]  # each weight moves all cuts from its own on
        mean = _set_sums(of_mass * rows.mass, at)
        of_mass = (of_mass - mean[:, at.set_of]) / rows.total[at.set_of]
        each = torch.empty_like(of_mass).scatter_(1, rows.order, of_mass).sum(0)
        found.weights.add_(each.masked_fill(weights <= 0, 0.0).to(weights.dtype))


def _average_gradient(upstream: Tensor, rows: Sorted, at: Places, cuts: Cuts) -> tuple[Tensor, Tensor | None]:
    """The loss is the integral of M G(t) Q(t), G(t) the gradient of the bin of t: an element gets its part of M G."""
    n_quantiles = len(cuts.edge) // at.n_sets
    by_set = upstream.view(len(upstream), at.n_sets, n_quantiles)
    before = torch.nn.functional.pad(by_set.cumsum(2), (1, 0))[:, :, :-1].flatten(1)  # M times the integral up to a bin

    def at_cuts(place: Tensor) -> tuple[Tensor, Tensor]:
        """Return M times the integral of G from 0 to each place, and G there."""
        bin_ = (place * n_quantiles - 1e-9).floor().clamp(0, n_quantiles - 1)
        row = (at.set_of * n_quantiles + bin_.long()).expand(len(upstream), -1)
        here = upstream.gather(1, row)
        return before.gather(1, row) + here * (place * n_quantiles - bin_), here

    if rows.mass is None:
        sizes = at.sizes[at.set_of].double()
        upto = ((at.rank + 1) / sizes)[None]
        left = (at.rank / sizes)[None]
        return at_cuts(upto)[0] - at_cuts(left)[0], None
    upto = cumulative(rows.mass, at)
    integral, here = at_cuts(upto)
    of_values = (integral - at_cuts((upto - rows.mass).clamp(min=0.0))[0]).masked_fill(rows.mass <= 0, 0.0)
    following = torch.roll(rows.values, -1, 1)
    return of_values, here * (rows.values - following) * n_quantiles


def _linear_gradient(upstream: Tensor, rows: Sorted, at: Places, cuts: Cuts) -> tuple[Tensor, Tensor | None]:
    before, part = _between(at, cuts)
    n_points = rows.values.shape[1]
    of_values = sum_by_place(cuts.which, upstream * part, n_points)
    of_values += sum_by_place(before, upstream * (1 - part), n_points)
    if rows.mass is None:
        return of_values, None
    rise = upstream * (rows.values.gather(1, cuts.which) - rows.values.gather(1, before)) / cuts.width.clamp(min=1e-300)
    of_cuts = sum_by_place(cuts.which, -rise * part, n_points)
    of_cuts += sum_by_place(before, rise * (part - 1), n_points)
    return of_values, of_cuts


def transport(x: Side, y: Side, directions: Tensor) -> Tensor:
    """Return the mean over the slices of the integral of (Q_x - Q_y)^2, set by set, (n,)."""
    total = x.points.new_zeros(len(x.offsets) - 1, dtype=torch.float64)
    for faced in _facing(x, y, directions):
        squares = faced.gap**2 * faced.widths
        total += sum_by_place(faced.set_of, squares, len(total)).sum(0)
    return (total / len(directions)).to(x.points.dtype)


def transport_backward(
    grad: Tensor, x: Side, y: Side, directions: Tensor, wanted: tuple[bool, bool, bool, bool, bool]
) -> tuple[Gradients, Gradients]:
    """Return the gradients of both sides, given that of `transport`; that of the directions is in the first.

    wanted : whether those of x, its weights, y, its weights, and the directions are.
    """
    found = (
        empty_gradients(x.points, x.weights, directions, (wanted[0], wanted[1], wanted[4])),
        empty_gradients(y.points, y.weights, directions, (wanted[2], wanted[3], wanted[4])),
    )
    grad = grad.double() / len(directions)
    for faced in _facing(x, y, directions):
        push = 2 * grad[faced.set_of] * faced.gap * faced.widths
        for k, (side, sign) in enumerate(((x, 1), (y, -1))):
            rows, at, _ = faced.sides[k]
            of_values = sum_by_place(faced.which[k], sign * push, len(side.points))
            of_cuts = None if rows.mass is None else _of_cuts(faced, k) * grad[at.set_of]
            scatter_gradients(found[k], faced.part, of_values, of_cuts, rows, at, side.points, side.weights, directions)
    if wanted[4]:
        found[0].directions.add_(found[1].directions)
    return found


class Side(NamedTuple):
    """One of the two batches that are compared."""

    points: Tensor
    offsets: Tensor
    weights: Tensor | None


class Facing(NamedTuple):
    """Two sides, sorted along some slices: which elements face each other, and for which share of the mass."""

    part: slice
    sides: tuple[tuple[Sorted, Places, Tensor], ...]  # with their cumulative weights, each plus the number of the set
    which: tuple[Tensor, Tensor]  # (l or 1, S) elements of both, by their places in the order
    widths: Tensor  # (l or 1, S)
    gap: Tensor  # (l, S) the value of the one less that of the other
    set_of: Tensor  # (l or 1, S)


def _facing(x: Side, y: Side, directions: Tensor) -> Iterator[Facing]:
    if len(x.offsets) < 2:
        return
    placed = [(side, places(side.offsets, len(side.points))) for side in (x, y)]
    for part in chunks(len(x.points) + len(y.points), len(directions), directions.device):
        rows = [sort_sets(side.points, at, side.weights, directions[part]) for side, at in placed]
        cuts = [upto(r, at) + at.set_of for r, (_, at) in zip(rows, placed, strict=True)]
        n_rows = max(map(len, cuts))
        cuts = [c.expand(n_rows, -1).contiguous() for c in cuts]
        edges = torch.cat(cuts, 1).sort(1).values
        widths = torch.diff(edges, dim=1, prepend=torch.zeros_like(edges[:, :1]))
        first, second = (_reached(c, edges - widths / 2) for c in cuts)
        gap = _values_at(rows[0], first) - _values_at(rows[1], second)
        sides = tuple((r, at, c) for r, (_, at), c in zip(rows, placed, cuts, strict=True))
        yield Facing(part, sides, (first, second), widths, gap, placed[0][1].set_of[first])


def _reached(cuts: Tensor, where: Tensor) -> Tensor:
    """Return the first element of each row whose cumulative weight reaches a place."""
    return torch.searchsorted(cuts, where.contiguous()).clamp_(max=cuts.shape[1] - 1)


def _values_at(rows: Sorted, which: Tensor) -> Tensor:
    return rows.values.gather(1, which.expand(len(rows.values), -1))


def _of_cuts(faced: Facing, k: int) -> Tensor:
    """Return the gradients of the cumulative weights of one side: what is left of each, less what is right of it."""
    (rows, _, cuts), (other, _, other_cuts) = faced.sides[k], faced.sides[1 - k]
    facing = _values_at(other, _reached(other_cuts, cuts - 1e-12))
    return (rows.values - facing) ** 2 - (torch.roll(rows.values, -1, 1) - facing) ** 2


def sum_by_place(place: Tensor, values: Tensor, n_places: int) -> Tensor:
    """Return the sum of the values at each place, (l, n_places), where the places of each row increase.

    It adds in the order of the rows on every device, which `scatter_add_` does not.
    """
    before = _sums_before(values)
    asked = torch.arange(n_places, device=place.device).expand(len(place), -1).contiguous()
    first, last = (torch.searchsorted(place.contiguous(), asked, right=right) for right in (False, True))
    return before.gather(1, last.expand(len(values), -1)) - before.gather(1, first.expand(len(values), -1))
