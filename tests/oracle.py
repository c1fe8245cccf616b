"""What an index must answer, in plain NumPy and Python: written from the formulas, and sharing no code with slosh.

`Oracle` has the average-rule embedding, the distance that an index ranks by, and the exact sliced distance; `holds` has
the filters over metadata. The checks compare hits with these distances: ids exactly where distances are further apart
than rounding may move them, equal sets in the order of their ids.
"""

from __future__ import annotations

import datetime
import math
from itertools import pairwise

import numpy as np


class Oracle:
    """Distances between sets under fixed slices. A set is a pair (points, weights); weights None are uniform.

    Slices are linear unless `project` says otherwise: a function (N, d) -> (N, L).
    """

    def __init__(self, directions, n_quantiles, project=None):
        directions = np.asarray(directions, np.float64)
        self.directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        self.n_quantiles = n_quantiles
        self.project = project or (lambda points: points @ self.directions.T)
        self._steps, self._vectors, self._sliced = {}, {}, {}

    def steps(self, one):
        """Return the quantile function of each slice: sorted values, and where each of them ends in (0, 1]."""
        key = key_of(one)
        if key not in self._steps:
            points, weights = np.asarray(one[0], np.float64), one[1]
            weights = np.ones(len(points)) if weights is None else np.asarray(weights, np.float64)
            points, weights = points[weights > 0], weights[weights > 0]
            self._steps[key] = []
            for values in self.project(points).T:
                order = np.argsort(values, kind="stable")
                ends = np.cumsum(weights[order]) / weights.sum()
                ends[-1] = 1.0
                self._steps[key].append((values[order], ends))
        return self._steps[key]

    def vector(self, one):
        """Return the means over the bins, divided by sqrt(L M), and the norm of what they leave out."""
        key = key_of(one)
        if key not in self._vectors:
            m, phi, left = self.n_quantiles, [], 0.0
            for values, ends in self.steps(one):
                cuts = np.unique(np.concatenate([[0.0], ends, np.arange(1, m + 1) / m]))
                middles, widths = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
                height = values[np.searchsorted(ends, middles)]
                bins = np.minimum((middles * m).astype(int), m - 1)
                means = np.bincount(bins, widths * height, m) * m
                left += float(np.sum(widths * (height - means[bins]) ** 2))
                phi.append(means)
            n = len(phi)
            self._vectors[key] = np.concatenate(phi) / math.sqrt(n * m), math.sqrt(left / n)
        return self._vectors[key]

    def embedded(self, a, b):
        """Return sqrt(|phi(a) - phi(b)|^2 + (r(a) - r(b))^2)."""
        (x, r), (y, s) = self.vector(a), self.vector(b)
        return math.sqrt(float(np.sum((x - y) ** 2)) + (r - s) ** 2)

    def sliced(self, a, b):
        """Return the root of the mean, over the slices, of the integral of (Q_a - Q_b)^2."""
        key = key_of(a), key_of(b)
        if key not in self._sliced:
            total = 0.0
            for (values, ends), (others, other_ends) in zip(self.steps(a), self.steps(b), strict=True):
                cuts = np.unique(np.concatenate([[0.0], ends, other_ends]))
                middles, widths = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
                height, other = values[np.searchsorted(ends, middles)], others[np.searchsorted(other_ends, middles)]
                total += float(np.sum(widths * (height - other) ** 2))
            self._sliced[key] = math.sqrt(total / len(self.directions))
        return self._sliced[key]

    def distances(self, query, stored, certify=False):
        """Return {id: distance} of a query to stored sets {id: (points, weights)}."""
        if certify or not stored:
            return {name: self.sliced(query, one) for name, one in stored.items()}
        vectors, norms = zip(*map(self.vector, stored.values()), strict=True)
        x, r = self.vector(query)
        away = np.sqrt(np.sum((np.array(vectors) - x) ** 2, axis=1) + (np.array(norms) - r) ** 2)
        return dict(zip(stored, away.tolist(), strict=True))


def key_of(one):
    """Return something that is equal for equal sets."""
    points, weights = one
    return points.tobytes(), None if weights is None else np.asarray(weights, np.float32).tobytes()


# -- filters -----------------------------------------------------------------------------------------------------------

COMPARE = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "prefix": lambda a, b: a[: len(b)] == b,
}


def plain(value):
    """Return metadata, or a filter, with dates and times as text, times in UTC."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime.datetime):
        value = value.replace(tzinfo=None) - (value.utcoffset() or datetime.timedelta())
        day, time = f"{value.year:04}-{value.month:02}-{value.day:02}", f"{value.hour:02}:{value.minute:02}"
        return f"{day}T{time}:{value.second:02}{f'.{value.microsecond:06}' * bool(value.microsecond)}+00:00"
    return f"{value.year:04}-{value.month:02}-{value.day:02}" if isinstance(value, datetime.date) else value


def fields(metadata, prefix=""):
    """Return {field: values}; the parts of a dict are fields with a dot, the items of a list are several values.

    A field that is not None is there, also if it holds a dict or has no value.
    """
    found = {}
    for key, value in metadata.items():
        if value is None:
            continue
        key = prefix + key
        items = value if isinstance(value, list) else [value]
        found.setdefault(key, []).extend(item for item in items if isinstance(item, str | int | float))
        if isinstance(value, dict):
            for inner, values in fields(value, f"{key}.").items():
                found.setdefault(inner, []).extend(values)
    return found


def comparable(a, b):
    return isinstance(a, str) == isinstance(b, str)


def equal(a, b):
    return comparable(a, b) and a == b


def holds(asked, metadata, name=""):
    """Return whether a set of these metadata and this id matches a filter that is a dict."""
    there = fields(plain(metadata))

    def exists(key):
        return key == "@id" or key in there or any(field.startswith(f"{key}.") for field in there)

    def items_of(key):
        return [name] if key == "@id" else there.get(key, [])

    def asked_of(key, value):
        return str(value) if key == "@id" and isinstance(value, int) else value

    def one_of(key, values):
        return any(equal(value, asked_of(key, other)) for value in items_of(key) for other in values)

    def field_holds(key, condition):
        if condition is None:
            return not exists(key)
        if isinstance(condition, list):
            return one_of(key, condition)
        if not isinstance(condition, dict):
            return one_of(key, [condition])
        bounds = [(op, asked_of(key, value)) for op, value in condition.items() if op in COMPARE]
        results = []
        if bounds:  # all of them for the same item
            items = items_of(key)
            results.append(any(all(comparable(item, b) and COMPARE[op](item, b) for op, b in bounds) for item in items))
        for op, value in condition.items():
            if op == "=":
                results.append(field_holds(key, value))
            elif op == "!=":
                results.append(not field_holds(key, value))
            elif op == "in":
                results.append(one_of(key, value))
            elif op == "not in":
                results.append(not one_of(key, value))
            elif op == "exists":
                results.append(exists(key) == value)
        return all(results)

    def holds_here(asked):
        return all(
            all(map(holds_here, condition)) if key == "and"
            else any(map(holds_here, condition)) if key == "or"
            else not holds_here(condition) if key == "not"
            else field_holds(key, condition)
            for key, condition in asked.items()
        )  # fmt: skip

    return holds_here(plain(asked))


# -- checks ------------------------------------------------------------------------------------------------------------


def check_nearest(hits, stored, distances, k, tolerance):
    """Check the k nearest of the sets `stored` {id: (points, weights)}, whose true distances are given."""
    assert len(hits.ids) == min(k, len(stored)), (hits.ids, sorted(stored))
    check_hits(hits, stored, distances, tolerance)
    if hits.ids and len(hits.ids) < len(stored):
        farthest = max(distances[name] for name in hits.ids)
        nearest = min(distances[name] for name in stored if name not in set(hits.ids))
        assert nearest >= farthest - 2 * tolerance, "a nearer set was left out"


def check_within(hits, stored, distances, radius, tolerance):
    """Check that all sets within a radius were found, and no other."""
    check_hits(hits, stored, distances, tolerance)
    assert np.all(np.asarray(hits.distances) <= radius)
    found = set(hits.ids)
    for name in stored:
        assert name in found or distances[name] >= radius - tolerance, f"{name} is at {distances[name]}"
        assert name not in found or distances[name] <= radius + tolerance, f"{name} is at {distances[name]}"


def check_hits(hits, stored, distances, tolerance, all_equal_sets=True):
    """Check distances, their order, and that equal sets come in the order of their ids.

    Unless `all_equal_sets`, as in an approximate answer, a set may be there without one that is equal and comes before.
    """
    assert len(set(hits.ids)) == len(hits.ids)
    assert set(hits.ids) <= set(stored), set(hits.ids) - set(stored)
    true = np.array([distances[name] for name in hits.ids])
    np.testing.assert_allclose(hits.distances, true, rtol=0, atol=tolerance)
    assert np.all(np.diff(hits.distances) >= 0)
    assert np.all(np.diff(true) >= -2 * tolerance)
    for (a, x), (b, y) in pairwise(zip(hits.ids, np.asarray(hits.distances).tolist(), strict=True)):
        assert x < y or a < b, f"{a} and {b} are at the same distance"
    groups = {}
    for name, one in stored.items():
        groups.setdefault(key_of(one), []).append(name)
    place = {name: i for i, name in enumerate(hits.ids)}
    for names in groups.values():
        found = sorted((name for name in names if name in place), key=place.get)
        expected = sorted(names)[: len(found)] if all_equal_sets else sorted(found)
        assert found == expected, f"{found} of the equal sets {sorted(names)}"


# -- parts -------------------------------------------------------------------------------------------------------------


def one_sided(a, b, coverage=1.0, squared=False):
    """Return the mean distance of the elements of a to the nearest of b, over the best covered share of the mass.

    Sets are pairs (points, weights); weights None are uniform, and elements of weight zero do not count.
    """
    (x, u), (y, v) = ((np.asarray(points, np.float64), weights) for points, weights in (a, b))
    u = np.ones(len(x)) if u is None else np.asarray(u, np.float64)
    y = y if v is None else y[np.asarray(v) > 0]
    away = np.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2)).min(axis=1) ** (2 if squared else 1)
    left, total = coverage, 0.0
    for i in np.argsort(away, kind="stable"):
        mass = min(u[i] / u.sum(), left)
        total, left = total + mass * away[i], left - mass
    return total / coverage


def part_distance(match, query, stored, coverage=1.0):
    """Return the distance that a search with `match` ranks by."""
    if match == "part":
        return one_sided(query, stored, coverage)
    if match == "contained":
        return one_sided(stored, query, coverage)
    return (one_sided(query, stored) + one_sided(stored, query)) / 2
