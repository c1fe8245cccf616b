"""Draw docs/hashing.png: how often hashes agree, measured, on the curves of the formulas.

    python docs/draw_hashing.py [output.png]

Left: sign codes of vectors at an angle. Middle: p-stable hashes of vectors at a distance. Right: p-stable hashes of
*sets* at an embedded distance, one hash, a table of k, and T tables. Every point is a count over independent trials.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from slosh.embed import SlicedWasserstein
from slosh.hash import PStableHash, SignHash

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8A8A8A"
WIDTH, K, T = 4.0, 8, 10
DIM = 64


def draw(path: Path) -> None:
    plt.rcParams.update({"font.size": 12, "axes.linewidth": 0.8, "mathtext.fontset": "dejavusans"})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14.5, 5.3), sharey=True)
    draw_signs(left)
    draw_stable(middle)
    draw_sets(right)
    left.set_ylabel("probability to agree")
    for axes in (left, middle, right):
        axes.set(ylim=(-0.03, 1.03))
        axes.grid(color="#E4E4E4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.5, 0.012, "lines: the formulas      points: measured", ha="center", fontsize=12, color="#444444")
    figure.tight_layout(rect=(0, 0.045, 1, 1), w_pad=2.5)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def points(axes: Axes, x: np.ndarray, rate: list[float], colour: str, marker: str, label: str) -> None:
    axes.plot(
        x, rate, linestyle="", marker=marker, color=colour, markersize=8.5, markeredgecolor="white",
        markeredgewidth=0.9, label=label, zorder=3, clip_on=False,
    )  # fmt: skip


def heading(axes: Axes, title: str, text: str) -> None:
    axes.set_title(f"{title}\n", fontsize=13.5, fontweight="bold")
    axes.text(0.5, 1.03, text, transform=axes.transAxes, ha="center", fontsize=11.5, color="#444444")


def draw_signs(axes: Axes) -> None:
    """Plot one pair of vectors at each angle, 4096 bits of each rotation."""
    rng = np.random.default_rng(0)
    fine = np.linspace(0, np.pi, 200)
    axes.plot(fine, SignHash().collision_probability(fine), color=GREY, linewidth=2)
    kinds = [("hadamard", BLUE, "o"), ("orthogonal", GREEN, "s"), ("gaussian", ORANGE, "^")]
    for i, (rotation, colour, marker) in enumerate(kinds):
        angles = np.linspace(0, np.pi, 10)[:-1] + (i + 0.5) * np.pi / 27  # one beside the other, not on top
        rates = []
        for angle in angles:
            x, y = np.linalg.qr(rng.normal(size=(DIM, 2)))[0].T
            pair = np.stack([x, np.cos(angle) * x + np.sin(angle) * y])
            hash_ = SignHash(4096, center=None, rotation=rotation).fit(pair)
            a, b = np.unpackbits(hash_.transform(pair), axis=1)
            rates.append(float(np.mean(a == b)))
        points(axes, angles, rates, colour, marker, rotation)
    axes.set_xticks(np.pi * np.arange(5) / 4, ["0", "π/4", "π/2", "3π/4", "π"])
    axes.set_xlabel("angle between the centred vectors")
    axes.legend(frameon=False, loc="upper right", title="rotation", alignment="left")
    heading(axes, "SignHash, one bit", r"$1 - \mathrm{angle}/\pi$")


def draw_stable(axes: Axes) -> None:
    """Plot one pair of vectors at each distance, 10,000 hashes."""
    rng = np.random.default_rng(1)
    fine = np.linspace(0, 16, 300)
    for p, colour, marker in ((2, BLUE, "o"), (1, ORANGE, "^")):
        hash_ = PStableHash(WIDTH, n_hashes=10_000, n_tables=1, p=p)
        axes.plot(fine, hash_.collision_probability(fine), color=colour, linewidth=2, alpha=0.55)
        distances = np.concatenate([[0.25, 0.75], np.arange(1.5, 16, 1.5)])
        rates = []
        for seed, r in enumerate(distances):
            x, step = rng.normal(size=(2, DIM))
            y = x + step * r / np.linalg.norm(step, p)
            a, b = hash_.set_params(random_state=seed).fit([x]).transform([x, y])
            rates.append(float(np.mean(a == b)))
        name = "Gauss, Euclidean distance" if p == 2 else r"Cauchy, $\ell_1$ distance"
        points(axes, distances, rates, colour, marker, f"p = {p}: {name}")
    axes.set_xticks(np.arange(0, 17, 4))
    axes.set_xlabel(f"distance $r = |u - v|_p$   (width $w$ = {WIDTH:g})")
    axes.legend(frameon=False, loc="upper right")
    heading(axes, "PStableHash, one hash", "$P(r)$, in closed form")


def draw_sets(axes: Axes) -> None:
    """Plot 400 pairs of sets, scaled to each distance; T tables of k hashes for each pair alone."""
    rng = np.random.default_rng(2)
    model = SlicedWasserstein(n_slices=8, n_quantiles=8).fit([np.zeros((1, 3))])
    u, v = (
        model.transform(
            [rng.normal(size=3) + rng.normal(size=(n, 3)) * rng.uniform(0.5, 2, 3) for n in rng.integers(20, 100, 400)]
        )
        for _ in range(2)
    )
    distance = np.linalg.norm(u - v, axis=1, keepdims=True)
    one = PStableHash(WIDTH, n_hashes=K, n_tables=T)
    hashes = [PStableHash(WIDTH, n_hashes=K, n_tables=50 * T, random_state=seed).fit(u) for seed in range(8)]
    distances = np.array([0.2, 0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.4, 2.8, 3.3, 4, 5, 6])
    rates = []
    own = np.arange(50)
    for r in distances:
        # The embedding of a scaled set is the scaled embedding: all pairs are now at the embedded distance r.
        pairs = [np.split(x * (r / distance), len(hashes)) for x in (u, v)]
        same = np.concatenate(
            [
                np.equal(*(hash_.transform(x).reshape(50, 50, T, K)[own, own] for x in both))
                for hash_, *both in zip(hashes, *pairs, strict=True)
            ]
        )
        rates.append([same.mean(), same.all(axis=2).mean(), same.all(axis=2).any(axis=1).mean()])
    fine = np.linspace(0, 6, 300)
    P = one.collision_probability(fine)
    each = zip(
        (one.success_probability(fine), P, P**K), (2, 0, 1), (GREEN, BLUE, ORANGE), ("s", "o", "^"),
        ("one of T tables: $1-(1-P^k)^T$", "one hash: $P(r)$", "one table, k hashes: $P^k$"), strict=True,
    )  # fmt: skip
    for curve, column, colour, marker, label in each:
        axes.plot(fine, curve, color=colour, linewidth=2, alpha=0.55)
        points(axes, distances, [row[column] for row in rates], colour, marker, label)
    axes.set_xlabel(rf"embedded distance $r = |\phi(X) - \phi(Y)|$   ($w$ = {WIDTH:g})")
    axes.legend(frameon=False, loc="upper right", handletextpad=0.1, borderaxespad=0)
    heading(axes, "Sets, through the embedding", f"k = {K} hashes a table, T = {T} tables")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("hashing.png"))
