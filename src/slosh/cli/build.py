"""`slosh build` and `slosh add`: files into an index, batch by batch, each on disk before the next is read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from ..index.set_index import SetIndex
from ..readers import Batch
from .options import (
    AsJson,
    IndexPath,
    Reading,
    Sources,
    embedding_of,
    metadata_of,
    opened,
    origin_of,
    path_of,
    reads_files,
    search_of,
)
from .output import counted, in_bytes, remark, say, say_json
from .running import Failed, WrongUse, message

MADE = "What the index is made of; stored with it, and never changed"

Meta = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=VALUE", help="Metadata for all sets that are read; may be given repeatedly."),
]


@reads_files
def build(
    index: IndexPath,
    source: Sources,
    *,
    reading: Reading,
    meta: Meta = None,
    center: Annotated[
        bool, typer.Option("--center", help="Move each set's mean to zero.", rich_help_panel=MADE)
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="unit|rms", help="Divide each set by its size.", rich_help_panel=MADE),
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Mean 0 and deviation 1 for each feature.", rich_help_panel=MADE)
    ] = False,
    max_points: Annotated[
        int | None,
        typer.Option(
            "--max-points", min=1, help="Compare by a sample of so many points of each set.", rich_help_panel=MADE
        ),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--origin",
            metavar="auto|X,Y,Z",
            help="Subtract this from coordinates that lie far from zero.",
            rich_help_panel=MADE,
        ),
    ] = None,
    weighted: Annotated[
        bool,
        typer.Option(
            "--weighted", help="Sets may have weights, though the first ones have none.", rich_help_panel=MADE
        ),
    ] = False,
    embedding: Annotated[
        str,
        typer.Option(
            "--embedding",
            metavar="NAME",
            help="sliced, gem:2, cov, fspool, wasserstein, mean, max or sum.",
            rich_help_panel=MADE,
        ),
    ] = "sliced",
    slices: Annotated[
        int | None,
        typer.Option("--slices", min=1, help="Directions of the sliced embedding.", rich_help_panel=MADE),
    ] = None,
    quantiles: Annotated[
        int | None,
        typer.Option("--quantiles", min=1, help="Numbers for each direction.", rich_help_panel=MADE),
    ] = None,
    search: Annotated[
        str, typer.Option("--search", metavar="NAME", help="ladder, exact, hamming or lsh.", rich_help_panel=MADE)
    ] = "ladder",
    recall: Annotated[
        float,
        typer.Option(
            "--recall", min=0.0, max=1.0, help="What searches find of the true nearest, unless told otherwise."
        ),
    ] = 0.99,
    json: AsJson = False,
) -> None:
    """Make an index from files.

    A file is a set, or holds many: .npy, .npz, .parquet, .csv, .ply, .off, .las, .h5ad, IDX images and others. Its
    name is the id, unless the file has ids. What is learnt from data (--standardize, --origin auto, --search hamming)
    is learnt from the first batch.

        slosh build shapes.slosh clouds/ --center --scale unit
        slosh build cells.slosh cells.h5ad --by patient --obsm X_pca
        slosh build sites.slosh "scans/*.las" --origin auto
        slosh build curves.slosh curves.csv --id-column curve --columns x,y
    """
    _check_free(index)
    existed = index.exists()
    settings: dict[str, Any] = {
        "center": center,
        "scale": scale,
        "standardize": standardize,
        "max_points": max_points,
        "embedding": embedding_of(embedding, slices, quantiles, reading.seed),
        "search": search_of(search),
        "random_state": reading.seed,
        "weighted": True if weighted else None,
    }
    for_all = metadata_of(meta or [])
    started = time.perf_counter()
    batches = reading.read(source, origin_of(origin))
    first = next(batches, None)
    if first is None:
        raise Failed(f"{', '.join(source)}: there are no sets in it")
    try:
        made = SetIndex.create(index, first.sets.dim, sample=first.sets, origin=first.sets.origin, **settings)
    except BaseException:
        _remove_all(index, existed)  # nothing was in it, as _check_free has seen
        raise
    try:
        with made:
            n = _fill(made, chain([first], batches), for_all, update=False)
            _report(made, n, started, json, "built", recall)
    except BaseException:
        _remove_if_empty(index, existed)
        raise


@reads_files
def add(
    index: IndexPath,
    source: Sources,
    *,
    reading: Reading,
    meta: Meta = None,
    update: Annotated[bool, typer.Option("--update", help="Replace sets whose id exists.")] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave sets as they are whose id exists: to go on where it stopped.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Add the sets of files to an index.

    Each batch is on disk before the next is read: after an error or Ctrl-C the same command with --skip-existing goes
    on where it stopped.

        slosh add shapes.slosh more/
        slosh add shapes.slosh clouds/ --skip-existing
        slosh add shapes.slosh clouds/chair.ply --update
    """
    if update and skip_existing:
        raise WrongUse("--update replaces sets that exist, --skip-existing leaves them: give one of the two")
    for_all = metadata_of(meta or [])
    started = time.perf_counter()
    with opened(index, to_change=True) as made:
        batches = reading.read(source, made.origin)
        n = _fill(made, _new_ones(made, batches) if skip_existing else batches, for_all, update)
        _report(made, n, started, json, "added")


def _check_free(index: Path) -> None:
    if not index.exists() or (index.is_dir() and not any(index.iterdir())):
        return
    if (index / "index.db").exists():
        raise Failed(f"{index} exists: add to it with slosh add {index} ..., or give another name")
    raise Failed(f"{index} exists, and is no index: give another name")


def _remove_if_empty(index: Path, existed: bool) -> None:
    """What `create` has made, if no set came into it."""
    try:
        with opened(index) as made:
            empty = not len(made)
    except (OSError, ValueError):
        return
    if empty:
        _remove_all(index, existed)


def _remove_all(index: Path, existed: bool) -> None:
    shutil.rmtree(index, ignore_errors=True)
    if existed:
        index.mkdir(exist_ok=True)


def _new_ones(index: SetIndex, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Without the sets whose id exists."""
    there = set(index.ids)
    for batch in batches:
        rows = [i for i, name in enumerate(batch.ids) if name not in there]
        if len(rows) == len(batch.ids):
            yield batch
        elif rows:
            yield Batch(batch.sets.take(rows), [batch.ids[i] for i in rows], [batch.metadata[i] for i in rows])


def _fill(index: SetIndex, batches: Iterator[Batch], for_all: dict[str, Any] | None, update: bool) -> int:
    """Adds all batches, and returns how many sets that are; an error says what is stored, and how to go on."""
    stored, before = 0, len(index)

    def counting() -> Iterator[Batch]:
        nonlocal stored
        for batch in batches:
            yield batch
            stored += len(batch.ids)  # whoever asks for the next one has stored this one

    try:
        return len(index.add(counting(), metadata=for_all, update=update))
    except KeyboardInterrupt:
        stored = max(stored, len(index) - before)  # it may come between the storing and the asking
        remark(f"slosh: {_so_far(index, stored)}" if stored else "slosh: nothing was stored")
        raise
    except Exception as error:
        if not stored:
            raise
        said = message(error).partition(" (the ")[0] if "sets before this batch" in str(error) else message(error)
        raise Failed(f"{said}\n{_so_far(index, stored)}") from error


def _so_far(index: SetIndex, stored: int) -> str:
    return (
        f"{counted(stored, 'set')} of the batches before {'is' if stored == 1 else 'are'} stored in {path_of(index)}, "
        f"which is in order; go on with: slosh add {path_of(index)} SOURCE... --skip-existing"
    )


def _report(index: SetIndex, n: int, started: float, json: bool, what: str, recall: float | None = None) -> None:
    """Says what was done. A new index is tuned first, so that the first search does not have to."""
    seconds = time.perf_counter() - started
    tuned = None
    if recall is not None and len(index) > 1:
        try:
            tuned = index.tune(recall, min(10, len(index) - 1))
        except KeyboardInterrupt:
            remark(f"slosh: all {counted(len(index), 'set')} are stored; what is missing: slosh tune {path_of(index)}")
            raise
    about = index.info()
    if json:
        document = {"index": path_of(index), what: n, "sets": len(index), "dim": index.dim, "seconds": seconds}
        say_json(document | ({} if tuned is None else {"tuned": tuned._asdict()}))
        return
    rate = f" ({n / max(seconds, 1e-9):,.0f} a second)" if n else ""
    say(f"{what} {counted(n, 'set')} in {seconds:.3g} s{rate}")
    size = in_bytes(sum(about["disk_bytes"].values()))
    say(f"{path_of(index)}: {counted(len(index), 'set')}, {counted(about['points'], 'point')}, d = {index.dim}, {size}")
    if tuned is not None:
        say(f"tuned: {tuned}")
