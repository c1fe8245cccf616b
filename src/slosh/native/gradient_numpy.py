"""Gradients in NumPy and float64: the twins of gradient.h and transport_gradient.h, for where no compiler was.

Sets of one size are one 3-D array, as in `kernel_numpy`.
"""

from __future__ import annotations

import numpy as np

from .arrays import Float32, Float64, Int64, Quantiles, Ragged
from .kernel_numpy import SORTED_NUMBERS


def embed_gradient(
    sets: Ragged,
    rule: Quantiles,
    grad: Float32,
    of_points: Float32 | None,
    of_weights: Float32 | None,
    of_directions: Float32 | None,
) -> None:
    points, offsets, weights = sets
    assert rule.directions is not None
    directions = rule.directions.astype(np.float64)
    sums = np.zeros_like(directions)
    sizes = np.diff(offsets)
    spread = _average if rule.average else _linear
    for size in np.unique(sizes):
        every = np.flatnonzero(sizes == size)
        at_once = max(1, SORTED_NUMBERS // int(size * rule.n_slices))
        for first in range(0, len(every), at_once):
            rows = every[first : first + at_once]
            at = offsets[rows][:, None] + np.arange(size)
            inside = points[at].astype(np.float64)
            values = (inside @ directions.T).transpose(0, 2, 1)
            mass = np.ones(at.shape) if weights is None else weights[at].astype(np.float64)
            total = mass.sum(axis=1)[:, None, None]
            shares = np.broadcast_to(mass[:, None, :] / total, values.shape)
            order = np.lexsort((shares, np.where(shares > 0, values, np.inf)), axis=2)
            ordered, cut = (np.take_along_axis(x, order, axis=2) for x in (values, shares))
            upstream = rule.scale * grad[rows].astype(np.float64)
            upstream = upstream.reshape(len(rows), rule.n_slices, rule.n_quantiles)
            of_values, of_cuts = spread(upstream, ordered, cut)
            each = np.empty_like(of_values)
            np.put_along_axis(each, order, of_values, axis=2)
            each[np.broadcast_to(mass[:, None, :] <= 0, each.shape)] = 0.0
            if of_points is not None:
                of_points[at] = each.transpose(0, 2, 1) @ directions
            sums += np.einsum("sln,snd->ld", each, inside)
            if of_weights is not None:
                np.put_along_axis(each, order, _of_shares(of_cuts, cut) / total, axis=2)
                of_weights[at] = np.where(mass > 0, each.sum(axis=1), 0.0)
    if of_directions is not None:
        of_directions[:] = sums


def _of_shares(of_cuts: Float64, shares: Float64) -> Float64:
    """Return the gradients of weights of sum 1, given those of cumulative weights, in the order of the values.

    Each weight moves all cuts from its own on, but the last, which is 1.
    """
    later = np.cumsum(shares[..., ::-1], axis=-1)[..., ::-1] - shares
    moved = np.cumsum(np.where(later > 0, of_cuts, 0.0)[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(moved - (moved * shares).sum(axis=-1, keepdims=True))


def transport_gradient(
    a: Ragged,
    b: Ragged,
    directions: Float32,
    grad: Float64,
    of_a: tuple[Float32 | None, Float32 | None],
    of_b: tuple[Float32 | None, Float32 | None],
    of_directions: Float32 | None,
) -> None:
    theta = directions.astype(np.float64)
    sums = np.zeros_like(theta)
    for pair, g in enumerate(grad / len(theta)):
        sides = [_Side(each, pair, theta) for each in (a, b)]
        for side, other, (of_points, of_weights) in zip(sides, sides[::-1], (of_a, of_b), strict=True):
            of_values, of_shares = side.facing(other, float(g))
            if of_points is not None:
                of_points[side.part] = of_values.T @ theta
            if of_weights is not None:
                of_weights[side.part] = of_shares.sum(axis=0)
            sums += of_values @ side.points
    if of_directions is not None:
        of_directions[:] = sums


class _Side:
    """One set of a pair, sorted along every slice; elements of weight zero are left out."""

    def __init__(self, sets: Ragged, number: int, directions: Float64) -> None:
        self.part = slice(sets.offsets[number], sets.offsets[number + 1])
        self.points = sets.points[self.part].astype(np.float64)
        mass = np.ones(len(self.points)) if sets.weights is None else sets.weights[self.part].astype(np.float64)
        self.total = mass.sum()
        there = np.flatnonzero(mass > 0)
        values = directions @ self.points[there].T
        order = np.argsort(values, axis=1, kind="stable")
        self.order, self.values = there[order], np.take_along_axis(values, order, axis=1)
        self.shares = (mass[there] / self.total)[order]
        self.cuts = np.cumsum(self.shares, axis=1)
        self.cuts /= self.cuts[:, -1:]

    def facing(self, other: _Side, g: float) -> tuple[Float64, Float64]:
        """Return g times the gradients of the values and of the weights of this side, (L, N), by element."""
        of_values, of_shares = (np.zeros((len(self.values), len(self.points))) for _ in range(2))
        for row, (values, cuts) in enumerate(zip(self.values, self.cuts, strict=True)):
            edges = np.sort(np.concatenate([[0.0], cuts, other.cuts[row]]))
            widths, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
            mine = np.minimum(np.searchsorted(cuts, middle), len(cuts) - 1)
            theirs = other.values[row][np.minimum(np.searchsorted(other.cuts[row], middle), len(other.cuts[row]) - 1)]
            of_sorted = np.bincount(mine, 2 * g * widths * (values[mine] - theirs), len(cuts))
            # Where both sides have a cut, what is left of it counts.
            at = np.searchsorted(other.cuts[row], cuts - 1e-12)
            facing = other.values[row][np.minimum(at, len(other.cuts[row]) - 1)]
            of_cuts = np.zeros(len(cuts))
            of_cuts[:-1] = g * ((values[:-1] - facing[:-1]) ** 2 - (values[1:] - facing[:-1]) ** 2)
            of_values[row, self.order[row]] = of_sorted
            of_shares[row, self.order[row]] = _of_shares(of_cuts, self.shares[row]) / self.total
        return of_values, of_shares


def _average(upstream: Float64, values: Float64, shares: Float64) -> tuple[Float64, Float64]:
    """Return the gradients of the sorted values and of the cumulative weights, of M times the integral of G Q."""
    n_quantiles = upstream.shape[2]
    before = np.concatenate([np.zeros_like(upstream[:, :, :1]), np.cumsum(upstream, axis=2)], axis=2)

    def integral(places: Float64) -> tuple[Float64, Float64]:
        bins: Int64 = np.clip(np.floor(places * n_quantiles - 1e-9), 0, n_quantiles - 1).astype(np.int64)
        here = np.take_along_axis(upstream, bins, axis=2)
        return np.take_along_axis(before, bins, axis=2) + here * (places * n_quantiles - bins), here

    cuts = np.minimum(np.cumsum(shares, axis=2), 1.0)
    upto, here = integral(cuts)
    of_values = upto - integral(np.maximum(cuts - shares, 0.0))[0]
    of_cuts = np.zeros_like(values)
    of_cuts[:, :, :-1] = here[:, :, :-1] * n_quantiles * (values[:, :, :-1] - values[:, :, 1:])
    return of_values, of_cuts


def _linear(upstream: Float64, values: Float64, shares: Float64) -> tuple[Float64, Float64]:
    n_quantiles = upstream.shape[2]
    of_values, of_cuts = np.zeros_like(values), np.zeros_like(values)
    cuts = np.cumsum(shares, axis=2)
    cuts /= cuts[:, :, -1:]
    sets, slices = np.ogrid[: len(values), : values.shape[1]]
    for m in range(n_quantiles):
        place = (m + 1) / n_quantiles
        which = np.argmax(cuts >= place - 1e-12, axis=2)
        before = np.maximum(which - 1, 0)
        width = shares[sets, slices, which]
        part = np.clip((place - (cuts[sets, slices, which] - width)) / width, 0.0, 1.0)
        part = np.where(which > 0, part, 1.0)
        g = upstream[:, :, m]
        of_values[sets, slices, which] += g * part
        of_values[sets, slices, before] += g * (1 - part)
        rise = g * (values[sets, slices, which] - values[sets, slices, before]) / width
        of_cuts[sets, slices, which] -= rise * part
        of_cuts[sets, slices, before] += rise * (part - 1)
    return of_values, of_cuts
