"""Write the goals and tables of docs/benchmarks-search.md from the results of `make bench-search`, and draw its figure.

    python benchmarks/search_report.py [benchmarks/results/search.json]

A given file replaces docs/results/search.json first. Then the tables between the markers of the page are rewritten, and
docs/search_curves.png is drawn. A test checks that the page agrees with the results.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import ROOT
from markdown_tables import markdown_table

RESULTS, PAGE = ROOT / "docs" / "results" / "search.json", ROOT / "docs" / "benchmarks-search.md"
YARDSTICK, FLOAT_SCAN, LADDER, CERTIFIED = "FAISS binary flat", "FAISS flat", "LadderSearch", "certified"
OURS = ("ExactSearch", "HammingSearch", "LSHSearch", LADDER, CERTIFIED)
RECALLS = (0.5, 0.9, 0.95, 0.99, 0.999)


def sections(results: dict[str, Any], kind: str = "sizes") -> list[dict[str, Any]]:
    """Return the measured collections, smallest first."""
    return sorted((part for part in results[kind].values() if "rows" in part), key=lambda section: section["rows"])


def fastest_setting(result: dict[str, Any], recall: float, measure: str = "recall") -> dict[str, Any] | None:
    """Return the fastest setting of a method whose measured recall is at least this, or None."""
    good = [row for row in result.get("levels", []) if row.get(measure, row["recall"]) >= recall]
    return max(good, key=lambda row: row["qps"]) if good else None


def goals(results: dict[str, Any]) -> list[tuple[bool | None, str, str]]:
    """Return for each goal whether it was reached (None: not measured), the goal, and the measured value."""
    lines: list[tuple[bool | None, str, str]] = []
    for section in sections(results):
        methods, n = section["methods"], section["rows"]
        recall, factor = (0.99, 3) if n <= 60_000 else (0.95, 20)
        ladder, certified = methods.get(LADDER, {}), methods.get(CERTIFIED, {})
        goal = f"{n:,} sets: {LADDER} at recall@10 of {recall} or more, {factor} x the queries/s of {YARDSTICK}"
        if row := fastest_setting(ladder, recall):
            found = f"{row['x_yardstick']:.1f} x ({row['qps']:,.0f}/s with {row['level']}, recall {row['recall']:.4f})"
            lines.append((row["x_yardstick"] >= factor, goal, found))
        else:
            lines.append((False, goal, "no such recall") if "levels" in ladder else (None, goal, "not measured"))
        goal = f"{n:,} sets: {LADDER} takes at most 2,300 bytes per set in total"
        if "levels" in ladder:
            lines.append((ladder["bytes_per_set"] <= 2300, goal, f"{ladder['bytes_per_set']:,.0f}"))
        else:
            lines.append((None, goal, "not measured"))
        goal = f"{n:,} sets: certified search at least as fast as {FLOAT_SCAN}, the float scan of the vectors"
        if "levels" in certified:
            scan, row = certified["beside_qps"][FLOAT_SCAN], certified["levels"][0]
            found = f"{row['qps'] / scan:.1f} x ({row['qps']:,.0f}/s against {scan:,.0f}/s)"
            lines.append((row["qps"] >= scan, goal, found))
        else:
            lines.append((None, goal, "not measured"))
    return lines


# -- tables ------------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Format a number with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def setup(results: dict[str, Any]) -> str:
    """Describe the machine, and say whether the results come from one undisturbed run."""
    machine = results["machine"]
    measured = [result for kind in ("sizes", "growth") for section in sections(results, kind)
                for result in section["methods"].values() if "levels" in result]  # fmt: skip
    dates, runs = [result["date"] for result in measured], {result.get("run") for result in measured}
    waits = statistics.median(row["qps"] / row["wall_qps"] for result in measured for row in result["levels"])
    when = "one run" if len(runs) == 1 and None not in runs else "combined from several runs"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, one thread; kernel {machine['kernel']}, FAISS {machine['faiss']} "
        f"({machine['faiss_simd']}), usearch {machine['usearch']}, NumPy {machine['numpy']}, Python "
        f"{machine['python']}; {when}, {min(dates)} to {max(dates)} (`docs/results/search.json`). The best wall-clock "
        f"times are {waits:.2f} times the CPU times in the median; more than 1 means that other programs were running."
    )


def goals_table(results: dict[str, Any]) -> str:
    """Return the table of goals."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [[goal, found, words[reached]] for reached, goal, found in goals(results)]
    return markdown_table(["goal", "measured", "reached"], rows)


def methods_table(section: dict[str, Any]) -> str:
    """Return a table with a row for each method: its cost, and its speed at several recalls."""
    heads = ["", "bytes per set", "build, s", *(f"recall {recall:g}" for recall in RECALLS), "highest recall"]
    rows, notes = [], []
    for name, result in section["methods"].items():
        shown = f"**{name}**" if name in OURS else name
        if "levels" not in result:
            notes.append(f"{name} was skipped: {result['skipped']}.")
            continue
        cells = [shown, f"{result['bytes_per_set']:,.0f}", f"{result['build_s']:,.1f}"]
        for recall in RECALLS:
            row = fastest_setting(result, recall)
            cells.append("" if row is None else f"{number(row['qps'])} ({number(row['x_yardstick'])} x)")
        rows.append([*cells, f"{max(row['recall'] for row in result['levels']):.4f}"])
        if result["note"]:
            notes.append(f"{name}: {result['note']}.")
    title = f"{section['rows']:,} sets ({section['data']}), D = {section['dim']}, {section['queries']} queries. "
    about = f"Queries/s at this recall@10 or more, and the ratio to {YARDSTICK}."
    return "\n\n".join([title + about, markdown_table(heads, rows), "\n".join(f"- {note}" for note in notes)])


def settings_table(section: dict[str, Any]) -> str:
    """Return a table of every setting of slosh's searches and its results."""
    levels = [row for name in OURS for row in section["methods"].get(name, {}).get("levels", [])]
    known = any("recall_known_maps" in row for row in levels)
    recalls = ["recall@10", "recall@10, known maps"] if known else ["recall@10"]
    heads = ["", "setting", *recalls, "queries/s", "x binary flat", "single query, us", "scanned", "compared"]
    rows = []
    for name, result in section["methods"].items():
        for row in result.get("levels", []) if name in OURS else []:
            compared = number(row["candidates"])
            if "full_distances" in row:
                compared += f" vectors, {number(row['full_distances'])} sets"
            cells = [row["level"], f"{row['recall']:.4f}"]
            if known:
                cells.append(f"{row['recall_known_maps']:.4f}" if "recall_known_maps" in row else "")
            cells += [number(row[key]) for key in ("qps", "x_yardstick", "p50_us", "scanned")]
            rows.append([name, *cells, compared])
    return f"{section['rows']:,} sets:\n\n" + markdown_table(heads, rows)


def growth_table(results: dict[str, Any]) -> str:
    """Return a table of queries/s by the number of sets, at recall .9 or more for queries like the stored sets."""
    parts = [*sections(results, "growth"), *(part for part in sections(results) if part["rows"] > 60_000)]
    names = [name for name in (FLOAT_SCAN, "ExactSearch", YARDSTICK, "LSHSearch", LADDER)
             if any("levels" in part["methods"].get(name, {}) for part in parts)]  # fmt: skip
    rows = []
    for part in parts:
        cells = [f"{part['rows']:,}"]
        for name in names:
            least = 0.0 if name == YARDSTICK else 0.9
            row = fastest_setting(part["methods"].get(name, {}), least, "recall_known_maps")
            cell = "" if row is None else number(row["qps"])
            if row is not None and name == "LSHSearch":
                cell += f" ({row['candidates'] / part['rows']:.2%} compared)"
            cells.append(cell)
        rows.append(cells)
    return markdown_table(["sets", *names], rows)


def texts_by_marker(results: dict[str, Any]) -> dict[str, str]:
    """Return the text for each marker of the page."""
    texts = {"setting": setup(results), "goals": goals_table(results), "growth": growth_table(results)}
    for section in sections(results):
        size = "million" if section["rows"] > 60_000 else "mnist"
        texts |= {f"{size} methods": methods_table(section), f"{size} settings": settings_table(section)}
    return texts


def filled(page: str, results: dict[str, Any]) -> str:
    """Return the page with the text between its markers made from the results."""
    for name, text in texts_by_marker(results).items():
        place = re.compile(rf"<!-- {name} -->\n.*?<!-- / -->", re.DOTALL)
        page, n = place.subn(lambda _, name=name, text=text: f"<!-- {name} -->\n\n{text}\n\n<!-- / -->", page)
        if n != 1:
            raise ValueError(f"the page has {n} markers {name!r} instead of one")
    return page


def main() -> None:
    """Store the given results, if any, rewrite the page, and draw the figure."""
    if len(sys.argv) > 1:
        text = Path(sys.argv[1]).read_text(encoding="utf-8")
        if json.loads(text)["quick"]:
            raise SystemExit(f"{sys.argv[1]} is from a quick run, whose numbers are meaningless")
        RESULTS.write_text(text, encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "docs" / "draw_search.py")], check=True)
    print(f"written: {RESULTS}, {PAGE}, docs/search_curves.png")


if __name__ == "__main__":
    main()
