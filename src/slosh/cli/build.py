"""Commands that make an index: demo, build and add; compare is in `choice.py`.

`build` and `add` store files batch by batch, each on disk before the next is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import slosh

from ..data.text import format_bytes
from . import options
from .choice import check_label, compare, describe, document_of, name_of, say_comparison, settle
from .design import Design, EmbeddingOptions, Preparation, command, prepared_for
from .messages import CommandError, UsageError, error_message
from .options import AsJson, Device, Location, Meta, Reading, Sources, open_index, recall_option
from .output import pluralize, remark, say, say_json

if TYPE_CHECKING:
    from ..index.set_index import SetIndex
    from ..neighbors.compare import Comparison
    from ..readers import Batch

RECALL = 0.99
"""What an index is tuned for by default."""


def demo(
    *,
    out: Annotated[Path, Option(metavar="FOLDER", help="The folder for the index and the picture.")] = Path("demo"),
    keep: Annotated[
        bool, Option("--keep", help="Use the index of an earlier run instead of building it again.")
    ] = False,
    engine: Annotated[
        str, Option(metavar="ENGINE", help="folder, or postgres: a server of its own that ends with the demo.")
    ] = "folder",
    serve: Annotated[
        bool, Option("--serve", help="Then show the index on a page, as slosh serve does, until Ctrl-C.")
    ] = False,
    port: Annotated[int, Option(metavar="N", min=0, max=65535, help="With --serve: the port; 0 is a free one.")] = 8080,
) -> None:
    """Build an index of handwritten digits, search it, and draw the results. Needs no data and no network.

    The digits come with scikit-learn. The demo takes seconds. Try your own commands on the files that it leaves. With
    --serve it then opens a page on which you draw a digit and see its neighbours; see docs/page.md.
    """
    from .demo import check_server, run_demo, serve_demo

    if engine not in ("folder", "postgres"):
        raise UsageError(f"--engine {engine}: give folder or postgres")
    if keep and engine != "folder":
        raise UsageError("--keep is for a folder: leave it out with --engine postgres")
    if serve and engine != "folder":
        raise UsageError("--serve is for a folder: the server of --engine postgres ends with the demo")
    if serve:
        check_server()
    run_demo(out, keep, engine)
    if serve:
        serve_demo(out, port)


def build(
    index: Location,
    source: Sources,
    *,
    preparation: Preparation,
    wanted: EmbeddingOptions,
    design: Design,
    reading: Reading,
    meta: Meta = None,
    recall: Annotated[
        float, recall_option(help="Fraction of the true nearest neighbours that searches find by default; 1 is exact.")
    ] = RECALL,
    name: Annotated[
        str | None, Option(metavar="NAME", help="In a database: the name of the index, as behind # in its address.")
    ] = None,
    parts: Annotated[
        bool, Option("--parts", help="Store what slosh search --match part needs, too (see slosh enable).")
    ] = False,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Build an index from files.

    A file holds one set or many: .npy, .npz, .parquet, .csv, .ply, .off, .las, .h5ad, IDX images and others. The id of
    a set is the name of its file, unless the file has ids. If sets have labels, --label finds the embedding that suits
    them. What an embedding learns it learns from all stored sets; --standardize, --origin auto and --search hamming
    learn from the first batch.

        slosh build shapes.slosh clouds/ --center --scale unit
        slosh build shapes.slosh clouds/ --label folder
        slosh build shapes.slosh clouds/ --embedding sliced+field --whiten
        slosh build shapes.slosh clouds/ --embedding model.slosh-embedding
        slosh build cells.slosh cells.h5ad --by patient --obsm X_pca
        slosh build sites.slosh "scans/*.las" --origin auto
        slosh build curves.slosh curves.csv --id-column curve --columns x,y
        slosh build postgresql://user@host/database clouds/ --name shapes
        slosh build hits.slosh hits.parquet --device cuda
    """
    index = options.named_location(index, name)
    options.check_free(index)
    seed, for_all = reading.random_state, options.parse_metadata(meta)
    embedding, steps = prepared_for(wanted, preparation, seed)
    settings = {"preprocess": steps, "embedding": embedding, **design.settings()}
    started = time.perf_counter()
    origin = options.parse_origin(design.origin)
    if wanted.is_file and origin is None:
        origin = embedding.origin_
    batches = reading.read(source, origin)
    first = next(batches, None)
    if first is None:
        raise CommandError(f"{', '.join(source)}: no sets found")
    if wanted.label is not None:
        check_label(wanted.label, first.metadata, for_all)
    learns = not wanted.is_file or design.search == "hamming"  # what is learnt already needs no sample
    settings |= {"sample": first.sets if learns else None, "origin": first.sets.origin}
    with slosh.SetIndex.create(index, first.sets.dim, **settings, device=device) as made:
        try:
            again = _continuing(index, source, reading, meta, False, device)
            n = _fill(made, index, chain([first], batches), for_all, again)
            found = None
            learns = made.embedding.learns and not wanted.is_file
            if wanted.label is not None or (learns and n > len(first.ids)):
                found = _settle(made, index, wanted, seed)
            if parts:
                made.enable("parts", random_state=seed)
            _report(made, index, n, started, json, "built", recall, found, wanted.label)
        except BaseException:
            with suppress(OSError):
                if not len(made):  # the place was free before
                    made.destroy()
            raise


def _settle(index: SetIndex, location: str, wanted: EmbeddingOptions, seed: int) -> Comparison | None:
    """Choose the embedding, or let it learn from all sets. An error says what is stored, and how to finish."""
    kept = f"all {pluralize(len(index), 'set')} are stored in {location}, embedded by {name_of(index.embedding)}"
    seeded = ["--seed", str(seed)] if seed else []
    finish = f"run: {command('slosh', 'retrain', location, *wanted.as_options(), *seeded)}"
    try:
        return settle(index, wanted, seed)
    except KeyboardInterrupt:
        remark(f"slosh: {kept}; to finish, {finish}")
        raise
    except Exception as error:
        raise CommandError(f"{error_message(error)}\n{kept}; when that is settled, {finish}") from error


def add(
    index: Location,
    source: Sources,
    *,
    reading: Reading,
    meta: Meta = None,
    update: Annotated[bool, Option("--update", help="Replace sets whose id exists already.")] = False,
    skip_existing: Annotated[
        bool,
        Option("--skip-existing", help="Skip sets whose id exists already, e.g. to continue an interrupted command."),
    ] = False,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Add sets from files to an index.

    Each batch is on disk before the next is read. After an error or Ctrl-C, the same command with --skip-existing
    continues where it stopped.

        slosh add shapes.slosh more/
        slosh add shapes.slosh clouds/ --skip-existing
        slosh add shapes.slosh clouds/chair.ply --update
    """
    if update and skip_existing:
        raise UsageError("--update replaces existing sets, --skip-existing leaves them: give one of the two")
    for_all = options.parse_metadata(meta)
    started = time.perf_counter()
    with open_index(index, write=True, device=device) as made:
        batches = reading.read(source, made.origin)
        new = _without_existing(made, batches) if skip_existing else batches
        n = _fill(made, index, new, for_all, _continuing(index, source, reading, meta, update, device), update)
        _report(made, index, n, started, json, "added")


def _without_existing(index: SetIndex, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches without the sets whose id exists."""
    there = set(index.ids)
    for batch in batches:
        rows = [i for i, name in enumerate(batch.ids) if name not in there]
        if len(rows) == len(batch.ids):
            yield batch
        elif rows:
            yield type(batch)(batch.sets.take(rows), [batch.ids[i] for i in rows], [batch.metadata[i] for i in rows])


def _continuing(
    location: str, source: list[str], reading: Reading, meta: list[str] | None, update: bool, device: str | None
) -> str:
    """Return the command that adds what is not stored yet."""
    pairs = [word for pair in meta or () for word in ("--meta", pair)]
    there = ["--update" if update else "--skip-existing", *([] if device is None else ["--device", device])]
    return command("slosh", "add", location, *source, *reading.as_options(), *pairs, *there)


def _fill(
    index: SetIndex,
    location: str,
    batches: Iterator[Batch],
    for_all: dict[str, Any] | None,
    again: str,
    update: bool = False,
) -> int:
    """Add all batches, and return the number of sets. An error says what is stored, and how to continue: `again`."""
    stored, before = 0, len(index)

    def counting() -> Iterator[Batch]:
        nonlocal stored
        for batch in batches:
            yield batch
            stored += len(batch.ids)  # whoever asks for the next one has stored this one

    def so_far() -> str:
        kept = f"{pluralize(stored, 'set')} of the batches before {'is' if stored == 1 else 'are'} stored in {location}"
        return f"{kept}, which is intact; continue with: {again}"

    try:
        return len(index.add(counting(), metadata=for_all, update=update))
    except KeyboardInterrupt:
        stored = max(stored, len(index) - before)  # it may come between the storing and the asking
        remark(f"slosh: {so_far()}" if stored else "slosh: nothing was stored")
        raise
    except Exception as error:
        if not stored:
            raise
        raise CommandError(f"{error_message(error)}\n{so_far()}") from error


def _report(
    index: SetIndex,
    location: str,
    n: int,
    started: float,
    json: bool,
    done: str,
    recall: float | None = None,
    found: Comparison | None = None,
    label: str | None = None,
) -> None:
    """Print what was done. A new index, one with a `recall`, is tuned first: the first search does not have to."""
    seconds, tuned = time.perf_counter() - started, None
    if recall is not None and len(index) > 1:
        try:
            tuned = index.tune(recall, min(10, len(index) - 1))
        except KeyboardInterrupt:
            asked = [] if recall == RECALL else ["--recall", f"{recall:g}"]
            finish = command("slosh", "tune", location, *asked)
            remark(f"slosh: all {pluralize(len(index), 'set')} are stored; to finish, run: {finish}")
            raise
    about = index.info()
    if json:
        document = {"index": location, done: n, "sets": len(index), "dim": index.dim, "seconds": seconds}
        document |= {"embedding": name_of(index.embedding)}
        document |= {} if found is None else {"compared": document_of(found)}
        say_json(document | ({} if tuned is None else {"tuned": tuned._asdict()}))
        return
    if found is not None:
        say_comparison(found)
        say()
    rate = f" ({n / max(seconds, 1e-9):,.0f} a second)" * (n > 0)
    say(f"{done} {pluralize(n, 'set')} in {seconds:.3g} s{rate}")
    size = f", {format_bytes(options.disk_bytes(about))}" * ("disk_bytes" in about)
    say(f"{location}: {pluralize(len(index), 'set')}, {pluralize(about['points'], 'point')}, d = {index.dim}{size}")
    if recall is not None:
        say(f"embedding: {describe(index.embedding, label)}")
    if tuned is not None:
        say(f"tuned: {tuned}")


COMMANDS = (demo, compare, build, add)
