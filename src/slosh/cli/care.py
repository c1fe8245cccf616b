"""`slosh show`, `remove`, `info`, `tune`, `verify`, `compact`, `export`: an index is looked at, and kept in order."""

from __future__ import annotations

import errno
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..index.records import Records
from ..index.set_index import SetIndex
from .draw import MOST_ROWS, Panel, check_drawable, draw
from .find import Flip
from .options import AsJson, IndexPath, Where, filter_of, opened, path_of, say_unknown_fields
from .output import cell, counted, flush, in_bytes, metadata_columns, say, say_facts, say_json, say_table
from .running import FAILED, Failed, WrongUse

FEATURES = 8
"""Features whose range is shown."""
A_LINE = 6
"""Sets drawn beside each other."""

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids in the index.", show_default=False),
]


def show(
    index: IndexPath,
    id: Ids = None,
    *,
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Without an ID: how many are listed.")] = 20,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Draw the sets; points in 2-D or 3-D."),
    ] = None,
    flip: Flip = False,
    json: AsJson = False,
) -> None:
    """Show stored sets: metadata, number of points, where they lie. Without an ID, list the first ones.

    With --json there is one line for each set.

        slosh show shapes.slosh
        slosh show shapes.slosh --where "folder = chair" --limit 5
        slosh show shapes.slosh chair_1.ply --plot chair.png
    """
    if id and where is not None:
        raise WrongUse("--where is for lists: leave the ids out")
    node = filter_of(where)
    with opened(index) as found_in:
        if plot is not None:
            check_drawable(found_in.dim)
        if id:
            names, n = list(id), len(id)
        else:
            every = found_in.select(node)
            names, n = every[:limit], len(every)
            if not n:
                say_unknown_fields(found_in, node)
        found = found_in.get(names)
        assert isinstance(found, Records)
        if id or json:
            for i in range(len(names)):
                _one_set(found_in, found, i, json)
        elif names:
            keys, values = metadata_columns(found.metadata)
            lines = [[name, size, *value] for name, size, value in zip(names, found.sets.sizes, values, strict=True)]
            say_table(["id", "points", *keys], lines, ["points"])
        if not id and not json:
            say(f"{f'the first {len(names):,} of ' * (len(names) < n)}{counted(n, 'set')}")
        if plot is not None:
            if not names:
                raise WrongUse("there is nothing to draw")
            panels = [Panel(found.sets[i], found.sets.weights_of(i), name) for i, name in enumerate(names)]
            lines_ = [panels[i : i + A_LINE] for i in range(0, len(panels), A_LINE)][:MOST_ROWS]
            draw(lines_, plot, one_scale=False, flip=flip, queries=False)
            if not json:
                say(f"drawn in {plot}")


def _one_set(index: SetIndex, found: Records, i: int, json: bool) -> None:
    points = found.sets[i].astype(np.float64)
    if index.origin is not None:
        points += index.origin
    weights = found.sets.weights_of(i)
    low, high = points.min(axis=0), points.max(axis=0)
    mean = np.average(points, axis=0, weights=weights)
    if json:
        box = {"min": low, "max": high, "mean": mean}
        about = {"id": found.ids[i], "points": len(points), "weighted": weights is not None, **box}
        say_json(about | {"metadata": found.metadata[i]})
        return
    if i:
        say()
    say_facts(
        {
            "id": found.ids[i],
            "points": f"{len(points):,}, d = {points.shape[1]}{', weighted' * (weights is not None)}",
            **{f"metadata {key}": value for key, value in found.metadata[i].items()},
        }
    )
    say()
    lines = [[f"x{j}", *map(float, (low[j], mean[j], high[j]))] for j in range(min(FEATURES, len(low)))]
    say_table(["feature", "min", "mean", "max"], lines, ["min", "mean", "max"])
    if len(low) > FEATURES:
        say(f"and {len(low) - FEATURES} more features: --json has all")


def remove(
    index: IndexPath,
    id: Ids = None,
    *,
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: AsJson = False,
) -> None:
    """Remove sets, by id or by what their metadata say.

    An id that is not there is an error, and nothing is removed. `slosh compact` gives the space back.

        slosh remove shapes.slosh chair_1.ply chair_2.ply
        slosh remove shapes.slosh --where "folder = chair" --yes
    """
    if bool(id) == (where is not None):
        raise WrongUse("give ids, or --where with a filter, and not both")
    node = filter_of(where)
    with opened(index, to_change=True) as changed:
        names = list(dict.fromkeys(id)) if id else changed.select(node)
        if not names:
            say_unknown_fields(changed, node)
        if not id and names and not yes:
            asking = f"remove {counted(len(names), 'set')} of {len(changed):,} ({', '.join(islice(names, 3))}, ...)?"
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                raise WrongUse(f"{asking} Add --yes")
            flush()
            if not typer.confirm(asking, err=True):
                raise Failed("nothing was removed")
        changed.remove(names)
        left = len(changed)
    if json:
        say_json({"index": str(index), "removed": len(names), "sets": left})
    else:
        say(f"removed {counted(len(names), 'set')}; {left:,} are left")


def info(index: IndexPath, *, json: AsJson = False) -> None:
    """Say what an index holds, how it was made, and what it takes on disk and in memory."""
    with opened(index) as found_in:
        about, path = found_in.info(), path_of(found_in)
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
        "prepared by": about["preprocess"],
        "origin": about["origin"],
        "recall": "not tuned" if about["recall"] is None else about["recall"],
        "on disk": _sizes(about["disk_bytes"]),
    }
    if "memory_bytes" in about:
        facts["in memory"] = _sizes(about["memory_bytes"])
    if about["removed_since_compact"]:
        facts["removed"] = f"{about['removed_since_compact']:,} since the last slosh compact"
    if about["cache_rebuilt"]:
        facts["cache"] = f"made again: {about['cache_rebuilt']}"
    say_facts({name: fact for name, fact in facts.items() if fact is not None})


def _sizes(parts: dict[str, int]) -> str:
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
    return f"{in_bytes(sum(parts.values()))} ({listed})"


def tune(
    index: IndexPath,
    *,
    recall: Annotated[
        float, typer.Option("--recall", min=0.0, max=1.0, help="The part of the true nearest to find.")
    ] = 0.99,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="How many neighbours are searched for.")] = 10,
    json: AsJson = False,
) -> None:
    """Measure what it takes to find this part of the k nearest, and make it the default of all searches."""
    with opened(index, to_change=True) as changed:
        tuned = changed.tune(recall, k)
    if json:
        say_json(tuned._asdict())
    else:
        say(str(tuned))


def verify(
    index: IndexPath,
    *,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Embed only so many sets again; all unless given.", show_default=False),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check an index: every byte of the points, every vector, every line of metadata, and the recall.

    The exit code is 1 if there is a problem.
    """
    with opened(index) as found_in:
        report = found_in.verify(sample)
    if json:
        say_json({"ok": report.ok, "problems": report.problems, "checked": report.checked})
    else:
        say_facts({name: cell(what) for name, what in report.checked.items()})
        for problem in report.problems:
            say(f"PROBLEM: {problem}")
        say(f"{index} is {'in order' if report.ok else 'not in order'}")
    if not report.ok:
        raise typer.Exit(FAILED)


def compact(index: IndexPath, *, json: AsJson = False) -> None:
    """Give back the space of removed sets, and learn anew: the index is then as one freshly built."""
    with opened(index, to_change=True) as changed:
        before = sum(changed.info()["disk_bytes"].values())
        changed.compact()
    with opened(index) as changed:
        after, n = sum(changed.info()["disk_bytes"].values()), len(changed)
    if json:
        say_json({"index": str(index), "sets": n, "bytes_before": before, "bytes": after})
    else:
        say(f"{index}: {counted(n, 'set')}, {in_bytes(before)} before, {in_bytes(after)} now")


def export(
    index: IndexPath,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The file to write.", show_default=False)],
    *,
    json: AsJson = False,
) -> None:
    """Write all sets, ids and metadata to a Parquet file, for other programs; `slosh build` reads it back."""
    if out.suffix.lower() not in ("", ".parquet"):
        raise WrongUse(f"{out}: what is written is Parquet, not {out.suffix}: call it {out.with_suffix('.parquet')}")
    with opened(index) as found_in:
        try:
            n = found_in.export(out)
        except OSError as error:
            if error.errno != errno.ENOSPC and "no space left" not in str(error).lower():
                raise
            raise Failed(
                f"{out}: the disk is full, and nothing was written: free some space, or write elsewhere"
            ) from error
    if json:
        say_json({"index": str(index), "file": str(out), "sets": n})
    else:
        say(f"wrote {counted(n, 'set')} to {out}")
