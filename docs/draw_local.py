"""Draw docs/local.png: what the eight nearest elements say about each element of a figure.

    python docs/draw_local.py [output.png]

Left: one element, its neighbours, and what is computed from them. Then the figure three times, coloured by columns of
`slosh.embed.LocalShape`, with the scaling that was learnt taken off again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Ellipse

from slosh.embed import LocalShape, MeanPool

NEAR, ELEMENT, NORMAL, GREY = "#0072B2", "#CC3311", "#009E73", "#9A9A9A"
SIZE = 8
SHOWN = 35
"""The element of the left panel: on a leg, near the hip."""


def person() -> np.ndarray:
    """Return 82 points: a head, a body, two legs, and two arms."""
    turn = np.arange(18) * np.pi / 9
    head = 0.55 * np.stack([np.cos(turn), np.sin(turn)], axis=1) + [0, 3.5]
    bars = [
        ([0, 2.85], [0, 0.9], 16),
        ([-0.12, 0.75], [-0.85, -1], 13),
        ([0.12, 0.75], [0.85, -1], 13),
        ([-0.15, 2.25], [-1.4, 1.4], 11),
        ([0.15, 2.25], [1.55, 2.6], 11),
    ]
    return np.concatenate([head, *(np.linspace(*bar) for bar in bars)])


def draw(path: Path) -> None:
    points = person()
    model = LocalShape(MeanPool(), neighbors=SIZE).fit([points])
    factors = np.concatenate([np.ones(2), model.scale_])
    columns = dict(zip(model.column_names, (model.enrich([points]).points / factors).T, strict=True))
    plt.rcParams.update({"font.size": 12, "mathtext.fontset": "dejavusans"})
    figure = plt.figure(figsize=(15.5, 6.0))
    axes = [figure.add_axes((x, 0.0, w, 0.84)) for x, w in ((0.0, 0.29), (0.29, 0.235), (0.525, 0.235), (0.76, 0.235))]
    draw_one(axes[0], points, columns)
    across, offset = columns[f"extent1 of {SIZE}"], columns[f"offset of {SIZE}"]
    heading(axes[1], "Extent across the neighbourhood", "large at joints and bends, zero on a limb")
    coloured(axes[1], points, across)
    heading(axes[2], "Distance to the neighbours' mean", "large at the ends")
    coloured(axes[2], points, offset)
    heading(axes[3], "Direction of least spread", "without sign: strokes point up and right")
    draw_directions(axes[3], points, columns)
    figure.savefig(path, dpi=105, metadata={"Software": None})
    plt.close(figure)


def draw_one(axes: Axes, points: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """Draw one element, its neighbours, their ellipse, and the columns that are read from it."""
    x = points[SHOWN]
    order = np.linalg.norm(points - x, axis=1).argsort(kind="stable")
    near = points[order[:SIZE]]
    mean = near.mean(axis=0)
    extents = [columns[f"extent{k} of {SIZE}"][SHOWN] for k in range(2)]
    _, vectors = np.linalg.eigh(np.cov(near.T, bias=True))
    angle = np.degrees(np.arctan2(*vectors[::-1, 1]))
    heading(axes, f"One element and its {SIZE} nearest", "itself is one of them", (x - 0.8, x + 0.8))
    shape = Ellipse(mean, 4 * extents[0], 4 * extents[1], angle=angle, facecolor=NEAR, alpha=0.13, edgecolor="none")
    axes.add_patch(shape)
    axes.scatter(*points.T, s=42, color=GREY)
    axes.scatter(*near.T, s=58, color=NEAR, zorder=3)
    for k, name in ((1, "extent 0"), (0, "extent 1")):
        end = mean + 2 * extents[1 - k] * vectors[:, k]
        axes.annotate("", end, mean, arrowprops={"arrowstyle": "-", "color": NEAR, "linewidth": 1.6})
        axes.annotate(name, end, (4, 4), textcoords="offset points", color=NEAR, fontsize=11.5)
    axes.scatter(*mean, s=70, marker="x", color="black", zorder=5)
    axes.scatter(*x, s=95, color=ELEMENT, zorder=4)
    axes.plot(*np.stack([x, mean]).T, color=ELEMENT, linewidth=2, zorder=4)
    axes.annotate("offset", (x + mean) / 2, (-18, 7), textcoords="offset points", color=ELEMENT, fontsize=11.5)
    normal = 0.55 * np.array([columns[f"normal{k} of {SIZE}"][SHOWN] for k in range(2)]) * np.sign(vectors[:, 0])
    axes.plot(*np.stack([x - normal, x + normal]).T, color=NORMAL, linewidth=2, zorder=2)
    place = x + normal if normal[1] > 0 else x - normal
    axes.annotate("least spread", place, (4, 2), textcoords="offset points", color=NORMAL, fontsize=11.5)


def coloured(axes: Axes, points: np.ndarray, values: np.ndarray) -> None:
    axes.scatter(*points.T, s=50, c=values, cmap="viridis", vmin=0, edgecolor="#555555", linewidth=0.4)


def draw_directions(axes: Axes, points: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """Draw a stroke along the direction without sign: it points up and to the right, whichever way the limb runs."""
    direction = np.stack([columns[f"normal{k} of {SIZE}"] for k in range(2)], axis=1)
    strokes = np.stack([points - 0.17 * direction, points + 0.17 * direction], axis=1)
    axes.add_collection(LineCollection(list(strokes), array=direction[:, 1], cmap="viridis", linewidth=2.2))
    axes.scatter(*points.T, s=7, color="#555555", zorder=3)


def heading(axes: Axes, title: str, text: str, limits: tuple[np.ndarray, np.ndarray] | None = None) -> None:
    box = axes.get_position()
    middle = (box.x0 + box.x1) / 2
    axes.figure.text(middle, 0.95, title, ha="center", va="center", fontsize=12.5, fontweight="bold")
    axes.figure.text(middle, 0.895, text, ha="center", va="center", fontsize=11, color="#444444")
    low, high = limits or (np.array([-1.9, -1.4]), np.array([1.9, 4.3]))
    axes.set(xticks=[], yticks=[], xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("local.png"))
