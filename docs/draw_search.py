"""Draw docs/search_curves.png: queries per second against recall, from docs/results/search.json.

    python docs/draw_search.py [output.png]

A panel for each number of sets, a line for each method, through those of its settings that no other setting of it beats
in speed and recall. Our searches are thick lines with filled marks, other libraries thin lines with open ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

DOCS = Path(__file__).resolve().parent
RECALL_ONE_AT = 4.5
"""Where a recall of 1 is drawn: beyond .9999, at which one neighbour in 10,000 is missed."""
SAME_TO_THE_EYE = 0.06
"""Settings closer to each other than this look as if they had the same recall."""
TICKS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
# Okabe and Ito's colours, which colour-blind people can tell apart; the marks differ as well.
STYLES: dict[str, tuple[str, str]] = {
    "LadderSearch": ("#0072B2", "o"),
    "LSHSearch": ("#D55E00", "s"),
    "HammingSearch": ("#009E73", "D"),
    "ExactSearch": ("#000000", "X"),
    "certified": ("#CC79A7", "*"),
    "FAISS IVF prefix, 16-bit": ("#56B4E9", "v"),
    "FAISS IVF prefix": ("#5B7C99", "^"),
    "FAISS IVF RaBitQ": ("#B8860B", "s"),
    "FAISS HNSW": ("#8A5A9E", "o"),
    "usearch": ("#7A7A7A", "D"),
    "FAISS binary flat": ("#222222", "P"),
    "FAISS LSH": ("#999999", "p"),
    "FAISS flat": ("#666666", "h"),
}
OURS = ("LadderSearch", "LSHSearch", "HammingSearch", "ExactSearch", "certified")


def place(recall: np.ndarray) -> np.ndarray:
    """Return the position on a scale on which .9, .99 and .999 are equally far from each other."""
    return np.minimum(-np.log10(np.maximum(1 - recall, 1e-9)), RECALL_ONE_AT)


def front(levels: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and speeds of the settings that no other beats in both, and only the fastest of close ones."""
    kept: list[tuple[float, float]] = []
    for x, speed in sorted((float(place(np.array(row["recall"]))), row["qps"]) for row in levels)[::-1]:
        if not kept or speed > kept[-1][1]:
            if kept and kept[-1][0] - x < SAME_TO_THE_EYE:
                kept.pop()
            kept.append((x, speed))
    x, speeds = np.array(kept[::-1]).T
    return x, speeds


def draw_size(axes: Axes, section: dict[str, Any]) -> None:
    ends = []
    for name, (colour, mark) in STYLES.items():
        result = section["methods"].get(name, {})
        if "levels" not in result:
            continue
        x, speed = front(result["levels"])
        own = name in OURS
        axes.plot(
            x, speed, color=colour, marker=mark, linewidth=2.6 if own else 1.2, zorder=4 if own else 3,
            linestyle="-" if own else (0, (4, 2)), markersize=12 if mark == "*" else 7 if own else 5.5,
            markerfacecolor=colour if own else "white", markeredgecolor="white" if own else colour,
            markeredgewidth=0.7 if own else 1.2, clip_on=False,
        )  # fmt: skip
        ends.append((float(np.log10(speed[-1])), float(x[-1]), name, colour))
    axes.set(
        yscale="log",
        xlim=(place(np.array(0.28)), RECALL_ONE_AT + 0.08),
        xlabel="recall@10 (the scale spreads what is near 1)",
    )
    axes.set_xticks([*place(np.array(TICKS)), RECALL_ONE_AT], [f"{t:g}".lstrip("0") for t in TICKS] + ["1"])
    axes.set_title(f"{section['rows']:,} sets", fontsize=13.5, fontweight="bold")
    axes.grid(color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    name_ends(axes, ends)


def name_ends(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write names to the right of the panel, as close as possible to the height where each line ends."""
    low, high = np.log10(axes.get_ylim())
    gap = (high - low) * 0.052
    ends = sorted(ends)
    at = np.array([end[0] for end in ends])
    for _ in range(500):  # push neighbours apart until all have room
        close = gap - np.diff(at)
        if not np.any(close > 1e-6):
            break
        push = np.maximum(close, 0) / 2
        at[:-1] -= push
        at[1:] += push
    side = RECALL_ONE_AT + 0.35
    for (y, x, name, colour), height in zip(ends, at, strict=True):
        weight = "bold" if name in OURS else "normal"
        axes.text(side + 0.04, 10**height, name, color=colour, fontsize=11, va="center", fontweight=weight)
        axes.plot([x, RECALL_ONE_AT + 0.1, side], [10**y, 10**y, 10**height], color=colour, linewidth=0.6, alpha=0.55,
                  clip_on=False, linestyle="-" if x > RECALL_ONE_AT - 0.6 else (0, (1, 2)), zorder=1)  # fmt: skip


def draw(path: Path, results: dict[str, Any]) -> None:
    plt.rcParams.update({"font.size": 12, "axes.linewidth": 0.8})
    sizes = sorted(results["sizes"].values(), key=lambda section: section["rows"])
    figure, panels = plt.subplots(1, len(sizes), figsize=(8.6 * len(sizes), 6.4), squeeze=False)
    for axes, section in zip(panels[0], sizes, strict=True):
        draw_size(axes, section)
    panels[0][0].set_ylabel("queries a second, one thread")
    figure.tight_layout(w_pad=1.5)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    measured = json.loads((DOCS / "results" / "search.json").read_text(encoding="utf-8"))
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "search_curves.png", measured)
