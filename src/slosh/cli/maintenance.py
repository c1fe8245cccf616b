"""Commands that inspect and maintain an index: show, info, remove, tune, verify, compact, export and copy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Argument, Option

from ..data.text import format_bytes
from ..engines.base import Records
from ..index.set_index import SetIndex
from .draw import MAX_LINES, Panel, check_drawable, draw
from .messages import CommandError, UsageError
from .options import (
    AsJson,
    Flip,
    IndexPath,
    Where,
    check_free,
    display_path,
    open_index,
    parse_where,
    remark_unknown_fields,
)
from .output import flush, format_cell, metadata_columns, pluralize, say, say_facts, say_json, say_result, say_table
from .process import FAILED

SHOWN_FEATURES = 8
"""Features whose range is shown."""
LINE_SETS = 6
"""Sets drawn beside each other."""

Ids = Annotated[list[str] | None, Argument(metavar="ID", help="Ids in the index.")]


def show(
    index: IndexPath,
    id: Ids = None,
    *,
    where: Where = None,
    limit: Annotated[int, Option(min=1, help="Number of sets to list without an ID.")] = 20,
    plot: Annotated[Path | None, Option(metavar="PNG", help="Draw the sets, in 2-D or 3-D.")] = None,
    flip: Flip = False,
    json: AsJson = False,
) -> None:
    """Show stored sets: metadata, number of points, and where they lie. Without an ID, list the first ones.

    With --json there is one line for each set.

        slosh show shapes.slosh
        slosh show shapes.slosh --where "folder = chair" --limit 5
        slosh show shapes.slosh chair_1.ply --plot chair.png
    """
    if id and where is not None:
        raise UsageError("--where is for lists: leave the ids out")
    node = parse_where(where)
    with open_index(index) as opened:
        if plot is not None:
            check_drawable(opened.dim)
        matching = list(id) if id else opened.select(node)
        names = matching if id else matching[:limit]
        if not names:
            remark_unknown_fields(opened, node)
        found: Any = opened.get(names)
        if id or json:
            for i in range(len(names)):
                _show_one(opened, found, i, json)
        else:
            _list(found, len(matching))
    if plot is not None:
        if not names:
            raise UsageError("there is nothing to draw")
        panels = [Panel(found.sets[i : i + 1], name) for i, name in enumerate(names)]
        lines = [panels[i : i + LINE_SETS] for i in range(0, len(panels), LINE_SETS)]
        draw(lines[:MAX_LINES], plot, one_scale=False, flip=flip, queries=False)
        if not json:
            say(f"drawn in {plot}")


def _list(found: Records, n_matching: int) -> None:
    if found.ids:
        keys, values = metadata_columns(found.metadata)
        lines = [[name, n, *value] for name, n, value in zip(found.ids, found.sets.sizes, values, strict=True)]
        say_table(["id", "points", *keys], lines, ["points"])
    first = f"the first {len(found.ids):,} of " * (len(found.ids) < n_matching)
    say(f"{first}{pluralize(n_matching, 'set')}")


def _show_one(index: SetIndex, found: Records, i: int, json: bool) -> None:
    points = found.sets[i].astype(np.float64)
    if index.origin is not None:
        points += index.origin
    weights = found.sets.weights_of(i)
    low, high = points.min(axis=0), points.max(axis=0)
    mean = np.average(points, axis=0, weights=weights)
    if json:
        about = {"id": found.ids[i], "points": len(points), "weighted": weights is not None}
        say_json(about | {"min": low, "max": high, "mean": mean, "metadata": found.metadata[i]})
        return
    if i:
        say()
    size = f"{len(points):,}, d = {points.shape[1]}{', weighted' * (weights is not None)}"
    metadata = {f"metadata {key}": value for key, value in found.metadata[i].items()}
    say_facts({"id": found.ids[i], "points": size, **metadata})
    say()
    lines = [[f"x{j}", *map(float, (low[j], mean[j], high[j]))] for j in range(min(SHOWN_FEATURES, len(low)))]
    say_table(["feature", "min", "mean", "max"], lines, ["min", "mean", "max"])
    if len(low) > SHOWN_FEATURES:
        say(f"and {len(low) - SHOWN_FEATURES} more features: --json has all")


def remove(
    index: IndexPath,
    id: Ids = None,
    *,
    where: Where = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: AsJson = False,
) -> None:
    """Remove sets, by id or by their metadata.

    An unknown id is an error, and nothing is removed. `slosh compact` reclaims the space.

        slosh remove shapes.slosh chair_1.ply chair_2.ply
        slosh remove shapes.slosh --where "folder = chair" --yes
    """
    if bool(id) == (where is not None):
        raise UsageError("give ids, or --where with a filter, and not both")
    node = parse_where(where)
    with open_index(index, write=True) as changed:
        names = list(dict.fromkeys(id)) if id else changed.select(node)
        if not names:
            remark_unknown_fields(changed, node)
        if not id and names and not yes:
            _confirm(f"remove {pluralize(len(names), 'set')} of {len(changed):,} ({', '.join(names[:3])}, ...)?")
        changed.remove(names)
        left = len(changed)
    document = {"index": str(index), "removed": len(names), "sets": left}
    say_result(json, document, f"removed {pluralize(len(names), 'set')}; {left:,} are left")


def _confirm(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Add --yes")
    flush()
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was removed")


def info(index: IndexPath, *, json: AsJson = False) -> None:
    """Show what an index holds, how it was made, and how much disk and memory it takes."""
    with open_index(index) as opened:
        about, path = opened.info(), display_path(opened)
    if json:
        say_json(about)
        return
    sizes = about["sizes"]
    facts: dict[str, Any] = {
        "index": path,
        "sets": f"{about['sets']:,}",
        "points": f"{about['points']:,}" + (f", {sizes['smallest']:,} to {sizes['largest']:,} a set" if sizes else ""),
        "dimension": about["dim"],
        "weights": {None: "not decided", True: "yes", False: "no"}[about["weighted"]],
        "embedding": f"{about['embedding']}, {about['vector_length']:,} numbers a set",
        "search": about["search"],
        "preprocessing": about["preprocess"],
        "origin": about["origin"],
        "recall": "not tuned" if about["recall"] is None else about["recall"],
        "on disk": _sizes(about["disk_bytes"]),
    }
    if "memory_bytes" in about:
        facts["in memory"] = _sizes(about["memory_bytes"])
    if about["removed_since_compact"]:
        facts["removed"] = f"{about['removed_since_compact']:,} since the last slosh compact"
    if about["cache_rebuilt"]:
        facts["cache"] = f"rebuilt: {about['cache_rebuilt']}"
    say_facts({name: fact for name, fact in facts.items() if fact is not None})


def _sizes(parts: dict[str, int]) -> str:
    listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    return f"{format_bytes(sum(parts.values()))} ({listed})"


def tune(
    index: IndexPath,
    *,
    recall: Annotated[float, Option(min=0.0, max=1.0, help="Fraction of the true nearest neighbours to find.")] = 0.99,
    k: Annotated[int, Option("-k", "--k", min=1, help="Number of neighbours that searches ask for.")] = 10,
    json: AsJson = False,
) -> None:
    """Measure what it takes to reach a recall for the k nearest, and make that the default of all searches."""
    with open_index(index, write=True) as changed:
        tuned = changed.tune(recall, k)
    say_result(json, tuned._asdict(), str(tuned))


def verify(
    index: IndexPath,
    *,
    sample: Annotated[int | None, Option(min=1, help="Embed only this many sets again; all by default.")] = None,
    json: AsJson = False,
) -> None:
    """Check an index: every byte of the points, every vector, all metadata, and the recall.

    The exit code is 1 if there is a problem.
    """
    with open_index(index) as opened:
        report = opened.verify(sample)
    if json:
        say_json({"ok": report.ok, "problems": report.problems, "checked": report.checked})
    else:
        say_facts({name: format_cell(what) for name, what in report.checked.items()})
        for problem in report.problems:
            say(f"PROBLEM: {problem}")
        say(f"{index} is {'intact' if report.ok else 'damaged'}")
    if not report.ok:
        raise typer.Exit(FAILED)


def compact(index: IndexPath, *, json: AsJson = False) -> None:
    """Reclaim the space of removed sets and retrain. The result equals an index built from scratch in id order."""
    with open_index(index, write=True) as changed:
        before = sum(changed.info()["disk_bytes"].values())
        changed.compact()
    with open_index(index) as changed:
        after, n = sum(changed.info()["disk_bytes"].values()), len(changed)
    document = {"index": str(index), "sets": n, "bytes_before": before, "bytes": after}
    text = f"{index}: {pluralize(n, 'set')}, {format_bytes(before)} before, {format_bytes(after)} now"
    say_result(json, document, text)


def export(
    index: IndexPath,
    out: Annotated[Path, Argument(metavar="OUT.parquet", help="The file to write.")],
    *,
    json: AsJson = False,
) -> None:
    """Write all sets, ids and metadata to a Parquet file for other programs; `slosh build` reads it back."""
    if out.suffix.lower() not in ("", ".parquet"):
        raise UsageError(f"{out}: the format is Parquet, not {out.suffix}: name the file {out.with_suffix('.parquet')}")
    with open_index(index) as opened:
        n = opened.export(out)
    say_result(json, {"index": str(index), "file": str(out), "sets": n}, f"wrote {pluralize(n, 'set')} to {out}")


def copy(
    source: Annotated[Path, Argument(metavar="SOURCE", help="The index to copy.")],
    target: Annotated[Path, Argument(metavar="TARGET", help="Where the copy is made.")],
    *,
    json: AsJson = False,
) -> None:
    """Copy an index to another place, with ids, metadata, weights and everything that it is made of.

    The copy is written in the format of this version of slosh. The source is only read, and may be in use.

        slosh copy shapes.slosh backup/shapes.slosh
    """
    check_free(target)
    with open_index(source) as opened:
        n = opened.copy_to(target)
    document = {"index": str(source), "copy": str(target), "sets": n}
    say_result(json, document, f"copied {pluralize(n, 'set')} to {target}")


COMMANDS = (show, info, remove, tune, verify, compact, export, copy)
