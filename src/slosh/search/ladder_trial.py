"""What LadderSearch finds with each setting, measured by searches themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..native.arrays import Int64, Mask
from .calibration import Setting, Trial, first_that_holds, which_found
from .cost_model import candidate_depths

REACHES = (0.0, *(round(0.02 * 1.06**i, 4) for i in range(118)))
"""Of these a calibration takes one, from none to all lists but a few; see `LadderState.climb`."""
LARGER_REACH, TIMES_LARGER = 0.1, 1.25
"""By how much the reach is larger, at least, if one was not enough; `cheaper` goes back as far as it can."""
USUAL_REACH = 64
"""Which of these is looked at first: most collections need about as much."""
WIDER = 6
"""So many reaches farther may be scanned to compare fewer vectors."""
FIRST_DEPTH, LAST_DEPTH = 4, 16
"""How many times as many vectors as neighbours are compared, to see which lists are needed; and at most."""

Climb = Callable[[Mask, int, float, int], tuple[Int64, float]]
"""Takes a mask of queries, k, reach and depth; returns the positions that are found, and what it cost a query."""


class LadderTrial(Trial):
    """`truth` are the nearest positions of the queries; `price_of_exact` is what it takes to find them."""

    def __init__(self, truth: Int64, climb: Climb, price_of_exact: float) -> None:
        super().__init__(len(truth))
        self._truth, self._climb, self._price_of_exact = truth, climb, price_of_exact
        self._known: dict[tuple[int, int, int], tuple[Mask, float]] = {}
        self._first: dict[float, int] = {}  # the reach that was enough for each recall

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        """First the least reach that is enough if many vectors are compared, then the cheapest way to compare fewer."""
        more = TIMES_LARGER * tried.reach + LARGER_REACH if tried.depth else -1.0
        least = next((i for i, reach in enumerate(REACHES) if reach > more), len(REACHES))
        deep = max(FIRST_DEPTH * k, 2 * tried.depth)

        def reached(i: int) -> bool:
            return enough(self._try(k, least + i, deep)[0])

        # Other numbers of neighbours need about the same reach, and higher recalls a larger one.
        known = self._first.get(recall, max(self._first.values(), default=USUAL_REACH))
        first = least + first_that_holds(len(REACHES) - least, reached, max(0, known - least))
        self._first[recall] = min(first, len(REACHES) - 1)
        if first == len(REACHES):
            deep, first = LAST_DEPTH * k, len(REACHES) - 1
            if not enough(self._try(k, first, deep)[0]):
                return None
        best, price = Setting(REACHES[first], deep, float(deep)), self._try(k, first, deep)[1]
        for depth in candidate_depths(max(k, tried.depth + 1), deep - 1):
            n_larger = min(WIDER, len(REACHES) - first)
            larger = first_that_holds(n_larger, lambda i, d=depth: enough(self._try(k, first + i, d)[0]))  # type: ignore[misc]
            if larger == n_larger:
                continue
            i = first + larger
            if (what := self._try(k, i, depth)[1]) < price:
                best, price = Setting(REACHES[i], depth, float(depth)), what
            elif best.depth < deep:
                break  # one that compares fewer vectors costs less
            if i == first:
                break  # with a greater depth it would only cost more
        return best if price < self._price_of_exact else None

    def cheaper(self, setting: Setting) -> Iterator[Setting]:
        """Yield smaller reaches, one after the other."""
        for reach in reversed(REACHES[: REACHES.index(setting.reach)]):
            yield setting._replace(reach=reach)

    def _try(self, k: int, i: int, depth: int) -> tuple[Mask, float]:
        known = self._known.get((k, i, depth))
        if known is None:
            positions, price = self._climb(self.choosing, k, REACHES[i], depth)
            known = which_found(positions, self._truth[self.choosing, :k]), price
            self._known[k, i, depth] = known
        return known

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        positions, _ = self._climb(self.measuring, k, setting.reach, setting.depth)
        return which_found(positions, self._truth[self.measuring, :k])
