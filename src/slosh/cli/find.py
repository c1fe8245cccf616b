"""`slosh search`, `slosh explain` and `slosh duplicates`: questions to an index.

Queries are arguments that are ids in the index, or files with sets.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from .messages import CommandError, UsageError
from .options import (
    AsJson,
    Device,
    Flip,
    Location,
    Offset,
    Reading,
    Where,
    choose,
    counted,
    open_index,
    parse_where,
    recall_option,
    remark_unknown_fields,
)
from .output import metadata_columns, pluralize, remark, say, say_facts, say_json, say_table

if TYPE_CHECKING:
    from ..data.sets import Sets
    from ..index.hits import Hits
    from ..index.set_index import SetIndex
    from ..search import Stats

RERANKS = ("sliced", "wasserstein", "chamfer", "hausdorff", "maxsim", "partial_wasserstein")
MATCHES = ("whole", "part", "contained", "both")
PROVABLE = ("sliced", "hausdorff")
"""Distances that --certify can prove, each on an index with the embedding for it."""
SHOWN_ELEMENTS = 10
SHOWN_FEATURES = 8

Queries = Annotated[
    list[str], Argument(metavar="QUERY", help="Ids of stored sets; or files, folders, or quoted patterns.")
]
Certify = Annotated[
    bool, Option("--certify", help="Search by the sliced distance itself, and prove that the answer is exact.")
]


@dataclass(frozen=True)
class Meaning:
    """What a query means that is an id and the name of a file."""

    by_id: Annotated[bool, Option("--id", help="Treat the queries as ids even if files with those names exist.")] = (
        False
    )
    by_file: Annotated[bool, Option("--file", help="Treat the queries as files even if sets with those ids exist.")] = (
        False
    )

    def is_file(self, query: str, index: SetIndex) -> bool:
        """Return whether a query is a file, and not an id."""
        if self.by_id and self.by_file:
            raise UsageError("--id and --file exclude each other: give one of the two")
        if self.by_id or self.by_file:
            return self.by_file
        stored, pattern = query in index, any(mark in query for mark in "*?[")
        there = os.path.lexists(query) or (pattern and bool(glob.glob(query, recursive=True)))
        if stored and there:
            raise UsageError(f"{query} is an id in the index and also a file: choose with --id or --file")
        if not stored and not there:
            raise CommandError(f"{query} is neither an id in the index nor a file: slosh show lists the ids")
        return there


class QueryBatch(NamedTuple):
    """Some queries: stored sets by their ids (`sets` is None), or sets that were read, with their names."""

    names: list[str]
    sets: Sets | None

    def arguments(self) -> dict[str, Any]:
        """Return the argument of `SetIndex.search` that these queries are."""
        return {"id": self.names} if self.sets is None else {"queries": self.sets}


def read_queries(index: SetIndex, queries: Sequence[str], meaning: Meaning, reading: Reading) -> Iterator[QueryBatch]:
    """Yield the queries in their order: successive ids together, files batch by batch."""
    kinds = [(meaning.is_file(query, index), query) for query in queries]
    for is_file, group in groupby(kinds, key=itemgetter(0)):
        names = [query for _, query in group]
        if not is_file:
            yield QueryBatch(names, None)
            continue
        for query in names:
            yield from (QueryBatch(batch.ids, batch.sets) for batch in reading.read_queries(query, index))


def read_one_query(index: SetIndex, query: str, meaning: Meaning, reading: Reading) -> QueryBatch:
    """Return a query that must be one set."""
    batches = list(islice(read_queries(index, [query], meaning, reading), 2))
    names = [name for batch in batches for name in batch.names]
    if not names:
        raise CommandError(f"{query}: no sets found")
    if len(names) > 1:
        listed = ", ".join(names[:3])
        raise CommandError(f"{query} holds several sets ({listed}, ...): give a file of one set, or an id")
    return batches[0]


def search(
    index: Location,
    query: Queries,
    *,
    meaning: Meaning,
    reading: Reading,
    k: Annotated[int | None, counted("-k", "--k", help="Number of neighbours to find (default: 10).")] = None,
    offset: Offset = 0,
    radius: Annotated[
        float | None,
        Option(metavar="DISTANCE", min=0.0, help="Return all sets within this distance instead of the k nearest."),
    ] = None,
    where: Where = None,
    recall: Annotated[
        float | None,
        recall_option(
            help="Fraction of the true nearest neighbours to find; 1 is exact (default: what the index was tuned for)."
        ),
    ] = None,
    rerank: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Reorder the nearest by another distance: sliced, wasserstein, chamfer, hausdorff, maxsim, "
            "partial_wasserstein.",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        counted(
            help="Number of sets to reorder with --rerank (default: 4 k, and at least 32), or to compare by parts."
        ),
    ] = None,
    certify: Certify = False,
    match: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Sets to look for: whole (like the query), part (that contain it), contained (that lie within it), "
            "both. All but whole need slosh enable.",
        ),
    ] = "whole",
    coverage: Annotated[
        float | None,
        Option(metavar="SHARE", help="Share of the mass that must be covered with --match part or contained."),
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="PNG", help="Draw the queries and their neighbours, in 2-D or 3-D.")
    ] = None,
    flip: Flip = False,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Find the nearest sets.

    A query is the id of a stored set, which does not find itself, or a file, a folder or a pattern. Each set in a file
    is a query. With --json, each query gives one line: {"query": ..., "hits": [{"id", "distance", "metadata"}, ...]}.

        slosh search shapes.slosh chair_1.ply
        slosh search shapes.slosh new.ply -k 5 --where "folder = chair"
        slosh search shapes.slosh new.ply --certify --json
        slosh search shapes.slosh new.ply --plot neighbours.png
        slosh search shapes.slosh handle.ply --match part
    """
    options = _search_options(k, offset, radius, rerank, depth, certify, match) | {
        "where": parse_where(where),
        "recall": recall,
        "match": match,
        "coverage": coverage,
    }
    with open_index(index, device=device) as opened:
        picture = None
        if plot is not None:
            from .draw import Picture

            picture = Picture(opened)
        n = found = n_unlike = 0
        for batch in read_queries(opened, query, meaning, reading):
            ask: Any = opened.search if radius is None else opened.range_search
            lists = ask(**batch.arguments(), **options)
            for i, (name, hits) in enumerate(zip(batch.names, lists, strict=True)):
                if json:
                    say_json(_as_document(name, hits, lists.stats, i))
                else:
                    _say_hits(name, hits, offset, first=n == 0)
                n, found = n + 1, found + len(hits)
                if picture is not None:
                    picture.add(name, None if batch.sets is None else batch.sets[i : i + 1], hits)
            if not json and batch.names:
                say(f"\n{summarize(lists.stats, len(opened))}")
            n_unlike += 0 if lists.stats.unlike is None else int(lists.stats.unlike.sum())
        if n_unlike:
            remark(f"slosh: {describe_unlike(n_unlike, n)}")
        if not found:
            remark_unknown_fields(opened, options["where"])
        if picture is not None and plot is not None:
            said = picture.save(plot, flip, n)
            if not json:
                say(said)


def _search_options(
    k: int | None, offset: int, radius: float | None, rerank: str | None, depth: int | None, certify: bool, match: str
) -> dict[str, Any]:
    """Return the arguments of `SetIndex.search` or, with a radius, of `SetIndex.range_search`."""
    choose("--match", match, dict.fromkeys(MATCHES))
    if depth is not None and rerank is None and match == "whole":
        raise UsageError("--depth is the number of sets that --rerank reorders: give --rerank, too")
    if radius is not None and (k is not None or offset or (rerank is not None and not certify and match == "whole")):
        raise UsageError("--radius returns all sets within a distance: leave -k, --offset and --rerank out")
    if rerank is not None:
        choose("--rerank", rerank, dict.fromkeys(RERANKS))
        if certify and rerank not in PROVABLE and not (match == "part" and rerank == "maxsim"):
            told = "--certify proves the sliced distance, or with --rerank hausdorff the Hausdorff distance"
            raise UsageError(f"{told}: leave --rerank {rerank} out")
    if radius is not None:
        return {"radius": radius, "rerank": rerank, "certify": certify}
    return {"k": k or 10, "offset": offset, "rerank": rerank, "depth": depth, "certify": certify}


def _as_document(name: str, hits: Hits, stats: Stats, i: int) -> dict[str, Any]:
    """Return what JSON shows of query i."""
    found = [{"id": hit.id, "distance": hit.distance, "metadata": hit.metadata} for hit in hits]
    unlike = None if stats.unlike is None else bool(stats.unlike[i])
    return {
        "query": name, "distance_kind": hits.distance_kind, "recall": stats.recall, "unlike": unlike, "hits": found
    }  # fmt: skip


def _say_hits(name: str, hits: Hits, offset: int, first: bool) -> None:
    if not first:
        say()
    if not len(hits):
        say(f"{name}: no sets found")
        return
    say(f"{name}: {pluralize(len(hits), 'set')} by {hits.distance_kind} distance\n")
    keys, values = metadata_columns(hits.metadata)
    ranked = enumerate(zip(hits, values, strict=True), offset + 1)
    lines = [[place, hit.id, hit.distance, *value] for place, (hit, value) in ranked]
    say_table(["", "id", "distance", *keys], lines, ["", "distance"])


def summarize(stats: Stats, n_sets: int) -> str:
    """Return the line below the tables: the time, the promise, and the work for a query.

    Vectors are compared in blocks, and some twice: no more are reported than there are sets.
    """
    promise = "no promise" if stats.recall is None else "exact" if stats.recall == 1 else f"recall {stats.recall:.3f}"
    n = len(stats.candidates)
    work = [f"{_mean_count(stats.candidates.clip(max=n_sets), 'vector')} compared"]
    if stats.full_distances is not None:
        work.append(_mean_count(stats.full_distances, "full distance"))
    asked = "1 query" if n == 1 else f"{n:,} queries"
    return f"{asked} in {stats.duration}, {promise}; {'a query: ' * (n != 1)}{', '.join(work)}"


def describe_unlike(n_unlike: int, n: int) -> str:
    """Return a remark on queries that are unlike those that the index was calibrated with; there are n in all."""
    which = "the query is" if n == 1 else f"{n_unlike:,} of {n:,} queries {'is' if n_unlike == 1 else 'are'}"
    told = f"{which} farther from every stored set than 99% of the queries that the index was calibrated with"
    return f"{told}: less may be found than is promised, unless it is exact"


def _mean_count(numbers: Any, thing: str) -> str:
    mean = float(numbers.mean()) if len(numbers) else 0.0
    if mean >= 10 or mean.is_integer():
        return pluralize(round(mean), thing)
    return f"{mean:.1f} {thing}s"


def explain(
    index: Location,
    query: Annotated[str, Argument(metavar="QUERY", help="The id of a stored set, or a file that holds one set.")],
    id: Annotated[str, Argument(metavar="ID", help="The id of the stored set to compare it with.")],
    *,
    meaning: Meaning,
    reading: Reading,
    plot: Annotated[
        Path | None, Option(metavar="PNG", help="Draw both sets, in 2-D or 3-D. Larger points have larger shares.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain the distance between two sets.

    The squared sliced distance is a sum over the points of the query. The points with the largest shares are listed.

        slosh explain shapes.slosh chair_1.ply chair_7.ply --plot why.png
    """
    with open_index(index) as opened:
        if plot is not None:
            from .draw import check_drawable, missing_glyphs_are_boxes

            check_drawable(opened.dim)
        asked = read_one_query(opened, query, meaning, reading)
        name = asked.names[0]
        found = opened.explain(name if asked.sets is None else asked.sets, id)
    if plot is not None:
        title = f"x: {name}, y: {id}\nsliced distance {found.distance:.4g}; size: share of its square"
        with missing_glyphs_are_boxes():
            found.plot(plot, title=title)
    if json:
        document = {"query": name, "id": id, "distance": found.distance, "distance_kind": "sliced"}
        shares = {"slices": found.slices, "query_elements": found.x_elements, "id_elements": found.y_elements}
        say_json(document | shares)
        return
    say(f"{name} and {id}: sliced distance {found.distance:.6g}, over {pluralize(len(found.slices), 'slice')}\n")
    total = found.distance**2 or 1.0
    top = (-found.x_elements).argsort(kind="stable")[:SHOWN_ELEMENTS]
    features = [f"x{j}" for j in range(min(found.x.dim, SHOWN_FEATURES))]
    lines = [[int(i), f"{found.x_elements[i] / total:.1%}", *map(float, found.x[0][i, :SHOWN_FEATURES])] for i in top]
    say_table(["point", "share", *features], lines, ["point", "share", *features])
    if plot is not None:
        say(f"\ndrawn in {plot}")


def duplicates(
    index: Location,
    *,
    radius: Annotated[
        float, Option(metavar="DISTANCE", min=0.0, help="Largest distance between the two sets of a pair.")
    ] = 0.0,
    where: Where = None,
    certify: Certify = False,
    limit: Annotated[int, counted(help="Number of pairs to list; --json lists all.")] = 50,
    json: AsJson = False,
) -> None:
    """Find pairs of sets that are nearly equal.

    Without --certify, pairs are found by the embedded distance, which is never larger than the sliced distance: no pair
    within the radius is missed, but some may be farther apart.

        slosh duplicates shapes.slosh --radius 0.01
    """
    node = parse_where(where)
    with open_index(index) as opened:
        pairs = opened.duplicates(radius, where=node, certify=certify)
        if not len(pairs):
            remark_unknown_fields(opened, node)
    groups = pairs.groups()
    if json:
        listed = [pair._asdict() for pair in pairs]
        say_json({"radius": radius, "distance_kind": pairs.distance_kind, "pairs": listed, "groups": groups})
        return
    if not len(pairs):
        say(f"no two sets are within {radius:g} by {pairs.distance_kind} distance")
        return
    say_table(["id", "other", "distance"], pairs[:limit], ["distance"])
    if len(pairs) > limit:
        say(f"and {len(pairs) - limit:,} more: --limit or --json shows them")
    n_sets = sum(map(len, groups))
    found = f"{len(pairs):,}, by {pairs.distance_kind} distance"
    say_facts({"pairs": found, "groups": f"{len(groups):,}, of {n_sets:,} sets"})


COMMANDS = (search, explain, duplicates)
