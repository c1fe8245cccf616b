"""What FaissSearch finds with each setting, measured by searches themselves; and what a setting costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..native.arrays import Int64, Mask
from .calibration import Setting, Trial, first_that_holds, which_found
from .cost_model import candidate_depths, cost_of_each
from .faiss_factory import Factory

DEEPEST_FACTOR, DEEPEST_AT_LEAST = 16, 256
"""So many times as many candidates as neighbours are looked at, and at least so many."""
LARGER_EFFORTS = 6
"""Efforts that are tried beyond the least that is enough: with more lists fewer candidates may do."""
LARGEST_GRAPH_EFFORT = 8192
TOGETHER = 16
"""Queries that an exact search is thought to answer together."""

CandidatesOf = Callable[[Mask, int, int], Int64]
"""Takes a mask of queries, a depth and an effort; returns FAISS's candidates, without the query itself."""
Search = Callable[[Mask, int, int, int], Int64]
"""Takes a mask of queries, k, effort and depth; returns the positions that are found."""


def efforts_of(factory: Factory, n_lists: int) -> list[int]:
    """Return the efforts that a calibration chooses from: lists probed, or candidates that a graph keeps."""
    if not factory.n_lists and not factory.n_links:
        return [1]
    last = n_lists if factory.n_lists else LARGEST_GRAPH_EFFORT
    found = [1]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, int(found[-1] * 1.2))))
    return found


def price(factory: Factory, n_lists: int, n: int, width: int, dim: int, effort: int, depth: int) -> float:
    """Return what a search of n rows takes, in nanoseconds or so. Only ratios mean anything."""
    codes = factory.codes
    if factory.is_fast_scan:
        per_row = 0.1 + 0.012 * factory.n_parts
    elif factory.n_parts:
        per_row = 1 + 0.7 * factory.n_parts
    else:
        per_row = {"Flat": 0.3 + 0.03 * width, "RaBitQ": 2 + 0.15 * width}.get(codes, 0.3 + 0.045 * width)
    compared = depth * (40 + 0.16 * dim)
    if factory.n_links:
        return compared + effort * factory.n_links * (6 + 2 * per_row)
    if not factory.n_lists:
        return compared + n * per_row
    return compared + n_lists * (0.2 + 0.03 * width) + effort * (20 + n / n_lists * per_row)


def price_of_exact(n: int, dim: int) -> float:
    """Return what comparing n vectors takes, in the same unit."""
    return cost_of_each(n, TOGETHER, dim)


class FaissTrial(Trial):
    """`truth` are the nearest positions of the queries; those from `n_filled` on are always compared.

    `price(effort, depth)` is what a search costs, `most` what it may cost.
    """

    def __init__(
        self,
        truth: Int64,
        n_filled: int,
        efforts: Sequence[int],
        is_graph: bool,
        candidates: CandidatesOf,
        search: Search,
        price: Callable[[int, int], float],
        most: float,
    ) -> None:
        super().__init__(len(truth))
        self._truth, self._n_filled, self._efforts, self._is_graph = truth, n_filled, efforts, is_graph
        self._candidates, self._search, self._price, self._most = candidates, search, price, most
        self._known: dict[tuple[int, int], Int64] = {}

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        """First the least effort that is enough with many candidates, then the cheapest way to compare fewer."""
        efforts, shallowest = self._efforts, k
        least = next((i for i, effort in enumerate(efforts) if effort > tried.reach), None)
        if least is None:  # there is no larger effort than what was tried
            least, shallowest = len(efforts) - 1, tried.depth + 1
        deepest = max(DEEPEST_FACTOR * k, DEEPEST_AT_LEAST, 2 * shallowest)

        def reached(i: int) -> bool:
            deep = self._deep(least + i, deepest)
            return enough(self._orders(least + i, deep)[:, :k] < deep)

        first = least + first_that_holds(len(efforts) - least, reached)
        best, lowest = None, self._most
        for i in range(first, min(first + LARGER_EFFORTS, len(efforts))):
            deep = self._deep(i, deepest)
            if deep < shallowest:
                continue
            order, depths = self._orders(i, deep)[:, :k], candidate_depths(shallowest, deep)
            at = first_that_holds(len(depths), lambda j, o=order, d=depths: enough(o < d[j]))  # type: ignore[misc]
            if at < len(depths) and (what := self._price(efforts[i], depths[at])) < lowest:
                best, lowest = Setting(float(efforts[i]), depths[at], float(depths[at])), what
        return best

    def _deep(self, i: int, deepest: int) -> int:
        """Return how many candidates to look at: a graph keeps no more than its effort."""
        return min(deepest, self._efforts[i]) if self._is_graph else deepest

    def _orders(self, i: int, deep: int) -> Int64:
        """Return how many candidates come before each neighbour of the queries that choose, `deep` if it is none."""
        known = self._known.get((i, deep))
        if known is None:
            truth = self._truth[self.choosing]
            known = np.full(truth.shape, deep, np.int64)
            found = self._candidates(self.choosing, deep, self._efforts[i])
            for line, others, neighbours in zip(known, found, truth, strict=True):
                order = np.argsort(others)
                at = order[np.minimum(np.searchsorted(others[order], neighbours), len(others) - 1)]
                line[:] = np.where(others[at] == neighbours, at, deep)
            known[truth >= self._n_filled] = 0
            self._known[i, deep] = known
        return known

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        positions = self._search(self.measuring, k, int(setting.reach), setting.depth)
        return which_found(positions, self._truth[self.measuring, :k])
