"""Batches from pieces of files: joined up to a number of points, checked by `Sets`, with errors that name the file.

A batch has sets of one dimension, all weighted or none. An id that occurs twice is refused, with both places, unless
ids need not be unique.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.batching import MAX_BATCH_SETS
from ..data.checks import check_numeric, place_of
from ..data.precision import Origin
from ..data.sets import Sets
from ..errors import DuplicateId, InputError, ReaderError
from .files import File, Options, Piece, check_points


class Batch(NamedTuple):
    """Some sets with an id and metadata for each."""

    sets: Sets
    ids: list[str]
    metadata: list[dict[str, Any]]


def join(pieces: Iterable[Piece], options: Options, origin: Origin) -> Iterator[Batch]:
    """Yield batches of about `options.batch_points` points; `origin="auto"` is the median of the first, for all."""
    waiting: list[Piece] = []
    points = sets = 0
    first: Piece | None = None
    seen: dict[str, File] = {}
    numbers: Counter[Path] = Counter()

    def flush() -> Batch:
        nonlocal waiting, points, sets, origin
        made = _join_sets(waiting, origin)
        batch = Batch(made, [i for p in waiting for i in p.ids], [m for p in waiting for m in p.metadata])
        waiting, points, sets, origin = [], 0, 0, made.origin
        return batch

    for piece in pieces:
        if not piece.ids:
            continue
        first = first or piece
        check_points(piece.file, numbers[piece.file.path], piece.sizes, options)
        numbers[piece.file.path] += len(piece.ids)
        _check(piece, first)
        if options.unique_ids:
            _remember(piece, seen)
        limit = options.limit(piece.points.shape[1])
        fits = points + len(piece.points) <= limit and sets + len(piece.ids) <= MAX_BATCH_SETS
        if waiting and not (fits and (waiting[0].weights is None) == (piece.weights is None)):
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
        warnings.simplefilter("ignore")  # the batch warns
        _join_sets([piece], None if isinstance(origin, str) else origin)


def _check(piece: Piece, first: Piece) -> None:
    points = piece.points
    if points.ndim != 2 or points.shape[1] == 0:
        raise piece.file.error(f"points of shape {points.shape}", "they must be (P, d) with d > 0")
    try:
        check_numeric(points, "the points")
    except InputError as error:
        raise piece.file.error(error.problem, error.remedy) from None
    dim, other = points.shape[1], first.points.shape[1]
    if dim != other:
        remedy = "all sets need the same features: choose those that all files have, or read the files apart"
        raise piece.file.error(f"{dim} feature{'s' * (dim != 1)}, {first.file} has {other}", remedy)


def _remember(piece: Piece, seen: dict[str, File]) -> None:
    for one in piece.ids:
        if one in seen:
            before, now = seen[one], piece.file
            if before.path == now.path:
                problem, remedy = f"{now}: the id {one!r:.100} occurs twice", "give another id_column, or rename one"
            else:
                problem = f"the id {one!r:.100} occurs in {before} and in {now}"
                remedy = "rename one, or give the folder that holds both files, if their names are the ids"
            raise DuplicateId(problem, remedy, id=one)
        seen[one] = piece.file


def _join_sets(pieces: list[Piece], origin: Origin) -> Sets:
    sizes = np.concatenate([piece.sizes for piece in pieces])
    given = [piece.weights for piece in pieces if piece.weights is not None]
    try:
        return Sets.from_parts([p.points for p in pieces], sizes, np.concatenate(given) if given else None, origin)
    except InputError as error:
        if error.argument == "origin":
            raise
        raise _with_file(error, pieces) from None


def _with_file(error: InputError, pieces: list[Piece]) -> ReaderError:
    """Return the error of `Sets` with the file and the id in place of the number of the set."""
    if error.set is None:
        return pieces[0].file.error(error.problem, error.remedy)
    number = error.set
    for piece in pieces:
        if number < len(piece.ids):
            break
        number -= len(piece.ids)
    name, where = piece.ids[number], {"element": error.element, "feature": error.feature}
    whole = "" if name == piece.file.name else f"set {name!r}"  # a file may be one set
    what = f"{place_of(whole, **where) or 'the set'} {error.what}"
    return piece.file.error(what, error.remedy, id=name, **where)
