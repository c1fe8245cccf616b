"""Batches from a stream of sets: arrays or `Sets` come in one after the other, `Sets` of bounded size go out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .batching import batches_by_points
from .checks import Array, check_origin, checked_origin, mixed_weights, set_array, wrong_dim
from .precision import Origin

if TYPE_CHECKING:
    from .sets import Sets


class _Waiting:
    """Sets that wait until they are a batch: arrays or cuts of `Sets`, never both."""

    def __init__(self, kind: type[Sets], origin: Origin) -> None:
        self.kind, self.origin = kind, origin
        self.arrays: list[Array] = []
        self.cuts: list[Sets] = []
        self.points = self.sets = 0  # how many wait
        self.seen = 0  # the number of the next set of the stream

    def add_array(self, array: Array) -> None:
        self.arrays.append(array)
        self.points, self.sets, self.seen = self.points + len(array), self.sets + 1, self.seen + 1

    def add_cut(self, cut: Sets) -> None:
        self.cuts.append(cut)
        n = len(cut)
        self.points, self.sets, self.seen = self.points + len(cut.points), self.sets + n, self.seen + n

    def take(self) -> Sets:
        """Return all that waits as one batch; what comes after it gets the same origin."""
        if self.cuts:
            batch = self.kind.concat(self.cuts)
        else:
            sizes, first = [len(x) for x in self.arrays], self.seen - self.sets
            batch = self.kind.from_parts(self.arrays, sizes, None, self.origin, first=first)
        self.arrays, self.cuts, self.points, self.sets, self.origin = [], [], 0, 0, batch.origin
        return batch


def stream_batches(
    kind: type[Sets], items: Iterable[Any], max_points: int, max_sets: int, dim: int | None, origin: Origin
) -> Iterator[Sets]:
    """Yield batches of at most `max_points` points and `max_sets` sets; `kind` is the class `Sets`.

    A set with more points is a batch of its own. A batch goes out as soon as it is full.
    """
    waiting = _Waiting(kind, origin)
    weighted: bool | None = None
    for item in items:
        is_sets = isinstance(item, kind)
        if is_sets and not len(item):
            continue
        part: Any = item if is_sets else set_array(item, waiting.seen)
        if waiting.sets and is_sets != bool(waiting.cuts):
            yield waiting.take()
        width = part.dim if is_sets else part.shape[1]
        dim = width if dim is None else dim
        if width != dim:
            raise wrong_dim(waiting.seen, width, dim)
        has_weights = is_sets and part.weights is not None
        if weighted not in (None, has_weights):
            raise mixed_weights(waiting.seen, has_weights)
        weighted = has_weights
        if is_sets:
            if waiting.seen == 0 and (origin is None or isinstance(origin, str)):
                waiting.origin = part.origin
            check_origin(part, None if waiting.origin is None else checked_origin(waiting.origin, width))
            yield from _cut(part, waiting, max_points, max_sets)
            continue
        if waiting.sets and waiting.points + len(part) > max_points:
            yield waiting.take()
        waiting.add_array(part)
        if waiting.points >= max_points or waiting.sets >= max_sets:
            yield waiting.take()
    if waiting.sets:
        yield waiting.take()


def _cut(sets: Sets, waiting: _Waiting, max_points: int, max_sets: int) -> Iterator[Sets]:
    """Yield the batches that `sets` make with those that wait; the last sets wait, unless they fill a batch."""
    sizes, start = sets.sizes, 0
    if waiting.sets and waiting.points + int(sizes[0]) > max_points:
        yield waiting.take()
    elif waiting.sets:  # as many as fit beside those that wait
        start = next(batches_by_points(sizes, max_points - waiting.points, max_sets - waiting.sets)).stop
        waiting.add_cut(sets[:start])
        if start < len(sets):
            yield waiting.take()
    for run in batches_by_points(sizes[start:], max_points, max_sets):
        waiting.add_cut(sets[start + run.start : start + run.stop])
        if start + run.stop < len(sets):
            yield waiting.take()
    if waiting.points >= max_points or waiting.sets >= max_sets:
        yield waiting.take()
