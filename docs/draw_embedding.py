"""Draw docs/embedding.png: two sets, three slices, the quantile functions with their bins, and the vector.

    python docs/draw_embedding.py [output.png]

The numbers in the picture are those of `slosh.embed.SlicedWasserstein`; only the steps between the points and the bins
are drawn from sorted projections.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch

from slosh.embed import SlicedWasserstein

SET, REFERENCE, DIFFERENCE, GREY = "#0072B2", "#E08A00", "#333333", "#8A8A8A"
DIFFERENCE_LABEL = "difference, over $\\sqrt{LM}$:\none number of the vector"
N_QUANTILES = 4
ANGLES = np.radians([90, 35, -25])
LIMIT, WIDTH = 1.6, 1.85

# A seven, of ten points, and a round reference of seven.
X = np.array(
    [[-1.0, 1.1], [-0.45, 1.2], [0.1, 1.05], [0.7, 1.15], [0.8, 0.7], [0.45, 0.25], [0.2, -0.2], [-0.1, -0.6],
     [-0.2, -1.0], [-0.45, -1.4]]
)  # fmt: skip
X0 = np.array([[0.75, -0.2], [0.4, 0.55], [-0.35, 0.6], [-0.8, 0.1], [-0.55, -0.65], [0.2, -0.75], [-0.05, 0.0]])


def draw(path: Path) -> None:
    directions = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
    model = SlicedWasserstein(n_quantiles=N_QUANTILES, slices=directions, reference=X0).fit([X])
    vector = model.transform([X])[0].reshape(model.n_slices_, N_QUANTILES)
    reference_means = model.reference_
    set_means = reference_means + vector * np.sqrt(vector.size)

    plt.rcParams.update({"font.size": 11, "axes.linewidth": 0.8, "mathtext.fontset": "dejavusans"})
    figure = plt.figure(figsize=(11, 7.4))
    sets = figure.add_axes((0.005, 0.36, 0.235, 0.40))
    draw_sets(sets, directions)
    for i, bottom in enumerate((0.65, 0.36, 0.07)):
        turned = figure.add_axes((0.276, bottom, 0.177, 0.2425))
        quantiles = figure.add_axes((0.458, bottom, 0.29, 0.2425))
        numbers = figure.add_axes((0.813, bottom, 0.172, 0.2425))
        draw_turned(turned, directions[i], i)
        draw_quantiles(quantiles, directions[i], set_means[i], reference_means[i], last=i == 2)
        draw_numbers(numbers, vector[i], np.abs(vector).max())
        arrow(figure, sets, (1.0, 0.5), turned, (-0.03, 0.5))
        arrow(figure, quantiles, (1.02, 0.5), numbers, (-0.08, 0.5))
    bracket(figure, 0.804, 1)
    bracket(figure, 0.993, -1)
    headings(figure)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def headings(figure: Figure) -> None:
    for x, number, title, text in [
        (0.1225, 1, "Two sets", "of any size, in no order"),
        (0.3645, 2, "Slice", r"turned: height is $\langle\theta, x\rangle$"),
        (0.603, 3, "Sort, average in bins", "quantile functions, $M = 4$ bins"),
        (0.8985, 4, "Join", r"$\phi(X)$: $L\,M = 3\cdot 4$ numbers"),
    ]:
        figure.text(x, 0.972, f"{number}  {title}", ha="center", va="center", fontsize=13.5, fontweight="bold")
        figure.text(x, 0.932, text, ha="center", va="center", fontsize=11, color="#444444")
    dot = {"linestyle": ""}
    figure.legend(
        handles=[
            Line2D([], [], **dot, marker="o", color=SET, markersize=7.5, label="set $X$, 10 points"),
            Line2D([], [], **dot, marker="D", color=REFERENCE, markersize=6.5, label="reference $X_0$, 7 points"),
            Line2D([], [], color=SET, linewidth=1.3, label="sorted heights, $Q(t)$"),
            Line2D([], [], color=SET, linewidth=5, alpha=0.55, label="mean of $Q$ in a bin"),
            Line2D([], [], **dot, marker="^", color=DIFFERENCE, markersize=7, label=DIFFERENCE_LABEL),
        ],
        loc="upper left",
        bbox_to_anchor=(0.0, 0.33),
        frameon=False,
        handlelength=1.4,
        labelspacing=0.45,
    )


def bracket(figure: Figure, x: float, side: int) -> None:
    """Draw a tall bracket around the parts of the vector."""
    low, high, arm = 0.06, 0.905, 0.008 * side
    figure.add_artist(Line2D([x + arm, x, x, x + arm], [high, high, low, low], color="black", linewidth=1.4))


def arrow(figure: Figure, a: Axes, start: tuple[float, float], b: Axes, end: tuple[float, float]) -> None:
    figure.add_artist(
        ConnectionPatch(
            start, end, a.transAxes, b.transAxes, arrowstyle="-|>", mutation_scale=13, color=GREY, linewidth=1.1
        )
    )


def scatter(axes: Axes, x: np.ndarray, x0: np.ndarray, size: float) -> None:
    axes.scatter(*x0.T, s=0.8 * size, marker="D", color=REFERENCE, zorder=3, edgecolor="white", linewidth=0.6)
    axes.scatter(*x.T, s=size, marker="o", color=SET, zorder=3, edgecolor="white", linewidth=0.6)


def draw_sets(axes: Axes, directions: np.ndarray) -> None:
    scatter(axes, X, X0, 62)
    for i, theta in enumerate(directions):
        axes.annotate(
            "", 1.75 * theta, -1.75 * theta, arrowprops={"arrowstyle": "-|>", "color": GREY, "linewidth": 1.2}, zorder=1
        )
        axes.text(*(1.93 * theta), rf"$\theta_{i + 1}$", ha="center", va="center", fontsize=13)
    axes.set(xlim=(-2.05, 2.05), ylim=(-2.05, 2.05), aspect="equal")
    axes.axis("off")


def draw_turned(axes: Axes, theta: np.ndarray, i: int) -> None:
    """Draw the two sets rotated so that theta points up, and their heights marked on the right edge."""
    across = np.array([theta[1], -theta[0]])
    turn = np.stack([across, theta])
    x, x0 = X @ turn.T, X0 @ turn.T
    for points, colour in ((x, SET), (x0, REFERENCE)):
        axes.hlines(points[:, 1], points[:, 0], WIDTH, color=colour, linewidth=0.7, alpha=0.4)
        axes.hlines(points[:, 1], WIDTH - 0.14, WIDTH, color=colour, linewidth=2.2)
    scatter(axes, x, x0, 34)
    axes.set(xlim=(-1.75, WIDTH), ylim=(-LIMIT, LIMIT), xticks=[], yticks=[])
    axes.spines[["top", "left", "bottom"]].set_visible(False)
    axes.annotate("", (-1.62, 1.55), (-1.62, 0.65), arrowprops={"arrowstyle": "-|>", "color": GREY, "linewidth": 1.2})
    axes.text(-1.56, 1.25, rf"$\theta_{i + 1}$", fontsize=13)


def draw_quantiles(axes: Axes, theta: np.ndarray, means: np.ndarray, reference: np.ndarray, last: bool) -> None:
    """Draw the steps of both quantile functions, their means in each bin, and the differences of the means."""
    edges = np.arange(N_QUANTILES + 1) / N_QUANTILES
    axes.vlines(edges, -LIMIT, LIMIT, color="#BBBBBB", linewidth=0.9, linestyle=(0, (3, 3)), zorder=0)
    for points, colour in ((X0, REFERENCE), (X, SET)):
        heights = np.sort(points @ theta)
        axes.stairs(heights, np.linspace(0, 1, len(heights) + 1), color=colour, linewidth=1.1, baseline=None)
    axes.hlines(reference, edges[:-1] + 0.012, edges[1:] - 0.012, color=REFERENCE, linewidth=4.5, alpha=0.55)
    axes.hlines(means, edges[:-1] + 0.012, edges[1:] - 0.012, color=SET, linewidth=4.5, alpha=0.55)
    for middle, low, high in zip((edges[:-1] + edges[1:]) / 2, reference, means, strict=True):
        axes.annotate(
            "", (middle, high), (middle, low), zorder=5,
            arrowprops={"arrowstyle": "-|>", "color": DIFFERENCE, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0,
                        "mutation_scale": 11},
        )  # fmt: skip
    for m, middle in enumerate((edges[:-1] + edges[1:]) / 2):
        axes.text(middle, -LIMIT + 0.08, f"{m + 1}", color=GREY, ha="center", va="bottom", fontsize=10.5)
    axes.set(xlim=(-0.02, 1.0), ylim=(-LIMIT, LIMIT), yticks=[], xticks=edges)
    axes.set_xticklabels(["0", "¼", "½", "¾", "1"] if last else [])
    axes.tick_params(labelsize=10.5, length=3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if last:
        axes.set_xlabel("$t$, share of the elements", labelpad=0)


def draw_numbers(axes: Axes, numbers: np.ndarray, largest: float) -> None:
    """Draw one slice's part of the vector: a bar for each bin."""
    places = np.arange(1, N_QUANTILES + 1)
    axes.barh(places, numbers, height=0.6, color=DIFFERENCE)
    axes.axvline(0, color=GREY, linewidth=0.9)
    for place, number in zip(places, numbers, strict=True):
        side = 1 if number >= 0 else -1
        axes.text(
            number + side * 0.06 * largest, place, f"{number:+.2f}".replace("-", "−"),
            ha="left" if side > 0 else "right", va="center", fontsize=10.5,
        )  # fmt: skip
    axes.set(xlim=(-1.75 * largest, 1.85 * largest), ylim=(N_QUANTILES + 0.5, 0.5), xticks=[], yticks=places)
    axes.tick_params(length=0, labelsize=10.5, colors=GREY, pad=-6)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("embedding.png"))
