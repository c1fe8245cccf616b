"""Sets for the tests of slosh.torch, and what their vectors and distances are, in plain loops over float64."""

from __future__ import annotations

import itertools

import numpy as np


def ragged(sizes, dim=3, weighted=False, seed=0, kind="normal"):
    """Return points (P, d), offsets, and weights or None, some of them zero."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = rng.normal(size=(offsets[-1], dim))
    if kind == "ties":
        points = points.round()
    weights = None
    if weighted:
        weights = rng.uniform(0.1, 2.0, offsets[-1]) * (rng.random(offsets[-1]) > 0.2)
        weights[offsets[:-1]] = 1.0
    return points.astype(np.float32), offsets, None if weights is None else weights.astype(np.float32)


def quantile_function(points, weights, theta):
    """Return the sorted values of one slice, and the cumulative weights up to each; elements of weight zero are out."""
    weights = np.ones(len(points)) if weights is None else np.asarray(weights, np.float64)
    values = np.asarray(points, np.float64) @ np.asarray(theta, np.float64)
    order = [i for i in np.lexsort((weights, values)) if weights[i] > 0]
    ends = np.cumsum(weights[order])
    return values[order], ends / ends[-1]


def vectors(points, offsets, weights, theta, n_quantiles, average, reference=0.0):
    """Return the embedding of every set, (n, L * M)."""
    rows = []
    for a, b in itertools.pairwise(offsets):
        row = []
        for each in theta:
            values, ends = quantile_function(points[a:b], None if weights is None else weights[a:b], each)
            if average:  # the integral up to the end of each bin, which is linear between the cuts
                integral = np.concatenate([[0.0], np.cumsum(values * np.diff(ends, prepend=0.0))])
                at = np.interp(np.arange(n_quantiles + 1) / n_quantiles, np.concatenate([[0.0], ends]), integral)
                row.append(np.diff(at) * n_quantiles)
            else:
                row.append(np.interp((np.arange(n_quantiles) + 1) / n_quantiles, ends, values))
        rows.append((np.array(row) - reference).ravel())
    return np.array(rows).reshape(len(offsets) - 1, -1) / np.sqrt(len(theta) * n_quantiles)


def distances(a, b, theta):
    """Return the sliced distance of set i of a and set i of b; both are (points, offsets, weights)."""
    found = []
    for i in range(len(a[1]) - 1):
        squares = []
        for each in theta:
            (x, s), (y, t) = (
                quantile_function(p[o[i] : o[i + 1]], None if w is None else w[o[i] : o[i + 1]], each)
                for p, o, w in (a, b)
            )
            edges = np.unique(np.concatenate([[0.0], s, t]))
            middle = (edges[1:] + edges[:-1]) / 2
            at_x, at_y = (np.minimum(np.searchsorted(c, middle), len(c) - 1) for c in (s, t))
            squares.append(((x[at_x] - y[at_y]) ** 2 * np.diff(edges)).sum())
        found.append(np.sqrt(np.mean(squares)))
    return np.array(found)
