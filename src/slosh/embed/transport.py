"""Optimal transport plans between two weighted sets, by the network simplex of POT, an optional package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingExtra

Float64 = NDArray[np.float64]

MAX_ITERATIONS = 10_000_000
"""Of the network simplex. POT's own limit, 100,000, stops early from some ten thousand elements on."""


def import_pot() -> Any:
    """Return the module `ot`, or raise a MissingExtra that says how to install it."""
    try:
        import ot
    except ImportError as error:
        raise MissingExtra(
            "optimal transport needs POT",
            'install it with pip install "slosh[transport]"',
            package="POT",
            extra="transport",
        ) from error
    return ot


def solve(ot: Any, a: Float64, b: Float64, cost: Float64) -> Float64:
    """Return the plan (N, N') of least cost between the weights a (N,) and b (N',), which sum to 1."""
    largest = cost.max() or 1.0  # the tolerances of the solver are meant for costs of about 1
    plan: Float64 = ot.emd(a, b, cost / largest, numItermax=MAX_ITERATIONS)
    return plan
