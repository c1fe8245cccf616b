"""Draw the figures of the smaller studies: distances, Monte Carlo error, complexity, accuracy against time.

Every function takes the ledger's results and the path of the PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import Bbox

import plot_style
from ledger import under
from plot_style import METHOD_STYLE, plt
from protocol import METHODS, SETTINGS

Point: TypeAlias = tuple[str, float, float, str]
"""A name, x, y, and a colour."""
EMBEDDINGS = {"paper": ("paper's", "#D55E00"), "default": ("slosh's default", "#0072B2")}
SLICES = {"random": ("#D55E00", "o"), "orthogonal": ("#E69F00", "s"), "qmc": ("#0072B2", "D")}
COMPLEXITY = {
    "GeM-p": ("GeM-4", METHOD_STYLE["GeM-4"], "-"),
    "Cov": ("Cov", METHOD_STYLE["Cov"], "-"),
    "FSPool": ("FSPool", METHOD_STYLE["FSPool"], "-"),
    "WE": ("WE", METHOD_STYLE["WE"], "-"),
    "SLOSH": ("SLOSH, paper's", METHOD_STYLE["SLOSH L>d"], "-"),
    "SLOSH M=16": ("SLOSH, slosh's default rule, M = 16", METHOD_STYLE["SLOSH L=d"], "--"),
}
AXES = {
    "N": "elements of a set, N",
    "L": "slices L (SLOSH) or orders p (GeM)",
    "d": "dimension d",
}
LABEL_OFFSETS = [(x * far, y * far) for far in (6, 12, 20, 30) for x in (1, -1, 0) for y in (0, 1, -1) if x or y]
"""Where the label of a point may be placed, in typographic points from it."""


def distances(results: dict[str, Any], path: Path) -> None:
    """Plot embedded against exact distances: a column for each data set, sliced above, Wasserstein below."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.2))
    for column, (name, setting) in enumerate(SETTINGS.items()):
        found = results[f"distances/{name}"]
        for row, which in enumerate(("sliced", "wasserstein")):
            axis, exact = axes[row, column], found["pairs"][which]
            end = 1.2 * max(max(exact), *(max(found["pairs"][model]) for model in EMBEDDINGS))
            axis.plot([0, end], [0, end], color="#444444", linewidth=0.8, zorder=1)
            if which == "wasserstein":
                axis.plot([0, end], [0, end / np.sqrt(found["d"])], "--", color="#444444", linewidth=0.8, zorder=1)
                axis.text(0.98 * end, 1.02 * end / np.sqrt(found["d"]), r"$W_2/\sqrt{d}$", ha="right", va="bottom")
            for i, (model, (label, colour)) in enumerate(EMBEDDINGS.items()):
                axis.scatter(exact, found["pairs"][model], s=6, color=colour, alpha=0.5, linewidths=0, zorder=2)
                r = found[model][f"with {which}"]
                note = f"{label}: r = {r['pearson']:.3f}, ρ = {r['spearman']:.3f}"
                axis.text(0.03, 0.97 - 0.075 * i, note, color=colour, va="top", transform=axis.transAxes, fontsize=8)
            axis.set(xlim=(0, end), ylim=(0, end), aspect="equal")
            axis.set_xlabel("exact sliced distance" if which == "sliced" else "exact Wasserstein distance")
            if row == 0:
                axis.set_title(f"{setting.title} (d = {found['d']})")
            if column == 0:
                axis.set_ylabel("embedded distance (units of the data)")
    plot_style.save(figure, path)


def monte_carlo(results: dict[str, Any], path: Path) -> None:
    """Plot the relative error of the squared sliced distance against the number of slices, and the paper's bound."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.9), sharey=True)
    for axis, (name, setting) in zip(axes, SETTINGS.items(), strict=True):
        for kind, (colour, marker) in SLICES.items():
            found = results[f"monte_carlo/{name}/{kind}"]
            label = kind if found["exponent"] is None else f"{kind}: $L^{{{found['exponent']:.2f}}}$"
            axis.loglog(found["slices"], found["error"], marker=marker, color=colour, label=label)
        axis.loglog(found["slices"], found["bound"], "--", color="#222222", label="bound: $L^{-1/2}$")
        axis.set(title=f"{setting.title} (d = {found['d']})", xlabel="slices L")
        axis.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
        axis.minorticks_off()
        axis.legend(loc="lower left")
    axes[0].set_ylabel("mean of $|SW_L^2 - SW^2|\\; / \\; SW^2$")
    plot_style.save(figure, path)


def complexity(results: dict[str, Any], path: Path) -> None:
    """Plot the CPU time to embed a set against N, against L or p, and against d: a line for each method."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 4.1), sharey=True)
    for axis, variable in zip(axes, AXES, strict=True):
        for method, (label, (colour, marker), line) in COMPLEXITY.items():
            key = f"complexity/{method}/{'p' if (method, variable) == ('GeM-p', 'L') else variable}"
            if key in results:
                found = results[key]
                axis.loglog(
                    found["values"], np.multiply(found["seconds"], 1e6), line, color=colour, marker=marker, label=label
                )
        axis.set_xlabel(AXES[variable])
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("CPU time to embed a set (µs)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    plot_style.save(figure, path)


def accuracy_time(results: dict[str, Any], path: Path) -> None:
    """Plot the accuracy of Table 1 (1024 bits, k = 4, mean of the seeds) against the time to embed a set."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 4.2))
    panels: list[tuple[Any, list[Point]]] = []
    for axis, (name, setting) in zip(axes, SETTINGS.items(), strict=True):
        points = []
        for method in METHODS:
            rows = under(results, f"table1/{name}/{method}/").values()
            y = float(np.mean([row["paper"]["1024"]["4"][1] for row in rows]))
            x = 1e6 * results[f"times/{name}/{method}"]["seconds"]
            colour, marker = METHOD_STYLE[method]
            axis.semilogx(x, y, marker=marker, color=colour, markersize=6)
            points.append((method, x, y, colour))
        axis.margins(x=0.15, y=0.1)
        axis.set(title=setting.title, xlabel="CPU time to embed a set (µs)")
        panels.append((axis, points))
    axes[0].set_ylabel("accuracy, k = 4, 1024 bits")
    figure.canvas.draw()  # fixes the layout
    figure.set_layout_engine("none")
    for axis, points in panels:
        label_points(axis, points)
    plot_style.save(figure, path)


def label_points(axis: Any, points: list[Point]) -> None:
    """Write the name of each point close to it, where it covers no other name and no point."""
    renderer, pixels = axis.figure.canvas.get_renderer(), axis.figure.dpi / 72
    inside = axis.get_window_extent(renderer)
    marks = [Bbox.from_bounds(*(axis.transData.transform((x, y)) - 5 * pixels), 10 * pixels, 10 * pixels)
             for _, x, y, _ in points]  # fmt: skip
    taken: list[Bbox] = []
    for name, x, y, colour in sorted(points, key=lambda point: -point[2]):
        text = axis.annotate(name, (x, y), (0, 0), textcoords="offset points", color=colour, fontsize=8, va="bottom")
        size = text.get_window_extent(renderer).size
        at = axis.transData.transform((x, y))

        def box(place: tuple[float, float], size: Any = size, at: Any = at) -> Bbox:
            """Return the box of the name when its nearest edge or corner has this offset from the point."""
            low = [at[i] + pixels * place[i] - size[i] * (0.5 - 0.5 * np.sign(place[i])) for i in (0, 1)]
            return Bbox.from_bounds(*low, *size)

        def badness(place: tuple[float, float]) -> float:
            here = box(place)
            covers = sum(map(here.overlaps, taken + marks))
            out = not (inside.contains(*here.min) and inside.contains(*here.max))
            return 100 * covers + 50 * out + abs(place[0]) + abs(place[1])

        place = min(LABEL_OFFSETS, key=badness)
        taken.append(box(place))
        text.set_position((box(place).min - at) / pixels)
        if max(map(abs, place)) > 9:
            middle = np.clip(at, box(place).min, box(place).max)
            ends = axis.transData.inverted().transform([at, middle])
            axis.plot(*ends.T, color=colour, linewidth=0.6, scalex=False, scaley=False)
