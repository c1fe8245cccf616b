"""The table of whitened embeddings as Markdown, from the ledger's results. Numbers are means over the seeds."""

from __future__ import annotations

from ledger import Results
from protocol import SETTINGS, Array
from report_table1 import KS, format_scores, measured, over_seeds, with_deviation
from tables import table
from whitened import BYTES, ROWS

WAYS = {"1024 bits": ("codes", "1024"), "2048 bits": ("codes", "2048"), "search": ("search", "scores")}
PLAIN = {"SLOSH": "SLOSH L>d", "FSPool": "FSPool", "WE": "WE"}
"""The row of Table 1 to compare with."""


def scores(results: Results, name: str, row: str, way: str, k: str = "4") -> Array:
    """Return precision and accuracy, (n_seeds, 2); empty if the data set has no such row."""
    return over_seeds(results, f"whitened/{name}/{row}", *WAYS[way], k)


def whitened_table(results: Results) -> str:
    """Return precision@4 and accuracy, as they are and whitened, in codes and in the default search."""
    header = ["precision@4/accuracy", *(setting.title for setting in SETTINGS.values())]
    rows = []
    for row in ROWS:
        if row in PLAIN:
            plain = [measured(results, name, PLAIN[row], "4", "search", "scores") for name in SETTINGS]
            rows.append([f"{PLAIN[row]}, as it is, search", *(format_scores(each.mean(axis=0)) for each in plain)])
        for way in WAYS:
            cells = [scores(results, name, row, way) for name in SETTINGS]
            title = f"**{row}, whitened, {way}**" + f" ({BYTES.get(row, 128)} bytes)" * (way == "search")
            rows.append([title, *(with_deviation(each) if len(each) else "-" for each in cells)])
    return table(header, rows)


def by_k(results: Results) -> str:
    """Return the scores of the default search for every k."""
    header = ["", *(f"{setting.title}, k={k}" if k == "4" else f"k={k}" for setting in SETTINGS.values() for k in KS)]
    rows = []
    for row in ROWS:
        found = [scores(results, name, row, "search", k) for name in SETTINGS for k in KS]
        rows.append([row, *(format_scores(each.mean(axis=0)) if len(each) else "-" for each in found)])
    return table(header, rows)


def memory(results: Results) -> str:
    """Return the numbers of a vector, and the bytes that the default search takes for it."""
    rows = []
    for row in ROWS:
        line = [row]
        for name in SETTINGS:
            found = results.get(f"whitened/{name}/{row}/0")
            if found is None:
                line.append("-")
                continue
            sizes = found["search"]
            line.append(f"{found['length']} numbers; {sizes['memory']:.0f} in memory, {sizes['disk']:.0f} on disk")
        rows.append(line)
    return table(["bytes per set", *(setting.title for setting in SETTINGS.values())], rows)
