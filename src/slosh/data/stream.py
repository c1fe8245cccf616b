"""Batches from a stream of sets: arrays or `Sets` come in one after the other, `Sets` of bounded size go out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .batching import batches_by_points
from .checks import ALL_OR_NO_WEIGHTS, check_origin, checked_origin, input_error, set_array, wrong_dim
from .points import is_set_item
from .precision import Origin

if TYPE_CHECKING:
    from .sets import Sets


class _Waiting:
    """Sets that wait until they are a batch: arrays of one set each or cuts of `Sets`, never both."""

    def __init__(self, kind: type[Sets], origin: Origin, max_points: int, max_sets: int) -> None:
        self.kind, self.origin, self.max_points, self.max_sets = kind, origin, max_points, max_sets
        self.items: list[Any] = []
        self.points = self.sets = 0  # how many wait
        self.seen = 0  # the number of the next set of the stream

    def add(self, item: Any, points: int, sets: int) -> None:
        self.items.append(item)
        self.points += points
        self.sets += sets
        self.seen += sets

    def take(self) -> Sets:
        """Return all that waits as one batch; what comes after it gets the same origin."""
        if isinstance(self.items[0], self.kind):
            batch = self.kind.concat(self.items)
        else:
            sizes, first = [len(x) for x in self.items], self.seen - self.sets
            batch = self.kind.from_parts(self.items, sizes, None, self.origin, first=first)
        self.items, self.points, self.sets, self.origin = [], 0, 0, batch.origin
        return batch

    def cut(self, sets: Sets) -> Iterator[Sets]:
        """Yield the batches that `sets` make with those that wait; the last sets wait, unless they fill a batch."""
        sizes, start = sets.sizes, 0
        if self.items:  # as many as fit beside those that wait
            start = next(batches_by_points(sizes, self.max_points - self.points, self.max_sets - self.sets)).stop
            self.add(sets[:start], int(sets.offsets[start]), start)
            if start < len(sets):
                yield self.take()
        for run in batches_by_points(sizes[start:], self.max_points, self.max_sets):
            part = sets[start + run.start : start + run.stop]
            self.add(part, len(part.points), len(part))
            if start + run.stop < len(sets):
                yield self.take()


def stream_batches(
    kind: type[Sets], items: Iterable[Any], max_points: int, max_sets: int, dim: int | None, origin: Origin
) -> Iterator[Sets]:
    """Yield batches of at most `max_points` points and `max_sets` sets; `kind` is the class `Sets`.

    A set with more points is a batch of its own. A batch goes out as soon as it is full.
    """
    waiting = _Waiting(kind, origin, max_points, max_sets)
    sets_wait, weighted = False, None
    for item in items:
        item = kind.from_item(item, waiting.seen) if is_set_item(item) else item
        is_sets = isinstance(item, kind)
        if is_sets and not len(item):
            continue
        part: Any = item if is_sets else set_array(item, waiting.seen)
        if waiting.sets and is_sets != sets_wait:
            yield waiting.take()
        sets_wait = is_sets
        size, width = (int(part.offsets[1]), part.dim) if is_sets else part.shape  # size is that of the first set
        dim = width if dim is None else dim
        if width != dim:
            raise wrong_dim(waiting.seen, width, dim)
        has_weights = is_sets and part.weights is not None
        if weighted not in (None, has_weights):
            what = f"has {'' if has_weights else 'no '}weights, unlike those before it"
            raise input_error(waiting.seen, what, ALL_OR_NO_WEIGHTS)
        weighted = has_weights
        if waiting.sets and waiting.points + size > max_points:
            yield waiting.take()
        if is_sets:
            if waiting.seen == 0 and (origin is None or isinstance(origin, str)):
                waiting.origin = part.origin
            check_origin(part, None if waiting.origin is None else checked_origin(waiting.origin, width))
            yield from waiting.cut(part)
        else:
            waiting.add(part, size, 1)
        if waiting.points >= max_points or waiting.sets >= max_sets:
            yield waiting.take()
    if waiting.sets:
        yield waiting.take()
