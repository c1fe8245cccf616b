"""The sensitivity studies in words: tables and sentences in Markdown, computed from the results.

Precision@4 is told as mean ± standard deviation over the seeds. Results that are not there yet are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from ledger import under
from protocol import LENGTHS, METHODS, SETTINGS, SLOSH
from sensitivity import REFERENCES
from tables import table

Curve: TypeAlias = dict[int, tuple[float, float]]
"""Mean and standard deviation of precision@4, by code length or number of slices."""

AT = 1024
REFERENCE_NAMES = {
    "kmeans": "k-means",
    "sample": "a set of the data",
    "uniform": "uniform",
    "normal": "normal",
    "barycenter": "barycentre",
}
WAYS = {"paper": "the paper's settings", "defaults": "slosh's defaults"}


# -- the numbers -------------------------------------------------------------------------------------------------------


def by_length(results: dict[str, Any], prefix: str, way: str | None = None) -> Curve:
    """Of the results of all seeds whose key is `prefix` and a seed: a value for each code length. Empty: none."""
    seeds = [result if way is None else result[way] for result in under(results, prefix).values()]
    there = [bits for bits in LENGTHS if seeds and str(bits) in seeds[0]]
    return {bits: _spread(seed[str(bits)]["4"][0] for seed in seeds) for bits in there}


def by_slices(results: dict[str, Any], name: str, bits: int) -> Curve:
    """For each number of slices that was tried, at one code length."""
    tried = sorted({int(key.split("/")[0]) for key in under(results, f"slices/{name}/")})
    return {n: by_length(results, f"slices/{name}/{n}/")[bits] for n in tried}


def _spread(values: Iterable[float]) -> tuple[float, float]:
    numbers = np.array(list(values))
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0


# -- the tables --------------------------------------------------------------------------------------------------------


def lengths_table(results: dict[str, Any], name: str, way: str = "paper") -> str:
    """Precision@4 on a data set: a line for each method, a column for each code length. `way`: paper or defaults."""
    curves = {method: by_length(results, f"table1/{name}/{method}/", way) for method in METHODS}
    return _table("method", LENGTHS, curves)


def slices_table(results: dict[str, Any], bits: int = AT) -> str:
    """Precision@4: a line for each data set, a column for each number of slices."""
    curves = {setting.title: by_slices(results, name, bits) for name, setting in SETTINGS.items()}
    return _table("slices", sorted({n for curve in curves.values() for n in curve}), curves)


def references_table(results: dict[str, Any], bits: int = AT) -> str:
    """Precision@4: a line for each data set, a column for each reference."""
    lines = [
        [setting.title, *(_cell(by_length(results, f"references/{name}/{r}/").get(bits)) for r in REFERENCES)]
        for name, setting in SETTINGS.items()
    ]
    return table(["reference", *REFERENCE_NAMES.values()], lines, right=True)


def _table(corner: str, columns: Iterable[int], curves: dict[str, Curve]) -> str:
    columns = list(columns)
    lines = [[row, *(_cell(curve.get(column)) for column in columns)] for row, curve in curves.items() if curve]
    return table([corner, *map(str, columns)], lines, right=True)


def _cell(value: tuple[float, float] | None) -> str:
    return "" if value is None else f"{short(value[0])} ± {short(value[1])}"


def short(value: float) -> str:
    """Three digits, and no zero before the point.

    >>> short(0.8772), short(1.0), short(-0.0312)
    ('.877', '1.000', '-.031')
    """
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


# -- sentences ---------------------------------------------------------------------------------------------------------


def about_lengths(results: dict[str, Any], name: str) -> str:
    """Who gains most and least from more bits, and who leads at 1024."""
    at = {m: by_length(results, f"table1/{name}/{m}/", "paper") for m in METHODS}
    at = {method: curve for method, curve in at.items() if curve}
    centred = {m: by_length(results, f"table1/{name}/{m}/", "defaults")[AT][0] for m in at}
    others = [method for method in at if method not in SLOSH]
    most = max(at, key=lambda m: at[m][AT][0] - at[m][LENGTHS[0]][0])
    least = min(at, key=lambda m: at[m][AT][0] - at[m][LENGTHS[0]][0])
    gain = {m: short(at[m][AT][0] - at[m][LENGTHS[0]][0]) for m in (most, least)}
    next_best = {"paper": max(others, key=lambda m: at[m][AT][0]), "defaults": max(others, key=lambda m: centred[m])}
    slosh = SLOSH[-1]
    return (
        f"{SETTINGS[name].title}: from {LENGTHS[0]} to {AT} bits {most} gains most ({gain[most]}), "
        f"{least} least ({gain[least]}). "
        f"At {AT} bits {slosh} has {short(at[slosh][AT][0])} and the best other embedding, {next_best['paper']}, "
        f"{short(at[next_best['paper']][AT][0])}; with slosh's defaults {short(centred[slosh])} and "
        f"{short(centred[next_best['defaults']])} ({next_best['defaults']})."
    )


def about_slices(results: dict[str, Any], name: str, bits: int = AT) -> str:
    """How much more slices bring, and how many are enough."""
    curve = by_slices(results, name, bits)
    first, last = min(curve), max(curve)
    best = max(curve, key=lambda n: curve[n][0])
    enough = min(n for n in curve if curve[n][0] >= curve[best][0] - 0.01)
    few = f"{enough} come within .01 of the best, which has {best}" if enough < best else f"the best has {best}"
    return (
        f"{SETTINGS[name].title}: {short(curve[first][0])} with {first} slice{'s' * (first > 1)}, "
        f"{short(curve[last][0])} with {last}; {few}."
    )


def about_references(results: dict[str, Any], name: str, bits: int = AT) -> str:
    """Which reference is best and which worst, beside the spread over the seeds."""
    at = {r: by_length(results, f"references/{name}/{r}/")[bits] for r in REFERENCES}
    best, worst = max(at, key=lambda r: at[r][0]), min(at, key=lambda r: at[r][0])
    return (
        f"{SETTINGS[name].title}: best {REFERENCE_NAMES[best]} ({_cell(at[best])}), worst {REFERENCE_NAMES[worst]} "
        f"({_cell(at[worst])}), {short(at[best][0] - at[worst][0])} between them."
    )
