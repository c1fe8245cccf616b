"""Which embedding an index has: `slosh compare`, and what --label and --whiten do in `slosh build` and `slosh retrain`.

Labelled sets of files or of an index come in; a table is printed, and the index gets the best embedding.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import slosh

from . import options
from .design import ORIGIN, EmbeddingOptions, Preparation, command, options_for
from .messages import CommandError
from .options import AsJson, Reading, Sources, counted
from .output import one_line, pluralize, remark, say, say_json, say_table

if TYPE_CHECKING:
    from ..data.sets import Sets
    from ..index.set_index import SetIndex
    from ..neighbors.compare import Comparison

TEST_SIZE = (
    "With 500 sets or more, the fraction of them to use as queries (default: 0.2). With fewer, every set is a query."
)
LEARNED = "Also learn an embedding from the labels, as slosh train does, which takes minutes. Needs 500 sets or more."
FOLDER = "folder"
"""The metadata key that readers give to files which lie in a folder below their source."""
COMPARED_SETS = 4000
"""Stored sets that embeddings are compared on, at most."""
COMPARED_NUMBERS = 1 << 26
"""Coordinates of these sets, about; but FEWEST_COMPARED sets are compared, however large they are."""
FEWEST_COMPARED = 50
READ_SETS = 256
"""Stored sets that are read at a time."""
SLOW = "WassersteinEmbedding"
"""Left out where an index is to be built: it takes a hundred times as long to embed a set."""


@dataclass
class Labelled:
    """Sets with their labels, and how many were left out: without a label, or alone with theirs."""

    sets: Sets
    labels: list[Any]
    n_without: int
    n_alone: int

    @classmethod
    def of(cls, parts: Sequence[Sets], ids: Sequence[str], metadata: Sequence[dict[str, Any]], key: str) -> Labelled:
        """Take the labels from the metadata. An error says what is wrong with them."""
        values = [about.get(key) for about in metadata]
        for name, value in zip(ids, values, strict=True):
            if value is not None and not isinstance(value, str | int | float):
                raise CommandError(f"--label {key}: {name} has {value!r:.60} there, and a label is a text or a number")
        if all(value is None for value in values):
            raise CommandError(f"no set has {key!r} in its metadata: choose a key with --label; {_keys(metadata)}")
        mixed = any(isinstance(value, str) for value in values)
        labels = [str(value) if mixed and value is not None else value for value in values]
        counts = Counter(label for label in labels if label is not None)
        rows = [i for i, label in enumerate(labels) if label is not None and counts[label] > 1]
        kept = [labels[i] for i in rows]
        if len(set(kept)) < 2:
            found = ", ".join(repr(label) for label, n in counts.items() if n > 1)
            problem = f"all sets have the label {found}" if len(counts) == 1 else "too few sets share a label"
            raise CommandError(f"--label {key}: {problem}: give two labels or more, each of two sets or more")
        alone = sum(n == 1 for n in counts.values())
        return cls(slosh.Sets.concat(parts).take(rows), kept, len(values) - len(rows) - alone, alone)

    def remark(self, key: str) -> None:
        """Say which sets were left out."""
        if self.n_without:
            remark(f"slosh: left out, without {key!r} in the metadata: {pluralize(self.n_without, 'set')}")
        if self.n_alone:
            remark(f"slosh: left out, the only one with its label: {pluralize(self.n_alone, 'set')}")


def read_labelled(
    source: Sequence[str], reading: Reading, origin: str | None, label: str
) -> tuple[Labelled, Sequence[str]]:
    """Read labelled sets of files, and return them with the sources that `slosh build` is to be given.

    Nothing needs ids here: several sets may have one. With several sources, and the folder as the label, files that lie
    directly in their source have a folder, too. `slosh build` does neither: then the second is the word SOURCE.
    """
    parts: list[Sets] = []
    ids: list[str] = []
    metadata: list[dict[str, Any]] = []
    takes_folders = label == FOLDER and len(source) > 1
    shift = options.parse_origin(origin)
    for batch in reading.read(source, shift, unique_ids=False, source_as_folder=takes_folders):
        parts.append(batch.sets)
        ids += batch.ids
        metadata += batch.metadata
    if not ids:
        raise CommandError(f"{', '.join(source)}: no sets found")
    is_buildable = len(set(ids)) == len(ids) and not takes_folders
    return Labelled.of(parts, ids, metadata, label), source if is_buildable else ["SOURCE"]


def _keys(metadata: Sequence[dict[str, Any]]) -> str:
    keys = dict.fromkeys(key for about in metadata for key in about)
    return f"there is {', '.join(keys)}" if keys else "they have no metadata"


def compare(
    source: Sources,
    *,
    preparation: Preparation,
    reading: Reading,
    label: Annotated[str, Option(metavar="KEY", help="The metadata key that holds the label.")] = "label",
    k: Annotated[int, counted("-k", "--k", help="Number of nearest sets to look at.")] = 10,
    test_size: Annotated[float, Option(metavar="FRACTION", show_default=False, help=TEST_SIZE)] = 0.2,
    origin: Annotated[str | None, Option(metavar="auto|X,Y,Z", help=ORIGIN)] = None,
    learned: Annotated[bool, Option("--learned", help=LEARNED)] = False,
    json: AsJson = False,
) -> None:
    """Compare embeddings on labelled sets before you build an index.

    Each row says how often the nearest sets have the same label as the query, and how long that took. One half of the
    queries chooses the best; the figures are those of the other half. All sets are held in memory, and at most 20,000
    are compared. The last line is the command that builds an index with the best one.

        slosh compare clouds/ --label folder
        slosh compare digits.npz --label label -k 5
    """
    labelled, buildable = read_labelled(source, reading, origin, label)
    labelled.remark(label)
    steps = preparation.preprocess(reading.random_state).fit(labelled.sets)
    labelled.sets = steps.apply(labelled.sets)
    seed = reading.random_state
    found = slosh.compare(labelled.sets, labelled.labels, k=k, test_size=test_size, learned=learned, random_state=seed)
    build = None
    if found.best is not None and found.best.embedding.needs_labels:
        given = [*reading.as_options(), *([] if origin is None else ["--origin", origin]), *preparation.as_options()]
        build = command("slosh", "train", *source, *given, "--label", label, "-o", "model.slosh-embedding")
    elif found.best is not None:
        chosen = options_for(found.best.embedding, label if found.best.labels else None)
        given = [*reading.as_options(), *([] if origin is None else ["--origin", origin]), *preparation.as_options()]
        build = command("slosh", "build", "INDEX", *buildable, *given, *chosen)
    if json:
        say_json(document_of(found) | {"command": build})
        return
    say_comparison(found)
    if build is not None and found.best is not None:
        say(f"To {'learn it' if found.best.embedding.needs_labels else 'build an index with it'}: {build}")


def name_of(embedding: Any) -> str:
    """Return an embedding on one line."""
    return one_line(repr(embedding))


def describe(embedding: Any, label: str | None) -> str:
    """Return an embedding for people: its name, its length, and what it has learnt from; `label` is the key given."""
    facts = [name_of(embedding), f"{embedding.vector_length:,} numbers a set"]
    if (n := getattr(embedding, "n_samples_", None)) is not None and embedding.has_learnt:
        facts.append(f"learnt from {pluralize(n, 'set')}")
        if n_labelled := embedding.n_labelled_:
            of_some = f" of {n_labelled:,} of them" * (n_labelled < n)
            facts.append("with labels" + of_some if label is None else f"with the labels of {label!r}{of_some}")
    return ", ".join(facts)


def document_of(found: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON."""
    best = found.best
    rows = [{**row, "embedding": None if row.embedding is None else name_of(row.embedding)} for row in found.rows]
    return {"about": found.about, "best": None if best is None else best.method, "rows": rows}


def say_comparison(found: Comparison) -> None:
    """Print the table, what failed or was skipped, and the sentence about the best."""
    say(f"{found.about}\n")
    columns, *cells = found.table()
    say_table(columns, cells, columns[2:])
    for sentence in (*found.failures(), *found.skipped()):
        say(sentence)
    say(f"\n{found.summary}")


def check_label(key: str, metadata: Sequence[dict[str, Any]], for_all: dict[str, Any] | None) -> None:
    """Refuse a key that none of the first sets has, before anything is stored: it may be misspelt."""
    if key not in (for_all or {}) and all(about.get(key) is None for about in metadata):
        problem = f"none of the first {pluralize(len(metadata), 'set')} has {key!r} in its metadata"
        remedy = f"choose a key with --label ({_keys(metadata)}), or give files with labels first"
        raise CommandError(f"{problem}: {remedy}")


def settle(index: SetIndex, wanted: EmbeddingOptions, seed: int) -> Comparison | None:
    """Give a filled index the embedding that the options ask for, learnt from its sets; return what was compared."""
    if wanted.is_file:
        embedding, steps = wanted.load()
        if steps != index.preprocess:
            problem = (
                f"{wanted.embedding} was learnt from sets prepared by {steps!r}, the index has {index.preprocess!r}"
            )
            raise CommandError(f"{problem}: build an index with it, or train it on sets that are prepared alike")
        index.retrain(embedding=embedding, random_state=seed)
        return None
    if not wanted.is_chosen:
        index.retrain(embedding=wanted.make(seed), label=wanted.label, random_state=seed)
        return None
    assert wanted.label is not None
    found = choose(index, wanted.label, seed)
    if found.best is None:
        raise CommandError(f"all embeddings failed: {found.failures()[0]}")
    best = found.best.embedding
    if best.learns or repr(best) != repr(index.embedding):
        from sklearn.base import clone

        label = wanted.label if found.best.labels else None
        index.retrain(embedding=clone(best), label=label, random_state=seed)
    return found


def choose(index: SetIndex, label: str, seed: int) -> Comparison:
    """Compare embeddings on stored sets, drawn from all that have the label."""
    from ..neighbors.compare import suited_methods

    names = sorted(index.select(slosh.where.Exists(label)))  # what is drawn does not depend on the order of the adds
    if not names:
        some: Any = index.get(index.select(limit=READ_SETS))
        raise CommandError(f"no set has {label!r} in its metadata: choose a key with --label; {_keys(some.metadata)}")
    n_without, about = len(index) - len(names), index.info()
    size = max(1, about["points"] * index.dim // len(index))
    most = min(COMPARED_SETS, max(FEWEST_COMPARED, COMPARED_NUMBERS // size))
    if len(names) > most:
        drawn = sorted(random.Random(seed).sample(range(len(names)), most))
        names = [names[i] for i in drawn]
    parts, metadata = [], []
    for sets, part in _prepared(index, names):
        parts.append(sets)
        metadata += part
    labelled = Labelled.of(parts, names, metadata, label)
    labelled.n_without += n_without
    labelled.remark(label)

    def methods(stored: Sets) -> dict[str, Any]:
        return {name: method for name, method in suited_methods(stored).items() if SLOW not in name}

    k = min(10, len(labelled.labels) - 1)
    return slosh.compare(labelled.sets, labelled.labels, methods=methods, k=k, random_state=seed)


def _prepared(index: SetIndex, names: list[str]) -> Iterator[tuple[Sets, list[dict[str, Any]]]]:
    """Yield stored sets as they are embedded, and their metadata."""
    steps = index.preprocess
    for first in range(0, len(names), READ_SETS):
        found: Any = index.get(names[first : first + READ_SETS])
        yield steps.apply(found.sets), found.metadata
