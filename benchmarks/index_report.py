"""What `make bench-index` measured, as the tables of docs/index.md.

    python benchmarks/index_report.py [benchmarks/results/index.json]

With a file it becomes docs/results/index.json. Then the table between the markers of the page is made anew from that:
the page never disagrees with the measurements, and a test looks after it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs" / "results" / "index.json", ROOT / "docs" / "index.md"
MARKED = re.compile(r"<!-- measured -->.*?<!-- / -->", re.S)
COLUMNS = {"mnist, default embedding": "MNIST, D = 256, the default", "mnist": "MNIST, D = 1024", "million": "D = 1024"}


def time_of(microseconds: float) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"


def table(results: dict[str, Any]) -> list[str]:
    """One column for each collection."""
    parts = [results[name] for name in COLUMNS]

    def line(what: str, value: Any) -> str:
        return f"| {what} | {' | '.join(value(part) for part in parts)} |"

    def query(name: str) -> str:
        def both(part: dict[str, Any]) -> str:
            row = part["queries"][name]
            return f"{time_of(row['p50_us'])}, {time_of(row['p99_us'])}"

        return line(f"one query: {name}, p50 and p99", both)

    heads = [f"{part['build']['sets']:,} sets, {COLUMNS[name]}" for name, part in zip(COLUMNS, parts, strict=True)]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(parts) + 1) + "|"]
    lines += [
        line("sets a second into the index", lambda p: f"{p['build']['sets_per_s']:,.0f}"),
        line(
            "of a bare SQLite table of ids and blobs",
            lambda p: f"{p['build']['of_sqlite_table']:.0%}",
        ),
        line(
            "bytes a set: database, caches (the points alone)",
            lambda p: "{:,.0f}, {:,.0f} ({:,.0f})".format(
                p["build"]["bytes_per_set"]["database"],
                p["build"]["bytes_per_set"]["cache"],
                p["build"]["points_bytes_per_set"],
            ),
        ),
        line(
            "memory while building; with mapped files",
            lambda p: f"{p['build']['memory']['anonymous_gb']:.2f} GB; {p['build']['memory']['resident_gb']:.2f} GB",
        ),
        line(
            "memory after opening, without mapped files, bytes a set",
            lambda p: f"{p['open']['anonymous_bytes'] / p['build']['sets']:.0f}",
        ),
        line("open", lambda p: f"{p['open']['seconds']:.2f} s"),
        line("open without caches", lambda p: f"{p['open without caches']['seconds']:.1f} s"),
        line("first search after a build (calibrates)", lambda p: f"{p['build']['first_search_s']:.2f} s"),
        query("bare search").replace("one query: bare search", "one vector, the bare search"),
        query("one at a time").replace("one query: one at a time", "one query, ids and metadata with it"),
        line("of the bare search", lambda p: f"{p['queries']['x_bare']:.2f} x"),
        query("re-ranked, sliced"),
        query("certified"),
        *(query(name) for name in parts[0]["queries"] if name.startswith("filter")),
        line("queries a second, 1,000 at once", lambda p: f"{p['queries']['batch']['queries_per_s']:,.0f}"),
        line(
            "the same with a filter (a tenth)",
            lambda p: f"{p['queries']['batch, filter: a tenth']['queries_per_s']:,.0f}",
        ),
        line("recall@10 of the default search", lambda p: f"{p['queries']['recall']:.4f}"),
    ]
    return lines


def filled(page: str, results: dict[str, Any]) -> str:
    about = results["machine"]
    small = results["mnist"]["small adds, sets/s"]
    machine = f"{about['cpu']} ({about['kernel']}), SQLite {about['sqlite']}"
    said = (
        f"`make bench-index`, {about['threads']} threads, {machine},\n"
        f"{about['date']}, a shared machine; {about['data']}, and MNIST under 17 affine maps.\n"
        "One set a call, each on disk before the next: "
        f"{small['1 a call']:,.0f} a second; a thousand a call: {small['1000 a call']:,.0f}."
    )
    return MARKED.sub(lambda _: "\n".join(["<!-- measured -->", "", said, "", *table(results), "", "<!-- / -->"]), page)


def main() -> None:
    if len(sys.argv) > 1:
        RESULTS.write_text(Path(sys.argv[1]).read_text(encoding="utf-8"), encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
