"""`slosh search`, `slosh explain` and `slosh duplicates`: what an index is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..index.hits import Hits
from ..index.records import Record, Records
from ..index.set_index import SetIndex
from ..search.result import Stats
from .draw import MOST_ROWS, Panel, check_drawable, draw, missing_glyphs_are_boxes
from .options import AsJson, IndexPath, Reading, Recall, Where, filter_of, opened, reads_files, say_unknown_fields
from .output import counted, metadata_columns, say, say_facts, say_json, say_table
from .queries import Asked, ByFile, ById, Queries, asked, one_query
from .running import WrongUse

RERANKS = ("sliced", "wasserstein", "chamfer", "hausdorff")
A_LINE = 10
"""Neighbours of a query in a line of a picture."""
DRAWN = 30
"""Neighbours of a query in a picture."""
SHOWN = 10

Certify = Annotated[bool, typer.Option("--certify", help="By the sliced distance itself, and proved.")]
Flip = Annotated[bool, typer.Option("--flip", help="In pictures y points down, as in images.")]


@reads_files
def search(
    index: IndexPath,
    query: Queries,
    *,
    reading: Reading,
    k: Annotated[
        int | None,
        typer.Option("-k", "--k", min=1, help="How many neighbours; 10 unless given.", show_default=False),
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option("--radius", min=0.0, help="Instead of the k nearest, all that are so near.", show_default=False),
    ] = None,
    where: Where = None,
    recall: Recall = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            "--rerank", metavar="DISTANCE", help="Order the best by sliced, wasserstein, chamfer or hausdorff."
        ),
    ] = None,
    certify: Certify = False,
    by_id: ById = False,
    by_file: ByFile = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Draw the queries and their neighbours; points in 2-D or 3-D."),
    ] = None,
    flip: Flip = False,
    json: AsJson = False,
) -> None:
    """Find the nearest sets.

    A query is the id of a stored set, which does not find itself, or a file, a folder or a pattern; each set in it is a
    query. With --json there is one line for each query: {"query": ..., "hits": [{"id", "distance", "metadata"}, ...]}.

        slosh search shapes.slosh chair_1.ply
        slosh search shapes.slosh new.ply -k 5 --where "folder = chair"
        slosh search shapes.slosh new.ply --certify --json
        slosh search shapes.slosh new.ply --plot neighbours.png
    """
    if radius is not None and (k is not None or rerank is not None):
        raise WrongUse("--radius gives all sets that are so near: leave -k and --rerank out")
    if rerank is not None and rerank not in RERANKS:
        raise WrongUse(f"--rerank {rerank} is not known: give {', '.join(RERANKS)}")
    if rerank is not None and certify:
        raise WrongUse("--certify orders by the sliced distance: leave --rerank out")
    options: dict[str, Any] = {"where": filter_of(where), "recall": recall, "certify": certify}
    with opened(index) as found_in:
        if plot is not None:
            check_drawable(found_in.dim)
        rows: list[list[Panel | None]] = []
        n = found = drawn = most = 0
        for part in asked(found_in, query, reading, by_id, by_file):
            queries = {"id": part.names} if part.sets is None else {"queries": part.sets}
            if radius is None:
                lists = found_in.search(**queries, k=k or 10, rerank=rerank, **options)
            else:
                lists = found_in.range_search(**queries, radius=radius, **options)
            promised = lists.stats.recall
            for i, (name, hits) in enumerate(zip(part.names, lists, strict=True)):
                if json:
                    say_json(_as_document(name, hits, promised))
                else:
                    _as_table(name, hits, first=n == 0)
                n, found = n + 1, found + len(hits)
                if plot is not None and drawn == n - 1:
                    lines = _panels(found_in, part, i, name, hits)
                    if not rows or len(rows) + len(lines) <= MOST_ROWS:
                        rows += lines
                        drawn, most = n, max(most, len(hits))
            if not json and part.names:
                say(f"\n{_what_it_took(lists.stats, len(found_in))}")
        if not found:
            say_unknown_fields(found_in, options["where"])
        if plot is not None:
            draw(rows, plot, one_scale=_one_scale(found_in), flip=flip)
    if plot is not None and not json:
        which = f", the first {drawn:,} of {n:,} queries" * (drawn < n)
        say(f"drawn in {plot}{which}{f', the {DRAWN} nearest of each' * (most > DRAWN)}")


def _as_document(name: str, hits: Hits, promised: float | None) -> dict[str, Any]:
    found = [{"id": hit.id, "distance": hit.distance, "metadata": hit.metadata} for hit in hits]
    return {"query": name, "distance_kind": hits.distance_kind, "recall": promised, "hits": found}


def _what_it_took(stats: Stats, sets: int) -> str:
    """The line below the tables: the time, the promise, and the work for a query.

    Vectors are compared in blocks, and some twice: no more are told than there are sets.
    """
    promise = "no promise" if stats.recall is None else "exact" if stats.recall == 1 else f"recall {stats.recall:.3f}"
    n = len(stats.candidates)
    work = [f"{_mean_count(np.minimum(stats.candidates, sets), 'vector')} compared"]
    if stats.full_distances is not None:
        work.append(_mean_count(stats.full_distances, "full distance"))
    seconds = f"{stats.seconds:.3g}" if stats.seconds < 100 else f"{stats.seconds:,.0f}"
    asked = "1 query" if n == 1 else f"{n:,} queries"
    return f"{asked} in {seconds} s, {promise}; {'a query: ' * (n != 1)}{', '.join(work)}"


def _mean_count(numbers: Any, thing: str) -> str:
    mean = float(numbers.mean()) if len(numbers) else 0.0
    if mean >= 10 or mean.is_integer():
        return counted(round(mean), thing)
    return f"{mean:.1f} {thing}s"


def _as_table(name: str, hits: Hits, first: bool) -> None:
    if not first:
        say()
    if not len(hits):
        say(f"{name}: no set is found")
        return
    say(f"{name}: {counted(len(hits), 'set')} by {hits.distance_kind} distance\n")
    keys, values = metadata_columns(hits.metadata)
    lines = [[i + 1, hit.id, hit.distance, *value] for i, (hit, value) in enumerate(zip(hits, values, strict=True))]
    say_table(["", "id", "distance", *keys], lines, ["", "distance"])


def _panels(index: SetIndex, part: Asked, i: int, name: str, hits: Hits) -> list[list[Panel | None]]:
    """The query, and its nearest beside it; more of them in lines below."""
    if part.sets is None:
        stored = index.get(name)
        assert isinstance(stored, Record)
        first = Panel(stored.points, stored.weights, name)
    else:
        first = Panel(part.sets[i], part.sets.weights_of(i), name)
    found = index.get(hits.ids[:DRAWN])
    assert isinstance(found, Records)
    near = [
        Panel(found.sets[j], found.sets.weights_of(j), id, f"{hits.distances[j]:.4g}") for j, id in enumerate(found.ids)
    ]
    return [
        [first if start == 0 else None, *near[start : start + A_LINE]] for start in range(0, len(near) or 1, A_LINE)
    ]


def _one_scale(index: SetIndex) -> bool:
    """Whether place and size of the sets count, so that pictures should keep them."""
    steps = str(index.info()["preprocess"])
    return "center" not in steps and "scale" not in steps


@reads_files
def explain(
    index: IndexPath,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="An id in the index, or a file of one set.")],
    id: Annotated[str, typer.Argument(metavar="ID", help="The stored set to compare it with.")],
    *,
    reading: Reading,
    by_id: ById = False,
    by_file: ByFile = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Draw both sets, each point as large as its share; 2-D or 3-D."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Say why two sets are as far apart as they are.

    The squared sliced distance is a sum over the points of the query: the points with the largest shares are shown.

        slosh explain shapes.slosh chair_1.ply chair_7.ply --plot why.png
    """
    with opened(index) as found_in:
        if plot is not None:
            check_drawable(found_in.dim)
        part = one_query(found_in, query, reading, by_id, by_file)
        name = part.names[0]
        found = found_in.explain(name if part.sets is None else part.sets, id)
    if plot is not None:
        title = f"x: {name}, y: {id}\nsliced distance {found.distance:.4g}; size: share of its square"
        with missing_glyphs_are_boxes():
            found.plot(plot, title=title)
    if json:
        document = {"query": name, "id": id, "distance": found.distance, "distance_kind": "sliced"}
        shares = {"slices": found.slices, "query_elements": found.x_elements, "id_elements": found.y_elements}
        say_json(document | shares)
        return
    say(f"{name} and {id}: sliced distance {found.distance:.6g}, over {counted(len(found.slices), 'slice')}\n")
    total = found.distance**2 or 1.0
    top = np.argsort(-found.x_elements, kind="stable")[:SHOWN]
    features = [f"x{j}" for j in range(min(found.x.dim, 8))]
    lines = [[int(i), f"{found.x_elements[i] / total:.1%}", *map(float, found.x[0][i, :8])] for i in top]
    say_table(["point", "share", *features], lines, ["point", "share", *features])
    if plot is not None:
        say(f"\ndrawn in {plot}")


def duplicates(
    index: IndexPath,
    *,
    radius: Annotated[float, typer.Option("--radius", min=0.0, help="How near two sets must be.")] = 0.0,
    where: Where = None,
    certify: Certify = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Pairs in the table; --json has all.")] = 50,
    json: AsJson = False,
) -> None:
    """Find pairs of sets that are nearly the same.

    Without --certify by the embedded distance, which is never larger than the sliced distance: no pair is left out, and
    some may be farther apart than the radius.

        slosh duplicates shapes.slosh --radius 0.01
    """
    node = filter_of(where)
    with opened(index) as found_in:
        pairs = found_in.duplicates(radius, where=node, certify=certify)
        if not len(pairs):
            say_unknown_fields(found_in, node)
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
    sets = sum(map(len, groups))
    say_facts(
        {"pairs": f"{len(pairs):,}, by {pairs.distance_kind} distance", "groups": f"{len(groups):,}, of {sets:,} sets"}
    )
