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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    """What the default search holds in memory and on disk for each set, for SLOSH L>d."""
    rows = []
    for name, setting in SETTINGS.items():
        found = over_seeds(results, f"table1/{name}/SLOSH L>d", "search")
        in_memory, on_disk = (np.mean([each[what] for each in found]) for what in ("memory", "disk"))
        rows.append([setting.title, "128", f"{in_memory:.0f}", f"{on_disk:.0f}"])
    return table(["bytes a set", "codes of 1024 bits", "default search, memory", "default search, disk"], rows)
