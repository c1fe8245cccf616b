"""Write the results page: text, tables and figures from the numbers of a run, and the numbers themselves.

`write` makes paper.md, paper-*.png and paper.json. The text depends only on paper.json:

    python benchmarks/paper/page.py         rewrites docs/results/paper.md from docs/results/paper.json

The README quotes its main lines between markers.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import claims
import report_differences
import report_sensitivity
import report_studies
import report_table1
import report_whitened
import retrievals
import slosh
from ledger import Ledger, Results
from protocol import METHODS, ROOT, SETTINGS, Plan
from report_table1 import format_scores, measured
from tables import table

sys.path.insert(1, str(ROOT / "benchmarks"))
from machine import cpu

RESULTS, README = ROOT / "docs" / "results", ROOT / "README.md"
TEMPLATE = Path(__file__).with_name("page.md")
LIBRARIES = ("numpy", "scipy", "scikit-learn", "POT", "faiss-cpu", "matplotlib")


def write(out: Path, ledger: Ledger, plan: Plan) -> None:
    """Write the page, its figures and its numbers into the folder `out`."""
    import draw_retrievals
    import draw_sensitivity
    import draw_studies

    out.mkdir(parents=True, exist_ok=True)
    report = collect(ledger, plan)
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
    (out / "paper.md").write_text(render(report), encoding="utf-8")
    if out.resolve() == RESULTS:
        README.write_text(update_readme(README.read_text("utf-8"), report), encoding="utf-8")
    print(f"wrote {out / 'paper.md'}, its figures, and paper.json with the numbers")
    for sentence in () if plan.quick else claims.unsupported(results):
        print(f"{TEMPLATE.name} says what these numbers do not: {sentence}")


def collect(ledger: Ledger, plan: Plan) -> dict[str, Any]:
    """Return all results by key, with the machine, the versions and the time that each experiment took."""
    seconds: dict[str, float] = {}
    for key, spent in ledger.seconds.items():
        part = "WE" if "/WE/" in key and key.startswith(("table1", "whitened")) else key.split("/")[0]
        seconds[part] = seconds.get(part, 0.0) + spent
    return {
        "command": "make paper-quick" if plan.quick else "make paper",
        "date": ledger.date,
        "machine": f"{cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "versions": {
            "Python": platform.python_version(),
            "slosh": slosh.__version__,
            **{name: version(name) for name in LIBRARIES},
        },
        "seconds": {part: round(spent) for part, spent in seconds.items()},
        "results": dict(sorted(ledger.results.items())),
    }


def as_json(report: dict[str, Any]) -> str:
    """Return the report as JSON with one line for each result."""
    head = {key: value for key, value in report.items() if key != "results"}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in report["results"].items())
    return json.dumps(head, indent=1)[:-2] + ',\n "results": {\n' + lines + "\n }\n}\n"


def render(report: dict[str, Any]) -> str:
    """Return the page: page.md with its {{names}} replaced."""
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, value in sections(report).items():
        assert f"{{{{{name}}}}}" in page, name
        page = page.replace(f"{{{{{name}}}}}", value)
    assert "{{" not in page, page[page.index("{{") :][:40]
    return page


def sections(report: dict[str, Any]) -> dict[str, str]:
    """Return the replacement for each {{name}} of the template."""
    results: Results = report["results"]
    n_seeds = len(measured(results, "mnist", "GeM-1", "4", "paper", "1024"))
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
        "seeds of we": str(len(measured(results, "mnist", "WE", "4", "paper", "1024"))),
        "main lines": main_lines(results),
        "table 1, 1024 bits": report_table1.main_table(results, "1024", beside=True),
        "table 1, 2048 bits": report_table1.main_table(results, "2048", beside=False),
        "verdict": report_table1.verdict(results),
        "losses": report_table1.losses(results),
        "we": compare_we(results),
        "deviations": report_table1.deviations(results),
        "memory": report_table1.memory(results),
        "map": report_table1.map_table(results),
        "whitened": report_whitened.whitened_table(results),
        "whitened by k": report_whitened.by_k(results),
        "whitened memory": report_whitened.memory(results),
        "explained": report_differences.explained(results),
        "nearness": report_differences.nearness(results),
        "effects": report_differences.effects(results),
        "angles": report_differences.angles(results),
        "improvements": report_differences.improvements(results),
        "retrievals": _bullets(retrievals.about, results),
        "lengths": "\n\n".join(
            f"{report_sensitivity.about_lengths(results, name)}\n\n{report_sensitivity.lengths_table(results, name)}"
            for name in SETTINGS
        ),
        "slices": report_sensitivity.slices_table(results),
        "about slices": _bullets(report_sensitivity.about_slices, results),
        "references": report_sensitivity.references_table(results),
        "about references": _bullets(report_sensitivity.about_references, results),
        "times": report_studies.times(results),
        "distances": report_studies.distances(results),
        "monte carlo": report_studies.monte_carlo(results),
        "complexity": report_studies.complexity(results),
    }


def _bullets(sentence: Callable[[Results, str], str], results: Results) -> str:
    return "\n".join(f"- {sentence(results, name)}" for name in SETTINGS)


def compare_we(results: Results) -> str:
    """Compare WE with and without subtracting the reference, which the authors' code does not do, at 2048 bits."""
    sentences = []
    for name, setting in SETTINGS.items():
        ways = [("paper", "2048"), ("not less the reference", "2048")]
        own, theirs = (measured(results, name, "WE", "4", *way).mean(axis=0) for way in ways)
        sentences.append(f"{setting.title} {format_scores(own)} and {format_scores(theirs)}")
    return ", ".join(sentences)


def main_lines(results: Results) -> str:
    """Return a table of SLOSH with L > d at k = 4: published, measured, with slosh's defaults and search, whitened."""
    ours = ["1024 bits", "2048 bits", "defaults, 1024 bits", "default search", "whitened", "three views, whitened"]
    header = ["precision@4/accuracy", "paper", *ours]
    rows = []
    for cell in report_table1.cells(results, "1024"):
        if cell.method == "SLOSH L>d" and cell.k == "4":
            ways = report_table1.WAYS.values()
            means = [measured(results, cell.name, cell.method, "4", *way).mean(axis=0) for way in ways]
            more = [report_whitened.scores(results, cell.name, row, "search") for row in ("SLOSH", "three views")]
            beyond = [format_scores(each.mean(axis=0)) if len(each) else "-" for each in more]
            rows.append([SETTINGS[cell.name].title, *map(format_scores, (cell.published, *means)), *beyond])
    return table(header, rows)


def update_readme(readme: str, report: dict[str, Any]) -> str:
    """Return the README with the main lines of these results between its markers."""
    results = report["results"]
    cells, better = report_table1.cells(results, "2048"), []
    own = {name: _precision(results, name, "SLOSH L>d") for name in SETTINGS}
    for method in METHODS:
        titles = [SETTINGS[name].title for name in SETTINGS if _precision(results, name, method) > own[name]]
        better += [f"{method} ({', '.join(titles)})"] if titles else []
    cost = [_seconds(results, name, "WE") / _seconds(results, name, "SLOSH L>d") for name in SETTINGS]
    summary = (
        f"With 2048 bits, as the authors' code uses, {sum(not cell.off for cell in cells)} of {len(cells)} cells of "
        "Table 1 are within .02 of the paper's; the page explains the others. In the default search "
        f"{', '.join(better) or 'no method'} has a higher precision than SLOSH with L > d. WE, exact transport to a "
        f"reference, takes {min(cost):.0f} to {max(cost):.0f} times as long to embed a set. The whole run took "
        f"{sum(report['seconds'].values()) / 60:.0f} minutes on two cores."
    )
    for marker, value in {"main lines": main_lines(results), "said": "\n".join(textwrap.wrap(summary, 120))}.items():
        replacement = f"<!-- {marker} -->\n{value}\n<!-- / -->"
        readme = re.sub(rf"<!-- {marker} -->.*?<!-- / -->", lambda _, new=replacement: new, readme, flags=re.S)
    return readme


def _precision(results: Results, name: str, method: str) -> float:
    return float(measured(results, name, method, "4", "search", "scores")[:, 0].mean())


def _seconds(results: Results, name: str, method: str) -> float:
    return float(results[f"times/{name}/{method}"]["seconds"])


if __name__ == "__main__":
    stored = json.loads((RESULTS / "paper.json").read_text("utf-8"))
    (RESULTS / "paper.md").write_text(render(stored), encoding="utf-8")
    README.write_text(update_readme(README.read_text("utf-8"), stored), encoding="utf-8")
