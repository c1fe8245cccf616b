"""Draw docs/field.png: the distance fields of two figures, and what their largest difference says.

    python docs/draw_field.py [output.png]

Left and middle: each set, and the field of 60 anchors, a disc for each, as large as its number: the distance to the
nearest element of the set. Right: the differences of the two fields, and the Hausdorff distance that they bound. The
numbers are those of `slosh.embed.DistanceField` and `slosh.rank.hausdorff`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection

from slosh import rank
from slosh.embed import DistanceField

ONE, OTHER, DIFFERENCE, GREY = "#0072B2", "#E69F00", "#CC3311", "#8A8A8A"
N_ANCHORS = 60


def person(arm: float) -> np.ndarray:
    """Return 70 points: a head, a body, two legs, an arm that hangs, and one at an angle."""
    turn = np.arange(16) * np.pi / 8
    head = 0.5 * np.stack([np.cos(turn), np.sin(turn)], axis=1) + [0, 3.5]
    hand = [1.5 * np.cos(np.radians(arm)), 2.5 + 1.5 * np.sin(np.radians(arm))]
    bars = [
        ([0, 2.9], [0, 1], 12),
        ([-0.15, 0.9], [-0.8, -1], 12),
        ([0.15, 0.9], [0.8, -1], 12),
        ([-0.15, 2.3], [-1.1, 1.3], 9),
        ([0.15, 2.5], hand, 9),
    ]
    return np.concatenate([head, *(np.linspace(*bar) for bar in bars)])


def draw(path: Path) -> None:
    sets = [person(-60), person(20)]
    elements = np.concatenate([person(arm) for arm in range(-80, 81, 10)])  # a collection of such figures
    model = DistanceField(N_ANCHORS).fit([elements])
    fields, anchors = model.transform(sets), model.anchors_.astype(np.float64)
    plt.rcParams.update({"font.size": 12, "axes.linewidth": 0.8, "mathtext.fontset": "dejavusans"})
    figure = plt.figure(figsize=(13.5, 6.2))
    axes = [figure.add_axes((x, 0.0, 0.32, 0.86)) for x in (0.005, 0.34, 0.675)]
    for each, points, field, colour, name in zip(axes, sets, fields, (ONE, OTHER), "ST", strict=False):
        heading(each, f"The field of {name}", "a disc: the distance to the nearest element")
        discs(each, anchors, 2 * field, colour)
        each.scatter(*points.T, s=16, color=colour, zorder=3)
    away = np.abs(fields[0] - fields[1])
    top = away.argmax()
    whole = rank.hausdorff(sets[0], [sets[1]])[0]
    heading(axes[2], "Their difference", f"largest {away[top]:.2f}, the Hausdorff distance is {whole:.2f}")
    discs(axes[2], anchors, 2 * away, GREY)
    discs(axes[2], anchors[top : top + 1], 2 * away[top : top + 1], DIFFERENCE)
    for points, colour in zip(sets, (ONE, OTHER), strict=True):
        axes[2].scatter(*points.T, s=12, color=colour, zorder=3)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def heading(axes: Axes, title: str, text: str) -> None:
    box = axes.get_position()
    middle = (box.x0 + box.x1) / 2
    axes.figure.text(middle, 0.955, title, ha="center", va="center", fontsize=13.5, fontweight="bold")
    axes.figure.text(middle, 0.905, text, ha="center", va="center", fontsize=11.5, color="#444444")
    axes.set(xticks=[], yticks=[], xlim=(-2.1, 2.7), ylim=(-1.6, 4.3), aspect="equal")
    axes.spines[:].set_visible(False)


def discs(axes: Axes, anchors: np.ndarray, widths: np.ndarray, colour: str) -> None:
    """Draw a disc of each width about each anchor, in the units of the data."""
    shape = {"widths": widths, "heights": widths, "angles": np.zeros(len(widths)), "units": "xy"}
    style = {"facecolor": colour, "edgecolor": colour, "alpha": 0.25, "linewidth": 0.6}
    axes.add_collection(EllipseCollection(**shape, offsets=anchors, offset_transform=axes.transData, **style))
    axes.scatter(*anchors.T, s=7, marker="+", color="black", linewidth=0.7, zorder=4)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("field.png"))
