"""Commands about a whole index: info, tune, enable, retrain, verify, compact, export and copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument

import slosh

from ..data.text import format_bytes
from ..errors import InputError
from .choice import describe, document_of, name_of, say_comparison, settle
from .design import EmbeddingOptions, command, options_for
from .messages import CommandError, UsageError, error_message
from .options import (
    AsJson,
    Device,
    Location,
    Reading,
    check_free,
    choose,
    counted,
    disk_bytes,
    index_argument,
    open_index,
    recall_option,
)
from .output import format_cell, one_line, pluralize, say, say_facts, say_json, say_result
from .process import FAILED


def info(index: Location, *, json: AsJson = False) -> None:
    """Show what an index holds, how it was made, and how much disk space and memory it takes."""
    with open_index(index) as opened:
        about = opened.info()
    if json:
        say_json(about)
        return
    sizes = about["sizes"]
    facts: dict[str, Any] = {
        "index": index,
        "sets": f"{about['sets']:,}",
        "points": f"{about['points']:,}" + (f", {sizes['smallest']:,} to {sizes['largest']:,} a set" if sizes else ""),
        "dimension": about["dim"],
        "weights": {None: "not decided", True: "yes", False: "no"}[about["weighted"]],
        "embedding": f"{one_line(about['embedding'])}, {about['vector_length']:,} numbers a set",
        "made on": _made_on(about.get("made_on", [])),
        "learnt from": _learnt_from(about["learnt_from"]),
        "retrain": about["retrain"],
        "search": about["search"],
        "preprocessing": about["preprocess"],
        "origin": about["origin"],
        "parts": None if about["parts"] is None else f"{about['parts']['n_anchors']:,} anchors",
        "recall": "not tuned" if about["recall"] is None else about["recall"],
        "calibrated": _calibrated(about.get("search_info", {}).get("calibrations", [])),
    }
    for name, parts in (("on disk", about.get("disk_bytes")), ("in memory", about.get("memory_bytes"))):
        facts[name] = _sizes(parts) if parts else None
    if "server" in about:
        lag = about.get("lag_seconds")
        behind = "it is not known how far behind" if lag is None else f"{lag:.1f} s behind"
        facts["server"] = f"PostgreSQL {about['server']}" + (f", a standby, {behind}" if about.get("standby") else "")
    if about.get("removed_since_compact"):
        facts["removed"] = f"{about['removed_since_compact']:,} since the last slosh compact"
    if about.get("cache_rebuilt"):
        facts["cache"] = f"rebuilt: {about['cache_rebuilt']}"
    say_facts({name: fact for name, fact in facts.items() if fact is not None})


def _made_on(names: list[str]) -> str | None:
    """Return what has made the vectors, unless it was the CPU alone."""
    return None if names in ([], ["cpu"]) else ", ".join(names)


def _learnt_from(counts: dict[str, int] | None) -> str | None:
    """Return what the embedding has learnt from."""
    if counts is None:
        return None
    return pluralize(counts["sets"], "set") + f", {counts['labelled']:,} with labels" * bool(counts["labelled"])


def _calibrated(calibrations: list[dict[str, Any]]) -> str | None:
    """Return for which k and recall the work was measured; exact searches need no measuring."""
    recalls: dict[int, list[str]] = {}
    for each in calibrations:
        if each["depth"]:
            recalls.setdefault(each["k"], []).append(f"{each['recall']:g}")
    return "; ".join(f"k = {k} at {', '.join(found)}" for k, found in recalls.items()) or None


def _sizes(parts: dict[str, int]) -> str:
    listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    return f"{format_bytes(sum(parts.values()))} ({listed})"


def tune(
    index: Location,
    query: Annotated[
        list[str] | None,
        Argument(
            metavar="QUERY",
            help="Files, folders, or quoted patterns with your own queries: 354 sets for a recall of 0.99, 36 for 0.9.",
        ),
    ] = None,
    *,
    reading: Reading,
    recall: Annotated[float, recall_option(help="Fraction of the true nearest neighbours to find; 1 is exact.")] = 0.99,
    k: Annotated[int, counted("-k", "--k", help="Number of neighbours that searches ask for.")] = 10,
    json: AsJson = False,
) -> None:
    """Measure what it takes to reach a recall for the k nearest, and make that the default of all searches.

    The recall is measured with stored sets as queries. If your queries are unlike the stored sets, give some of them.

        slosh tune shapes.slosh --recall 0.95
        slosh tune shapes.slosh scans/ -k 20
    """
    with open_index(index, write=True) as changed:
        parts = [batch.sets for source in query or () for batch in reading.read_queries(source, changed)]
        tuned = changed.tune(recall, k, slosh.Sets.concat(parts) if parts else None)
    say_result(json, tuned._asdict(), str(tuned))


def enable(
    index: Location,
    feature: Annotated[str, Argument(metavar="FEATURE", help="What to enable: parts.")] = "parts",
    *,
    seed: Annotated[int, counted(min=0, help="Seed for everything that is drawn at random.")] = 0,
    json: AsJson = False,
) -> None:
    """Store what part search needs: slosh search --match part, contained or both.

    Its anchors are learnt from the stored sets. Searches go on meanwhile, and distances of whole sets do not change.

        slosh enable shapes.slosh parts
    """
    choose("FEATURE", feature, {"parts": None})
    with open_index(index, write=True) as changed:
        changed.enable(feature, random_state=seed)
        about = changed.info()
    told = f"{index}: part search by {about['parts']['n_anchors']:,} anchors is enabled"
    say_result(json, {"index": index, "sets": about["sets"], "parts": about["parts"]}, told)


def retrain(
    index: Location,
    *,
    wanted: EmbeddingOptions,
    seed: Annotated[int, counted(min=0, help="Seed for everything that is drawn at random.")] = 0,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Learn the embedding anew from the stored sets, or give the index another one. Distances change.

    Without options, what the embedding learns from data is learnt from a sample of all stored sets. With --label
    alone, embeddings are compared on up to 4,000 stored sets, and the best one is taken. Searches go on meanwhile.

        slosh retrain shapes.slosh
        slosh retrain shapes.slosh --label folder
        slosh retrain shapes.slosh --embedding sliced+field --whiten
    """
    with open_index(index, write=True, device=device) as changed:
        found = None
        if wanted.is_chosen or wanted.is_named:
            found = settle(changed, wanted, seed)
        elif not changed.embedding.learns:
            problem = f"{name_of(changed.embedding)} learns nothing from data"
            raise CommandError(
                f"{problem}: give another one with --embedding or --whiten, or have it chosen by --label"
            )
        elif changed.embedding.needs_labels:
            again = command("slosh", "retrain", index, "--embedding", "model.slosh-embedding")
            raise CommandError(f"the embedding was learnt by slosh train: learn it anew, and then run {again}")
        elif getattr(changed.embedding, "n_labelled_", 0):
            again = command("slosh", "retrain", index, *options_for(changed.embedding, "KEY"))
            raise CommandError(f"the embedding has learnt from labels: say from which metadata key it is to: {again}")
        else:
            changed.retrain(random_state=seed)
        n, embedding = len(changed), changed.embedding
    if json:
        compared = {} if found is None else {"compared": document_of(found)}
        say_json({"index": index, "sets": n, "embedding": name_of(embedding), **compared})
        return
    if found is not None:
        say_comparison(found)
        say()
    say(f"{index}: {pluralize(n, 'set')}, {describe(embedding, wanted.label)}")


def verify(
    index: Location,
    *,
    sample: Annotated[int | None, counted(help="Recompute the vectors of only this many sets (default: all).")] = None,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Check an index: every byte of the points, every vector, all metadata, and the recall.

    The exit code is 1 if a problem is found.
    """
    with open_index(index, device=device) as opened:
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


def compact(index: Location, *, device: Device = None, json: AsJson = False) -> None:
    """Reclaim the space of removed sets, and learn the lists of the search anew.

    The result equals an index built from scratch in id order. No distance changes.
    """
    with open_index(index, write=True, device=device) as changed:
        before = disk_bytes(changed.info())
        changed.compact()
    with open_index(index) as changed:
        after, n = disk_bytes(changed.info()), len(changed)
    document = {"index": index, "sets": n, "bytes_before": before, "bytes": after}
    sizes = f", {format_bytes(before)} before, {format_bytes(after)} now" * (after > 0)
    say_result(json, document, f"{index}: {pluralize(n, 'set')}{sizes}")


def export(
    index: Location,
    out: Annotated[Path, Argument(metavar="OUT.parquet", help="The file to write.")],
    *,
    json: AsJson = False,
) -> None:
    """Write all sets with their ids and metadata to a Parquet file. Other programs and `slosh build` can read it."""
    with open_index(index) as opened:
        try:
            n = opened.export(out)
        except InputError as error:
            raise UsageError(error_message(error)) from None
    say_result(json, {"index": index, "file": str(out), "sets": n}, f"wrote {pluralize(n, 'set')} to {out}")


def copy(
    source: Annotated[str, index_argument(metavar="SOURCE", help="The index to copy.")],
    target: Annotated[str, index_argument(metavar="TARGET", help="Where to put the copy.")],
    *,
    json: AsJson = False,
) -> None:
    """Copy an index to another place, with all sets, ids, metadata, weights and settings.

    The copy is in the format of this version of slosh. The source is only read, and may be in use.

        slosh copy shapes.slosh backup/shapes.slosh
        slosh copy shapes.slosh postgresql://user@host/database#shapes
    """
    check_free(target)
    with open_index(source) as opened:
        n = opened.copy_to(target)
    document = {"index": source, "copy": target, "sets": n}
    say_result(json, document, f"copied {pluralize(n, 'set')} to {target}")


COMMANDS = (info, tune, enable, retrain, verify, compact, export, copy)
