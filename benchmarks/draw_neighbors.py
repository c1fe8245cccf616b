"""Draw docs/neighbors_whitened.png: the nearest objects of ModelNet40 before and after whitening.

    .venv/bin/python benchmarks/draw_neighbors.py [output.png]

The same sliced embedding is searched exactly, as it is on the left and whitened on the right. The rows are random
queries of those where more neighbours are right after whitening, and of those where fewer are, about as many of each as
there are among all queries. It takes half a minute and needs ../shared/data.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image

from machine import DATA, ROOT
from slosh.embed import SlicedWasserstein, Whitened
from slosh.search import ExactSearch

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

Array = NDArray[Any]
WAYS = {"sliced": SlicedWasserstein, "sliced, whitened": lambda: Whitened(SlicedWasserstein())}
K, BETTER, WORSE, SEED, N_POINTS, COLOURS = 4, 6, 2, 0, 1024, 160
ASKED, RIGHT, WRONG = "#222222", "#0072B2", "#D55E00"
SIDE, UNDER, GAP, OVER, BELOW = 1.0, 0.2, 0.22, 0.7, 0.55
"""Inches: a panel, the words below it, the gap between groups, the heading, and the sentence at the end."""
AZIMUTH, ELEVATION = np.deg2rad(-60.0), np.deg2rad(20.0)


def nearest() -> tuple[Any, Any, dict[str, Array]]:
    """Return stored objects and queries (upright), and each way's neighbours of all queries."""
    upright = datasets.load("modelnet40", DATA)
    turned = datasets.as_in_paper(upright)
    stored, asked = turned.database, turned.queries
    found = {}
    for name, make in WAYS.items():
        model, search = make().fit(stored.sets), ExactSearch()
        search.add(model.index_vectors(stored.sets)[0])
        found[name] = search.search(model.index_vectors(asked.sets)[0], K).rows
    return upright.database, upright.queries, found


def draw(path: Path) -> None:
    """Draw the picture."""
    stored, asked, found = nearest()
    before, after = ((stored.labels[rows] == asked.labels[:, None]).sum(axis=1) for rows in found.values())
    changed = (np.flatnonzero(after > before), BETTER), (np.flatnonzero(after < before), WORSE)
    random = np.random.RandomState(SEED)
    chosen = np.concatenate([random.choice(queries, n, replace=False) for queries, n in changed])
    wide, high = (1 + 2 * K) * SIDE + 3 * GAP, len(chosen) * (SIDE + UNDER) + OVER + BELOW
    figure = plt.figure(figsize=(wide, high))
    starts = dict(zip(("query", *WAYS), (GAP / 2, SIDE + 1.5 * GAP, (1 + K) * SIDE + 2.5 * GAP), strict=True))
    shares = (f"of the nearest {K}, {right.mean() / K:.0%} are right" for right in (before, after))
    under = dict(zip(starts, ("", *shares), strict=True))
    for group, left in starts.items():
        middle = (left + (1 if group == "query" else K) * SIDE / 2) / wide
        figure.text(middle, 1 - 0.28 / high, group, ha="center", fontsize=13, fontweight="bold")
        figure.text(middle, 1 - 0.53 / high, under[group], ha="center", fontsize=10.5, color="#444444")
    shares = [f"{len(queries) / len(before):.0%}" for queries, _ in changed]
    words = (
        f"{BETTER} random queries of the {shares[0]} where whitening finds more of the right class, and {WORSE} of the "
        f"{shares[1]} where it finds fewer; for the others as many.\n"
        f"{len(before):,} queries, {len(stored.labels):,} stored objects. Drawn upright; the search saw each object "
        "turned by 0 to 45 degrees."
    )
    figure.text(GAP / 2 / wide, 0.12 / high, words, fontsize=9, color="#444444", linespacing=1.4)
    for i, query in enumerate(chosen):
        bottom = high - OVER - (i + 1) * SIDE - i * UNDER
        panels = [(starts["query"], asked, query)]
        panels += [(starts[w] + j * SIDE, stored, row) for w in WAYS for j, row in enumerate(found[w][query])]
        for left, part, row in panels:
            label = part.labels[row]
            colour = ASKED if part is asked else RIGHT if label == asked.labels[query] else WRONG
            axes = figure.add_axes((left / wide, bottom / high, SIDE * 0.97 / wide, SIDE * 0.97 / high))
            cloud(axes, part.sets[int(row)][:N_POINTS], colour)
            axes.set_xlabel(part.classes[label].replace("_", " "), fontsize=9, color=colour, labelpad=2)
    image = io.BytesIO()
    figure.savefig(image, dpi=105)
    plt.close(figure)
    Image.open(image).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def cloud(axes: Any, points: Array, colour: str) -> None:
    """Draw an object as large as its panel; distant points are paler and drawn first."""
    right = np.array([-np.sin(AZIMUTH), np.cos(AZIMUTH), 0])
    near = np.array([np.cos(ELEVATION) * np.cos(AZIMUTH), np.cos(ELEVATION) * np.sin(AZIMUTH), np.sin(ELEVATION)])
    points = points[np.argsort(points @ near)]
    depth = points @ near
    pale = 0.75 * (depth.max() - depth) / (np.ptp(depth) or 1)
    flat = points @ np.transpose([right, np.cross(near, right)])
    flat -= (flat.min(axis=0) + flat.max(axis=0)) / 2
    half = np.abs(flat).max() * 1.08
    axes.scatter(*flat.T, s=3, c=np.array(to_rgb(colour)) * (1 - pale[:, None]) + pale[:, None], linewidths=0)
    axes.set(xlim=(-half, half), ylim=(-half, half), xticks=[], yticks=[])
    axes.spines[:].set(color=colour if colour == WRONG else "0.85", linewidth=1.2 if colour == WRONG else 0.8)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "neighbors_whitened.png")
