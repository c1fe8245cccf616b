"""Queries of the command line: arguments that are ids in an index, or files, become named queries."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from .messages import CommandError, UsageError
from .options import Reading, display_location

if TYPE_CHECKING:
    from ..data.sets import Sets
    from ..index.set_index import SetIndex

Queries = Annotated[
    list[str], Argument(metavar="QUERY", help="Ids of stored sets; or files, folders, or quoted patterns.")
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
            path = display_location(index)
            raise CommandError(f"{query} is neither an id in {path} nor a file: slosh show {path} lists ids")
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
            for batch in reading.read([query], index.origin):
                if (dim := batch.sets.dim) != index.dim:
                    problem = f"its sets have {dim} features, those of {display_location(index)} have {index.dim}"
                    remedy = "choose features with --columns, or search another index"
                    raise CommandError(f"{query}: {problem}: {remedy}")
                yield QueryBatch(batch.ids, batch.sets)


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
