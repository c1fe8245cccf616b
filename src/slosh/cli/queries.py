"""What is asked for: arguments that are ids in an index, or files, become queries with a name, an id or points each."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from ..data.sets import Sets
from ..index.set_index import SetIndex
from .options import Reading, path_of
from .running import Failed, WrongUse, message

Queries = Annotated[
    list[str],
    typer.Argument(metavar="QUERY", help="Ids in the index, or files, folders, patterns.", show_default=False),
]
ById = Annotated[bool, typer.Option("--id", help="The queries are ids, though files are called so too.")]
ByFile = Annotated[bool, typer.Option("--file", help="The queries are files, though ids are called so too.")]


class Asked(NamedTuple):
    """Some queries: stored sets by their ids (`sets` is None), or sets that were read, with names."""

    names: list[str]
    sets: Sets | None


def asked(index: SetIndex, queries: Sequence[str], reading: Reading, by_id: bool, by_file: bool) -> Iterator[Asked]:
    """The queries in their order; ids that follow each other together, files batch by batch."""
    if by_id and by_file:
        raise WrongUse("--id and --file: give one of the two")
    kinds = [_is_file(index, query, by_id, by_file) for query in queries]
    ids: list[str] = []
    for query, is_file in zip(queries, kinds, strict=True):
        if not is_file:
            ids.append(query)
            continue
        if ids:
            yield Asked(ids, None)
            ids = []
        for batch in reading.read([query], index.origin):
            if batch.sets.dim != index.dim:
                raise Failed(
                    f"{query}: its sets have {batch.sets.dim} features, those of {path_of(index)} have {index.dim}: "
                    "choose them with --columns, or search another index"
                )
            yield Asked(batch.ids, batch.sets)
    if ids:
        yield Asked(ids, None)


def one_query(index: SetIndex, query: str, reading: Reading, by_id: bool, by_file: bool) -> Asked:
    """A query that must be one set."""
    found: list[Asked] = []
    for part in asked(index, [query], reading, by_id, by_file):
        found.append(part)
        if sum(len(each.names) for each in found) > 1:
            names = [name for each in found for name in each.names]
            raise Failed(
                f"{query} has several sets ({', '.join(names[:3])}, ...): give a file that is one set, or an id"
            )
    if not found:
        raise Failed(f"{query}: there are no sets in it")
    return found[0]


def _is_file(index: SetIndex, query: str, by_id: bool, by_file: bool) -> bool:
    if by_id or by_file:
        return by_file
    try:
        stored = query in index
    except ValueError as error:
        raise Failed(message(error)) from error
    there = os.path.lexists(query) or (any(mark in query for mark in "*?[") and bool(glob.glob(query, recursive=True)))
    if stored and there:
        raise WrongUse(f"{query} is an id in the index, and a file: say which is meant with --id or --file")
    if not stored and not there:
        raise Failed(f"{query} is neither an id in {path_of(index)} nor a file: slosh show {path_of(index)} lists ids")
    return there
