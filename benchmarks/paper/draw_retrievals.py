"""Draw the sample retrievals: a query on the left and its neighbours beside it, nearest first.

The results of retrievals.py become a PNG for each data set. A neighbour of the wrong class has another colour and is
labelled "wrong".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

import plot_style
from protocol import SETTINGS, Array, Plan, data
from retrievals import N_SAMPLED_CLASSES, SEED, WAYS, K, precision

ASKED, RIGHT, WRONG = "#222222", "#0072B2", "#D55E00"
PALE = {RIGHT: "#E1EEF6", WRONG: "#FBE6D9"}
SIDE, GAP, UNDER, OVER = 0.95, 0.16, 0.32, 0.88
"""Inches: a panel, the gap between groups of panels, the label below a panel, and the title."""
AZIMUTH, ELEVATION = -60.0, 20.0
"""Viewing angles of a cloud in degrees; the third coordinate points up."""
WORDS = {"paper": "the paper's\nSLOSH", "defaults": "slosh's\ndefaults"}
ABOUT = {
    "mnist": ("a random query of each digit", ""),
    "modelnet40": (
        f"a random query of each of {N_SAMPLED_CLASSES} random classes",
        "\nDrawn upright; the search saw each object turned by an angle of its own, 0 to 45 degrees about the x axis.",
    ),
    "oxford5k": (
        "a random query of each landmark",
        "\nA photo's name is the word it was found by on the web, not what it shows; below it the landmark, or none.",
    ),
}


def draw(results: dict[str, Any], plan: Plan, folder: Path) -> None:
    """Write paper-retrievals-<data>.png for each data set into `folder`."""
    for name in SETTINGS:
        lines = results[f"retrievals/{name}"]
        figure = table(lines) if name == "oxford5k" else clouds(lines, name, plan)
        high = figure.get_figheight()
        rule, note = ABOUT[name]
        title = f"{SETTINGS[name].title}: {rule}"
        figure.text(0.008, 1 - 0.06 / high, title, fontsize=12, fontweight="bold", va="top")
        right = " and ".join(f"{precision(lines, way):.0%} by {WORDS[way]}".replace("\n", " ") for way in WAYS)
        figure.text(0.008, 1 - 0.3 / high, f"Right among the nearest {K}: {right}.{note}", va="top")
        plot_style.save(figure, folder / f"paper-retrievals-{name}.png")


def clouds(lines: list[dict[str, Any]], name: str, plan: Plan) -> Any:
    """Draw point clouds of 2 or 3 dimensions, one row for each query: the query and two groups of neighbours."""
    sets = data(plan, name, SEED, 0.0)
    wide, high = (1 + 2 * K) * SIDE + 3 * GAP, len(lines) * (SIDE + UNDER) + OVER + 0.06
    figure = plt.figure(figsize=(wide, high), layout="none")
    starts = {"query": GAP / 2, "paper": SIDE + 1.5 * GAP, "defaults": (1 + K) * SIDE + 2.5 * GAP}
    for group, left in starts.items():
        middle = left + (1 if group == "query" else K) * SIDE / 2
        figure.text(
            middle / wide, 1 - (OVER - 0.1) / high, WAYS.get(group, group), ha="center", va="center", fontweight="bold"
        )
    for i, line in enumerate(lines):
        bottom = high - OVER - (i + 1) * SIDE - i * UNDER
        shown = [(starts["query"], line["query"], sets.queries, ASKED)]
        shown += [
            (starts[way] + j * SIDE, known, sets.database, mark(known, line))
            for way in WAYS
            for j, known in enumerate(line[way])
        ]
        for left, known, part, colour in shown:
            axes = figure.add_axes((left / wide, bottom / high, SIDE * 0.97 / wide, SIDE * 0.97 / high))
            _cloud(axes, part.sets[known["row"]], colour)
            words = spaced(known["class"]) + "\nwrong" * (colour == WRONG)
            axes.set_xlabel(words, fontsize=8.5, color=colour, labelpad=2, linespacing=1.0)
    return figure


def mark(known: dict[str, Any], line: dict[str, Any]) -> str:
    """Return the colour of a neighbour: right if it has the class of the query."""
    return RIGHT if known["class"] == line["query"]["class"] else WRONG


def spaced(label: str | None) -> str:
    return "none" if label is None else label.replace("_", " ")


def _cloud(axes: Any, points: Array, colour: str) -> None:
    """Draw a set in the middle of a panel, as large as possible."""
    flat, paint = _project(points, colour)
    flat = flat - (flat.min(axis=0) + flat.max(axis=0)) / 2
    half = np.abs(flat).max() * 1.1
    axes.scatter(*flat.T, s=6 if points.shape[1] == 2 else 3, c=paint, linewidths=0)
    axes.set(xlim=(-half, half), ylim=(-half, half), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color="0.85" if colour == RIGHT else colour, linewidth=0.9)


def _project(points: Array, colour: str) -> tuple[Array, Any]:
    """Project points onto the page and return their colours: distant points are paler and drawn first."""
    if points.shape[1] == 2:
        return points * [1, -1], colour  # image rows go downwards
    azimuth, elevation = np.deg2rad([AZIMUTH, ELEVATION])
    right = [-np.sin(azimuth), np.cos(azimuth), 0]
    near = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    points = points[np.argsort(points @ near)]
    depth = points @ near
    pale = 0.75 * (depth.max() - depth) / (np.ptp(depth) or 1)
    paint = np.array(to_rgb(colour)) * (1 - pale[:, None]) + pale[:, None]
    return points @ np.transpose([right, np.cross(near, right)]), paint


def table(lines: list[dict[str, Any]]) -> Any:
    """Draw a table of photo names with two lines for each query: the paper's way, and slosh's defaults."""
    cell, height, first, second = 1.55, 0.34, 1.6, 0.95
    wide, high = first + second + K * cell + 0.1, 2 * height * len(lines) + OVER + 0.3
    figure = plt.figure(figsize=(wide, high), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, wide), ylim=(high, 0))
    axes.set_axis_off()
    heads = {0.08: "query, its landmark", first: "found by"}
    heads |= {first + second + j * cell + 0.06: head for j, head in enumerate(("nearest", "2nd", "3rd", "4th"))}
    for x, head in heads.items():
        axes.text(x, OVER + 0.06, head, fontweight="bold", va="center")
    for i, line in enumerate(lines):
        top = OVER + 0.2 + 2 * height * i
        axes.axhline(top, color="0.6", linewidth=0.8)
        _photo(axes, 0.08, top + height / 2, line["query"]["name"], spaced(line["query"]["class"]), ASKED)
        for row, way in enumerate(WAYS):
            middle = top + height * (row + 0.5)
            axes.text(first, middle, WORDS[way], fontsize=7.5, va="center", linespacing=1.05)
            for j, known in enumerate(line[way]):
                colour, left = mark(known, line), first + second + j * cell
                box = (left, middle - 0.46 * height)
                axes.add_patch(Rectangle(box, 0.97 * cell, 0.92 * height, facecolor=PALE[colour], edgecolor="none"))
                word = "right" if colour == RIGHT else "wrong"
                _photo(axes, left + 0.06, middle, known["name"], f"{spaced(known['class'])}: {word}", colour)
    return figure


def _photo(axes: Any, left: float, middle: float, name: str, word: str, colour: str) -> None:
    axes.text(left, middle, name, fontsize=8, va="bottom", fontweight="bold" if colour == ASKED else "normal")
    axes.text(left, middle + 0.01, word, fontsize=8, va="top", color=colour)
