"""Write the table of docs/index.md from the results of `make bench-index`.

    python benchmarks/index_report.py [benchmarks/results/index.json]

A given file replaces docs/results/index.json first. A test checks that the page agrees with that file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import concurrent_search
from machine import ROOT
from markdown_tables import markdown_table

RESULTS, PAGE = ROOT / "docs" / "results" / "index.json", ROOT / "docs" / "index.md"
MARKED = re.compile(r"<!-- measured -->.*?<!-- / -->", re.S)
COLUMNS = {"mnist, default embedding": "MNIST, D = 256, the default", "mnist": "MNIST, D = 1024", "million": "D = 1024"}


def format_time(microseconds: float) -> str:
    """Format a time in microseconds or milliseconds."""
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"


def collections_table(results: dict[str, Any]) -> str:
    """Return the table with a column for each collection."""
    parts = [results[name] for name in COLUMNS]

    def query(title: str, name: str) -> tuple[str, Callable[[dict[str, Any]], str]]:
        def both(part: dict[str, Any]) -> str:
            return ", ".join(format_time(part["queries"][name][key]) for key in ("p50_us", "p99_us"))

        return f"{title}, p50 and p99", both

    lines: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("sets added per second", lambda p: f"{p['build']['sets_per_s']:,.0f}"),
        ("of a bare SQLite table of ids and blobs", lambda p: f"{p['build']['of_sqlite_table']:.0%}"),
        (
            "bytes per set: database, caches (the points alone)",
            lambda p: "{database:,.0f}, {cache:,.0f} ({points:,.0f})".format(
                **p["build"]["bytes_per_set"], points=p["build"]["points_bytes_per_set"]
            ),
        ),
        (
            "peak memory of the build; with mapped files",
            lambda p: "{anonymous_gb:.2f} GB; {resident_gb:.2f} GB".format(**p["build"]["memory"]),
        ),
        (
            "memory after opening, without mapped files, bytes per set",
            lambda p: f"{p['open']['anonymous_bytes'] / p['build']['sets']:.0f}",
        ),
        ("open", lambda p: f"{p['open']['seconds']:.2f} s"),
        ("open without caches", lambda p: f"{p['open without caches']['seconds']:.1f} s"),
        ("first search after a build", lambda p: f"{p['build']['first_search_s']:.2f} s"),
        query("one vector in a bare search", "bare search"),
        query("one query, with ids and metadata", "one at a time"),
        ("relative to the bare search", lambda p: f"{p['queries']['x_bare']:.2f} x"),
        query("one query, re-ranked by the sliced distance", "re-ranked, sliced"),
        query("one query, certified", "certified"),
        *(query(f"one query, {name}", name) for name in parts[0]["queries"] if name.startswith("filter")),
        ("queries per second, 1,000 at once", lambda p: f"{p['queries']['batch']['queries_per_s']:,.0f}"),
        (
            "the same with a filter (a tenth)",
            lambda p: f"{p['queries']['batch, filter: a tenth']['queries_per_s']:,.0f}",
        ),
        ("recall@10 of the default search", lambda p: f"{p['queries']['recall']:.4f}"),
    ]
    heads = [f"{part['build']['sets']:,} sets, {COLUMNS[name]}" for name, part in zip(COLUMNS, parts, strict=True)]
    return markdown_table(["", *heads], [[title, *map(value, parts)] for title, value in lines])


def during_add_table(result: dict[str, Any]) -> str:
    """Return the table of single queries without and during an add, with a sentence about it."""
    rows = []
    for name in ("another process", "the same process"):
        found = result[name]
        for what, times in (("no add", found["without"]), (f"an add in {name}", found["during"])):
            ratio = "" if times is found["without"] else f"{found['p99_ratio']:.2f} x"
            rows.append([what, *(format_time(times[key]) for key in ("p50_us", "p99_us", "max_us")), ratio])
    seconds = [result[name]["add_seconds"] for name in ("another process", "the same process")]
    return (
        f"Single queries of an index of {result['sets']:,} sets (D = 1024) while {result['added']:,} sets are added in "
        f"one call, which takes {seconds[0]:.0f} s in another process and {seconds[1]:.0f} s in the same one. Searches "
        "and the add have one thread each.\n\n"
        + markdown_table(["during", "p50", "p99", "max", "p99 relative to no add"], rows)
    )


def filled(page: str, results: dict[str, Any]) -> str:
    """Return the page with the text between its markers made from the results."""
    about, small = results["machine"], results["mnist"]["small adds, sets/s"]
    intro = (
        f"`make bench-index`, {about['threads']} threads, {about['cpu']} ({about['kernel']}), SQLite "
        f"{about['sqlite']},\n{about['date']}, on a shared machine; {about['data']}, and MNIST under 17 affine maps.\n"
        f"One set per call, each on disk before the next: {small['1 a call']:,.0f} per second; a thousand per call: "
        f"{small['1000 a call']:,.0f}."
    )
    parts = ["<!-- measured -->", intro, collections_table(results)]
    if concurrent_search.NAME in results:
        parts.append(during_add_table(results[concurrent_search.NAME]))
    return MARKED.sub(lambda _: "\n\n".join([*parts, "<!-- / -->"]), page)


def main() -> None:
    """Store the given results, if any, and rewrite the page."""
    if len(sys.argv) > 1:
        RESULTS.write_text(Path(sys.argv[1]).read_text(encoding="utf-8"), encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
