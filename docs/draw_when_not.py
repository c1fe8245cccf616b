"""Draw docs/when-not-to-use.png: five pairs of sets whose sliced distance is not what one might want.

    python docs/draw_when_not.py [output.png]

The sets and the numbers are those of docs/when-not-to-use.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import slosh

ONE, OTHER = "#0072B2", "#E08A00"


def ring(n: int, radius: float = 1.0) -> np.ndarray:
    angle = np.arange(n) * 2 * np.pi / n
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def bar(n: int, start: list[float], stop: list[float]) -> np.ndarray:
    return np.linspace(start, stop, n)


def turn(x: np.ndarray, degrees: float) -> np.ndarray:
    a = np.radians(degrees)
    return x @ np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])


def draw(path: Path) -> None:
    part = ring(100)
    whole = np.concatenate([part, bar(100, [3, -2], [3, 2])])
    few = np.random.default_rng(0).normal(size=(50, 2))
    shape = np.concatenate([bar(60, [0, 0], [0, 3]), bar(40, [0, 0], [1.5, 0])])
    stray = shape.copy()
    stray[0] = [100, 100]
    panels = [
        ("a part and its whole", part, whole, "small"),
        ("a set and its double", few, np.concatenate([few, few]), "large"),
        ("moved", shape, shape + np.array([5, 0]), "0"),
        ("turned", shape, turn(shape, 120), "0"),
        ("one stray element", shape, stray, "small"),
    ]
    plt.rcParams.update({"font.size": 11})
    figure, row = plt.subplots(1, len(panels), figsize=(11, 2.9))
    figure.subplots_adjust(left=0.005, right=0.995, top=0.88, bottom=0.22, wspace=0.06)
    for axes, (title, x, y, wanted) in zip(row, panels, strict=True):
        axes.scatter(*y.T, s=34, facecolor="none", edgecolor=OTHER, linewidth=1.1)
        axes.scatter(*x.T, s=7, color=ONE)
        low, high = (f(np.concatenate([x, y]), axis=0) for f in (np.min, np.max))
        middle, half = (low + high) / 2, 0.58 * (high - low).max()
        axes.set(
            xlim=(middle[0] - half, middle[0] + half),
            ylim=(middle[1] - half, middle[1] + half),
            aspect="equal",
            xticks=[],
            yticks=[],
        )
        axes.spines[:].set_color("#BBBBBB")
        axes.set_title(title, fontsize=11.5)
        found = f"distance {slosh.distance(x, y):.2f}"
        below = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, -0.09, found, **below, fontweight="bold", fontsize=12)
        axes.text(0.5, -0.21, f"wanted: {wanted}", **below, color="#444444")
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("when-not-to-use.png"))
