"""Commands about single sets: show, update and remove."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from .messages import CommandError, UsageError
from .options import AsJson, Flip, Location, Meta, Offset, Selection, counted, open_index, parse_metadata
from .output import flush, metadata_columns, pluralize, say, say_facts, say_json, say_result, say_table

if TYPE_CHECKING:
    from ..engines.base import Records
    from ..index.set_index import SetIndex

SHOWN_FEATURES = 8
"""Features whose range is shown."""


def show(
    index: Location,
    *,
    selection: Selection,
    limit: Annotated[int, counted(help="Number of sets to list if no ID is given.")] = 20,
    offset: Offset = 0,
    plot: Annotated[Path | None, Option(metavar="PNG", help="Draw the sets, in 2-D or 3-D.")] = None,
    flip: Flip = False,
    json: AsJson = False,
) -> None:
    """Show stored sets: their metadata, number of points, and extent. Without an ID, list the first ones.

    With --json, each set gives one line.

        slosh show shapes.slosh
        slosh show shapes.slosh --where "folder = chair" --limit 5 --offset 10
        slosh show shapes.slosh chair_1.ply --plot chair.png
    """
    with open_index(index) as opened:
        if plot is not None:
            from .draw import check_drawable, draw_sets

            check_drawable(opened.dim)
        matching = selection.names(opened)
        if selection.id and offset:
            raise UsageError("--offset is for lists: leave the ids out")
        names = matching if selection.id else matching[offset : offset + limit]
        found: Any = opened.get(names)
        if selection.id or json:
            for i in range(len(names)):
                _show_one(opened, found, i, json)
        else:
            _list(found, offset, len(matching))
    if plot is not None:
        if not names:
            raise UsageError("there is nothing to draw")
        draw_sets(found, plot, flip)
        if not json:
            say(f"drawn in {plot}")


def _list(found: Records, offset: int, n_matching: int) -> None:
    if found.ids:
        keys, values = metadata_columns(found.metadata)
        lines = [[name, n, *value] for name, n, value in zip(found.ids, found.sets.sizes, values, strict=True)]
        say_table(["id", "points", *keys], lines, ["points"])
    n = len(found.ids)
    which = f"the first {n:,} of " * (n < n_matching)
    if offset:
        which = f"{offset + 1:,} to {offset + n:,} of " if n else "none left of "
    say(f"{which}{pluralize(n_matching, 'set')}")


def _show_one(index: SetIndex, found: Records, i: int, json: bool) -> None:
    import numpy as np

    points = np.array(found.sets[i], np.float64)
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


def update(
    index: Location,
    *,
    selection: Selection,
    meta: Meta = None,
    replace: Annotated[bool, Option("--replace", help="Remove all other metadata of these sets.")] = False,
    json: AsJson = False,
) -> None:
    """Change the metadata of stored sets, chosen by id or by their metadata.

    The keys of --meta are set; the other keys stay, unless --replace is given. To change points, use `slosh add
    --update`.

        slosh update shapes.slosh chair_1.ply --meta year=2015 --meta checked=true
        slosh update shapes.slosh --where "folder = chair" --meta kind=seat
    """
    selection.check_given()
    new = parse_metadata(meta)
    if new is None:
        raise UsageError("there is nothing to change: give --meta KEY=VALUE")
    with open_index(index, write=True) as changed:
        names = selection.names(changed)
        if names:
            changed.update(names, metadata=[new] * len(names), merge=not replace)
    say_result(json, {"index": index, "updated": len(names)}, f"updated {pluralize(len(names), 'set')}")


def remove(
    index: Location,
    *,
    selection: Selection,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: AsJson = False,
) -> None:
    """Remove sets, chosen by id or by their metadata.

    If an id does not exist, nothing is removed. `slosh compact` reclaims the space.

        slosh remove shapes.slosh chair_1.ply chair_2.ply
        slosh remove shapes.slosh --where "folder = chair" --yes
    """
    selection.check_given()
    with open_index(index, write=True) as changed:
        names = selection.names(changed)
        if names and not selection.id and not yes:
            _confirm(f"remove {pluralize(len(names), 'set')} of {len(changed):,} ({', '.join(names[:3])}, ...)?")
        changed.remove(names)
        left = len(changed)
    document = {"index": index, "removed": len(names), "sets": left}
    say_result(json, document, f"removed {pluralize(len(names), 'set')}; {left:,} are left")


def _confirm(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Add --yes")
    flush()
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was removed")


COMMANDS = (show, update, remove)
