"""The smaller studies in words: Markdown tables, and sentences that are computed from the same numbers.

The ledger's results come in, Markdown goes out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from complexity import BASE, ROUNDS, VALUES
from monte_carlo import ABOVE_FLOOR, KINDS
from protocol import METHODS, SETTINGS
from tables import table

EMBEDDINGS = {"paper": "the paper's", "default": "slosh's default"}
SUPPLEMENT = {
    "GeM-p": ("GeM-p", "N p² d"),
    "Cov": ("Cov", "N d²"),
    "FSPool": ("FSPool", "N d log N"),
    "WE": ("WE", "(not there)"),
    "SLOSH": ("SLOSH, the paper's, M = N", "L N (d + log N)"),
    "SLOSH linear M=16": ("SLOSH, the paper's, M = 16", "L N (d + log N)"),
    "SLOSH M=16": ("SLOSH, slosh's average rule, M = 16", "L N (d + log N)"),
}
FAR = 0.2
"""Exponents further apart than this are named."""


def distances(results: dict[str, Any]) -> str:
    """Correlations and errors of the embedded distance, by data set and embedding."""
    lines = []
    for name, setting in SETTINGS.items():
        found = results[f"distances/{name}"]
        for model, title in EMBEDDINGS.items():
            one = found[model]
            cells = [_correlation(one[f"with {which}"]) for which in ("sliced", "wasserstein")]
            errors = [f"{one[which]:.2%}" for which in ("error", "error of slices")]
            lines.append([setting.title, title, str(one["L"]), str(one["M"]), *cells, *errors])
        exact = _correlation(found["sliced with wasserstein"])
        lines.append([setting.title, "exact sliced", str(found["n_slices"]), "", "", exact, "", ""])
    head = ["data", "embedding", "L", "M", "r, ρ with sliced", "r, ρ with Wasserstein"]
    made = table([*head, "error of quantiles", "error of slices"], lines, right=True)

    every = [results[f"distances/{name}"] for name in SETTINGS]
    n_pairs, n_slices = len(every[0]["pairs"]["sliced"]), every[0]["n_slices"]
    largest = {model: max(found[model]["largest ratio"] for found in every) for model in EMBEDDINGS}
    never = "never exceeds" if largest["default"] <= 1 else "exceeds"
    again = _listed(f"{found['error of exact']:.0e}" for found in every)
    return (
        f"{made}\n\n{n_pairs} pairs of sets of each database, {every[0]['same class']} of them of one class; r is "
        "Pearson's correlation, ρ Spearman's. Errors are means of |a / b - 1|: that of the quantiles compares the "
        "embedded distance with the exact sliced distance over the same slices, that of the slices compares this one "
        f"with the sliced distance over all directions. For all directions stand {n_slices} evenly spread ones: "
        f"another draw of as many differs by {again} on average. With slosh's average rule the embedded distance "
        f"{never} the exact one over the same slices: the largest ratio is {largest['default']:.4f}. With the paper's "
        f"rule it is {largest['paper']:.4f}.\n"
    )


def monte_carlo(results: dict[str, Any]) -> str:
    """The fitted exponents of L, and what the kinds of slices are worth, by data set."""
    lines, within, of_bound = [], True, []
    every = [{kind: results[f"monte_carlo/{name}/{kind}"] for kind in KINDS} for name in SETTINGS]
    for setting, by_kind in zip(SETTINGS.values(), every, strict=True):
        random = by_kind["random"]
        at = int(np.argmin(np.abs(np.log(random["slices"]) - np.log(setting.slices[-1]))))
        within &= bool(np.all(np.less_equal(random["error"], random["bound"])))
        of_bound.append(np.mean(np.divide(random["error"], random["bound"])))
        for kind, found in by_kind.items():
            exponent = "" if found["exponent"] is None else f"{found['exponent']:.2f}"
            error, worth = found["error"][at], (random["error"][at] / found["error"][at]) ** 2
            cells = [exponent, _range(found), str(found["slices"][at]), f"{error:.2%}", f"{worth:.3g}"]
            lines.append([f"{setting.title} (d = {found['d']})", kind, *cells])
    made = table(["data", "slices", "exponent of L", "fitted over L", "L", "error at L", "worth"], lines, right=True)
    holds = "stays below the bound at every L" if within else "is above the bound at some L"
    floors = _listed(f"{found['random']['floor']:.0e}" for found in every)
    slices = _listed(str(found["random"]["exact slices"]) for found in every)
    return (
        f"{made}\n\nThe mean of |SW_L² - SW²| / SW² over {random['pairs']} pairs and {random['draws']} draws of the "
        f"slices. With random slices the measured error {holds}, and is {_listed(f'{x:.2f}' for x in of_bound)} of it "
        "on average (a normal error: 0.80). Worth: how many times as many random slices would give the error in the "
        "column before. Exponents are fitted from L = d on, while the error is more than "
        f"{ABOVE_FLOOR:.0f} times what the exact SW² itself may be off, {floors}; it comes from {slices} evenly spread "
        "slices.\n"
    )


def complexity(results: dict[str, Any]) -> str:
    """The supplement's table with measured exponents; those of its formulas, over the same range, in parentheses."""
    lines, far = [], []
    for method, (title, formula) in SUPPLEMENT.items():
        cells = []
        for variables in ("N", "Lp", "d"):
            variable = next((v for v in variables if v in VALUES[method]), None)
            if variable is None:
                cells.append("")
                continue
            found = results[f"complexity/{method}/{variable}"]
            said = "" if found["formula"] is None else f" ({found['formula']:.2f})"
            cells.append(f"{found['exponent']:.2f}{said}")
            if found["formula"] is not None and abs(found["exponent"] - found["formula"]) > FAR:
                far.append(f"{title} in {variable}")
        lines.append([title, formula, *cells])
    made = table(["method", "the supplement says", "N", "L or p", "d"], lines, right=True)
    ranges = [f"{v} = {_range(results[f'complexity/{m}/{v}'])}" for m, v in
              [("SLOSH", "N"), ("SLOSH", "L"), ("GeM-p", "p"), ("SLOSH", "d")]]  # fmt: skip
    slow = _listed(f"{v} = {_range(results[f'complexity/WE/{v}'])}" for v in "Nd")
    others = _listed(f"{v} = {n}" for v, n in BASE.items())
    return (
        f"{made}\n\nExponents over the upper half of what was measured: {_listed(ranges)} (WE: {slow}); in "
        f"parentheses those that the formula itself has there. What does not vary is {others} (WE: N = "
        f"{results['complexity/WE/d']['others']['N']}), and M = N where nothing else is said. "
        + (f"Further than {FAR} from the formula: {'; '.join(far)}.\n\n" if far else "\n\n")
        + _reasons(results)
    )


def _reasons(results: dict[str, Any]) -> str:
    """What the times say beyond their exponents."""
    told = []
    slope, rest, fits = _line(results["complexity/GeM-p/p"])
    told.append(f"- GeM takes {rest:.3g} + {slope:.3g} p µs (R² = {fits:.3f}): each power is made from the one before.")
    slope, rest, fits = _line(results["complexity/SLOSH/d"])
    told.append(
        f"- SLOSH takes {rest:.3g} + {slope:.3g} d µs (R² = {fits:.3f}): slicing costs as much as all the rest from "
        f"d = {rest / slope:.0f} on."
    )
    costs = {
        ("GeM-p", "d"): ("a number", BASE["N"], 1),
        ("Cov", "d"): ("an element and entry of the matrix", BASE["N"], 2),
        ("FSPool", "N"): ("a number", BASE["d"], 1),
        ("SLOSH", "N"): ("an element and slice", BASE["L"], 1),
        ("SLOSH linear M=16", "N"): ("an element and slice", BASE["L"], 1),
        ("SLOSH M=16", "N"): ("an element and slice", BASE["L"], 1),
    }
    for (method, variable), (what, times, power) in costs.items():
        found = results[f"complexity/{method}/{variable}"]
        each = [(v, 1e9 * s / times / v**power) for v, s in zip(found["values"], found["seconds"], strict=True)]
        some = (each[0], each[len(each) // 2], each[-1])
        listed = _listed(f"{cost:.3g} ns at {variable} = {value}" for value, cost in some)
        told.append(f"- {SUPPLEMENT[method][0]}, for {what}: {listed}.")
    return "\n".join(told) + "\n"


def times(results: dict[str, Any]) -> str:
    """Microseconds to embed a set, by method and data set."""
    lines = []
    for method in METHODS:
        seconds = [results[f"times/{name}/{method}"]["seconds"] for name in SETTINGS]
        lines.append([method, *(f"{1e6 * s:,.0f}" if s > 1e-4 else f"{1e6 * s:.3g}" for s in seconds)])
    made = table(["method", *(setting.title for setting in SETTINGS.values())], lines, right=True)
    return f"{made}\n\nMicroseconds of CPU time to embed a set, one thread, the fastest of {ROUNDS} runs.\n"


def _correlation(of: dict[str, float]) -> str:
    return f"{of['pearson']:.3f}, {of['spearman']:.3f}"


def _listed(words: Any) -> str:
    return ", ".join(words)


def _range(found: dict[str, Any]) -> str:
    return "–".join(str(value) for value in found["fitted"])


def _line(found: dict[str, Any]) -> tuple[float, float, float]:
    """Slope and intercept of the straight line through the times, in microseconds, and how much of them it explains."""
    x, y = found["values"], np.multiply(1e6, found["seconds"])
    slope, rest = np.polyfit(x, y, 1)
    return float(slope), float(rest), float(1 - np.var(y - np.polyval((slope, rest), x)) / np.var(y))
