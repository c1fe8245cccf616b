"""Tables and sentences in Markdown about the smaller studies: distances, Monte Carlo error, complexity and times.

Every function takes the ledger's results.
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
    "WE": ("WE", "(not given)"),
    "SLOSH": ("SLOSH, the paper's, M = N", "L N (d + log N)"),
    "SLOSH linear M=16": ("SLOSH, the paper's, M = 16", "L N (d + log N)"),
    "SLOSH M=16": ("SLOSH, slosh's average rule, M = 16", "L N (d + log N)"),
}
NOTABLE_EXPONENT_GAP = 0.2
"""A measured exponent that differs from the formula's by more than this is listed."""


def distances(results: dict[str, Any]) -> str:
    """Report the correlations and errors of the embedded distance, by data set and embedding."""
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
    summary = table([*head, "error of quantiles", "error of slices"], lines, right=True)
    every = [results[f"distances/{name}"] for name in SETTINGS]
    n_pairs, n_slices = len(every[0]["pairs"]["sliced"]), every[0]["n_slices"]
    largest = {model: max(found[model]["largest ratio"] for found in every) for model in EMBEDDINGS}
    never = "never exceeds" if largest["default"] <= 1 else "exceeds"
    again = _listed(f"{found['error of exact']:.0e}" for found in every)
    return (
        f"{summary}\n\nThere are {n_pairs} pairs of sets from each database, {every[0]['same class']} of them within a "
        "class; r is Pearson's correlation, ρ Spearman's. Errors are means of |a / b - 1|: the error of the quantiles "
        "compares the embedded distance with the exact sliced distance over the same slices, the error of the slices "
        f"compares the latter with the sliced distance over all directions, for which {n_slices} evenly spread slices "
        f"stand in: another draw of as many differs by {again} on average. With slosh's average rule the embedded "
        f"distance {never} the exact one over the same slices: the largest ratio is {largest['default']:.4f}. With the "
        f"paper's rule it is {largest['paper']:.4f}.\n"
    )


def monte_carlo(results: dict[str, Any]) -> str:
    """Report the fitted exponents of L, and how many random slices each kind of slices replaces, by data set."""
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
    head = ["data", "slices", "exponent of L", "fitted over L", "L", "error at L", "worth"]
    summary = table(head, lines, right=True)
    holds = "stays below the bound at every L" if within else "is above the bound at some L"
    floors = _listed(f"{found['random']['floor']:.0e}" for found in every)
    slices = _listed(str(found["random"]["exact slices"]) for found in every)
    return (
        f"{summary}\n\nErrors are means of |SW_L² - SW²| / SW² over {random['pairs']} pairs and {random['draws']} "
        f"draws of the slices. With random slices the measured error {holds}, and is "
        f"{_listed(f'{x:.2f}' for x in of_bound)} of it on average (0.80 for a normal error). *Worth* is how "
        "many times as many random slices would be needed for the same error. Exponents are fitted from L = d on, "
        f"while the error is more than {ABOVE_FLOOR:.0f} times the uncertainty of SW² itself, {floors}, which is "
        f"computed from {slices} evenly spread slices.\n"
    )


def complexity(results: dict[str, Any]) -> str:
    """Return the supplement's table with measured exponents, and those of its formulas in parentheses."""
    lines, far = [], []
    for method, (title, formula) in SUPPLEMENT.items():
        cells = []
        for variables in ("N", "Lp", "d"):
            variable = next((v for v in variables if v in VALUES[method]), None)
            if variable is None:
                cells.append("")
                continue
            found = results[f"complexity/{method}/{variable}"]
            predicted = "" if found["formula"] is None else f" ({found['formula']:.2f})"
            cells.append(f"{found['exponent']:.2f}{predicted}")
            if found["formula"] is not None and abs(found["exponent"] - found["formula"]) > NOTABLE_EXPONENT_GAP:
                far.append(f"{title} in {variable}")
        lines.append([title, formula, *cells])
    summary = table(["method", "the supplement says", "N", "L or p", "d"], lines, right=True)
    ranges = [f"{v} = {_range(results[f'complexity/{m}/{v}'])}" for m, v in
              [("SLOSH", "N"), ("SLOSH", "L"), ("GeM-p", "p"), ("SLOSH", "d")]]  # fmt: skip
    slow = _listed(f"{v} = {_range(results[f'complexity/WE/{v}'])}" for v in "Nd")
    others = _listed(f"{v} = {n}" for v, n in BASE.items())
    return (
        f"{summary}\n\nExponents are fitted over the upper half of the measured range, {_listed(ranges)} (WE: {slow}); "
        f"the exponents of the formula over that range are in parentheses. The other variables are {others} (WE: N = "
        f"{results['complexity/WE/d']['others']['N']}), with M = N unless stated otherwise. "
        + (
            f"These differ from the formula by more than {NOTABLE_EXPONENT_GAP}: {'; '.join(far)}.\n\n"
            if far
            else "\n\n"
        )
        + _cost_models(results)
    )


def _cost_models(results: dict[str, Any]) -> str:
    """List what the times show beyond their exponents: straight lines, and costs per element."""
    bullets = []
    slope, rest, r_squared = _fit_line(results["complexity/GeM-p/p"])
    bullets.append(
        f"- GeM takes {rest:.3g} + {slope:.3g} p µs (R² = {r_squared:.3f}), because each power is computed from the "
        "one before."
    )
    slope, rest, r_squared = _fit_line(results["complexity/SLOSH/d"])
    bullets.append(
        f"- SLOSH takes {rest:.3g} + {slope:.3g} d µs (R² = {r_squared:.3f}): from d = {rest / slope:.0f} on, slicing "
        "costs as much as everything else."
    )
    costs = {
        ("GeM-p", "d"): ("coordinate", BASE["N"], 1),
        ("Cov", "d"): ("element and entry of the matrix", BASE["N"], 2),
        ("FSPool", "N"): ("coordinate", BASE["d"], 1),
        ("SLOSH", "N"): ("element and slice", BASE["L"], 1),
        ("SLOSH linear M=16", "N"): ("element and slice", BASE["L"], 1),
        ("SLOSH M=16", "N"): ("element and slice", BASE["L"], 1),
    }
    for (method, variable), (unit, times, power) in costs.items():
        found = results[f"complexity/{method}/{variable}"]
        each = [(v, 1e9 * s / times / v**power) for v, s in zip(found["values"], found["seconds"], strict=True)]
        some = (each[0], each[len(each) // 2], each[-1])
        listed = _listed(f"{cost:.3g} ns at {variable} = {value}" for value, cost in some)
        bullets.append(f"- {SUPPLEMENT[method][0]}, per {unit}: {listed}.")
    return "\n".join(bullets) + "\n"


def times(results: dict[str, Any]) -> str:
    """Report the microseconds to embed a set, by method and data set."""
    lines = []
    for method in METHODS:
        seconds = [results[f"times/{name}/{method}"]["seconds"] for name in SETTINGS]
        lines.append([method, *(f"{1e6 * s:,.0f}" if s > 1e-4 else f"{1e6 * s:.3g}" for s in seconds)])
    summary = table(["method", *(setting.title for setting in SETTINGS.values())], lines, right=True)
    return f"{summary}\n\nMicroseconds of CPU time to embed a set: one thread, the fastest of {ROUNDS} runs.\n"


def _correlation(of: dict[str, float]) -> str:
    return f"{of['pearson']:.3f}, {of['spearman']:.3f}"


def _listed(words: Any) -> str:
    return ", ".join(words)


def _range(found: dict[str, Any]) -> str:
    return "–".join(str(value) for value in found["fitted"])


def _fit_line(found: dict[str, Any]) -> tuple[float, float, float]:
    """Fit a straight line to the times in microseconds, and return its slope, its intercept and R²."""
    x, y = found["values"], np.multiply(1e6, found["seconds"])
    slope, rest = np.polyfit(x, y, 1)
    return float(slope), float(rest), float(1 - np.var(y - np.polyval((slope, rest), x)) / np.var(y))
