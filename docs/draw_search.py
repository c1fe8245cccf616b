"""Draw docs/search_curves.png: queries per second against recall, from docs/results/search.json.

    python docs/draw_search.py [output.png]

A panel for each cell of the benchmark: LadderSearch asked for several recalls, thick and filled, and a thin line for
each kind of index of the other libraries, through those settings that no other of its kind beats in speed and recall.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image

DOCS = Path(__file__).resolve().parent
RECALL_ONE_AT = 4.5
"""Where a recall of 1 is drawn: beyond .9999, at which one neighbour in 10,000 is missed."""
SAME_TO_THE_EYE = 0.06
"""Settings closer to each other than this look as if they had the same recall."""
LOWEST_RECALL = 0.85
TICKS = (0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
LADDER = "LadderSearch"
# Okabe and Ito's colours, which colour-blind people can tell apart; the marks differ as well.
STYLES: dict[str, tuple[str, str]] = {
    LADDER: ("#0072B2", "o"),
    "FAISS IVF": ("#5B7C99", "^"),
    "FAISS IVF SQ8": ("#56B4E9", "v"),
    "FAISS IVF PQ fast scan": ("#D55E00", "s"),
    "FAISS PCA IVF": ("#009E73", "D"),
    "FAISS IVF RaBitQ": ("#B8860B", "X"),
    "FAISS HNSW": ("#8A5A9E", "o"),
    "FAISS HNSW SQ8": ("#CC79A7", "*"),
    "hnswlib": ("#222222", "P"),
    "usearch": ("#7A7A7A", "p"),
    "ScaNN": ("#A0522D", "h"),
}


def kind_of(build: str) -> str:
    """Return the line that a build of another library belongs to."""
    for name, part in (("FAISS IVF PQ fast scan", "fast scan"), ("FAISS PCA IVF", "PCA"), ("FAISS IVF SQ8", " SQ8"),
                       ("FAISS IVF RaBitQ", "RaBitQ"), ("FAISS IVF", "FAISS IVF")):  # fmt: skip
        if part in build and "HNSW" not in build:
            return name
    if "HNSW" in build:
        return "FAISS HNSW SQ8" if "SQ8" in build else "FAISS HNSW"
    return build.split()[0]


def lines_of(cell: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of each line."""
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in STYLES}
    for build, result in cell.get("peers", {}).items():
        if build != "FAISS flat":
            lines[kind_of(build)] += [row for row in result.get("levels", []) if row["recall"] >= LOWEST_RECALL]
    for duel in cell.get("duels", {}).values():
        lines[LADDER] += duel["ladder"]
    return {name: rows for name, rows in lines.items() if rows}


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


def draw_cell(axes: Axes, name: str, cell: dict[str, Any]) -> None:
    ends = []
    for line, rows in lines_of(cell).items():
        colour, mark = STYLES[line]
        x, speed = front(rows)
        own = line == LADDER
        axes.plot(
            x, speed, color=colour, marker=mark, linewidth=2.6 if own else 1.2, zorder=4 if own else 3,
            linestyle="-" if own else (0, (4, 2)), markersize=7 if own else 4.5,
            markerfacecolor=colour if own else "white", markeredgecolor="white" if own else colour,
            markeredgewidth=0.7 if own else 1.2, clip_on=False,
        )  # fmt: skip
        ends.append((float(np.log10(speed[-1])), float(x[-1]), line, colour))
    axes.set(yscale="log", xlim=(place(np.array(LOWEST_RECALL)), RECALL_ONE_AT + 0.08), xlabel="recall@10")
    axes.set_xticks([*place(np.array(TICKS)), RECALL_ONE_AT], [f"{t:g}".lstrip("0") for t in TICKS] + ["1"])
    axes.set_title(f"{name}: {cell['rows']:,} sets, D = {cell['dim']}", fontsize=13.5, fontweight="bold")
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
        weight = "bold" if name == LADDER else "normal"
        axes.text(side + 0.04, 10**height, name, color=colour, fontsize=11, va="center", fontweight=weight)
        axes.plot([x, RECALL_ONE_AT + 0.1, side], [10**y, 10**y, 10**height], color=colour, linewidth=0.6, alpha=0.55,
                  clip_on=False, linestyle="-" if x > RECALL_ONE_AT - 0.6 else (0, (1, 2)), zorder=1)  # fmt: skip


def draw(path: Path, results: dict[str, Any]) -> None:
    plt.rcParams.update({"font.size": 12, "axes.linewidth": 0.8})
    cells = {name: cell for name, cell in results["simd"]["native"]["cells"].items() if "duels" in cell}
    order = sorted(cells, key=lambda name: (name[0], cells[name]["dim"], cells[name]["rows"]))
    n_columns = 2 if len(order) > 1 else 1
    shape = (-(-len(order) // n_columns), n_columns)
    figure, panels = plt.subplots(*shape, figsize=(8.6 * shape[1], 5.6 * shape[0]), squeeze=False)
    for axes in panels.flat[len(order) :]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, order, strict=False):
        draw_cell(axes, name, cells[name])
        axes.set_ylabel("queries a second, one thread")
    figure.tight_layout(w_pad=1.5)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=80)
    Image.open(drawn).convert("RGB").quantize(96).save(path, optimize=True)  # a third of the bytes
    plt.close(figure)


if __name__ == "__main__":
    measured = json.loads((DOCS / "results" / "search.json").read_text(encoding="utf-8"))
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "search_curves.png", measured)
