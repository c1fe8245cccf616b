"""Measure the complexity table of the supplement: the time to embed a set against N, L, d, and p for GeM.

Times are CPU seconds of one thread, the fastest of several runs, on sets of normal vectors. The reference has as many
points as the sets, M = N, as the supplement assumes; "SLOSH linear M=16" has 16 points, and "SLOSH M=16" also uses
slosh's average rule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ledger import Unit
from protocol import SETTINGS, Plan, paper_swe
from slosh import Sets
from slosh.embed import Covariance, FSPool, GeM, SlicedWasserstein, WassersteinEmbedding

BASE = {"N": 512, "L": 16, "d": 8, "p": 4}
"""Values of the variables that are held constant (for WE, which is slow, N = 128)."""
SIZES = tuple(2**i for i in range(6, 16))
DIMS = tuple(2**i for i in range(1, 9))
SLICES = tuple(2**i for i in range(2, 9))
VALUES: dict[str, dict[str, tuple[int, ...]]] = {
    "GeM-p": {"N": SIZES, "p": (1, 2, 3, 4, 6, 8, 12, 16), "d": DIMS},
    "Cov": {"N": SIZES, "d": DIMS},
    "FSPool": {"N": SIZES, "d": DIMS},
    "WE": {"N": tuple(2**i for i in range(4, 10)), "d": DIMS},
    "SLOSH": {"N": SIZES, "L": SLICES, "d": DIMS},
    "SLOSH linear M=16": {"N": SIZES},
    "SLOSH M=16": {"N": SIZES, "L": SLICES, "d": DIMS},
}
FORMULAS: dict[str, Callable[..., float] | None] = {
    "GeM-p": lambda N, L, d, p: N * p**2 * d,
    "Cov": lambda N, L, d, p: N * d**2,
    "FSPool": lambda N, L, d, p: N * d * math.log2(N),
    "WE": None,
    "SLOSH": lambda N, L, d, p: L * N * (d + math.log2(N)),
    "SLOSH linear M=16": lambda N, L, d, p: L * N * (d + math.log2(N)),
    "SLOSH M=16": lambda N, L, d, p: L * N * (d + math.log2(N)),
}
"""The formulas of the supplement, which leaves WE out."""
NUMBERS_PER_CALL = 1 << 20
"""Coordinates that one call embeds: many sets where they are small."""
ROUNDS = 5


def units(plan: Plan) -> Iterator[Unit]:
    for method, variables in VALUES.items():
        for variable, values in variables.items():
            seconds = len(values) * (1.2 if method == "WE" else 0.55)
            yield Unit(f"complexity/{method}/{variable}", seconds, lambda a=(plan, method, variable): study(*a))


def study(plan: Plan, method: str, variable: str) -> dict[str, Any]:
    """Return the seconds per set for each value, and the measured and predicted exponents over their upper half."""
    values = plan.choose(VALUES[method][variable], VALUES[method][variable][:4])
    sizes = [BASE | ({"N": 128} if method == "WE" else {}) | {variable: value} for value in values]
    work = [(embedding(method, **size), normal_sets(method, **size)) for size in sizes]
    seconds = seconds_per_set(work, plan.choose(0.1, 0.01))
    formula = FORMULAS[method]
    upper = slice(len(values) // 2, None)
    return {
        "values": list(values),
        "seconds": seconds,
        "fitted": [values[upper][0], values[-1]],
        "exponent": exponent(values[upper], seconds[upper]),
        "formula": None if formula is None else exponent(values[upper], [formula(**size) for size in sizes[upper]]),
        "others": {key: sizes[0][key] for key in BASE if key != variable},
    }


def embedding(method: str, N: int, L: int, d: int, p: int) -> Any:
    """Return the embedding of a method for sets of N elements in d dimensions."""
    if method in ("SLOSH", "SLOSH linear M=16"):
        return paper_swe(L, SETTINGS["mnist"]._replace(reference=N if method == "SLOSH" else 16), seed=0)
    if method == "SLOSH M=16":
        return SlicedWasserstein(L)
    if method == "FSPool":
        return FSPool(N)
    if method == "WE":
        return WassersteinEmbedding("normal", N)
    return GeM(p) if method == "GeM-p" else Covariance()


def normal_sets(method: str, N: int, L: int, d: int, p: int) -> Sets:
    """Return sets of N normal vectors each; WE gets only four."""
    n_sets = 4 if method == "WE" else max(1, NUMBERS_PER_CALL // N // max(d, 16))
    points = np.random.RandomState(0).standard_normal((n_sets * N, d)).astype(np.float32)
    return Sets(points, np.arange(n_sets + 1) * N)


def seconds_per_set(work: list[tuple[Any, Sets]], at_least: float) -> list[float]:
    """Return the CPU seconds of one thread to embed a set, for each embedding and its sets: the fastest of some rounds.

    A measurement takes `at_least` seconds. Each round covers all of them, so that a temporary disturbance of the
    machine slows one measurement of each instead of all measurements of one.
    """
    prepared = []
    for model, sets in work:
        if "n_jobs" in model.get_params():
            model.set_params(n_jobs=1)
        prepared.append((model, sets, model.fit(sets).transform(sets)))
    fastest = [math.inf] * len(work)
    with threadpool_limits(1):
        for _ in range(ROUNDS):
            for i, (model, sets, out) in enumerate(prepared):
                done, spent, start = 0, 0.0, time.process_time()
                while spent < at_least:
                    model.transform(sets, out=out)
                    done, spent = done + len(sets), time.process_time() - start
                fastest[i] = min(fastest[i], spent / done)
    return fastest


def exponent(x: Any, y: Any) -> float:
    """Fit y = a x^b by least squares of the logarithms, and return b."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
