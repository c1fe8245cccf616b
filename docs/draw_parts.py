"""Draw docs/parts.png: a part search in two dimensions.

    python docs/draw_parts.py [output.png]

Left: a query, the anchors, and the distance field of a stored set at them. Middle: the set that contains the query, and
where its elements lie. Right: the nearest set as a whole, which does not contain it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from slosh import SetIndex, rank
from slosh.embed import PartField

ONE, OTHER, GREY = "#0072B2", "#E69F00", "#8A8A8A"


def ring(n: int, radius: float, turn: float = 2 * np.pi) -> np.ndarray:
    angle = np.linspace(0, turn, n, endpoint=turn < 2 * np.pi)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def figures() -> dict[str, np.ndarray]:
    """Return figures of 60 points: rings, with bars in them, and an arc."""
    bar = np.linspace([-0.9, 0.0], [0.9, 0.0], 16)
    return {
        "ring and bar": np.concatenate([ring(44, 1.0), bar]),
        "ring": ring(60, 1.0),
        "small ring": ring(60, 0.6),
        "arc": ring(60, 0.75, 0.6 * np.pi) + np.array([0.1, 0.1]),
        "cross": np.concatenate([bar, bar[:, ::-1], bar @ [[0.7, 0.7], [-0.7, 0.7]]]),
    }


def draw(path: Path) -> None:
    stored = figures()
    index = SetIndex.create(None, 2, parts=PartField(64), sample=list(stored.values()))
    index.add(list(stored.values()), ids=list(stored))
    query = np.concatenate([ring(60, 1.0)[3:17] * 1.02, [[0.55, 0.03], [0.65, -0.03], [0.75, 0.02]]])
    part, whole = index.search(query, 1, match="part")[0], index.search(query, 1)[0]
    plt.rcParams.update({"font.size": 12, "axes.linewidth": 0.8})
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 5.0))
    with_field(axes[0], index, stored[part.id], query)
    lines(axes[1], query, stored[part.id], f"match='part': {part.id}, at {part.distance:.3f}")
    lines(
        axes[2],
        query,
        stored[whole.id],
        f"match='whole': {whole.id}; as a part at {_away(query, stored[whole.id]):.3f}",
    )
    for each in axes:
        each.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _away(query: np.ndarray, points: np.ndarray) -> float:
    return float(rank.part(query, [points])[0])


def with_field(axes: Axes, index: SetIndex, points: np.ndarray, query: np.ndarray) -> None:
    found = PartField(64).fit(list(figures().values()))
    fields = found.field(found.checked([points]))[0]
    axes.scatter(*points.T, s=10, color=GREY)
    shown = axes.scatter(*found.anchors_.T, c=fields, s=60, cmap="viridis", edgecolors="white", linewidths=0.6)
    axes.scatter(*query.T, s=24, color=OTHER)
    axes.figure.colorbar(shown, ax=axes, shrink=0.75)
    axes.set_title("anchors and their distance to a stored set", fontsize=12.5)


def lines(axes: Axes, query: np.ndarray, points: np.ndarray, title: str) -> None:
    told = rank.explain_part(query, points)
    axes.scatter(*points.T, s=14, color=ONE, label="stored")
    axes.scatter(*query.T, s=24, color=OTHER, label="query")
    for start, end in zip(query, points[told.nearest], strict=True):
        axes.plot(*np.stack([start, end]).T, color=GREY, linewidth=1)
    axes.set_title(title, fontsize=12.5)
    axes.legend(loc="lower left", frameon=False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "parts.png")
