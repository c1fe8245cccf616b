"""Table 1 in Markdown: beside the paper's figures, with slosh's defaults, and with standard deviations.

The ledger's results come in, Markdown goes out. Every number is a mean over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ledger import Results
from protocol import METHODS, SETTINGS, Array
from published import published
from tables import table

KS = ("4", "8", "16")
NEAR = 0.02
"""A cell that is further from the published one than this is explained."""
WAYS = {
    "1024 bits": ("paper", "1024"),
    "2048 bits": ("paper", "2048"),
    "defaults, 1024 bits": ("defaults", "1024"),
    "search": ("search", "scores"),
}
"""By title: where in a result the scores are."""


class Cell(NamedTuple):
    """One cell of Table 1: its place, [precision, accuracy] as measured, and as published."""

    name: str
    method: str
    k: str
    measured: Array
    published: list[float]

    @property
    def off(self) -> bool:
        return far(self.measured, self.published)


def far(measured: Array, paper: Sequence[float]) -> bool:
    return bool(np.abs(np.asarray(measured) - paper).max() > NEAR)


def over_seeds(results: Results, prefix: str, *path: str) -> Array:
    """(n_seeds, 2): precision and accuracy of each seed; `path` leads to them within a result."""
    rows = []
    for seed in range(len(results)):
        result: Any = results.get(f"{prefix}/{seed}")
        if result is None:
            break
        for step in path:
            result = result[step]
        rows.append(result)
    return np.array(rows)


def measured(results: Results, name: str, method: str, k: str, *path: str) -> Array:
    return over_seeds(results, f"table1/{name}/{method}", *path, k)


def cells(results: Results, bits: str) -> list[Cell]:
    """All cells that the paper has too."""
    found = []
    for name in SETTINGS:
        for method in METHODS:
            paper = published(name, method)
            for k in KS if paper else ():
                assert paper is not None
                mean = measured(results, name, method, k, "paper", bits).mean(axis=0)
                found.append(Cell(name, method, k, mean, paper[k]))
    return found


def pair(values: Array) -> str:
    return "/".join(f"{value:.2f}" for value in values)


def main_table(results: Results, bits: str, beside: bool) -> str:
    """In the layout of the paper: precision@k/accuracy (the paper's); cells that are off are marked.

    With `beside` two lines follow each row: the same with slosh's defaults, and slosh's default search.
    """
    header = ["", *(f"{setting.title}, k={k}" if k == "4" else f"k={k}" for setting in SETTINGS.values() for k in KS)]
    off = {(cell.name, cell.method, cell.k): cell for cell in cells(results, bits)}
    rows = []
    for method in METHODS:
        line = [f"**{method}**"]
        for name in SETTINGS:
            for k in KS:
                mean = measured(results, name, method, k, "paper", bits).mean(axis=0)
                cell = off.get((name, method, k))
                text = pair(mean) if cell is None else f"{pair(mean)} ({pair(np.array(cell.published))})"
                line.append(f"*{text}*" if cell is not None and cell.off else text)
        rows.append(line)
        if beside:
            rows.append(_line("defaults", lambda name, k, m=method: measured(results, name, m, k, "defaults", bits)))
            rows.append(_line("search", lambda name, k, m=method: measured(results, name, m, k, "search", "scores")))
    return table(header, rows)


def _line(title: str, values: Callable[[str, str], Array]) -> list[str]:
    return [f"· {title}", *(pair(values(name, k).mean(axis=0)) for name in SETTINGS for k in KS)]


def deviations(results: Results) -> str:
    """Mean and standard deviation over the seeds, three digits, for each data set and k."""
    parts = []
    for name, setting in SETTINGS.items():
        rows = []
        for method in METHODS:
            for title, path in WAYS.items():
                values = [measured(results, name, method, k, *path) for k in KS]
                rows.append([f"{method}, {title}", *map(_with_deviation, values)])
        parts.append(f"{setting.title}\n\n" + table(["", *(f"k={k}" for k in KS)], rows))
    return "\n\n".join(parts)


def _with_deviation(values: Array) -> str:
    return " / ".join(
        f"{mean:.3f} ± {std:.3f}" for mean, std in zip(values.mean(axis=0), values.std(axis=0, ddof=1), strict=True)
    )


def map_table(results: Results) -> str:
    """Oxford's own measure, the mean average precision over the whole ranking."""
    rows = []
    for method in METHODS:
        values = [over_seeds(results, f"table1/oxford5k/{method}", *path, "map") for path in WAYS.values()]
        rows.append([method, *(f"{v.mean():.3f} ± {v.std(ddof=1):.3f}" for v in values)])
    return table(["mean average precision", *WAYS], rows)


def memory(results: Results) -> str:
    """What the default search holds in memory and on disk for each set; where its directions had to be fewer."""
    rows = []
    for name, setting in SETTINGS.items():
        sizes = {m: [each["search"] for each in over_seeds(results, f"table1/{name}/{m}")] for m in METHODS}
        largest = max(each["memory"] for found in sizes.values() for each in found)
        slosh = sizes["SLOSH L>d"]
        means = [np.mean([each[what] for each in slosh]) for what in ("memory", "disk")]
        chosen = {method: found[0]["components"] for method, found in sizes.items()}
        cut = [f"{method} {number}" for method, number in chosen.items() if number is not None]
        rows.append([setting.title, f"{largest:.0f}", *(f"{mean:.0f}" for mean in means), ", ".join(cut) or "none"])
    header = [
        "bytes a set",
        "memory, largest row",
        "SLOSH L>d, memory",
        "on disk",
        "directions set, to fit into 128 bytes",
    ]
    return table(header, rows)


def verdict(results: Results) -> str:
    """Which methods have a higher precision@4 than SLOSH L > d, by data set and way."""
    rows = []
    for name, setting in SETTINGS.items():
        line = [setting.title]
        for path in WAYS.values():
            found = {m: measured(results, name, m, "4", *path).mean(axis=0)[0] for m in METHODS}
            own = found["SLOSH L>d"]
            better = sorted((m for m in found if found[m] > own), key=lambda m: -found[m])
            line.append(f"{own:.3f}; " + (", ".join(f"{m} {found[m]:.3f}" for m in better) or "none"))
        rows.append(line)
    return table(["SLOSH L>d; which are better", *WAYS], rows)


def losses(results: Results) -> str:
    """Rows of Table 1 whose precision@4 falls by more than .005 with slosh's defaults, or from these to its search."""
    steps = {
        "with the defaults": ("1024 bits", "defaults, 1024 bits"),
        "by the search": ("defaults, 1024 bits", "search"),
    }
    told = []
    for title, (first, second) in steps.items():
        lost = []
        for name, setting in SETTINGS.items():
            for method in METHODS:
                a, b = (measured(results, name, method, "4", *WAYS[way]).mean(axis=0)[0] for way in (first, second))
                if b < a - 0.005:
                    lost.append(f"{setting.title}, {method} ({a:.3f} to {b:.3f})")
        told.append(f"- {title}: {'; '.join(lost) or 'none'}.")
    return "\n".join(told)
