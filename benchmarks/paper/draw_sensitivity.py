"""Draw the figures of the sensitivity studies: precision@4 against code length, number of slices and reference.

Each PNG has a panel for each data set. Lines are means over the seeds, bands are one standard deviation to either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

import plot_style
from protocol import BITS, LENGTHS, METHODS, SETTINGS, SLOSH
from report_sensitivity import REFERENCE_NAMES, WAYS, Curve, by_length, by_slices
from sensitivity import REFERENCES, SLICES

FIGURE_WIDTH = 9.0
LENGTH_STYLE = {16: ("#FDAE61", "v"), 64: ("#D9609A", "s"), 256: ("#7B52AB", "D"), 1024: ("#1B1F6B", "o")}
"""From light to dark, so that they also differ in black and white."""
REFERENCE_STYLE = {
    "kmeans": ("#E69F00", "s"),
    "sample": ("#009E73", "^"),
    "uniform": ("#0072B2", "o"),
    "normal": ("#CC79A7", "v"),
    "barycenter": ("#222222", "D"),
}
MARKED_LENGTHS = {
    BITS[0]: (":", f"{BITS[0]} bits: what the paper says"),
    BITS[1]: ("--", f"{BITS[1]} bits: what the authors' code makes"),
}


def code_length(results: dict[str, Any], path: Path) -> None:
    """Plot every method with the paper's settings, and below with slosh's defaults."""
    figure, grid = plt.subplots(2, 3, figsize=(FIGURE_WIDTH, 6.6), sharex=True, sharey="col", layout="constrained")
    for row, (way, words) in zip(grid, WAYS.items(), strict=True):
        for axes, name in zip(row, SETTINGS, strict=True):
            for bits, (dashes, label) in MARKED_LENGTHS.items():
                axes.axvline(bits, color="0.35", linewidth=1.0, linestyle=dashes, zorder=0, label=label)
            for method in METHODS:
                curve = by_length(results, f"table1/{name}/{method}/", way)
                _line(axes, curve, method, plot_style.METHOD_STYLE[method], 2.0 if method in SLOSH else 1.3)
            axes.set_title(f"{SETTINGS[name].title}\n{words}", fontsize=10)
    _label(grid, LENGTHS, "code length (bits)", LENGTHS[::2])
    _legend(figure, grid, 6)
    plot_style.save(figure, path)


def slices(results: dict[str, Any], path: Path) -> None:
    """Plot several code lengths against the number of slices; L = d is marked."""
    figure, grid = plt.subplots(1, 3, figsize=(FIGURE_WIDTH, 3.7), layout="constrained", squeeze=False)
    for axes, name in zip(grid[0], SETTINGS, strict=True):
        axes.axvline(SETTINGS[name].slices[1], color="0.35", linewidth=1.0, linestyle=":", zorder=0, label="L = d")
        for bits, style in reversed(LENGTH_STYLE.items()):
            _line(axes, by_slices(results, name, bits), f"{bits} bits", style)
        axes.set_title(SETTINGS[name].title, fontsize=10)
    _label(grid, SLICES, "number of slices L", SLICES[::3])
    _legend(figure, grid, 5)
    plot_style.save(figure, path)


def references(results: dict[str, Any], path: Path) -> None:
    """Plot each reference against the code length."""
    figure, grid = plt.subplots(1, 3, figsize=(FIGURE_WIDTH, 3.7), layout="constrained", squeeze=False)
    for axes, name in zip(grid[0], SETTINGS, strict=True):
        for reference in REFERENCES:
            curve = by_length(results, f"references/{name}/{reference}/")
            _line(axes, curve, REFERENCE_NAMES[reference], REFERENCE_STYLE[reference])
        axes.set_title(SETTINGS[name].title, fontsize=10)
    _label(grid, LENGTHS, "code length (bits)", LENGTHS[::2])
    _legend(figure, grid, 5)
    plot_style.save(figure, path)


def _line(axes: Any, curve: Curve, label: str, style: tuple[str, str], width: float = 1.6) -> None:
    colour, marker = style
    means, bands = ([value[i] for value in curve.values()] for i in (0, 1))
    axes.plot(list(curve), means, color=colour, marker=marker, linewidth=width, label=label)
    low, high = ([m + sign * s for m, s in zip(means, bands, strict=True)] for sign in (-1, 1))
    axes.fill_between(list(curve), low, high, color=colour, alpha=0.18, linewidth=0)


def _label(grid: Any, numbers: Sequence[int], words: str, ticks: Sequence[int]) -> None:
    """Label the axes: powers of two along the bottom, and precision from 0 upwards."""
    for axes in grid.flat:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.set_xticks(numbers, [""] * len(numbers), minor=True)
        axes.set(xlim=(numbers[0] / 1.3, numbers[-1] * 1.3))
        axes.set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel(words)
    for axes in grid[:, 0]:
        axes.set_ylabel("precision@4")


def _legend(figure: Any, grid: Any, columns: int) -> None:
    """Put the legend below all panels."""
    handles, labels = grid[0, 0].get_legend_handles_labels()
    about = "lines: mean over the seeds; bands: one standard deviation to either side"
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=about, title_fontsize=8.5)
