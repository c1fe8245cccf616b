"""Draw docs/rank.png: why two figures differ, by slosh.rank.explain.

    python docs/draw_rank.py [output.png]

The sets are those of docs/rank.md. Left: both sets, an element as large as its share of the squared distance, and the
optimal matching. Middle: the share of each slice, along its direction. Right: the slice with the largest share.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from slosh import rank

ONE, OTHER, GREY = "#0072B2", "#E69F00", "#8A8A8A"


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
    found = rank.explain(person(-60), person(20))
    plt.rcParams.update({"font.size": 12, "axes.linewidth": 0.8, "mathtext.fontset": "dejavusans"})
    figure = plt.figure(figsize=(13.5, 5.9))
    draw_sets(figure.add_axes((0.0, 0.0, 0.33, 0.86)), found)
    draw_slices(figure.add_axes((0.335, 0.02, 0.33, 0.84)), found)
    draw_slice(figure.add_axes((0.72, 0.12, 0.265, 0.72)), found)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def heading(axes: Axes, title: str, text: str) -> None:
    box = axes.get_position()
    middle = (box.x0 + box.x1) / 2
    axes.figure.text(middle, 0.955, title, ha="center", va="center", fontsize=13.5, fontweight="bold")
    axes.figure.text(middle, 0.905, text, ha="center", va="center", fontsize=11.5, color="#444444")


def draw_sets(axes: Axes, found: rank.Explanation) -> None:
    heading(axes, "Elements", f"size: share of {found.distance:.3f}²; lines: the optimal matching")
    found.plot(axes=axes)
    handles, _ = axes.get_legend_handles_labels()
    axes.legend(handles, ["x: arm down", "y: arm up"], frameon=False, loc="upper left", handletextpad=0.2)
    axes.set(xticks=[], yticks=[], xlim=(-2.4, 2.4), ylim=(-1.2, 4.2), title="")
    axes.spines[:].set_visible(False)


def draw_slices(axes: Axes, found: rank.Explanation) -> None:
    """Draw a bar along each direction, both ways, as long as the share of its slice."""
    heading(axes, "Slices", "length: the share of each of 16 directions")
    assert found.directions is not None
    share = 100 * found.slices / found.distance**2
    top = int(share.argmax())
    reach = 1.12 * share.max()
    for radius in (5, 10, 15):
        if radius < reach:
            axes.add_patch(plt.Circle((0, 0), radius, fill=False, color="#DDDDDD", linewidth=0.9))
            axes.text(radius * 0.985, -0.25, f"{radius} %", color=GREY, fontsize=10.5, ha="right", va="top")
    for i, (length, direction) in enumerate(zip(share, found.directions, strict=True)):
        ends = np.outer([-length, length], direction)
        axes.plot(*ends.T, color="#333333" if i == top else GREY, linewidth=6 if i == top else 4, solid_capstyle="butt")
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def draw_slice(axes: Axes, found: rank.Explanation) -> None:
    """Draw the two quantile functions of the slice with the largest share, and the area between them."""
    assert found.directions is not None
    k = int(found.slices.argmax())
    heading(axes, "The slice that adds most", f"{found.slices[k] / found.distance**2:.0%}: the squared gap, over 16")
    t = np.linspace(0, 1, 4001)[1:] - 1 / 8000
    steps = []
    for sets, colour, name in ((found.x, ONE, "x"), (found.y, OTHER, "y")):
        heights = np.sort(sets[0] @ found.directions[k])
        steps.append(heights[np.minimum((t * len(heights)).astype(int), len(heights) - 1)])
        axes.plot(t, steps[-1], color=colour, linewidth=2.2, label=f"Q of {name}")
    axes.fill_between(t, *steps, color="#BBBBBB", linewidth=0)
    axes.set(xlim=(0, 1), xlabel="share of the elements, from the lowest")
    axes.set_ylabel("height along the direction")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("rank.png"))
