"""The results page: text, tables and figures from the numbers of a run, and the numbers themselves.

`write` makes paper.md, paper-*.png and paper.json. The text is a function of paper.json alone:

    python benchmarks/paper/page.py         makes docs/results/paper.md anew from docs/results/paper.json

The README quotes its main lines, between marks.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report_differences
import report_sensitivity
import report_studies
import report_table1
import retrievals
from ledger import Ledger, Results
from protocol import METHODS, ROOT, SETTINGS, Plan
from tables import table

sys.path.insert(1, str(ROOT / "benchmarks"))
from this_machine import cpu

RESULTS, README = ROOT / "docs" / "results", ROOT / "README.md"
TEMPLATE = Path(__file__).with_name("page.md")
LIBRARIES = ("slosh", "numpy", "scipy", "scikit-learn", "POT", "faiss-cpu", "matplotlib")


def write(out: Path, ledger: Ledger, plan: Plan) -> None:
    """Everything into the folder `out`."""
    import draw_retrievals
    import draw_sensitivity
    import draw_studies

    out.mkdir(parents=True, exist_ok=True)
    report = numbers(ledger, plan)
    results = report["results"]
    figures = {
        "code-length": draw_sensitivity.code_length,
        "slices": draw_sensitivity.slices,
        "references": draw_sensitivity.references,
        "accuracy-time": draw_studies.accuracy_time,
        "distances": draw_studies.distances,
        "monte-carlo": draw_studies.monte_carlo,
        "complexity": draw_studies.complexity,
    }
    for name, draw in figures.items():
        draw(results, out / f"paper-{name}.png")
    draw_retrievals.draw(results, plan, out)
    (out / "paper.json").write_text(as_json(report), encoding="utf-8")
    (out / "paper.md").write_text(text(report), encoding="utf-8")
    if out.resolve() == RESULTS:
        README.write_text(quoted(README.read_text("utf-8"), report), encoding="utf-8")
    print(f"{out / 'paper.md'}, its figures, and paper.json with the numbers")


def numbers(ledger: Ledger, plan: Plan) -> dict[str, Any]:
    """What was run, on what, how long it took, and all results by key."""
    seconds: dict[str, float] = {}
    for key, spent in ledger.seconds.items():
        part = "WE" if "/WE/" in key and key.startswith("table1") else key.split("/")[0]
        seconds[part] = seconds.get(part, 0.0) + spent
    return {
        "command": "make paper-quick" if plan.quick else "make paper",
        "date": ledger.date,
        "machine": f"{cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "versions": {"Python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "seconds": {part: round(spent) for part, spent in seconds.items()},
        "results": dict(sorted(ledger.results.items())),
    }


def as_json(report: dict[str, Any]) -> str:
    """One line for each result."""
    head = {key: value for key, value in report.items() if key != "results"}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in report["results"].items())
    return json.dumps(head, indent=1)[:-2] + ',\n "results": {\n' + lines + "\n }\n}\n"


def text(report: dict[str, Any]) -> str:
    """The page: page.md with its {{names}} filled in."""
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, value in parts(report).items():
        assert f"{{{{{name}}}}}" in page, name
        page = page.replace(f"{{{{{name}}}}}", value)
    assert "{{" not in page, page[page.index("{{") :][:40]
    return page


def parts(report: dict[str, Any]) -> dict[str, str]:
    """What is filled in, by name."""
    results: Results = report["results"]
    n_seeds = len(report_table1.measured(results, "mnist", "GeM-1", "4", "paper", "1024"))
    spent = {part: f"{s / 60:.0f} min" if s >= 90 else f"{s} s" for part, s in report["seconds"].items()}
    return {
        "command": report["command"],
        "date": report["date"],
        "machine": report["machine"],
        "versions": ", ".join(f"{name} {number}" for name, number in report["versions"].items()),
        "minutes": f"{sum(report['seconds'].values()) / 60:.0f}",
        "minutes of table 1": f"{report['seconds']['table1'] / 60:.0f}",
        "times of parts": ", ".join(f"{part} {time}" for part, time in spent.items()),
        "seeds": str(n_seeds),
        "last seed": str(n_seeds - 1),
        "seeds of we": str(len(report_table1.measured(results, "mnist", "WE", "4", "paper", "1024"))),
        "main lines": main_lines(results),
        "table 1, 1024 bits": report_table1.main_table(results, "1024", beside=True),
        "table 1, 2048 bits": report_table1.main_table(results, "2048", beside=False),
        "verdict": report_table1.verdict(results),
        "losses": report_table1.losses(results),
        "we": we(results),
        "deviations": report_table1.deviations(results),
        "memory": report_table1.memory(results),
        "map": report_table1.map_table(results),
        "explained": report_differences.explained(results),
        "nearness": report_differences.nearness(results),
        "effects": report_differences.effects(results),
        "angles": report_differences.angles(results),
        "improvements": report_differences.improvements(results),
        "retrievals": "\n".join(f"- {retrievals.about(results, name)}" for name in SETTINGS),
        "lengths": each(report_sensitivity.lengths_table, report_sensitivity.about_lengths, results),
        "slices": report_sensitivity.slices_table(results),
        "about slices": "\n".join(f"- {report_sensitivity.about_slices(results, name)}" for name in SETTINGS),
        "references": report_sensitivity.references_table(results),
        "about references": "\n".join(f"- {report_sensitivity.about_references(results, name)}" for name in SETTINGS),
        "times": report_studies.times(results),
        "distances": report_studies.distances(results),
        "monte carlo": report_studies.monte_carlo(results),
        "complexity": report_studies.complexity(results),
    }


def each(tabled: Any, told: Any, results: Results) -> str:
    return "\n\n".join(f"{told(results, name)}\n\n{tabled(results, name)}" for name in SETTINGS)


def we(results: Results) -> str:
    """WE as the authors' code has it, which does not subtract the reference, beside slosh's, at 2048 bits."""
    told = []
    for name, setting in SETTINGS.items():
        ways = [("paper", "2048"), ("not less the reference", "2048")]
        own, theirs = (report_table1.measured(results, name, "WE", "4", *way).mean(axis=0) for way in ways)
        told.append(f"{setting.title} {report_table1.pair(own)} and {report_table1.pair(theirs)}")
    return ", ".join(told)


def main_lines(results: Results) -> str:
    """SLOSH with L > d at k = 4: published, measured, with slosh's defaults, and by its default search."""
    header = ["precision@4/accuracy", "paper", "1024 bits", "2048 bits", "defaults, 1024 bits", "default search"]
    rows = []
    for cell in report_table1.cells(results, "1024"):
        if cell.method == "SLOSH L>d" and cell.k == "4":
            ways = [report_table1.measured(results, cell.name, cell.method, "4", *p) for p in report_table1.WAYS.values()]
            values = [report_table1.pair(each.mean(axis=0)) for each in ways]
            rows.append([SETTINGS[cell.name].title, report_table1.pair(cell.published), *values])
    return table(header, rows)


def quoted(readme: str, report: dict[str, Any]) -> str:
    """The README with the main lines of these results."""
    results = report["results"]
    cells, better = report_table1.cells(results, "2048"), []
    own = {name: _found(results, name, "SLOSH L>d") for name in SETTINGS}
    for method in METHODS:
        where = [SETTINGS[name].title for name in SETTINGS if _found(results, name, method) > own[name]]
        better += [f"{method} ({', '.join(where)})"] if where else []
    cost = [_cost(results, name, "WE") / _cost(results, name, "SLOSH L>d") for name in SETTINGS]
    said = (
        f"With 2048 bits, which is what the authors' code makes, {sum(not cell.off for cell in cells)} of {len(cells)} "
        "cells of Table 1 are within .02 of the paper's, and the page shows what moves the others. In the default "
        f"search {', '.join(better) or 'no method'} found more of the right class than SLOSH with L > d; WE, exact "
        f"transport to a reference, takes {min(cost):.0f} to {max(cost):.0f} times as long to embed a set. All of it "
        f"took {sum(report['seconds'].values()) / 60:.0f} minutes on two cores."
    )
    for mark, value in {"main lines": main_lines(results), "said": said}.items():
        lines = "\n".join(textwrap.wrap(value, 120)) if mark == "said" else value
        readme = re.sub(rf"<!-- {mark} -->.*?<!-- / -->", f"<!-- {mark} -->\n{lines}\n<!-- / -->", readme, flags=re.S)
    return readme


def _found(results: Results, name: str, method: str) -> float:
    return float(report_table1.measured(results, name, method, "4", "search", "scores")[:, 0].mean())


def _cost(results: Results, name: str, method: str) -> float:
    return float(results[f"times/{name}/{method}"]["seconds"])


if __name__ == "__main__":
    stored = json.loads((RESULTS / "paper.json").read_text("utf-8"))
    (RESULTS / "paper.md").write_text(text(stored), encoding="utf-8")
    README.write_text(quoted(README.read_text("utf-8"), stored), encoding="utf-8")
