"""What goes into an index and comes out of it whole: sets with their ids and metadata, one by one or in batches.

Here are the checks of ids and metadata, and the ways in which a stream of sets may come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import where
from ..data.sets import Sets
from ..engines.spec import IndexSpec
from ..errors import DuplicateId, InputError
from ..where import Metadata

Float32 = NDArray[np.float32]

STREAM_BATCH_POINTS = 1 << 22
"""Points of one transaction when an iterator is added."""
MAX_ID_LENGTH = 1024


class Record(NamedTuple):
    """A stored set: points (N, d), weights (N,) or None, metadata."""

    id: str
    points: Float32
    weights: Float32 | None
    metadata: dict[str, Any]


def is_single_id(ids: Any) -> bool:
    return isinstance(ids, str | Integral) and not isinstance(ids, bool)


def is_single_set(queries: Any) -> bool:
    """Return whether this is one set (N, d), and not a collection."""
    if type(queries) is np.ndarray:
        return queries.ndim == 2
    if isinstance(queries, Sets) or getattr(queries, "is_nested", False):
        return False
    if hasattr(queries, "ndim"):
        return int(queries.ndim) == 2
    if isinstance(queries, list | tuple) and len(queries):
        first = queries[0]
        if hasattr(first, "ndim"):
            return int(first.ndim) == 1
        return isinstance(first, list | tuple) and (not len(first) or np.ndim(first[0]) == 0)
    return False


def checked_ids(ids: Any, *, repeats: bool = False) -> list[str]:
    """Return ids, or a single one, as strings; each must come once, unless `repeats`."""
    if is_single_id(ids):
        ids = [ids]
    if isinstance(ids, bytes) or not isinstance(ids, Iterable):
        raise InputError(f"ids={ids!r:.60}", "give a list of strings, one for each set", argument="ids")
    names = [_checked_id(i, name) for i, name in enumerate(ids.tolist() if isinstance(ids, np.ndarray) else ids)]
    if not repeats and len(set(names)) < len(names):
        seen: set[str] = set()
        again = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DuplicateId(f"id {again!r} is given twice", "nothing was changed", argument="ids", id=again)
    return names


def _checked_id(i: int, name: Any) -> str:
    if isinstance(name, Integral) and not isinstance(name, bool):
        name = str(int(name))
    if not isinstance(name, str) or not name or len(name) > MAX_ID_LENGTH or "\0" in name:
        raise InputError(
            f"id {i} is {name!r:.60}",
            f"give a string of 1 to {MAX_ID_LENGTH} characters, or a whole number",
            argument="ids",
            set=i,
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"id {i} is {name!r:.60}, which is not valid text", argument="ids", set=i) from None
    return str(name)


def metadata_of_each(metadata: Any, n: int) -> Sequence[Any]:
    """Return metadata for each of n sets."""
    if metadata is None or isinstance(metadata, dict):
        return [metadata] * n
    if isinstance(metadata, str | bytes) or not isinstance(metadata, Iterable):
        raise InputError(
            f"metadata={metadata!r:.60}", "give a dict for each set, or one dict for all", argument="metadata"
        )
    listed = list(metadata)
    if len(listed) != n:
        raise InputError(
            f"there are {n} sets and {len(listed)} metadata",
            "give a dict for each, or one dict for all",
            argument="metadata",
        )
    return listed


def checked_metadata(metadata: Sequence[Any], ids: Sequence[str]) -> list[Metadata]:
    """Return the checked metadata of each set."""
    return [where.checked_metadata(one, f"metadata of set {i} ({ids[i]!r})") for i, one in enumerate(metadata)]


def merge_metadata(own: Any, for_all: dict[str, Any] | None, n: int) -> Any:
    """Return the metadata of a batch, with what is given for all sets where a set has no value of its own."""
    if for_all is None or own is None:
        return own if for_all is None else for_all
    return [{**for_all, **(each or {})} for each in metadata_of_each(own, n)]


def stream_batches(items: Iterator[Any], spec: IndexSpec) -> Iterator[tuple[Sets, Any, Any]]:
    """Yield (sets, ids, metadata) of a stream of such triples, of Sets, or of arrays."""

    def remaining(first: Any) -> Iterator[Any]:
        yield first
        yield from items

    for item in items:
        if isinstance(item, tuple) and len(item) == 3 and not is_single_set(item):
            yield spec.sets(item[0]), item[1], item[2]
        elif isinstance(item, Sets):
            yield spec.sets(item), None, None
        else:
            for batch in Sets.stream(remaining(item), STREAM_BATCH_POINTS, dim=spec.dim, origin=spec.origin):
                yield batch, None, None
