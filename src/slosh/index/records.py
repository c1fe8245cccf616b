"""What goes into an index and comes out of it whole: sets with their ids and metadata, one by one or in batches.

Here are the checks of ids and metadata, and the ways in which a stream of sets may come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.sets import Sets, as_sets

Float32 = NDArray[np.float32]

BATCH_POINTS = 1 << 22
"""Points of one transaction when an iterator is added."""
LONGEST_ID = 1024


class UnknownId(KeyError):
    """There is no set with this id."""

    def __str__(self) -> str:
        return str(self.args[0])


class Record(NamedTuple):
    """A stored set: points (N, d), weights (N,) or None, metadata."""

    id: str
    points: Float32
    weights: Float32 | None
    metadata: dict[str, Any]


class Records(NamedTuple):
    """Several stored sets; what `slosh.readers` give, and `add` takes."""

    sets: Sets
    ids: list[str]
    metadata: list[dict[str, Any]]


def is_one(queries: Any) -> bool:
    """Whether this is one set (N, d), and not a collection."""
    if isinstance(queries, Sets):
        return False
    if hasattr(queries, "ndim") and not hasattr(queries, "is_nested"):
        return int(queries.ndim) == 2
    if isinstance(queries, list | tuple) and len(queries):
        first = queries[0]
        if hasattr(first, "ndim"):
            return int(first.ndim) == 1
        return isinstance(first, list | tuple) and (not len(first) or np.ndim(first[0]) == 0)
    return hasattr(queries, "ndim") and not getattr(queries, "is_nested", False) and int(queries.ndim) == 2


def checked_ids(ids: Any, twice: bool = False) -> list[str]:
    """Ids as strings; each once, unless `twice`."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ValueError(f"ids={ids!r:.60}: give a list of strings, one for each set")
    names = []
    for i, name in enumerate(ids.tolist() if isinstance(ids, np.ndarray) else ids):
        if isinstance(name, Integral) and not isinstance(name, bool):
            name = str(int(name))
        if not isinstance(name, str) or not name or len(name) > LONGEST_ID or "\0" in name:
            raise ValueError(
                f"id {i} is {name!r:.60}: an id is a string of 1 to {LONGEST_ID} characters, or a whole number"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"id {i} is {name!r:.60}, which is no valid text") from None
        names.append(str(name))
    if not twice and len(set(names)) < len(names):
        seen: set[str] = set()
        again = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"id {again!r} is given twice; nothing was changed")
    return names


def per_set(metadata: Any, n: int) -> Sequence[Any]:
    """Metadata for each of n sets."""
    if metadata is None:
        return [None] * n
    if isinstance(metadata, dict):
        return [metadata] * n
    if isinstance(metadata, str | bytes) or not isinstance(metadata, Iterable):
        raise ValueError(f"metadata={metadata!r:.60}: give a dict for each set, or one dict for all")
    listed = list(metadata)
    if len(listed) != n:
        raise ValueError(f"there are {n} sets and {len(listed)} metadata: give a dict for each, or one dict for all")
    return listed


def merged(own: Any, for_all: dict[str, Any] | None, n: int) -> Any:
    if for_all is None or own is None:
        return own if for_all is None else for_all
    return [{**for_all, **(each or {})} for each in per_set(own, n)]


def stream_batches(items: Iterator[Any], dim: int, origin: Any) -> Iterator[tuple[Sets, Any, Any]]:
    """(sets, ids, metadata) of a stream of such triples, of Sets, or of arrays."""

    def plain(first: Any) -> Iterator[Any]:
        yield first
        yield from items

    for item in items:
        if isinstance(item, tuple) and len(item) == 3 and not is_one(item):
            sets = as_sets(item[0], dim=dim, origin=origin)
            yield sets, item[1], item[2]
        elif isinstance(item, Sets):
            yield as_sets(item, dim=dim, origin=origin), None, None
        else:
            for batch in Sets.stream(plain(item), BATCH_POINTS, dim=dim, origin=origin):
                yield batch, None, None
