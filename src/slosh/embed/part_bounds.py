"""Lower bounds of the distances from stored sets to queries, from what `PartField` keeps of the sets.

An element of a stored set is about as far from the query as its anchor is. The bounds of the other direction are the
kernel's (`native/parts.py`).
"""

from __future__ import annotations

import numpy as np

from ..native import parts
from ..native.arrays import Float32, Float64, UInt8

BLOCK_NUMBERS = 1 << 22
"""Numbers that are held at once."""
ROUNDING = 1e-9
"""What a sum may be rounded by, as a part of it."""


def contained_bounds(
    shares: UInt8, spread: Float32, fields: Float32, coverage: float = 1.0, threads: int = 1
) -> Float64:
    """Return lower bounds of the distances from sets to queries, (n_queries, n_sets).

    shares, spread : what `PartField.features` gives of the sets: the mass at each anchor, rounded down, in units of its
    own, and the mean distance of the elements to their anchors. fields : (n_queries, K), rounded down.

    With coverage below 1 the mass at the nearest anchors counts, and what rounding has left out comes first, at the
    distance zero; the elements that count are at most spread / coverage from their anchors on average.
    """
    unit, away = spread[:, 0].astype(np.float64), spread[:, 1].astype(np.float64)
    if coverage == 1.0:
        low = parts.histogram_bounds(shares, 1.0, np.zeros(len(shares)), fields, threads=threads)
        return np.asarray(np.maximum(low * (unit * (1 - ROUNDING)) - away * (1 + ROUNDING), 0.0))
    low = np.empty((len(fields), len(shares)))
    for i, field in enumerate(fields):
        order = np.argsort(field, kind="stable")
        for first in range(0, len(shares), max(1, BLOCK_NUMBERS // len(field))):
            part = slice(first, first + max(1, BLOCK_NUMBERS // len(field)))
            mass = shares[part][:, order] * unit[part, None]
            ends = np.cumsum(mass, axis=1)
            missing = np.maximum(1.0 - ends[:, -1:], 0.0)
            used = np.clip(coverage - missing - (ends - mass), 0.0, mass)
            near = used @ field[order].astype(np.float64)
            low[i, part] = (near * (1 - ROUNDING) - away[part] * (1 + ROUNDING)) / coverage
    return np.asarray(np.maximum(low, 0.0))
