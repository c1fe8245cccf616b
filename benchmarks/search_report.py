"""Write the tables of docs/benchmarks-search.md from the results of `make bench-search`, and draw its figure.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import ROOT
from markdown_tables import markdown_table

RESULTS, PAGE = ROOT / "docs" / "results" / "search.json", ROOT / "docs" / "benchmarks-search.md"
FLAT = "FAISS flat"
GOALS_VNNI = {0.9: 1.2, 0.95: 1.5, 0.99: 2.0, 1.0: 1.5}
"""How many times the queries per second of the best peer are the goal, at each asked recall."""
GOAL_OTHERWISE = 1.2
SINGLE_ALLOWANCE_US = 15
"""What a single query may cost above its part of a batch."""
RECALLS = (0.9, 0.95, 0.99)
SIMD_NAMES = {"native": "with all instructions of the processor", "avx2": "held to AVX2"}
LOWEST_KEPT_RECALL = 0.85
NOT_YET = "Not measured yet."


def number(value: float) -> str:
    """Format a number with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cells_of(results: dict[str, Any], simd: str) -> dict[str, Any]:
    """Return the measured cells, the small ones first."""
    cells = results["simd"].get(simd, {"cells": {}})["cells"]
    return dict(sorted(cells.items(), key=lambda item: (item[1]["rows"], item[0][0], item[1]["dim"])))


def goal(machine: dict[str, Any], asked: float) -> float:
    """Return the ratio that is the goal at an asked recall."""
    return GOALS_VNNI[asked] if machine["vnni"] else GOAL_OTHERWISE


def eligible(cell: dict[str, Any], asked: float) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (build, LadderSearch, peer) of the duels with peers that reach the recall that LadderSearch reached.

    FAISS's scan always counts, though its batches round; it is all that exact search is compared with.
    """
    for name, duel in cell.get("duels", {}).items():
        own = next(row for row in duel["ladder"] if row["asked"] == asked)
        for row in duel["levels"]:
            if name == FLAT or (asked < 1 and row["recall"] >= own["recall"]):
                yield name, own, row


def verdicts(cell: dict[str, Any], machine: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each asked recall how LadderSearch compares with the best peer, by batches and by single queries."""
    found = []
    for asked in (*RECALLS, 1.0):
        met = list(eligible(cell, asked))
        if not met:
            continue
        name, own, peer = min(met, key=lambda duel: duel[1]["qps"] / duel[2]["qps"])
        ratio = own["qps"] / peer["qps"]
        least = goal(machine, asked)
        short = asked < 1 and own["recall"] < asked
        single_name, single_own, single_peer = max(met, key=lambda duel: duel[1]["p50_us"] / duel[2]["p50_us"])
        most = min(single_peer["p50_us"], 1e6 / single_own["qps"] + SINGLE_ALLOWANCE_US)
        found.append({
            "asked": asked, "recall": own["recall"], "qps": own["qps"], "peer": f"{name}, {peer['level']}",
            "peer_recall": peer["recall"], "peer_qps": peer["qps"], "peer_bytes": peer["bytes_per_set"],
            "asked_qps": max([row["qps"] for result in cell.get("peers", {}).values()
                              for row in result.get("levels", []) if row["recall"] >= asked], default=None),
            "ratio": ratio, "goal": least, "reached": ratio >= least and not short, "short": short,
            "p50_us": single_own["p50_us"], "single_peer": f"{single_name}, {single_peer['level']}",
            "single_peer_us": single_peer["p50_us"], "part_us": 1e6 / single_own["qps"],
            "single_reached": single_own["p50_us"] <= most,
        })  # fmt: skip
    return found


def word(reached: bool, ahead: bool = True) -> str:
    """Say whether a goal was reached; what is not is lost, or ahead by less than the goal."""
    return "yes" if reached else "**no**, but ahead" if ahead else "**lost**"


# -- tables ------------------------------------------------------------------------------------------------------------


def batch_table(cells: dict[str, Any], machine: dict[str, Any]) -> str:
    """Return a table with a line for each cell and recall: LadderSearch, the best peer, their ratio, the goal."""
    heads = ["cell", "asked", "recall@10", "queries/s", "bytes per set", "best peer at no less recall", "recall@10",
             "queries/s", "bytes per set", "ratio", "goal", "reached", "best peer at the asked recall"]  # fmt: skip
    rows = []
    for name, cell in cells.items():
        for row in verdicts(cell, machine):
            asked = "exact" if row["asked"] == 1 else f"{row['asked']:g}"
            verdict = "**lost**: below the asked recall" if row["short"] else word(row["reached"], row["ratio"] >= 1)
            rows.append([
                name, asked, f"{row['recall']:.4f}", number(row["qps"]),
                number(cell["ladder"]["LadderSearch"]["bytes_per_set"]), row["peer"], f"{row['peer_recall']:.4f}",
                number(row["peer_qps"]), number(row["peer_bytes"]), f"{row['ratio']:.2f} x", f"{row['goal']:g} x",
                verdict, number(row["asked_qps"]) if row["asked_qps"] and row["asked"] < 1 else "",
            ])  # fmt: skip
    return markdown_table(heads, rows) if rows else NOT_YET


def single_table(cells: dict[str, Any], machine: dict[str, Any]) -> str:
    """Return a table of the median latency of one query at a time."""
    heads = ["cell", "asked", "single query, us", "part of a batch, us", "fastest peer at no less recall", "its us",
             "reached"]  # fmt: skip
    rows = []
    for name, cell in cells.items():
        for row in verdicts(cell, machine):
            asked = "exact" if row["asked"] == 1 else f"{row['asked']:g}"
            ahead = row["p50_us"] <= row["single_peer_us"]
            rows.append([name, asked, number(row["p50_us"]), number(row["part_us"]), row["single_peer"],
                         number(row["single_peer_us"]), word(row["single_reached"], ahead)])  # fmt: skip
    return markdown_table(heads, rows) if rows else NOT_YET


def build_table(cells: dict[str, Any]) -> str:
    """Return a table of CPU seconds to build, beside FAISS's inverted lists and the peer that is best at .99."""
    heads = ["cell", "LadderSearch, s", "FAISS inverted lists", "s", "best peer at .99", "s", "reached"]
    rows = []
    for name, cell in cells.items():
        met = list(eligible(cell, 0.99))
        lists = [
            (row["qps"], build) for build, duel in cell.get("duels", {}).items() for row in duel["levels"]
            if re.fullmatch(r"FAISS IVF\d+ flat", build) and row["recall"] >= 0.99
        ]  # fmt: skip
        if not lists:
            continue
        best = min(met, key=lambda duel: duel[1]["qps"] / duel[2]["qps"])[0]
        seconds = {build: cell["duels"][build]["build_s"] for build in (max(lists)[1], best)}
        own = cell["ladder"]["LadderSearch"]["build_s"]
        ahead = own <= seconds[max(lists)[1]]
        rows.append([name, f"{own:,.1f}", max(lists)[1], f"{seconds[max(lists)[1]]:,.1f}", best,
                     f"{seconds[best]:,.1f}", word(ahead, ahead)])  # fmt: skip
    return markdown_table(heads, rows) if rows else NOT_YET


def filter_table(cells: dict[str, Any]) -> str:
    """Return a table of filtered searches beside FAISS's scan of the rows that are left."""
    heads = ["cell", "rows kept", "recall@10", "queries/s", "picked and scanned, queries/s", "ratio",
             "scanned only, queries/s",
             "single query, us", "picked and scanned, us", "scanned only, us", "ahead"]  # fmt: skip
    rows = []
    for name, cell in cells.items():
        for part, row in sorted(cell.get("filters", {}).items(), key=lambda item: -float(item[0])):
            own, scan, picked = row["ladder"], row["scan"], row["picked"]
            ahead = own["qps"] >= picked["qps"] and own["p50_us"] <= picked["p50_us"]
            rows.append([name, f"{row['rows']:,} ({float(part):.1%})", f"{row['recall']:.4f}", number(own["qps"]),
                         number(picked["qps"]), f"{own['qps'] / picked['qps']:.2f} x", number(scan["qps"]),
                         number(own["p50_us"]), number(picked["p50_us"]), number(scan["p50_us"]),
                         word(ahead, ahead)])  # fmt: skip
    return markdown_table(heads, rows) if rows else NOT_YET


def certified_table(cells: dict[str, Any]) -> str:
    """Return a table of certified search beside FAISS's scan of the vectors."""
    heads = ["cell", "recall@10", "queries/s", "bytes per set", f"{FLAT}, queries/s", "ratio", "ahead"]
    rows = []
    for name, cell in cells.items():
        for row in cell.get("certified", {}).values():
            ratio = row["own"]["qps"] / row["scan"]["qps"]
            rows.append([name, f"{row['recall']:.4f}", number(row["own"]["qps"]), number(row["bytes_per_set"]),
                         number(row["scan"]["qps"]), f"{ratio:.2f} x", word(ratio >= 1, ratio >= 1)])  # fmt: skip
    return markdown_table(heads, rows) if rows else NOT_YET


def size_free(build: str) -> str:
    """Return the name of a build without its number of lists or links, or its precision."""
    return re.sub(r"(IVF)\d+|( M\d+| \d+| f\d+)$", r"\1", build)


def family(build: str) -> str:
    """Return the kind of index of a build, without any of its numbers."""
    return re.sub(r"(PCA|PQ)\d+", r"\1", size_free(build))


def peers_table(cell: dict[str, Any]) -> str:
    """Return a table of the best setting of every kind of peer at several recalls, as swept."""
    heads = ["", *(f"recall {recall:g}" for recall in RECALLS), "best build at .99", "bytes per set", "build, s"]
    kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    skipped: dict[str, list[str]] = {}
    for name, result in cell.get("peers", {}).items():
        if "skipped" in result:
            skipped.setdefault(result["skipped"], []).append(name)
            continue
        kinds.setdefault(family(name), []).extend((name, row) for row in result["levels"])
    rows = []
    for kind, levels in kinds.items():
        best = {}
        for recall in RECALLS:
            good = [(row["qps"], name, row) for name, row in levels if row["recall"] >= recall]
            best[recall] = max(good, key=lambda item: item[0]) if good else None
        speeds = [number(found[0]) if found else "" for found in best.values()]
        last = best[0.99]
        about = ["", "", ""]
        if last:
            about = [f"{last[1]}, {last[2]['level']}", number(last[2]["bytes_per_set"]),
                     f"{cell['peers'][last[1]]['build_s']:,.1f}"]  # fmt: skip
        rows.append([kind, *speeds, *about])
    notes = [f"- Skipped: {', '.join(names)}. {reason[:1].upper() + reason[1:]}." for reason, names in skipped.items()]
    return "\n\n".join([markdown_table(heads, rows), *(["\n".join(notes)] if notes else [])])


def setup(results: dict[str, Any]) -> str:
    """Describe the machine and when it was measured, and say whether it was busy with other work."""
    parts = []
    for simd, part in results["simd"].items():
        machine, cells = part["machine"], part["cells"].values()
        met = [duel for cell in cells for duel in cell.get("duels", {}).values()]
        if not met:
            continue
        dates = [duel["date"] for duel in met]
        waits = statistics.median(row["qps"] / row["wall_qps"] for duel in met for row in duel["levels"])
        libraries = ", ".join(f"{name} {machine[name]}" for name in ("hnswlib", "usearch", "scann") if machine[name])
        parts.append(
            f"{SIMD_NAMES[simd].capitalize()}: {machine['cpu']}, {machine['cores']} cores, one thread; kernel "
            f"{machine['kernel']}, FAISS {machine['faiss']} ({machine['faiss_simd']}), {libraries}, NumPy "
            f"{machine['numpy']}, Python {machine['python']}; {min(dates)} to {max(dates)}. The best wall-clock times "
            f"are {waits:.2f} times the CPU times in the median; more than 1 means that other programs were running."
        )
    return "\n\n".join(parts) if parts else NOT_YET


def texts_by_marker(results: dict[str, Any]) -> dict[str, str]:
    """Return the text for each marker of the page."""
    texts = {"setting": setup(results)}
    for simd in SIMD_NAMES:
        cells = cells_of(results, simd)
        machine = results["simd"].get(simd, {}).get("machine", {})
        texts |= {f"batches {simd}": batch_table(cells, machine), f"single {simd}": single_table(cells, machine)}
    cells = cells_of(results, "native")
    texts |= {"build": build_table(cells), "filters": filter_table(cells), "certified": certified_table(cells)}
    swept = [f"{name}: {cell['rows']:,} sets, D = {cell['dim']}\n\n{peers_table(cell)}"
             for name, cell in cells.items() if "peers" in cell]  # fmt: skip
    return {**texts, "peers": "\n\n".join(swept) or NOT_YET}


def filled(page: str, results: dict[str, Any]) -> str:
    """Return the page with the text between its markers made from the results."""
    for name, text in texts_by_marker(results).items():
        place = re.compile(rf"<!-- {name} -->\n.*?<!-- / -->", re.DOTALL)
        page, n = place.subn(lambda _, name=name, text=text: f"<!-- {name} -->\n\n{text}\n\n<!-- / -->", page)
        if n != 1:
            raise ValueError(f"the page has {n} markers {name!r} instead of one")
    return page


def print_cell(results: dict[str, Any], simd: str, name: str) -> None:
    """Print the tables of one cell."""
    part = results["simd"][simd]
    cells = {name: part["cells"][name]}
    tables = [batch_table(cells, part["machine"]), single_table(cells, part["machine"]), build_table(cells),
              filter_table(cells), certified_table(cells)]  # fmt: skip
    print("\n\n".join(table for table in tables if table != NOT_YET), flush=True)


def thinned(results: dict[str, Any]) -> dict[str, Any]:
    """Return results without those settings of peers that another of their kind beats, and those of low recall."""
    for part in results["simd"].values():
        for cell in part["cells"].values():
            swept = cell.get("peers", {})
            kinds: dict[str, list[dict[str, Any]]] = {}
            for name, result in swept.items():
                kinds.setdefault(family(name), []).extend(result.get("levels", []))
            for name, result in swept.items():
                if "levels" in result:
                    rivals = kinds[family(name)]
                    result["levels"] = [
                        row for row in result["levels"] if row["recall"] >= LOWEST_KEPT_RECALL
                        and not any(one["qps"] > row["qps"] and one["recall"] >= row["recall"] for one in rivals)
                    ]  # fmt: skip
    return results


def main() -> None:
    """Store the given results, if any, rewrite the page, and draw the figure."""
    if len(sys.argv) > 1:
        given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        if given["quick"]:
            raise SystemExit(f"{sys.argv[1]} is from a quick run, whose numbers are meaningless")
        RESULTS.write_text(json.dumps(thinned(given), separators=(",", ":")) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "docs" / "draw_search.py")], check=True)
    print(f"written: {RESULTS}, {PAGE}, docs/search_curves.png")


if __name__ == "__main__":
    main()
