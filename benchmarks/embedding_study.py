"""Measure which embedding finds the right neighbours, on ten kinds of labelled sets: what docs/defaults.md recommends.

    .venv/bin/python benchmarks/embedding_study.py FOLDER [--only digits ...] [--redraw]

FOLDER holds the unpacked packages that study_data.py names; data sets whose files are missing are left out, with a
reason. The neighbours are exact. The queries are split into two halves: the best embedding is chosen on one, and every
figure that is shown is of the other. No embedding sees labels. The run writes docs/results/embeddings.json and the
tables of docs/defaults.md between the markers; with `--only` it measures those data sets again, and keeps the others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import ROOT, cpu
from markdown_tables import markdown_table
from slosh.embed import DistanceField, FSPool, GeM, LocalShape, MeanPool, SlicedWasserstein, Whitened
from slosh.embed.base import SetTransformer
from slosh.evaluate import vote_accuracy
from slosh.native import kernel
from slosh.search import ExactSearch
from study_data import LOADERS, Absent, Case

K = 4
RESULTS, PAGE = ROOT / "docs" / "results" / "embeddings.json", ROOT / "docs" / "defaults.md"


def local() -> SetTransformer:
    """Return the sliced embedding of elements that know their neighbourhood."""
    return LocalShape(SlicedWasserstein())


METHODS: dict[str, Callable[[], SetTransformer]] = {
    "sliced": SlicedWasserstein,
    "sliced, whitened": Whitened,
    "sliced, whitened, power 0.2": lambda: Whitened(power=0.2),
    "field": DistanceField,
    "field, whitened": lambda: Whitened(DistanceField()),
    "sliced + field, whitened": lambda: Whitened([SlicedWasserstein(), DistanceField()]),
    "sliced + field, whitened, power 0.2": lambda: Whitened([SlicedWasserstein(), DistanceField()], power=0.2),
    "mean": MeanPool,
    "mean, whitened": lambda: Whitened(MeanPool(), power=0.35, normalize=True),
    "GeM(p=2)": lambda: GeM(p=2),
    "FSPool": FSPool,
    "FSPool, whitened": lambda: Whitened(FSPool(), power=0.35, normalize=True),
}
SHAPES: dict[str, Callable[[], SetTransformer]] = {
    "local": local,
    "local, whitened": lambda: Whitened(local()),
    "sliced + local, whitened": lambda: Whitened([SlicedWasserstein(), local()]),
    "sliced + field + local, whitened": lambda: Whitened([SlicedWasserstein(), DistanceField(), local()]),
}
"""For sets of two or three dimensions."""


def neighbours(case: Case, model: SetTransformer) -> NDArray[Any]:
    """Return the labels of the K nearest stored sets of each query, the query itself left out."""
    search = ExactSearch()
    search.add(model.fit(case.stored).index_vectors(case.stored)[0])
    rows = search.search(model.index_vectors(case.asked)[0], K + 1).rows
    if case.own is not None:
        # The query may be behind equals of it, or even behind all that were found.
        self_last = np.argsort(rows == case.own[:, None], axis=1, kind="stable")
        rows = np.take_along_axis(rows, self_last, axis=1)
    return case.labels[rows[:, :K]]


def score(case: Case, found: NDArray[Any], plain: NDArray[Any]) -> dict[str, Any]:
    """Return precision and vote of each half of the queries; of the second also errors, and the gain over `plain`."""
    right, before = ((labels == case.wanted[:, None]).mean(axis=1) for labels in (found, plain))
    halves = {name: slice(start, None, 2) for start, name in enumerate(("chosen_on", "reported"))}
    result = {}
    for name, half in halves.items():
        gain = right[half] - before[half]
        numbers = {
            "precision": right[half].mean(),
            "error": right[half].std(ddof=1) / np.sqrt(len(gain)),
            "vote": vote_accuracy(found[half], case.wanted[half]),
            "gain": gain.mean(),
            "gain_error": gain.std(ddof=1) / np.sqrt(len(gain)),
        }
        result[name] = {key: round(float(value), 4) for key, value in numbers.items()}
    return result


def measure(case: Case) -> dict[str, Any]:
    """Return the facts of a case, and the scores of all methods that it suits."""
    facts = {
        "data": case.title,
        "dim": case.stored.dim,
        "sets": len(case.stored),
        "elements": int(np.median(case.stored.sizes)),
        "queries": len(case.asked),
        "labels": len(np.unique(case.wanted)),
    }
    scores: dict[str, Any] = {}
    plain = None
    for name, make in {**METHODS, **(SHAPES if case.stored.dim in (2, 3) else {})}.items():
        found = neighbours(case, make())
        plain = found if plain is None else plain
        scores[name] = score(case, found, plain)
        print(f"  {name}: {scores[name]['reported']}", flush=True)
    return {**facts, "scores": scores}


def chosen(one: dict[str, Any]) -> str:
    """Return the method that has the highest precision on the first half of the queries."""
    return max(one["scores"], key=lambda name: one["scores"][name]["chosen_on"]["precision"])


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by marker."""
    cases = result["cases"]
    facts = ("dim", "elements", "sets", "queries", "labels")
    lines = [(name, one["data"], *(f"{one[fact]:,}" for fact in facts)) for name, one in cases.items()]
    head = ("name", "data", "d", "elements (median)", "sets", "queries", "labels")
    made = {"embedding data": markdown_table(head, lines)}
    names = [*METHODS, *SHAPES]
    for marker, head, cell in (
        ("embedding precision", "precision@4", lambda each: f"{each['precision']:.3f}"),
        ("embedding vote", "vote", lambda each: f"{each['vote']:.3f}"),
        ("embedding gain", "gain over sliced", lambda each: f"{each['gain']:+.3f} ± {each['gain_error']:.3f}"),
    ):
        rows = []
        for name in names[1:] if head.startswith("gain") else names:
            row = [name]
            for one in cases.values():
                text = cell(one["scores"][name]["reported"]) if name in one["scores"] else ""
                row.append(f"**{text}**" if name == chosen(one) else text)
            rows.append(row)
        made[marker] = markdown_table([head, *cases], rows)
    return {**made, "embedding summary": summary(cases)}


def summary(cases: dict[str, Any]) -> str:
    """Return a table of what each method would do if it were taken for all data sets, or chosen for each by labels."""
    ways = {name: dict.fromkeys(cases, name) for name in METHODS}
    ways["chosen by labels, for each data set"] = {case: chosen(one) for case, one in cases.items()}
    rows = []
    for way, methods in ways.items():
        first, second = (
            {case: cases[case]["scores"][name][half] for case, name in methods.items()}
            for half in ("chosen_on", "reported")
        )
        worst = min(second, key=lambda case: second[case]["gain"])
        gains = [np.mean([each["gain"] for each in half.values()]) for half in (first, second)]
        lost = sum(each["gain"] < -2 * each["gain_error"] for each in second.values())
        last = second[worst]
        least = f"{last['gain']:+.3f} ± {last['gain_error']:.3f} ({worst})"
        rows.append((way, *(f"{gain:+.3f}" for gain in gains), lost, least))
    head = ("the same for all", "mean gain, first half", "mean gain, second half", "clear losses", "smallest gain")
    return markdown_table(head, [row for row in rows if row[0] != "sliced"])


def filled(text: str, result: dict[str, Any]) -> str:
    """Return the page with its tables."""
    for name, new in tables(result).items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n\n{new}\n\n<!-- / -->{rest.partition('<!-- / -->')[2]}"
    return text


def main() -> None:
    """Measure, or read the earlier results, and write the tables of the page."""
    parser = argparse.ArgumentParser(description="Measure which embedding finds the right neighbours.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "packages", help="the unpacked packages")
    parser.add_argument("--only", nargs="+", choices=LOADERS, help="measure these, keep the others as they were")
    parser.add_argument("--redraw", action="store_true", help="only rewrite the tables from the JSON")
    options = parser.parse_args()
    earlier = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    result = {"machine": f"{cpu()}, kernel {kernel.name()}", "k": K, "cases": earlier.get("cases", {})}
    for name in () if options.redraw else options.only or LOADERS:
        print(name, flush=True)
        try:
            result["cases"][name] = measure(LOADERS[name](options.folder))
        except Absent as reason:
            print(f"  left out: {reason}")
            continue
        result["cases"] = {key: result["cases"][key] for key in LOADERS if key in result["cases"]}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
