"""Tables and sentences in Markdown about the sensitivity studies, computed from the results.

Precision@4 is given as mean ± standard deviation over the seeds. Missing results are left out.
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

DEFAULT_BITS = 1024
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
    """Return the curve over code lengths of the results whose keys are `prefix` and a seed; empty without any."""
    seeds = [result if way is None else result[way] for result in under(results, prefix).values()]
    there = [bits for bits in LENGTHS if seeds and str(bits) in seeds[0]]
    return {bits: _spread(seed[str(bits)]["4"][0] for seed in seeds) for bits in there}


def by_slices(results: dict[str, Any], name: str, bits: int) -> Curve:
    """Return the curve over numbers of slices at one code length."""
    tried = sorted({int(key.split("/")[0]) for key in under(results, f"slices/{name}/")})
    return {n: by_length(results, f"slices/{name}/{n}/")[bits] for n in tried}


def _spread(values: Iterable[float]) -> tuple[float, float]:
    numbers = np.array(list(values))
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0


# -- the tables --------------------------------------------------------------------------------------------------------


def lengths_table(results: dict[str, Any], name: str, way: str = "paper") -> str:
    """Return precision@4 on a data set by method and code length; `way` is "paper" or "defaults"."""
    curves = {method: by_length(results, f"table1/{name}/{method}/", way) for method in METHODS}
    return _table("method", LENGTHS, curves)


def slices_table(results: dict[str, Any], bits: int = DEFAULT_BITS) -> str:
    """Return precision@4 by data set and number of slices."""
    curves = {setting.title: by_slices(results, name, bits) for name, setting in SETTINGS.items()}
    return _table("slices", sorted({n for curve in curves.values() for n in curve}), curves)


def references_table(results: dict[str, Any], bits: int = DEFAULT_BITS) -> str:
    """Return precision@4 by data set and reference."""
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
    """Format a number with three digits and without a leading zero.

    >>> short(0.8772), short(1.0), short(-0.0312)
    ('.877', '1.000', '-.031')
    """
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


# -- sentences ---------------------------------------------------------------------------------------------------------


def about_lengths(results: dict[str, Any], name: str) -> str:
    """Say which methods gain most and least from more bits, and which leads at 1024."""
    curves = {m: by_length(results, f"table1/{name}/{m}/", "paper") for m in METHODS}
    curves = {method: curve for method, curve in curves.items() if curve}
    gain = {m: curve[DEFAULT_BITS][0] - curve[LENGTHS[0]][0] for m, curve in curves.items()}
    most, least = max(gain, key=gain.__getitem__), min(gain, key=gain.__getitem__)
    paper = {m: curve[DEFAULT_BITS][0] for m, curve in curves.items()}
    defaults = {m: by_length(results, f"table1/{name}/{m}/", "defaults")[DEFAULT_BITS][0] for m in curves}
    others = [method for method in curves if method not in SLOSH]
    rivals = [max(others, key=scores.__getitem__) for scores in (paper, defaults)]
    slosh = SLOSH[-1]
    return (
        f"{SETTINGS[name].title}: from {LENGTHS[0]} to {DEFAULT_BITS} bits, {most} gains most ({short(gain[most])}) "
        f"and {least} least ({short(gain[least])}). At {DEFAULT_BITS} bits {slosh} reaches {short(paper[slosh])} and "
        f"the best other embedding, {rivals[0]}, {short(paper[rivals[0]])}; with slosh's defaults "
        f"{short(defaults[slosh])} and {short(defaults[rivals[1]])} ({rivals[1]})."
    )


def about_slices(results: dict[str, Any], name: str, bits: int = DEFAULT_BITS) -> str:
    """Say how much is gained by more slices, and how many are enough."""
    curve = by_slices(results, name, bits)
    first, last = min(curve), max(curve)
    best = max(curve, key=lambda n: curve[n][0])
    enough = min(n for n in curve if curve[n][0] >= curve[best][0] - 0.01)
    few = f"{enough} are within .01 of the best, {best}" if enough < best else f"{best} are best"
    return (
        f"{SETTINGS[name].title}: {short(curve[first][0])} with {first} slice{'s' * (first > 1)}, "
        f"{short(curve[last][0])} with {last}; {few}."
    )


def about_references(results: dict[str, Any], name: str, bits: int = DEFAULT_BITS) -> str:
    """Say which reference is best and which is worst."""
    at = {r: by_length(results, f"references/{name}/{r}/")[bits] for r in REFERENCES}
    best, worst = max(at, key=lambda r: at[r][0]), min(at, key=lambda r: at[r][0])
    return (
        f"{SETTINGS[name].title}: {REFERENCE_NAMES[best]} is best ({_cell(at[best])}), {REFERENCE_NAMES[worst]} worst "
        f"({_cell(at[worst])}), a difference of {short(at[best][0] - at[worst][0])}."
    )
