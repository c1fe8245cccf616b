"""Commands that make an index: demo, compare, build and add.

`build` and `add` store files batch by batch, each on disk before the next is read.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import slosh

from ..data.text import format_bytes
from . import options
from .messages import CommandError, UsageError, error_message
from .options import AsJson, Location, Meta, Reading, Sources, counted, open_index, recall_option
from .output import pluralize, remark, say, say_json, say_table

if TYPE_CHECKING:
    from ..index.set_index import SetIndex
    from ..readers import Batch

_flag = functools.partial(Option, rich_help_panel="What the index is made of (cannot be changed later)")
_name = functools.partial(_flag, metavar="NAME")
_number = functools.partial(_flag, metavar="N", min=1)
ALIGN = "Turn each set into its principal axes (pca), for shapes in any pose."
SCALES = "Divide each set by its largest norm (unit), or by the root mean square of its norms (rms)."
TEST_SIZE = (
    "With 500 sets or more, the fraction of them to use as queries (default: 0.2). With fewer, every set is a query."
)
ORIGIN = "Subtract this point from all coordinates, for example if they lie far from zero."
EMBEDDINGS = "How sets become vectors: sliced, local, field:256, gem:2, cov, fspool, wasserstein, mean, max or sum."


@dataclass(frozen=True)
class Design:
    """What an index is made of."""

    center: Annotated[bool, _flag("--center", help="Move the mean of each set to zero.")] = False
    align: Annotated[str | None, _name(metavar="pca", help=ALIGN)] = None
    scale: Annotated[str | None, _name(metavar="unit|rms", help=SCALES)] = None
    standardize: Annotated[bool, _flag("--standardize", help="Scale each feature to mean 0 and variance 1.")] = False
    max_points: Annotated[int | None, _number(help="Use at most this many randomly chosen points per set.")] = None
    origin: Annotated[str | None, _name(metavar="auto|X,Y,Z", help=ORIGIN)] = None
    weighted: Annotated[bool, _flag("--weighted", help="Allow weights even if the first sets have none.")] = False
    embedding: Annotated[str, _name(help=EMBEDDINGS)] = "sliced"
    slices: Annotated[int | None, _number(help="Number of directions of the sliced embedding.")] = None
    quantiles: Annotated[int | None, _number(help="Number of quantiles per direction.")] = None
    search: Annotated[str, _name(help="How vectors are searched: ladder, exact, hamming or lsh.")] = "ladder"

    def settings(self, seed: int) -> dict[str, Any]:
        """Return the arguments of `SetIndex.create`."""
        names = ("center", "align", "scale", "standardize", "max_points")
        return {
            "preprocess": slosh.Preprocess(**{name: getattr(self, name) for name in names}, random_state=seed),
            "embedding": self._embedding(seed),
            "search": self._search(),
            "weighted": True if self.weighted else None,
        }

    def _embedding(self, seed: int) -> Any:
        kind, _, number = self.embedding.lower().partition(":")
        if number and kind not in ("gem", "field"):
            raise UsageError(f"--embedding {self.embedding}: only gem and field take a number, as in gem:2")
        if self.slices is not None and kind not in ("sliced", "local"):
            raise UsageError(f"--slices is for --embedding sliced and local, not for {kind}")
        if self.quantiles is not None and kind not in ("sliced", "local", "fspool"):
            raise UsageError(f"--quantiles is for --embedding sliced, local and fspool, not for {kind}")
        if number and not (number.isascii() and number.isdigit() and int(number)):
            raise UsageError(f"--embedding {self.embedding}: the number is a whole one, as in gem:2")
        amount: dict[str, Any] = {} if self.quantiles is None else {"n_quantiles": self.quantiles}
        embed = slosh.embed
        sliced = functools.partial(embed.SlicedWasserstein, n_slices=self.slices, random_state=seed, **amount)
        known = {
            "sliced": sliced,
            "local": lambda: embed.LocalShape(sliced()),
            "field": functools.partial(embed.DistanceField, n_anchors=int(number or 256), random_state=seed),
            "gem": functools.partial(embed.GeM, p=int(number or 1)),
            "fspool": functools.partial(embed.FSPool, **amount),
            "cov": embed.Covariance,
            "wasserstein": functools.partial(embed.WassersteinEmbedding, random_state=seed),
            "mean": embed.MeanPool,
            "max": embed.MaxPool,
            "sum": embed.SumPool,
        }
        return options.choose("--embedding", kind, known)()

    def _search(self) -> Any:
        known = {
            "ladder": slosh.search.LadderSearch,
            "exact": slosh.search.ExactSearch,
            # Codes alone give no distance to tune for.
            "hamming": functools.partial(slosh.search.HammingSearch, rerank=100),
            "lsh": slosh.search.LSHSearch,
        }
        return options.choose("--search", self.search.lower(), known)()


def demo(
    *,
    out: Annotated[Path, Option(metavar="FOLDER", help="The folder for the index and the picture.")] = Path("demo"),
    keep: Annotated[
        bool, Option("--keep", help="Use the index of an earlier run instead of building it again.")
    ] = False,
) -> None:
    """Build an index of handwritten digits, search it, and draw the results. Needs no data and no network.

    The digits come with scikit-learn. The demo takes seconds. Try your own commands on the files that it leaves.
    """
    from .demo import run_demo

    run_demo(out, keep)


def compare(
    source: Sources,
    *,
    reading: Reading,
    label: Annotated[str, Option(metavar="KEY", help="The metadata key that holds the label.")] = "label",
    k: Annotated[int, counted("-k", "--k", help="Number of nearest sets to look at.")] = 10,
    test_size: Annotated[float, Option(metavar="FRACTION", show_default=False, help=TEST_SIZE)] = 0.2,
    origin: Annotated[str | None, Option(metavar="auto|X,Y,Z", help=ORIGIN)] = None,
    json: AsJson = False,
) -> None:
    """Compare embeddings on labelled sets before you build an index.

    Each row says how often the nearest sets have the same label as the query, and how long that took. All sets are held
    in memory. Pass the best one to `slosh build --embedding`.

        slosh compare clouds/ --label folder
        slosh compare digits.npz --label label -k 5
    """
    parts, labels = [], []
    for batch in reading.read(source, options.parse_origin(origin)):
        parts.append(batch.sets)
        for name, metadata in zip(batch.ids, batch.metadata, strict=True):
            if metadata.get(label) is None:
                keys = ", ".join(metadata) or "none"
                raise CommandError(f"{name} has no {label!r} in its metadata: choose a key with --label; it has {keys}")
            labels.append(metadata[label])
    if len({isinstance(each, str) for each in labels}) > 1:
        labels = [str(each) for each in labels]
    with warnings.catch_warnings():
        from sklearn.exceptions import ConvergenceWarning

        # Of k-means, where sets have fewer different points than it looks for: the row of the embedding is as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        seed = reading.random_state
        found = slosh.compare(slosh.Sets.concat(parts), labels, k=k, test_size=test_size, random_state=seed)
    if json:
        say_json({"about": found.about, "rows": found.rows})
        return
    say(f"{found.about}\n")
    columns, *cells = found.table()
    say_table(columns, cells, columns[2:])
    for failure in found.failures():
        say(failure)


def build(
    index: Location,
    source: Sources,
    *,
    design: Design,
    reading: Reading,
    meta: Meta = None,
    recall: Annotated[
        float, recall_option(help="Fraction of the true nearest neighbours that searches find by default; 1 is exact.")
    ] = 0.99,
    json: AsJson = False,
) -> None:
    """Build an index from files.

    A file holds one set or many: .npy, .npz, .parquet, .csv, .ply, .off, .las, .h5ad, IDX images and others. The id of
    a set is the name of its file, unless the file has ids. What is learnt from data (--standardize, --origin auto,
    --search hamming) is learnt from the first batch.

        slosh build shapes.slosh clouds/ --center --scale unit
        slosh build cells.slosh cells.h5ad --by patient --obsm X_pca
        slosh build sites.slosh "scans/*.las" --origin auto
        slosh build curves.slosh curves.csv --id-column curve --columns x,y
    """
    options.check_free(index)
    settings, for_all = design.settings(reading.random_state), options.parse_metadata(meta)
    started = time.perf_counter()
    batches = reading.read(source, options.parse_origin(design.origin))
    first = next(batches, None)
    if first is None:
        raise CommandError(f"{', '.join(source)}: no sets found")
    with slosh.SetIndex.create(index, first.sets.dim, sample=first.sets, origin=first.sets.origin, **settings) as made:
        try:
            n = _fill(made, index, chain([first], batches), for_all, update=False)
            _report(made, index, n, started, json, "built", recall)
        except BaseException:
            with suppress(OSError):
                if not len(made):  # the place was free before
                    made.destroy()
            raise


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
    with open_index(index, write=True) as made:
        batches = reading.read(source, made.origin)
        new = _without_existing(made, batches) if skip_existing else batches
        n = _fill(made, index, new, for_all, update)
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


def _fill(
    index: SetIndex, location: str, batches: Iterator[Batch], for_all: dict[str, Any] | None, update: bool
) -> int:
    """Add all batches, and return the number of sets. An error says what is stored, and how to continue."""
    stored, before = 0, len(index)

    def counting() -> Iterator[Batch]:
        nonlocal stored
        for batch in batches:
            yield batch
            stored += len(batch.ids)  # whoever asks for the next one has stored this one

    def so_far() -> str:
        kept = f"{pluralize(stored, 'set')} of the batches before {'is' if stored == 1 else 'are'} stored in {location}"
        return f"{kept}, which is intact; continue with: slosh add {location} SOURCE... --skip-existing"

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
    index: SetIndex, location: str, n: int, started: float, json: bool, done: str, recall: float | None = None
) -> None:
    """Print what was done. A new index is tuned first, so that the first search does not have to."""
    seconds, tuned = time.perf_counter() - started, None
    if recall is not None and len(index) > 1:
        try:
            tuned = index.tune(recall, min(10, len(index) - 1))
        except KeyboardInterrupt:
            remark(f"slosh: all {pluralize(len(index), 'set')} are stored; to finish, run: slosh tune {location}")
            raise
    about = index.info()
    if json:
        document = {"index": location, done: n, "sets": len(index), "dim": index.dim, "seconds": seconds}
        say_json(document | ({} if tuned is None else {"tuned": tuned._asdict()}))
        return
    rate = f" ({n / max(seconds, 1e-9):,.0f} a second)" * (n > 0)
    say(f"{done} {pluralize(n, 'set')} in {seconds:.3g} s{rate}")
    size = f", {format_bytes(options.disk_bytes(about))}" * ("disk_bytes" in about)
    say(f"{location}: {pluralize(len(index), 'set')}, {pluralize(about['points'], 'point')}, d = {index.dim}{size}")
    if tuned is not None:
        say(f"tuned: {tuned}")


COMMANDS = (demo, compare, build, add)
