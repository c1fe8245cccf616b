"""Pieces of files into batches: joined up to a number of points, checked by `Sets`, with errors that name the file.

A batch has sets of one dimension, all weighted or none. An id that comes twice is refused, with both places.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.checks import check_numeric
from ..data.precision import Origin
from ..data.batching import MAX_BATCH_SETS
from ..data.sets import Sets
from .files import File, Options, Piece, Unreadable


class Batch(NamedTuple):
    """Some sets with an id and metadata for each."""

    sets: Sets
    ids: list[str]
    metadata: list[dict[str, Any]]


def join(pieces: Iterable[Piece], options: Options, origin: Origin) -> Iterator[Batch]:
    """Batches of about `options.batch_points` points; `origin="auto"` is the median of the first, for all."""
    waiting: list[Piece] = []
    points = sets = 0
    first: Piece | None = None
    seen: dict[str, File] = {}

    def flush() -> Batch:
        nonlocal waiting, points, sets, origin
        made = _sets(waiting, origin)
        batch = Batch(made, [i for p in waiting for i in p.ids], [m for p in waiting for m in p.metadata])
        waiting, points, sets, origin = [], 0, 0, made.origin
        return batch

    for piece in pieces:
        if not piece.ids:
            continue
        first = first or piece
        _check(piece, first)
        _remember(piece, seen)
        limit = options.limit(piece.points.shape[1])
        if waiting and (
            points + len(piece.points) > limit
            or sets + len(piece.ids) > MAX_BATCH_SETS
            or (waiting[0].weights is None) != (piece.weights is None)
        ):
            yield flush()
        waiting.append(piece)
        points += len(piece.points)
        sets += len(piece.ids)
        if points >= limit or sets >= MAX_BATCH_SETS:
            yield flush()
    if waiting:
        yield flush()


def check_alone(piece: Piece, origin: Origin) -> None:
    """Raise what would be raised over this piece in a batch, whatever the batch."""
    _check(piece, piece)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the batch says it
        _sets([piece], None if isinstance(origin, str) else origin)


def _check(piece: Piece, first: Piece) -> None:
    points = piece.points
    if points.ndim != 2 or points.shape[1] == 0:
        raise Unreadable(f"{piece.file}: points of shape {points.shape}: they must be (P, d) with d > 0")
    try:
        check_numeric(points, str(piece.file))
    except ValueError as error:
        raise Unreadable(str(error)) from None
    dim, other = points.shape[1], first.points.shape[1]
    if dim != other:
        raise Unreadable(
            f"{piece.file}: {dim} feature{'s' * (dim != 1)}, {first.file} has {other}: all sets need the same "
            "features; name them with columns=, or read the files apart"
        )


def _remember(piece: Piece, seen: dict[str, File]) -> None:
    for one in piece.ids:
        if one in seen:
            before, now = seen[one], piece.file
            if before.path == now.path:
                raise Unreadable(f"{now}: the id {one!r:.100} occurs twice: give another id_column, or rename one")
            raise Unreadable(
                f"the id {one!r:.100} occurs in {before} and in {now}: rename one, or give the folder that holds both "
                "files, if their names are the ids"
            )
        seen[one] = piece.file


def _sets(pieces: list[Piece], origin: Origin) -> Sets:
    sizes = np.concatenate([piece.sizes for piece in pieces])
    given = [piece.weights for piece in pieces if piece.weights is not None]
    try:
        return Sets.from_parts([p.points for p in pieces], sizes, np.concatenate(given) if given else None, origin)
    except ValueError as error:
        raise _placed(error, pieces) from None


def _placed(error: ValueError, pieces: list[Piece]) -> ValueError:
    """The error of `Sets`, with the file and the id in place of the number of the set."""
    said = str(error)
    found = re.search(r"\bset (\d+)", said)
    if found is None:
        return error if "origin" in said else Unreadable(f"{pieces[0].file}: {said}")
    number = int(found[1])
    for piece in pieces:
        if number < len(piece.ids):
            break
        number -= len(piece.ids)
    if piece.ids[number] == piece.file.name:  # one set a file
        said = said.replace(f"{found[0]}, ", "", 1).replace(found[0], "the set", 1)
    else:
        said = said.replace(found[0], f"set {piece.ids[number]!r}", 1)
    return Unreadable(f"{piece.file}: {said}")
