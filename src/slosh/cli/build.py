"""`slosh build` and `slosh add`: files into an index, batch by batch, each on disk before the next is read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..data.preprocess import Preprocess
from ..data.text import format_bytes
from ..index.set_index import SetIndex
from ..readers import Batch
from . import options
from .messages import CommandError, UsageError, error_message
from .options import AsJson, IndexPath, Reading, Sources, display_path, open_index
from .output import pluralize, remark, say, say_json

Meta = Annotated[
    list[str] | None, Option(metavar="KEY=VALUE", help="Metadata for all sets that are read; may be repeated.")
]


def _of_index(help: str, *names: str, **more: Any) -> Any:
    return Option(*names, help=help, rich_help_panel="What the index is made of; stored with it and fixed", **more)


@dataclass(frozen=True)
class Design:
    """What an index is made of."""

    center: Annotated[bool, _of_index("Move the mean of each set to zero.", "--center")] = False
    scale: Annotated[str | None, _of_index("Divide each set by its size.", metavar="unit|rms")] = None
    standardize: Annotated[bool, _of_index("Scale each feature to mean 0, deviation 1.", "--standardize")] = False
    max_points: Annotated[int | None, _of_index("Use at most this many randomly chosen points per set.", min=1)] = None
    origin: Annotated[
        str | None, _of_index("Subtract this from coordinates that lie far from zero.", metavar="auto|X,Y,Z")
    ] = None
    weighted: Annotated[bool, _of_index("Allow weights even if the first sets have none.", "--weighted")] = False
    embedding: Annotated[
        str, _of_index("sliced, gem:2, cov, fspool, wasserstein, mean, max or sum.", metavar="NAME")
    ] = "sliced"
    slices: Annotated[int | None, _of_index("Directions of the sliced embedding.", min=1)] = None
    quantiles: Annotated[int | None, _of_index("Numbers for each direction.", min=1)] = None
    search: Annotated[str, _of_index("ladder, exact, hamming or lsh.", metavar="NAME")] = "ladder"

    def settings(self, seed: int) -> dict[str, Any]:
        """Return the arguments of `SetIndex.create`."""
        names = ("center", "scale", "standardize", "max_points")
        return {
            "preprocess": Preprocess(**{name: getattr(self, name) for name in names}, random_state=seed),
            "embedding": options.make_embedding(self.embedding, self.slices, self.quantiles, seed),
            "search": options.make_search(self.search),
            "weighted": True if self.weighted else None,
        }


def build(
    index: IndexPath,
    source: Sources,
    *,
    design: Design,
    reading: Reading,
    meta: Meta = None,
    recall: Annotated[
        float, Option(min=0.0, max=1.0, help="Fraction of the true nearest neighbours that searches find by default.")
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
    options.check_free(index)
    existed, made = index.exists(), None
    settings, for_all = design.settings(reading.random_state), options.parse_metadata(meta or [])
    started = time.perf_counter()
    batches = reading.read(source, options.parse_origin(design.origin))
    first = next(batches, None)
    if first is None:
        raise CommandError(f"{', '.join(source)}: no sets found")
    try:
        made = SetIndex.create(index, first.sets.dim, sample=first.sets, origin=first.sets.origin, **settings)
        with made:
            n = _fill(made, chain([first], batches), for_all, update=False)
            _report(made, n, started, json, "built", recall)
    except BaseException:
        if made is None or _is_empty(index):  # what is left was made here: the place was free before
            shutil.rmtree(index, ignore_errors=True)
            if existed:
                index.mkdir(exist_ok=True)
        raise


def _is_empty(index: Path) -> bool:
    """Return whether no set was stored in an index; False if it cannot be opened."""
    try:
        with open_index(index) as made:
            return not len(made)
    except (CommandError, OSError, ValueError):
        return False


def add(
    index: IndexPath,
    source: Sources,
    *,
    reading: Reading,
    meta: Meta = None,
    update: Annotated[bool, Option("--update", help="Replace sets whose id exists.")] = False,
    skip_existing: Annotated[
        bool, Option("--skip-existing", help="Skip sets whose id exists; continues an interrupted command.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Add the sets of files to an index.

    Each batch is on disk before the next is read: after an error or Ctrl-C the same command with --skip-existing
    continues where it stopped.

        slosh add shapes.slosh more/
        slosh add shapes.slosh clouds/ --skip-existing
        slosh add shapes.slosh clouds/chair.ply --update
    """
    if update and skip_existing:
        raise UsageError("--update replaces existing sets, --skip-existing leaves them: give one of the two")
    for_all = options.parse_metadata(meta or [])
    started = time.perf_counter()
    with open_index(index, write=True) as made:
        batches = reading.read(source, made.origin)
        n = _fill(made, _without_existing(made, batches) if skip_existing else batches, for_all, update)
        _report(made, n, started, json, "added")


def _without_existing(index: SetIndex, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches without the sets whose id exists."""
    there = set(index.ids)
    for batch in batches:
        rows = [i for i, name in enumerate(batch.ids) if name not in there]
        if len(rows) == len(batch.ids):
            yield batch
        elif rows:
            yield Batch(batch.sets.take(rows), [batch.ids[i] for i in rows], [batch.metadata[i] for i in rows])


def _fill(index: SetIndex, batches: Iterator[Batch], for_all: dict[str, Any] | None, update: bool) -> int:
    """Add all batches, and return the number of sets. An error says what is stored, and how to continue."""
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
        raise CommandError(f"{error_message(error)}\n{_so_far(index, stored)}") from error


def _so_far(index: SetIndex, stored: int) -> str:
    path = display_path(index)
    return (
        f"{pluralize(stored, 'set')} of the batches before {'is' if stored == 1 else 'are'} stored in {path}, which is "
        f"intact; continue with: slosh add {path} SOURCE... --skip-existing"
    )


def _report(index: SetIndex, n: int, started: float, json: bool, done: str, recall: float | None = None) -> None:
    """Print what was done. A new index is tuned first, so that the first search does not have to."""
    seconds, path, tuned = time.perf_counter() - started, display_path(index), None
    if recall is not None and len(index) > 1:
        try:
            tuned = index.tune(recall, min(10, len(index) - 1))
        except KeyboardInterrupt:
            remark(f"slosh: all {pluralize(len(index), 'set')} are stored; to finish, run: slosh tune {path}")
            raise
    about = index.info()
    if json:
        document = {"index": path, done: n, "sets": len(index), "dim": index.dim, "seconds": seconds}
        say_json(document | ({} if tuned is None else {"tuned": tuned._asdict()}))
        return
    rate = f" ({n / max(seconds, 1e-9):,.0f} a second)" * (n > 0)
    say(f"{done} {pluralize(n, 'set')} in {seconds:.3g} s{rate}")
    size = format_bytes(sum(about["disk_bytes"].values()))
    say(f"{path}: {pluralize(len(index), 'set')}, {pluralize(about['points'], 'point')}, d = {index.dim}, {size}")
    if tuned is not None:
        say(f"tuned: {tuned}")
