"""The command `train`: labelled sets of files come in, a file with an embedding that was learnt from them goes out.

An interrupted command goes on where it stopped, by a checkpoint beside the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import slosh

from ..data.text import format_bytes
from ..errors import DamagedError, FormatError, NotAFile
from . import options
from .choice import Labelled, describe, name_of, read_labelled
from .design import ORIGIN, Preparation, command, parse_views
from .messages import OTHER_CHECKPOINT, CommandError, UsageError
from .options import AsJson, Reading, Sources, counted
from .output import pluralize, remark, say, say_json

CHECKPOINT = ".checkpoint"
"""What the name of the file is followed by where training is saved to."""
EMBEDDING = "What the head is put on: sliced, local, field:256, gem:2, ... or several joined by +, as in sliced+field."
NETWORK = "Put a network on each point before the slices: points. Without it, a head is learnt on other embeddings."
OUT = "The file to write; slosh build --embedding FILE takes it."


def train(
    source: Sources,
    *,
    preparation: Preparation,
    reading: Reading,
    label: Annotated[str, Option(metavar="KEY", help="The metadata key that holds the label.")] = "label",
    out: Annotated[Path, Option("-o", "--out", metavar="FILE", help=OUT)] = Path("model.slosh-embedding"),
    embedding: Annotated[str | None, Option(metavar="NAME", help=EMBEDDING)] = None,
    network: Annotated[str | None, Option(metavar="NAME", help=NETWORK)] = None,
    components: Annotated[int, counted(help="Numbers of a vector.")] = 128,
    epochs: Annotated[int | None, counted(help="How often to go through all sets, at most.")] = None,
    device: Annotated[str, Option(metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    origin: Annotated[str | None, Option(metavar="auto|X,Y,Z", help=ORIGIN)] = None,
    json: AsJson = False,
) -> None:
    """Learn an embedding from labelled sets, and write it to a file. Needs PyTorch: pip install "slosh\\[torch]".

    Sets of one label are to be near each other. All sets are held in memory. Sets that the options prepare are prepared
    alike when the file is used: slosh build takes what was done from it. After Ctrl-C the same command continues where
    it stopped. Classes that have no label here may be told apart less well than without labels: see docs/learn.md.

        slosh train clouds/ --label folder -o shapes.slosh-embedding
        slosh build shapes.slosh clouds/ --embedding shapes.slosh-embedding
        slosh train digits.npz --label label --network points --device cuda
    """
    if not out.resolve().parent.is_dir():
        raise CommandError(f"{out.parent} is not a folder: create it first, or choose another place for -o")
    if out.is_dir():
        raise CommandError(f"{out} is a folder: give -o the name of a file, such as {out / 'model.slosh-embedding'}")
    if not os.access(out.resolve().parent, os.W_OK):
        raise CommandError(f"{out.parent} cannot be written to: choose another place for -o")
    if network is not None and embedding is not None:
        raise UsageError("--network takes the place of --embedding: give one of the two")
    if network is not None:
        from ..learn.networks import BUILT_IN

        options.choose("--network", network, dict.fromkeys(BUILT_IN))
    views = None if embedding is None else parse_views(embedding, reading.random_state)
    checkpoint = out.with_name(out.name + CHECKPOINT)
    _remark_checkpoint(checkpoint)
    labelled, buildable = read_labelled(source, reading, origin, label)
    labelled.remark(label)
    steps = preparation.preprocess(reading.random_state).fit(labelled.sets)
    sets, started = steps.apply(labelled.sets), time.perf_counter()
    model = slosh.learn.LearnedEmbedding(
        network, views, n_components=components, epochs=epochs, device=device, random_state=reading.random_state
    )
    try:
        with _checkpoint_is_ours(checkpoint):
            model.fit(sets, labelled.labels, checkpoint=checkpoint)
    except KeyboardInterrupt:
        if checkpoint.exists():
            remark(f"slosh: {checkpoint} holds what was learnt so far; the same command continues from it")
        raise
    slosh.save_embedding(model, out, preprocess=steps)
    checkpoint.unlink(missing_ok=True)
    _report(model, out, labelled, time.perf_counter() - started, buildable, reading, label, json)


def _remark_checkpoint(path: Path) -> None:
    """Say how far the training is that an earlier command has left, and refuse a file that is something else."""
    from ..data import tensors
    from ..learn.checkpoints import KIND

    if not path.exists():
        return
    with _checkpoint_is_ours(path):
        header, _ = tensors.read_mapped(path, KIND)
    if isinstance(history := header.get("history"), list):
        done = pluralize(len(history), "epoch")
        remark(f"slosh: {path} holds {done}: training continues from there if data and options are the same")


@contextmanager
def _checkpoint_is_ours(path: Path) -> Iterator[None]:
    """Say what to do about a file in the place of the checkpoint, which the user has not named."""
    try:
        yield
    except (FormatError, DamagedError, NotAFile) as error:
        if error.location != str(path):
            raise
        raise CommandError(f"{error.problem}: {OTHER_CHECKPOINT}") from None


def _report(
    model: Any,
    out: Path,
    labelled: Labelled,
    seconds: float,
    source: Sequence[str],
    reading: Reading,
    label: str,
    json: bool,
) -> None:
    kept, size = model.history_[model.best_epoch_], out.stat().st_size
    build = command("slosh", "build", "INDEX", *source, *reading.as_options(), "--embedding", str(out))
    if json:
        held = None if kept["held_accuracy"] != kept["held_accuracy"] else kept["held_accuracy"]
        document = {"file": str(out), "sets": len(labelled.sets), "classes": len(model.classes_), "bytes": size}
        document |= {"embedding": name_of(model), "epochs": model.n_epochs_, "held_accuracy": held}
        say_json(document | {"seconds": seconds, "command": build})
        return
    say(f"learnt from {pluralize(len(labelled.sets), 'set')} of {len(model.classes_)} labels in {seconds:.3g} s")
    if kept["held_accuracy"] == kept["held_accuracy"]:
        say(f"of the sets that were held back, {kept['held_accuracy']:.1%} get their label")
    say(f"{out}: {describe(model, label)}, {format_bytes(size)}")
    say(f"To build an index with it: {build}")


COMMANDS = (train,)
