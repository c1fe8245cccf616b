"""The style of all figures: one colour and marker for each method, distinguishable by colour-blind readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

METHOD_STYLE: dict[str, tuple[str, str]] = {
    "GeM-1": ("#999999", "v"),
    "GeM-2": ("#777777", "^"),
    "GeM-4": ("#444444", "D"),
    "Cov": ("#E69F00", "s"),
    "FSPool": ("#CC79A7", "P"),
    "WE": ("#009E73", "X"),
    "SLOSH L<d": ("#56B4E9", "o"),
    "SLOSH L=d": ("#0072B2", "o"),
    "SLOSH L>d": ("#D55E00", "o"),
}
plt.rcParams.update({
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "legend.frameon": False, "lines.markersize": 4, "figure.constrained_layout.use": True,
})  # fmt: skip


def save(figure: Any, path: Path) -> None:
    """Write the figure as a PNG whose bytes depend only on its content, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
