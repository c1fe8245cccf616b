"""Measure the error of the sliced distance with L slices: random (the paper's), orthogonal, and evenly spread ones.

The paper's bound is for the square, E|SW_L^2 - SW^2| <= sqrt(var(W_2^2(theta)) / L). All errors here are relative to
SW^2, so that pairs and data sets can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from ledger import Unit
from protocol import SETTINGS, Array, Plan, data
from slosh import Sets, pairwise
from slosh.slices import directions

KINDS = ("random", "orthogonal", "qmc")
SLICES = tuple(2**i for i in range(10))
EXACT_SLICES = {"mnist": 4096, "modelnet40": 16384, "oxford5k": 16384}
"""Slices that stand in for all directions."""
SLICES_PER_CALL = 1024
ABOVE_FLOOR = 5.0
"""Errors are fitted only while they exceed this many times the error of the reference value itself."""
SECONDS = {"mnist": 3.0, "modelnet40": 10.0, "oxford5k": 6.0}


def units(plan: Plan) -> Iterator[Unit]:
    for name in SETTINGS:
        for kind in KINDS:
            yield Unit(f"monte_carlo/{name}/{kind}", SECONDS[name], lambda a=(plan, name, kind): study(*a))


def study(plan: Plan, name: str, kind: str) -> dict[str, Any]:
    """Return the mean relative error for each L over pairs and draws, the bound, the floor, and the exponent of L."""
    some, others = two_sides(plan, name)
    exact, floor, variance = truth(plan, name)
    n_draws = plan.choose(48, 3)
    slices = plan.choose(SLICES, (1, 4, 16, 64))
    errors = []
    for n_slices in slices:
        draws = (directions(kind, n_slices, some.dim, seed) for seed in range(n_draws))
        errors.append(float(np.mean([np.abs(squared(some, others, theta) - exact) / exact for theta in draws])))
    bound = [float(np.mean(np.sqrt(variance / n_slices) / exact)) for n_slices in slices]
    return {
        "d": some.dim,
        "pairs": exact.size,
        "draws": n_draws,
        "exact slices": plan.choose(EXACT_SLICES[name], 1024),
        "slices": list(slices),
        "error": errors,
        "bound": bound,
        "floor": floor,
    } | fit(slices, errors, floor, some.dim)


def fit(slices: tuple[int, ...], errors: list[float], floor: float, dim: int) -> dict[str, Any]:
    """Fit the exponent of L by least squares of the logarithms, from L = d while the error is far above the floor."""
    used = [i for i, n in enumerate(slices) if n >= dim and errors[i] > ABOVE_FLOOR * floor]
    if len(used) < 2:
        return {"exponent": None, "fitted": []}
    x, y = np.log([slices[i] for i in used]), np.log([errors[i] for i in used])
    return {"exponent": float(np.polyfit(x, y, 1)[0]), "fitted": [slices[used[0]], slices[used[-1]]]}


def squared(some: Sets, others: Sets, slices: Array) -> Array:
    """Return SW_L^2 between every set of one collection and every set of the other."""
    parts = [slices[i : i + SLICES_PER_CALL] for i in range(0, len(slices), SLICES_PER_CALL)]
    return np.mean([pairwise(some, others, slices=part) ** 2 for part in parts], axis=0)


def two_sides(plan: Plan, name: str) -> tuple[Sets, Sets]:
    """Return two collections of random sets, all pairs of which are compared."""
    sets, n = data(plan, name).database.sets, plan.choose(8, 3)
    rows = np.random.RandomState(1).permutation(len(sets))[: 2 * n]
    return sets.take(rows[:n]), sets.take(rows[n:])


@lru_cache(maxsize=1)
def truth(plan: Plan, name: str) -> tuple[Array, float, Array]:
    """Return SW^2 of the pairs, its relative change with other slices (the floor), and the variance of W_2^2."""
    some, others = two_sides(plan, name)
    many, again = (directions("qmc", plan.choose(EXACT_SLICES[name], 1024), some.dim, seed) for seed in (100, 101))
    exact = squared(some, others, many)
    floor = float(np.mean(np.abs(squared(some, others, again) / exact - 1)))
    single = directions("qmc", plan.choose(1024, 64), some.dim, 102)
    one_by_one = np.stack([squared(some, others, theta[None]) for theta in single])
    return exact, floor, one_by_one.var(axis=0)
