"""The gradient of an embedding in NumPy and float64: the twin of gradient.h, and the fallback where no compiler was.

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
                # Each weight moves all cuts from its own on, but the last, which is 1.
                of_cuts[np.cumsum(cut[:, :, ::-1], axis=2)[:, :, ::-1] - cut <= 0] = 0.0
                moved = np.cumsum(of_cuts[:, :, ::-1], axis=2)[:, :, ::-1]
                moved = (moved - (moved * cut).sum(axis=2, keepdims=True)) / total
                np.put_along_axis(each, order, moved, axis=2)
                of_weights[at] = np.where(mass > 0, each.sum(axis=1), 0.0)
    if of_directions is not None:
        of_directions[:] = sums


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
