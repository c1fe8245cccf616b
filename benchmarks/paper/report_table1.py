"""Table 1 as Markdown: with the paper's figures, with slosh's defaults, and with standard deviations.

Every function takes the ledger's results. Numbers are means over the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ledger import Results
from protocol import METHODS, SETTINGS, Array
from published import published
from tables import table

KS = ("4", "8", "16")
TOLERANCE = 0.02
"""A cell is "off" if precision or accuracy differs from the published value by more than this."""
NOTABLE_LOSS = 0.005
WAYS = {
    "1024 bits": ("paper", "1024"),
    "2048 bits": ("paper", "2048"),
    "defaults, 1024 bits": ("defaults", "1024"),
    "search": ("search", "scores"),
}
"""By title: the path to the scores within a result."""


class Cell(NamedTuple):
    """A cell of Table 1: its data set, method and k, and [precision, accuracy] as measured and as published."""

    name: str
    method: str
    k: str
    measured: Array
    published: list[float]

    @property
    def off(self) -> bool:
        """Whether the measured values differ from the published ones."""
        return is_off(self.measured, self.published)


def is_off(measured: Array, published: Sequence[float]) -> bool:
    """Return whether precision or accuracy differs from the published value by more than the tolerance."""
    return bool(np.abs(np.asarray(measured) - published).max() > TOLERANCE)


def over_seeds(results: Results, prefix: str, *path: str) -> Array:
    """Return one value per seed, such as (n_seeds, 2) precisions and accuracies; `path` leads to it within a result."""
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
    """Return precision and accuracy of a cell, (n_seeds, 2)."""
    return over_seeds(results, f"table1/{name}/{method}", *path, k)


def cells(results: Results, bits: str) -> list[Cell]:
    """Return all cells that the paper has, too."""
    found = []
    for name in SETTINGS:
        for method in METHODS:
            paper = published(name, method)
            for k in KS if paper else ():
                assert paper is not None
                mean = measured(results, name, method, k, "paper", bits).mean(axis=0)
                found.append(Cell(name, method, k, mean, paper[k]))
    return found


def format_scores(values: Sequence[float] | Array) -> str:
    """Format precision and accuracy as "0.88/0.91"."""
    return "/".join(f"{value:.2f}" for value in values)


def main_table(results: Results, bits: str, beside: bool) -> str:
    """Return the table in the paper's layout: precision@k/accuracy (the paper's), with cells that are off in italics.

    With `beside`, two lines follow each row: slosh's defaults, and slosh's default search.
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
                text = format_scores(mean) + ("" if cell is None else f" ({format_scores(cell.published)})")
                line.append(f"*{text}*" if cell is not None and cell.off else text)
        rows.append(line)
        if beside:
            for title, path in (("defaults", ("defaults", bits)), ("search", ("search", "scores"))):
                values = [measured(results, name, method, k, *path) for name in SETTINGS for k in KS]
                rows.append([f"· {title}", *(format_scores(value.mean(axis=0)) for value in values)])
    return table(header, rows)


def deviations(results: Results) -> str:
    """Return a table of means and standard deviations over the seeds for each data set."""
    parts = []
    for name, setting in SETTINGS.items():
        rows = []
        for method in METHODS:
            for title, path in WAYS.items():
                values = [measured(results, name, method, k, *path) for k in KS]
                rows.append([f"{method}, {title}", *map(with_deviation, values)])
        parts.append(f"{setting.title}\n\n" + table(["", *(f"k={k}" for k in KS)], rows))
    return "\n\n".join(parts)


def with_deviation(values: Array) -> str:
    """Format precisions and accuracies, (n_seeds, 2), as means and, of several seeds, standard deviations."""
    means = values.mean(axis=0)
    if len(values) == 1:
        return " / ".join(f"{mean:.3f}" for mean in means)
    return " / ".join(f"{mean:.3f} ± {std:.3f}" for mean, std in zip(means, values.std(axis=0, ddof=1), strict=True))


def map_table(results: Results) -> str:
    """Return a table of Oxford's own measure, the mean average precision over the whole ranking."""
    rows = []
    for method in METHODS:
        values = [over_seeds(results, f"table1/oxford5k/{method}", *path, "map") for path in WAYS.values()]
        rows.append([method, *(f"{v.mean():.3f} ± {v.std(ddof=1):.3f}" for v in values)])
    return table(["mean average precision", *WAYS], rows)


def memory(results: Results) -> str:
    """Return a table of the default search's bytes per set, and of the methods with a reduced number of directions."""
    rows = []
    for name, setting in SETTINGS.items():
        sizes = {m: [each["search"] for each in over_seeds(results, f"table1/{name}/{m}")] for m in METHODS}
        largest = max(each["memory"] for found in sizes.values() for each in found)
        slosh = sizes["SLOSH L>d"]
        means = [np.mean([each[what] for each in slosh]) for what in ("memory", "disk")]
        chosen = {method: found[0]["components"] for method, found in sizes.items()}
        cut = [f"{method} {number}" for method, number in chosen.items() if number is not None]
        rows.append([setting.title, f"{largest:.0f}", *(f"{mean:.0f}" for mean in means), ", ".join(cut) or "none"])
    header = ["bytes per set", "memory, largest row", "SLOSH L>d, memory", "on disk", "directions, to fit 128 bytes"]
    return table(header, rows)


def verdict(results: Results) -> str:
    """Return a table of the methods with a higher precision@4 than SLOSH L > d."""
    rows = []
    for name, setting in SETTINGS.items():
        line = [setting.title]
        for path in WAYS.values():
            found = {m: measured(results, name, m, "4", *path).mean(axis=0)[0] for m in METHODS}
            own = found["SLOSH L>d"]
            better = sorted((m for m in found if found[m] > own), key=lambda m: -found[m])
            line.append(f"{own:.3f}; " + (", ".join(f"{m} {found[m]:.3f}" for m in better) or "none"))
        rows.append(line)
    return table(["SLOSH L>d; better methods", *WAYS], rows)


def losses(results: Results) -> str:
    """List the rows of Table 1 that lose precision@4 with slosh's defaults, or from the defaults to its search."""
    steps = {
        "with the defaults": ("1024 bits", "defaults, 1024 bits"),
        "with the search": ("defaults, 1024 bits", "search"),
    }
    lines = []
    for title, (first, second) in steps.items():
        lost = []
        for name, setting in SETTINGS.items():
            for method in METHODS:
                a, b = (measured(results, name, method, "4", *WAYS[way]).mean(axis=0)[0] for way in (first, second))
                if b < a - NOTABLE_LOSS:
                    lost.append(f"{setting.title}, {method} ({a:.3f} to {b:.3f})")
        lines.append(f"- {title}: {'; '.join(lost) or 'none'}.")
    return "\n".join(lines)
